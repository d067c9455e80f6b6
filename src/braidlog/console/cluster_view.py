"""Merge the reports of nodes into one view: each partition as its leader reports it, groups of all coordinators."""

from collections.abc import Mapping

from msgspec.structs import replace

from braidlog.model.reporting.node_report import FENCED, LagReport, NodeLog, PartitionReport, Snapshot, lag_of

Place = tuple[str, int]
COORDINATORS = "coordinators"
"""Key of the warning that some coordinators are unavailable."""


def others_of(own: Snapshot) -> list[int]:
    """Return the other nodes that are alive."""
    return [each.node for each in own.cluster.nodes if each.node != own.cluster.own and each.state != FENCED]


def merged(own: Snapshot, others: Mapping[int, NodeLog | Exception]) -> Snapshot:
    """Return the snapshot of a node with partitions, groups and lags of the cluster. `others`: reports, or errors."""
    if own.cluster.is_alone:
        return own
    reports: list[NodeLog] = [own, *(each for each in others.values() if isinstance(each, NodeLog))]
    partitions = {(each.topic, each.partition): each for each in _leaderless(own)}
    for each in (each for report in reports for each in report.partitions):
        place = each.topic, each.partition
        known = partitions.get(place)
        if known is None or known.is_offline or (each.is_led and not known.is_led):
            partitions[place] = each
    lags = {(each.group, each.topic, each.partition): each for report in reports for each in report.lags}
    served, shards = sum(each.shards[0] for each in reports), min(each.shards[1] for each in reports)
    missing = (
        f"{shards - served} of {shards} coordinator shards are unavailable; their groups and transactions are missing"
    )
    return replace(
        own,
        partitions=[partitions[place] for place in sorted(partitions)],
        groups=list({each.group: each for report in reports for each in report.groups}.values()),
        lags=[_with_end(lags[place], partitions.get(place[1:])) for place in sorted(lags)],
        silent={node: str(why) for node, why in others.items() if isinstance(why, Exception)},
        warnings=own.warnings | ({COORDINATORS: missing} if served < shards else {}),
    )


def _leaderless(own: Snapshot) -> list[PartitionReport]:
    """Return the partitions that no node reports, because their replicas are offline."""
    return [
        PartitionReport(each.topic, each.partition, fault=_why(each.replicas), is_offline=True)
        for each in own.cluster.weak
        if each.leader is None
    ]


def _why(replicas: tuple[int, ...]) -> str:
    nodes = ", ".join(map(str, replicas))
    return f"no leader: replicas are on node{'' if len(replicas) == 1 else 's'} {nodes}"


def _with_end(lag: LagReport, partition: PartitionReport | None) -> LagReport:
    """Compute lag from the leader's log end offset, since the coordinator may hold no replica."""
    if partition is None or partition.is_offline:
        return lag
    end = partition.high_watermark
    return replace(lag, end_offset=end, lag=lag_of(lag.committed, partition.start_offset, end))
