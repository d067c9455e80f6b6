"""The rows of the table of metrics that are about a cluster, and about keys, on one node or on several."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from braidlog.model.metric_rows import COUNTER, GAUGE, HISTOGRAM, Buckets, MetricRow, Row, counts_of, node_row
from braidlog.model.report import ClusterReport, Snapshot


def _keys_row(name: str, kind: str, text: str, count: str) -> MetricRow:
    def rows(snapshot: Snapshot) -> Iterator[Row]:
        if count in snapshot.keyvalue.counts:  # a store that is offline counts nothing
            yield (), snapshot.keyvalue.counts[count]

    return MetricRow(name, kind, text, (), rows)


def _cluster_row(name: str, kind: str, text: str, value: Callable[[ClusterReport], float]) -> MetricRow:
    return node_row(name, kind, text, lambda snapshot: value(snapshot.cluster))


def _nodes(snapshot: Snapshot) -> Iterator[Row]:
    states = Counter(each.state for each in snapshot.cluster.nodes)
    return (((state,), states[state]) for state in ("alive", "draining", "fenced"))


def _forwarded(snapshot: Snapshot) -> Iterator[Row]:
    return (((call, str(node)), count) for call, node, count in snapshot.cluster.forwarded)


def _behind(snapshot: Snapshot) -> Iterator[Row]:
    return (((str(each.node),), each.behind) for each in snapshot.cluster.nodes)


def _etcd_seconds(snapshot: Snapshot) -> Iterator[Buckets]:
    yield Buckets((), snapshot.cluster.etcd.seconds, snapshot.cluster.etcd.seconds_total)


CLUSTER_TABLE: Final[tuple[MetricRow, ...]] = (
    MetricRow("braidlog_cluster_nodes", GAUGE, "Nodes of the cluster, as the metadata has them.", ("state",), _nodes),
    _cluster_row(
        "braidlog_cluster_leaders",
        GAUGE,
        "Partitions that this node leads.",
        lambda c: next((each.leads for each in c.nodes if each.node == c.own), 0),
    ),
    _cluster_row(
        "braidlog_cluster_under_replicated_partitions",
        GAUGE,
        "Those of them of which a replica is not in sync.",
        lambda c: c.under_replicated,
    ),
    _cluster_row(
        "braidlog_cluster_below_factor_partitions",
        GAUGE,
        "Those of them that have fewer replicas than their topic's replication factor.",
        lambda c: c.below_factor,
    ),
    _cluster_row(
        "braidlog_cluster_below_min_partitions",
        GAUGE,
        "Those of them that have fewer in sync than min.insync.replicas: acks=all is refused.",
        lambda c: c.below_min,
    ),
    _cluster_row(
        "braidlog_cluster_leaderless_partitions",
        GAUGE,
        "Partitions of the whole cluster that nobody leads.",
        lambda c: c.leaderless,
    ),
    MetricRow(
        "braidlog_cluster_leader_changes_total",
        COUNTER,
        "Leaders that changed, by cause: the old one was fenced, drained or restarted, resigned, or moved; or one returned.",
        ("cause",),
        counts_of(lambda s: s.cluster.leader_changes),
    ),
    MetricRow(
        "braidlog_cluster_forwarded_total",
        COUNTER,
        "Requests that were handed to the node that serves them, by protocol; and producers' names that were asked for.",
        ("call", "target"),
        _forwarded,
    ),
    MetricRow(
        "braidlog_cluster_follower_lag_records",
        GAUGE,
        "Records that a node lacks of the partitions that this one leads.",
        ("follower",),
        _behind,
    ),
    _cluster_row(
        "braidlog_cluster_etcd_up",
        GAUGE,
        "1 while etcd answers; of a node that is alone always.",
        lambda c: int(c.etcd.is_up),
    ),
    MetricRow("braidlog_cluster_etcd_seconds", HISTOGRAM, "What a request to etcd took.", (), _etcd_seconds),
    _cluster_row(
        "braidlog_cluster_etcd_outages_total",
        COUNTER,
        "Times that etcd did not answer for three seconds.",
        lambda c: c.etcd.outages,
    ),
)
"""A node that is alone is one of one node."""

KEYS_TABLE: Final[tuple[MetricRow, ...]] = (
    node_row("braidlog_kv_up", GAUGE, "1 if the store serves.", lambda s: int(not s.keyvalue.fault)),
    _keys_row("braidlog_kv_keys", GAUGE, "Keys in the store.", "keys"),
    _keys_row("braidlog_kv_operations_total", COUNTER, "Operations on keys.", "operations"),
    _keys_row("braidlog_kv_mutations_total", COUNTER, "Operations that changed something.", "mutations"),
    _keys_row("braidlog_kv_expired_total", COUNTER, "Keys whose time had come.", "expired"),
    _keys_row("braidlog_kv_evicted_total", COUNTER, "Keys that went for want of room.", "evicted"),
    node_row("braidlog_kv_memory_bytes", GAUGE, "What the keys take.", lambda s: s.keyvalue.used_bytes),
    node_row("braidlog_kv_slots_led", GAUGE, "Slots of keys led here.", lambda s: s.keyvalue.slots_led),
    _cluster_row(
        "braidlog_kv_slots_below_strength",
        GAUGE,
        "Those of them of which a replica is not in sync.",
        lambda c: c.weak_slots,
    ),
    node_row(
        "braidlog_kv_slot_differences_total",
        COUNTER,
        "Comparisons in which a replica of a slot here was not what its leader has, after the same log.",
        lambda s: s.keyvalue.differences,
    ),
    _keys_row("braidlog_kv_wal_bytes", GAUGE, "The store's log on the disk.", "wal_bytes"),
)
