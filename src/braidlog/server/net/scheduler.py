"""Runs the work of connections: a request immediately on the caller's stack, waiting work in fair turns.

Most requests never wait (a ping, a fetch of existing records) and need no task. Handlers await only futures of this
loop; `asyncio.timeout` and `current_task` are not available in them. A coroutine whose client has disconnected is
cancelled only where it waits on a `Cancellable` (a long poll, a wait for its turn): elsewhere it is changing state, and
it runs to its end.
Invariants: answers, woken long polls and reads each have their own queue, and none delays another. Within a queue, the
work of one connection runs in order. After `SLICE_SECONDS` of queued work the loop polls its sockets, regardless of the
queue's length: a client with few requests is served from its socket and never queues.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from time import monotonic, thread_time
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]

ResumeGate = Callable[[], bool]
Go = Callable[[Callable[[], None], bool], None]
"""go(resume, is_poll): calls `resume` now or in its turn; `is_poll`: it resumes a long poll."""

_NOT_OURS = (KeyboardInterrupt, SystemExit)


class Cancellable(asyncio.Future[T], Generic[T]):
    """A future whose waiter may be cancelled: it is not in the middle of a change."""


class Polling(Cancellable[T], Generic[T]):
    """A future of a long poll, whose waiter can be made to answer early."""


class Deferrable(Polling[T], Generic[T]):
    """A future of a long poll, whose waiter may also be delayed: it holds nothing that other requests wait for."""


class MustFinish(Cancellable[T], Generic[T]):
    """A future whose waiter has changed state and will soon answer: a stopping node waits for it."""


class Parked(Cancellable[T], Generic[T]):
    """A future whose waiter waits for other clients, as a group member does; cancelled when its own client closes."""


async def next_turn(loop: asyncio.AbstractEventLoop) -> None:
    """Yield to the event loop for one turn; the waiter may be cancelled."""

    def wake() -> None:
        if not turn.done():
            turn.set_result(None)

    turn: Cancellable[None] = Cancellable(loop=loop)
    loop.call_soon(wake)
    await turn


class Running:
    """A coroutine that had to wait. `cancel` ends it at its next cancellable wait; then `done` is not called.

    After a wait on a `Deferrable`, it resumes only if `gate` returns True; else the owner of the gate calls `resume`
    later. After any wait, `go` may run other work first.
    """

    __slots__ = ("_cancelled", "_coroutine", "_done", "_gate", "_go", "_is_run_out", "_waiting")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        done: Done,
        gate: "ResumeGate",
        waiting: "asyncio.Future[Any] | None",
        go: "Go | None" = None,
    ) -> None:
        self._coroutine = coroutine
        self._done = done
        self._gate = gate
        self._go = go
        self._waiting: asyncio.Future[Any] | None = None
        self._cancelled = self._is_run_out = False
        self._wait(waiting)

    def _wait(self, future: "asyncio.Future[Any] | None") -> None:
        if future is None:
            # A bare `yield`, as in `asyncio.sleep(0)`: resume in the loop's next turn.
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            future.set_result(None)
        self._waiting = future
        # The future was yielded by its own __await__, which marked it so; a task would clear the mark too.
        future._asyncio_future_blocking = False  # noqa: SLF001 - the documented contract of asyncio.Task
        if self._cancelled and isinstance(future, Cancellable):
            self._end()
        else:
            future.add_done_callback(self._resume)
            if self._is_run_out:
                self.run_out()

    def _resume(self, _: "asyncio.Future[Any]") -> None:
        if self._go is None:
            self._proceed()
        else:
            self._go(self._proceed, isinstance(self._waiting, Deferrable))

    def _proceed(self) -> None:
        # Checked now, not when the wait ended: of a thousand woken together, not all have room for their answers.
        if not isinstance(self._waiting, Deferrable) or self._gate():
            self.resume()

    def resume(self) -> None:
        if self._waiting is None:
            return
        self._waiting = None
        try:
            waiting = self._coroutine.send(None)
        except StopIteration as stop:
            self._done(stop.value, None)
        except _NOT_OURS:
            raise
        except BaseException as error:  # noqa: BLE001 - passed to `done`, never swallowed
            self._done(None, error)
        else:
            self._wait(waiting)

    @property
    def may_end(self) -> bool:
        """Whether the current wait may be cancelled."""
        return isinstance(self._waiting, Cancellable)

    @property
    def must_finish(self) -> bool:
        return isinstance(self._waiting, MustFinish)

    @property
    def is_parked(self) -> bool:
        return isinstance(self._waiting, Parked)

    def run_out(self) -> bool:
        """End this long poll and later ones of the coroutine early; False if it waits for something else."""
        self._is_run_out = True
        if not isinstance(self._waiting, Polling):
            return False
        if not self._waiting.done():
            self._waiting.set_result(False)
        return True

    def cancel(self) -> None:
        """Cancel the coroutine now, or at its next cancellable wait; without one it runs to its end."""
        self._cancelled = True
        if self.may_end:
            self._end()

    def _end(self) -> None:
        if self._waiting is not None:
            self._waiting.remove_done_callback(self._resume)
            self._waiting = None
        self._coroutine.close()


def step(coroutine: Coroutine[Any, Any, Any]) -> tuple[bool, Any, BaseException | None]:
    """Run until the coroutine ends (True, its value, its error) or waits (False, its future, None)."""
    try:
        return False, coroutine.send(None), None
    except StopIteration as stop:
        return True, stop.value, None
    except _NOT_OURS:
        raise
    except BaseException as error:  # noqa: BLE001 - returned, never swallowed
        return True, None, error


def start(
    coroutine: Coroutine[Any, Any, Any], done: Done, gate: ResumeGate = lambda: True, go: Go | None = None
) -> Running | None:
    """Run until the coroutine ends (calls `done`, returns None) or waits (it then resumes automatically)."""
    ended, value, error = step(coroutine)
    if ended:
        done(value, error)
        return None
    return Running(coroutine, done, gate, value, go)


SLICE_REQUESTS: Final = 64
SLICE_REQUESTS_MIN: Final = 8
SLICE_SECONDS: Final = 0.005
QUICK, UNKNOWN, SLOW = range(3)
"""Speed of a connection's last reads, which selects the queue of its next one."""
SLOW_SECONDS: Final = 0.001
COUNTED_SECONDS_MIN: Final = 0.0002
"""Reads that take less are not counted: counting costs another turn of the loop."""
AT_ONCE: Final = 64
"""Requests that resume in one turn of the loop without queueing, half as many long polls: usually one."""

Work = Callable[[], None]
Line = OrderedDict[object, deque[Work]]


class FairScheduler:
    """Queues the work of all listeners of a node."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self._answers: Line = OrderedDict()
        """Requests whose wait has ended, such as an append after its sync."""
        self._polls: Line = OrderedDict()
        """Woken long polls: an append wakes all of its partition, but its own answer does not wait for them."""
        self._reads: tuple[Line, ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        """Received bytes, by the speed of their connection: reading a compressed body takes milliseconds."""
        self._lines = (self._answers, self._polls, *self._reads)
        self._is_due = False
        self._at_once = AT_ONCE
        self._served_seconds = 0.0
        self._processor_seconds = thread_time()
        self.waits = 0
        """How often work was queued."""

    @property
    def crowd(self) -> int:
        """Connections with queued work."""
        return sum(map(len, self._lines))

    @property
    def slice_requests(self) -> int:
        """Requests of one connection per turn; fewer, the more connections wait."""
        crowd = self.crowd
        return max(SLICE_REQUESTS // (1 + crowd), SLICE_REQUESTS_MIN) if crowd else SLICE_REQUESTS

    @property
    def is_used_up(self) -> bool:
        """Whether this turn of the loop has served sockets for a whole slice: further reads must queue."""
        return self._served_seconds >= SLICE_SECONDS

    def served(self, seconds: float, speed: int) -> int:
        """Count the time of a read of a connection with this speed; return its new speed."""
        if seconds >= SLOW_SECONDS:
            # On a busy machine the loop's thread may not have run all this time.
            before, self._processor_seconds = self._processor_seconds, thread_time()
            seconds = min(seconds, self._processor_seconds - before)
        if seconds >= COUNTED_SECONDS_MIN:
            if not self._served_seconds:
                self._loop.call_soon(self._restart)
            self._served_seconds += seconds
        return min(speed + 1, SLOW) if seconds >= SLOW_SECONDS else QUICK

    def wait(self, who: object, work: Work, speed: int = QUICK) -> None:
        """Queue a read of connection `who`; it runs even if the connection has ended by then."""
        self._stand(self._reads[speed], who, work)

    def _stand(self, line: Line, who: object, work: Work) -> None:
        self.waits += 1
        works = line.get(who)
        if works is None:
            works = line[who] = deque()
        works.append(work)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run_scheduled)

    def go_on(self, who: object, work: Work, *, is_poll: bool = False) -> None:
        """Resume a request whose wait has ended. One sync may end a thousand waits: the rest resume in turns, even if
        their clients have disconnected, so that every change is finished."""
        if self._at_once == AT_ONCE:
            self._loop.call_soon(self._restart)
        line, kept = (self._polls, AT_ONCE // 2) if is_poll else (self._answers, 0)
        if self._at_once > kept and not self._answers and not line:
            self._at_once -= 1
            work()
        else:
            self._stand(line, who, work)

    def _restart(self) -> None:
        self._at_once = AT_ONCE
        self._served_seconds = 0.0

    def _run_scheduled(self) -> None:
        self._is_due = False
        lines = [line for line in self._lines if line]
        for line in lines:
            until = self.clock() + SLICE_SECONDS / len(lines)
            while line:
                who, works = line.popitem(last=False)
                work = works.popleft()
                if works:
                    line[who] = works  # after the other connections
                self._processor_seconds = thread_time()
                work()
                if self.clock() >= until:
                    break
        if self.crowd and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run_scheduled)
