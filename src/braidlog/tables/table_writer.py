"""Exports closed segments to their topic's table.

Each record becomes one row. Only the offsets in the table decide what is exported. Files are complete and durable
before the commit that names them. A process that loses a race removes its files and accepts the winner's commit. It
may be killed at any point, and another node may export concurrently. Does not handle: scheduling.
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
"""Bytes per row group before compression: the amount buffered in memory."""
DICTIONARY_BYTES_MAX = 64 * 1024
"""Dictionary size per column of a row group: it suffices for repeated values; for others the column becomes plain
after a few thousand rows. A dictionary with nearly every value once makes files larger, and slower to write and
read."""
ATTEMPTS_MAX = 10
_OURS = (BrokerError, ProtocolError, StorageFault, AssertionError, MemoryError)
"""Errors that the worker answers with a meaning; any other error comes from a catalog, a store or their libraries."""
_swept: set[str] = set()
"""Tables whose files this process has checked for remains of a crash."""


class _ColumnsTakenError(Exception):
    """Another node has added a column with our field's name and another type, or with a name that differs only in
    case."""


class Written(NamedTuple):
    """A partition's files, not committed yet."""

    begin: int
    end: int
    paths: list[str]
    undecoded: int


def turn(plan: Plan, disk: Disk) -> Turned:
    """Execute the plan. `BrokerError` with UNAVAILABLE if the catalog or the warehouse cannot be used now."""
    pa.set_cpu_count(1)
    pa.set_memory_pool(
        pa.system_memory_pool()
    )  # other pools reserve address space, which counts towards the worker's limit
    try:
        return _turn(plan, disk)
    except _OURS:
        raise
    except Exception as error:
        # Translate foreign errors here. A catalog may raise any exception of pyiceberg, pydantic, SQLAlchemy,
        # requests or Arrow; a failure of one topic must not end the process, and its error names the topic.
        _swept.clear()  # files may remain that could not be removed
        said = f"cannot write the table of topic {plan.topic!r}: {type(error).__name__}: {error}"
        raise BrokerError(Reason.UNAVAILABLE, said[:2000]) from error


def _turn(plan: Plan, disk: Disk) -> Turned:
    for _ in range(ATTEMPTS_MAX):
        with contextlib.suppress(_ColumnsTakenError):  # retry with its columns; written files are swept later
            return _turn_once(plan, disk)
    raise CommitFailedException(f"columns changed {ATTEMPTS_MAX} times during the export; it will be retried")


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
    """Commit the files, unless another node has exported the same records. If the outcome of a commit is unknown,
    check for it before committing again."""
    identity = table.metadata.table_uuid.hex
    was_swept = identity in _swept
    _swept.discard(identity)  # until success: a failure may leave files behind
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
            # The last attempt: another node has exported the same records, and swept files that can never become rows.
            table = catalog.again(table)
            continue
        if was_swept:
            _swept.add(identity)
        return catalog.again(table)
    raise CommitFailedException(f"{ATTEMPTS_MAX} commits lost conflicts with other writers; it will be retried")


def _tidy(table: Table, plan: Plan) -> Table:
    """Remove old rows, expire old snapshots, remove unused files."""
    identity = table.metadata.table_uuid.hex
    try:
        if plan.retention_ms >= 0 and catalog.expire_rows(table, plan.now_ms - plan.retention_ms):
            table = catalog.again(table)
        if catalog.forget_snapshots(table, plan.now_ms):
            table = catalog.again(table)
            _swept.discard(identity)
    except CommitFailedException:
        return catalog.again(table)  # the next export tries again
    if identity not in _swept and catalog.sweep(table, plan.now_ms):
        _swept.add(identity)
    return table


class _Writer:
    """Writes the files of one partition: one, and a new one whenever columns are added."""

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
        """Remove the written files. Files that cannot be removed now are swept once their records are rows."""
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
        # Keys and values rarely repeat: a dictionary would be useless.
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
