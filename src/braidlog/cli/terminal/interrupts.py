"""Ctrl-C for commands that have records on the way: the first one ends the work, the second one the waiting.

Knows: signals and the task they end. Refuses to know: what the work is.
"""

import asyncio
import signal
from collections.abc import Callable


class Interrupts:
    """Made inside the task that the second interrupt cancels."""

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
