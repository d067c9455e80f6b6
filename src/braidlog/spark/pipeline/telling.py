"""What a pipeline's own listeners make of progress: a line of the ledger for each micro-batch, a line for a person.

Knows: Spark's progress as JSON. Refuses to know: how it is shown.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from braidlog.spark.pipeline.expectations import counts
from braidlog.spark.pipeline.ledger import Generation, Ledger, Told
from braidlog.spark.pipeline.reporting import Telling


class Heard(msgspec.Struct, frozen=True):
    """A stage, as it was last heard of. `lag` is in records, None where the source does not tell."""

    stage: str
    state: str
    batch: int | None = None
    rows: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    error: str | None = None


def stage_of(telling: Telling) -> str:
    """Queries are named `<pipeline>.<stage>`."""
    return (telling.name or "").rpartition(".")[2]


class Teller:
    """Writes batches down and passes on what was heard."""

    def __init__(self, ledger: Ledger, generation: Generation, show: Callable[[Heard], object]) -> None:
        self._ledger = ledger
        self._generation = generation
        self._show = show

    def __call__(self, telling: Telling) -> None:
        stage = stage_of(telling)
        progress = telling.progress
        if progress is None:
            self._show(Heard(stage, telling.state, error=telling.error))
            return
        rows = int(progress.get("numInputRows") or 0)
        rate = float(progress.get("processedRowsPerSecond") or 0.0)
        checked, violations = counts(progress.get("observedMetrics") or {})
        operators = progress.get("stateOperators") or []
        self._ledger.tell(
            Told(
                progress["timestamp"],
                stage,
                self._generation.of(stage),
                int(progress["batchId"]),
                rows,
                rate,
                int((progress.get("durationMs") or {}).get("triggerExecution", 0)),
                sum(int(each.get("numRowsDroppedByWatermark") or 0) for each in operators),
                sum(int(each.get("numRowsTotal") or 0) for each in operators),
                checked,
                violations,
            )
        )
        self._show(Heard(stage, telling.state, int(progress["batchId"]), rows, rate, lag(progress)))


def lag(progress: dict[str, Any]) -> int | None:
    """How many records the sources have that the batch has not read."""
    found = 0
    for source in progress.get("sources") or []:
        end, latest = source.get("endOffset"), source.get("latestOffset")
        if not isinstance(end, dict) or not isinstance(latest, dict):
            return None
        for topic, partitions in latest.items():
            for number, offset in partitions.items():
                found += max(int(offset) - int(end.get(topic, {}).get(number, 0)), 0)
    return found
