"""A node's wire log as tables: each request with its answer, and statistics per protocol and command.

Reads the log's JSON (docs/schemas/wire-log.json). Does not handle: decoding bytes, pages.
Every request of the log is one row, answered or not; an answer belongs to at most one request.
"""

from datetime import datetime
from typing import Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from braidlog.spark.pipeline.config import refusal
from braidlog.wire.dialect import dialects

SCHEMA: Final = """time timestamp, dialect string, connection string, peer string, event string, side string, name string,
    position long, bytes long, head string, fields string, fault struct<message:string,position:long>"""


def read(spark: SparkSession, path: str) -> DataFrame:
    """Read the messages of one or several logs: a connection number is unique only within its file."""
    try:
        lines = spark.read.schema(SCHEMA).option("mode", "DROPMALFORMED").json(path)
    except AnalysisException as error:
        raise refusal(f"{path}: no such log") from error
    return lines.withColumn("file", f.col("_metadata.file_path")).where("event = 'message'")


def exchanges(messages: DataFrame) -> DataFrame:
    """Return a row per request."""
    key = f.coalesce(_by_dialect({name: each.request_id for name, each in dialects().items()}), f.lit(""))
    place = ["dialect", "file", "connection"]
    turn = Window.partitionBy(*place, "side", "pair").orderBy("position")
    numbered = messages.withColumn("pair", key).withColumn("turn", f.row_number().over(turn))
    requests = numbered.where("side = 'client'").select(
        *place, "pair", "turn", "time", "peer",
        f.col("name").alias("command"),
        f.col("bytes").alias("request_bytes"),
        f.col("fault.message").alias("fault"),
    )  # fmt: skip
    answers = numbered.where("side = 'server'").select(
        *place, "pair", "turn",
        f.col("time").alias("answered"),
        f.col("bytes").alias("answer_bytes"),
        _error().alias("refusal"),
    )  # fmt: skip
    paired = requests.join(answers, [*place, "pair", "turn"], "left")
    return paired.select(
        "time", "dialect", "connection", "peer", "command", "request_bytes", "answer_bytes",
        ((f.unix_micros("answered") - f.unix_micros("time")) / 1000.0).alias("latency_ms"),
        f.coalesce("refusal", "fault").alias("error"),
    )  # fmt: skip


def _by_dialect(names: dict[str, str | None]) -> Column:
    column = f.lit(None).cast("string")
    for dialect, name in names.items():
        if name is not None:
            column = f.when(f.col("dialect") == dialect, f.get_json_object("head", f"$.{name}")).otherwise(column)
    return column


def _error() -> Column:
    column = f.lit(None).cast("string")
    for name, dialect in dialects().items():
        column = f.when(f.col("dialect") == name, f.expr(dialect.error_sql)).otherwise(column)
    return column


_MEASURES: Final = (
    "count(*) AS requests",
    "sum(request_bytes) AS bytes_in",
    "sum(coalesce(answer_bytes, 0)) AS bytes_out",
    "percentile(latency_ms, 0.5) AS p50_ms",
    "percentile(latency_ms, 0.99) AS p99_ms",
    "max(latency_ms) AS max_ms",
    "count(error) AS errors",
    "count_if(latency_ms IS NULL) AS unanswered",
)


def commands(rows: DataFrame, seconds: float) -> DataFrame:
    """Return statistics per protocol and command, over the time of the whole log."""
    summed = rows.groupBy("dialect", "command").agg(*[f.expr(each) for each in _MEASURES])
    return summed.withColumn("per_second", f.col("requests") / f.lit(seconds)).orderBy("dialect", f.desc("requests"))


class Span(NamedTuple):
    """The time that a log covers."""

    first: datetime
    last: datetime

    @property
    def seconds(self) -> float:
        return max((self.last - self.first).total_seconds(), 0.001)


def span(rows: DataFrame) -> Span | None:
    """Return the log's time span; None if there was no request."""
    bounds = rows.agg(
        f.min("time"), f.max(f.expr("time + make_dt_interval(0, 0, 0, coalesce(latency_ms, 0) / 1000)"))
    ).first()
    return None if bounds is None or bounds[0] is None else Span(bounds[0], bounds[1])


def bins(rows: DataFrame, covered: Span, count: int) -> DataFrame:
    """Return statistics per protocol for each of `count` equal parts of the time."""
    width = covered.seconds * 1e6 / count
    start = f.unix_micros(f.lit(covered.first))
    number = f.least(f.floor((f.unix_micros("time") - start) / f.lit(width)), f.lit(count - 1)).cast("int")
    summed = rows.withColumn("bin", number).groupBy("dialect", "bin").agg(*[f.expr(each) for each in _MEASURES])
    begin = f.timestamp_micros((start + f.col("bin") * f.lit(width)).cast("long")).alias("start")
    rate = (f.col("requests") / f.lit(width / 1e6)).alias("per_second")
    return summed.select("dialect", "bin", begin, rate, "requests", "errors", "p50_ms", "p99_ms").orderBy(
        "dialect", "bin"
    )
