"""Alerting and recording rules for Prometheus.

The table is the only definition of the alerts: `braid generate prometheus --rules` and the table in the guide are
generated from it, and tests check it against the metrics of a node.
"""

from typing import Final, NamedTuple

CRITICAL, WARNING = "critical", "warning"


class Alert(NamedTuple):
    name: str
    what: str
    expr: str
    """An alert; `JOB` in its expression is replaced by the job name of the nodes in Prometheus."""
    holds: str
    """Duration in Prometheus' notation; empty: immediately."""
    do: str
    severity: str = WARNING
    of_cluster: bool = False


class Recording(NamedTuple):
    name: str
    expr: str


def _p99(metric: str, *labels: str) -> str:
    by = ", ".join(("job", *labels, "le"))
    return f"histogram_quantile(0.99, sum by ({by}) (rate({metric}_bucket[5m])))"


RECORDINGS: Final = (
    Recording("job:braidlog_appended_bytes:rate5m", "sum by (job) (rate(braidlog_appended_bytes_total[5m]))"),
    Recording("job:braidlog_appended_records:rate5m", "sum by (job) (rate(braidlog_appended_records_total[5m]))"),
    Recording("job:braidlog_fetched_bytes:rate5m", "sum by (job) (rate(braidlog_fetched_bytes_total[5m]))"),
    Recording("operation:braidlog_request_seconds:p99_5m", _p99("braidlog_request_seconds", "listener", "operation")),
    Recording("instance:braidlog_sync_seconds:p99_5m", _p99("braidlog_sync_seconds", "instance")),
    Recording("job:braidlog_cluster_etcd_seconds:p99_5m", _p99("braidlog_cluster_etcd_seconds")),
    Recording("group:braidlog_group_lag_records:sum", "sum by (job, group, topic) (braidlog_group_lag_records)"),
)

ALERTS: Final = (
    Alert(
        "BraidlogNodeDown",
        "node down",
        'up{job="JOB"} == 0 or braidlog_up == 0',
        "1m",
        "check its log; a process that does not answer is blocked on its disk or lacks CPU",
        CRITICAL,
    ),
    Alert(
        "BraidlogPartitionOffline",
        "partition offline",
        "braidlog_partitions_offline > 0",
        "",
        "`braid doctor` and, for every byte, `braid log verify` show the damage, `braid log repair` repairs it; "
        "the node's log names a lost folder: restore it, or delete and recreate the topic",
        CRITICAL,
    ),
    Alert(
        "BraidlogPartitionReadOnly",
        "partition read only",
        "braidlog_partitions_read_only > 0",
        "",
        "damage or a failed sync: check the disk, then restart the node",
        CRITICAL,
    ),
    Alert(
        "BraidlogQuarantined",
        "files quarantined",
        "braidlog_quarantined > 0",
        "",
        "a damaged replica was replaced, or a topic is missing in the metadata: `braid doctor` names the files; check them "
        "and at the disk, then delete the files",
    ),
    Alert(
        "BraidlogDiskFills",
        "disk fills up (metric of node_exporter)",
        "predict_linear(node_filesystem_avail_bytes[6h], 86400) < 0",
        "1h",
        "shorten `retention_ms` or `retention_bytes` of the largest topics",
    ),
    Alert(
        "BraidlogGroupFallsBehind",
        "group falls behind",
        "group:braidlog_group_lag_records:sum > 10000 and deriv(group:braidlog_group_lag_records:sum[15m]) > 0",
        "15m",
        "add members, up to the number of partitions; or restart a stuck member",
    ),
    Alert(
        "BraidlogGroupDied",
        "group has lag but no members",
        "sum by (job, group) (braidlog_group_members) == 0 and sum by (job, group) (braidlog_group_lag_records) > 0",
        "5m",
        "start its consumers",
    ),
    Alert(
        "BraidlogSyncsSlow",
        "syncs are slow",
        "instance:braidlog_sync_seconds:p99_5m > 0.1",
        "10m",
        "check for other load on the disk",
    ),
    Alert(
        "BraidlogClientsDisconnected",
        "connections are closed by the node",
        "rate(braidlog_connections_terminated_total[5m]) > 0",
        "5m",
        "the log names the connections and the reasons",
    ),
    Alert(
        "BraidlogConnectionsRunOut",
        "connection limit is near",
        "sum by (job, instance) (braidlog_connections) / max by (job, instance) (braidlog_connections_limit) > 0.8",
        "5m",
        "raise `limits.connections_max` and `ulimit -n`",
    ),
    Alert(
        "BraidlogLimitNear",
        "state limit is near",
        "braidlog_state_entries / braidlog_state_entries_limit > 0.8 or braidlog_state_bytes / braidlog_state_limit_bytes > 0.8",
        "5m",
        "find the largest groups and topics in the console; delete unused ones, or raise `state.*_max` or "
        "`limits.memory_bytes_max`",
    ),
    Alert(
        "BraidlogWorkerFails",
        "worker fails",
        "rate(braidlog_worker_jobs_failed_total[5m]) > 0",
        "5m",
        "large compressed batches were refused as retriable: the worker's queue is full (send fewer or smaller batches), or the "
        "worker crashes (see the log)",
    ),
    Alert(
        "BraidlogLoopLate",
        "event loop lags",
        "braidlog_loop_lag_seconds > 0.5",
        "5m",
        "the load exceeds one core: add nodes and move partitions",
    ),
    Alert(
        "BraidlogNodeFenced",
        "cluster: node fenced",
        'max by (job) (braidlog_cluster_nodes{state="fenced"}) > 0',
        "1m",
        "start it again; `braid cluster events` shows when it was fenced, its log why. A lost node: `braid cluster remove`",
        CRITICAL,
        of_cluster=True,
    ),
    Alert(
        "BraidlogNobodyLeads",
        "cluster: leaderless partitions",
        "max by (job) (braidlog_cluster_leaderless_partitions) > 0",
        "15s",
        "start the nodes with their replicas: `braid cluster doctor` lists the partitions",
        CRITICAL,
        of_cluster=True,
    ),
    Alert(
        "BraidlogAcksAllRefused",
        "cluster: acks=all refused",
        "sum by (job) (braidlog_cluster_below_min_isr_partitions) > 0",
        "1m",
        "another failure may make partitions unavailable: start the offline nodes",
        CRITICAL,
        of_cluster=True,
    ),
    Alert(
        "BraidlogUnderReplicated",
        "cluster: under-replicated",
        "sum by (job) (braidlog_cluster_under_replicated_partitions) > 0",
        "10m",
        "all nodes are alive: their disks or network cannot keep up (`braidlog_cluster_follower_lag_records`)",
        of_cluster=True,
    ),
    Alert(
        "BraidlogSlotsUnderReplicated",
        "cluster: under-replicated slots of keys",
        "sum by (job) (braidlog_kv_slots_under_replicated) > 0",
        "10m",
        "`braid cluster doctor` lists the slots and their nodes: ALL is refused; QUORUM will be after another failure",
        of_cluster=True,
    ),
    Alert(
        "BraidlogSlotsDiffer",
        "cluster: replicas of keys diverged",
        "sum by (job, instance) (increase(braidlog_kv_slot_differences_total[1h])) > 0",
        "",
        "they were repaired, and the log names the keys: a software defect, or faulty disk or memory; check the machine, "
        "and report a bug if it is healthy",
        CRITICAL,
        of_cluster=True,
    ),
    Alert(
        "BraidlogLeadersMove",
        "cluster: frequent leader changes",
        "sum by (job, cause) (increase(braidlog_cluster_leader_changes_total[1h])) > 100",
        "",
        "repeated `fenced`: a node lacks CPU, or the network loses packets; `braid cluster events`",
        of_cluster=True,
    ),
    Alert(
        "BraidlogEtcdAway",
        "cluster: etcd unavailable",
        "min by (job) (braidlog_cluster_etcd_up) == 0",
        "30s",
        "leaders keep serving, but cannot move: see [Metadata in etcd](#metadata-in-etcd)",
        CRITICAL,
        of_cluster=True,
    ),
    Alert(
        "BraidlogEtcdSlow",
        "cluster: etcd slow",
        "job:braidlog_cluster_etcd_seconds:p99_5m > 0.25",
        "5m",
        "check its disk and the network between its members; failover of leaders is delayed",
        of_cluster=True,
    ),
    Alert(
        "BraidlogNodeLeftDraining",
        "cluster: node left draining",
        'max by (job) (braidlog_cluster_nodes{state="draining"}) > 0',
        "1h",
        "`braid cluster drain N --undo`",
        of_cluster=True,
    ),
)


def rules(job: str, *, of_cluster: bool) -> str:
    """Return a rules file for `rule_files` in prometheus.yml."""
    shown = [alert for alert in ALERTS if of_cluster or not alert.of_cluster]
    groups = (
        ("recordings", [_rule("record", each.name, each.expr) for each in RECORDINGS]),
        ("alerts", [_alert(each, job) for each in shown if not each.of_cluster]),
        ("cluster-alerts", [_alert(each, job) for each in shown if each.of_cluster]),
    )
    text = "# Rules for Prometheus; add this file to rule_files in prometheus.yml.\ngroups:\n"
    for name, lines in groups:
        if lines:
            text += f"  - name: {job}-{name}\n    rules:\n{''.join(lines)}"
    return text


def _alert(alert: Alert, job: str) -> str:
    holds = f"        for: {alert.holds}\n" if alert.holds else ""
    return f"""\
{_rule("alert", alert.name, alert.expr.replace("JOB", job))}{holds}\
        labels:
          severity: {alert.severity}
        annotations:
          summary: {_quoted(alert.what)}
          description: {_quoted(alert.do)}
"""


def _rule(kind: str, name: str, expr: str) -> str:
    return f"      - {kind}: {name}\n        expr: {_quoted(expr)}\n"


def _quoted(text: str) -> str:
    """Quote a YAML scalar with single quotes, which only need doubling."""
    return "'" + text.replace("'", "''") + "'"
