"""Locks by name, granted in the order of requests.

Invariants: at most one holder per name. A waiter that leaves (time-out, client closed) passes a lock that it was just
granted to the next waiter. A name without holder and waiters takes no memory.

Services change state across waits only while they hold the lock: what was checked before the wait still holds after
it.
"""

from collections import deque
from collections.abc import Iterable
from types import TracebackType

from braidlog.model.errors import NothingDoneError, Reason
from braidlog.model.runtime.runtime import Runtime, Wakeup

WAIT_SECONDS_MAX = 60.0


class KeyedLock:
    """The locks, by name."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lines: dict[str, deque[Wakeup]] = {}

    def acquire(self, name: str) -> "HeldKey":
        """`async with turns.take(name):` waits until all earlier requests for the name have finished."""
        return HeldKey(self._runtime, self._lines, name)

    @property
    def is_busy(self) -> bool:
        """Return whether any lock is held."""
        return bool(self._lines)

    def are_held(self, names: Iterable[str]) -> bool:
        """Return whether the lock of any of these names is held."""
        return self.is_busy and any(name in self._lines for name in names)

    def is_held(self, name: str) -> bool:
        return name in self._lines


class HeldKey:
    """One request for a lock, and the lock itself."""

    __slots__ = ("_lines", "_name", "_runtime")

    def __init__(self, runtime: Runtime, lines: dict[str, deque[Wakeup]], name: str) -> None:
        self._runtime = runtime
        self._lines = lines
        self._name = name

    async def __aenter__(self) -> None:
        line = self._lines.get(self._name)
        if line is None:
            self._lines[self._name] = deque()
            return
        wakeup = self._runtime.wakeup()
        line.append(wakeup)
        try:
            await wakeup.wait(WAIT_SECONDS_MAX)
        except BaseException:
            if not self._left(line, wakeup):
                self._pass_on()
            raise
        # Ignore the result of `wait`: the lock may have been granted just as the time ran out.
        if self._left(line, wakeup):
            raise NothingDoneError(
                Reason.TIMED_OUT, f"{self._name[:60]!r} has been busy for {WAIT_SECONDS_MAX:.0f} s; nothing was changed"
            )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pass_on()

    @staticmethod
    def _left(line: deque[Wakeup], wakeup: Wakeup) -> bool:
        """Leave the queue; False if the lock was already granted."""
        if wakeup in line:
            line.remove(wakeup)
            return True
        return False

    def _pass_on(self) -> None:
        line = self._lines[self._name]
        if line:
            line.popleft().wake()
        else:
            del self._lines[self._name]
