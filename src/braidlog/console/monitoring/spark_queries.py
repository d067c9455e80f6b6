"""The last progress report of each Spark query.

At most `QUERIES_MAX` reports of bounded size are kept, the most recent ones, in memory only. `progress` is kept as
received.
"""

from collections import OrderedDict
from typing import Any, Final

import msgspec

from braidlog.console.monitoring.spark_pipelines import SparkPipelines
from braidlog.model.reporting.node_report import QueryProgress

QUERIES_MAX: Final = 200
REPORT_BYTES_MAX: Final = 256 * 1024


class LastReport(QueryProgress, frozen=True, kw_only=True):
    """A query's last report, its time, and the number of reports."""

    received_ms: int = msgspec.field(name="heard_ms")
    reports: int


class SparkQueries:
    def __init__(self) -> None:
        self._queries: OrderedDict[str, LastReport] = OrderedDict()
        self.pipelines = SparkPipelines()

    def report(self, body: bytes, now_ms: int) -> LastReport:
        """Add a report. Raises `msgspec.ValidationError` if it is invalid."""
        if len(body) > REPORT_BYTES_MAX:
            raise msgspec.ValidationError(f"a report of {len(body)} bytes exceeds the limit of {REPORT_BYTES_MAX}")
        report = msgspec.json.decode(body, type=QueryProgress)
        self.pipelines.take(report, now_ms)
        fields = msgspec.structs.asdict(report)
        before = self._queries.pop(fields["query"], None)
        if before is not None and fields["progress"] is None:
            fields["progress"] = before.progress  # the last report of a query may omit its progress
        found = LastReport(**fields, received_ms=now_ms, reports=1 if before is None else before.reports + 1)
        self._queries[found.query] = found
        if len(self._queries) > QUERIES_MAX:
            self._queries.popitem(last=False)
        return found

    def queries(self) -> list[LastReport]:
        """Return the reports, most recent first."""
        return list(reversed(self._queries.values()))


def figures_of(report: Any) -> dict[str, Any]:  # noqa: ANN401 - any report of Spark
    """Return the values of Spark's progress that the page shows; any may be missing."""
    progress = report.progress or {}
    durations = progress.get("durationMs")
    return {
        "report": report,
        "batch": progress.get("batchId"),
        "rows": progress.get("numInputRows"),
        "in_rate": progress.get("inputRowsPerSecond"),
        "done_rate": progress.get("processedRowsPerSecond"),
        "duration_ms": durations.get("triggerExecution") if isinstance(durations, dict) else None,
        "sources": [
            str(each.get("description", "")) for each in progress.get("sources") or [] if isinstance(each, dict)
        ],
        "sink": str((progress.get("sink") or {}).get("description", ""))
        if isinstance(progress.get("sink"), dict)
        else "",
    }
