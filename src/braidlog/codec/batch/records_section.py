"""Reads the records section of a batch one record at a time, and raises the errors for invalid bytes.

The slow reference implementation. The kernel reads the same bytes quickly and detects only *that* they are invalid;
it then calls `raise_section_error` for the message, so that compiled and Python kernel raise the same error. Tests compare the
kernel with `iter_records`.
Invariant: each field lies inside its record, each record inside the section, and the records fill the section
exactly.

    length           varint   bytes after this field
    attributes       i8       unused by the format, ignored
    timestamp delta  varlong  added to the batch's base timestamp
    offset delta     varint   added to the batch's base offset
    key length       varint   -1: null           key
    value length     varint   -1: null           value
    header count     varint   then each header:
      key length     varint   never null         key, UTF-8
      value length   varint   -1: null           value
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

from braidlog.codec.errors import ProtocolError
from braidlog.codec.varint import read_varint, read_varlong

Buffer = bytes | bytearray | memoryview
Header = tuple[str, bytes | None]
Row = tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]

RECORD_BYTES_MIN = 7  # a length and six fields of at least one byte each
RECORD_BYTES_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)


class Span(NamedTuple):
    """One record, and the position of its bytes in the section."""

    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


def iter_records(
    records: Buffer, count: int, last_offset_delta: int, *, base_timestamp: int = 0, dense: bool = False
) -> Iterator[Span]:
    """Yield each record of the section; raise at the first invalid byte."""
    size = len(records)
    if count < 0 or count > size // RECORD_BYTES_MIN:
        raise ProtocolError(f"{count} records do not fit {size} bytes")
    if dense and last_offset_delta != count - 1:
        raise ProtocolError(f"{count} consecutive records cannot end at offset delta {last_offset_delta}")
    position = 0
    delta_before = -1
    for index in range(count):
        span = _read_record(records, position, size)
        if span.offset_delta <= delta_before or span.offset_delta > last_offset_delta:
            raise ProtocolError(
                f"offset delta {span.offset_delta} is not in ({delta_before}, {last_offset_delta}]",
                position,
            )
        if dense and span.offset_delta != index:
            raise ProtocolError(f"offset delta is {span.offset_delta}, must be {index}", position)
        if not INT64_MIN <= base_timestamp + span.timestamp_delta <= INT64_MAX:
            raise ProtocolError(f"timestamp {base_timestamp} + {span.timestamp_delta} leaves 64 bits", position)
        yield span
        delta_before = span.offset_delta
        position = span.end
    if position != size:
        raise ProtocolError(f"{size - position} bytes follow the last record", position)


def raise_section_error(
    records: Buffer, count: int, last_offset_delta: int, *, base_timestamp: int = 0, dense: bool = False
) -> NoReturn:
    """Raise the error of a section that the kernel rejected."""
    for _ in iter_records(records, count, last_offset_delta, base_timestamp=base_timestamp, dense=dense):
        pass
    raise AssertionError("the kernel rejected a valid section")


def _read_record(records: Buffer, start: int, size: int) -> Span:
    length, position = read_varint(records, start, size)
    if length < RECORD_BYTES_MIN - 1:
        raise ProtocolError(f"record length {length} is shorter than six fields", start)
    end = position + length
    if end > size:
        raise ProtocolError(f"record of {length} bytes, {size - position} are left", start)
    timestamp_delta, position = read_varlong(records, position + 1, end)
    offset_delta, position = read_varint(records, position, end)
    key, position = _read_bytes(records, position, end)
    value, position = _read_bytes(records, position, end)
    headers, position = read_headers(records, position, end)
    if position != end:
        raise ProtocolError(f"{end - position} bytes of the record are left over", position)
    return Span(start, end, timestamp_delta, offset_delta, key, value, headers)


def _read_bytes(records: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    at = position
    length, position = read_varint(records, position, end)
    if length == -1:
        return None, position
    if length < 0 or length > end - position:
        raise ProtocolError(f"length {length} does not fit the {end - position} bytes left in the record", at)
    return bytes(records[position : position + length]), position + length


def read_headers(records: Buffer, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    """Return the headers at `position`, after their count, and the position after them."""
    at = position
    count, position = read_varint(records, position, end)
    if count < 0 or count > (end - position) // 2:
        raise ProtocolError(f"{count} headers do not fit {end - position} bytes", at)
    headers: list[Header] = []
    for _ in range(count):
        at = position
        key, position = _read_bytes(records, position, end)
        if key is None:
            raise ProtocolError("a header has no key", at)
        try:
            name = key.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("a header's key is not UTF-8", at) from error
        value, position = _read_bytes(records, position, end)
        headers.append((name, value))
    return tuple(headers), position


def check_columns(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps: Sequence[int] | None,
    headers: Sequence[tuple[Header, ...] | None] | None,
    base_timestamp: int,
) -> None:
    count = len(values)
    if keys is not None or timestamps is not None or headers is not None:
        for name, column in (("keys", keys), ("timestamps", timestamps), ("headers", headers)):
            if column is not None and len(column) != count:
                raise ValueError(f"{len(column)} {name} for {count} values")
    if count > RECORD_BYTES_MAX:
        raise ProtocolError(f"{count} records do not fit one batch")
    if not isinstance(base_timestamp, int):
        raise TypeError(f"a timestamp must be an int, not {type(base_timestamp).__name__}")
    if not INT64_MIN <= base_timestamp <= INT64_MAX:
        raise ProtocolError(f"timestamp {base_timestamp} does not fit 64 bits")


def raise_column_error(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps: Sequence[int] | None,
    headers: Sequence[tuple[Header, ...] | None] | None,
    base_timestamp: int,
) -> None:
    """Raise the error of the first item that cannot be written, for both implementations."""
    for index, value in enumerate(values):
        if timestamps is not None:
            _refuse_timestamp(timestamps[index], base_timestamp)
        size = _refuse_bytes("value", value)
        if keys is not None:
            size += _refuse_bytes("key", keys[index])
        if headers is not None:
            size += _refuse_headers(headers[index])
        # Generous by the few bytes of the fields' own lengths, which need not be exact here.
        if size > RECORD_BYTES_MAX - 64:
            raise ProtocolError(f"a record of {size} bytes does not fit a batch")


def _refuse_timestamp(timestamp: object, base_timestamp: int) -> None:
    if not isinstance(timestamp, int):
        raise TypeError(f"a timestamp must be an int, not {type(timestamp).__name__}")
    if not INT64_MIN <= timestamp <= INT64_MAX:
        raise ProtocolError(f"timestamp {timestamp} does not fit 64 bits")
    if not INT64_MIN <= timestamp - base_timestamp <= INT64_MAX:
        raise ProtocolError(f"timestamp {timestamp} is too far from the batch's {base_timestamp}")


def _refuse_bytes(name: str, item: object) -> int:
    if item is None:
        return 0
    if not isinstance(item, bytes):
        raise TypeError(f"a {name} must be bytes or None, not {type(item).__name__}")
    return len(item)


def _refuse_headers(headers: object) -> int:
    if headers is None:
        return 0
    if type(headers) is not tuple:
        raise TypeError(f"a record's headers must be a tuple, not {type(headers).__name__}")
    size = 0
    for pair in headers:
        if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not str:
            raise TypeError("a header must be a tuple of a str and bytes or None")
        try:
            size += len(pair[0].encode()) + 20
        except UnicodeEncodeError as error:
            raise ProtocolError(f"a header's key cannot be written as UTF-8: {error.reason}") from error
        size += _refuse_bytes("header's value", pair[1])
    return size


def check_bounds(records: Buffer, count: int, base_offset: int, last_offset_delta: int, base_timestamp: int) -> None:
    """Reject numbers wider than the kernel's, and a count that the bytes cannot hold, before reading."""
    if not 0 <= last_offset_delta < 2**31:
        raise ProtocolError(f"last offset delta {last_offset_delta} does not fit")
    if not 0 <= base_offset <= INT64_MAX - last_offset_delta:
        raise ProtocolError(f"base offset {base_offset} does not fit")
    if not INT64_MIN <= base_timestamp <= INT64_MAX:
        raise ProtocolError(f"timestamp {base_timestamp} does not fit 64 bits")
    if count < 0 or count > len(records) // RECORD_BYTES_MIN:
        raise ProtocolError(f"{count} records do not fit {len(records)} bytes")
