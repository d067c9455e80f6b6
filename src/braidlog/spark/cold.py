"""The part of a topic that is rows of its table, as Spark's own Parquet scan.

Knows: which files one state of the table has, and where the log goes on behind them. Refuses to know: how either is read.
Invariant: files and offsets are of one metadata file, which never changes: a record is in the files, or at or above its
partition's offset, never both, whatever is turned, compacted or deleted meanwhile. What the log lets go of before it is read is a
loss like any other, and told.
"""

from typing import TYPE_CHECKING, NamedTuple

from braidlog.client.blocking import connect
from braidlog.spark.options import OptionError
from braidlog.spark.source.positions import identity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METADATA = "braidlog.table.metadata"
COLUMNS = {
    "key": "key",
    "value": "value",
    "topic": "",
    "partition": "partition",
    "offset": "offset",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    "headers": "headers",
}
"""Columns of the source, and those of the table."""
_TYPES = (
    "`offset` BIGINT, `partition` INT, `timestamp` TIMESTAMP, timestamp_type INT, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


class Cold(NamedTuple):
    """One state of a table."""

    files: list[str]
    ends: dict[int, int]
    """Of each partition: the files have all below."""
    topic_id: int | None = None
    """As `positions.identity` has it; None where there is no table yet."""


def cold_part(servers: str, topic: str) -> Cold:
    """What the topic's table has now, as the node at the URL tells."""
    with connect(servers) as client:
        settings = {each.name: each.value for each in client.admin.topic_settings(topic)}
    if settings.get("braidlog.table", "off") == "off":
        raise OptionError("table", topic, "the topic is none; set its braidlog.table")
    metadata = settings.get(METADATA)
    return read_metadata(metadata) if metadata else Cold([], {})


def read_metadata(metadata: str) -> Cold:
    try:
        from pyiceberg.table import StaticTable  # noqa: PLC0415 - an extra, for who reads tables

        from braidlog.tables.catalog import TOPIC_ID, offsets_of  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise OptionError(
            "table", metadata, f"{error.name} is not installed: pip install 'braidlog[tables]'"
        ) from error

    try:
        table = StaticTable.from_metadata(metadata)
        tasks = list(table.scan().plan_files())
    except OSError as error:
        raise OptionError("table", metadata, f"the driver and all executors must reach it: {error}") from error
    if any(task.delete_files for task in tasks):
        raise OptionError("table", metadata, "rows of it were deleted one by one; read it with Iceberg's own runtime")
    topic_id = identity(bytes.fromhex(table.properties[TOPIC_ID]))
    return Cold([str(task.file.file_path) for task in tasks], offsets_of(table.properties), topic_id)


def cold_frame(spark: "SparkSession", cold: Cold, topic: str) -> "DataFrame":
    """The rows of the files, with the columns of the source. What a query does without is not read."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    rows = spark.read.schema(_TYPES).parquet(*cold.files)
    return rows.select(*((f.col(its) if its else f.lit(topic)).alias(name) for name, its in COLUMNS.items()))
