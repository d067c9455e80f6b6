"""Records the progress of a pipeline's stages in the ledger, and reports it.

Does not handle: display.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from braidlog.model.reporting.node_report import QueryProgress
from braidlog.spark.pipeline.layers.expectations import counts
from braidlog.spark.pipeline.ledger import BatchProgress, Generation, Ledger


class StageProgress(msgspec.Struct, frozen=True):
    """The last report of a stage. `lag` is in records, None if the source does not report it."""

    stage: str
    state: str
    batch: int | None = None
    rows: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    error: str | None = None


def stage_of(report: QueryProgress) -> str:
    """Return the stage of a query named `<pipeline>.<stage>`."""
    return (report.name or "").rpartition(".")[2]


class ProgressRecorder:
    """Writes batches to the ledger and forwards the stage's progress."""

    def __init__(self, ledger: Ledger, generation: Generation, show: Callable[[StageProgress], object]) -> None:
        self._ledger = ledger
        self._generation = generation
        self._show = show

    def __call__(self, report: QueryProgress) -> None:
        stage = stage_of(report)
        progress = report.progress
        if progress is None:
            self._show(StageProgress(stage, report.state, error=report.error))
            return
        rows = int(progress.get("numInputRows") or 0)
        rate = float(progress.get("processedRowsPerSecond") or 0.0)
        checked, violations = counts(progress.get("observedMetrics") or {})
        operators = progress.get("stateOperators") or []
        self._ledger.record(
            BatchProgress(
                progress["timestamp"],
                stage,
                self._generation.of(stage),
                int(progress["batchId"]),
                rows,
                rate,
                int((progress.get("durationMs") or {}).get("triggerExecution", 0)),
                sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in operators),
                sum(int(operator.get("numRowsTotal") or 0) for operator in operators),
                checked,
                violations,
                _written(progress),
            )
        )
        self._show(StageProgress(stage, report.state, int(progress["batchId"]), rows, rate, lag(progress)))


def _written(progress: dict[str, Any]) -> int | None:
    rows = int((progress.get("sink") or {}).get("numOutputRows", -1))
    return rows if rows >= 0 else None


def lag(progress: dict[str, Any]) -> int | None:
    """Return the number of records in the sources that the batch has not read."""
    total = 0
    for source in progress.get("sources") or []:
        end, latest = source.get("endOffset"), source.get("latestOffset")
        if not isinstance(end, dict) or not isinstance(latest, dict):
            return None
        for topic, partitions in latest.items():
            for number, offset in partitions.items():
                total += max(int(offset) - int(end.get(topic, {}).get(number, 0)), 0)
    return total
