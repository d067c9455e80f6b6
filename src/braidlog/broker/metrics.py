"""Partitions and groups as reports: what the console's snapshot and RustLog's metrics tell of them."""

from collections.abc import Collection, Iterable, Iterator

from braidlog.coordinator.groups.service import Groups
from braidlog.model.errors import StorageFault
from braidlog.model.report import LagReport, LogReport, PartitionReport
from braidlog.partition.hosted import HostedPartition
from braidlog.partition.hosting import Hosting


def partition_report(hosted: HostedPartition) -> PartitionReport:
    return PartitionReport(
        hosted.topic,
        hosted.number,
        hosted.start_offset,
        hosted.high_watermark,
        hosted.end_offset,
        hosted.size_bytes,
        hosted.segment_count,
        hosted.fault,
    )


def lag_reports(groups: Groups, group: str) -> Iterator[LagReport]:
    """Nothing of a group that reads an offline partition: that is said of the partition."""
    try:
        rows = groups.lag(group)
    except StorageFault:
        return
    for row in rows:
        yield LagReport(group, row.topic, row.partition, row.committed, row.end_offset, row.lag, row.member)


def log_report(
    hosting: Hosting, groups: Groups, topics: Collection[str], shown: Iterable[str] | None = None
) -> LogReport:
    """The partitions of these topics, and the groups in them: all, or those that are shown."""
    places = [(name, number) for name in topics for number in range(hosting.partition_count(name))]
    lags = (lag for group in (groups.names() if shown is None else shown) for lag in lag_reports(groups, group))
    return LogReport(
        partitions=[_report(hosting, *place) for place in places], lags=[lag for lag in lags if lag.topic in topics]
    )


def _report(hosting: Hosting, name: str, number: int) -> PartitionReport:
    try:
        return partition_report(hosting.partition(name, number))
    except StorageFault as fault:
        return PartitionReport(name, number, fault=str(fault), is_offline=True)
