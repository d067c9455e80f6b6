# cython: cdivision=True
# ruff: noqa: B007, ERA001, F821, RET505
# - a hot loop is one function: a call per record costs as much as the record; `_..._compiled` is checked by the C compiler
# - a local of a C type is declared by its annotation and has no value yet; C has no max() of its own
# - the compiler drops the other twin's branch only where it is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call"
"""The record kernel: packs values, keys, timestamps and headers into a batch's records section, and unpacks them.

Compiled to C by Cython. Without a compiler the same file runs as Python and calls `plain`. Batch headers,
compression, checksums, `Record` objects and Arrow (`columns`) are elsewhere.
Invariants: both implementations give the same bytes, values and errors. Malformed input raises ProtocolError only. No
byte outside the section is read (record.pxd reads all untrusted bytes in C). An implementation detects only *that*
input is invalid; `section` raises the error for both.

The GIL is held throughout. No Python code runs between measuring a list and writing its bytes: types are checked
before any conversion, so that no `__index__` can run. Where reading creates objects, Python code could change the
buffer, so bytes are checked again when they are read a second time.
"""

from __future__ import annotations

from collections.abc import Sequence

from braidlog.codec.batch import kernel_python
from braidlog.codec.batch.records_section import (
    Buffer,
    Header,
    Row,
    check_bounds,
    check_columns,
    iter_records,
    raise_column_error,
    raise_section_error,
)

try:
    import cython
except ImportError:
    from braidlog.codec import cython_shim as cython

if cython.compiled:
    from cython.cimports.braidlog.codec.batch.record import (
        HeaderSpan,
        Span,
        body_size,
        bytes_size,
        next_header,
        next_record,
        put_bytes,
        put_head,
        put_varint,
        varint_size,
    )
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
    from cython.cimports.cpython.long import PyLong_AsLongLongAndOverflow
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8

COMPILED: bool = bool(cython.compiled)

_EMPTY: tuple[Header, ...] = ()

# One record to be written: a length of -1 is null, `body` is the record's own length field.
_Sizes = cython.struct(
    timestamp_delta=cython.longlong, key=cython.longlong, value=cython.longlong, body=cython.longlong
)

# ---------------------------------------------------------------------------------------------- reading, in C


@cython.cfunc
def _read_headers(p: cython.p_uchar, end: cython.p_uchar, count: cython.longlong) -> object:
    """Return the headers as a tuple, or None if one is malformed. Checks again: creating objects can run Python."""
    header: HeaderSpan
    index: cython.longlong
    headers: list = []
    for index in range(count):
        p = next_header(p, end, cython.address(header))
        if p == cython.NULL:
            return None
        try:
            name = PyUnicode_DecodeUTF8(cython.cast(cython.p_char, header.name), header.name_length, cython.NULL)
        except UnicodeDecodeError:
            return None
        headers.append((name, _bytes_or_none(header.value, header.value_length)))
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
def _put_item(p: cython.p_uchar, item: object, size: cython.longlong) -> cython.p_uchar:
    return put_bytes(p, cython.NULL if size < 0 else PyBytes_AS_STRING(item), size)


@cython.cfunc
@cython.exceptval(check=False)
def _headers_size(headers: object) -> cython.longlong:
    """Return the size of one record's headers with their count; -1 if the format cannot hold them."""
    total: cython.longlong
    size: cython.longlong
    length: cython.Py_ssize_t = 0
    if headers is None:
        return 1
    if type(headers) is not tuple:
        return -1
    pairs: tuple = headers
    total = varint_size(len(pairs))
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
        total += bytes_size(length) + bytes_size(size)
    return total


@cython.cfunc
def _put_headers(p: cython.p_uchar, headers: object) -> cython.p_uchar:
    length: cython.Py_ssize_t = 0
    text: cython.p_const_char
    if headers is None:
        p[0] = 0
        return p + 1
    pairs: tuple = headers
    p = put_varint(p, len(pairs))
    for pair in pairs:
        name = cython.cast(tuple, pair)[0]
        value = cython.cast(tuple, pair)[1]
        text = PyUnicode_AsUTF8AndSize(name, cython.address(length))
        p = put_bytes(p, text, length)
        p = _put_item(p, value, _size_of(value))
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
    """Fill `m` except its timestamp delta, which is already set. False if the format cannot hold the record."""
    m.value = _size_of(value)
    m.key = _size_of(key)
    if m.value < -1 or m.key < -1:
        return False
    headers_size: cython.longlong = 1 if headers is None else _headers_size(headers)
    if headers_size < 0:
        return False
    m.body = body_size(m.timestamp_delta, index, m.key, m.value, headers_size)
    return m.body <= 0x7FFFFFFF


# ------------------------------------------------------------------------------------------------ encode


def encode_records(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps: Sequence[int] | None,
    headers: Sequence[tuple[Header, ...] | None] | None,
    base_timestamp: int,
) -> bytes:
    """Return the records section of a batch of `values`: offset deltas 0 to n-1, timestamps relative to the base.

    A column that is None has defaults: null keys, the base timestamp, no headers. Raises ProtocolError for items that
    the format cannot hold, TypeError for wrong types, and ValueError for columns of unequal length.
    """
    values = values if type(values) is list else list(values)
    keys = keys if keys is None or type(keys) is list else list(keys)
    timestamps = timestamps if timestamps is None or type(timestamps) is list else list(timestamps)
    headers = headers if headers is None or type(headers) is list else list(headers)
    check_columns(values, keys, timestamps, headers, base_timestamp)
    if cython.compiled:
        section = _encode_compiled(values, keys, timestamps, headers, base_timestamp)
        if section is None:
            raise_column_error(values, keys, timestamps, headers, base_timestamp)
            raise AssertionError("the kernel refused columns that keep every rule")
        return section
    else:
        if not kernel_python.are_plain(values, keys, timestamps, headers, base_timestamp):
            raise_column_error(values, keys, timestamps, headers, base_timestamp)
        if keys is None and timestamps is None and headers is None:
            return kernel_python.encode_values(values)
        return kernel_python.encode_columns(values, keys, timestamps, headers, base_timestamp)


@cython.cfunc
def _encode_compiled(values: list, keys: object, timestamps: object, headers: object, base_timestamp: object) -> object:
    """Return the section, or None if an item is invalid. Measures exactly, allocates once, then writes."""
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
        total += varint_size(m.body) + m.body
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
        p = put_head(p, m.body, m.timestamp_delta, index)
        p = _put_item(p, key, m.key)
        p = _put_item(p, values[index], m.value)
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
    """Return each record as (offset, timestamp, key, value, headers). `append_time` replaces every timestamp."""
    check_bounds(records, count, base_offset, last_offset_delta, base_timestamp)
    if cython.compiled:
        rows = _decode_compiled(records, count, base_offset, last_offset_delta, base_timestamp, append_time)
    else:
        columns = kernel_python.decode_columns(
            records, count, base_offset, last_offset_delta, base_timestamp, append_time
        )
        rows = None if columns is None else list(zip(*columns, strict=True))
    if rows is None:
        raise_section_error(records, count, last_offset_delta, base_timestamp=base_timestamp)
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
    span: Span
    p: cython.p_uchar
    end: cython.p_uchar
    index: cython.longlong
    rows: list = []
    timestamp: object
    headers: object
    span.offset_delta = -1
    PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
    try:
        p = cython.cast(cython.p_uchar, view.buf)
        end = p + view.len
        for index in range(count):
            p = next_record(p, end, last_offset_delta, base_timestamp, cython.address(span))
            if p == cython.NULL:
                return None
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
    """Raise unless the section is valid. Returns the largest timestamp, or None without records.

    `dense`: offset deltas are 0 to count-1 and the last is `last_offset_delta`, as in every batch of a client.
    """
    check_bounds(records, count, 0, last_offset_delta, base_timestamp)
    # Strictly increasing deltas that end by count-1 can only be 0 to count-1: no further check per record is needed.
    if dense and last_offset_delta != count - 1:
        raise_section_error(records, count, last_offset_delta, base_timestamp=base_timestamp, dense=True)
    sound: bool
    newest: int | None
    if cython.compiled:
        sound, newest = _check_compiled(records, count, last_offset_delta, base_timestamp)
    else:
        columns = kernel_python.decode_columns(records, count, 0, last_offset_delta, base_timestamp, None)
        sound = columns is not None
        newest = None if columns is None else max(columns[1], default=None)
    if not sound:
        raise_section_error(records, count, last_offset_delta, base_timestamp=base_timestamp, dense=dense)
    return newest


@cython.cfunc
def _check_compiled(
    records: object,
    count: cython.longlong,
    last_offset_delta: cython.longlong,
    base_timestamp: cython.longlong,
) -> tuple:
    view: Py_buffer
    span: Span
    p: cython.p_uchar
    end: cython.p_uchar
    index: cython.longlong
    newest: cython.longlong = 0
    span.offset_delta = -1
    PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
    try:
        p = cython.cast(cython.p_uchar, view.buf)
        end = p + view.len
        for index in range(count):
            p = next_record(p, end, last_offset_delta, base_timestamp, cython.address(span))
            if p == cython.NULL:
                return False, None
            if index == 0 or base_timestamp + span.timestamp_delta > newest:
                newest = base_timestamp + span.timestamp_delta
        return p == end, (None if count == 0 else newest)
    finally:
        PyBuffer_Release(cython.address(view))


def scan_keys(records: Buffer, count: int, last_offset_delta: int) -> list[tuple[int, bytes | None, bool]]:
    """Return each record as (offset delta, key, whether its value is null), the input of log compaction."""
    check_bounds(records, count, 0, last_offset_delta, 0)
    rows: list[tuple[int, bytes | None, bool]] | None
    if cython.compiled:
        rows = _scan_compiled(records, count, last_offset_delta)
    else:
        columns = kernel_python.decode_columns(records, count, 0, last_offset_delta, 0, None)
        rows = columns and [(delta, key, value is None) for delta, _, key, value, _ in zip(*columns, strict=True)]
    if rows is None:
        raise_section_error(records, count, last_offset_delta)
    return rows


@cython.cfunc
def _scan_compiled(records: object, count: cython.longlong, last_offset_delta: cython.longlong) -> object:
    view: Py_buffer
    span: Span
    p: cython.p_uchar
    end: cython.p_uchar
    index: cython.longlong
    rows: list = []
    span.offset_delta = -1
    PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
    try:
        p = cython.cast(cython.p_uchar, view.buf)
        end = p + view.len
        for index in range(count):
            p = next_record(p, end, last_offset_delta, 0, cython.address(span))
            if p == cython.NULL:
                return None
            rows.append((span.offset_delta, _bytes_or_none(span.key, span.key_length), span.value_length < 0))
        return rows if p == end else None
    finally:
        PyBuffer_Release(cython.address(view))


def select_records(
    records: Buffer, count: int, last_offset_delta: int, keep: Sequence[bool]
) -> tuple[bytes, int, int | None]:
    """Return raw bytes, count and largest timestamp delta (or None) of the records whose entry in `keep` is true.

    The bytes of a kept record are unchanged: it keeps its offset and timestamp deltas.
    """
    check_bounds(records, count, 0, last_offset_delta, 0)
    if len(keep) != count:
        raise ValueError(f"{len(keep)} choices for {count} records")
    choices = bytes(map(bool, keep))
    if cython.compiled:
        selected = _select_compiled(records, count, last_offset_delta, choices)
        if selected is None:
            raise_section_error(records, count, last_offset_delta)
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
    span: Span
    p: cython.p_uchar
    start: cython.p_uchar
    end: cython.p_uchar
    index: cython.longlong
    newest: cython.longlong = 0
    kept: cython.longlong = 0
    parts: list = []
    chosen: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(choices))
    span.offset_delta = -1
    PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
    try:
        p = cython.cast(cython.p_uchar, view.buf)
        end = p + view.len
        for index in range(count):
            start = p
            p = next_record(p, end, last_offset_delta, 0, cython.address(span))
            if p == cython.NULL:
                return None
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
