"""The header of a RecordBatch v2: reads, checks and patches it. The records inside are opaque here.

The kernel packs the records; storage decides what a log does with a batch.
Invariant: no length is used before it has been compared with the bytes present.

     0  base offset        i64   the log rewrites it             }
     8  batch length       i32   bytes after this field          } outside the CRC: the log protects them by its own
    12  leader epoch       i32   the log rewrites it             } rules (dense offsets, epoch history)
    16  magic              i8    2                               }
    17  crc                u32   CRC-32C of bytes 21 to the end
    21  attributes         i16   0-2 compression, 3 append time, 4 transactional, 5 control, 6 delete horizon
    23  last offset delta  i32   offsets the batch spans, less one
    27  base timestamp     i64   milliseconds
    35  max timestamp      i64
    43  producer id        i64   -1: none
    51  producer epoch     i16
    53  base sequence      i32
    57  record count       i32
    61  records                  compressed as one block unless compression is 0
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from braidlog.codec.crc import crc32c
from braidlog.codec.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

HEADER_BYTES = 61
LENGTH_PREFIX_BYTES = 12  # base offset and batch length: the bytes that batch length does not count
PLACED_BYTES = 16  # base offset, batch length, leader epoch: what the log rewrites
CRC_COVERS_FROM = 21
MAGIC = 2
BLOCK_MAGIC = 99
"""The magic of a block of columns (`column_blocks.py`), sent to a reader that requests only some columns. No log stores one.
"""
NO_PRODUCER = -1

COMPRESSION_MASK = 0x07
APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

UNCOVERED = struct.Struct(">qiibI")
"""The fields before the checksum."""
COVERED = struct.Struct(">hiqqqhii")
"""The fields that the checksum covers."""
HEADER = struct.Struct(UNCOVERED.format + COVERED.format[1:])
_PLACED = struct.Struct(">qii")
_CRC = struct.Struct(">I")


class BatchHeader(NamedTuple):
    """The header's fields in byte order."""

    base_offset: int
    batch_length: int = 0
    leader_epoch: int = 0
    magic: int = MAGIC
    crc: int = 0
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = 0
    max_timestamp: int = 0
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = -1
    record_count: int = 0

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LENGTH_PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def has_append_time(self) -> bool:
        return self.attributes & APPEND_TIME != 0


def read_header(data: Buffer, position: int = 0, *, blocks: bool = False) -> BatchHeader:
    """Read the header at `position` and check every field that can be checked without the records.

    `blocks`: also accept the header of a block of columns.
    """
    if len(data) - position < HEADER_BYTES:
        raise ProtocolError(f"a batch header needs {HEADER_BYTES} bytes, {len(data) - position} are left", position)
    # (`BatchHeader._make` does the same at twice the cost.)
    header: BatchHeader = tuple.__new__(BatchHeader, HEADER.unpack_from(data, position))
    if header.magic != MAGIC and not (blocks and header.magic == BLOCK_MAGIC):
        raise ProtocolError(f"batch magic is {header.magic}, only {MAGIC} is supported", position + 16)
    if header.batch_length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
        raise ProtocolError(f"batch length {header.batch_length} is shorter than its own header", position + 8)
    if header.base_offset < 0:
        raise ProtocolError(f"base offset {header.base_offset} is negative", position)
    if header.last_offset_delta < 0:
        raise ProtocolError(f"last offset delta {header.last_offset_delta} is negative", position + 23)
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise ProtocolError(
            f"{header.record_count} records do not fit {header.last_offset_delta + 1} offsets",
            position + 57,
        )
    return header


def check_crc(data: Buffer, position: int, header: BatchHeader) -> None:
    """Raise unless the batch is complete and its checksum matches."""
    end = position + header.size_bytes
    if end > len(data):
        raise ProtocolError(f"batch of {header.size_bytes} bytes is truncated after {len(data) - position}", len(data))
    actual = crc32c(memoryview(data)[position + CRC_COVERS_FROM : end])
    if actual != header.crc:
        raise ProtocolError(f"batch CRC-32C is {actual:#010x}, its header says {header.crc:#010x}", position + 17)


def read_headers(data: Buffer) -> list[BatchHeader]:
    """Return the header of each batch. The caller must check every checksum, and that the last batch is complete."""
    headers = []
    position = 0
    while position < len(data):
        header = read_header(data, position)
        headers.append(header)
        position += header.size_bytes
    return headers


def iter_batches(data: Buffer, *, blocks: bool = False) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch, after its header was checked.

    `blocks`: also accept blocks of columns.
    """
    position = 0
    while position < len(data):
        header = read_header(data, position, blocks=blocks)
        check_crc(data, position, header)
        yield position, header
        position += header.size_bytes


def placed(header: BatchHeader, base_offset: int, leader_epoch: int) -> bytes:
    """Return the first 16 bytes of the batch as the log stores it. The log rewrites only these; the CRC does not
    cover them.
    """
    return _PLACED.pack(base_offset, header.batch_length, leader_epoch)


def rebased(header: BatchHeader, base_offset: int, leader_epoch: int) -> BatchHeader:
    """Return the header of the batch as the log stores it. (`_replace` does the same at more than twice the cost.)"""
    return tuple.__new__(BatchHeader, (base_offset, header[1], leader_epoch) + header[3:])  # noqa: RUF005 - the hot path


def seal(batch: bytearray) -> bytes:
    """Write the checksum of a batch whose other fields are final."""
    put_crc(batch)
    return bytes(batch)


def put_crc(batch: bytearray | memoryview) -> None:
    """Write the checksum in place."""
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_COVERS_FROM:]))


def with_append_time(data: Buffer, position: int, header: BatchHeader, now_ms: int) -> bytes:
    """Return the batch with the log's append time: attribute bit, max timestamp and checksum are updated."""
    batch = bytearray(data[position : position + header.size_bytes])
    HEADER.pack_into(batch, 0, *header._replace(attributes=header.attributes | APPEND_TIME, max_timestamp=now_ms))
    return seal(batch)


def empty_batch(base_offset: int, next_offset: int, leader_epoch: int, timestamp_ms: int) -> bytes:
    """Return a batch without records that spans [base_offset, next_offset): it replaces records that were removed.

    Kafka's log cleaner leaves such batches, so every reader of the format skips them.
    """
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=HEADER_BYTES - LENGTH_PREFIX_BYTES,
        leader_epoch=leader_epoch,
        last_offset_delta=next_offset - base_offset - 1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
    )
    return seal(bytearray(HEADER.pack(*header)))
