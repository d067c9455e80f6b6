"""The replication batch: records in bulk, inside ReplicateResponse.RawChunk.

Knows: its bytes. Refuses to know: who replicates to whom, and whether an epoch is current.
Invariant: a batch is read whole or not at all.

    0              8             12             16          20           21                   25
    +--------------+--------------+--------------+-----------+------------+--------------------+-----------
    | i64          | i32          | i32          | u32       | u8         | i32                | records
    | base offset  | batch length | leader epoch | CRC-32    | attributes | last offset delta  |
    +--------------+--------------+--------------+-----------+------------+--------------------+-----------
    a record:  | i64 offset | i32 size | value, `size` bytes |          batch length and CRC: of the records only

The CRC leaves the header unprotected, so the header is held against the records it describes: base offset and last
offset delta must be the records' own, attributes 0 (no compression is defined). Only the epoch has no second witness.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from braidlog.codec.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

_HEADER: Final = struct.Struct(">qiiIBi")
_RECORD: Final = struct.Struct(">qi")

HEADER_BYTES: Final = _HEADER.size
RECORD_HEADER_BYTES: Final = _RECORD.size
_INT32_MAX: Final = 2**31 - 1


class ReplicationRecord(msgspec.Struct, frozen=True, gc=False):
    offset: int
    value: bytes


class ReplicationBatch(msgspec.Struct, frozen=True):
    """`leader_epoch` 0 is "not said": the original always writes 0, and epochs begin at 1."""

    leader_epoch: int
    records: tuple[ReplicationRecord, ...]


def batch_bytes(value_bytes: int, records: int) -> int:
    """How large a batch of so many records with so many bytes of values in all becomes."""
    return HEADER_BYTES + RECORD_HEADER_BYTES * records + value_bytes


def encode_batch(records: Sequence[ReplicationRecord], leader_epoch: int) -> bytes:
    """The batch; nothing at all for no records, as the protocol document has it."""
    if not 0 <= leader_epoch <= _INT32_MAX:
        raise ValueError(f"leader epoch {leader_epoch} does not fit a replication batch")
    if not records:
        return b""
    base, last = records[0].offset, records[-1].offset
    pack = _RECORD.pack
    pieces = [piece for record in records for piece in (pack(record.offset, len(record.value)), record.value)]
    section = b"".join(pieces)
    if len(section) > _INT32_MAX or not 0 <= last - base <= _INT32_MAX:
        raise ValueError(f"{len(section)} bytes of records {base} to {last} do not fit a replication batch")
    return _HEADER.pack(base, len(section), leader_epoch, zlib.crc32(section), 0, last - base) + section


def decode_batch(data: Buffer) -> ReplicationBatch:
    """The records and their epoch; `ProtocolError` for anything that is not exactly one sound batch.

    The original stops at a record that is cut off and returns those before it as if they were all. Here it is an
    error: a replica that takes half a batch for a whole one has a hole.
    """
    size = len(data)
    if not size:
        return ReplicationBatch(0, ())
    if size < HEADER_BYTES:
        raise ProtocolError(f"a replication batch has a header of {HEADER_BYTES} bytes, {size} are here", size)
    base, length, epoch, crc, attributes, delta = _HEADER.unpack_from(data)
    if length != size - HEADER_BYTES:
        raise ProtocolError(f"{length} bytes of records are announced, {size - HEADER_BYTES} follow", 8)
    if epoch < 0:
        raise ProtocolError(f"leader epoch {epoch}", 12)
    if attributes:
        raise ProtocolError(f"attributes {attributes:#04x}: no compression is defined", 20)
    if zlib.crc32(memoryview(data)[HEADER_BYTES:]) != crc:
        raise ProtocolError("the records do not have the checksum that the header gives", 16)
    records = _decode_records(bytes(data))  # from a view each value would be made twice: a slice, then its bytes
    if not records:
        raise ProtocolError("a replication batch without records", HEADER_BYTES)
    if base != records[0].offset or delta != records[-1].offset - base:
        raise ProtocolError(
            f"the header says offsets {base} to {base + delta}, the records {records[0].offset} to {records[-1].offset}",
            0,
        )
    return ReplicationBatch(epoch, tuple(records))


def _decode_records(data: bytes) -> list[ReplicationRecord]:
    records: list[ReplicationRecord] = []
    unpack = _RECORD.unpack_from
    position, end, before = HEADER_BYTES, len(data), -1
    while position < end:
        if end - position < RECORD_HEADER_BYTES:
            raise ProtocolError(f"a record header is cut off after {end - position} bytes", position)
        offset, size = unpack(data, position)
        start = position + RECORD_HEADER_BYTES
        if size < 0 or size > end - start:
            raise ProtocolError(f"a record is said to have {size} bytes, {end - start} are left", position + 8)
        if offset <= before:
            raise ProtocolError(f"offset {offset} follows {before}", position)
        before = offset
        position = start + size
        records.append(ReplicationRecord(offset, data[start:position]))
    return records
