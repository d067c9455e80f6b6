"""A Grafana dashboard made from the table of metrics: `python -m braidlog.console.dashboard > src/braidlog/console/grafana.json`.

Knows: which questions are worth a panel. Refuses to know: Grafana beyond the JSON it imports.
Invariant: every metric and label in a query is one that the node has; a test asks a live node for each of them.
"""

import sys
from typing import Any, Final, NamedTuple

import msgspec

SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
WIDTH: Final = 12
HEIGHT: Final = 8
_TIMED: Final = 'braidlog_request_seconds_bucket{NODE, operation!~"Fetch.*|JoinGroup"}'
"""Without those that wait for something to happen."""
_NODE: Final = 'instance=~"$instance"'


class Panel(NamedTuple):
    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """(PromQL, legend); `NODE` stands for the chosen nodes."""


PANELS: Final = (
    Panel(
        "Records per second",
        "short",
        (
            ("sum by (instance) (rate(braidlog_appended_records_total{NODE}[$__rate_interval]))", "in {{instance}}"),
            ("sum by (instance) (rate(braidlog_fetched_records_total{NODE}[$__rate_interval]))", "out {{instance}}"),
        ),
    ),
    Panel(
        "Bytes per second",
        "Bps",
        (
            ("sum by (listener) (rate(braidlog_received_bytes_total{NODE}[$__rate_interval]))", "in {{listener}}"),
            ("sum by (listener) (rate(braidlog_sent_bytes_total{NODE}[$__rate_interval]))", "out {{listener}}"),
        ),
    ),
    Panel(
        "Requests per second",
        "reqps",
        (
            (
                "sum by (listener, operation) (rate(braidlog_requests_total{NODE}[$__rate_interval])) > 0",
                "{{listener}} {{operation}}",
            ),
        ),
    ),
    Panel(
        "Slowest hundredth of requests",
        "s",
        (
            (
                "histogram_quantile(0.99, sum by (le, listener, operation) (rate(" + _TIMED + "[$__rate_interval])))",
                "{{listener}} {{operation}}",
            ),
        ),
    ),
    Panel(
        "Lag of groups",
        "short",
        (("sum by (group, topic) (braidlog_group_lag_records{NODE})", "{{group}} {{topic}}"),),
    ),
    Panel(
        "Sync to the disk",
        "s",
        (
            (
                "histogram_quantile(0.5, sum by (le) (rate(braidlog_sync_seconds_bucket{NODE}[$__rate_interval])))",
                "half",
            ),
            (
                "histogram_quantile(0.99, sum by (le) (rate(braidlog_sync_seconds_bucket{NODE}[$__rate_interval])))",
                "99 of 100",
            ),
        ),
    ),
    Panel("Size of topics", "bytes", (("sum by (topic) (braidlog_partition_size_bytes{NODE})", "{{topic}}"),)),
    Panel(
        "Records kept",
        "short",
        (
            (
                "sum by (topic) (braidlog_partition_high_watermark{NODE} - braidlog_partition_start_offset{NODE})",
                "{{topic}}",
            ),
        ),
    ),
    Panel(
        "Connections",
        "short",
        (
            ("sum by (listener) (braidlog_connections{NODE})", "{{listener}}"),
            ("max(braidlog_connections_limit{NODE})", "limit"),
        ),
    ),
    Panel(
        "Turned away and slowed down",
        "short",
        (
            (
                "sum by (listener) (rate(braidlog_connections_cut_off_total{NODE}[$__rate_interval]))",
                "cut off {{listener}}",
            ),
            (
                "sum by (listener) (rate(braidlog_quota_wait_seconds_total{NODE}[$__rate_interval]))",
                "quota {{listener}}",
            ),
        ),
    ),
    Panel(
        "Keys and values",
        "short",
        (
            ("braidlog_kv_keys{NODE}", "keys"),
            ("rate(braidlog_kv_operations_total{NODE}[$__rate_interval])", "operations / s"),
            ("rate(braidlog_kv_mutations_total{NODE}[$__rate_interval])", "mutations / s"),
        ),
    ),
    Panel(
        "The process",
        "short",
        (
            ("rate(braidlog_process_cpu_seconds_total{NODE}[$__rate_interval])", "cores {{instance}}"),
            ("braidlog_loop_lag_seconds{NODE}", "loop late by {{instance}}"),
        ),
    ),
    Panel(
        "Memory",
        "bytes",
        (
            ("braidlog_process_resident_bytes{NODE}", "resident {{instance}}"),
            ("braidlog_memory_held_bytes{NODE}", "held by connections {{instance}}"),
        ),
    ),
    Panel(
        "Should be nothing",
        "short",
        (
            ("1 - braidlog_up{NODE}", "node down {{instance}}"),
            ("1 - braidlog_listener_up{NODE}", "listener down {{listener}}"),
            ("braidlog_partitions_offline{NODE}", "offline {{instance}}"),
            ("braidlog_partitions_read_only{NODE}", "read only {{instance}}"),
            ("1 - braidlog_kv_up{NODE}", "store down {{instance}}"),
        ),
    ),
)


def expressions() -> list[str]:
    """Every query as Grafana sends it."""
    return [_expression(query) for panel in PANELS for query, _ in panel.queries]


def _expression(query: str) -> str:
    return query.replace("NODE", _NODE)


def dashboard() -> dict[str, Any]:
    return {
        "title": "braidlog",
        "uid": "braidlog-node",
        "tags": ["braidlog"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {
                    "name": "instance",
                    "type": "query",
                    "label": "Node",
                    "datasource": SOURCE,
                    "query": {"query": "label_values(braidlog_up, instance)", "refId": "A"},
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": ["All"], "value": ["$__all"]},
                },
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": WIDTH * (number % 2), "y": HEIGHT * (number // 2)},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": _expression(query), "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


def text() -> str:
    return msgspec.json.format(msgspec.json.encode(dashboard()).decode(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
