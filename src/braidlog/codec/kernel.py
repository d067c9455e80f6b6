# cython: cdivision=True
# ruff: noqa: B007, C901, ERA001, F821, FURB136, PLR0911, PLR0913, PLR0915, PLR0917, RET505
# - a hot loop is one function: a call per record costs as much as the record
# - a local of a C type, a loop's too, is declared by its annotation and has no value yet; C has no max() of
# its own
# - the compiler drops the other twin's branch only where it is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call"
# - what is inside `_..._compiled` is C: its checker is the C compiler
"""The record kernel: columns of values to the bytes of a batch's records section, and back.

Knows: how records are packed. Compiled to C by Cython; without a compiler the same file runs as it is, and
the work is done by `plain`. Refuses to know: batch headers, compression, checksums, `Record` objects.
Invariant: both twins give the same bytes, the same values and the same errors; malformed input gives
ProtocolError and nothing else; no byte outside the section is ever read. All reading of foreign bytes in C is
in `_next_record`, the two readers of headers and the varint readers they call: each compares with the end
before each byte. A twin only finds out *that* something is wrong; `section` says what, for both.

The GIL is held throughout. No Python code runs between measuring a list and writing its bytes (types are
looked at before any conversion, so that no `__index__` can run). Where objects are made while reading, and
Python code could run and change the buffer, bytes are checked again at their second reading.
"""

from __future__ import annotations

from collections.abc import Sequence

from braidlog.codec import plain
from braidlog.codec.errors import ProtocolError
from braidlog.codec.section import (
    INT64_MAX,
    INT64_MIN,
    Buffer,
    Header,
    Row,
    check_bounds,
    check_columns,
    iter_records,
    refuse,
    refuse_columns,
)

try:
    import cython
except ImportError:
    from braidlog.codec import nocython as cython

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
    from cython.cimports.cpython.long import PyLong_AsLongLongAndOverflow
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
    from cython.cimports.libc.string import memcpy

COMPILED: bool = bool(cython.compiled)

COLUMN_BYTES_MAX = 2**31 - 1  # Arrow's binary columns count bytes in 32 bits

_EMPTY: tuple[Header, ...] = ()

# One record as `_next_record` found it. Pointers into the section; a length of -1 is null.
_Span = cython.struct(
    timestamp_delta=cython.longlong,
    offset_delta=cython.longlong,
    key=cython.p_uchar,
    key_length=cython.longlong,
    value=cython.p_uchar,
    value_length=cython.longlong,
    headers=cython.p_uchar,
    header_count=cython.longlong,
)

# One record as it will be written: lengths of -1 are null, `body` is the record's own length field.
_Sizes = cython.struct(
    timestamp_delta=cython.longlong,
    key=cython.longlong,
    value=cython.longlong,
    body=cython.longlong,
)

# One Arrow column while a batch is added to it: where its buffers are, what they hold, what they have room
# for.
_Column = cython.struct(
    validity=cython.p_uchar,
    ends=cython.p_int,
    data=cython.p_uchar,
    rows=cython.longlong,
    size=cython.longlong,
    nulls=cython.longlong,
    rows_room=cython.longlong,
    bytes_room=cython.longlong,
)

# ---------------------------------------------------------------------------------------------- reading, in C


@cython.cfunc
@cython.exceptval(check=False)
def _varint_slow(
    p: cython.p_uchar,
    end: cython.p_uchar,
    bytes_max: cython.int,
    last_max: cython.uint,
    out: cython.p_longlong,
) -> cython.p_uchar:
    """Any varint of at most `bytes_max` bytes; NULL when it is cut off, too long or too wide."""
    value: cython.ulonglong = 0
    byte: cython.ulonglong
    index: cython.int
    for index in range(bytes_max):
        if p >= end:
            return cython.NULL
        byte = p[0]
        p += 1
        if index == bytes_max - 1 and byte > last_max:
            return cython.NULL
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            out[0] = cython.cast(cython.longlong, value >> 1) ^ -cython.cast(cython.longlong, value & 1)
            return p
    return cython.NULL


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint(p: cython.p_uchar, end: cython.p_uchar, out: cython.p_longlong) -> cython.p_uchar:
    """A 32-bit varint; one byte and two bytes, nearly all there are, without a loop."""
    value: cython.uint
    if end - p >= 2:
        value = p[0]
        if value < 0x80:
            out[0] = cython.cast(cython.longlong, value >> 1) ^ -cython.cast(cython.longlong, value & 1)
            return p + 1
        if p[1] < 0x80:
            value = (value & 0x7F) | (cython.cast(cython.uint, p[1]) << 7)
            out[0] = cython.cast(cython.longlong, value >> 1) ^ -cython.cast(cython.longlong, value & 1)
            return p + 2
    return _varint_slow(p, end, 5, 0x0F, out)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varlong(p: cython.p_uchar, end: cython.p_uchar, out: cython.p_longlong) -> cython.p_uchar:
    value: cython.uint
    if p < end and p[0] < 0x80:
        value = p[0]
        out[0] = cython.cast(cython.longlong, value >> 1) ^ -cython.cast(cython.longlong, value & 1)
        return p + 1
    return _varint_slow(p, end, 10, 0x01, out)


@cython.cfunc
@cython.exceptval(check=False)
def _is_utf8(p: cython.p_uchar, length: cython.longlong) -> cython.bint:
    index: cython.longlong
    for index in range(length):
        if p[index] >= 0x80:
            try:
                PyUnicode_DecodeUTF8(cython.cast(cython.p_char, p), length, cython.NULL)
            except UnicodeDecodeError:
                return False
            return True
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _skip_headers(p: cython.p_uchar, end: cython.p_uchar, count: cython.longlong) -> cython.p_uchar:
    """The position after `count` headers, each checked; NULL when one is malformed."""
    length: cython.longlong = 0
    index: cython.longlong
    for index in range(count):
        p = _varint(p, end, cython.address(length))
        if p == cython.NULL or length < 0 or length > end - p or not _is_utf8(p, length):
            return cython.NULL
        p += length
        p = _varint(p, end, cython.address(length))
        if p == cython.NULL or length < -1 or length > end - p:
            return cython.NULL
        if length > 0:
            p += length
    return p


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _next_record(p: cython.p_uchar, end: cython.p_uchar, span: cython.pointer(_Span)) -> cython.p_uchar:
    """Read the record at `p` into `span`.

    The position after it, or NULL when any rule of the format is broken.
    """
    length: cython.longlong = 0
    stop: cython.p_uchar
    p = _varint(p, end, cython.address(length))
    if p == cython.NULL or length < 6 or length > end - p:
        return cython.NULL
    stop = p + length
    p = _varlong(p + 1, stop, cython.address(span.timestamp_delta))
    if p == cython.NULL:
        return cython.NULL
    p = _varint(p, stop, cython.address(span.offset_delta))
    if p == cython.NULL:
        return cython.NULL
    p = _varint(p, stop, cython.address(length))
    if p == cython.NULL or length < -1 or length > stop - p:
        return cython.NULL
    span.key = p
    span.key_length = length
    if length > 0:
        p += length
    p = _varint(p, stop, cython.address(length))
    if p == cython.NULL or length < -1 or length > stop - p:
        return cython.NULL
    span.value = p
    span.value_length = length
    if length > 0:
        p += length
    p = _varint(p, stop, cython.address(length))
    if p == cython.NULL or length < 0 or length > (stop - p) >> 1:
        return cython.NULL
    span.headers = p
    span.header_count = length
    if length > 0:
        p = _skip_headers(p, stop, length)
        if p == cython.NULL:
            return cython.NULL
    if p != stop:
        return cython.NULL
    return p


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _leaves_64_bits(base: cython.longlong, delta: cython.longlong) -> cython.bint:
    if delta >= 0:
        return base > cython.cast(cython.longlong, 0x7FFFFFFFFFFFFFFF) - delta
    return base < -cython.cast(cython.longlong, 0x7FFFFFFFFFFFFFFF) - 1 - delta


@cython.cfunc
def _read_headers(p: cython.p_uchar, end: cython.p_uchar, count: cython.longlong) -> object:
    """The headers as a tuple, or None when one is malformed.

    Checked again: making objects can run Python code.
    """
    length: cython.longlong = 0
    index: cython.longlong
    headers: list = []
    for index in range(count):
        p = _varint(p, end, cython.address(length))
        if p == cython.NULL or length < 0 or length > end - p:
            return None
        try:
            name = PyUnicode_DecodeUTF8(cython.cast(cython.p_char, p), length, cython.NULL)
        except UnicodeDecodeError:
            return None
        p += length
        p = _varint(p, end, cython.address(length))
        if p == cython.NULL or length < -1 or length > end - p:
            return None
        headers.append((name, _bytes_or_none(p, length)))
        if length > 0:
            p += length
    return tuple(headers)


@cython.cfunc
@cython.inline
def _bytes_or_none(p: cython.p_uchar, length: cython.longlong) -> object:
    if length < 0:
        return None
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, p), length)


# ---------------------------------------------------------------------------------------------- writing, in C


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint_size(value: cython.longlong) -> cython.longlong:
    u: cython.ulonglong = (cython.cast(cython.ulonglong, value) << 1) ^ cython.cast(cython.ulonglong, value >> 63)
    size: cython.longlong = 1
    while u >= 0x80:
        u >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_varint(p: cython.p_uchar, value: cython.longlong) -> cython.p_uchar:
    u: cython.ulonglong = (cython.cast(cython.ulonglong, value) << 1) ^ cython.cast(cython.ulonglong, value >> 63)
    while u >= 0x80:
        p[0] = cython.cast(cython.uchar, u | 0x80)
        u >>= 7
        p += 1
    p[0] = cython.cast(cython.uchar, u)
    return p + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _size_of(item: object) -> cython.longlong:
    """The length of a bytes object, -1 of None, -2 of anything else."""
    if item is None:
        return -1
    if not isinstance(item, bytes):
        return -2
    return PyBytes_GET_SIZE(item)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_bytes(p: cython.p_uchar, item: object, size: cython.longlong) -> cython.p_uchar:
    p = _put_varint(p, size)
    if size > 0:
        memcpy(p, PyBytes_AS_STRING(item), size)
        p += size
    return p


@cython.cfunc
@cython.exceptval(check=False)
def _headers_size(headers: object) -> cython.longlong:
    """The bytes of one record's headers with their count; -1 when the format cannot hold them."""
    total: cython.longlong
    size: cython.longlong
    length: cython.Py_ssize_t = 0
    if headers is None:
        return 1
    if type(headers) is not tuple:
        return -1
    pairs: tuple = headers
    total = _varint_size(len(pairs))
    for pair in pairs:
        if type(pair) is not tuple or len(cython.cast(tuple, pair)) != 2:
            return -1
        name = cython.cast(tuple, pair)[0]
        size = _size_of(cython.cast(tuple, pair)[1])
        if type(name) is not str or size < -1:
            return -1
        try:
            PyUnicode_AsUTF8AndSize(name, cython.address(length))
        except UnicodeEncodeError:
            return -1
        total += _varint_size(length) + length + _varint_size(size) + (size if size > 0 else 0)
    return total


@cython.cfunc
def _put_headers(p: cython.p_uchar, headers: object) -> cython.p_uchar:
    length: cython.Py_ssize_t = 0
    text: cython.p_const_char
    if headers is None:
        p[0] = 0
        return p + 1
    pairs: tuple = headers
    p = _put_varint(p, len(pairs))
    for pair in pairs:
        name = cython.cast(tuple, pair)[0]
        value = cython.cast(tuple, pair)[1]
        text = PyUnicode_AsUTF8AndSize(name, cython.address(length))
        p = _put_varint(p, length)
        memcpy(p, text, length)
        p += length
        p = _put_bytes(p, value, _size_of(value))
    return p


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _timestamp_delta(timestamp: object, base: cython.longlong, delta: cython.p_longlong) -> cython.bint:
    """Whether `timestamp` is an int whose distance from the base fits 64 bits; the distance in `delta`."""
    overflow: cython.int = 0
    stamp: cython.longlong
    if not isinstance(timestamp, int):
        return False
    stamp = PyLong_AsLongLongAndOverflow(timestamp, cython.address(overflow))
    if overflow != 0:
        return False
    if base > 0 and stamp < -cython.cast(cython.longlong, 0x7FFFFFFFFFFFFFFF) - 1 + base:
        return False
    if base < 0 and stamp > cython.cast(cython.longlong, 0x7FFFFFFFFFFFFFFF) + base:
        return False
    delta[0] = stamp - base
    return True


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _measure(
    value: object, key: object, headers: object, index: cython.longlong, m: cython.pointer(_Sizes)
) -> cython.bint:
    """Fill `m` but for its timestamp delta, which is there already.

    False when the format cannot hold the record.
    """
    m.value = _size_of(value)
    m.key = _size_of(key)
    if m.value < -1 or m.key < -1:
        return False
    headers_size: cython.longlong = 1 if headers is None else _headers_size(headers)
    if headers_size < 0:
        return False
    m.body = 1 + _varint_size(m.timestamp_delta) + _varint_size(index) + headers_size
    m.body += _varint_size(m.key) + (m.key if m.key > 0 else 0)
    m.body += _varint_size(m.value) + (m.value if m.value > 0 else 0)
    return m.body <= 0x7FFFFFFF


# ------------------------------------------------------------------------------------------------ encode


def encode_records(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps: Sequence[int] | None,
    headers: Sequence[tuple[Header, ...] | None] | None,
    base_timestamp: int,
) -> bytes:
    """The records section of a batch of `values`: offset deltas 0 to n-1, timestamps relative to the base.

    A column of None is a column of nothing: null keys, the base timestamp, no headers. ProtocolError for what
    the format cannot hold, TypeError for what is not bytes, int or str, ValueError for columns of unequal
    length.
    """
    values = values if type(values) is list else list(values)
    keys = keys if keys is None or type(keys) is list else list(keys)
    timestamps = timestamps if timestamps is None or type(timestamps) is list else list(timestamps)
    headers = headers if headers is None or type(headers) is list else list(headers)
    check_columns(values, keys, timestamps, headers, base_timestamp)
    if cython.compiled:
        section = _encode_compiled(values, keys, timestamps, headers, base_timestamp)
        if section is None:
            refuse_columns(values, keys, timestamps, headers, base_timestamp)
            raise AssertionError("the kernel refused columns that keep every rule")
        return section
    else:
        if not plain.are_plain(values, keys, timestamps, headers, base_timestamp):
            refuse_columns(values, keys, timestamps, headers, base_timestamp)
        if keys is None and timestamps is None and headers is None:
            return plain.encode_values(values)
        return plain.encode_columns(values, keys, timestamps, headers, base_timestamp)


@cython.cfunc
def _encode_compiled(values: list, keys: object, timestamps: object, headers: object, base_timestamp: object) -> object:
    """The section, or None when an item is refused. Measured exactly, allocated once, then written."""
    count: cython.Py_ssize_t = len(values)
    index: cython.Py_ssize_t
    base: cython.longlong = base_timestamp
    total: cython.longlong = 0
    m: _Sizes
    p: cython.p_uchar
    key: object = None
    pairs: object = None
    m.timestamp_delta = 0
    for index in range(count):
        if keys is not None:
            key = cython.cast(list, keys)[index]
        if headers is not None:
            pairs = cython.cast(list, headers)[index]
        if timestamps is not None and not _timestamp_delta(
            cython.cast(list, timestamps)[index], base, cython.address(m.timestamp_delta)
        ):
            return None
        if not _measure(values[index], key, pairs, index, cython.address(m)):
            return None
        total += _varint_size(m.body) + m.body
    section: bytes = PyBytes_FromStringAndSize(cython.NULL, total)
    p = cython.cast(cython.p_uchar, PyBytes_AS_STRING(section))
    for index in range(count):
        if keys is not None:
            key = cython.cast(list, keys)[index]
        if headers is not None:
            pairs = cython.cast(list, headers)[index]
        if timestamps is not None:
            _timestamp_delta(cython.cast(list, timestamps)[index], base, cython.address(m.timestamp_delta))
        _measure(values[index], key, pairs, index, cython.address(m))
        p = _put_varint(p, m.body)
        p[0] = 0
        p = _put_varint(p + 1, m.timestamp_delta)
        p = _put_varint(p, index)
        p = _put_bytes(p, key, m.key)
        p = _put_bytes(p, values[index], m.value)
        p = _put_headers(p, pairs)
    assert p == cython.cast(cython.p_uchar, PyBytes_AS_STRING(section)) + total
    return section


# ------------------------------------------------------------------------------------------------ decode


def decode_records(
    records: Buffer,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_time: int | None = None,
) -> list[Row]:
    """Each record as (offset, timestamp, key, value, headers).

    `append_time`, when given, is every timestamp.
    """
    check_bounds(records, count, base_offset, last_offset_delta, base_timestamp)
    if cython.compiled:
        rows = _decode_compiled(records, count, base_offset, last_offset_delta, base_timestamp, append_time)
    else:
        columns = plain.decode_columns(records, count, base_offset, last_offset_delta, base_timestamp, append_time)
        rows = None if columns is None else list(zip(*columns, strict=True))
    if rows is None:
        refuse(records, count, last_offset_delta, base_timestamp=base_timestamp)
    return rows


@cython.cfunc
def _decode_compiled(
    records: object,
    count: cython.longlong,
    base_offset: cython.longlong,
    last_offset_delta: cython.longlong,
    base_timestamp: cython.longlong,
    append_time: object,
) -> object:
    view: Py_buffer
    span: _Span
    p: cython.p_uchar
    end: cython.p_uchar
    index: cython.longlong
    before: cython.longlong = -1
    rows: list = []
    timestamp: object
    headers: object
    PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
    try:
        p = cython.cast(cython.p_uchar, view.buf)
        end = p + view.len
        for index in range(count):
            p = _next_record(p, end, cython.address(span))
            if p == cython.NULL or span.offset_delta <= before or span.offset_delta > last_offset_delta:
                return None
            if _leaves_64_bits(base_timestamp, span.timestamp_delta):
                return None
            before = span.offset_delta
            headers = _EMPTY
            if span.header_count > 0:
                headers = _read_headers(span.headers, p, span.header_count)
                if headers is None:
                    return None
            timestamp = append_time
            if timestamp is None:
                timestamp = base_timestamp + span.timestamp_delta
            rows.append(
                (
                    base_offset + span.offset_delta,
                    timestamp,
                    _bytes_or_none(span.key, span.key_length),
                    _bytes_or_none(span.value, span.value_length),
                    headers,
                )
            )
        return rows if p == end else None
    finally:
        PyBuffer_Release(cython.address(view))


# ---------------------------------------------------------------------------------------- check, scan, select


def check_records(
    records: Buffer, count: int, last_offset_delta: int, base_timestamp: int, *, dense: bool = False
) -> int | None:
    """Raise unless the section keeps every rule; the largest timestamp, None when there are no records.

    `dense`: offset deltas are 0 to count-1 and the last is `last_offset_delta`, as in every batch a client
    produces.
    """
    check_bounds(records, count, 0, last_offset_delta, base_timestamp)
    # Deltas that rise strictly and end by count-1 can only be 0 to count-1: nothing else is left to check per
    # record.
    if dense and last_offset_delta != count - 1:
        refuse(records, count, last_offset_delta, base_timestamp=base_timestamp, dense=True)
    sound: bool
    newest: int | None
    if cython.compiled:
        sound, newest = _check_compiled(records, count, last_offset_delta, base_timestamp)
    else:
        columns = plain.decode_columns(records, count, 0, last_offset_delta, base_timestamp, None)
        sound = columns is not None
        newest = None if columns is None else max(columns[1], default=None)
    if not sound:
        refuse(records, count, last_offset_delta, base_timestamp=base_timestamp, dense=dense)
    return newest


@cython.cfunc
def _check_compiled(
    records: object,
    count: cython.longlong,
    last_offset_delta: cython.longlong,
    base_timestamp: cython.longlong,
) -> tuple:
    view: Py_buffer
    span: _Span
    p: cython.p_uchar
    end: cython.p_uchar
    index: cython.longlong
    before: cython.longlong = -1
    newest: cython.longlong = 0
    PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
    try:
        p = cython.cast(cython.p_uchar, view.buf)
        end = p + view.len
        for index in range(count):
            p = _next_record(p, end, cython.address(span))
            if p == cython.NULL or span.offset_delta <= before or span.offset_delta > last_offset_delta:
                return False, None
            if _leaves_64_bits(base_timestamp, span.timestamp_delta):
                return False, None
            before = span.offset_delta
            if index == 0 or base_timestamp + span.timestamp_delta > newest:
                newest = base_timestamp + span.timestamp_delta
        return p == end, (None if count == 0 else newest)
    finally:
        PyBuffer_Release(cython.address(view))


def scan_keys(records: Buffer, count: int, last_offset_delta: int) -> list[tuple[int, bytes | None, bool]]:
    """Each record as (offset delta, key, whether its value is null): what log compaction decides by."""
    check_bounds(records, count, 0, last_offset_delta, 0)
    rows: list[tuple[int, bytes | None, bool]] | None
    if cython.compiled:
        rows = _scan_compiled(records, count, last_offset_delta)
    else:
        columns = plain.decode_columns(records, count, 0, last_offset_delta, 0, None)
        if columns is None:
            rows = None
        else:
            deltas, _, keys, values, _ = columns
            rows = [(delta, key, value is None) for delta, key, value in zip(deltas, keys, values, strict=True)]
    if rows is None:
        refuse(records, count, last_offset_delta)
    return rows


@cython.cfunc
def _scan_compiled(records: object, count: cython.longlong, last_offset_delta: cython.longlong) -> object:
    view: Py_buffer
    span: _Span
    p: cython.p_uchar
    end: cython.p_uchar
    index: cython.longlong
    before: cython.longlong = -1
    rows: list = []
    PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
    try:
        p = cython.cast(cython.p_uchar, view.buf)
        end = p + view.len
        for index in range(count):
            p = _next_record(p, end, cython.address(span))
            if p == cython.NULL or span.offset_delta <= before or span.offset_delta > last_offset_delta:
                return None
            before = span.offset_delta
            rows.append((span.offset_delta, _bytes_or_none(span.key, span.key_length), span.value_length < 0))
        return rows if p == end else None
    finally:
        PyBuffer_Release(cython.address(view))


def select_records(
    records: Buffer, count: int, last_offset_delta: int, keep: Sequence[bool]
) -> tuple[bytes, int, int | None]:
    """The raw bytes of the records whose place in `keep` is true, their number, and their largest timestamp
    delta.

    The bytes of a kept record are not touched: it keeps its offset and timestamp deltas. None when none is
    kept.
    """
    check_bounds(records, count, 0, last_offset_delta, 0)
    if len(keep) != count:
        raise ValueError(f"{len(keep)} choices for {count} records")
    choices = bytes(map(bool, keep))
    if cython.compiled:
        selected = _select_compiled(records, count, last_offset_delta, choices)
        if selected is None:
            refuse(records, count, last_offset_delta)
        return selected
    else:
        spans = iter_records(records, count, last_offset_delta)
        kept = [span for span, chosen in zip(spans, choices + b"\x00", strict=False) if chosen]
        newest = max([span.timestamp_delta for span in kept], default=None)
        return b"".join([bytes(records[span.start : span.end]) for span in kept]), len(kept), newest


@cython.cfunc
def _select_compiled(
    records: object, count: cython.longlong, last_offset_delta: cython.longlong, choices: bytes
) -> object:
    view: Py_buffer
    span: _Span
    p: cython.p_uchar
    start: cython.p_uchar
    end: cython.p_uchar
    index: cython.longlong
    before: cython.longlong = -1
    newest: cython.longlong = 0
    kept: cython.longlong = 0
    parts: list = []
    chosen: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(choices))
    PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
    try:
        p = cython.cast(cython.p_uchar, view.buf)
        end = p + view.len
        for index in range(count):
            start = p
            p = _next_record(p, end, cython.address(span))
            if p == cython.NULL or span.offset_delta <= before or span.offset_delta > last_offset_delta:
                return None
            before = span.offset_delta
            if chosen[index]:
                if kept == 0 or span.timestamp_delta > newest:
                    newest = span.timestamp_delta
                kept += 1
                parts.append(PyBytes_FromStringAndSize(cython.cast(cython.p_char, start), p - start))
        if p != end:
            return None
        return b"".join(parts), kept, (None if kept == 0 else newest)
    finally:
        PyBuffer_Release(cython.address(view))


# ---------------------------------------------------------------------------------------------- Arrow columns


class BinaryColumn:
    """One Arrow column of bytes, growing: `ends` are its 32-bit offsets with the leading 0, `validity` its
    null bits.

    Only the first `rows` rows and `size` bytes count. Until `finish`, `validity` has a byte a row in the
    plain twin.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.size = 0
        self.nulls = 0
        self.validity = bytearray()
        self.ends = bytearray(4)
        self.data = bytearray()

    def finish(self) -> None:
        """Cut the buffers to what counts."""
        if cython.compiled:
            del self.validity[(self.rows + 7) // 8 :]
            if self.rows % 8:
                self.validity[-1] &= (1 << self.rows % 8) - 1
        else:
            self.validity = plain.packed_bits(self.validity)
        del self.ends[4 * (self.rows + 1) :]
        del self.data[self.size :]


class Columns:
    """Grows Arrow columns batch by batch: offset, timestamp in milliseconds, key, value, headers.

    A batch is appended whole or not at all: what a refused batch wrote lies beyond the rows that count. A
    record without headers has a null list. Columns that are not wanted are checked like the others and stay
    empty. After `finish` the buffers are Arrow's, in the machine's own byte order.
    """

    def __init__(self, *, want_key: bool = True, want_value: bool = True, want_headers: bool = True) -> None:
        self.want_key = want_key
        self.want_value = want_value
        self.want_headers = want_headers
        self.rows = 0
        self.offsets = bytearray()
        self.timestamps = bytearray()
        self.key = BinaryColumn()
        self.value = BinaryColumn()
        self.header_lists = BinaryColumn()  # `size` and `ends` count headers; it has no data of its own
        self.header_key = BinaryColumn()
        self.header_value = BinaryColumn()

    def append(
        self,
        records: Buffer,
        count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        append_time: int | None = None,
        *,
        start_offset: int = 0,
        end_offset: int = INT64_MAX,
    ) -> None:
        """Add the records of one section whose offsets are in [start_offset, end_offset)."""
        check_bounds(records, count, base_offset, last_offset_delta, base_timestamp)
        if append_time is not None and not INT64_MIN <= append_time <= INT64_MAX:
            raise ProtocolError(f"timestamp {append_time} does not fit 64 bits")
        used = max(self.key.size, self.value.size, self.header_key.size, self.header_value.size, 8 * self.rows)
        if used + len(records) > COLUMN_BYTES_MAX:
            raise OverflowError(f"{used + len(records)} bytes do not fit one Arrow column")
        if cython.compiled:
            start_offset = min(max(start_offset, 0), INT64_MAX)
            end_offset = min(max(end_offset, 0), INT64_MAX)
            sound = _append_compiled(
                self,
                records,
                count,
                base_offset,
                last_offset_delta,
                base_timestamp,
                append_time,
                start_offset,
                end_offset,
            )
        else:
            decoded = plain.decode_columns(records, count, base_offset, last_offset_delta, base_timestamp, append_time)
            sound = decoded is not None
            if decoded is not None:
                plain.append_columns(self, decoded, start_offset, end_offset)
        if not sound:
            refuse(records, count, last_offset_delta, base_timestamp=base_timestamp)

    def finish(self) -> None:
        """Cut every buffer to what counts. Nothing may be appended afterwards."""
        del self.offsets[8 * self.rows :]
        del self.timestamps[8 * self.rows :]
        for column in (self.key, self.value, self.header_lists, self.header_key, self.header_value):
            column.finish()


@cython.cfunc
def _reserve(
    column: object, c: cython.pointer(_Column), more_rows: cython.longlong, more_bytes: cython.longlong
) -> object:
    """Room for that many rows and bytes behind what `c` has.

    Doubled, so that many small batches move little.
    """
    validity: bytearray = column.validity
    ends: bytearray = column.ends
    data: bytearray = column.data
    if c.rows + more_rows > c.rows_room:
        c.rows_room = max(c.rows + more_rows, 2 * c.rows_room)
        PyByteArray_Resize(validity, (c.rows_room + 7) >> 3)
        PyByteArray_Resize(ends, 4 * (c.rows_room + 1))
    if more_bytes > 0 and c.size + more_bytes > c.bytes_room:
        c.bytes_room = max(c.size + more_bytes, 2 * c.bytes_room)
        PyByteArray_Resize(data, c.bytes_room)
    c.validity = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(validity))
    c.ends = cython.cast(cython.p_int, PyByteArray_AS_STRING(ends))
    c.data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(data))
    return None


@cython.cfunc
def _open_column(column: object, c: cython.pointer(_Column), rows: cython.longlong, size: cython.longlong) -> object:
    c.rows = column.rows
    c.size = column.size
    c.nulls = column.nulls
    c.rows_room = len(column.ends) // 4 - 1
    c.bytes_room = len(column.data)
    _reserve(column, c, rows, size)
    # A batch that was refused may have left bits behind the last row that counts.
    if c.rows & 7 != 0:
        c.validity[c.rows >> 3] &= (1 << (c.rows & 7)) - 1
    return None


@cython.cfunc
def _close_column(column: object, c: cython.pointer(_Column)) -> object:
    column.rows = c.rows
    column.size = c.size
    column.nulls = c.nulls
    return None


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _add(c: cython.pointer(_Column), p: cython.p_uchar, length: cython.longlong) -> cython.void:
    """One more row of `length`, -1 for null.

    The room was reserved before. Without `p`, a list of that many items.
    """
    if c.rows & 7 == 0:
        c.validity[c.rows >> 3] = 0
    if length < 0:
        c.nulls += 1
    else:
        c.validity[c.rows >> 3] |= 1 << (c.rows & 7)
        if p != cython.NULL:
            memcpy(c.data + c.size, p, length)
        c.size += length
    c.rows += 1
    c.ends[c.rows] = cython.cast(cython.int, c.size)


@cython.cfunc
def _add_headers(
    columns: object,
    keys: cython.pointer(_Column),
    values: cython.pointer(_Column),
    p: cython.p_uchar,
    end: cython.p_uchar,
    count: cython.longlong,
) -> cython.bint:
    """The headers of one record; each is checked again, as `_read_headers` does."""
    length: cython.longlong = 0
    index: cython.longlong
    _reserve(columns.header_key, keys, count, end - p)
    _reserve(columns.header_value, values, count, end - p)
    for index in range(count):
        p = _varint(p, end, cython.address(length))
        if p == cython.NULL or length < 0 or length > end - p:
            return False
        _add(keys, p, length)
        p += length
        p = _varint(p, end, cython.address(length))
        if p == cython.NULL or length < -1 or length > end - p:
            return False
        _add(values, p, length)
        if length > 0:
            p += length
    return True


@cython.cfunc
def _append_compiled(
    columns: object,
    records: object,
    count: cython.longlong,
    base_offset: cython.longlong,
    last_offset_delta: cython.longlong,
    base_timestamp: cython.longlong,
    append_time: object,
    start_offset: cython.longlong,
    end_offset: cython.longlong,
) -> cython.bint:
    """Whether the section kept every rule; if not, the columns are as they were."""
    view: Py_buffer
    span: _Span
    keys: _Column
    values: _Column
    lists: _Column
    header_keys: _Column
    header_values: _Column
    p: cython.p_uchar
    end: cython.p_uchar
    index: cython.longlong
    offset: cython.longlong
    before: cython.longlong = -1
    row: cython.longlong = columns.rows
    stamped: cython.bint = append_time is not None
    stamp: cython.longlong = append_time if append_time is not None else 0
    want_key: cython.bint = columns.want_key
    want_value: cython.bint = columns.want_value
    want_headers: cython.bint = columns.want_headers
    offsets_room: bytearray = columns.offsets
    timestamps_room: bytearray = columns.timestamps
    offsets: cython.p_longlong
    timestamps: cython.p_longlong
    if 8 * (row + count) > len(offsets_room):
        PyByteArray_Resize(offsets_room, 8 * max(row + count, 2 * row))
        PyByteArray_Resize(timestamps_room, 8 * max(row + count, 2 * row))
    offsets = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(offsets_room))
    timestamps = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(timestamps_room))
    PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
    try:
        _open_column(columns.key, cython.address(keys), count, view.len)
        _open_column(columns.value, cython.address(values), count, view.len)
        _open_column(columns.header_lists, cython.address(lists), count, 0)
        _open_column(columns.header_key, cython.address(header_keys), 0, 0)
        _open_column(columns.header_value, cython.address(header_values), 0, 0)
        p = cython.cast(cython.p_uchar, view.buf)
        end = p + view.len
        for index in range(count):
            p = _next_record(p, end, cython.address(span))
            if p == cython.NULL or span.offset_delta <= before or span.offset_delta > last_offset_delta:
                return False
            if _leaves_64_bits(base_timestamp, span.timestamp_delta):
                return False
            before = span.offset_delta
            offset = base_offset + before
            if offset < start_offset or offset >= end_offset:
                continue
            offsets[row] = offset
            timestamps[row] = stamp if stamped else base_timestamp + span.timestamp_delta
            row += 1
            if want_key:
                _add(cython.address(keys), span.key, span.key_length)
            if want_value:
                _add(cython.address(values), span.value, span.value_length)
            if want_headers:
                if span.header_count == 0:
                    _add(cython.address(lists), cython.NULL, -1)
                    continue
                if not _add_headers(
                    columns,
                    cython.address(header_keys),
                    cython.address(header_values),
                    span.headers,
                    p,
                    span.header_count,
                ):
                    return False
                _add(cython.address(lists), cython.NULL, span.header_count)
        if p != end:
            return False
        columns.rows = row
        _close_column(columns.key, cython.address(keys))
        _close_column(columns.value, cython.address(values))
        _close_column(columns.header_lists, cython.address(lists))
        _close_column(columns.header_key, cython.address(header_keys))
        _close_column(columns.header_value, cython.address(header_values))
        return True
    finally:
        PyBuffer_Release(cython.address(view))
