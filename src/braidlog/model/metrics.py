"""The table of metrics.

Knows: names, units, labels, where in a snapshot each value stands. Refuses to know: the text a scraper reads (`metrics_text.py`),
how the snapshot was made.
Invariants: a name ends with its unit, a counter with `_total`; the table is the only place where a name is spelled, whoever tells
it: /metrics of the console and RustLog's metrics follow it, the page of metrics and the Grafana dashboard are checked against it.
A group has its lag series as soon as it has members or commits.
"""

from collections.abc import Callable, Iterator
from typing import Final

from braidlog.model.cluster_metrics import CLUSTER_TABLE, KEYS_TABLE
from braidlog.model.lag import UNKNOWN_END
from braidlog.model.metric_rows import COUNTER, GAUGE, HISTOGRAM, Buckets, MetricRow, Row, counts_of, of_node
from braidlog.model.report import ListenerReport, LogReport, PartitionReport, Snapshot, TableState, WorkerReport


def _of_listeners(value: Callable[[ListenerReport], float]) -> Callable[[Snapshot], Iterator[Row]]:
    return lambda snapshot: (((each.dialect,), value(each)) for each in snapshot.listeners)


def _of_partitions(value: Callable[[PartitionReport], float]) -> Callable[[LogReport], Iterator[Row]]:
    def rows(snapshot: LogReport) -> Iterator[Row]:
        online = (each for each in snapshot.partitions if not each.is_offline)
        return (((each.topic, str(each.partition)), value(each)) for each in online)

    return rows


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


def _of_workers(value: Callable[[WorkerReport], float]) -> Callable[[Snapshot], Iterator[Row]]:
    return lambda snapshot: (((name,), value(each)) for name, each in _workers(snapshot))


def _job_seconds(snapshot: Snapshot) -> Iterator[Buckets]:
    for name, each in _workers(snapshot):
        yield Buckets((name,), each.jobs, each.jobs_seconds_total)


def _of_tables(value: Callable[[TableState], float]) -> Callable[[Snapshot], Iterator[Row]]:
    return lambda snapshot: (((each.topic,), value(each)) for each in snapshot.tables)


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


_LISTENER: Final = ("listener",)
_PARTITION: Final = ("topic", "partition")
_WORKER: Final = ("worker",)
_TOPIC: Final = ("topic",)

LOG_TABLE: Final[tuple[MetricRow, ...]] = (
    MetricRow(
        "braidlog_partitions_offline",
        GAUGE,
        "Partitions that cannot be opened.",
        (),
        of_node(lambda s: sum(each.is_offline for each in s.partitions)),
    ),
    MetricRow(
        "braidlog_partitions_read_only",
        GAUGE,
        "Partitions that take no writes: damaged, or stopped after a fault of their disk.",
        (),
        of_node(lambda s: sum(bool(each.fault) and not each.is_offline for each in s.partitions)),
    ),
    MetricRow(
        "braidlog_partition_start_offset",
        GAUGE,
        "First offset that can be read.",
        _PARTITION,
        _of_partitions(lambda each: each.start_offset),
    ),
    MetricRow(
        "braidlog_partition_high_watermark",
        GAUGE,
        "Next offset after the last committed record.",
        _PARTITION,
        _of_partitions(lambda each: each.high_watermark),
    ),
    MetricRow(
        "braidlog_partition_size_bytes",
        GAUGE,
        "Bytes of batches on the disk.",
        _PARTITION,
        _of_partitions(lambda each: each.size_bytes),
    ),
    MetricRow(
        "braidlog_group_lag_records",
        GAUGE,
        "Records a group has not committed yet.",
        ("group", "topic", "partition"),
        _lags,
    ),
)
"""What can be told of partitions and groups alone."""

TABLE: Final[tuple[MetricRow, ...]] = (
    MetricRow("braidlog_up", GAUGE, "1 if the node answers its console.", (), of_node(lambda _: 1)),
    MetricRow(
        "braidlog_uptime_seconds", GAUGE, "Seconds since the node started.", (), of_node(lambda s: s.uptime_seconds)
    ),
    # -- connections and requests
    MetricRow(
        "braidlog_listener_up",
        GAUGE,
        "1 if the listener is bound and accepts.",
        _LISTENER,
        _of_listeners(lambda each: int(each.is_serving)),
    ),
    MetricRow(
        "braidlog_connections", GAUGE, "Open connections.", _LISTENER, _of_listeners(lambda each: each.connections)
    ),
    MetricRow(
        "braidlog_connections_limit",
        GAUGE,
        "Connections that all listeners together may have.",
        (),
        of_node(lambda s: s.connections_max),
    ),
    MetricRow(
        "braidlog_connections_accepted_total",
        COUNTER,
        "Connections accepted.",
        _LISTENER,
        _of_listeners(lambda each: each.accepted),
    ),
    MetricRow(
        "braidlog_connections_turned_away_total",
        COUNTER,
        "Connections closed at once: too many, or too many of one address in too short a time.",
        _LISTENER,
        _of_listeners(lambda each: each.turned_away),
    ),
    MetricRow(
        "braidlog_connections_cut_off_total",
        COUNTER,
        "Connections closed because their client kept others waiting.",
        _LISTENER,
        _of_listeners(lambda each: each.cut_off),
    ),
    MetricRow("braidlog_requests_total", COUNTER, "Requests.", ("listener", "operation"), _requests),
    MetricRow(
        "braidlog_request_seconds",
        HISTOGRAM,
        "From a request to its answer, of one request in 16; waiting for data is part of it.",
        ("listener", "operation"),
        _request_seconds,
    ),
    MetricRow(
        "braidlog_received_bytes_total",
        COUNTER,
        "Bytes received from clients.",
        _LISTENER,
        _of_listeners(lambda each: each.bytes_in),
    ),
    MetricRow(
        "braidlog_sent_bytes_total",
        COUNTER,
        "Bytes sent to clients.",
        _LISTENER,
        _of_listeners(lambda each: each.bytes_out),
    ),
    MetricRow(
        "braidlog_quota_waits_total",
        COUNTER,
        "Times a client was not read from because it was over its quota.",
        _LISTENER,
        _of_listeners(lambda each: each.throttled),
    ),
    MetricRow(
        "braidlog_quota_wait_seconds_total",
        COUNTER,
        "For how long, in all.",
        _LISTENER,
        _of_listeners(lambda each: each.throttled_seconds),
    ),
    MetricRow(
        "braidlog_memory_held_bytes",
        GAUGE,
        "Bytes of unfinished frames, untaken answers, long polls, what waits for the worker, and what is kept for clients.",
        (),
        of_node(lambda s: s.budget_bytes),
    ),
    MetricRow(
        "braidlog_memory_limit_bytes", GAUGE, "What these may be together.", (), of_node(lambda s: s.budget_bytes_max)
    ),
    MetricRow(
        "braidlog_state_entries",
        GAUGE,
        "Partitions, groups, transactional ids and the like that the node keeps.",
        ("kind",),
        _state,
    ),
    MetricRow("braidlog_state_entries_limit", GAUGE, "How many it may keep.", ("kind",), _state_limits),
    MetricRow("braidlog_state_bytes", GAUGE, "What they take in memory, about.", (), of_node(lambda s: s.state_bytes)),
    MetricRow("braidlog_state_limit_bytes", GAUGE, "What they may take.", (), of_node(lambda s: s.state_bytes_max)),
    # -- the log
    MetricRow(
        "braidlog_partitions",
        GAUGE,
        "Partitions whose log is open, and those that are closed because nobody uses them.",
        ("state",),
        _partitions,
    ),
    MetricRow(
        "braidlog_appended_records_total",
        COUNTER,
        "Records appended by producers.",
        (),
        of_node(lambda s: s.records_appended),
    ),
    MetricRow(
        "braidlog_appended_batches_total", COUNTER, "Batches of them.", (), of_node(lambda s: s.batches_appended)
    ),
    MetricRow(
        "braidlog_appended_bytes_total", COUNTER, "Bytes of the batches.", (), of_node(lambda s: s.bytes_appended)
    ),
    MetricRow(
        "braidlog_fetched_records_total",
        COUNTER,
        "Offsets handed out to readers.",
        (),
        of_node(lambda s: s.records_fetched),
    ),
    MetricRow(
        "braidlog_fetched_bytes_total",
        COUNTER,
        "Bytes of batches found for readers.",
        (),
        of_node(lambda s: s.bytes_fetched),
    ),
    MetricRow("braidlog_sync_seconds", HISTOGRAM, "What a sync to the disk took.", (), _sync_seconds),
    MetricRow("braidlog_topics", GAUGE, "Topics.", (), of_node(lambda s: s.topics)),
    *LOG_TABLE,
    MetricRow("braidlog_group_members", GAUGE, "Members of a group.", ("group",), _members),
    *CLUSTER_TABLE,
    *KEYS_TABLE,
    # -- the worker processes
    MetricRow(
        "braidlog_worker_up",
        GAUGE,
        "1 if the process runs: for requests (large batches), upkeep (compaction, scrubbing), tables, tables-2. A job starts it.",
        _WORKER,
        _of_workers(lambda each: int(each.is_running)),
    ),
    MetricRow(
        "braidlog_worker_starts_total", COUNTER, "Times it was started.", _WORKER, _of_workers(lambda each: each.starts)
    ),
    MetricRow("braidlog_worker_job_seconds", HISTOGRAM, "What a job of it took.", _WORKER, _job_seconds),
    MetricRow(
        "braidlog_worker_jobs_failed_total",
        COUNTER,
        "Jobs that it did not answer, that were refused, or that it did not begin in time.",
        _WORKER,
        _of_workers(lambda each: each.failed),
    ),
    MetricRow(
        "braidlog_worker_jobs_waiting", GAUGE, "Jobs that wait for it.", _WORKER, _of_workers(lambda each: each.waiting)
    ),
    MetricRow(
        "braidlog_worker_queue_bytes",
        GAUGE,
        "Bytes of them and of the one it does.",
        _WORKER,
        _of_workers(lambda each: each.waiting_bytes),
    ),
    MetricRow(
        "braidlog_scrub_read_bytes_total",
        COUNTER,
        "Bytes of closed segments that were read again.",
        (),
        of_node(lambda s: s.scrub.read_bytes),
    ),
    MetricRow(
        "braidlog_scrub_damages_total",
        COUNTER,
        "Damaged places that this found.",
        (),
        of_node(lambda s: s.scrub.damages),
    ),
    MetricRow("braidlog_scrub_rounds_total", COUNTER, "Rounds that it ended.", (), of_node(lambda s: s.scrub.rounds)),
    MetricRow(
        "braidlog_scrub_partitions_left",
        GAUGE,
        "Partitions that the round under way has not come to; 0 between two rounds.",
        (),
        of_node(lambda s: s.scrub.partitions_left),
    ),
    MetricRow("braidlog_set_aside", GAUGE, "Copies and topics set aside.", ("why",), counts_of(lambda s: s.set_aside)),
    MetricRow("braidlog_table_lag_records", GAUGE, "Led here, and no rows.", _TOPIC, _of_tables(lambda t: t.lag)),
    MetricRow("braidlog_table_lag_bytes", GAUGE, "Of the log, about.", _TOPIC, _of_tables(lambda t: t.lag_bytes)),
    MetricRow(
        "braidlog_table_commit_timestamp_seconds",
        GAUGE,
        "When rows were last added or let go; 0: never.",
        _TOPIC,
        _of_tables(lambda t: t.committed_ms / 1000),
    ),
    MetricRow("braidlog_table_records", GAUGE, "Rows of a topic's table.", _TOPIC, _of_tables(lambda t: t.rows)),
    MetricRow("braidlog_table_bytes", GAUGE, "Bytes of its files.", _TOPIC, _of_tables(lambda t: t.bytes)),
    MetricRow(
        "braidlog_table_undecoded_records",
        GAUGE,
        "Rows whose value is none of the table's form: no JSON object, no value of a schema of its subject.",
        _TOPIC,
        _of_tables(lambda t: t.undecoded),
    ),
    MetricRow("braidlog_table_failing", GAUGE, "1 if not written.", _TOPIC, _of_tables(lambda t: int(bool(t.error)))),
    # -- the process
    MetricRow(
        "braidlog_process_cpu_seconds_total",
        COUNTER,
        "CPU time of the node.",
        (),
        of_node(lambda s: s.process.cpu_seconds),
    ),
    MetricRow(
        "braidlog_process_resident_bytes",
        GAUGE,
        "Memory of the node.",
        (),
        of_node(lambda s: s.process.resident_bytes),
    ),
    MetricRow("braidlog_process_open_files", GAUGE, "Files and sockets.", (), of_node(lambda s: s.process.open_files)),
    MetricRow(
        "braidlog_process_open_files_limit",
        GAUGE,
        "How many it may have.",
        (),
        of_node(lambda s: s.process.open_files_max),
    ),
    MetricRow(
        "braidlog_loop_lag_seconds",
        GAUGE,
        "How late the node's loop was at its last timer.",
        (),
        of_node(lambda s: s.process.loop_lag_seconds),
    ),
)
