"""Checkpoints: the leader writes the whole state of a log into it, so that the records before it can be deleted.

Does not handle: when to write one, commits, deletion (allowed only up to the beginning of a checkpoint whose end
is committed).
Invariant: applying the log from the beginning of a checkpoint gives, from its end on, the same state as applying
all of it. Keys are written while clients change others. A key that is about to change, except by a SET, is
written first; so a key that is written later has had no change that depends on its old value.

The record of a key has that key; all other records have none. Their values:

     0  version   u8   1
     1  what      u8   0x78 begin, 0x79 origins, 0x7a key, 0x7b end: no operation of a mutation has these
  begin    2  latest wall time of the log u64, wall of the clock u64, counter u32; then of each epoch that wrote
              to the log before it: epoch u32, first offset u64
  origins  2  of each: epoch u32, offset u64, wall time of its stamp u64
  key      2  kind u8 (0 deleted, 1 string, 2 counter, 3 list, 4 hash)
           3  replaced u8   1: the stamp of its last SET or DEL follows the other one
           4  deadline u64  ms since 1970, 0 is never; of a deleted key: the wall time of its deletion
          12  stamp 28      of its last change (kv/engine/hybrid_clock.py)
         [40  stamp 28]
              the value as kv/engine/values.py writes it
  end      2  offset u64   of its beginning
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import islice
from typing import Final, NamedTuple

from braidlog.kv.engine.hybrid_clock import Stamp
from braidlog.kv.engine.operations import Columns, Kind
from braidlog.kv.engine.values import HashValue, ListValue, code_of, read_coded, write_value
from braidlog.kv.replicated.log_keyspace import LogKeyspace
from braidlog.kv.replicated.log_records import (
    NEVER,
    STAMP_BYTES,
    Origin,
    SlotRecord,
    changed_at,
    packed,
    replaced_at,
    unpack_record,
)
from braidlog.kv.wal.wal_entries import Op
from braidlog.model.errors import BrokerError, ProtocolError, StorageFault

VERSION: Final = 1
SLICE_BYTES: Final = 128 * 1024
SLICE_KEYS: Final = 256
"""Keys written in one turn of the event loop."""
_HEAD = struct.Struct(">BB")
_BEGIN = struct.Struct(">BBQQI")
_EPOCH = struct.Struct(">IQ")
_ORIGIN = struct.Struct(">IQQ")
_KEY = struct.Struct(">BBBBQ")
_END = struct.Struct(">BBQ")
_ORIGINS_PER_PART = 1_000
_GONE = 0


class What(IntEnum):
    BEGIN = 0x78
    ORIGINS = 0x79
    KEY = 0x7A
    END = 0x7B


_WHATS = frozenset(map(int, What))


class Part(NamedTuple):
    """One record of a checkpoint."""

    key: bytes | None
    value: bytes


def read_record(key: bytes | None, value: bytes | None) -> SlotRecord | Part:
    """Decode any record of a slot's log."""
    if value is not None and len(value) >= _HEAD.size and value[1] in _WHATS:
        if value[0] != VERSION or (key is not None) != (value[1] == What.KEY):
            raise ProtocolError(f"a record of a checkpoint with version {value[0]}, kind {value[1]:#04x}")
        return Part(None if key is None else bytes(key), bytes(value))
    return unpack_record(key, value)


# -- on the leader -----------------------------------------------------------------------------------------------


class Checkpoint:
    """A checkpoint in progress: call `write_some` until nothing is left, then `end`. It is cancelled when its slot
    starts another one or drops it."""

    def __init__(self, slot: LogKeyspace) -> None:
        self._slot = slot
        self._keys = list(slot.stamps)
        self._at = 0
        self._done = set[bytes]()
        """Keys already written."""
        begin = _BEGIN.pack(VERSION, What.BEGIN, slot.latest_ms, slot.clock.wall_ms, slot.clock.counter)
        epochs = b"".join(_EPOCH.pack(*each) for each in slot.epochs_until_now())
        parts = [Part(None, begin + epochs), *_origin_parts(slot.origins)]
        self.begin = slot.append_parts(parts) - len(parts)
        slot.checkpoint = self

    @property
    def is_under_way(self) -> bool:
        return self._slot.checkpoint is self

    def before(self, op: Op, key: bytes) -> None:
        """Write a key that is about to change. A SET does not depend on the old value and may be refused, so its key
        is written later."""
        if op is Op.SET or key in self._done:
            return
        self._done.add(key)
        if key in self._slot.stamps:  # else it was deleted beyond the retention
            try:
                self._slot.append_parts([_key_part(self._slot, key)])
            except (BrokerError, StorageFault):
                self._slot.checkpoint = None  # the checkpoint is useless without it; the change itself continues

    def before_rows(self, columns: Columns, rows: Sequence[int]) -> None:
        """Write the old values of the keys that plain changes in these rows may overwrite.

        Keys with lists or hashes are left out: their changes are not plain.
        """
        slot, parts = self._slot, list[Part]()
        for key in dict.fromkeys([columns.keys[row] for row in rows if columns.kinds[row] != Kind.SET]):
            if key not in self._done and not isinstance(slot.keyspace.data.get(key), ListValue | HashValue):
                self._done.add(key)
                if key in slot.stamps:
                    parts.append(_key_part(slot, key))
        if parts:
            try:
                slot.append_parts(parts)
            except (BrokerError, StorageFault):
                slot.checkpoint = None

    def write_some(self, bytes_max: int = SLICE_BYTES) -> bool:
        """Write some keys; return whether more are left."""
        parts, at, size = list[Part](), self._at, 0
        for at, key in enumerate(self._keys[self._at : self._at + SLICE_KEYS], self._at + 1):  # noqa: B007 - where it ended
            if key not in self._done and key in self._slot.stamps:
                parts.append(_key_part(self._slot, key))
                size += len(parts[-1].value)
            if size >= bytes_max:
                break
        if parts:
            self._slot.append_parts(parts)
        self._done.update(self._keys[self._at : at])
        self._at = at
        return at < len(self._keys)

    def end(self) -> int:
        """Write the end of the checkpoint; return the offset after it."""
        assert self._at == len(self._keys), "a checkpoint ends when all keys are in it"
        end = self._slot.append_parts([Part(None, _END.pack(VERSION, What.END, self.begin))])
        self._slot.checkpoint = None
        return end


def _origin_parts(origins: Mapping[Origin, int]) -> Iterator[Part]:
    left = iter(origins.items())
    while some := list(islice(left, _ORIGINS_PER_PART)):
        packed = b"".join(_ORIGIN.pack(*origin, wall_ms) for origin, wall_ms in some)
        yield Part(None, _HEAD.pack(VERSION, What.ORIGINS) + packed)


def _key_part(slot: LogKeyspace, key: bytes) -> Part:
    value, stamps = slot.keyspace.data.get(key), slot.stamps[key]
    kind, until_ms, written = _GONE, slot.gone.get(key, 0), b""
    if value is not None:
        kind, until_ms = code_of(value), slot.keyspace.deadlines.get(key, 0)
        written = write_value(value)
    replaced = replaced_at(stamps)
    head = _KEY.pack(VERSION, What.KEY, kind, replaced != NEVER, until_ms)
    return Part(key, head + changed_at(stamps) + (b"" if replaced == NEVER else replaced) + written)


# -- on replicas that apply the log ------------------------------------------------------------------------------


def apply(slot: LogKeyspace, offset: int, record: SlotRecord | Part) -> None:
    """Apply the next record of the log. A complete state skips the contents of a checkpoint."""
    if not slot.is_complete and slot.applied == slot.begins_at:
        is_begin = isinstance(record, Part) and record.value[1] == What.BEGIN
        if not is_begin or offset != slot.begins_at:
            raise StorageFault(f"a log of keys begins at {slot.begins_at}, and no checkpoint does: keys are missing")
    if not isinstance(record, Part):
        slot.apply(offset, record)
        return
    if not slot.is_complete or record.value[1] == What.BEGIN:
        try:
            _restore(slot, record)
        except (ProtocolError, struct.error) as error:
            raise StorageFault(f"the record at {offset} of a checkpoint is not one: {error}") from error
    slot.passed(offset)


def _restore(slot: LogKeyspace, part: Part) -> None:
    match part.value[1]:
        case What.BEGIN:
            _, _, latest_ms, wall_ms, counter = _BEGIN.unpack_from(part.value)
            slot.epochs = tuple(_EPOCH.iter_unpack(part.value[_BEGIN.size :]))
            slot.latest_ms = max(slot.latest_ms, latest_ms)
            slot.observe(Stamp(wall_ms, counter, slot.clock.node))
        case What.ORIGINS:
            for epoch, offset, wall_ms in _ORIGIN.iter_unpack(part.value[_HEAD.size :]):
                slot.remember_origin(Origin(epoch, offset), wall_ms)
        case What.KEY:
            assert part.key is not None
            _restore_key(slot, part.key, part.value)
        case What.END:
            slot.is_complete = _END.unpack(part.value)[2] == slot.begins_at


def _restore_key(slot: LogKeyspace, key: bytes, data: bytes) -> None:
    _, _, kind, is_replaced, until_ms = _KEY.unpack_from(data)
    at = _KEY.size + STAMP_BYTES
    changed, replaced = data[_KEY.size : at], NEVER
    if is_replaced:
        replaced, at = data[at : at + STAMP_BYTES], at + STAMP_BYTES
    if len(replaced) != STAMP_BYTES:
        raise ProtocolError("a key of a checkpoint ends inside of its stamps")
    slot.stamps[key] = packed(changed, replaced)
    if kind == _GONE:
        slot.record_deletion(key, until_ms)
    else:
        slot.keyspace.put(key, read_coded(kind, data[at:]), until_ms)
