"""Executes columns of operations, and applies batches of records, on the keys of one log: plain ones in the kernel,
others singly.

Does not handle: the distribution of keys among logs, waiting for commits.
Invariant: state, records and results equal those of `LogKeyspace.execute` and `LogKeyspace.apply` for each row or
record, in order.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from braidlog.codec.batch.header import HEADER_BYTES, BatchHeader
from braidlog.codec.batch.records import decode_batch
from braidlog.kv.engine.hybrid_clock import Stamp
from braidlog.kv.engine.operations import Columns, Kind, Level, Operation
from braidlog.kv.engine.store import Store
from braidlog.kv.feed.feed_records import MutationColumns
from braidlog.kv.replicated import checkpoints
from braidlog.kv.replicated.checkpoints import read_record
from braidlog.kv.replicated.log_kernel import apply_records, change_rows, read_rows
from braidlog.kv.replicated.log_keyspace import LogKeyspace
from braidlog.kv.replicated.log_records import VERSION
from braidlog.model.errors import BrokerError, Reason

UNLIMITED: Final = 2**62
BATCH_BYTES_MAX: Final = 256 * 1024
"""Size limit of a batch of gathered records; a larger single record gets its own batch."""
ONE_BY_ONE: Final = 16
"""Records applied singly after one that is not plain; then the kernel is tried again."""
RECORDS_PER_CALL: Final = 10
"""Records that cost the kernel about as much as one record applied singly."""
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
_HEAD: Final = struct.Struct(">BBBBQI16sI")


# -- in order ----------------------------------------------------------------------------------------------------


def in_order(
    columns: Columns,
    rows: Sequence[int],
    results: list[Any],
    execute: Callable[[Operation[Any]], Any],
    take_plain: Callable[[int], int] = lambda at: at,
) -> list[int]:
    """Execute some rows in order, into `results`; return the rows refused with a `BrokerError`.

    `take_plain` executes rows[at:] up to one that is not plain, and returns its position; `execute` executes that
    one.
    """
    refused: list[int] = []
    at = 0
    while (at := take_plain(at)) < len(rows):
        row, at = rows[at], at + 1
        try:
            result = execute(columns.operation(row))
            results[row] = True if columns.kinds[row] == Kind.DELETE else result
        except BrokerError as error:
            is_missing = error.reason is Reason.KEY_NOT_FOUND
            results[row] = None if is_missing else error
            if not is_missing:
                refused.append(row)
    return refused


def look_up(
    store: Store, containers: tuple[Any, ...], columns: Columns, rows: list[int] | None, now_ms: int, results: list[Any]
) -> list[int]:
    """Execute the plain reads of some rows of one log (None: all rows); return the remaining rows."""
    found, hits = read_rows([containers], columns.keys, rows, now_ms, results)
    left = found[0] if found else []
    store.hits += hits
    store.misses += len(columns.keys if rows is None else rows) - len(left) - hits
    return left


def head_of(level: int, wall_ms: int, node: bytes) -> bytes:
    """Return the template from which the kernel makes the heads of records."""
    return _HEAD.pack(VERSION, 0, level, 0, wall_ms, 0, node, 0)


# -- on the leader -----------------------------------------------------------------------------------------------


def execute_rows(
    slot: LogKeyspace, columns: Columns, rows: list[int], level: Level, now_ms: int, results: list[Any]
) -> list[int]:
    """Execute some rows; return those refused. Changes are added to the batch that the log gathers."""

    def take_plain(at: int) -> int:
        return _change_plain(slot, columns, rows, at, level, max(now_ms, slot.clock.wall_ms), results)

    def execute(operation: Operation[Any]) -> Any:  # noqa: ANN401
        return slot.execute(operation, level, max(now_ms, slot.clock.wall_ms))

    if columns.mutates:
        return in_order(columns, rows, results, execute, take_plain)
    left = look_up(slot.store, slot.containers, columns, rows, max(now_ms, slot.clock.wall_ms), results)
    slot.store.operations += len(rows) - len(left)
    return in_order(columns, left, results, execute)


def look_at_rows(slot: LogKeyspace, columns: Columns, rows: list[int], now_ms: int, results: list[Any]) -> list[int]:
    """Execute reads on a follower; return those refused."""
    containers = slot.keyspace.data, None, slot.keyspace.recency
    left = look_up(slot.store, containers, columns, rows, now_ms, results)
    return in_order(columns, left, results, lambda operation: slot.read(operation, now_ms))


def _change_plain(
    slot: LogKeyspace, columns: Columns, rows: list[int], at: int, level: Level, now_ms: int, results: list[Any]
) -> int:
    """Execute plain changes from rows[at] on; return the position of the first that is not plain."""
    store, clock, keyspace = slot.store, slot.clock, slot.keyspace
    if store.fault is not None or not clock.can_tick(now_ms, len(rows) - at):
        return at
    is_noted = slot.checkpoint is None
    while at < len(rows):
        try:
            batch = slot.log.batch(now_ms)
            if not is_noted and slot.checkpoint is not None:
                slot.checkpoint.before_rows(columns, rows[at:])
                is_noted, batch = True, slot.log.batch(now_ms)
        except BrokerError:
            return at  # `execute` refuses each row
        records_max = 1 if slot.forgets_at_ms <= now_ms else slot.until_mark
        first = clock.counter + 1 if now_ms == clock.wall_ms else 0
        head = head_of(level, now_ms, clock.node)
        begin = at
        at, written, keyspace.used_bytes, peak_bytes = change_rows(
            slot.containers,
            columns.kinds,
            columns.keys,
            columns.values,
            columns.ttls,
            rows,
            at,
            records_max,
            keyspace.used_bytes,
            store.limit or UNLIMITED,
            keyspace.key_cost,
            batch.section,
            batch.count,
            BATCH_BYTES_MAX,
            head,
            first,
            results,
        )
        batch.count += written
        store.operations += at - begin
        store.peak_bytes = max(store.peak_bytes, peak_bytes)
        if written:
            store.mutations += written
            clock.tick_many(now_ms, written)
            _changed(slot, columns, rows[begin:at], now_ms, first, written, results)
        if at == len(rows) or (written < records_max and len(batch.section) < BATCH_BYTES_MAX):
            return at
    return at


def _changed(
    slot: LogKeyspace, columns: Columns, rows: list[int], wall_ms: int, counter: int, written: int, results: list[Any]
) -> None:
    sequence = slot.store.sequence
    slot.store.sequence = sequence + written
    slot.after_run(wall_ms)
    if not slot.listeners and slot.watcher is None:
        return
    keys = [columns.keys[row] for row in rows]
    for listener in slot.listeners:
        listener.changed(keys)
    if slot.watcher is not None:
        found = [results[row] for row in rows]
        kinds, values = bytes([columns.kinds[row] for row in rows]), [columns.values[row] for row in rows]
        told = Columns(mutates=True, kinds=kinds, keys=keys, values=values)
        slot.watcher.changed_together(
            MutationColumns(sequence + 1, wall_ms, counter, told, found, 0, len(rows), written), slot.clock.node
        )


# -- on followers ------------------------------------------------------------------------------------------------


def apply_batch(slot: LogKeyspace, data: bytes, position: int, header: BatchHeader, end: int, records_max: int) -> int:
    """Apply the records of a batch from `slot.applied` up to `end`, at a cost of about `records_max`; return the
    cost.

    The batch's checksum was verified. `StorageFault`: the records do not continue this state.
    """
    section = memoryview(data)[position + HEADER_BYTES : position + header.size_bytes]
    last, cost = min(end, header.next_offset), 0
    while slot.applied < last and cost < records_max:
        before, upto = slot.applied, slot.applied + (records_max - cost) * RECORDS_PER_CALL
        if header.compression == 0 and _apply_plain(slot, section, header, min(last, upto)):
            cost += 1 + (slot.applied - before) // RECORDS_PER_CALL
            continue
        cost += _apply_singly(slot, data, position, last, records_max - cost)
    return cost


def _apply_singly(slot: LogKeyspace, data: bytes, position: int, end: int, records_max: int) -> int:
    """Apply records singly until the kernel is worth another try; return their count."""
    count = 0
    for offset, _, key, value, *_ in decode_batch(data, position, decompressed_bytes_max=RECORD_BYTES_MAX):
        if slot.applied <= offset < end:
            checkpoints.apply(slot, offset, read_record(key, value))
            count += 1
            if count in {ONE_BY_ONE, records_max}:
                return count
    slot.passed(end - 1)  # a batch may span offsets without records
    return count


def _apply_plain(slot: LogKeyspace, section: memoryview, header: BatchHeader, end: int) -> bool:
    """Apply plain records up to the first other one; return whether any was applied."""
    if not slot.takes_columns:
        return False
    keyspace, before = slot.keyspace, slot.applied
    changed: list[bytes] = []
    applied, keyspace.used_bytes, wall_ms, counter = apply_records(
        slot.containers,
        section,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        before,
        min(end, before + slot.until_mark),
        keyspace.used_bytes,
        keyspace.key_cost,
        slot.forgets_at_ms,
        slot.delete_retention_ms,
        not slot.is_complete,
        changed,
    )
    if applied == before:
        return False
    slot.passed(applied - 1)
    if wall_ms >= 0:
        slot.observe(Stamp(wall_ms, counter, slot.clock.node))
        slot.after_run(wall_ms)
    for listener in slot.listeners:
        listener.changed(changed)
    return True
