"""What became of something that a partition was asked for, and who waits to be told.

Knows: waits for one, and for several at once. Refuses to know: what was asked for.
"""

from collections.abc import Iterable

from braidlog.model.world import Wakeup, World
from braidlog.replication.ready import Done, Failed

NOBODY = -1
"""The token of what nobody waits for."""


class _Countdown:
    """Wakes whoever waits for several when the last of them is there."""

    __slots__ = ("_left", "_wakeup")

    def __init__(self, left: int, wakeup: Wakeup) -> None:
        self._left = left
        self._wakeup = wakeup

    def wake(self) -> None:
        self._left -= 1
        if not self._left:
            self._wakeup.wake()


class Acknowledgement:
    """What became of something that was asked for, once that is known."""

    __slots__ = ("_wakeup", "outcome", "token")

    def __init__(self, token: int = NOBODY) -> None:
        self.token = token
        """By which its partition knows it."""
        self.outcome: Done | Failed | None = None
        self._wakeup: Wakeup | _Countdown | None = None

    def settle(self, outcome: Done | Failed) -> None:
        self.outcome = outcome
        if self._wakeup is not None:
            self._wakeup.wake()

    def then_wake(self, wakeup: Wakeup | _Countdown) -> None:
        self._wakeup = wakeup

    async def wait(self, world: World, seconds: float) -> Done | Failed | None:
        """None if the time ran out first: then nobody knows."""
        if self.outcome is None and seconds > 0:
            self._wakeup = wakeup = world.wakeup(owed=True)
            await wakeup.wait(seconds)
        return self.outcome


async def settled_together(asked: Iterable[Acknowledgement], world: World, seconds: float) -> None:
    """Return when it is known of all what became of them, or the time has run out."""
    left = [each for each in asked if each.outcome is None]
    if left:
        wakeup = world.wakeup(owed=True)
        countdown = _Countdown(len(left), wakeup)
        for each in left:
            each.then_wake(countdown)
        await wakeup.wait(seconds)
