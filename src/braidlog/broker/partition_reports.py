"""Reports of partitions and groups, for the console's snapshot and the RustLog metrics."""

import contextlib
from collections.abc import Callable, Collection, Sequence

from braidlog.broker.coordination.coordinators import Coordinators
from braidlog.coordinator.groups.service import Groups
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.reporting.node_report import LagReport, LogReport, PartitionReport
from braidlog.model.runtime.cooperative import in_slices
from braidlog.model.settings import UNLIMITED
from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.partition.partition_registry import PartitionRegistry


def partition_report(hosted: Partition) -> PartitionReport:
    return PartitionReport(
        hosted.topic,
        hosted.number,
        hosted.start_offset,
        hosted.high_watermark,
        hosted.end_offset,
        hosted.size_bytes,
        hosted.segment_count,
        hosted.fault,
        is_led=hosted.role is Role.LEADER,
    )


async def lag_reports(groups: Groups, group: str) -> list[LagReport]:
    """Return a group's lag; an empty list if it reads an offline partition, which the partition's report shows."""
    try:
        return await groups.lag(group)
    except StorageFault:
        return []


async def log_report(
    hosting: PartitionRegistry,
    coordinators: Coordinators,
    topics: Collection[str],
    shown: Callable[[Sequence[str]], Sequence[str]] = lambda names: names,
) -> LogReport:
    """Report the partitions of these topics, and the shown groups that this node coordinates. The scan is sliced, so
    topics and groups may be deleted during it."""
    places = [(name, number) for name in topics for number in range(hosting.partition_count(name))]
    partitions: list[PartitionReport] = []
    async for name, number in in_slices(places):
        with contextlib.suppress(BrokerError):
            partitions.append(_report(hosting, name, number))
    lags: list[LagReport] = []
    groups = coordinators.groups()
    async for name in in_slices(shown(list(groups))):
        with contextlib.suppress(BrokerError):
            lags += [lag for lag in await lag_reports(groups[name], name) if lag.topic in topics]
    return LogReport(partitions=partitions, lags=lags)


def _report(hosting: PartitionRegistry, name: str, number: int) -> PartitionReport:
    try:
        return partition_report(hosting.partition(name, number))
    except StorageFault as fault:
        return PartitionReport(name, number, fault=str(fault), is_offline=True)


class ReplicationRate:
    """Replication limit in bytes per second, for all followers together."""

    def __init__(self, configured: float = UNLIMITED) -> None:
        self.configured = configured
        self.asked: int | None = None

    @property
    def bytes_per_second(self) -> float:
        return self.configured if self.asked is None else self.asked
