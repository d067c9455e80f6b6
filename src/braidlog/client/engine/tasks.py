"""Tasks with an owner: who starts one can end it, and hears of its crash.

Knows: which tasks of one object run. Refuses to know: what they do.
Invariant: after `close` none runs. A task that crashes is told to the loop's exception handler; it never dies unheard.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """The background tasks of one producer or consumer."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            message = f"{task.get_name()} crashed: this is a defect of the client"
            task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        self.cancel()
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks)
