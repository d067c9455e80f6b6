"""Rules for Prometheus: what is worth waking somebody for, what is worth recording.

Knows: expressions over the metrics of `model/reporting/metrics.py`, how long each has to hold, what to do. Refuses to
know: who is told. Invariant: the table is the only place where an alert is spelled: `braid generate prometheus
--rules` and the guide's table follow it; tests hold it to the metrics that a node tells.
"""

from typing import Final, NamedTuple

CRITICAL, WARNING = "critical", "warning"


class Alert(NamedTuple):
    name: str
    what: str
    expr: str
    """`JOB` stands for the name that Prometheus has for the nodes."""
    holds: str
    """For so long, in Prometheus' words; empty: at once."""
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
        "look at its log; a process that is there and does not answer is stuck on its disk, or out of CPU",
        CRITICAL,
    ),
    Alert(
        "BraidlogPartitionOffline",
        "partition offline",
        "braidlog_partitions_offline > 0",
        "",
        "`braid doctor` and, for every byte, `braid log verify` say what is damaged, `braid log repair` offers what can be done; "
        "a folder that is lost is named in the node's log: restore it, or delete the topic and create it again",
        CRITICAL,
    ),
    Alert(
        "BraidlogPartitionReadOnly",
        "partition read only",
        "braidlog_partitions_read_only > 0",
        "",
        "damage, or a failed sync: check the disk, then restart the node",
        CRITICAL,
    ),
    Alert(
        "BraidlogSetAside",
        "something was set aside",
        "braidlog_set_aside > 0",
        "",
        "a damaged copy was replaced by another node's, or a topic is not in the metadata: `braid doctor` names it; look at it "
        "and at the disk, then delete the files",
    ),
    Alert(
        "BraidlogDiskFills",
        "disk fills (of node_exporter)",
        "predict_linear(node_filesystem_avail_bytes[6h], 86400) < 0",
        "1h",
        "shorten `retention_ms` or `retention_bytes` of the largest topics",
    ),
    Alert(
        "BraidlogGroupFallsBehind",
        "group falls behind",
        "group:braidlog_group_lag_records:sum > 10000 and deriv(group:braidlog_group_lag_records:sum[15m]) > 0",
        "15m",
        "more members, up to the number of partitions; or a member that is stuck",
    ),
    Alert(
        "BraidlogGroupDied",
        "group has died",
        "sum by (job, group) (braidlog_group_members) == 0 and sum by (job, group) (braidlog_group_lag_records) > 0",
        "5m",
        "start its consumers",
    ),
    Alert(
        "BraidlogSyncsSlow",
        "syncs are slow",
        "instance:braidlog_sync_seconds:p99_5m > 0.1",
        "10m",
        "something else uses the disk",
    ),
    Alert(
        "BraidlogClientsCutOff",
        "clients are cut off",
        "rate(braidlog_connections_cut_off_total[5m]) > 0",
        "5m",
        "the log says which, and why",
    ),
    Alert(
        "BraidlogConnectionsRunOut",
        "connections run out",
        "sum by (job, instance) (braidlog_connections) / max by (job, instance) (braidlog_connections_limit) > 0.8",
        "5m",
        "raise `limits.connections_max` and `ulimit -n`",
    ),
    Alert(
        "BraidlogLimitNear",
        "a limit is near",
        "braidlog_state_entries / braidlog_state_entries_limit > 0.8 or braidlog_state_bytes / braidlog_state_limit_bytes > 0.8",
        "5m",
        "find who makes so many (the console's Groups and Topics); delete what is unused, or raise `state.*_max` or "
        "`limits.memory_bytes_max`",
    ),
    Alert(
        "BraidlogWorkerFails",
        "worker fails",
        "rate(braidlog_worker_jobs_failed_total[5m]) > 0",
        "5m",
        'large compressed batches were answered "try again": its line is full (fewer or smaller batches), or it dies (the log '
        "says of what)",
    ),
    Alert(
        "BraidlogLoopLate",
        "loop is late",
        "braidlog_loop_lag_seconds > 0.5",
        "5m",
        "the node has too much to do for one core: split the load over nodes",
    ),
    Alert(
        "BraidlogNodeFenced",
        "cluster: node fenced",
        'max by (job) (braidlog_cluster_nodes{state="fenced"}) > 0',
        "1m",
        "start it again; `braid cluster events` says since when, its log why. One that is gone for good: `braid cluster remove`",
        CRITICAL,
        of_cluster=True,
    ),
    Alert(
        "BraidlogNobodyLeads",
        "cluster: nobody leads",
        "max by (job) (braidlog_cluster_leaderless_partitions) > 0",
        "15s",
        "start the nodes that hold them: `braid cluster doctor` names the partitions",
        CRITICAL,
        of_cluster=True,
    ),
    Alert(
        "BraidlogAcksAllRefused",
        "cluster: acks=all refused",
        "sum by (job) (braidlog_cluster_below_min_partitions) > 0",
        "1m",
        "one more loss may be one too many: start the nodes that are away",
        CRITICAL,
        of_cluster=True,
    ),
    Alert(
        "BraidlogUnderReplicated",
        "cluster: under-replicated",
        "sum by (job) (braidlog_cluster_under_replicated_partitions) > 0",
        "10m",
        "all nodes live: their disks or network cannot keep up (`braidlog_cluster_follower_lag_records`)",
        of_cluster=True,
    ),
    Alert(
        "BraidlogSlotsBelowStrength",
        "cluster: slots of keys below strength",
        "sum by (job) (braidlog_kv_slots_below_strength) > 0",
        "10m",
        "`braid cluster doctor` says which, and whether their nodes live: ALL is refused, and QUORUM with one more loss",
        of_cluster=True,
    ),
    Alert(
        "BraidlogSlotsDiffer",
        "cluster: replicas of keys differed",
        "sum by (job, instance) (increase(braidlog_kv_slot_differences_total[1h])) > 0",
        "",
        "they were put right, and the log names the keys: a defect, or a disk or memory that rots; check the machine, "
        "and tell us if it is well",
        CRITICAL,
        of_cluster=True,
    ),
    Alert(
        "BraidlogLeadersMove",
        "cluster: leaders move a lot",
        "sum by (job, cause) (increase(braidlog_cluster_leader_changes_total[1h])) > 100",
        "",
        "`fenced` again and again: a node that is starved of CPU, or a network that drops; `braid cluster events`",
        of_cluster=True,
    ),
    Alert(
        "BraidlogEtcdAway",
        "cluster: etcd away",
        "min by (job) (braidlog_cluster_etcd_up) == 0",
        "30s",
        "leaders lead on, and no leader moves: see [Metadata in etcd](#metadata-in-etcd)",
        CRITICAL,
        of_cluster=True,
    ),
    Alert(
        "BraidlogEtcdSlow",
        "cluster: etcd slow",
        "job:braidlog_cluster_etcd_seconds:p99_5m > 0.25",
        "5m",
        "its disk or the network between its members; a leader that dies is replaced later",
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
    """A file of rules, as `rule_files` in prometheus.yml names it."""
    shown = [alert for alert in ALERTS if of_cluster or not alert.of_cluster]
    groups = (
        ("recordings", [_rule("record", each.name, each.expr) for each in RECORDINGS]),
        ("alerts", [_alert(each, job) for each in shown if not each.of_cluster]),
        ("cluster-alerts", [_alert(each, job) for each in shown if each.of_cluster]),
    )
    text = "# Rules for Prometheus, named by rule_files in prometheus.yml.\ngroups:\n"
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
    """A scalar of YAML in which nothing means anything: only its own quote is doubled."""
    return "'" + text.replace("'", "''") + "'"
