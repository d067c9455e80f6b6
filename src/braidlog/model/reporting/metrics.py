"""The table of metrics: names, units, labels, and where in a snapshot each value is.

Invariants: a name ends with its unit, a counter with `_total`. Names are spelled only in this table: /metrics of the
console and RustLog's metrics use it; the page of metrics and the Grafana dashboard are checked against it.
A group has its lag series as soon as it has members or commits.
"""

from collections.abc import Callable, Iterator
from typing import Final

from braidlog.model.reporting.cluster_metrics import CLUSTER_TABLE, KEYS_TABLE
from braidlog.model.reporting.metric_rows import COUNTER, GAUGE, HISTOGRAM, Buckets, MetricRow, Row, counts_of, node_row
from braidlog.model.reporting.node_report import (
    UNKNOWN_END,
    ListenerReport,
    LogReport,
    PartitionReport,
    Snapshot,
    TableState,
    WorkerReport,
)

_LISTENER: Final = ("listener",)
_WORKER: Final = ("worker",)


def _listener_row(name: str, kind: str, text: str, value: Callable[[ListenerReport], float]) -> MetricRow:
    def rows(snapshot: Snapshot) -> Iterator[Row]:
        return (((each.dialect,), value(each)) for each in snapshot.listeners)

    return MetricRow(name, kind, text, _LISTENER, rows)


def _partition_row(name: str, kind: str, text: str, value: Callable[[PartitionReport], float]) -> MetricRow:
    def rows(snapshot: LogReport) -> Iterator[Row]:
        online = (each for each in snapshot.partitions if not each.is_offline)
        return (((each.topic, str(each.partition)), value(each)) for each in online)

    return MetricRow(name, kind, text, ("topic", "partition"), rows)


def _requests(snapshot: Snapshot) -> Iterator[Row]:
    for each in snapshot.listeners:
        yield from (((each.dialect, operation), count) for operation, count in sorted(each.requests.items()))


def _request_seconds(snapshot: Snapshot) -> Iterator[Buckets]:
    for each in snapshot.listeners:
        for operation, counts in sorted(each.seconds.items()):
            yield Buckets((each.dialect, operation), counts, each.seconds_total[operation])


def _sync_seconds(snapshot: Snapshot) -> Iterator[Buckets]:
    yield Buckets((), snapshot.sync_seconds, snapshot.sync_seconds_total)


def _workers(snapshot: Snapshot) -> tuple[tuple[str, WorkerReport], ...]:
    tables = [("tables" if at == 1 else f"tables-{at}", each) for at, each in enumerate(snapshot.table_workers, 1)]
    return (("requests", snapshot.worker), ("upkeep", snapshot.upkeep), *tables)


def _worker_row(name: str, kind: str, text: str, value: Callable[[WorkerReport], float]) -> MetricRow:
    return MetricRow(name, kind, text, _WORKER, lambda s: (((worker,), value(each)) for worker, each in _workers(s)))


def _job_seconds(snapshot: Snapshot) -> Iterator[Buckets]:
    for name, each in _workers(snapshot):
        yield Buckets((name,), each.jobs, each.jobs_seconds_total)


def _table_row(name: str, kind: str, text: str, value: Callable[[TableState], float]) -> MetricRow:
    return MetricRow(name, kind, text, ("topic",), lambda s: (((each.topic,), value(each)) for each in s.tables))


def _lags(snapshot: LogReport) -> Iterator[Row]:
    known = (each for each in snapshot.lags if each.end_offset != UNKNOWN_END)
    return (((each.group, each.topic, str(each.partition)), each.lag) for each in known)


def _members(snapshot: Snapshot) -> Iterator[Row]:
    return (((each.group,), each.members) for each in snapshot.groups)


def _state(snapshot: Snapshot) -> Iterator[Row]:
    return (((each.kind,), each.used) for each in snapshot.state)


def _partitions(snapshot: Snapshot) -> Iterator[Row]:
    return iter(((("open",), snapshot.partitions_open), (("closed",), snapshot.partitions_closed)))


def _state_limits(snapshot: Snapshot) -> Iterator[Row]:
    return (((each.kind,), each.limit) for each in snapshot.state)


LOG_TABLE: Final[tuple[MetricRow, ...]] = (
    node_row(
        "braidlog_partitions_offline",
        GAUGE,
        "Partitions that cannot be opened.",
        lambda s: sum(each.is_offline for each in s.partitions),
    ),
    node_row(
        "braidlog_partitions_read_only",
        GAUGE,
        "Partitions that reject writes: damaged, or stopped after a disk fault.",
        lambda s: sum(bool(each.fault) and not each.is_offline for each in s.partitions),
    ),
    _partition_row(
        "braidlog_partition_start_offset", GAUGE, "First offset that can be read.", lambda each: each.start_offset
    ),
    _partition_row(
        "braidlog_partition_high_watermark",
        GAUGE,
        "Next offset after the last committed record.",
        lambda each: each.high_watermark,
    ),
    _partition_row(
        "braidlog_partition_size_bytes", GAUGE, "Size of the partition's batches on disk.", lambda each: each.size_bytes
    ),
    MetricRow(
        "braidlog_group_lag_records",
        GAUGE,
        "Records that a group has not committed yet.",
        ("group", "topic", "partition"),
        _lags,
    ),
)
"""Metrics that need only partitions and groups."""

TABLE: Final[tuple[MetricRow, ...]] = (
    node_row("braidlog_up", GAUGE, "1 if the node responds to its console.", lambda _: 1),
    node_row("braidlog_uptime_seconds", GAUGE, "Seconds since the node started.", lambda s: s.uptime_seconds),
    # -- connections and requests
    _listener_row(
        "braidlog_listener_up", GAUGE, "1 if the listener accepts connections.", lambda each: int(each.is_serving)
    ),
    _listener_row("braidlog_connections", GAUGE, "Open connections.", lambda each: each.connections),
    node_row(
        "braidlog_connections_limit",
        GAUGE,
        "Limit of connections over all listeners.",
        lambda s: s.connections_max,
    ),
    _listener_row("braidlog_connections_accepted_total", COUNTER, "Connections accepted.", lambda each: each.accepted),
    _listener_row(
        "braidlog_connections_rejected_total",
        COUNTER,
        "Connections rejected: too many in total, or too many from one address in a short time.",
        lambda each: each.turned_away,
    ),
    _listener_row(
        "braidlog_connections_terminated_total",
        COUNTER,
        "Connections closed because their client blocked other clients.",
        lambda each: each.cut_off,
    ),
    MetricRow("braidlog_requests_total", COUNTER, "Requests.", ("listener", "operation"), _requests),
    MetricRow(
        "braidlog_request_seconds",
        HISTOGRAM,
        "Time from request to response, sampled from one request in 16; includes long polls.",
        ("listener", "operation"),
        _request_seconds,
    ),
    _listener_row("braidlog_received_bytes_total", COUNTER, "Bytes received from clients.", lambda each: each.bytes_in),
    _listener_row("braidlog_sent_bytes_total", COUNTER, "Bytes sent to clients.", lambda each: each.bytes_out),
    _listener_row(
        "braidlog_throttles_total",
        COUNTER,
        "Times that reading from a client was paused because it exceeded its quota.",
        lambda each: each.throttled,
    ),
    _listener_row(
        "braidlog_throttle_seconds_total", COUNTER, "Total time of these pauses.", lambda each: each.throttled_seconds
    ),
    node_row(
        "braidlog_memory_held_bytes",
        GAUGE,
        "Memory of partial frames, unsent responses, long polls, worker queues and client state.",
        lambda s: s.budget_bytes,
    ),
    node_row("braidlog_memory_limit_bytes", GAUGE, "Limit of this memory.", lambda s: s.budget_bytes_max),
    MetricRow(
        "braidlog_state_entries",
        GAUGE,
        "Partitions, groups, transactional ids and other state entries on the node.",
        ("kind",),
        _state,
    ),
    MetricRow("braidlog_state_entries_limit", GAUGE, "Limit of state entries.", ("kind",), _state_limits),
    node_row("braidlog_state_bytes", GAUGE, "Approximate memory of the state entries.", lambda s: s.state_bytes),
    node_row("braidlog_state_limit_bytes", GAUGE, "Limit of this memory.", lambda s: s.state_bytes_max),
    # -- the log
    MetricRow(
        "braidlog_partitions",
        GAUGE,
        "Partitions with an open log, and those closed because they are not in use.",
        ("state",),
        _partitions,
    ),
    node_row(
        "braidlog_appended_records_total", COUNTER, "Records appended by producers.", lambda s: s.records_appended
    ),
    node_row(
        "braidlog_appended_batches_total", COUNTER, "Batches appended by producers.", lambda s: s.batches_appended
    ),
    node_row("braidlog_appended_bytes_total", COUNTER, "Bytes appended by producers.", lambda s: s.bytes_appended),
    node_row("braidlog_fetched_records_total", COUNTER, "Offsets sent to consumers.", lambda s: s.records_fetched),
    node_row("braidlog_fetched_bytes_total", COUNTER, "Bytes of batches sent to consumers.", lambda s: s.bytes_fetched),
    MetricRow("braidlog_sync_seconds", HISTOGRAM, "Duration of syncs to disk.", (), _sync_seconds),
    node_row("braidlog_topics", GAUGE, "Topics.", lambda s: s.topics),
    *LOG_TABLE,
    MetricRow("braidlog_group_members", GAUGE, "Members of a group.", ("group",), _members),
    *CLUSTER_TABLE,
    *KEYS_TABLE,
    # -- the worker processes
    _worker_row(
        "braidlog_worker_up",
        GAUGE,
        "1 if the process runs: requests (large batches), upkeep (compaction, scrubbing), tables, tables-2. A job starts it.",
        lambda each: int(each.is_running),
    ),
    _worker_row("braidlog_worker_starts_total", COUNTER, "Times the process was started.", lambda each: each.starts),
    MetricRow("braidlog_worker_job_seconds", HISTOGRAM, "Duration of a job.", _WORKER, _job_seconds),
    _worker_row(
        "braidlog_worker_jobs_failed_total",
        COUNTER,
        "Jobs that failed, were rejected, or did not start in time.",
        lambda each: each.failed,
    ),
    _worker_row("braidlog_worker_jobs_waiting", GAUGE, "Jobs in the queue.", lambda each: each.waiting),
    _worker_row(
        "braidlog_worker_queue_bytes",
        GAUGE,
        "Bytes of queued jobs and the running one.",
        lambda each: each.waiting_bytes,
    ),
    node_row(
        "braidlog_scrub_read_bytes_total",
        COUNTER,
        "Bytes of closed segments that scrubbing has read.",
        lambda s: s.scrub.read_bytes,
    ),
    node_row(
        "braidlog_scrub_corruptions_total", COUNTER, "Damaged places that scrubbing found.", lambda s: s.scrub.damages
    ),
    node_row("braidlog_scrub_rounds_total", COUNTER, "Scrub rounds completed.", lambda s: s.scrub.rounds),
    node_row(
        "braidlog_scrub_partitions_left",
        GAUGE,
        "Partitions left in the current scrub round; 0 between rounds.",
        lambda s: s.scrub.partitions_left,
    ),
    MetricRow(
        "braidlog_quarantined", GAUGE, "Quarantined copies and topics.", ("why",), counts_of(lambda s: s.quarantined)
    ),
    _table_row("braidlog_table_lag_records", GAUGE, "Records not in the table yet.", lambda t: t.lag),
    _table_row(
        "braidlog_table_lag_bytes", GAUGE, "Log bytes not in the table yet, approximate.", lambda t: t.lag_bytes
    ),
    _table_row(
        "braidlog_table_commit_timestamp_seconds",
        GAUGE,
        "Time when rows were last added or removed; 0: never.",
        lambda t: t.committed_ms / 1000,
    ),
    _table_row("braidlog_table_records", GAUGE, "Rows of a topic's table.", lambda t: t.rows),
    _table_row("braidlog_table_bytes", GAUGE, "Size of the table's files.", lambda t: t.bytes),
    _table_row(
        "braidlog_table_undecoded_records",
        GAUGE,
        "Rows whose value does not fit the table's format: not a JSON object, or not of a schema of its subject.",
        lambda t: t.undecoded,
    ),
    _table_row("braidlog_table_failing", GAUGE, "1 if writes fail.", lambda t: int(bool(t.error))),
    # -- the process
    node_row("braidlog_process_cpu_seconds_total", COUNTER, "CPU time of the node.", lambda s: s.process.cpu_seconds),
    node_row("braidlog_process_resident_bytes", GAUGE, "Memory of the node.", lambda s: s.process.resident_bytes),
    node_row("braidlog_process_open_files", GAUGE, "Open files and sockets.", lambda s: s.process.open_files),
    node_row("braidlog_process_open_files_limit", GAUGE, "Limit of open files.", lambda s: s.process.open_files_max),
    node_row(
        "braidlog_loop_lag_seconds",
        GAUGE,
        "Delay of the event loop at its last timer.",
        lambda s: s.process.loop_lag_seconds,
    ),
)
