"""Writes to a partition that is handed over: they wait until another node leads it."""

from typing import Final

from braidlog.model.world import Wakeup, World

HELD_SECONDS_MAX: Final = 60.0


class HeldWrites:
    """`hold`, then `release` when somebody else leads, or nobody does: who waits goes on in the order in which it came."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Wakeup] | None = None

    @property
    def is_holding(self) -> bool:
        return self._waiting is not None

    def hold(self) -> None:
        self._waiting = [] if self._waiting is None else self._waiting

    def release(self) -> None:
        waiting, self._waiting = self._waiting or (), None
        for each in waiting:
            each.wake()

    async def wait(self, world: World) -> None:
        if self._waiting is not None:
            wakeup = world.wakeup(owed=True)
            self._waiting.append(wakeup)
            await wakeup.wait(HELD_SECONDS_MAX)
