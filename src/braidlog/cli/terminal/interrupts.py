"""Ctrl-C for commands with records in flight: the first stops the work, the second cancels the wait for answers."""

import asyncio
import signal
from collections.abc import Callable


class Interrupts:
    """Interrupt handler; create it inside the task that the second interrupt cancels."""

    def __init__(self, first: Callable[[], None]) -> None:
        self.count = 0
        self._first = first
        self._task = asyncio.current_task()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupted)

    def _interrupted(self) -> None:
        self.count += 1
        if self.count == 1:
            self._first()
        elif self._task is not None:
            self._task.cancel()
