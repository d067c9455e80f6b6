"""Close partitions on threads: idle ones, and all of them when a node stops.

Invariant: the event loop's thread closes none of them. A partition that is requested during its close stays open, or
is opened again.
"""

import logging
from collections.abc import Sequence
from typing import Final

from braidlog.cluster.metadata.local_store import INTERNAL_PREFIX
from braidlog.model.errors import StorageFault
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.opening import close_each, shared
from braidlog.partition.partition import Partition
from braidlog.partition.partition_registry import PartitionRegistry

log = logging.getLogger("braidlog.partition")

CLOSE_MAX: Final = 100
"""Idle partitions closed together: a request for one of them waits until it is closed and opened again."""
TOLD_AT_ONCE: Final = 2000
"""Partitions between two log lines about the progress of a shutdown."""


async def close_idle(hosting: PartitionRegistry, runtime: Runtime) -> int:
    """Close the partitions without use since the last call; return how many. Internal topics stay open."""
    idle = [each for each in hosting.opened() if not each.is_used and _may_close(each)]
    for hosted in hosting.opened():
        hosted.is_used = False
    closed = 0
    for first in range(0, len(idle), CLOSE_MAX):
        unused = [each for each in idle[first : first + CLOSE_MAX] if not each.is_used and _may_close(each)]
        for hosted in unused:
            hosted.begin_close()
        closed += sum(await shared(_finish_close, unused, runtime))
    if closed:
        log.info("%d idle partitions were closed", closed)
    return closed


def _may_close(hosted: Partition) -> bool:
    return hosted.is_open and not hosted.topic.startswith(INTERNAL_PREFIX) and hosted.may_close


def _finish_close(partitions: Sequence[Partition]) -> int:
    closed = 0
    for hosted in partitions:
        try:
            closed += hosted.finish_close()
        except StorageFault as fault:
            log.error("%s cannot be closed: %s", hosted, fault)  # noqa: TRY400 - the fault names the file
    return closed


async def close_partitions(hosting: PartitionRegistry, runtime: Runtime) -> list[StorageFault]:
    """Close every open partition for good; return the faults of those that did not close cleanly."""
    faults: list[StorageFault] = []
    opened = [hosted for hosted in hosting.opened() if hosted.open_log is not None]
    for first in range(0, len(opened), TOLD_AT_ONCE):
        if len(opened) > TOLD_AT_ONCE:
            log.info("closing partitions: %d of %d are closed", first, len(opened))
        for found in await shared(close_each, opened[first : first + TOLD_AT_ONCE], runtime):
            faults += found
    return faults
