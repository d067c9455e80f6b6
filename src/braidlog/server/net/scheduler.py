"""When the loop runs the work of a connection: a request at once, on the caller's stack; what has to wait, in fair turns.

Knows: the protocol between coroutines and futures, connections that have work left, for how long the loop was busy with them.
Refuses to know: requests, sockets, what the work is.
Most requests never wait (a ping, a fetch of what is there), and need no task. Handlers await only futures of this loop;
`asyncio.timeout` and `current_task` are not available in them. A coroutine whose client has gone is ended only where it waits on
an `Cancellable` (a long poll, a place in line): anywhere else it is in the middle of a change, which goes on to its end.
Invariants: answers, woken long polls and requests to read have a line each, none waits behind another's, and within a line the
work of one connection is done in its order; between two pieces of work that took `SLICE_SECONDS` together the loop looks at its
sockets, however many wait here: a client that asks little is served from there, and never stands in line.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from time import monotonic, thread_time
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]

PartitionLocks = Callable[[], bool]
Go = Callable[[Callable[[], None], bool], None]
"""go(resume, is_poll): calls it, now or in its turn; whether it resumes a long poll."""

_NOT_OURS = (KeyboardInterrupt, SystemExit)


class Cancellable(asyncio.Future[T], Generic[T]):
    """A future whose waiter may be ended while it waits: nothing is half done there."""


class Polling(Cancellable[T], Generic[T]):
    """A future of a long poll: its waiter may be made to answer early, with what it has."""


class Deferrable(Polling[T], Generic[T]):
    """A future whose waiter may also be made to wait longer: it holds nothing that others wait for."""


class MustFinish(Cancellable[T], Generic[T]):
    """A future whose waiter has changed something, and tells its client soon what came of it: a node that stops waits for it."""


class Parked(Cancellable[T], Generic[T]):
    """A future whose waiter waits for other clients, as a member of a group does: it ends when its own client has closed."""


async def next_turn(loop: asyncio.AbstractEventLoop) -> None:
    """Let others have a turn of the loop. Whoever waits here may be ended."""

    def wake() -> None:
        if not turn.done():
            turn.set_result(None)

    turn: Cancellable[None] = Cancellable(loop=loop)
    loop.call_soon(wake)
    await turn


class Running:
    """A coroutine that had to wait. `cancel` ends it where nothing is half done; then `done` is not called.

    After a wait on a `Deferrable` it goes on only if its `gate` says so; else whoever owns the gate calls `resume`
    later. After any wait, `go` may let others go first.
    """

    __slots__ = ("_cancelled", "_coroutine", "_done", "_gate", "_go", "_is_run_out", "_waiting")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        done: Done,
        gate: "PartitionLocks",
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
            # A bare `yield`, as of `asyncio.sleep(0)`: go on in the loop's next turn.
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
        # Asked now and not when the wait ended: of a thousand that were woken together, not all have room for their answers.
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
        except BaseException as error:  # noqa: BLE001 - handed on, never swallowed
            self._done(None, error)
        else:
            self._wait(waiting)

    @property
    def may_end(self) -> bool:
        """Whether it waits where it may be ended."""
        return isinstance(self._waiting, Cancellable)

    @property
    def must_finish(self) -> bool:
        return isinstance(self._waiting, MustFinish)

    @property
    def is_parked(self) -> bool:
        return isinstance(self._waiting, Parked)

    def run_out(self) -> bool:
        """End this long poll, and later ones of the coroutine, with what there is. False if it waits for something else."""
        self._is_run_out = True
        if not isinstance(self._waiting, Polling):
            return False
        if not self._waiting.done():
            self._waiting.set_result(False)
        return True

    def cancel(self) -> None:
        """End it here if it may be ended here, else at the next place where it may, else let it finish."""
        self._cancelled = True
        if self.may_end:
            self._end()

    def _end(self) -> None:
        if self._waiting is not None:
            self._waiting.remove_done_callback(self._resume)
            self._waiting = None
        self._coroutine.close()


def step(coroutine: Coroutine[Any, Any, Any]) -> tuple[bool, Any, BaseException | None]:
    """Run until it ends (True, its value, its error) or waits (False, what it waits for, None)."""
    try:
        return False, coroutine.send(None), None
    except StopIteration as stop:
        return True, stop.value, None
    except _NOT_OURS:
        raise
    except BaseException as error:  # noqa: BLE001 - handed on, never swallowed
        return True, None, error


def start(
    coroutine: Coroutine[Any, Any, Any], done: Done, gate: PartitionLocks = lambda: True, go: Go | None = None
) -> Running | None:
    """Run until it ends (then `done` was called and None is returned) or waits (then it goes on by itself)."""
    ended, value, error = step(coroutine)
    if ended:
        done(value, error)
        return None
    return Running(coroutine, done, gate, value, go)


SLICE_REQUESTS: Final = 64
SLICE_REQUESTS_MIN: Final = 8
SLICE_SECONDS: Final = 0.005
QUICK, UNKNOWN, SLOW = range(3)
"""How long the last reads of a connection took, which chooses the line of its next one."""
SLOW_SECONDS: Final = 0.001
COUNTED_SECONDS_MIN: Final = 0.0002
"""Sockets that take less are not counted: to count one takes another look at the sockets."""
AT_ONCE: Final = 64
"""Requests that resume in one turn of the loop without waiting in line, half as many long polls: the usual number is one."""

Work = Callable[[], None]
Line = OrderedDict[object, deque[Work]]


class FairScheduler:
    """One for all listeners of a node."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self._answers: Line = OrderedDict()
        """Requests that have what they waited for, an append's sync for example."""
        self._polls: Line = OrderedDict()
        """Woken long polls: an append wakes all of its partition, and its own answer does not wait behind them."""
        self._reads: tuple[Line, ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        """Received bytes, by the speed of their connection: to read a compressed body takes milliseconds."""
        self._lines = (self._answers, self._polls, *self._reads)
        self._is_due = False
        self._at_once = AT_ONCE
        self._served_seconds = 0.0
        self._processor_seconds = thread_time()
        self.waits = 0
        """How often someone had to stand in line."""

    @property
    def crowd(self) -> int:
        """How many connections have work left."""
        return sum(map(len, self._lines))

    @property
    def slice_requests(self) -> int:
        """How many requests of one connection are served before others: the fewer, the more wait."""
        crowd = self.crowd
        return max(SLICE_REQUESTS // (1 + crowd), SLICE_REQUESTS_MIN) if crowd else SLICE_REQUESTS

    @property
    def is_used_up(self) -> bool:
        """Whether sockets were served for a whole slice in this turn of the loop: what they bring now waits for its turn."""
        return self._served_seconds >= SLICE_SECONDS

    def served(self, seconds: float, speed: int) -> int:
        """Count what it took to serve the socket of a connection that had this speed; return the speed that it has now."""
        if seconds >= SLOW_SECONDS:
            # On a busy machine the loop may have been kept from its processor meanwhile.
            before, self._processor_seconds = self._processor_seconds, thread_time()
            seconds = min(seconds, self._processor_seconds - before)
        if seconds >= COUNTED_SECONDS_MIN:
            if not self._served_seconds:
                self._loop.call_soon(self._restart)
            self._served_seconds += seconds
        return min(speed + 1, SLOW) if seconds >= SLOW_SECONDS else QUICK

    def wait(self, who: object, work: Work, speed: int = QUICK) -> None:
        """Read more when it is `who`'s turn; also if it is gone by then."""
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
        """Resume a request that has what it waited for. One sync may end a thousand waits: then the others resume in their
        turns, also if their clients are gone by then: a change is finished."""
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
                    line[who] = works  # behind the others
                self._processor_seconds = thread_time()
                work()
                if self.clock() >= until:
                    break
        if self.crowd and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run_scheduled)
