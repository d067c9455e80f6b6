"""Expectations: checks on every row that a stage writes, with counts of violations.

Spark's observed metrics carry the counts of each micro-batch. Does not handle: storing counts. A check that is false
or null is a violation. Every row is counted before any is dropped. `fail` stops the stage before its micro-batch is
committed.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from braidlog.spark.pipeline.config import Expectation, refusal

ROWS: Final = "rows"
_METRICS: Final = "expectations"


def watched(frame: DataFrame, expectations: Iterable[Expectation]) -> DataFrame:
    """Return the frame with counted rows; violating rows are dropped, or fail the query, as declared."""
    checked = list(expectations)
    if not checked:
        return frame
    checks = {each.name: _check(frame, each) for each in checked}
    broken = [f.count_if(~check).alias(f"violations_{name}") for name, check in checks.items()]
    frame = frame.observe(_METRICS, f.count(f.lit(1)).alias(ROWS), *broken)
    for each in checked:
        match each.on_violation:
            case "drop":
                frame = frame.where(checks[each.name])
            case "fail":
                frame = frame.where(_or_fail(checks[each.name], each))
            case "keep":
                pass
    return frame


def _check(frame: DataFrame, each: Expectation) -> Column:
    condition = f.coalesce(f.expr(each.check).cast("boolean"), f.lit(False))  # noqa: FBT003 - a literal
    try:
        frame.select(condition)
    except AnalysisException as error:
        said = str(error).strip().partition("\n")[0]
        raise refusal(
            f"[[expectations]] {each.name}: {each.check!r} cannot be evaluated on {each.stage}: {said}"
        ) from error
    return condition


def _or_fail(check: Column, each: Expectation) -> Column:
    row = f.to_json(f.struct("*"))
    said = f.concat(f.lit(f"expectation {each.name} of {each.stage} is broken by "), row)
    return f.when(check, f.lit(True)).otherwise(f.raise_error(said).cast("boolean"))  # noqa: FBT003 - a literal


def counts(observed: Mapping[str, Any]) -> tuple[int, dict[str, int]]:
    """Return row count and violations by name, from a progress's `observedMetrics` as JSON."""
    metrics = observed.get(_METRICS) or {}
    violations = {
        name.removeprefix("violations_"): int(count or 0)
        for name, count in metrics.items()
        if name.startswith("violations_")
    }
    return int(metrics.get(ROWS) or 0), violations
