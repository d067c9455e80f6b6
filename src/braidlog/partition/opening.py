"""Open many partitions on threads: recovery reads files and computes, for a millisecond and more each.

Invariant: the event loop's thread opens none of them. When `open_beside` returns, each partition is open or has its
fault.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from braidlog.cluster.metadata.topic_state import Topic
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.partition import Partition
from braidlog.partition.partition_registry import NotOpened, PartitionRegistry

log = logging.getLogger("braidlog.partition")

OPENERS: Final = 3
"""Threads that open or close at the same time: fewer than the pool has, so that other work on threads continues."""
Place = tuple[Topic, int]
T = TypeVar("T")
R = TypeVar("R")


class Opened(NamedTuple):
    partitions: list[Partition]
    faults: list[NotOpened]

    def __str__(self) -> str:
        logs = [hosted.open_log for hosted in self.partitions]
        unclean = sum(log is not None and not log.report.clean_stop for log in logs)
        stopped = f"{unclean} of them had no clean stop" if unclean else "the last stop was clean"
        return f"{len(self.partitions)} partitions ({stopped})"


async def shared(work: Callable[[Sequence[T]], R], items: Sequence[T], runtime: Runtime) -> list[R]:
    """Divide the items among up to `OPENERS` threads; return the result of each."""
    shares = [items[first::OPENERS] for first in range(min(OPENERS, len(items)))]
    under_way = [runtime.blocking(partial(work, share)) for share in shares]
    return [await each for each in under_way]


async def open_beside(
    places: Sequence[Place], hosting: PartitionRegistry, runtime: Runtime, *, at_rest: bool = False
) -> Opened:
    """Open these partitions; requests do not find them before `PartitionRegistry.host`.

    With `at_rest`, cleanly closed partitions open only when they are used.
    """

    def work(share: Sequence[Place]) -> Opened:
        opened = Opened([], [])
        for topic, number in share:
            try:
                opened.partitions.append(hosting.open_partition(topic, number, at_rest=at_rest))
            except StorageFault as fault:
                opened.faults.append(NotOpened(topic.name, number, fault))
        return opened

    done = await shared(work, places, runtime)
    return Opened([each for part in done for each in part.partitions], [each for part in done for each in part.faults])


async def retry(hosting: PartitionRegistry, runtime: Runtime) -> list[Partition]:
    """Try again to open the offline partitions; return those that could be opened. One call at a time.

    A copy that other replicas have and that is not in sync is reset first.
    """
    await runtime.blocking(partial(_restart, hosting, [each for each in hosting.offline if hosting.may_reset(*each)]))
    places = [(topic, number) for name, number in hosting.offline if (topic := hosting.topics.get(name)) is not None]
    opened = await open_beside(places, hosting, runtime)
    found = [each for each in opened.partitions if (each.topic, each.number) in hosting.offline]
    hosting.host(found)
    for hosted in found:
        log.warning("%s could be opened now", hosted)
    deleted = [each for each in opened.partitions if each not in found]  # during the retry
    await shared(close_each, deleted, runtime)
    return found


def _restart(hosting: PartitionRegistry, places: Iterable[tuple[str, int]]) -> None:
    for name, number in places:
        try:
            hosting.reset_log(name, number)
        except StorageFault as fault:
            log.error("%s/%d: full resync failed: %s", name, number, fault)  # noqa: TRY400 - the fault names the file
        else:
            log.error("%s/%d: full resync started; damaged copy quarantined", name, number)


async def wake(partitions: Iterable[Partition], hosting: PartitionRegistry, runtime: Runtime) -> None:
    """Open the closed logs among these partitions. One that cannot be opened goes offline."""
    closed = [hosted for hosted in partitions if not hosted.is_open]
    for faults in await shared(_reopen, closed, runtime):
        for hosted, fault in faults:
            log.error("%s is offline: %s", hosted, fault)
            hosting.take_offline(hosted, fault)


async def require_open(hosted: Partition, hosting: PartitionRegistry, runtime: Runtime) -> Partition:
    """Return the partition with its log open; raise its fault if it cannot be opened."""
    if not hosted.is_open:
        await wake([hosted], hosting, runtime)
    return hosting.partition(hosted.topic, hosted.number)


def _reopen(partitions: Sequence[Partition]) -> list[tuple[Partition, StorageFault]]:
    faults = []
    for hosted in partitions:
        try:
            hosted.reopen()
        except StorageFault as fault:
            faults.append((hosted, fault))
        except BrokerError:
            continue  # the topic was deleted since, and requests no longer find it
    return faults


def close_each(partitions: Sequence[Partition]) -> list[StorageFault]:
    """Close these partitions for good, on a thread; return the faults of those that did not close cleanly."""
    faults = []
    for hosted in partitions:
        try:
            hosted.close()
        except StorageFault as fault:
            faults.append(fault)
    return faults
