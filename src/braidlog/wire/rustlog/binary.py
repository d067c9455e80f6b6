"""The binary form: payload bytes ⇄ messages, as the published clients write them (the RustLog page, §3).

The layout of every binary message is a table of fields.
Invariant: a count or length is used only after it was compared with the bytes present; a payload that ends early, or
continues after its last field, is a `ProtocolError`.

    payload   ┌────────┬───────────────┐       str     ┌───────────┬───────┐     records  ┌───────┬───────────────────────┐
              │ type 1 │ fields …      │               │ length 2  │ UTF-8 │              │ n   4 │ n x (length 4, bytes) │
              └────────┴───────────────┘               └───────────┴───────┘              └───────┴───────────────────────┘
"""

import struct
from typing import Any, Final

import msgspec

from braidlog.codec.batch.row_layout import Kind as Of
from braidlog.codec.batch.row_layout import Part
from braidlog.codec.batch.rows import read_rows
from braidlog.codec.cursor import Reader, text16
from braidlog.codec.errors import ProtocolError
from braidlog.wire.fields import TEXT, U8, U16, U32, U64, Kind, Layout, counted, cut_text
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.operations import BY_REQUEST, BY_TYPE_BYTE, ERROR_BYTE, Operation

_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_FETCH_BYTE: Final = BY_REQUEST[m.Fetch].type_byte
_FETCH_END: Final = struct.Struct(">IQI")
"""The fields of a Fetch after its topic: partition, offset, maximum bytes."""

_ROWS_HEAD: Final = struct.Struct(">BI")

_PRODUCE_BYTE: Final = BY_REQUEST[m.Produce].type_byte
_PRODUCE_BEGINS: Final = struct.Struct(">IBH")
"""The frame's length, the type, the length of the topic's name."""
_ONE_RECORD: Final = struct.Struct(">III")
"""The partition, the number of records, the length of the first."""
_LONE_PRODUCE_BYTES_MIN: Final = _PRODUCE_BEGINS.size + _ONE_RECORD.size
_PRODUCED: Final = struct.Struct(">IBQI")

_ERROR_TEXT_BYTES_MAX: Final = 0xFFFF

RECORD_ROW: Final = (Part(Of.VALUE_32),)
"""One record: length 4 | bytes."""


def _read_flag(reader: Reader, what: str) -> bool:
    at = reader.position
    value = reader.u8(what)
    if value > 1:
        raise ProtocolError(f"{what} is {value}, neither 0 nor 1", at)
    return value == 1


def _read_maybe_u64(reader: Reader, what: str) -> int | None:
    return reader.u64(what) if _read_flag(reader, what) else None


def _write_maybe_u64(value: int | None) -> bytes:
    return b"\x00" if value is None else b"\x01" + _U64.pack(value)


def _read_bytes32(reader: Reader, what: str) -> bytes:
    return reader.take(reader.u32(what), what)


def _write_bytes32(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value


def _read_text32(reader: Reader, what: str) -> str:
    at = reader.position
    raw = _read_bytes32(reader, what)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{what} is not UTF-8", at + 4 + error.start) from error


def _write_text32(value: str) -> bytes:
    return _write_bytes32(value.encode("utf-8"))


def _read_records(reader: Reader, what: str) -> list[bytes]:
    count = reader.count(reader.u32(what), 4, what)
    if count > m.RECORDS_PER_BINARY_PRODUCE_MAX:
        raise ProtocolError(f"{count} {what} exceed the limit of {m.RECORDS_PER_BINARY_PRODUCE_MAX}", reader.position)
    found = read_rows(reader.data, reader.position, count, RECORD_ROW)
    if found is None:
        raise _cut_short(reader, count, what)
    records, _, reader.position = found
    return records


def _cut_short(reader: Reader, count: int, what: str) -> ProtocolError:
    """Return an error that names the record in which the bytes end."""
    data, at = reader.data, reader.position
    for number in range(count):
        if len(data) - at < 4:
            return ProtocolError(f"{what} end after {number} of {count}", at)
        at += 4 + int.from_bytes(data[at : at + 4], "big")
    return ProtocolError(f"the last of {count} {what} ends {at - len(data)} bytes after the message", len(data))


def _write_records(records: list[bytes]) -> bytes:
    """Lengths and values alternate in one join."""
    parts: list[bytes] = [b""] * (2 * len(records) + 1)
    parts[0] = _U32.pack(len(records))
    parts[1::2] = map(_U32.pack, map(len, records))
    parts[2::2] = records
    return b"".join(parts)


_TOPICS = counted(list, (("name", TEXT), ("partition_count", U32)), m.TopicSummary)


def _write_topics(topics: list[m.TopicSummary]) -> bytes:
    """Sorted, as the published server sends them and its clients print them."""
    return _TOPICS.write(sorted(topics, key=lambda each: each.name))


SENTENCE = TEXT._replace(write=lambda text: text16(cut_text(text, _ERROR_TEXT_BYTES_MAX).decode()))
TEXT32 = Kind("u32 len + text", _read_text32, _write_text32, 4)
FLAG = U8._replace(read=_read_flag)
MAYBE_U64 = Kind("u8 has [u64]", _read_maybe_u64, _write_maybe_u64, 1)
BYTES32 = Kind("u32 len, bytes", _read_bytes32, _write_bytes32, 4)
RECORDS = Kind("u32 n, n x (u32 len, bytes)", _read_records, _write_records, 4, rows=(("", BYTES32),))
TOPICS = _TOPICS._replace(write=_write_topics)
PARTITIONS = counted(list, (("partition", U32), ("high_watermark", U64)), m.BriefPartition)

LAYOUTS: Final[dict[type[msgspec.Struct], Layout]] = {
    m.Produce: (("topic", TEXT), ("partition", U32), ("records", RECORDS)),
    m.ProduceResponse: (("base_offset", U64), ("record_count", U32)),
    m.Fetch: (("group_id", TEXT), ("topic", TEXT), ("partition", U32), ("offset", U64), ("max_bytes", U32)),
    m.BriefFetchResponse: (("records", RECORDS), ("next_offset", U64)),
    m.OffsetCommit: (("group", TEXT), ("topic", TEXT), ("partition", U32), ("offset", U64)),
    m.OffsetCommitResponse: (("success", FLAG),),
    m.OffsetFetch: (("group", TEXT), ("topic", TEXT), ("partition", U32)),
    m.OffsetFetchResponse: (("offset", MAYBE_U64),),
    m.CreateTopic: (("topic", TEXT), ("partition_count", U32)),
    m.BriefCreateTopicResponse: (("success", FLAG),),
    m.ListTopics: (),
    m.ListTopicsResponse: (("topics", TOPICS),),
    m.DescribeTopic: (("topic", TEXT),),
    m.BriefDescribeTopicResponse: (("topic", TEXT), ("partition_count", U32), ("partitions", PARTITIONS)),
    m.DescribePartition: (("topic", TEXT), ("partition", U32)),
    m.BriefDescribePartitionResponse: (("topic", TEXT), ("partition", U32), ("high_watermark", U64)),
    m.MetricsFetch: (),
    m.MetricsFetchResponse: (("metrics", TEXT32),),
    m.Ping: (),
    m.Pong: (),
    m.Error: (("code", U16), ("message", SENTENCE)),
}
"""The fields of each message, in wire order. Fields of the JSON form that are missing here are not sent."""


def read_request(payload: bytes) -> m.Message:
    """Read the request in a payload whose first byte names an operation."""
    if payload[0] == _FETCH_BYTE and (fetch := _read_fetch(payload)) is not None:
        return fetch
    return _read(payload, BY_TYPE_BYTE[payload[0]].request)  # type: ignore[no-any-return]


def _read_fetch(payload: bytes) -> m.Fetch | None:
    """Read a valid Fetch without the table: a consumer sends thousands of them."""
    topic_at = 3 + int.from_bytes(payload[1:3])
    end = topic_at + 2 + int.from_bytes(payload[topic_at : topic_at + 2])
    if len(payload) != end + _FETCH_END.size:
        return None
    partition, offset, max_bytes = _FETCH_END.unpack_from(payload, end)
    try:
        group, topic = payload[3:topic_at].decode(), payload[topic_at + 2 : end].decode()
    except UnicodeDecodeError:
        return None
    return m.Fetch(group_id=group, topic=topic, partition=partition, offset=offset, max_bytes=max_bytes)


def read_lone_produce(frame: bytes, frame_bytes_max: int) -> m.Produce | None:
    """Return the Produce of one record if `frame` is exactly that; None: it is something else, or invalid.

    The result equals that of `read_request`: a fast path for producers that wait for each answer.
    """
    size = len(frame)
    if size < _LONE_PRODUCE_BYTES_MIN or size - 4 > frame_bytes_max:
        return None
    length, type_byte, name_bytes = _PRODUCE_BEGINS.unpack_from(frame)
    at = 7 + name_bytes
    if type_byte != _PRODUCE_BYTE or length != size - 4 or at + 12 > size:
        return None
    partition, count, value_bytes = _ONE_RECORD.unpack_from(frame, at)
    at += 12
    if count != 1 or at + value_bytes != size:
        return None
    try:
        topic = frame[7 : at - 12].decode()
    except UnicodeDecodeError:
        return None
    return m.Produce(topic=topic, partition=partition, records=[frame[at:]])


def write_produced(answer: m.ProduceResponse) -> bytes:
    """Return the frame of a produce's answer: the result of `write_answer` after its length."""
    try:
        return _PRODUCED.pack(13, _PRODUCE_BYTE, answer.base_offset, answer.record_count)
    except struct.error as error:
        raise ValueError(f"a field of {type(answer).__name__} does not fit its bytes: {error}") from error


def read_answer(payload: bytes) -> tuple[Operation | None, m.Answer]:
    """Return the answer in a payload and its operation; None for an Error, which answers any request."""
    type_byte = payload[0]
    if type_byte == ERROR_BYTE:
        return None, _read(payload, m.Error, details=None)
    operation = BY_TYPE_BYTE.get(type_byte)
    if operation is None:
        raise ProtocolError(f"unknown answer type 0x{type_byte:02X}", 0)
    return operation, _read(payload, operation.binary_response)


def _read(payload: bytes, kind: type[msgspec.Struct], **absent: None) -> Any:  # noqa: ANN401 - `kind` decides
    layout = LAYOUTS[kind]
    if not layout and len(payload) == 1:
        return kind(**absent)
    reader = Reader(payload, 1)
    values = [field.read(reader, name) for name, field in layout]
    reader.end(kind.__name__)
    return kind(*values, **absent)


def write_request(message: m.Message) -> bytes:
    """Return the payload of a request. Raises ValueError for fields that only JSON has."""
    operation = BY_REQUEST[type(message)]
    additive = {"id", "keys", "max_wait_ms"}.intersection(message.__struct_fields__)
    carried = sorted(name for name in additive if getattr(message, name) is not None)
    if carried:
        raise ValueError(f"the binary form of {operation.name} does not have {', '.join(carried)}")
    return _write(operation.type_byte, message)


def write_answer(operation: Operation | None, answer: msgspec.Struct) -> bytes:
    """Return the payload of an answer; fields that only the JSON form has are omitted."""
    if isinstance(answer, m.Error):
        return _write(ERROR_BYTE, answer)
    if operation is None:
        raise TypeError(f"{type(answer).__name__} answers no request; only an Error can")
    if operation.narrow is not None and type(answer) is operation.response:
        answer = operation.narrow(answer)
    if type(answer) is not operation.binary_response:
        raise TypeError(f"{type(answer).__name__} is not an answer to {operation.name}")
    return _write(operation.type_byte, answer)


def envelope(answer: m.PackedFetchResponse) -> tuple[bytes, bytes]:
    """Return the bytes before and after the rows of a packed answer."""
    return _ROWS_HEAD.pack(_FETCH_BYTE, answer.rows.number), _U64.pack(answer.next_offset)


def _write(type_byte: int, message: msgspec.Struct) -> bytes:
    parts = [bytes((type_byte,))]
    try:
        parts += [field.write(getattr(message, name)) for name, field in LAYOUTS[type(message)]]
    except struct.error as error:
        raise ValueError(f"a field of {type(message).__name__} does not fit its bytes: {error}") from error
    return b"".join(parts)
