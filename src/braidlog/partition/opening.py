"""Open many partitions beside the loop: recovery reads files and computes, a millisecond and more for each.

Knows: how many threads at once. Refuses to know: why they are opened, and who is told.
Invariant: the loop's thread opens none of them; when this returns, each was opened or has its fault.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from braidlog.cluster.image import Topic
from braidlog.model.errors import StorageFault
from braidlog.model.world import World
from braidlog.partition.hosted import HostedPartition
from braidlog.partition.hosting import Hosting

OPENERS: Final = 3
"""Threads that open at the same time: fewer than the pool has, so that other work beside the loop goes on."""
Place = tuple[Topic, int]


class NotOpened(NamedTuple):
    topic: str
    number: int
    fault: StorageFault


class Opened(NamedTuple):
    partitions: list[HostedPartition]
    faults: list[NotOpened]

    def __str__(self) -> str:
        unclean = sum(not hosted.log.report.clean_stop for hosted in self.partitions)
        stopped = f"{unclean} of them had no clean stop" if unclean else "the last stop was clean"
        return f"{len(self.partitions)} partitions ({stopped})"


async def open_beside(places: Sequence[Place], hosting: Hosting, world: World) -> Opened:
    """Open these partitions; nobody finds them before they are handed to `Hosting.host`."""
    shares = [places[first::OPENERS] for first in range(min(OPENERS, len(places)))]
    under_way = [world.blocking(partial(_open, share, hosting)) for share in shares]
    done = [await each for each in under_way]
    return Opened([each for part in done for each in part.partitions], [each for part in done for each in part.faults])


def _open(places: Sequence[Place], hosting: Hosting) -> Opened:
    """On a thread."""
    opened = Opened([], [])
    for topic, number in places:
        try:
            opened.partitions.append(hosting.open_partition(topic, number))
        except StorageFault as fault:
            opened.faults.append(NotOpened(topic.name, number, fault))
    return opened
