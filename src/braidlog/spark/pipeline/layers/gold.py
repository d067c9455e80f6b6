"""Gold: aggregates clean events to counts and latencies per window, and the last event of each key.

Does not handle: streams, sinks, servers. A window is written once, when no more events are accepted for it (`late`
after its end). The last event of a key is chosen by `order` within a batch, and by the log's order between batches.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from braidlog.spark.pipeline.config import State, Windows
from braidlog.spark.pipeline.layers import records

PERCENTILES: Final = {"latency_p50": 0.5, "latency_p99": 0.99}
ACCURACY: Final = 10_000
"""Accuracy of percentile_approx: the rank error is at most 1 / this."""


def windows(silver: DataFrame, settings: Windows) -> DataFrame:
    """Return a row per window and group: the count, and latencies if the settings name a latency."""
    events = silver.withWatermark("_time", settings.late) if silver.isStreaming else silver
    grouped = events.groupBy(f.window("_time", settings.size), *settings.by)
    measures = [f.count(f.lit(1)).alias("events")]
    if settings.latency:
        latency = f.expr(settings.latency).cast("double")
        measures += [f.percentile_approx(latency, p, ACCURACY).alias(name) for name, p in PERCENTILES.items()]
    summed = grouped.agg(*measures)
    return summed.select(
        f.col("window.start").alias("window_start"),
        f.col("window.end").alias("window_end"),
        *settings.by,
        *[name for name in summed.columns if name not in ("window", *settings.by)],
    )


def windows_to_topic(summed: DataFrame, settings: Windows) -> DataFrame:
    """Use one record key per window and group: a reader that keeps the last record of each key gets the table."""
    key = [f.date_format("window_start", "yyyy-MM-dd'T'HH:mm:ss.SSSX"), *[_text(f.col(name)) for name in settings.by]]
    row = f.struct(*[f.col(name) for name in summed.columns])
    return summed.select(f.concat_ws("/", *key).cast("binary").alias("key"), records.as_json(row).alias("value"))


def _text(column: Column) -> Column:
    return f.coalesce(column.cast("string"), f.lit(""))


def last_of_each(silver: DataFrame, settings: State, name: str) -> DataFrame:
    """Return a row per key, as JSON, for the key-value sink. For batches, not for streams."""
    prefix = settings.prefix or f"{name}:"
    row = f.struct(*[f.col(column) for column in silver.columns])
    keyed = silver.select(
        f.expr(settings.key).cast("string").alias("key"),
        f.expr(settings.order).alias("order"),
        f.col("_offset"),
        records.as_json(row).alias("value"),
    )
    later = f.struct("order", "_offset")
    last = keyed.where(f.col("key").isNotNull()).groupBy("key").agg(f.max_by("value", later).alias("value"))
    return last.select(f.concat(f.lit(prefix), f.col("key")).cast("binary").alias("key"), "value")
