"""Pace long polls of partitions, and wait until replicas have caught up."""

from collections.abc import Iterable, Sequence

from braidlog.model.runtime.runtime import Runtime, Wakeup
from braidlog.partition.partition import Partition

REST_SECONDS, REST_SECONDS_MAX = 0.005, 0.1


class PollPause:
    """Pauses of a long poll that was woken before it has enough bytes, each twice as long as the one before.

    Without them every append would make every such poll scan its partitions.
    """

    def __init__(self, runtime: Runtime, deadline: float) -> None:
        self._runtime = runtime
        self._deadline = deadline
        self._seconds = REST_SECONDS

    async def take(self) -> None:
        left = max(self._deadline - self._runtime.monotonic(), 0)
        await self._runtime.wakeup(patient=True).wait(min(self._seconds, left))
        self._seconds = min(2 * self._seconds, REST_SECONDS_MAX)


def unwatch(partitions: Iterable[Partition], wakeup: Wakeup) -> None:
    for partition in partitions:
        partition.unwatch(wakeup)


async def wait_committed(partitions: Sequence[Partition], runtime: Runtime, seconds: float) -> None:
    """Wait until the current end of these partitions is committed, or until the timeout."""
    until = runtime.monotonic() + seconds
    ends = [(each, each.end_offset) for each in partitions]
    while behind := [each for each, end in ends if each.high_watermark < end]:
        wakeup = runtime.wakeup(patient=True)
        for each in behind:
            each.watch(wakeup)
        try:
            if not await wakeup.wait(max(until - runtime.monotonic(), 0)):
                return
        finally:
            unwatch(behind, wakeup)
