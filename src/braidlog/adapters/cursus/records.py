"""Converts between Cursus records and log records.

Invariant: fields of a producer are read back unchanged. Fields of a record from another dialect that Cursus cannot
express are omitted, never guessed.

| Cursus | log |
|---|---|
| payload | value; null is read as empty |
| key | key; empty is null |
| event type, schema version, aggregate version, metadata | headers eventType, schemaVersion, aggregateVersion, metadata |
| producer id, epoch, sequence | headers producerId, epoch, seqNum |

A header is written only for a value that is neither empty nor 0; numbers are decimal.
"""

import re
from collections.abc import Sequence

from braidlog.codec.batch.records import encode_batch
from braidlog.coordinator.event_streams import VERSION_HEADER
from braidlog.model.record import Header, Record
from braidlog.wire.cursus.batch import STRING_BYTES_MAX, BatchRecord, PlainRecords

EVENT_TYPE, SCHEMA_VERSION, AGGREGATE_VERSION, METADATA = "eventType", "schemaVersion", VERSION_HEADER, "metadata"
PRODUCER_ID, EPOCH, SEQUENCE = "producerId", "epoch", "seqNum"
PIECE_BYTES = 512 * 1024
"""Approximate bytes of records per batch in the log: reading one record decodes its whole batch."""

_INTEGER = re.compile(rb"-?[0-9]{1,19}")
_Piece = tuple[list[bytes | None], list[bytes | None], list[tuple[Header, ...] | None]]


def headers_of(record: BatchRecord) -> tuple[Header, ...]:
    found: list[Header] = []
    if record.event_type:
        found.append((EVENT_TYPE, record.event_type.encode()))
    if record.schema_version:
        found.append((SCHEMA_VERSION, b"%d" % record.schema_version))
    if record.aggregate_version:
        found.append((AGGREGATE_VERSION, b"%d" % record.aggregate_version))
    if record.metadata:
        found.append((METADATA, record.metadata.encode()))
    if record.producer_id:
        found.append((PRODUCER_ID, record.producer_id.encode()))
    if record.epoch:
        found.append((EPOCH, b"%d" % record.epoch))
    if record.sequence:
        found.append((SEQUENCE, b"%d" % record.sequence))
    return tuple(found)


def encode_whole(
    records: Sequence[BatchRecord],
    now_ms: int,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool = False,
) -> bytes:
    """Encode one batch for an idempotent append: a retry must give the same batch."""
    return encode_batch(
        [record.payload for record in records],
        keys=[record.key or None for record in records],
        headers=[headers_of(record) for record in records],
        base_timestamp=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )


def encode_batches(records: Sequence[BatchRecord], now_ms: int) -> bytes:
    """Encode batches for records without sequences."""
    if isinstance(records, PlainRecords) and _weight(records) <= PIECE_BYTES:
        return encode_batch(records.values, keys=records.keys, base_timestamp=now_ms)
    batches = []
    piece: _Piece = ([], [], [])
    size = 0
    for record in records:
        grown = len(record.payload) + len(record.key)
        if piece[0] and size + grown > PIECE_BYTES:
            batches.append(_encode(piece, now_ms))
            piece, size = ([], [], []), 0
        size += grown
        piece[0].append(record.payload)
        piece[1].append(record.key or None)
        piece[2].append(headers_of(record))
    batches.append(_encode(piece, now_ms))
    return b"".join(batches)


def _weight(records: PlainRecords) -> int:
    return sum(map(len, records.values)) + sum(len(key or b"") for key in records.keys or ())


def _encode(piece: _Piece, now_ms: int) -> bytes:
    return encode_batch(piece[0], keys=piece[1], headers=piece[2], base_timestamp=now_ms)


# -- reading back --------------------------------------------------------------------------------------------------


def can_show(record: Record) -> bool:
    """Return whether a batch can contain the record: another dialect's key may be longer than Cursus allows."""
    return record.key is None or len(record.key) <= STRING_BYTES_MAX


def show(record: Record) -> BatchRecord:
    if not record.headers:
        return BatchRecord(record.value or b"", record.key or b"", record.offset)
    headers = dict(record.headers)
    return BatchRecord(
        record.value or b"",
        record.key or b"",
        record.offset,
        sequence=_number(headers.get(SEQUENCE), 63),
        producer_id=_text(headers.get(PRODUCER_ID)),
        epoch=_number(headers.get(EPOCH), 63),
        event_type=_text(headers.get(EVENT_TYPE)),
        schema_version=_number(headers.get(SCHEMA_VERSION), 31),
        aggregate_version=_number(headers.get(AGGREGATE_VERSION), 63),
        metadata=_text(headers.get(METADATA)),
    )


def _number(raw: bytes | None, bits: int) -> int:
    if raw is None or _INTEGER.fullmatch(raw) is None:
        return 0
    number = int(raw)
    return number if -(2**bits) <= number < 2**bits else 0


def _text(raw: bytes | None) -> str:
    if raw is None or len(raw) > STRING_BYTES_MAX:
        return ""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return ""
