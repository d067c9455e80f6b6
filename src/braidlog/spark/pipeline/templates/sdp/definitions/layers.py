"""Bronze, silver and gold. Each function takes rows and returns rows; its decorator says where they go.

Each table and topic is written by its own stream with a checkpoint, every micro-batch once. Views are not stored:
they are computed for each flow that reads them.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from braidlog.spark.pipeline.declarative.definitions import layers

layer = layers()

SCHEMA = "id string, type string, version bigint, at timestamp, amount double"
REQUIRED = ("id", "type")


@layer.table("bronze")
def bronze(records: DataFrame) -> DataFrame:
    """Every record, unchanged."""
    return records


@layer.view("parsed")
def parsed(records: DataFrame) -> DataFrame:
    """Each record with its fields in `row` and, if it is unusable, the `reason`."""
    fields, value = f"{SCHEMA}, _corrupt string", f.col("value").cast("string")
    row = f.from_json(value, fields, {"columnNameOfCorruptRecord": "_corrupt"})
    missing = f.concat_ws(", ", *[f.when(f.col(f"row.{name}").isNull(), f.lit(name)) for name in REQUIRED])
    reason = (
        f.when(f.col("value").isNull(), f.lit("the value is null"))
        # `from_json` replaces invalid bytes with another character: two different values would become equal.
        .when(~f.is_valid_utf8(value), f.lit("the value is not UTF-8"))
        .when(f.col("row._corrupt").isNotNull(), f.lit("the value does not fit the schema"))
        .when(f.try_parse_json(value).isNull(), f.lit("the value is not JSON"))
        .when(missing != "", f.concat(f.lit("required and missing: "), missing))
    )
    return records.withColumn("row", row).withColumn("reason", reason)


@layer.dead_letters(reads="parsed")
def dead_letters(parsed: DataFrame) -> DataFrame:
    """Records with a reason go to a topic unchanged, with headers for the reason and the position."""
    return parsed


@layer.view("events", reads="parsed")
def events(parsed: DataFrame) -> DataFrame:
    """Typed rows with their position."""
    typed = parsed.where(f.col("reason").isNull()).select(
        "row.*",
        f.coalesce("row.at", "timestamp").alias("_time"),
        f.col("topic").alias("_topic"),
        f.col("partition").alias("_partition"),
        f.col("offset").alias("_offset"),
    )
    return typed.drop("_corrupt").withColumn("day", f.to_date("_time"))


@layer.table("silver", reads="events")
def silver(events: DataFrame) -> DataFrame:
    """Each event once, even if a producer sent it several times within an hour."""
    return layer.once(events, "id", "version", within="1 hour")


# For `braid pipeline backfill`: the columns that identify a count, and the time after which it no longer changes.
@layer.table("windows", reads="events", key=["window_start", "type"], until="window_start + INTERVAL 1 MINUTE")
def windows(events: DataFrame) -> DataFrame:
    """Counts per minute of event time, written when no more events are accepted: ten minutes after its end."""
    unique = layer.once(events, "id", "version", within="10 minutes", time="_time")
    summed = unique.groupBy(f.window("_time", "1 minute"), "type").agg(
        f.count(f.lit(1)).alias("events"), f.sum("amount").alias("amount")
    )
    return summed.select(f.col("window.start").alias("window_start"), "type", "events", "amount")
