"""The replication batch: records in bulk, inside ReplicateResponse.RawChunk.

Only a leader's encoding is implemented. Epochs are checked elsewhere.

    0              8             12             16          20           21                   25
    +--------------+--------------+--------------+-----------+------------+--------------------+-----------
    | i64          | i32          | i32          | u32       | u8         | i32                | records
    | base offset  | batch length | leader epoch | CRC-32    | attributes | last offset delta  |
    +--------------+--------------+--------------+-----------+------------+--------------------+-----------
    a record:  | i64 offset | i32 size | value, `size` bytes |          batch length and CRC: of the records only

The CRC does not cover the header: a replica compares base offset and last offset delta with the records. Attributes
are 0 (no compression is defined). Only the epoch cannot be verified.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

_HEADER: Final = struct.Struct(">qiiIBi")
_RECORD: Final = struct.Struct(">qi")

HEADER_BYTES: Final = _HEADER.size
RECORD_HEADER_BYTES: Final = _RECORD.size
_INT32_MAX: Final = 2**31 - 1


class ReplicationRecord(msgspec.Struct, frozen=True, gc=False):
    offset: int
    value: bytes


def batch_bytes(value_bytes: int, records: int) -> int:
    """Return the size of a batch of that many records with that many bytes of values in total."""
    return HEADER_BYTES + RECORD_HEADER_BYTES * records + value_bytes


def encode_batch(records: Sequence[ReplicationRecord], leader_epoch: int) -> bytes:
    """Return the batch; empty bytes for no records, as in the protocol document."""
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
