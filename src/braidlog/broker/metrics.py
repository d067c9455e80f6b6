"""What the services count, as Prometheus text.

Knows: names and units. Refuses to know: who scrapes.
"""

from collections.abc import Callable

from braidlog.broker.hosted import HostedPartition
from braidlog.broker.services import Services

_GAUGES: dict[str, tuple[str, Callable[[HostedPartition], int]]] = {
    "braidlog_partition_start_offset": ("First offset that can be read.", lambda h: h.start_offset),
    "braidlog_partition_high_watermark": ("Next offset after the last committed record.", lambda h: h.high_watermark),
    "braidlog_partition_size_bytes": ("Bytes of batches on the disk.", lambda h: h.log.size_bytes),
}
_LAG = "braidlog_group_lag_records"


def render_metrics(services: Services) -> str:
    """Offsets and sizes of every partition, lag of every group: gauges, one line each."""
    lines = []
    rows = [hosted for name in services.topics.names() for hosted in services.topics.partitions(name)]
    for metric, (help_text, value_of) in _GAUGES.items():
        lines += [f"# HELP {metric} {help_text}", f"# TYPE {metric} gauge"]
        lines += [f'{metric}{{topic="{h.topic}",partition="{h.number}"}} {value_of(h)}' for h in rows]
    lines += [f"# HELP {_LAG} Records a group has not committed yet.", f"# TYPE {_LAG} gauge"]
    for group in services.groups.names():
        name = group.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines += [
            f'{_LAG}{{group="{name}",topic="{row.topic}",partition="{row.partition}"}} {row.lag}'
            for row in services.groups.lag(group)
        ]
    return "\n".join(lines) + "\n"
