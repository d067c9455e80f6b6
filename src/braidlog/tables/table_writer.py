"""Turn closed segments into rows of their topic's table.

Knows: the order in which it is done. Refuses to know: what a node is; it may be killed at any moment, or another may do the same.
Invariant: a record is a row once. What the table says is turned is believed, and nothing else; files are whole and durable before
the commit that names them; who loses a race removes its files and believes the winner.
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
"""Of a row group, before it is compressed: what waits in memory."""
DICTIONARY_BYTES_MAX = 64 * 1024
"""Of a column in a row group: values that repeat fit, and a column that does not is plain after a few thousand rows. A dictionary
that holds nearly every value once makes files larger, and costs whoever writes and reads them."""
ATTEMPTS_MAX = 10
_OURS = (BrokerError, ProtocolError, StorageFault, AssertionError, MemoryError)
"""Each means something where the worker answers; whatever else is raised comes from a catalog, a store or their libraries."""
_swept: set[str] = set()
"""Tables that this process has looked through for files that a crash left."""


class _ColumnsTakenError(Exception):
    """Another node has given a field of ours a column of another type, or of a name that differs in case only."""


class Written(NamedTuple):
    """A partition's files, which are no rows yet."""

    begin: int
    end: int
    paths: list[str]
    undecoded: int


def turn(plan: Plan, disk: Disk) -> Turned:
    """Do it. `BrokerError` with UNAVAILABLE when the catalog or the warehouse cannot be used now."""
    pa.set_cpu_count(1)
    pa.set_memory_pool(pa.system_memory_pool())  # others take address space beforehand, which the worker's limit counts
    try:
        return _turn(plan, disk)
    except _OURS:
        raise
    except Exception as error:
        # The door between their errors and ours. What a catalog answers may end in any exception of pyiceberg, pydantic,
        # SQLAlchemy, requests or Arrow; one topic's must not end the process, and is told with its topic.
        _swept.clear()  # files may be left that could not be removed, either
        said = f"the table of topic {plan.topic!r} is not written: {type(error).__name__}: {error}"
        raise BrokerError(Reason.UNAVAILABLE, said[:2000]) from error


def _turn(plan: Plan, disk: Disk) -> Turned:
    for _ in range(ATTEMPTS_MAX):
        with contextlib.suppress(_ColumnsTakenError):  # with its columns, then: what was written is swept
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
    """Make the files rows, unless somebody else has turned the same records meanwhile. A commit of which nobody knows whether it
    was made is looked for before it is made again."""
    identity = table.metadata.table_uuid.hex
    was_swept = identity in _swept
    _swept.discard(identity)  # until it went well: what is left behind otherwise is looked for
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
            # The last: another has turned the same, and has swept what it knows can never be rows.
            table = catalog.again(table)
            continue
        if was_swept:
            _swept.add(identity)
        return catalog.again(table)
    raise CommitFailedException(f"{ATTEMPTS_MAX} commits lost against others; it is tried again")


def _tidy(table: Table, plan: Plan) -> Table:
    """Let old rows go, forget old snapshots, remove what no snapshot names."""
    identity = table.metadata.table_uuid.hex
    try:
        if plan.retention_ms >= 0 and catalog.expire_rows(table, plan.now_ms - plan.retention_ms):
            table = catalog.again(table)
        if catalog.forget_snapshots(table, plan.now_ms):
            table = catalog.again(table)
            _swept.discard(identity)
    except CommitFailedException:
        return catalog.again(table)  # the next turn looks again
    if identity not in _swept and catalog.sweep(table, plan.now_ms):
        _swept.add(identity)
    return table


class _Writer:
    """The files of one partition: one, and another whenever columns are added."""

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
        """Remove what was written. What cannot be removed now is swept when its records are rows."""
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
        # Keys and values are mostly all different: a dictionary of them is work for nothing.
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
