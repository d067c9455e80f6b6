"""`format("braidlog-lake")` for reading: one commit as a batch, the rows that later commits add as a stream.

Does not handle: table formats. A batch reads one state of the table, even during concurrent commits. A stream returns
the initial state, then the rows that each later commit added, each once. Deleted rows inside a file, and changed
rows, are refused with an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from braidlog.spark import options as o
from braidlog.spark.lake import KINDS
from braidlog.spark.lake.contract import StoredFile, Table
from braidlog.spark.lake.object_files import opened
from braidlog.spark.lake.tables import open_table
from braidlog.spark.options import Options
from braidlog.spark.short_errors import short_errors, short_errors_of_rows

FORMAT = "braidlog-lake"
PATH = "The table's folder; all machines must reach it by this path. Delta: or s3://BUCKET/…, with options `store.*`."
CATALOG = "catalog."
STORE = "store."
ROWS = 64 * 1024
BEFORE_ALL = -1
"""The version before a table's first."""


def places_of(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Split options: catalog and store properties without their prefixes `catalog.` and `store.`, and the others."""
    others, prefixed = dict(options), []
    for prefix in (CATALOG, STORE):
        mine = [name for name in options if name.lower().startswith(prefix)]
        prefixed.append({name[len(prefix) :]: others.pop(name) for name in mine})
    return prefixed[0], prefixed[1], others


class LakeQuery(Options, format=FORMAT, direction="read"):
    """The table and version to read. It is sent to executors."""

    path: str | None = o.option(o.text, None, PATH)
    table: str = o.option(o.one_of(*KINDS), o.REQUIRED, "The kind of table.")
    name: str | None = o.option(o.text, None, "Iceberg: namespace.table in the catalog of the options `catalog.*`.")
    version_as_of: int | None = o.option(
        o.whole(0), None, "Batch queries only: the table as of this version (Delta) or sequence number (Iceberg)."
    )
    files_per_task: int = o.option(o.whole(1), "8", "The maximum number of files per task.")

    def __init__(self, options: Mapping[str, str]) -> None:
        self.catalog, self.store, others = places_of(options)
        super().__init__(others)

    def open(self) -> Table:
        return open_table(self.table, self.path, name=self.name, catalog=self.catalog, store=self.store)

    def schema(self) -> StructType:
        return from_arrow_schema(self.open().state(self.version_as_of).schema)


class LakeRows:
    """What batches and streams do on executors: a task reads a list of files."""

    def __init__(self, query: LakeQuery, schema: StructType) -> None:
        self._query = query
        self._schema = schema

    def tasks(self, files: Sequence[StoredFile]) -> list[InputPartition]:
        most = self._query.files_per_task
        return [InputPartition(list(files[at : at + most])) for at in range(0, len(files), most)]

    @short_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        target = to_arrow_schema(self._schema, timezone="UTC")
        for file in partition.value or ():  # a table without files has one empty task
            with pq.ParquetFile(opened(file.path, {**self._query.catalog, **self._query.store})) as parquet:
                stored = [name for name in target.names if name in parquet.schema_arrow.names]
                for batch in parquet.iter_batches(ROWS, columns=stored):
                    yield _shaped(batch, target, file.partition)


def _shaped(batch: pa.RecordBatch, target: pa.Schema, partition: Mapping[str, Any]) -> pa.RecordBatch:
    """Return the columns in order; a missing column gets its partition value, or null if it was added later."""
    columns = []
    for field in target:
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name).cast(field.type))
        else:
            (value,) = pa.array([partition.get(field.name)]).cast(field.type)
            columns.append(pa.repeat(value, batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=target)


class LakeReader(LakeRows, DataSourceReader):
    """A batch, planned once for each `load()`."""

    @short_errors
    def partitions(self) -> Sequence[InputPartition]:
        return self.tasks(self._query.open().state(self._query.version_as_of).files)


class LakeStreamReader(LakeRows, DataSourceStreamReader):
    """A stream; its offset is the last version read."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"version": BEFORE_ALL}

    @short_errors
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802 - Spark's form
        return {"version": self._query.open().state(None).version}

    @short_errors
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        table, begin, upto = self._query.open(), start["version"], end["version"]
        if begin == BEFORE_ALL:
            return self.tasks(table.state(upto).files)
        return self.tasks(table.added(begin, upto))

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the checkpoint records the progress."""
