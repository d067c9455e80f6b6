# ruff: noqa: C901, PLR0911, PLR0912, PLR0915
# - a hot loop is one function: a call per record costs as much as the record
"""The kernel in Python, for installs without a C compiler.

`section` raises the errors; `kernel` is the public interface.
Invariant: accepts and rejects exactly what the compiled kernel does, and gives the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from braidlog.codec.batch.records_section import INT64_MAX, INT64_MIN, RECORD_BYTES_MAX, Buffer, Header, read_headers
from braidlog.codec.errors import ProtocolError
from braidlog.codec.varint import encode_varint, encode_varlong, read_varint, read_varlong

# offsets, timestamps, keys, values, headers
Decoded = tuple[list[int], list[int], list[bytes | None], list[bytes | None], list[tuple[Header, ...]]]

_NUMBERS: list[bytes] = []
_NUMBERS_MAX = 65536
_ZIGZAG = tuple((number >> 1) ^ -(number & 1) for number in range(128))
_BYTES_OR_NONE = {bytes, type(None)}
_EMPTY: tuple[Header, ...] = ()


def are_plain(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps: Sequence[int] | None,
    headers: Sequence[tuple[Header, ...] | None] | None,
    base_timestamp: int,
) -> bool:
    """Return whether the columns are known to be valid without checking each item in Python.

    False means unknown.
    """
    if headers is not None or not set(map(type, values)) <= _BYTES_OR_NONE:
        return False
    if keys is not None and not set(map(type, keys)) <= _BYTES_OR_NONE:
        return False
    if timestamps:
        if not set(map(type, timestamps)) <= {int}:
            return False
        first, last = min(timestamps), max(timestamps)
        if first < INT64_MIN or last > INT64_MAX:
            return False
        if first - base_timestamp < INT64_MIN or last - base_timestamp > INT64_MAX:
            return False
    longest = max(map(len, filter(None, values)), default=0)
    if keys is not None:
        longest += max(map(len, filter(None, keys)), default=0)
    return longest <= RECORD_BYTES_MAX - 64


def encode_values(values: Sequence[bytes | None]) -> bytes:
    """Encode the most common batch in Python: values only. One list of parts, one join."""
    numbers = _varints_to(len(values))
    # Two fields around the offset delta depend only on the value's length and the offset delta's width.
    shapes: dict[int, tuple[bytes, bytes]] = {}
    parts: list[bytes] = []
    first = 0
    for width, stop in ((1, 64), (2, 8192), (3, 1048576), (4, 134217728), (5, 2**31)):
        shapes.clear()
        for number, value in zip(islice(numbers, first, stop), islice(values, first, stop), strict=False):
            if value is None:
                parts += (encode_varint(5 + width), b"\x00\x00", number, b"\x01\x01\x00")
                continue
            size = len(value)
            shape = shapes.get(size)
            if shape is None:
                length = encode_varint(size)
                shape = (encode_varint(4 + width + len(length) + size) + b"\x00\x00", b"\x01" + length)
                shapes[size] = shape
            parts += (shape[0], number, shape[1], value, b"\x00")
        first = stop
        if first >= len(values):
            break
    return b"".join(parts)


def encode_columns(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps: Sequence[int] | None,
    headers: Sequence[tuple[Header, ...] | None] | None,
    base_timestamp: int,
) -> bytes:
    """Encode any batch in Python. Lengths and deltas repeat, so their bytes are cached."""
    numbers = _varints_to(len(values))
    lengths: dict[int, bytes] = {}
    deltas: dict[int, bytes] = {0: b"\x00"}
    parts: list[bytes] = []
    delta = b"\x00"
    key = None
    tail = b"\x00"
    for index, value in enumerate(values):
        if timestamps is not None:
            distance = timestamps[index] - base_timestamp
            known = deltas.get(distance)
            if known is None:
                known = deltas[distance] = encode_varlong(distance)
            delta = known
        if keys is not None:
            key = keys[index]
        if headers is not None:
            tail = _encode_headers(headers[index])
        number = numbers[index]
        if key is None:
            before = delta + number + b"\x01"
        else:
            size = len(key)
            before = lengths.get(size) or lengths.setdefault(size, encode_varint(size))
            before = delta + number + before + key
        if value is None:
            body = len(before) + 2 + len(tail)
            middle, value = b"\x01", b""  # noqa: PLW2901 - a null is written as no bytes
        else:
            size = len(value)
            middle = lengths.get(size) or lengths.setdefault(size, encode_varint(size))
            body = len(before) + len(middle) + size + 1 + len(tail)
        length = lengths.get(body) or lengths.setdefault(body, encode_varint(body))
        parts += (length, b"\x00", before, middle, value, tail)
    return b"".join(parts)


def _encode_headers(headers: tuple[Header, ...] | None) -> bytes:
    if not headers:
        return b"\x00"
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        text = name.encode()
        parts += (encode_varint(len(text)), text)
        parts += (b"\x01",) if value is None else (encode_varint(len(value)), value)
    return b"".join(parts)


def _varints_to(count: int) -> list[bytes]:
    """Return the varints of 0 to count-1, and maybe more. They are cached up to a bound."""
    if count <= len(_NUMBERS):
        return _NUMBERS
    numbers = _NUMBERS + [encode_varint(number) for number in range(len(_NUMBERS), count)]
    if count <= _NUMBERS_MAX:
        _NUMBERS[:] = numbers
    return numbers


def decode_columns(
    records: Buffer,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_time: int | None,
) -> Decoded | None:
    """Return the columns of a section, or None if it is invalid.

    A record with a field too long or too short does not end where its length says, so one comparison at its end
    replaces a check per field. The last byte of each record is read by its index: beyond the section's end that
    raises IndexError, so an incomplete record is never accepted.
    """
    data = records if type(records) is bytes else bytes(records)
    offsets: list[int] = []
    timestamps: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[tuple[Header, ...]] = []
    add_offset, add_timestamp, add_key = offsets.append, timestamps.append, keys.append
    add_value, add_headers = values.append, headers.append
    position = 0
    expected = 0  # the offset delta as in a dense batch, still zigzag: 0, 2, 4 ...
    # Deltas of one and two bytes reach up to 8192: their sum needs a check only near the limits of 64 bits.
    near, far = (0x80, 0x4000) if INT64_MIN + 8192 <= base_timestamp <= INT64_MAX - 8192 else (0, 0)
    zigzag = _ZIGZAG
    try:
        for _ in range(count):
            number = data[position]
            if number < 0x80:
                position += 1
            else:
                number += (data[position + 1] << 7) - 0x80
                position += 2
                if number >= 0x4000:
                    length, position = read_varint(data, position - 2, len(data))
                    number = length << 1 if length >= 0 else 1
            if number & 1:
                return None
            stop = position + (number >> 1)

            number = data[position + 1]
            if number < near:
                add_timestamp(base_timestamp + zigzag[number])
                position += 2
            else:
                number += (data[position + 2] << 7) - 0x80
                if 0x80 <= number < far:
                    add_timestamp(base_timestamp + ((number >> 1) ^ -(number & 1)))
                    position += 3
                else:
                    timestamp, position = read_varlong(data, position + 1, stop)
                    timestamp += base_timestamp
                    if not INT64_MIN <= timestamp <= INT64_MAX:
                        return None
                    add_timestamp(timestamp)

            number = data[position]
            if number < 0x80:
                position += 1
            else:
                number += (data[position + 1] << 7) - 0x80
                position += 2
                if number >= 0x4000:
                    length, position = read_varint(data, position - 2, stop)
                    number = length << 1 if length >= 0 else 1
            if number != expected:
                if number & 1 or number < expected:
                    return None
                expected = number
            expected += 2
            add_offset(base_offset + (number >> 1))

            number = data[position]
            position += 1
            if number == 1:
                add_key(None)
            else:
                if number >= 0x80:
                    length, position = read_varint(data, position - 1, stop)
                    number = length << 1 if length >= 0 else -1 - (length << 1)
                if number & 1:
                    if number != 1:
                        return None
                    add_key(None)
                else:
                    number = position + (number >> 1)
                    add_key(data[position:number])
                    position = number

            number = data[position]
            if number < 0x80:
                position += 1
            else:
                number += (data[position + 1] << 7) - 0x80
                position += 2
                if number >= 0x4000:
                    length, position = read_varint(data, position - 2, stop)
                    number = length << 1 if length >= 0 else -1 - (length << 1)
            if number & 1:
                if number != 1:
                    return None
                add_value(None)
            else:
                number = position + (number >> 1)
                add_value(data[position:number])
                position = number

            if data[position]:
                some, position = read_headers(data, position, stop)
                add_headers(some)
            else:
                add_headers(_EMPTY)
                position += 1
            if position != stop:
                return None
    except (IndexError, ProtocolError):
        return None
    if position != len(data) or expected > 2 * last_offset_delta + 2:
        return None
    if append_time is not None:
        timestamps = [append_time] * count
    return offsets, timestamps, keys, values, headers
