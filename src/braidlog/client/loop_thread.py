"""A loop in a thread of its own, for programs that have none: work is done there, and waited for here.

Knows: threads, interrupts. Refuses to know: what the work is.
Invariant: every call ends, also when it, or the close that should have ended the thread, is interrupted.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from braidlog.client.errors import ClosedError

T = TypeVar("T")


class _Call(Generic[T]):
    """Work that one thread waits for and the loop's thread does.

    The wait is one call into C, a lock that the loop's thread opens. `concurrent.futures` and `threading.Condition` wait in
    Python: a KeyboardInterrupt that lands as they leave (`Condition.__exit__`) keeps their lock closed for ever, and the
    loop's thread waits for it too.
    """

    __slots__ = ("_ended", "_task", "_work")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(lambda _: self._ended.release())

    def cancel(self) -> None:
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()

    def result(self, timeout: float | None) -> T:
        if not self._ended.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)):
            raise TimeoutError
        assert self._task is not None
        return self._task.result()


class LoopThread:
    """A loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # Not `asyncio.all_tasks`: it looks through the tasks of all threads, and gives up if others make too many meanwhile.
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._loop.set_task_factory(self._make_task)
        self.at_end: Callable[[], object] = lambda: None
        """Called in the thread, last of all: also when whoever should have closed was interrupted before it could."""
        # A daemon, so that a forgotten client does not keep a program from ending; `_at_exit` looks after its records.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(asyncio.sleep(0))  # calls that were handed over last become tasks
        while left := [task for task in self._tasks if not task.done()]:  # of a close that was interrupted
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.at_end()
        self._loop.run_until_complete(asyncio.sleep(0))  # connections that were given up end in the next round
        self._loop.close()

    def _make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401
        task = asyncio.Task(work, loop=loop, **options)
        self._tasks.add(task)
        return task

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Do it there, wait here. An interrupt, or the timeout, ends the work too."""
        if self._loop.is_closed() or threading.current_thread() is self._thread:
            work.close()
            raise (
                ClosedError("the client is closed")
                if self._loop.is_closed()
                else RuntimeError("a callback of the client cannot wait for the client")
            )
        call = _Call(work)
        try:
            self._loop.call_soon_threadsafe(call.start)
            return call.result(timeout)
        except BaseException:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(call.cancel)
            raise

    def make(self, factory: Callable[[], T]) -> T:
        """Call something that must be called inside the loop."""

        async def inside() -> T:
            return factory()

        return self.run(inside())

    def stop(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
