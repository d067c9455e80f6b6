"""Metrics of a cluster and of the key-value store. A single node has them too."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from braidlog.model.reporting.metric_rows import COUNTER, GAUGE, HISTOGRAM, Buckets, MetricRow, Row, counts_of, node_row
from braidlog.model.reporting.node_report import ClusterReport, Snapshot


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
    MetricRow("braidlog_cluster_nodes", GAUGE, "Nodes registered in the cluster, by state.", ("state",), _nodes),
    _cluster_row(
        "braidlog_cluster_leaders",
        GAUGE,
        "Partitions that this node leads.",
        lambda c: next((each.leads for each in c.nodes if each.node == c.own), 0),
    ),
    _cluster_row(
        "braidlog_cluster_under_replicated_partitions",
        GAUGE,
        "Partitions led by this node with a replica outside the ISR.",
        lambda c: c.under_replicated,
    ),
    _cluster_row(
        "braidlog_cluster_below_replication_factor_partitions",
        GAUGE,
        "Partitions led by this node with fewer replicas than their topic's replication factor.",
        lambda c: c.below_replication_factor,
    ),
    _cluster_row(
        "braidlog_cluster_below_min_isr_partitions",
        GAUGE,
        "Partitions led by this node with an ISR below min.insync.replicas: acks=all fails.",
        lambda c: c.below_min,
    ),
    _cluster_row(
        "braidlog_cluster_leaderless_partitions",
        GAUGE,
        "Partitions of the whole cluster without a leader.",
        lambda c: c.leaderless,
    ),
    MetricRow(
        "braidlog_cluster_leader_changes_total",
        COUNTER,
        "Leader changes by cause: the old leader was fenced, drained, restarted, moved or resigned; or a leader returned.",
        ("cause",),
        counts_of(lambda s: s.cluster.leader_changes),
    ),
    MetricRow(
        "braidlog_cluster_forwarded_total",
        COUNTER,
        "Requests forwarded to the node that serves them, by protocol, and lookups of producer names.",
        ("call", "target"),
        _forwarded,
    ),
    MetricRow(
        "braidlog_cluster_follower_lag_records",
        GAUGE,
        "Replication lag of each follower node, in records of partitions led by this node.",
        ("follower",),
        _behind,
    ),
    _cluster_row(
        "braidlog_cluster_etcd_up",
        GAUGE,
        "1 while etcd responds; always 1 on a single node.",
        lambda c: int(c.etcd.is_up),
    ),
    MetricRow("braidlog_cluster_etcd_seconds", HISTOGRAM, "Duration of requests to etcd.", (), _etcd_seconds),
    _cluster_row(
        "braidlog_cluster_etcd_outages_total",
        COUNTER,
        "Periods of more than three seconds without a response from etcd.",
        lambda c: c.etcd.outages,
    ),
)
"""A single node is a cluster of one node."""

KEYS_TABLE: Final[tuple[MetricRow, ...]] = (
    node_row("braidlog_kv_up", GAUGE, "1 if the key-value store is online.", lambda s: int(not s.keyvalue.fault)),
    _keys_row("braidlog_kv_keys", GAUGE, "Keys in the store.", "keys"),
    _keys_row("braidlog_kv_operations_total", COUNTER, "Operations on keys.", "operations"),
    _keys_row("braidlog_kv_mutations_total", COUNTER, "Operations that changed something.", "mutations"),
    _keys_row("braidlog_kv_expired_total", COUNTER, "Keys removed because their TTL ended.", "expired"),
    _keys_row("braidlog_kv_evicted_total", COUNTER, "Keys evicted to free memory.", "evicted"),
    node_row("braidlog_kv_memory_bytes", GAUGE, "Memory used by keys.", lambda s: s.keyvalue.used_bytes),
    node_row("braidlog_kv_leader_slots", GAUGE, "Key slots led by this node.", lambda s: s.keyvalue.led_slots),
    _cluster_row(
        "braidlog_kv_slots_under_replicated",
        GAUGE,
        "Key slots led by this node with a replica outside the ISR.",
        lambda c: c.weak_slots,
    ),
    node_row(
        "braidlog_kv_slot_differences_total",
        COUNTER,
        "Comparisons in which a local slot replica differed from its leader at the same log offset.",
        lambda s: s.keyvalue.differences,
    ),
    _keys_row("braidlog_kv_wal_bytes", GAUGE, "Size of the key-value store's log on disk.", "wal_bytes"),
)
