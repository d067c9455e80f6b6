"""Versions that an aggregate left out, or that came again, in topics where each event of an aggregate counts up by one.

Knows: one number per aggregate. Refuses to know: what the events are.
Invariants: every version between the first and the last that were seen was seen, or is in a gap that was told, or was told as
late; an aggregate that is silent for `forget_after` is forgotten, which bounds the memory.
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
    """`gap`: the versions [from, to) were left out before the event at this place. `again`: the version was seen before, or it
    fills a gap that was told."""

    kind: str
    from_version: int
    to_version: int
    row: int


def follow(expected: int | None, versions: Iterable[int]) -> tuple[int | None, list[Finding]]:
    """Versions of one aggregate in rising order; the next one expected, and what was found."""
    found = []
    for index, version in enumerate(versions):
        if expected is not None and version > expected:
            found.append(Finding("gap", expected, version, index))
        elif expected is not None and version < expected:
            found.append(Finding("again", version, version + 1, index))
            continue
        expected = version + 1
    return expected, found


def gaps(silver: DataFrame, settings: Versions) -> DataFrame:
    """Of a stream of silver rows."""
    events = silver.select(
        f.expr(settings.aggregate).cast("string").alias("aggregate"),
        f.expr(settings.version).cast("long").alias("version"),
        f.col("_partition").alias("partition"),
        f.col("_offset").alias("offset"),
        f.col("_time").alias("time"),
        f.current_timestamp().alias("seen"),
    ).where("aggregate IS NOT NULL AND version IS NOT NULL")
    # Silence is measured by the stream's clock, told to Spark as if it were the events': a timeout by processing time would have
    # Spark run empty batches without end.
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
        expected, found = follow(state.get[0] if state.exists else first, events["version"].tolist())
        state.update((expected,))
        state.setTimeoutTimestamp(int(events["seen_ms"].max()))
        if found:
            rows = [
                (
                    key[0],
                    each.kind,
                    each.from_version,
                    each.to_version,
                    *events.loc[each.row, ["partition", "offset", "time"]],
                )
                for each in found
            ]
            yield pd.DataFrame(
                rows, columns=["aggregate", "kind", "from_version", "to_version", "partition", "offset", "time"]
            )

    return judge
