"""Row types of the table of metrics, and helpers for common rows."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from braidlog.model.reporting.node_report import Snapshot

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
Row = tuple[tuple[str, ...], float]
"""The values of the labels, and the metric's value."""


class MetricRow(NamedTuple):
    """One metric of the table. `kind`: counter, gauge or histogram."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    rows: Callable[[Any], Iterable[Any]]
    """Reads a `LogReport` in `LOG_TABLE`, a `Snapshot` elsewhere."""


class Buckets(NamedTuple):
    labels: tuple[str, ...]
    counts: list[int]
    total: float


def node_row(name: str, kind: str, text: str, value: Callable[[Snapshot], float]) -> MetricRow:
    """Return the row of a metric with one value per node."""
    return MetricRow(name, kind, text, (), lambda snapshot: [((), value(snapshot))])


def counts_of(named: Callable[[Snapshot], dict[str, int]]) -> Callable[[Snapshot], Iterator[Row]]:
    return lambda snapshot: (((name,), count) for name, count in named(snapshot).items())
