"""The binary batch: sent by producers, and returned by CONSUME, STREAM and READ_STREAM.

Reads and writes two headers and one record layout. Sequences, epochs, topics and acks are not checked here.
Invariant: no length is used before it is compared with the bytes present; a batch ends exactly where its body ends.
Integers are read as signed, as the protocol document declares them. The clients' code says unsigned, so values over
2^63 are negative.

    document  BA7C | u16 n, topic | u16 n, partition in decimal | u16 n, acks | u8 idempotent | i64 first | i64 last | i32 count
    clients   BA7C | u16 n, topic | i32 partition               | u8 n, acks  | u8 idempotent | u64 first | u64 last | i32 count
    record    i64 offset | i64 sequence | u16 n, producer id | u16 n, key | i64 epoch | i32 n, payload
              | u16 n, event type | i32 schema version | i64 aggregate version | u16 n, metadata
"""

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Final, overload

import msgspec

from braidlog.codec.batch.row_layout import Kind, Packed, Part
from braidlog.codec.batch.rows import read_rows
from braidlog.codec.cursor import Reader
from braidlog.codec.errors import ProtocolError

MAGIC = b"\xba\x7c"
RECORD_BYTES_MIN = 48
STRING_BYTES_MAX = 0xFFFF
OBJECTS_MAX = 16_384
"""Maximum records of a batch that are parsed one by one: those with fields other than key and payload."""
PARTITION_MAX = 2**31 - 1

_TAIL_BYTES = 16
_PLAIN_TAIL = bytes(_TAIL_BYTES)  # no event type, schema 0, aggregate version 0, no metadata: nearly every record
_PARTITION_DIGITS = re.compile(rb"-1|[0-9]{1,10}")

PLAIN_ROW: Final = (
    Part(Kind.LITERAL, bytes(8 + 8 + 2)),  # offset 0, sequence 0, no producer id
    Part(Kind.KEY_16),
    Part(Kind.LITERAL, bytes(8)),  # epoch 0
    Part(Kind.VALUE_32),
    Part(Kind.LITERAL, _PLAIN_TAIL),
)
"""A producer's record with key and payload only."""

SHOWN_ROW: Final = (Part(Kind.OFFSET_64), Part(Kind.LITERAL, bytes(8 + 2)), *PLAIN_ROW[1:])
"""The same record as sent to a consumer."""

BATCH_LAYOUT: Final = (("idempotent", "u8"), ("sequence_start", "i64"), ("sequence_end", "i64"))
"""The fields that both headers share after acks and before the count: names and kinds, for tools that display a
batch.
"""

RECORD_LAYOUT: Final = (
    ("offset", "i64"),
    ("sequence", "i64"),
    ("producer_id", "str"),
    ("key", "u16 len + key"),
    ("epoch", "i64"),
    ("payload", "u32 len + payload"),
    ("event_type", "str"),
    ("schema_version", "i32"),
    ("aggregate_version", "i64"),
    ("metadata", "str"),
)
"""The fields of a record in wire order."""

_U16 = Struct(">H")
_TAIL_END = Struct(">iqH")
_HEADER_END = Struct(">Bqqi")


class Spelling(Enum):
    """The two spellings in use on this port (the Cursus page, §2)."""

    DOCUMENT = "document"
    CLIENTS = "clients"


class BatchRecord(msgspec.Struct, frozen=True, gc=False):
    """One record in this protocol. Payload and key are raw bytes, UTF-8 or not."""

    payload: bytes
    key: bytes = b""
    offset: int = 0
    sequence: int = 0
    producer_id: str = ""
    epoch: int = 0
    event_type: str = ""
    schema_version: int = 0
    aggregate_version: int = 0
    metadata: str = ""


class PlainRecords(Sequence[BatchRecord]):
    """Records with key and payload only, stored as columns. A `BatchRecord` is created only on access."""

    __slots__ = ("keys", "values")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: list[bytes], keys: list[bytes | None] | None) -> None:
        self.values = values
        self.keys = keys

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> BatchRecord: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[BatchRecord]: ...

    def __getitem__(self, index: int | slice) -> BatchRecord | Sequence[BatchRecord]:
        if isinstance(index, slice):
            return PlainRecords(self.values[index], None if self.keys is None else self.keys[index])
        return BatchRecord(self.values[index], (self.keys[index] if self.keys else None) or b"")

    def __iter__(self) -> Iterator[BatchRecord]:
        return map(self.__getitem__, range(len(self.values)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(tuple(self))


class Batch(msgspec.Struct, frozen=True):
    """A batch of records: a request from a client, a response or a pushed frame from a broker."""

    topic: str
    partition: int
    records: Sequence[BatchRecord]
    acks: str = "1"
    idempotent: bool = False
    sequence_start: int = 0
    sequence_end: int = 0


class PackedBatch(msgspec.Struct, frozen=True):
    """A `Batch` whose records are already encoded as `SHOWN_ROW`s; only the broker sends it."""

    topic: str
    partition: int
    rows: Packed


@lru_cache(maxsize=4096)
def _head_of(producer_bytes: int, key_bytes: int) -> Struct:
    """Return the layout of a record up to its payload for these lengths of producer id and key."""
    return Struct(f">qqH{producer_bytes}sH{key_bytes}sqi")


# --- reading


def read_batch(body: bytes) -> tuple[Batch, Spelling]:
    """Return the batch in a frame's body, and which of the two headers it has."""
    reader = Reader(body)
    if reader.take(2, "magic") != MAGIC:
        raise ProtocolError("a batch must begin with BA7C", 0)
    topic = reader.text16("topic")
    spelling = _spelling(body, reader.position)
    if spelling is Spelling.CLIENTS:
        partition = reader.i32("partition")
        acks = reader.take(reader.u8("acks"), "acks")
    else:
        partition = _read_decimal(reader)
        acks = reader.take(reader.u16("acks"), "acks")
    if partition < -1:
        raise ProtocolError(f"partition {partition} is out of range", reader.position)
    idempotent = reader.u8("idempotent")
    if idempotent > 1:
        raise ProtocolError(f"idempotent must be 0 or 1, not {idempotent}", reader.position - 1)
    first, last = reader.i64("first sequence"), reader.i64("last sequence")
    count = reader.count(reader.i32("count"), RECORD_BYTES_MIN, "records")
    records = _read_records(body, reader.position, count)
    return Batch(topic, partition, records, _text(acks, "acks"), bool(idempotent), first, last), spelling


def _spelling(body: bytes, position: int) -> Spelling:
    """Detect the header: after the topic, clients send 00 00 or FF FF; the protocol document has 00 01…00 0A and
    digits.
    """
    mark = body[position : position + 2]
    if mark in {b"\x00\x00", b"\xff\xff"}:
        return Spelling.CLIENTS
    if len(mark) == 2 and 1 <= _U16.unpack(mark)[0] <= 10:
        return Spelling.DOCUMENT
    raise ProtocolError("expected a partition number or its decimal digits after the topic", position)


def _read_decimal(reader: Reader) -> int:
    digits = reader.take(reader.u16("partition"), "partition")
    if _PARTITION_DIGITS.fullmatch(digits) is None or int(digits) > PARTITION_MAX:
        raise ProtocolError("the partition is not a decimal number", reader.position)
    return int(digits)


def _read_records(body: bytes, position: int, count: int) -> Sequence[BatchRecord]:
    """Read plain records at C speed, else one by one, which reports the error."""
    plain = read_rows(body, position, count, PLAIN_ROW)
    if plain is not None and plain[2] == len(body):
        return PlainRecords(plain[0], plain[1])
    if count > OBJECTS_MAX:
        text = f"{count} records have fields other than key and payload; a batch may have {OBJECTS_MAX}"
        raise ProtocolError(text, position)
    return _read_any_records(body, position, count)


def _read_any_records(body: bytes, position: int, count: int) -> tuple[BatchRecord, ...]:
    """Most records resemble the one before them, so its lengths are tried first: one unpack instead of five."""
    records: list[BatchRecord] = []
    append = records.append
    end = len(body)
    producer_bytes = key_bytes = 0
    head = _head_of(0, 0)
    unpack_head, head_bytes = head.unpack_from, head.size
    offset = sequence = epoch = size = producer_said = key_said = 0
    raw = key = producer_raw = b""
    producer = ""
    for _ in range(count):
        start = position + head_bytes
        if start <= end:
            offset, sequence, producer_said, raw, key_said, key, epoch, size = unpack_head(body, position)
        if start > end or producer_said != producer_bytes or key_said != key_bytes:
            offset, sequence, raw, key, epoch, size, start = _read_head(body, position)
            producer_bytes, key_bytes = len(raw), len(key)
            head = _head_of(producer_bytes, key_bytes)
            unpack_head, head_bytes = head.unpack_from, head.size
        stop = start + size
        position = stop + _TAIL_BYTES
        if size < 0 or position > end:
            raise ProtocolError(f"payload announces {size} bytes, {end - start} are left including its tail", start)
        if raw != producer_raw:
            producer_raw, producer = raw, _text(raw, "producer id")
        if body[stop:position] == _PLAIN_TAIL:
            append(BatchRecord(body[start:stop], key, offset, sequence, producer, epoch))
        else:
            tail, position = _read_tail(body, stop)
            append(BatchRecord(body[start:stop], key, offset, sequence, producer, epoch, *tail))
    if position != end:
        raise ProtocolError(f"{end - position} bytes follow the last record", position)
    return tuple(records)


def _read_head(body: bytes, position: int) -> tuple[int, int, bytes, bytes, int, int, int]:
    reader = Reader(body, position)
    offset, sequence = reader.i64("offset"), reader.i64("sequence")
    producer = reader.take(reader.u16("producer id"), "producer id")
    key = reader.take(reader.u16("key"), "key")
    epoch, size = reader.i64("epoch"), reader.i32("payload")
    return offset, sequence, producer, key, epoch, size, reader.position


def _read_tail(body: bytes, position: int) -> tuple[tuple[str, int, int, str], int]:
    reader = Reader(body, position)
    event_type = reader.text16("event type")
    schema_version, aggregate_version = reader.i32("schema version"), reader.i64("aggregate version")
    metadata = reader.text16("metadata")
    return (event_type, schema_version, aggregate_version, metadata), reader.position


def _text(raw: bytes, what: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{what} is not UTF-8") from error


# --- writing


def packed_head(packed: PackedBatch, spelling: Spelling) -> bytes:
    """Return the bytes that `write_batch` would write before the rows."""
    return _shown_head(packed.topic, packed.partition, spelling) + _HEADER_END.pack(0, 0, 0, packed.rows.number)


@lru_cache(maxsize=1024)
def _shown_head(topic: str, partition: int, spelling: Spelling) -> bytes:
    """The header up to its numbers: constant for one partition."""
    return b"".join((MAGIC, *_header_parts(Batch(topic, partition, ()), spelling)))


def write_batch(batch: Batch, spelling: Spelling) -> bytes:
    """Return the body of a batch frame. Raises ValueError for values that the layout cannot hold: a key over 64 KiB,
    a wide number.
    """
    parts = [MAGIC, *_header_parts(batch, spelling)]
    try:
        parts.append(_HEADER_END.pack(batch.idempotent, batch.sequence_start, batch.sequence_end, len(batch.records)))
        _write_records(batch.records, parts)
    except struct_error as error:
        raise ValueError(f"a batch cannot hold this: {error}") from error
    return b"".join(parts)


def _header_parts(batch: Batch, spelling: Spelling) -> tuple[bytes, ...]:
    topic, acks = _short(batch.topic.encode(), "topic"), batch.acks.encode()
    if not -1 <= batch.partition <= PARTITION_MAX:
        raise ValueError(f"partition {batch.partition} does not fit")
    if spelling is Spelling.DOCUMENT:
        partition = str(batch.partition).encode()
        return _U16.pack(len(topic)), topic, _U16.pack(len(partition)), partition, _U16.pack(len(acks)), acks
    if batch.partition > 0xFFFF:
        # Its first two bytes would be 00 01 or higher, which marks the document's header.
        raise ValueError(f"partition {batch.partition} cannot be distinguished from the document's header")
    return _U16.pack(len(topic)), topic, batch.partition.to_bytes(4, "big", signed=True), bytes([len(acks)]), acks


def _write_records(records: Sequence[BatchRecord], parts: list[bytes]) -> None:
    producer_text, producer = "", b""
    producer_bytes = key_bytes = 0
    pack_head = _head_of(0, 0).pack
    for record in records:
        if record.producer_id != producer_text:
            producer_text, producer = record.producer_id, _short(record.producer_id.encode(), "producer id")
        key, payload = record.key, record.payload
        if len(key) != key_bytes or len(producer) != producer_bytes:
            key_bytes, producer_bytes = len(_short(key, "key")), len(producer)
            pack_head = _head_of(producer_bytes, key_bytes).pack
        parts += (
            pack_head(
                record.offset, record.sequence, producer_bytes, producer, key_bytes, key, record.epoch, len(payload)
            ),
            payload,
            _write_tail(record)
            if record.event_type or record.metadata or record.schema_version or record.aggregate_version
            else _PLAIN_TAIL,
        )


def _write_tail(record: BatchRecord) -> bytes:
    event_type, metadata = record.event_type.encode(), record.metadata.encode()
    _short(event_type, "event type")
    _short(metadata, "metadata")
    return b"".join(
        (
            _U16.pack(len(event_type)),
            event_type,
            _TAIL_END.pack(record.schema_version, record.aggregate_version, len(metadata)),
            metadata,
        )
    )


def _short(raw: bytes, what: str) -> bytes:
    if len(raw) > STRING_BYTES_MAX:
        raise ValueError(f"{what} has {len(raw)} bytes, {STRING_BYTES_MAX} fit")
    return raw


# --- sizes


def header_bytes(topic: str, spelling: Spelling, partition: int = 0, acks: str = "1") -> int:
    """Return the size of a batch's header."""
    digits = 4 if spelling is Spelling.CLIENTS else 2 + len(str(partition))
    return 4 + len(topic.encode()) + digits + (1 if spelling is Spelling.CLIENTS else 2) + len(acks.encode()) + 21


def record_bytes(record: BatchRecord) -> int:
    """Return the size of a record in a batch."""
    size = RECORD_BYTES_MIN + len(record.key) + len(record.payload) + len(record.producer_id.encode())
    if record.event_type or record.metadata:
        size += len(record.event_type.encode()) + len(record.metadata.encode())
    return size
