"""One at a time, in the order they came.

Knows: who has the turn for a name, and who is in line. Refuses to know: what is done in a turn.
Invariants: at most one holder per name; whoever leaves the line (its time ran out, its client went away) passes the turn on if
it was just handed to it; a name nobody wants takes no memory.

Services change state across waits only inside a turn: what was checked before the wait still holds after it.
"""

from collections import deque
from collections.abc import Iterable
from types import TracebackType

from braidlog.model.errors import NothingDoneError, Reason
from braidlog.model.world import Wakeup, World

WAIT_SECONDS_MAX = 60.0


class Turns:
    """The lines, by name."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lines: dict[str, deque[Wakeup]] = {}

    def take(self, name: str) -> "Turn":
        """`async with turns.take(name):` is entered when everyone before has left."""
        return Turn(self._world, self._lines, name)

    @property
    def is_busy(self) -> bool:
        """Whether anybody has a turn at all."""
        return bool(self._lines)

    def are_held(self, names: Iterable[str]) -> bool:
        """Whether somebody has the turn of any of these."""
        return self.is_busy and any(name in self._lines for name in names)

    def is_held(self, name: str) -> bool:
        return name in self._lines


class Turn:
    """One stay in line, and the turn after it."""

    __slots__ = ("_lines", "_name", "_world")

    def __init__(self, world: World, lines: dict[str, deque[Wakeup]], name: str) -> None:
        self._world = world
        self._lines = lines
        self._name = name

    async def __aenter__(self) -> None:
        line = self._lines.get(self._name)
        if line is None:
            self._lines[self._name] = deque()
            return
        wakeup = self._world.wakeup()
        line.append(wakeup)
        try:
            await wakeup.wait(WAIT_SECONDS_MAX)
        except BaseException:
            if not self._left(line, wakeup):
                self._pass_on()
            raise
        # Not what `wait` returned: the time may have run out in the very moment the turn was handed over.
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
        """Leave the line; False if one is in it no more because the turn was handed over."""
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
