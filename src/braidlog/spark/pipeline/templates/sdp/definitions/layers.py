"""Bronze, silver and gold. A function gets rows and gives rows; where they go, its decorator says.

Each table and topic is written by a stream of its own with a checkpoint, every micro-batch once. Views are not kept: they are
computed for each flow that reads them.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from braidlog.spark.pipeline.declarative.definitions import layers

layer = layers()

SCHEMA = "id string, type string, version bigint, at timestamp, amount double"
REQUIRED = ("id", "type")


@layer.table("bronze")
def bronze(records: DataFrame) -> DataFrame:
    """Every record as it came."""
    return records


@layer.view("parsed")
def parsed(records: DataFrame) -> DataFrame:
    """Each record with its fields in `row` and, if it cannot be used, the `reason`."""
    fields, value = f"{SCHEMA}, _corrupt string", f.col("value").cast("string")
    row = f.from_json(value, fields, {"columnNameOfCorruptRecord": "_corrupt"})
    missing = f.concat_ws(", ", *[f.when(f.col(f"row.{name}").isNull(), f.lit(name)) for name in REQUIRED])
    reason = (
        f.when(f.col("value").isNull(), f.lit("there is no value"))
        # Where it meets what is not Unicode, `from_json` reads another character: two values would become the same.
        .when(~f.is_valid_utf8(value), f.lit("the value is not UTF-8"))
        .when(f.col("row._corrupt").isNotNull(), f.lit("the value does not fit the schema"))
        .when(f.try_parse_json(value).isNull(), f.lit("the value is no JSON"))
        .when(missing != "", f.concat(f.lit("required and not there: "), missing))
    )
    return records.withColumn("row", row).withColumn("reason", reason)


@layer.dead_letters(reads="parsed")
def dead_letters(parsed: DataFrame) -> DataFrame:
    """What has a reason goes to a topic, as it came, with headers that say why and where it is."""
    return parsed


@layer.view("events", reads="parsed")
def events(parsed: DataFrame) -> DataFrame:
    """Typed rows that know where they came from."""
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
    """Each event once, however often a producer sent it within an hour."""
    return layer.once(events, "id", "version", within="1 hour")


# For `braid pipeline backfill`: which columns tell a count from others, and from when on it does not change any more.
@layer.table("windows", reads="events", key=["window_start", "type"], until="window_start + INTERVAL 1 MINUTE")
def windows(events: DataFrame) -> DataFrame:
    """Counts per minute of event time, written when no event can come any more: ten minutes after its end."""
    unique = layer.once(events, "id", "version", within="10 minutes", time="_time")
    summed = unique.groupBy(f.window("_time", "1 minute"), "type").agg(
        f.count(f.lit(1)).alias("events"), f.sum("amount").alias("amount")
    )
    return summed.select(f.col("window.start").alias("window_start"), "type", "events", "amount")
