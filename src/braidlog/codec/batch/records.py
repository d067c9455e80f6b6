"""Whole batches: header, checksum, compression and records together.

`kernel` packs records, `compression` has the codecs.
Invariant: no content of a batch is used before its CRC has matched, and every batch made here has a valid CRC.
"""

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, TypedDict, Unpack

from braidlog.codec.batch.header import (
    BLOCK_MAGIC,
    COMPRESSION_MASK,
    CONTROL,
    COVERED,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    NO_PRODUCER,
    TRANSACTIONAL,
    UNCOVERED,
    BatchHeader,
    Buffer,
    check_crc,
    read_header,
)
from braidlog.codec.batch.kernel import check_records, decode_records, encode_records, scan_keys, select_records
from braidlog.codec.batch.record_slice import slice_records
from braidlog.codec.batch.records_section import INT64_MAX, INT64_MIN, Header, Row
from braidlog.codec.batch.row_layout import RowForm
from braidlog.codec.batch.rows import Written, write_rows
from braidlog.codec.batch.schema_ids import schema_ids
from braidlog.codec.columns.records_to_arrow import Columns
from braidlog.codec.compression import Compression, compress, decompress
from braidlog.codec.crc import crc32c
from braidlog.codec.errors import ProtocolError

# key: version i16 = 0, kind i16
# value: version i16 = 0, coordinator epoch i32, then a field of braidlog's own: transaction number i64
_CONTROL_KEY = Struct(">hh")
_CONTROL_VALUE = Struct(">hi")
_NUMBER = Struct(">q")

BATCH_LENGTH_MAX = 2**31 - 1
MARKER_BYTES_MAX = 4096


class ControlKind(IntEnum):
    """How a transaction ended."""

    ABORT = 0
    COMMIT = 1


NO_NUMBER: Final = 0
"""The transaction number of a marker without one: an earlier version wrote it, or an administrator aborted a hanging
transaction.
"""


class EndMarker(NamedTuple):
    """The content of a marker: how a transaction ended, the coordinator's epoch, and the transaction's number for its
    producer.
    """

    commit: bool
    coordinator_epoch: int = -1
    number: int = NO_NUMBER


class Sealed(NamedTuple):
    """A batch made here, with its header: the caller that appends it need not parse it or check its CRC."""

    data: bytes
    header: BatchHeader


class BatchFields(TypedDict, total=False):
    """Header fields of a batch beside its records. Omitted fields are empty."""

    base_offset: int
    leader_epoch: int
    compression: Compression
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool


def encode_batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    headers: Sequence[tuple[Header, ...] | None] | None = None,
    base_timestamp: int,
    **fields: Unpack[BatchFields],
) -> bytes:
    """Encode one batch of at least one record, with its checksum. Without `timestamps`, every record has the base
    timestamp.
    """
    if not values:
        raise ValueError("a batch needs at least one record; use empty_batch for a batch without records")
    section = encode_records(values, keys, timestamps, headers, base_timestamp)
    newest = base_timestamp if timestamps is None else max(timestamps)
    return seal_section(section, len(values), base_timestamp=base_timestamp, max_timestamp=newest, **fields)


def sealed_batch(
    values: Sequence[bytes | None], *, keys: Sequence[bytes | None] | None = None, base_timestamp: int
) -> Sealed:
    """Encode one batch of records without headers, all of one time; return it with its header."""
    if not values:
        raise ValueError("a batch needs at least one record; use empty_batch for a batch without records")
    return sealed_section(encode_records(values, keys, None, None, base_timestamp), len(values), base_timestamp)


def sealed_section(section: Buffer, count: int, base_timestamp: int) -> Sealed:
    """Return a batch of records that are already packed, all of one time, with its header."""
    fields = 0, 0, 0, MAGIC, 0, 0, count - 1, base_timestamp, base_timestamp, NO_PRODUCER, -1, -1, count
    return _sealed(tuple.__new__(BatchHeader, fields), section)


def placed_header(section: Buffer, count: int, base_timestamp: int, base_offset: int, leader_epoch: int) -> bytes:
    """Return the header of such a batch at its place in a log. It is written before the section."""
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(section)
    if length > BATCH_LENGTH_MAX:
        raise ProtocolError(f"a batch of {length} bytes does not fit its length field")
    covered = COVERED.pack(0, count - 1, base_timestamp, base_timestamp, NO_PRODUCER, -1, -1, count)
    crc = crc32c(section, crc32c(covered))
    return UNCOVERED.pack(base_offset, length, leader_epoch, MAGIC, crc) + covered


def seal_section(  # noqa: PLR0913 - one argument per field
    section: Buffer,
    count: int,
    *,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = 0,
    compression: Compression = Compression.NONE,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """Make one batch of `count` packed records (`pack.append_rows`) with offset deltas from 0 on."""
    header = BatchHeader(
        base_offset,
        leader_epoch=leader_epoch,
        attributes=compression | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0),
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )
    return _assemble(header, section if compression is Compression.NONE else compress(compression, section))


def decode_batch(data: Buffer, position: int = 0, *, decompressed_bytes_max: int) -> list[Row]:
    """Decode the batch at `position` to rows (offset, timestamp, key, value, headers). Also decodes control batches."""
    header = read_header(data, position)
    check_crc(data, position, header)
    return decode_section(read_section(data, position, header, decompressed_bytes_max=decompressed_bytes_max), header)


def decode_section(section: Buffer, header: BatchHeader) -> list[Row]:
    """Decode the records of a section that `read_section` returned."""
    return decode_records(
        section,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp if header.has_append_time else None,
    )


def append_to_columns(
    columns: Columns,
    data: Buffer,
    position: int,
    header: BatchHeader,
    *,
    decompressed_bytes_max: int,
    start_offset: int = 0,
    end_offset: int = INT64_MAX,
) -> None:
    """Append the records of a batch, or the rows of a block, whose offsets are in [start_offset, end_offset) to
    columns.
    """
    if header.last_offset < start_offset or header.base_offset >= end_offset:
        return
    if header.magic == BLOCK_MAGIC:
        block = memoryview(data)[position + HEADER_BYTES : position + header.size_bytes]
        rows, base, last = header.record_count, header.base_offset, header.last_offset_delta
        columns.append_block(block, rows, base, last, start_offset=start_offset, end_offset=end_offset)
        return
    section = read_section(data, position, header, decompressed_bytes_max=decompressed_bytes_max)
    append_section(columns, section, header, start_offset=start_offset, end_offset=end_offset)


def append_section(
    columns: Columns, section: Buffer, header: BatchHeader, *, start_offset: int = 0, end_offset: int = INT64_MAX
) -> None:
    """Append the records of a section that `read_section` returned to columns."""
    columns.append(
        section,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp if header.has_append_time else None,
        start_offset=start_offset,
        end_offset=end_offset,
    )


def write_section(
    section: Buffer,
    header: BatchHeader,
    form: RowForm,
    *,
    start_offset: int,
    records_max: int,
    content_bytes_max: int,
    follows: bool,
) -> Written:
    """Write the records of such a section as rows (codec/batch/rows.py)."""
    return write_rows(
        section,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp if header.has_append_time else None,
        form,
        start_offset=start_offset,
        records_max=records_max,
        content_bytes_max=content_bytes_max,
        follows=follows,
    )


def read_section(data: Buffer, position: int, header: BatchHeader, *, decompressed_bytes_max: int) -> Buffer:
    """Return the records section, decompressed.

    The batch must be complete, and its CRC must have been checked when it was received.
    """
    payload = memoryview(data)[position + HEADER_BYTES : position + header.size_bytes]
    if header.compression == Compression.NONE:
        return payload
    if not payload and header.record_count == 0:
        # Compaction removed all records of a compressed batch: no compressed block is left.
        return payload
    return decompress(header.compression, payload, decompressed_bytes_max)


def check_batch_records(
    data: Buffer, position: int, header: BatchHeader, *, decompressed_bytes_max: int, dense: bool = True
) -> int | None:
    """Raise unless every record of a complete batch is valid; return the largest timestamp, or None.

    `dense`: the batch comes from a client, with offset deltas 0 to n-1. False: compaction may have removed records.
    """
    section = read_section(data, position, header, decompressed_bytes_max=decompressed_bytes_max)
    return check_records(section, header.record_count, header.last_offset_delta, header.base_timestamp, dense=dense)


def check_section(section: Buffer, header: BatchHeader, *, keyed: bool) -> None:
    """Raise unless every record of a producer's batch is valid and, if `keyed`, has a key: compaction needs keys."""
    check_records(section, header.record_count, header.last_offset_delta, header.base_timestamp, dense=True)
    if keyed and any(key is None for _, key, _ in scan_keys(section, header.record_count, header.last_offset_delta)):
        raise ProtocolError("a compacted topic needs a key for each record; add keys, or set compact = false")


class SchemaIds(NamedTuple):
    """The schema ids at the beginning of the values of a batch."""

    ids: set[int]
    first_without: int = -1
    """The first record whose value has no schema id; -1 if all have one."""


def heads_of(section: Buffer, header: BatchHeader) -> SchemaIds:
    return SchemaIds(*schema_ids(section, header.record_count, header.last_offset_delta, header.base_timestamp))


def slice_batch(
    data: Buffer,
    *,
    start_offset: int,
    start_timestamp_ms: int | None = None,
    records_max: int,
    bytes_max: int,
    decompressed_bytes_max: int,
) -> tuple[bytes, int]:
    """Return some records of a batch as an uncompressed batch, and the next offset: for readers that need a small
    part.

    The records are the first ones from an offset and a time on: at least one if any exists, then up to about
    `bytes_max`. The other header fields stay, so that the records keep their offsets and times.
    """
    header = read_header(data)
    check_crc(data, 0, header)
    section = read_section(data, 0, header, decompressed_bytes_max=decompressed_bytes_max)
    since = INT64_MIN if start_timestamp_ms is None or header.has_append_time else start_timestamp_ms
    clip = slice_records(
        section,
        header.record_count,
        header.last_offset_delta,
        header.base_timestamp,
        start_delta=start_offset - header.base_offset,
        start_timestamp=since,
        records_max=records_max,
        bytes_max=bytes_max,
    )
    attributes = header.attributes & ~COMPRESSION_MASK
    clipped = _assemble(
        header._replace(attributes=attributes, record_count=clip.count), memoryview(section)[clip.start : clip.end]
    )
    next_delta = header.last_offset_delta + 1 if clip.next_delta < 0 else clip.next_delta
    return clipped, header.base_offset + next_delta


def control_batch(  # noqa: PLR0913 - one argument per field
    *,
    base_offset: int,
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    timestamp_ms: int,
    coordinator_epoch: int = 0,
    number: int = NO_NUMBER,
) -> bytes:
    """Return the control batch that ends a producer's transaction in a partition: one record."""
    kind = ControlKind.COMMIT if commit else ControlKind.ABORT
    value = _CONTROL_VALUE.pack(0, coordinator_epoch) + (b"" if number == NO_NUMBER else _NUMBER.pack(number))
    section = encode_records([value], [_CONTROL_KEY.pack(0, kind)], None, None, timestamp_ms)
    return seal_section(
        section,
        1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_marker(
    data: Buffer, position: int, header: BatchHeader, *, decompressed_bytes_max: int = MARKER_BYTES_MAX
) -> EndMarker:
    """Read the marker of a complete control batch."""
    if not header.is_control or header.record_count != 1:
        raise ProtocolError("not a control batch of one record", position)
    section = read_section(data, position, header, decompressed_bytes_max=decompressed_bytes_max)
    row = decode_records(section, 1, header.base_offset, header.last_offset_delta, header.base_timestamp)[0]
    key, value = row[2], row[3] or b""
    # Accept later versions: the kind stays at its position (KIP-98); the fields after it may grow.
    if key is None or len(key) < _CONTROL_KEY.size:
        raise ProtocolError("a control record's key must be a version and a kind", position)
    version, kind = _CONTROL_KEY.unpack_from(key)
    if version < 0 or kind not in (ControlKind.ABORT, ControlKind.COMMIT):
        raise ProtocolError(f"unknown control record: version {version}, kind {kind}", position)
    commit = kind == ControlKind.COMMIT
    if len(value) < _CONTROL_VALUE.size:
        return EndMarker(commit)
    epoch = _CONTROL_VALUE.unpack_from(value)[1]
    is_numbered = len(value) >= _CONTROL_VALUE.size + _NUMBER.size
    return EndMarker(commit, epoch, _NUMBER.unpack_from(value, _CONTROL_VALUE.size)[0] if is_numbered else NO_NUMBER)


def select_batch(
    data: Buffer, position: int, header: BatchHeader, keep: Sequence[bool], *, decompressed_bytes_max: int
) -> bytes:
    """Return the batch with only the records whose entry in `keep` is true, compressed as before.

    Offsets, producer and base timestamp stay. The largest timestamp is recomputed unless it is the append time. A
    batch without remaining records keeps its header, and so its offsets and its producer's sequence.
    """
    section, count, newest_delta = select_records(
        read_section(data, position, header, decompressed_bytes_max=decompressed_bytes_max),
        header.record_count,
        header.last_offset_delta,
        keep,
    )
    if newest_delta is None:
        return _assemble(header._replace(attributes=header.attributes & ~COMPRESSION_MASK, record_count=0), b"")
    if not header.has_append_time:
        header = header._replace(max_timestamp=header.base_timestamp + newest_delta)
    return _assemble(header._replace(record_count=count), compress(Compression(header.compression), section))


def _assemble(header: BatchHeader, payload: Buffer) -> bytes:
    return _sealed(header, payload).data


def _sealed(header: BatchHeader, payload: Buffer) -> Sealed:
    """Return header and payload as a batch with a new length and checksum. The payload is copied once."""
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(payload)
    if length > BATCH_LENGTH_MAX:
        raise ProtocolError(f"a batch of {length} bytes does not fit its length field")
    # (`_replace` and field names do the same at several times the cost.)
    base_offset, _, leader_epoch, magic, _, *covered = header
    checked = COVERED.pack(*covered)
    crc = crc32c(payload, crc32c(checked))
    placed = base_offset, length, leader_epoch, magic, crc
    found: BatchHeader = tuple.__new__(BatchHeader, (*placed, *covered))
    return tuple.__new__(Sealed, (b"".join((UNCOVERED.pack(*placed), checked, payload)), found))
