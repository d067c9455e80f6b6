"""`format("braidlog-lake")`: rows of a query, batch or stream, into a table.

Knows: Spark's writers, which run on executors (`write`) and on the driver (`commit`, `abort`), and share nothing but messages.
Refuses to know: table formats, bytes.
Invariants: the table changes on the driver only, once for each (sink, batch); whatever Spark repeats (a task, a batch, a commit)
or calls late (an abort after the commit) changes nothing more.

The sink's name in the table is the query's id, which lives in the checkpoint: a query that goes on from its checkpoint goes on
here, one with a new checkpoint is a new sink. `sinkId` gives another name; the table then keeps the query's id beside it, and
refuses a new checkpoint under an old name: it counts from 0 again, and all it brings would be taken for replays.
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
"""Types of Spark's in its own short words; a name of a field has a colon after it."""


class LakeOptions(Options, format=FORMAT, direction="write"):
    """Beside these, `catalog.*`: properties of an Iceberg catalog, as pyiceberg has them, and catalog.name; `store.*`: those of
    the object store that the table is in, also as pyiceberg has them."""

    path: str | None = o.option(o.text, None, PATH)
    table: str = o.option(o.one_of(*KINDS, gone={"parquet": NO_PARQUET}), o.REQUIRED, "What kind of table it is.")
    name: str | None = o.option(
        o.text,
        None,
        "Iceberg: namespace.table in the catalog; without it, `default.` and the last folder of the path. The catalog is "
        "told by options `catalog.*`, as pyiceberg has them (and catalog.name); without any, it is a file in the path.",
    )
    partition_by: tuple[str, ...] | None = o.option(
        o.names, None, "Columns whose values become folders; fixed when the table is made."
    )
    target_file_bytes: int = o.option(
        o.size, "128m", "A file that has reached this size is closed, and the next one begun."
    )
    compression: str = o.option(o.one_of(*COMPRESSIONS), "zstd", "Of the Parquet files.")
    merge_schema: bool = o.option(
        o.flag, "false", "Add columns that the table does not have; without it they are refused."
    )
    sink_id: str | None = o.option(
        o.text,
        None,
        "The sink's name in the table; without it, the streaming query's id. It belongs to one checkpoint: a new one needs "
        "a new name.",
    )
    batch_id: int | None = o.option(
        o.whole(0), None, "Batch writes only, with sinkId: the write is done once for each number."
    )

    edition: str | None = o.option(
        o.text,
        None,
        "OWNER:NUMBER: a table of an earlier number is made anew, in one commit; one of another owner, of a later number or of "
        "none is refused. Pipelines say it of their tables in a store.",
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
    """What one task wrote, on its way to the driver."""

    files: tuple[DataFile, ...]
    query: str | None


@dataclass(frozen=True)
class Target:
    """A table and how to write to it; it travels to the executors."""

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
            return  # a batch without rows changes nothing, however often it comes
        query = None if batch is None else _query_of(messages)
        sink = self.options.sink_id or query
        if batch is not None and sink is None and files:
            raise LakeError("Spark did not tell the tasks which query they serve: give the sink a name with sinkId")
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
            raise OptionError("versionAsOf", None, "a stream begins with the table as it is, and goes on")
        return LakeStreamReader(chosen, schema)

    @short_errors
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        chosen = LakeOptions(self.options)
        if (chosen.sink_id is None) != (chosen.batch_id is None):
            raise OptionError("batchId", None, "a batch write that is done once has both sinkId and batchId")
        return BatchWriter(_target(chosen, schema, overwrite=overwrite))

    @short_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802, FBT001 - Spark's signature
        chosen = LakeOptions(self.options)
        if chosen.batch_id is not None:
            raise OptionError("batchId", None, "a stream's batches have numbers of their own")
        return StreamWriter(_target(chosen, schema, overwrite=overwrite))


def _files(messages: Messages) -> tuple[DataFile, ...]:
    """What all tasks wrote; a task that failed has no message."""
    return tuple(file for message in messages if isinstance(message, Parcel) for file in message.files)


def _query_of(messages: Messages) -> str | None:
    return next((message.query for message in messages if isinstance(message, Parcel) and message.query), None)


def _target(chosen: LakeOptions, schema: StructType, *, overwrite: bool) -> Target:
    """Look at the table before anything is written: what does not fit it, is refused here."""
    _check_types(schema)
    found = table_schema(to_arrow_schema(schema, timezone="UTC"))
    _check_parquet_has(found)
    table, partition_by = chosen.open(), chosen.partition_by or ()
    found = table.prepare(found, partition_by, merge_schema=chosen.merge_schema)
    keeps = table.keeps_partition_columns
    form = Form(
        table.location, found, partition_by, keeps, chosen.target_file_bytes, chosen.compression, table.properties
    )
    return Target(chosen, form, overwrite)


def _check_types(schema: StructType) -> None:
    """Refuse what a table would hold as something else, or not at all; Spark's own word for the type says where it is inside."""
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if found := _UNHELD.search(kind):
            raise SchemaError(
                f"column `{field.name}` is {kind}: tables written here do not hold {found[0]}; "
                f"cast it, as in to_json({field.name}) or cast({field.name} AS string)"
            )


def _check_parquet_has(schema: pa.Schema) -> None:
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except pa.ArrowException as error:
        raise SchemaError(f"Parquet cannot hold these columns: {error}") from error
