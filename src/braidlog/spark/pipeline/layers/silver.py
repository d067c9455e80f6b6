"""Silver: turns records into typed rows without duplicates, and separates unreadable records with a reason.

Does not handle: streams, sinks, servers; its functions work on frames of streams and of batches. A record becomes
either a row or a dead letter. Of duplicate records one becomes a row. A row carries its position (`_topic`,
`_partition`, `_offset`, `_timestamp`), its event time (`_time`) and its identity (`_id`).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

from braidlog.spark.pipeline.config import HEADER, Silver, refusal
from braidlog.spark.pipeline.layers import records
from braidlog.spark.pipeline.layers.transforms import Transform

if TYPE_CHECKING:
    import pyarrow as pa

ORIGIN: Final = ("_topic", "_partition", "_offset", "_timestamp", "_time", "_id", "_key")
"""The columns that silver adds to the declared ones."""

_CORRUPT: Final = "_corrupt"
_PARSED: Final = "_parsed"
_REASON: Final = "_reason"


def declared(spark: SparkSession, silver: Silver) -> StructType:
    """Return the schema in the file; refuse an invalid schema, or one that contradicts other settings."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - beside its only use

    try:
        schema = spark.createDataFrame([], silver.schema).schema
    except PySparkException as error:
        raise refusal(f"[silver] schema is not a list of columns and types: {_first_line(error)}") from error
    names = set(schema.fieldNames())
    if taken := sorted(name for name in names if name.startswith("_")):
        raise refusal(f"[silver] schema: {taken[0]!r}: names with a leading _ are reserved for silver")
    for where, used in _uses(silver):
        if used not in names:
            raise refusal(f"{where}: the schema has no column {used!r}; it has {', '.join(schema.fieldNames())}")
    return schema


def _uses(silver: Silver) -> list[tuple[str, str]]:
    uses = [("[silver] required", name) for name in silver.required]
    uses += [("[silver.dedup] by", name) for name in silver.dedup.by if not name.startswith(HEADER)]
    if silver.event_time:
        uses.append(("[silver] event_time", silver.event_time))
    return uses


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


# -- reading -------------------------------------------------------------------------------------------------------


def judged(raw: DataFrame, silver: Silver) -> DataFrame:
    """Return each record with its parsed fields and, if it is unusable, the reason."""
    schema = declared(raw.sparkSession, silver)
    value = f.col("value").cast("string")
    with_corrupt = StructType(list(schema.fields)).add(_CORRUPT, "string")
    parsed = f.from_json(value, with_corrupt, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    return raw.withColumn(_PARSED, parsed).withColumn(_REASON, _reason(value, schema, silver))


def _reason(value: Column, schema: StructType, silver: Silver) -> Column:
    """Return null for a valid record; else its first defect."""
    parsed = f.col(_PARSED)
    unfit = [
        f.when(
            parsed[field.name].isNull() & _exists(value, field.name),
            f.lit(f"{field.name} is not of type {_word(field)}"),
        )
        for field in schema.fields
    ]
    missing = [f.when(parsed[name].isNull(), f.lit(name)) for name in silver.required]
    is_object = f.expr("schema_of_variant(try_parse_json(cast(value AS string))) LIKE 'OBJECT%'")
    return (
        f.when(f.col("value").isNull(), f.lit("the value is null"))
        # Spark's parser reads invalid bytes as U+FFFD: two different values would become equal.
        .when(~f.is_valid_utf8(value), f.lit("the value is not UTF-8"))
        .when(~f.coalesce(is_object, f.lit(False)), f.lit("the value is not a JSON object"))  # noqa: FBT003 - a literal
        .when(
            parsed[_CORRUPT].isNotNull(),
            f.concat(f.lit("the value does not fit the schema: "), f.concat_ws(", ", *unfit)),
        )
        .when(
            f.size(f.array_compact(f.array(*missing))) > 0 if missing else f.lit(False),  # noqa: FBT003 - a literal
            f.concat(f.lit("required and missing: "), f.concat_ws(", ", *missing)),
        )
    )


def _exists(value: Column, name: str) -> Column:
    return f.get_json_object(value, f"$['{name}']").isNotNull()


def _word(field: StructField) -> str:
    return field.dataType.simpleString()


# -- rows and dead letters -----------------------------------------------------------------------------------------


def rows(raw: DataFrame, silver: Silver, transforms: list[Transform]) -> DataFrame:
    """Return the usable records as typed rows, including duplicates."""
    schema = declared(raw.sparkSession, silver)
    good = judged(raw, silver).where(f.col(_REASON).isNull())
    place = f.concat_ws("/", *records.PLACE)
    typed = good.select(
        *[f.col(_PARSED)[name].alias(name) for name in schema.fieldNames()],
        f.col("topic").alias("_topic"),
        f.col("partition").alias("_partition"),
        f.col("offset").alias("_offset"),
        f.col("timestamp").alias("_timestamp"),
        _time(silver).alias("_time"),
        f.coalesce(_identity(silver), place).alias("_id"),
        f.col("key").cast("string").alias("_key"),
    )
    for transform in transforms:
        typed = transform(typed)
        if lost := [name for name in ORIGIN if name not in typed.columns]:
            raise refusal(f"{transform.path.name} drops {', '.join(lost)}: a row must keep its position")
    return typed


def _time(silver: Silver) -> Column:
    """Return the event time; if the event has none, the log's timestamp."""
    if not silver.event_time:
        return f.col("timestamp")
    return f.coalesce(f.col(_PARSED)[silver.event_time].cast("timestamp"), f.col("timestamp"))


def _identity(silver: Silver) -> Column:
    """Return the identity that producers set for duplicates; null if a part is missing."""
    parts = [
        records.header(name.removeprefix(HEADER)) if name.startswith(HEADER) else f.col(_PARSED)[name].cast("string")
        for name in silver.dedup.by
    ]
    if not parts:
        return f.lit(None).cast("string")
    is_whole = parts[0].isNotNull()
    for part in parts[1:]:
        is_whole = is_whole & part.isNotNull()
    # Each part is preceded by its length: ("a", "bc") and ("ab", "c") are different.
    written = [
        # JSON and tables hold text: invalid bytes of a header would become U+FFFD, and different identities equal.
        f.when(f.is_valid_utf8(part), f.concat(f.length(part).cast("string"), f.lit(":"), part)).otherwise(
            f.concat(f.lit("x:"), f.hex(part.cast("binary")))
        )
        for part in parts
    ]
    return f.when(is_whole, f.concat_ws("/", *written))


def once(typed: DataFrame, silver: Silver) -> DataFrame:
    """Drop duplicate identities. A stream remembers an identity for `within` of processing time, not event time: its
    memory is bounded, and a late event is still a row."""
    if not typed.isStreaming:
        return typed.dropDuplicates(["_id"])
    seen = typed.withColumn("_seen", f.current_timestamp()).withWatermark("_seen", silver.dedup.within)
    return seen.dropDuplicatesWithinWatermark(["_id"]).drop("_seen")


def dead_letters(raw: DataFrame, silver: Silver, pipeline: str, generation: int) -> DataFrame:
    """Return the unusable records unchanged, with headers for the reason and the position."""
    return letters(judged(raw, silver), _REASON, pipeline, generation)


def letters(judged_records: DataFrame, reason: str, pipeline: str, generation: int) -> DataFrame:
    """Return the records whose reason column is not null, as dead letters."""
    bad = judged_records.where(f.col(reason).isNotNull())
    said = {
        "braid.reason": f.col(reason),
        "braid.topic": f.col("topic"),
        "braid.partition": f.col("partition"),
        "braid.offset": f.col("offset"),
        "braid.pipeline": f.lit(pipeline),
        "braid.generation": f.lit(generation),
    }
    added = f.array(*[records.made_header(name, value) for name, value in said.items()])
    own = f.coalesce(f.col("headers"), f.array().cast(records.HEADERS))
    return bad.select("key", "value", f.concat(own, added).cast(records.HEADERS).alias("headers"), "timestamp")


# -- as a topic ----------------------------------------------------------------------------------------------------


def to_topic(typed: DataFrame) -> DataFrame:
    """Encode rows as records: the original key, the row as JSON, the log's timestamp. Records of a key keep the order
    of their partition, on which every reader of silver may rely: deduplication has shuffled them."""
    row = f.struct(*[f.col(name) for name in typed.columns])
    formed = typed.select(
        f.col("_key").cast("binary").alias("key"),
        records.as_json(row).alias("value"),
        f.col("_timestamp").alias("timestamp"),
        "_topic",
        "_partition",
        "_offset",
    )
    spread = formed.repartition(f.coalesce("key", f.concat_ws("/", "_topic", "_partition", "_offset").cast("binary")))
    return spread.mapInArrow(_in_order, "key binary, value binary, timestamp timestamp")


def _in_order(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Sort a task's rows by position; Spark does not sort streams."""
    import pyarrow as pa  # noqa: PLC0415 - on executors

    if batch_list := list(batches):
        ordered = pa.Table.from_batches(batch_list).sort_by(
            [(name, "ascending") for name in ("_topic", "_partition", "_offset")]
        )
        yield from ordered.select(["key", "value", "timestamp"]).to_batches()


def from_topic(raw: DataFrame, schema: StructType) -> DataFrame:
    """Decode rows. A value that silver did not write stops the stage: a layer has no other writers."""
    options = {"timestampFormat": records.TIME_FORMAT, "mode": "FAILFAST"}
    return raw.select(f.from_json(f.col("value").cast("string"), schema, options).alias("row")).select("row.*")


def schema_of(spark: SparkSession, silver: Silver, transforms: list[Transform]) -> StructType:
    """Return the schema of silver rows, without reading any."""
    return rows(spark.createDataFrame([], records.SCHEMA), silver, transforms).schema
