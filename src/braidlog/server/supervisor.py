"""Tasks with an owner.

Knows: which background tasks run, and what to do when one fails. Refuses to know: what they do.
Invariant: no task is born outside; one that fails is never lost: the supervisor reports it and asks for the server to stop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

log = logging.getLogger("braidlog.supervisor")


class Supervisor:
    """Owns the background tasks of one server."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def every(self, seconds: float, work: Callable[[], Awaitable[object]], name: str) -> None:
        """Do something every so often, one after the other, until the server stops."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(seconds)
                await work()

        self.spawn(repeat(), name)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.critical("task %s failed", task.get_name(), exc_info=error)
            self._failed(error)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
