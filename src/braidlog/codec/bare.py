# cython: cdivision=True
# ruff: noqa: B007, ERA001, F821, RET505
# - as in kernel.py: a hot loop is one function, and the compiler drops the other twin's branch only where it is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call"
"""A records section without its values and headers, or without its keys as well: for who asked for other columns.

Knows: how records are packed, in C where a compiler was found. Refuses to know: batch headers, compression.
Invariants: records keep their offsets, their times and their order; what is left out is null, and headers are none. No record
becomes larger. Both twins write the same bytes and refuse the same sections.
"""

from __future__ import annotations

from braidlog.codec import section, varint
from braidlog.codec.section import Buffer, check_bounds, iter_records, refuse
from braidlog.codec.varint import encode_varint, encode_varlong

try:
    import cython
except ImportError:
    from braidlog.codec import nocython as cython

if cython.compiled:
    from cython.cimports.braidlog.codec.record import (
        Span,
        body_size,
        bytes_cut,
        bytes_start,
        copy_short,
        new_bytes,
        next_record,
        put_head,
        put_varint,
    )
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.object import PyObject

COMPILED: bool = bool(cython.compiled)


def bare_records(records: Buffer, count: int, last_offset_delta: int, base_timestamp: int, *, keys: bool) -> bytes:
    """The same records with null values and no headers; with null keys too unless `keys`."""
    check_bounds(records, count, 0, last_offset_delta, base_timestamp)
    if cython.compiled:
        found = _bare_compiled(records, count, last_offset_delta, base_timestamp, keys)
        if found is None:
            refuse(records, count, last_offset_delta, base_timestamp=base_timestamp)
        return found
    else:
        parts: list[Buffer] = []
        for span in iter_records(records, count, last_offset_delta, base_timestamp=base_timestamp):
            if keys:
                start, end = _upto_key(records, span)
                body: Buffer = records[start:end]
            else:
                body = b"\x00" + encode_varlong(span.timestamp_delta) + encode_varint(span.offset_delta) + b"\x01"
            parts += (encode_varint(len(body) + 2), body, b"\x01\x00")
        return b"".join(parts)


def _upto_key(records: Buffer, span: section.Span) -> tuple[int, int]:
    """Where a record's fields begin, and where its key ends: those bytes stay as they are."""
    _, start = varint.read_varint(records, span.start, span.end)
    _, at = varint.read_varlong(records, start + 1, span.end)
    _, at = varint.read_varint(records, at, span.end)
    length, at = varint.read_varint(records, at, span.end)
    return start, at + max(length, 0)


@cython.cfunc
def _bare_compiled(
    records: object,
    count: cython.longlong,
    last_offset_delta: cython.longlong,
    base_timestamp: cython.longlong,
    keys: cython.bint,
) -> object:
    view: Py_buffer
    span: Span
    p: cython.p_uchar
    end: cython.p_uchar
    out: cython.p_uchar
    start: cython.p_uchar
    limit: cython.p_uchar
    made: cython.pointer(PyObject)
    index: cython.longlong
    size: cython.longlong = 0
    sound: cython.bint = True
    span.offset_delta = -1
    PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
    try:
        # No record becomes larger, and pages that are not written to are never touched: the room costs nothing.
        made = new_bytes(cython.NULL, view.len)
        out = start = bytes_start(made)
        limit = start + view.len
        p = cython.cast(cython.p_uchar, view.buf)
        end = p + view.len
        for index in range(count):
            p = next_record(p, end, last_offset_delta, base_timestamp, cython.address(span))
            if p == cython.NULL:
                sound = False
                break
            if keys:
                size = (span.key - span.body) + max(span.key_length, 0)
                out = put_varint(out, size + 2)
                copy_short(out, limit, span.body, end, size)
                out += size
            else:
                size = body_size(span.timestamp_delta, span.offset_delta, -1, -1, 1)
                out = put_head(out, size, span.timestamp_delta, span.offset_delta)
                out[0] = 1  # a null key
                out += 1
            out[0] = 1  # a null value
            out[1] = 0  # no headers
            out += 2
        written: bytes = bytes_cut(made, out - start)
        return written if sound and p == end else None
    finally:
        PyBuffer_Release(cython.address(view))
