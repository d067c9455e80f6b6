"""Partitions and groups as reports: what the console's snapshot and RustLog's metrics tell of them."""

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
    """Nothing of a group that reads an offline partition: that is said of the partition."""
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
    """The partitions of these topics, and the groups in them that are shown, of those that this node keeps. Looked at in slices,
    between which topics and groups may go."""
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
    """In bytes a second, for all followers together."""

    def __init__(self, configured: float = UNLIMITED) -> None:
        self.configured = configured
        self.asked: int | None = None

    @property
    def bytes_per_second(self) -> float:
        return self.configured if self.asked is None else self.asked
