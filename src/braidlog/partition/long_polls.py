"""Long polls of partitions: how one that wants more than there is spares the loop.

Knows: time, wakeups. Refuses to know: what is read.
"""

from collections.abc import Iterable

from braidlog.model.world import Wakeup, World
from braidlog.partition.partition import Partition

REST_SECONDS, REST_SECONDS_MAX = 0.005, 0.1


class Rest:
    """Pauses of one poll that was woken and has not enough yet, each twice as long as the one before. Without them each append
    costs every such poll a look."""

    def __init__(self, world: World, deadline: float) -> None:
        self._world = world
        self._deadline = deadline
        self._seconds = REST_SECONDS

    async def take(self) -> None:
        left = max(self._deadline - self._world.monotonic(), 0)
        await self._world.wakeup(patient=True).wait(min(self._seconds, left))
        self._seconds = min(2 * self._seconds, REST_SECONDS_MAX)


def unwatch(partitions: Iterable[Partition], wakeup: Wakeup) -> None:
    for partition in partitions:
        partition.unwatch(wakeup)
