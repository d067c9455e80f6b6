"""What the services count, as Prometheus text.

Knows: names and units. Refuses to know: who scrapes.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from braidlog.coordinator.groups.service import Groups
from braidlog.model.errors import StorageFault
from braidlog.partition.hosted import HostedPartition
from braidlog.partition.hosting import Hosting

_GAUGES: tuple[tuple[str, str, Callable[[HostedPartition], int]], ...] = (
    ("braidlog_partition_start_offset", "First offset that can be read.", lambda h: h.start_offset),
    ("braidlog_partition_high_watermark", "Next offset after the last committed record.", lambda h: h.high_watermark),
    ("braidlog_partition_size_bytes", "Bytes of batches on the disk.", lambda h: h.log.size_bytes),
)


def render_metrics(hosting: Hosting, groups: Groups, names: Sequence[str]) -> str:
    """Offsets and sizes of the partitions of the topics with these names, lag of the groups in them: gauges, one line each."""
    lines = []
    rows = [(name, hosted) for name in names for hosted in _online(hosting, name)]
    lines += [
        "# HELP braidlog_partitions_offline Partitions that could not be opened.",
        "# TYPE braidlog_partitions_offline gauge",
    ]
    lines += [f"braidlog_partitions_offline {sum(hosting.meta(name).partitions for name in names) - len(rows)}"]
    shown = frozenset(names)
    for metric, help_text, value_of in _GAUGES:
        lines += [f"# HELP {metric} {help_text}", f"# TYPE {metric} gauge"]
        lines += [f'{metric}{{topic="{topic}",partition="{h.number}"}} {value_of(h)}' for topic, h in rows]
    lag = "braidlog_group_lag_records"
    lines += [f"# HELP {lag} Records a group has not committed yet.", f"# TYPE {lag} gauge"]
    for group in groups.names():
        name = group.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        with contextlib.suppress(StorageFault):
            lines += [
                f'{lag}{{group="{name}",topic="{row.topic}",partition="{row.partition}"}} {row.lag}'
                for row in groups.lag(group)
                if row.topic in shown
            ]
    return "\n".join(lines) + "\n"


def _online(hosting: Hosting, name: str) -> Iterator[HostedPartition]:
    for number in range(hosting.meta(name).partitions):
        with contextlib.suppress(StorageFault):  # said when the node started; here it is counted
            yield hosting.partition(name, number)
