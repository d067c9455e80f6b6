"""`format("braidlog-lake")` for writing: rows of a batch or streaming query, into a table.

Spark's writers run on executors (`write`) and on the driver (`commit`, `abort`), and share only messages. Does not
handle: table formats, encoding. The table changes only on the driver, once for each (sink, batch). Repeated tasks,
batches and commits, and an abort after the commit, change nothing more.

The sink's name in the table is the query's id, which is stored in the checkpoint. A query that resumes from its
checkpoint is the same sink; a new checkpoint is a new sink. `sinkId` sets another name; the table then also stores
the query's id, and refuses a new checkpoint under an old name: its batches count from 0 again and would be dropped as
replays.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from braidlog.spark import options as o
from braidlog.spark.lake import KINDS, NO_PARQUET
from braidlog.spark.lake.contract import Table
from braidlog.spark.lake.errors import LakeError
from braidlog.spark.lake.reading import FORMAT, PATH, LakeQuery, LakeReader, LakeStreamReader, places_of
from braidlog.spark.lake.schemas import SchemaError, table_schema
from braidlog.spark.lake.tables import open_table
from braidlog.spark.lake.writing import Form, write_files
from braidlog.spark.lake.written import Change, DataFile
from braidlog.spark.options import OptionError, Options
from braidlog.spark.short_errors import short_errors
from braidlog.spark.writers import BatchWriter, Messages, StreamWriter

COMPRESSIONS = ("zstd", "snappy", "gzip", "none")
_QUERY_ID = "sql.streaming.queryId"
_UNHELD = re.compile(r"\b(variant|interval|void|time|geometry|geography)\b(?!:)")
"""Matches unsupported Spark types in Spark's short notation; a field name is followed by a colon."""


class LakeOptions(Options, format=FORMAT, direction="write"):
    """In addition, `catalog.*`: properties of an Iceberg catalog, in pyiceberg's names, and catalog.name; `store.*`:
    properties of the table's object store, also in pyiceberg's names."""

    path: str | None = o.option(o.text, None, PATH)
    table: str = o.option(o.one_of(*KINDS, gone={"parquet": NO_PARQUET}), o.REQUIRED, "The kind of table.")
    name: str | None = o.option(
        o.text,
        None,
        "Iceberg: namespace.table in the catalog; default: `default.` and the last folder of the path. The catalog is "
        "configured by options `catalog.*`, in pyiceberg's names (and catalog.name); without any, it is a file in the path.",
    )
    partition_by: tuple[str, ...] | None = o.option(
        o.names, None, "Columns whose values become folders; fixed when the table is created."
    )
    target_file_bytes: int = o.option(
        o.size, "128m", "A file that reaches this size is closed, and a new one is begun."
    )
    compression: str = o.option(o.one_of(*COMPRESSIONS), "zstd", "The codec of the Parquet files.")
    merge_schema: bool = o.option(o.flag, "false", "Add columns that the table lacks; otherwise they are refused.")
    sink_id: str | None = o.option(
        o.text,
        None,
        "The sink's name in the table; default: the streaming query's id. "
        "A name belongs to one checkpoint: a new checkpoint needs a new name.",
    )
    batch_id: int | None = o.option(
        o.whole(0), None, "Batch writes with sinkId only: the write takes effect once for each number."
    )

    edition: str | None = o.option(
        o.text,
        None,
        "OWNER:NUMBER: a table with a lower number is recreated, in one commit; a table of another owner, "
        "with a higher number or without an edition is refused. Set by pipelines for their tables in an object store.",
    )

    def __init__(self, options: Mapping[str, str]) -> None:
        self.catalog, self.store, others = places_of(options)
        super().__init__(others)

    def open(self) -> Table:
        return open_table(
            self.table, self.path, name=self.name, catalog=self.catalog, store=self.store, edition=self.edition
        )


@dataclass(frozen=True)
class Parcel(WriterCommitMessage):
    """What one task wrote, sent to the driver."""

    files: tuple[DataFile, ...]
    query: str | None


@dataclass(frozen=True)
class Target:
    """A table and how to write to it; sent to the executors."""

    options: LakeOptions
    form: Form
    overwrite: bool

    def write(self, batches: Iterator[pa.RecordBatch]) -> Parcel:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY_ID)
        return Parcel(tuple(write_files(batches, self.form)), query)

    def commit(self, messages: Messages, batch: int | None) -> None:
        files = _files(messages)
        if not files and not self.overwrite:
            return  # a batch without rows never changes the table
        query = None if batch is None else _query_of(messages)
        sink = self.options.sink_id or query
        if batch is not None and sink is None and files:
            raise LakeError("Spark did not pass the query id to the tasks: name the sink with sinkId")
        self.options.open().commit(
            Change(
                files,
                self.form.schema,
                sink,
                self.options.batch_id if batch is None else batch,
                query if sink != query else None,
                overwrite=self.overwrite,
                merge_schema=self.options.merge_schema,
                partition_by=self.form.partition_by,
            )
        )

    def abort(self, messages: Messages, batch: int | None) -> None:  # noqa: ARG002 - a sink's signature
        files = _files(messages)
        if files:
            self.options.open().discard(files)


class LakeSink(DataSource):
    """Delta and Iceberg tables, written and read without a jar."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @short_errors
    def schema(self) -> StructType:
        return LakeQuery(self.options).schema()

    @short_errors
    def reader(self, schema: StructType) -> LakeReader:
        return LakeReader(LakeQuery(self.options), schema)

    @short_errors
    def streamReader(self, schema: StructType) -> LakeStreamReader:  # noqa: N802 - Spark's signature
        chosen = LakeQuery(self.options)
        if chosen.version_as_of is not None:
            raise OptionError("versionAsOf", None, "a stream starts with the current table")
        return LakeStreamReader(chosen, schema)

    @short_errors
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        chosen = LakeOptions(self.options)
        if (chosen.sink_id is None) != (chosen.batch_id is None):
            raise OptionError("batchId", None, "set sinkId and batchId together, for a write that takes effect once")
        return BatchWriter(_target(chosen, schema, overwrite=overwrite))

    @short_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802, FBT001 - Spark's signature
        chosen = LakeOptions(self.options)
        if chosen.batch_id is not None:
            raise OptionError("batchId", None, "a stream numbers its batches itself")
        return StreamWriter(_target(chosen, schema, overwrite=overwrite))


def _files(messages: Messages) -> tuple[DataFile, ...]:
    """Return the files of all tasks; a failed task has no message."""
    return tuple(file for message in messages if isinstance(message, Parcel) for file in message.files)


def _query_of(messages: Messages) -> str | None:
    return next((message.query for message in messages if isinstance(message, Parcel) and message.query), None)


def _target(chosen: LakeOptions, schema: StructType, *, overwrite: bool) -> Target:
    """Check the table before anything is written, and refuse what does not fit it."""
    _check_types(schema)
    table_columns = table_schema(to_arrow_schema(schema, timezone="UTC"))
    _check_parquet_has(table_columns)
    table, partition_by = chosen.open(), chosen.partition_by or ()
    table_columns = table.prepare(table_columns, partition_by, merge_schema=chosen.merge_schema)
    keeps = table.keeps_partition_columns
    form = Form(
        table.location,
        table_columns,
        partition_by,
        keeps,
        chosen.target_file_bytes,
        chosen.compression,
        table.properties,
    )
    return Target(chosen, form, overwrite)


def _check_types(schema: StructType) -> None:
    """Refuse types that a table would change or cannot hold; Spark's type notation shows where in the column they
    are."""
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if unheld := _UNHELD.search(kind):
            raise SchemaError(
                f"column `{field.name}` is {kind}: tables written here do not support {unheld[0]}; "
                f"cast it, as in to_json({field.name}) or cast({field.name} AS string)"
            )


def _check_parquet_has(schema: pa.Schema) -> None:
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except pa.ArrowException as error:
        raise SchemaError(f"Parquet cannot hold these columns: {error}") from error
