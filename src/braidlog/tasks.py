"""Background tasks with an owner, in a server or a client: the owner cancels them and is notified of a crash.

Invariant: after `stop` none runs. One that crashes is never lost: the loop's exception handler is called, then the owner's.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any

from braidlog.model.actor import ACTOR

Crashed = Callable[[BaseException], None]
"""Called with the exception that a task crashed with."""


class Tasks:
    """The tasks of one owner. `failed` is called with the exception of a crashed task."""

    def __init__(self, failed: Crashed | None = None) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str, crashed: Crashed | None = None) -> "asyncio.Task[Any]":
        """Start a task. `crashed` is called before the owner's callback, for waiters of this task."""
        context = copy_context()
        context.run(ACTOR.set, None)  # the task does not act for the client of the current request
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, crashed))
        return task

    def every(self, seconds: float, work: Callable[[], Awaitable[object]], name: str) -> None:
        """Do something every so often, one after the other, until all tasks are stopped."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(seconds)
                await work()

        self.spawn(repeat(), name)

    def _ended(self, crashed: Crashed | None, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        told = {"message": f"task {task.get_name()} crashed: this is a defect", "exception": error, "task": task}
        task.get_loop().call_exception_handler(told)
        for tell in (crashed, self._failed):
            if tell is not None:
                tell(error)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Cancel all, and wait until they have ended."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
