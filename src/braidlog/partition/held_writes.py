"""Hold writes to a partition during a leadership transfer, until another node leads it."""

from typing import Final

from braidlog.model.runtime.runtime import Runtime, Wakeup

HELD_SECONDS_MAX: Final = 60.0


class HeldWrites:
    """Call `hold`, then `release` once the transfer succeeded or failed: waiting writes continue in order."""

    __slots__ = ("_waiting", "is_holding")

    def __init__(self) -> None:
        self._waiting: tuple[Wakeup, ...] = ()
        self.is_holding = False

    def hold(self) -> None:
        self.is_holding = True

    def release(self) -> None:
        waiting, self._waiting, self.is_holding = self._waiting, (), False
        for each in waiting:
            each.wake()

    async def wait(self, runtime: Runtime) -> None:
        if self.is_holding:
            wakeup = runtime.wakeup(owed=True)
            self._waiting += (wakeup,)
            await wakeup.wait(HELD_SECONDS_MAX)
