"""An event loop in its own thread, for programs without one: work runs there while the caller waits.

Every call ends, even if the call, or the close that should have ended the thread, is interrupted.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from braidlog.client.errors import ClosedError

T = TypeVar("T")


class _Call(Generic[T]):
    """Work that runs in the loop's thread while another thread waits.

    The wait is one call into C, on a lock that the loop's thread releases. `concurrent.futures` and
    `threading.Condition` wait in Python: a KeyboardInterrupt at their exit (`Condition.__exit__`) leaves their lock
    locked forever, and the loop's thread then blocks on it too.
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
    """An event loop in its own thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # Not `asyncio.all_tasks`: it scans the tasks of all threads, and fails if other threads create too many
        # during the scan.
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._loop.set_task_factory(self._make_task)
        self.at_end: Callable[[], object] = lambda: None
        """Called last in the thread, even if the close was interrupted."""
        # A daemon, so that a client that was not closed does not block interpreter exit; `_at_exit` flushes its
        # records.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(asyncio.sleep(0))  # the last submitted calls become tasks
        while left := [task for task in self._tasks if not task.done()]:  # remaining after an interrupted close
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.at_end()
        self._loop.run_until_complete(asyncio.sleep(0))  # aborted connections end in the next iteration
        self._loop.close()

    def _make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401
        task = asyncio.Task(work, loop=loop, **options)
        self._tasks.add(task)
        return task

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run work in the thread and wait for it. An interrupt, or the timeout, cancels the work."""
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
        """Call a function that must be called inside the loop."""

        async def inside() -> T:
            return factory()

        return self.run(inside())

    def stop(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
