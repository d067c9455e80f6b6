"""Finds gaps and repetitions in the versions of aggregates, in topics where each event of an aggregate increases its
version by one.

Does not handle: event contents. Every version between the first and the last seen version was seen, or is in a
reported gap, or was reported as late. An aggregate without events for `forget_after` is forgotten, which bounds the
memory.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from braidlog.spark.pipeline.config import Versions

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]
    from pyspark.sql.streaming.state import GroupState

SCHEMA: Final = (
    "aggregate string, kind string, from_version long, to_version long, partition int, offset long, time timestamp"
)


class Finding(NamedTuple):
    """`gap`: the versions [from, to) are missing before the event at this position. `again`: the version was seen
    before, or fills a reported gap."""

    kind: str
    from_version: int
    to_version: int
    row: int


def follow(expected: int | None, versions: Iterable[int]) -> tuple[int | None, list[Finding]]:
    """Check ascending versions of one aggregate; return the next expected version, and the findings."""
    findings = []
    for index, version in enumerate(versions):
        if expected is not None and version > expected:
            findings.append(Finding("gap", expected, version, index))
        elif expected is not None and version < expected:
            findings.append(Finding("again", version, version + 1, index))
            continue
        expected = version + 1
    return expected, findings


def gaps(silver: DataFrame, settings: Versions) -> DataFrame:
    """Return the findings of a stream of silver rows."""
    events = silver.select(
        f.expr(settings.aggregate).cast("string").alias("aggregate"),
        f.expr(settings.version).cast("long").alias("version"),
        f.col("_partition").alias("partition"),
        f.col("_offset").alias("offset"),
        f.col("_time").alias("time"),
        f.current_timestamp().alias("seen"),
    ).where("aggregate IS NOT NULL AND version IS NOT NULL")
    # Inactivity is measured by processing time, passed to Spark as if it were event time: with a processing-time
    # timeout Spark would run empty batches without end.
    events = events.withColumn("seen_ms", f.unix_millis("seen")).withWatermark("seen", settings.forget_after)
    return events.groupBy("aggregate").applyInPandasWithState(
        _judge(settings), SCHEMA, "expected long", "append", "EventTimeTimeout"
    )


def _judge(settings: Versions) -> "Callable[[tuple[str], Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]":
    first = settings.first

    def judge(key: "tuple[str]", frames: "Iterator[pd.DataFrame]", state: "GroupState") -> "Iterator[pd.DataFrame]":
        import pandas as pd  # noqa: PLC0415 - on executors

        if state.hasTimedOut:
            state.remove()
            return
        events = pd.concat(list(frames)).sort_values(["version", "offset"], ignore_index=True)
        expected, findings = follow(state.get[0] if state.exists else first, events["version"].tolist())
        state.update((expected,))
        state.setTimeoutTimestamp(int(events["seen_ms"].max()))
        if findings:
            rows = [
                (
                    key[0],
                    finding.kind,
                    finding.from_version,
                    finding.to_version,
                    *events.loc[finding.row, ["partition", "offset", "time"]],
                )
                for finding in findings
            ]
            yield pd.DataFrame(
                rows, columns=["aggregate", "kind", "from_version", "to_version", "partition", "offset", "time"]
            )

    return judge
