"""Run a coroutine at once, on the caller's stack, and only if it has to wait let the loop resume it.

Knows: the protocol between coroutines and futures. Refuses to know: what runs.
Most requests never wait (a ping, a fetch of what is there), and need no task. Handlers await only futures of this loop;
`asyncio.timeout` and `current_task` are not available in them.

A coroutine whose client has gone is ended only where it waits on an `Abandonable` (a long poll, a place in line): anywhere else
it is in the middle of a change, which goes on to its end.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]

Gate = Callable[[], bool]
Go = Callable[[Callable[[], None], bool], None]
"""go(resume, is_poll): calls it, now or in its turn; whether it resumes a long poll."""

_NOT_OURS = (KeyboardInterrupt, SystemExit)


class Abandonable(asyncio.Future[T], Generic[T]):
    """A future whose waiter may be ended while it waits: nothing is half done there."""


class Polling(Abandonable[T], Generic[T]):
    """A future of a long poll: its waiter may be made to answer early, with what it has."""


class Patient(Polling[T], Generic[T]):
    """A future whose waiter may also be made to wait longer: it holds nothing that others wait for."""


class Owed(Abandonable[T], Generic[T]):
    """A future whose waiter has changed something, and tells its client soon what came of it: a node that stops waits for it."""


class Parked(Abandonable[T], Generic[T]):
    """A future whose waiter waits for other clients, as a member of a group does: it ends when its own client has closed."""


class Running:
    """A coroutine that had to wait. `cancel` ends it where nothing is half done; then `done` is not called.

    After a wait on a `Patient` it goes on only if its `gate` says so; else whoever owns the gate calls `resume` later. After any
    wait, `go` may let others go first.
    """

    __slots__ = ("_cancelled", "_coroutine", "_done", "_gate", "_go", "_is_run_out", "_waiting")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        done: Done,
        gate: "Gate",
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
        if self._cancelled and isinstance(future, Abandonable):
            self._end()
        else:
            future.add_done_callback(self._resume)
            if self._is_run_out:
                self.run_out()

    def _resume(self, _: "asyncio.Future[Any]") -> None:
        if self._go is None:
            self._proceed()
        else:
            self._go(self._proceed, isinstance(self._waiting, Patient))

    def _proceed(self) -> None:
        # Asked now and not when the wait ended: of a thousand that were woken together, not all have room for their answers.
        if not isinstance(self._waiting, Patient) or self._gate():
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
        return isinstance(self._waiting, Abandonable)

    @property
    def is_owed(self) -> bool:
        return isinstance(self._waiting, Owed)

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
    coroutine: Coroutine[Any, Any, Any], done: Done, gate: Gate = lambda: True, go: Go | None = None
) -> Running | None:
    """Run until it ends (then `done` was called and None is returned) or waits (then it goes on by itself)."""
    ended, value, error = step(coroutine)
    if ended:
        done(value, error)
        return None
    return Running(coroutine, done, gate, value, go)
