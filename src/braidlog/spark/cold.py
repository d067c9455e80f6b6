"""The part of a topic that its lake table holds, read as Spark's own Parquet scan.

Does not handle: reading the log or the files. Files and offsets come from one metadata file, which never changes. So
a record is in the files, or at or above its partition's offset, never both, even if records are exported, compacted
or deleted during the query. If the log deletes records before they are read, this is a reported loss like any other.
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
"""The source's columns, as the table names them."""
_TYPES = (
    "`offset` BIGINT, `partition` INT, `timestamp` TIMESTAMP, timestamp_type INT, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


class Cold(NamedTuple):
    """One state of a table."""

    files: list[str]
    ends: dict[int, int]
    """By partition: the files hold all records below this offset."""
    topic_id: int | None = None
    """The table's identity in the form of `positions.identity`; None if there is no table yet."""


def cold_part(servers: str, topic: str) -> Cold:
    """Return the state of the topic's table, as the node at the URL reports it."""
    with connect(servers) as client:
        settings = {each.name: each.value for each in client.admin.topic_settings(topic)}
    if settings.get("braidlog.table", "off") == "off":
        raise OptionError("table", topic, "the topic has no table; set its braidlog.table")
    metadata = settings.get(METADATA)
    return read_metadata(metadata) if metadata else Cold([], {})


def read_metadata(metadata: str) -> Cold:
    try:
        from pyiceberg.table import StaticTable  # noqa: PLC0415 - an extra, needed only for tables

        from braidlog.tables.catalog import TOPIC_ID, offsets_of  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise OptionError(
            "table", metadata, f"{error.name} is not installed: pip install 'braidlog[tables]'"
        ) from error

    try:
        table = StaticTable.from_metadata(metadata)
        tasks = list(table.scan().plan_files())
    except OSError as error:
        raise OptionError(
            "table", metadata, f"the driver and all executors must be able to read it: {error}"
        ) from error
    if any(task.delete_files for task in tasks):
        raise OptionError("table", metadata, "it has row-level deletes; read it with Iceberg's own runtime")
    topic_id = identity(bytes.fromhex(table.properties[TOPIC_ID]))
    return Cold([str(task.file.file_path) for task in tasks], offsets_of(table.properties), topic_id)


def cold_frame(spark: "SparkSession", cold: Cold, topic: str) -> "DataFrame":
    """Return the rows of the files, with the source's columns. Columns that a query does not use are not read."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    rows = spark.read.schema(_TYPES).parquet(*cold.files)
    return rows.select(*((f.col(its) if its else f.lit(topic)).alias(name) for name, its in COLUMNS.items()))
