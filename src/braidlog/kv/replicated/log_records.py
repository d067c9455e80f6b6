"""Encodes and decodes the records of a key log: one mutation each.

Does not handle: the effect of mutations, the log. The record's key is the mutation's key; its value:

     0  version    u8   1
     1  operation  u8   as in kv/wal/wal_entries.py
     2  level      u8   1 ONE, 2 QUORUM, 3 ALL: the client's level
     3  salvaged   u8   1: an origin follows the time to live
     4  stamp      28   kv/engine/hybrid_clock.py
    32  ttl        u32  seconds from the stamp's wall time, 0 is never; not 0 only where the operation sets an expiry
   [36  epoch      u32  the origin: where this mutation was before it was truncated ...
    40  offset     u64  ... and no log has it there any more]
        argument        as the operation defines, but for LPOP and RPOP: the popped element's digest (`element_digest`)

A record never contains a whole collection.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from braidlog.codec.batch.kernel import encode_records
from braidlog.codec.batch.records import Sealed, sealed_section
from braidlog.codec.errors import ProtocolError
from braidlog.kv.engine.hybrid_clock import Stamp, unpack_stamp
from braidlog.kv.engine.operations import LEVELS, Level
from braidlog.kv.replicated.log_kernel import append_record
from braidlog.kv.wal.wal_entries import OPS, Op

STAMP_BYTES: Final = 28
NEVER: Final = bytes(STAMP_BYTES)


def changed_at(stamps: bytes) -> bytes:
    return stamps[:STAMP_BYTES]


def replaced_at(stamps: bytes) -> bytes:
    """Return the stamp of the last SET or DEL, or `NEVER`, which is less than every stamp."""
    return stamps[-STAMP_BYTES:]


def packed(changed: bytes, replaced: bytes) -> bytes:
    return changed if changed == replaced else changed + replaced


def with_change(stamps: bytes | None, stamp: Stamp, *, replaces: bool) -> bytes:
    """Return the stamps of a key after one more change."""
    new = stamp.pack()
    if replaces:
        return new
    return new + NEVER if stamps is None else packed(max(changed_at(stamps), new), replaced_at(stamps))


def last_change(stamps: bytes) -> Stamp:
    return unpack_stamp(changed_at(stamps))


VERSION = 1
_HEAD = struct.Struct(">BBBBQI16sI")
_ORIGIN = struct.Struct(">IQ")
DIGEST_BYTES = 8


class Origin(NamedTuple):
    """Where a mutation was first written: epoch and offset identify it permanently."""

    epoch: int
    offset: int


class SlotRecord(NamedTuple):
    op: Op
    key: bytes
    argument: bytes
    ttl_seconds: int
    level: Level
    stamp: Stamp
    origin: Origin | None = None
    """Set on a salvaged record; for every other record, its own place is the origin."""

    def pack(self) -> bytes:
        head = _HEAD.pack(
            VERSION, self.op, self.level, self.origin is not None, *self.stamp[:2], self.stamp.node, self.ttl_seconds
        )
        return head + (b"" if self.origin is None else _ORIGIN.pack(*self.origin)) + self.argument


class RecordBatch:
    """Records gathered to be written to a log as one batch. All have the timestamp of the first."""

    def __init__(self, wall_ms: int) -> None:
        self.section = bytearray()
        self.count = 0
        self.wall_ms = wall_ms

    @classmethod
    def of(cls, parts: Sequence[tuple[bytes | None, bytes]], wall_ms: int) -> "RecordBatch":
        """Return a batch of records, each a key and a value."""
        batch, (keys, values) = cls(wall_ms), zip(*parts, strict=True)
        batch.section += encode_records(values, keys, None, None, wall_ms)
        batch.count = len(parts)
        return batch

    def append(self, key: bytes | None, value: bytes) -> None:
        append_record(self.section, self.count, key, value)
        self.count += 1

    def seal(self) -> Sealed:
        return sealed_section(self.section, self.count, self.wall_ms)


def unpack_record(key: bytes | None, value: bytes | None) -> SlotRecord:
    if not key or value is None or len(value) < _HEAD.size:
        raise ProtocolError("a record of a log of keys has a key and a head")
    version, op, level, is_salvaged, wall_ms, counter, node, ttl_seconds = _HEAD.unpack_from(value)
    if version != VERSION or op not in OPS or level not in LEVELS or is_salvaged > 1:
        raise ProtocolError(f"a record of a log of keys with version {version}, operation {op:#04x}, level {level}")
    at, origin = _HEAD.size, None
    if is_salvaged:
        if len(value) < at + _ORIGIN.size:
            raise ProtocolError("a salvaged record ends inside of its origin")
        origin, at = Origin(*_ORIGIN.unpack_from(value, at)), at + _ORIGIN.size
    stamp = Stamp(wall_ms, counter, node)
    return SlotRecord(OPS[op], bytes(key), bytes(value[at:]), ttl_seconds, LEVELS[level], stamp, origin)


def element_digest(element: bytes) -> bytes:
    """Return the digest by which a pop identifies the removed element."""
    return blake2b(element, digest_size=DIGEST_BYTES).digest()
