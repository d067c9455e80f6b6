"""Reads and writes the frequent commands in as few steps as Python allows.

The bytes equal those of `fields.py`, which declares them; a test compares the two. An unusual or invalid body gives
None, and the caller reads it again by the declaration, which reports the error.

    GET, DEL, INCR, DECR     key length 2 | key
    SET                      key length 2 | key | value length 4 | value [| TTL 4]
"""

import struct
from collections.abc import Callable
from typing import Any, Final

from braidlog.model.limits import KV_KEY_BYTES_MAX, KV_VALUE_BYTES_MAX
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.messages import Status

MAGIC: Final = 0xCAFE
FIRST: Final = MAGIC << 16 | 0x01 << 8
"""The first four bytes of a version 1 header, except the command or status."""

_OK: Final = FIRST | Status.OK

_HEADER: Final = struct.Struct(">III").pack
_WITH_LENGTH: Final = struct.Struct(">IIII").pack
_WITH_NUMBER: Final = struct.Struct(">IIIq").pack
_U32: Final = struct.Struct(">I").unpack_from
_I64: Final = struct.Struct(">q").unpack_from

Read = Callable[[bytes, int, int], Any]
"""read(data, start of the payload, its end) → the message, or None: use the declaration."""


def _reads_key(kind: type[m.Message]) -> Read:
    make: Any = kind

    def read(data: bytes, start: int, end: int) -> Any:  # noqa: ANN401 - a request, or None
        size = end - start - 2
        if 0 < size <= KV_KEY_BYTES_MAX and data[start] << 8 | data[start + 1] == size:
            return make(data[start + 2 : end])
        return None

    return read


def _reads_nothing(message: m.Message) -> Read:
    def read(_: bytes, start: int, end: int) -> Any:  # noqa: ANN401 - a request, or None
        return message if start == end else None

    return read


def _read_set(data: bytes, start: int, end: int) -> m.Set | None:
    if end - start < 7:
        return None
    key_at = start + 2
    value_at = key_at + (data[start] << 8 | data[start + 1]) + 4
    if value_at > end or not key_at + 4 < value_at <= key_at + KV_KEY_BYTES_MAX + 4:
        return None
    (size,) = _U32(data, value_at - 4)
    value_end = value_at + size
    if size > KV_VALUE_BYTES_MAX:
        return None
    if value_end == end:
        return m.Set(data[key_at : value_at - 4], data[value_at:end])
    if value_end + 4 == end:
        return m.Set(data[key_at : value_at - 4], data[value_at:value_end], _U32(data, value_end)[0])
    return None


READS: Final[dict[type[m.Message], Read]] = {
    m.Get: _reads_key(m.Get),
    m.Del: _reads_key(m.Del),
    m.Incr: _reads_key(m.Incr),
    m.Decr: _reads_key(m.Decr),
    m.Ping: _reads_nothing(m.Ping()),
    m.Set: _read_set,
}


def _read_value(data: bytes, start: int, end: int) -> m.Value | None:
    if end - start >= 4 and _U32(data, start)[0] == end - start - 4 <= KV_VALUE_BYTES_MAX:
        return m.Value(data[start + 4 : end])
    return None


def _read_number(data: bytes, start: int, end: int) -> m.Number | None:
    return m.Number(_I64(data, start)[0]) if end - start == 8 else None


ANSWERS: Final[dict[type[m.Message], Read]] = {
    m.Value: _read_value,
    m.Number: _read_number,
    m.Done: _reads_nothing(m.DONE),
    m.Stored: _reads_nothing(m.STORED),
}
"""Readers of the bodies of an OK, for a client."""


def _write_value(request_id: int, answer: m.Value) -> bytes:
    value = answer.value
    size = len(value)
    return _WITH_LENGTH(_OK, request_id, size + 4, size) + value


def _write_done(request_id: int, _: m.Done) -> bytes:
    return _HEADER(_OK, request_id, 0)


def _write_stored(request_id: int, answer: m.Stored) -> bytes | None:
    return _HEADER(_OK, request_id, 0) if answer.stored else None


def _write_number(request_id: int, answer: m.Number) -> bytes:
    return _WITH_NUMBER(_OK, request_id, 8, answer.number)


def _write_failure(request_id: int, answer: m.Failure) -> bytes | None:
    return _HEADER(FIRST | answer.status, request_id, 0) if not answer.message else None


Write = Callable[[int, Any], bytes | None]
"""write(request id, answer) → the frame, or None: use the declaration."""

WRITES: Final[dict[type[m.Message], Write]] = {
    m.Value: _write_value,
    m.Done: _write_done,
    m.Stored: _write_stored,
    m.Number: _write_number,
    m.Failure: _write_failure,
}
