"""Writes metrics in Prometheus's text format 0.0.4."""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Final

from braidlog.model.clock import upper_bounds
from braidlog.model.reporting.metric_rows import HISTOGRAM, MetricRow
from braidlog.model.reporting.metrics import LOG_TABLE, TABLE
from braidlog.model.reporting.node_report import LogReport, Snapshot

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SHOWN_BOUNDS: Final = tuple(range(6, 25, 2))
"""The buckets that are exported: 64 µs, 256 µs, 1 ms, … 16 s."""


def text_of(snapshot: Snapshot | None) -> bytes:
    """Return the response to /metrics. If the node does not respond, it contains only that."""
    if snapshot is None:
        return _text(_lines(TABLE[0], [((), 0)]))
    return _text(line for row in TABLE for line in _lines(row, row.rows(snapshot)))


def log_lines_of(report: LogReport) -> Iterator[str]:
    """Yield the lines of the metrics of partitions and groups: they may be many."""
    return (line for row in LOG_TABLE for line in _lines(row, row.rows(report)))


def _text(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _lines(row: MetricRow, rows: Iterable[Any]) -> Iterator[str]:
    yield f"# HELP {row.name} {row.help}"
    yield f"# TYPE {row.name} {row.kind}"
    for each in rows:
        labels = [f'{name}="{_escaped(value)}"' for name, value in zip(row.labels, each[0], strict=True)]
        if row.kind != HISTOGRAM:
            yield f"{_series(row.name, labels)} {each[1]}"
            continue
        for bound, below in _shown(each.counts):
            yield f"{_series(row.name + '_bucket', [_le(bound), *labels])} {below}"
        yield f"{_series(f'{row.name}_count', labels)} {sum(each.counts)}"
        yield f"{_series(f'{row.name}_sum', labels)} {each.total}"


def _le(bound: str) -> str:
    return f'le="{bound}"'


def _series(name: str, labels: list[str]) -> str:
    return f"{name}{{{','.join(labels)}}}" if labels else name


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _shown(counts: list[int]) -> list[tuple[str, int]]:
    """Return cumulative counts below each exported bound."""
    below, bounds = list(accumulate(counts)), upper_bounds()
    return [*((repr(bounds[index]), below[index]) for index in SHOWN_BOUNDS), ("+Inf", below[-1])]
