"""Exports closed segments as rows of their topic's table.

Invariants: a record becomes a row exactly once, even if the process is killed, or another node exports the same
records. Only the offsets in the table count as exported. Files are complete and durable before the commit that names
them. An export that loses a race removes its files and accepts the winner's offsets.
"""

import contextlib
import uuid
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table

from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.model.settings import TableForm
from braidlog.storage.files import Disk
from braidlog.tables import catalog
from braidlog.tables.plan import Part, Plan, Turned
from braidlog.tables.segments import SCHEMA, MissedError, UnreadError, read
from braidlog.tables.typed import FORMATS, TypedColumns
from braidlog.tables.values import Columns, JsonColumns, RawColumns

GROUP_ROWS = 1024 * 1024
GROUP_BYTES = 64 * 1024 * 1024
"""Uncompressed bytes of a row group, which are buffered in memory."""
DICTIONARY_BYTES_MAX = 64 * 1024
"""Maximum dictionary of a column in a row group. Repeated values fit; other columns become plain after a few thousand
rows. A dictionary of mostly unique values makes files larger and slower to write and read."""
ATTEMPTS_MAX = 10
_OURS = (BrokerError, ProtocolError, StorageFault, AssertionError, MemoryError)
"""Errors that the worker reports as they are; all others come from a catalog, a store or their libraries."""
_swept: set[str] = set()
"""Tables that this process has already searched for files that a crash left."""


class _ColumnsTakenError(Exception):
    """Another node created a column for one of our fields with another type, or a name that differs in case only."""


class Written(NamedTuple):
    """A partition's files before their commit."""

    begin: int
    end: int
    paths: list[str]
    undecoded: int


def turn(plan: Plan, disk: Disk) -> Turned:
    """Run an export. Raises `BrokerError` UNAVAILABLE if the catalog or the warehouse cannot be used now."""
    pa.set_cpu_count(1)
    pa.set_memory_pool(pa.system_memory_pool())  # other pools reserve address space, which the worker's limit counts
    try:
        return _turn(plan, disk)
    except _OURS:
        raise
    except Exception as error:
        # Translate foreign errors: a catalog's answer may raise any exception of pyiceberg, pydantic, SQLAlchemy,
        # requests or Arrow. One topic's error must not end the process, and is reported with its topic.
        _swept.clear()  # files may remain that could not be removed
        said = f"the table of topic {plan.topic!r} is not written: {type(error).__name__}: {error}"
        raise BrokerError(Reason.UNAVAILABLE, said[:2000]) from error


def _turn(plan: Plan, disk: Disk) -> Turned:
    for _ in range(ATTEMPTS_MAX):
        with contextlib.suppress(_ColumnsTakenError):  # retry with the new columns; a sweep removes the files
            return _turn_once(plan, disk)
    raise CommitFailedException(f"columns changed {ATTEMPTS_MAX} times meanwhile; it is tried again")


def _turn_once(plan: Plan, disk: Disk) -> Turned:
    table = catalog.open_table(plan, SCHEMA)
    columns = catalog.columns_of(table)
    typed = (
        TypedColumns(plan.form, plan.subject, plan.schemas, columns) if plan.form in FORMATS and plan.parts else None
    )
    done = catalog.offsets_of(table.properties)
    written: dict[int, Written] = {}
    missed: list[int] = []
    unread: list[int] = []
    for part in plan.parts:
        begin = max(done.get(part.partition, 0), part.start)
        if part.end <= begin:
            continue
        writer = _Writer(
            table, part, begin, typed or (JsonColumns if plan.form is TableForm.JSON else RawColumns)(columns)
        )
        try:
            for batch in read(disk, part, begin):
                writer.add(batch)
            written[part.partition] = Written(begin, part.end, writer.finish(), writer.undecoded)
            columns = writer.values.columns
        except (MissedError, UnreadError) as error:
            writer.abandon()
            (missed if isinstance(error, MissedError) else unread).append(part.partition)
        except BaseException:
            writer.abandon()
            raise
    if written:
        table = _commit(table, written, columns)
    table = _tidy(table, plan)
    return _state(table, missed, unread)


def _state(table: Table, missed: list[int], unread: list[int]) -> Turned:
    total = catalog.totals(table)
    return Turned(
        offsets=catalog.offsets_of(table.properties),
        rows=total["total-records"],
        bytes=total["total-files-size"],
        files=total["total-data-files"],
        metadata=table.metadata_location,
        undecoded=catalog.undecoded_of(table.properties),
        committed_ms=0 if (snapshot := table.current_snapshot()) is None else snapshot.timestamp_ms,
        missed=missed,
        unread=unread,
    )


def _commit(table: Table, written: dict[int, Written], columns: pa.Schema) -> Table:
    """Commit the files, unless another process has exported the same records. A commit with an unknown outcome is
    checked before it is repeated."""
    identity = table.metadata.table_uuid.hex
    was_swept = identity in _swept
    _swept.discard(identity)  # until the commit succeeds: a failure may leave files for a sweep
    for _ in range(ATTEMPTS_MAX):
        done = catalog.offsets_of(table.properties)
        for number in [each for each, its in written.items() if done.get(each, 0) > its.begin]:
            del written[number]
            was_swept = False
        if not written:
            return table
        if not catalog.takes(table, columns):
            _swept.discard(identity)
            raise _ColumnsTakenError
        paths = [path for its in written.values() for path in its.paths]
        undecoded = sum(its.undecoded for its in written.values())
        try:
            catalog.commit(table, paths, {number: its.end for number, its in written.items()}, columns, undecoded)
        except (CommitFailedException, CommitStateUnknownException, FileNotFoundError):
            # FileNotFoundError: another process exported the same records, and its sweep removed our files.
            table = catalog.again(table)
            continue
        if was_swept:
            _swept.add(identity)
        return catalog.again(table)
    raise CommitFailedException(f"{ATTEMPTS_MAX} commits lost against others; it is tried again")


def _tidy(table: Table, plan: Plan) -> Table:
    """Delete expired rows and old snapshots, and remove files that no snapshot names."""
    identity = table.metadata.table_uuid.hex
    try:
        if plan.retention_ms >= 0 and catalog.expire_rows(table, plan.now_ms - plan.retention_ms):
            table = catalog.again(table)
        if catalog.forget_snapshots(table, plan.now_ms):
            table = catalog.again(table)
            _swept.discard(identity)
    except CommitFailedException:
        return catalog.again(table)  # the next export retries
    if identity not in _swept and catalog.sweep(table, plan.now_ms):
        _swept.add(identity)
    return table


class _Writer:
    """Writes the files of one partition: a new file whenever columns are added."""

    def __init__(self, table: Table, part: Part, begin: int, values: Columns) -> None:
        self._table = table
        self._part = part
        self._begin = begin
        self.values = values
        self.undecoded = 0
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._open: tuple[pq.ParquetWriter, object, pa.Schema] | None = None
        self._paths: list[str] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def finish(self) -> list[str]:
        self._flush()
        self._close()
        return self._paths

    def abandon(self) -> None:
        """Remove the written files. A sweep removes the rest once their records are exported."""
        self._waiting.clear()
        with contextlib.suppress(OSError, pa.ArrowException):
            self._close()
        for path in self._paths:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._table.io.delete(path)

    def _flush(self) -> None:
        if not self._waiting:
            return
        batches, self._waiting, self._rows, self._bytes = self._waiting, [], 0, 0
        rows, undecoded = self.values.rows(batches)
        self.undecoded += undecoded
        if self._open is not None and self._open[2] != rows.schema:
            self._close()
        if self._open is None:
            self._open = self._begin_file(rows.schema)
        self._open[0].write_table(rows, row_group_size=GROUP_ROWS)

    def _begin_file(self, schema: pa.Schema) -> tuple[pq.ParquetWriter, object, pa.Schema]:
        name = catalog.file_name(self._part.partition, self._begin, self._part.end, uuid.uuid4().hex)
        path = f"{catalog.data_folder(self._table)}/{name}"
        self._paths.append(path)
        stream = self._table.io.new_output(path).create()
        # Keys and values are mostly unique: a dictionary would only cost time.
        repeated = [each for each in schema.names if each not in ("offset", "timestamp", "key", "value")]
        writer = pq.ParquetWriter(
            stream,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=repeated,
            dictionary_pagesize_limit=DICTIONARY_BYTES_MAX,
        )
        return writer, stream, schema

    def _close(self) -> None:
        if self._open is not None:
            (writer, stream, _), self._open = self._open, None
            writer.close()
            stream.close()  # type: ignore[attr-defined] # pyiceberg's stream
