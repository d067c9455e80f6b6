"""Silver: records become typed rows, each once; what cannot be read is told apart, with the reason.

Knows: JSON, a declared schema, what makes two records the same. Refuses to know: streams, sinks, servers: it turns frames into
frames, and does the same to a batch.
Invariants: a record is either a row or a dead letter, never both and never neither; of records that are the same, one becomes a
row; a row knows where it came from (`_topic`, `_partition`, `_offset`, `_timestamp`), when it happened (`_time`) and its
identity (`_id`).
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
"""What silver adds to the declared columns."""

_CORRUPT: Final = "_corrupt"
_PARSED: Final = "_parsed"
_REASON: Final = "_reason"


def declared(spark: SparkSession, silver: Silver) -> StructType:
    """The schema of the file, and a refusal if it is none or its columns are not what other settings say."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - beside its only use

    try:
        schema = spark.createDataFrame([], silver.schema).schema
    except PySparkException as error:
        raise refusal(f"[silver] schema is no list of columns and types: {_first_line(error)}") from error
    names = set(schema.fieldNames())
    if taken := sorted(name for name in names if name.startswith("_")):
        raise refusal(f"[silver] schema: {taken[0]!r}: names with _ in front are silver's own")
    for where, used in _uses(silver):
        if used not in names:
            raise refusal(f"{where}: the schema has no column {used!r}; it has {', '.join(schema.fieldNames())}")
    return schema


def _uses(silver: Silver) -> list[tuple[str, str]]:
    found = [("[silver] required", name) for name in silver.required]
    found += [("[silver.dedup] by", name) for name in silver.dedup.by if not name.startswith(HEADER)]
    if silver.event_time:
        found.append(("[silver] event_time", silver.event_time))
    return found


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


# -- read ----------------------------------------------------------------------------------------------------------


def judged(raw: DataFrame, silver: Silver) -> DataFrame:
    """Each record with what was read of it and, if it cannot be used, why."""
    schema = declared(raw.sparkSession, silver)
    value = f.col("value").cast("string")
    with_corrupt = StructType(list(schema.fields)).add(_CORRUPT, "string")
    parsed = f.from_json(value, with_corrupt, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    return raw.withColumn(_PARSED, parsed).withColumn(_REASON, _reason(value, schema, silver))


def _reason(value: Column, schema: StructType, silver: Silver) -> Column:
    """Null for a good record; else the first thing that is wrong, in words."""
    parsed = f.col(_PARSED)
    unfit = [
        f.when(parsed[field.name].isNull() & _exists(value, field.name), f.lit(f"{field.name} is no {_word(field)}"))
        for field in schema.fields
    ]
    missing = [f.when(parsed[name].isNull(), f.lit(name)) for name in silver.required]
    is_object = f.expr("schema_of_variant(try_parse_json(cast(value AS string))) LIKE 'OBJECT%'")
    return (
        f.when(f.col("value").isNull(), f.lit("there is no value"))
        # Spark's parser reads any other byte as U+FFFD: two values would become the same.
        .when(~f.is_valid_utf8(value), f.lit("the value is not UTF-8"))
        .when(~f.coalesce(is_object, f.lit(False)), f.lit("the value is no JSON object"))  # noqa: FBT003 - a literal
        .when(
            parsed[_CORRUPT].isNotNull(),
            f.concat(f.lit("the value does not fit the schema: "), f.concat_ws(", ", *unfit)),
        )
        .when(
            f.size(f.array_compact(f.array(*missing))) > 0 if missing else f.lit(False),  # noqa: FBT003 - a literal
            f.concat(f.lit("required and not there: "), f.concat_ws(", ", *missing)),
        )
    )


def _exists(value: Column, name: str) -> Column:
    return f.get_json_object(value, f"$['{name}']").isNotNull()


def _word(field: StructField) -> str:
    return field.dataType.simpleString()


# -- good and bad --------------------------------------------------------------------------------------------------


def rows(raw: DataFrame, silver: Silver, transforms: list[Transform]) -> DataFrame:
    """The records that can be used, as typed rows; the same ones still among them."""
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
            raise refusal(f"{transform.path.name} leaves out {', '.join(lost)}: a row must know where it came from")
    return typed


def _time(silver: Silver) -> Column:
    """When it happened: as the event says; if it does not, as the log does."""
    if not silver.event_time:
        return f.col("timestamp")
    return f.coalesce(f.col(_PARSED)[silver.event_time].cast("timestamp"), f.col("timestamp"))


def _identity(silver: Silver) -> Column:
    """What producers say makes a record the same as another; null where they do not say all of it."""
    parts = [
        records.header(name.removeprefix(HEADER)) if name.startswith(HEADER) else f.col(_PARSED)[name].cast("string")
        for name in silver.dedup.by
    ]
    if not parts:
        return f.lit(None).cast("string")
    is_whole = parts[0].isNotNull()
    for part in parts[1:]:
        is_whole = is_whole & part.isNotNull()
    # Lengths before the parts: ("a", "bc") and ("ab", "c") are not the same.
    written = [
        # JSON and tables hold text: the bytes of a binary header would become U+FFFD, and two identities one.
        f.when(f.is_valid_utf8(part), f.concat(f.length(part).cast("string"), f.lit(":"), part)).otherwise(
            f.concat(f.lit("x:"), f.hex(part.cast("binary")))
        )
        for part in parts
    ]
    return f.when(is_whole, f.concat_ws("/", *written))


def once(typed: DataFrame, silver: Silver) -> DataFrame:
    """Each identity once. A stream forgets an identity `within` after it saw it, by its own clock and not by the events':
    so that its memory is bounded and a late event is still a row."""
    if not typed.isStreaming:
        return typed.dropDuplicates(["_id"])
    seen = typed.withColumn("_seen", f.current_timestamp()).withWatermark("_seen", silver.dedup.within)
    return seen.dropDuplicatesWithinWatermark(["_id"]).drop("_seen")


def dead_letters(raw: DataFrame, silver: Silver, pipeline: str, generation: int) -> DataFrame:
    """The records that cannot be used, as they came, with headers that say why and where they are."""
    return letters(judged(raw, silver), _REASON, pipeline, generation)


def letters(judged_records: DataFrame, reason: str, pipeline: str, generation: int) -> DataFrame:
    """Records for which a column says why they cannot be used, as dead letters."""
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
    """Rows as records: the key as it was, the row as JSON, the time that the log gave it. Records of a key are in the order
    they had in their partition: finding repetitions has mixed them, and whoever reads silver, Spark or not, may rely on it."""
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
    """A task's rows by their place; Spark sorts no streams."""
    import pyarrow as pa  # noqa: PLC0415 - on executors

    if found := list(batches):
        ordered = pa.Table.from_batches(found).sort_by(
            [(name, "ascending") for name in ("_topic", "_partition", "_offset")]
        )
        yield from ordered.select(["key", "value", "timestamp"]).to_batches()


def from_topic(raw: DataFrame, schema: StructType) -> DataFrame:
    """The rows again. A value that is none of ours stops the stage: nobody else may write to a layer."""
    options = {"timestampFormat": records.TIME_FORMAT, "mode": "FAILFAST"}
    return raw.select(f.from_json(f.col("value").cast("string"), schema, options).alias("row")).select("row.*")


def schema_of(spark: SparkSession, silver: Silver, transforms: list[Transform]) -> StructType:
    """What silver rows look like, without any."""
    return rows(spark.createDataFrame([], records.SCHEMA), silver, transforms).schema
