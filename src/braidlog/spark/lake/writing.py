"""Writes a task's rows to Parquet files.

Does not handle: adding files to a table; readers do not see written files. A returned file is closed and durable,
name and bytes. At most `OPEN_FILES_MAX` files are open concurrently, and buffered memory is bounded, regardless of
the number of partitions.
"""

import contextlib
import dataclasses
import io
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from braidlog.model.clock import Clock, SystemClock
from braidlog.model.errors import StorageFault
from braidlog.spark.lake.object_files import ObjectFiles, Upload, is_uri, opened
from braidlog.spark.lake.places import make_folders
from braidlog.spark.lake.schemas import fitted
from braidlog.spark.lake.written import DataFile, new_path, partition_folder
from braidlog.storage.files import Buffer, Disk, File, OsDisk, join, parent

ROW_GROUP_ROWS = 128 * 1024
"""Minimum rows per row group: Spark passes 10,000 rows at a time, and small row groups make a file slow to read."""
WAITING_BYTES_MAX = 256 * 1024 * 1024
OPEN_FILES_MAX = 64
_STATS_TYPES = (pa.types.is_integer, pa.types.is_date, pa.types.is_string)
_STATS_TEXT_MAX = 32


@dataclass(frozen=True)
class Form:
    """How a table wants its files."""

    location: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    keeps_partition_columns: bool = False
    target_file_bytes: int = 128 * 1024 * 1024
    compression: str = "zstd"
    properties: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    """Properties of the location's object store, if it is a URI."""

    @property
    def file_schema(self) -> pa.Schema:
        if self.keeps_partition_columns:
            return self.schema
        return pa.schema([field for field in self.schema if field.name not in self.partition_by])


def write_files(
    batches: Iterable[pa.RecordBatch], form: Form, *, disk: Disk | None = None, clock: Clock | None = None
) -> list[DataFile]:
    """Write all rows to durable files that are not part of a table yet."""
    files = disk or (ObjectFiles(form.location, form.properties) if is_uri(form.location) else OsDisk())
    writing = _Writing(form, files, clock or SystemClock())
    try:
        for batch in batches:
            for values, part in _parts(batch.cast(form.schema), form):
                writing.add(values, part.select(form.file_schema.names))
        return writing.finish()
    except BaseException:
        writing.abandon()
        raise


def rows_of(
    paths: Iterable[str], schema: pa.Schema, properties: Mapping[str, str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of our files, file by file. Columns that were added later are null in older files."""
    for path in paths:
        with pq.ParquetFile(opened(path, properties or {})) as parquet:
            for batch in parquet.iter_batches(ROW_GROUP_ROWS):
                yield fitted(batch, schema)


class _Writing:
    """The files of one task: per partition one open file, and its buffered rows."""

    def __init__(self, form: Form, disk: Disk | ObjectFiles, clock: Clock) -> None:
        self._form = form
        self._disk = disk
        self._clock = clock
        self._waiting: dict[tuple[str | None, ...], list[pa.RecordBatch]] = {}
        self._rows: dict[tuple[str | None, ...], int] = {}
        self._waiting_bytes = 0
        self._open: dict[tuple[str | None, ...], _ParquetFile] = {}
        self._done: list[DataFile] = []

    def add(self, values: tuple[str | None, ...], part: pa.RecordBatch) -> None:
        self._waiting.setdefault(values, []).append(part)
        self._rows[values] = self._rows.get(values, 0) + part.num_rows
        self._waiting_bytes += part.nbytes
        if self._rows[values] >= ROW_GROUP_ROWS:
            self._write(values)
        if self._waiting_bytes > WAITING_BYTES_MAX:
            self._write_all()

    def finish(self) -> list[DataFile]:
        self._write_all()
        for values in list(self._open):
            self._close(values)
        return self._done

    def abandon(self) -> None:
        """Remove the written files: the task has failed, and its retry uses other names."""
        paths = [file.path for file in self._open.values()]
        for open_file in self._open.values():
            with contextlib.suppress(OSError, StorageFault, pa.ArrowException):
                open_file.close()  # unwritten data does not matter: the file is removed next
        paths += [self._real(done.path) for done in self._done]
        self._open.clear()
        for path in paths:
            self._disk.remove(path)

    def _write_all(self) -> None:
        for values in list(self._waiting):
            self._write(values)

    def _write(self, values: tuple[str | None, ...]) -> None:
        batches = self._waiting.pop(values)
        self._rows.pop(values)
        self._waiting_bytes -= sum(batch.nbytes for batch in batches)
        file = self._open.pop(values, None) or self._begin(values)
        self._open[values] = file  # last in order: the first is the least recently written one
        file.write(pa.Table.from_batches(batches, self._form.file_schema))
        if file.size >= self._form.target_file_bytes:
            self._close(values)

    def _begin(self, values: tuple[str | None, ...]) -> "_ParquetFile":
        while len(self._open) >= OPEN_FILES_MAX:
            self._close(next(iter(self._open)))
        partition = dict(zip(self._form.partition_by, values, strict=True))
        folder = partition_folder(partition)
        path = new_path(folder, self._clock.now_ms(), uuid.uuid4().hex)
        if not isinstance(self._disk, ObjectFiles):
            make_folders(self._disk, self._form.location, folder)
        file = self._disk.create(self._real(path))
        return _ParquetFile(file, path, partition, self._form)

    def _close(self, values: tuple[str | None, ...]) -> None:
        file = self._open[values]
        self._done.append(file.finish())
        del self._open[values]
        if not isinstance(self._disk, ObjectFiles):
            self._disk.sync_folder(parent(file.path))

    def _real(self, path: str) -> str:
        return join(self._form.location, path)


class _ParquetFile:
    """One file being written. A large table becomes several row groups."""

    def __init__(self, file: File | Upload, path: str, partition: dict[str, str | None], form: Form) -> None:
        self.path = file.path
        self._file = file
        self._table_path = path
        self._partition = partition
        self._stream = _Stream(file)
        self._metadata: list[Any] = []
        self._writer = pq.ParquetWriter(
            self._stream, form.file_schema, compression=form.compression, metadata_collector=self._metadata
        )

    @property
    def size(self) -> int:
        return self._stream.position

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=8 * ROW_GROUP_ROWS)

    def finish(self) -> DataFile:
        self._writer.close()
        self._file.sync()
        self._file.close()
        (metadata,) = self._metadata
        return DataFile(
            self._table_path, metadata.num_rows, self._stream.position, self._partition, _stats_of(metadata)
        )

    def close(self) -> None:
        self._writer.close()
        self._file.close()


class _Stream(io.RawIOBase):
    """A sequential stream for Arrow over a `File`."""

    def __init__(self, file: File | Upload) -> None:
        super().__init__()
        self._file = file
        self.position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:  # type: ignore[override]
        written = self._file.append([data], self.position)
        self.position += written
        return written

    def tell(self) -> int:
        return self.position


# -- partitions ----------------------------------------------------------------------------------------------------------


def _parts(batch: pa.RecordBatch, form: Form) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Split the batch by the values of its partition columns, each encoded as in folder names."""
    partition_by = form.partition_by
    if not partition_by:
        if batch.num_rows:
            yield (), batch
        return
    texts = [_as_text(batch.column(name), keeps_empty=form.keeps_partition_columns) for name in partition_by]
    keys = pa.table(dict(zip(partition_by, texts, strict=True)))
    numbered = keys.append_column("number", pa.array(range(batch.num_rows), pa.int64()))
    # Spark has often sorted by these columns, but does not guarantee it: group values instead of runs.
    groups = numbered.group_by(list(partition_by), use_threads=False).aggregate([("number", "list")])
    columns = [groups.column(name) for name in (*partition_by, "number_list")]
    for index in range(groups.num_rows):
        *values, numbers = (column[index] for column in columns)
        yield tuple(value.as_py() for value in values), batch.take(numbers.values)


def _as_text(column: pa.Array, *, keeps_empty: bool) -> pa.Array:
    """Encode partition values as Spark does. An empty text has no folder: if only the folder holds the value, it
    becomes null, as with Spark."""
    if pa.types.is_string(column.type):
        if keeps_empty:
            return column
        return pc.if_else(pc.equal(column, ""), None, column)
    return column.cast(pa.string())


# -- statistics ----------------------------------------------------------------------------------------------------------


def _stats_of(metadata: Any) -> dict[str, Any]:  # noqa: ANN401 - pyarrow has no types
    """Return row count, and bounds and null counts of plain columns: Delta readers skip files by them."""
    summary: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    schema = metadata.schema.to_arrow_schema()
    plain = [field for field in schema if any(test(field.type) for test in _STATS_TYPES)]
    at = {metadata.schema.column(index).path: index for index in range(len(metadata.schema))}
    for field in plain:
        groups = [
            metadata.row_group(group).column(at[field.name]).statistics for group in range(metadata.num_row_groups)
        ]
        if all(stats is not None and stats.has_null_count for stats in groups):
            summary["nullCount"][field.name] = sum(stats.null_count for stats in groups)
        known = [stats for stats in groups if stats is not None and stats.has_min_max]
        if known and len(known) == len(groups):
            low, high = min(stats.min for stats in known), max(stats.max for stats in known)
            if _is_short(low) and _is_short(high):
                summary["minValues"][field.name], summary["maxValues"][field.name] = _json(low), _json(high)
    return summary


def _is_short(value: object) -> bool:
    # Parquet may truncate the bound of a long text, and a truncated bound is not a bound.
    return not isinstance(value, str) or len(value) <= _STATS_TEXT_MAX


def _json(value: Any) -> Any:  # noqa: ANN401 - a number, a text or a date
    return value.isoformat() if hasattr(value, "isoformat") else value
