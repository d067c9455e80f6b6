# cython: cdivision=True
# ruff: noqa: ERA001, F821, RET505 - as in kernel.py: the compiler drops the other twin's branch only where it is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call"
"""Finds the schema ids of the values of a records section. Reads five bytes of each value.

A value with a schema starts with a byte 0 and a 4-byte id, as schema registries write it. Runs in C if it was
compiled.
Invariant: both implementations find the same ids and the same first record without one. A null value needs no id.
"""

from __future__ import annotations

from braidlog.codec.batch.records_section import Buffer, check_bounds, iter_records, raise_section_error

try:
    import cython
except ImportError:
    from braidlog.codec import cython_shim as cython

if cython.compiled:
    from cython.cimports.braidlog.codec.batch.record import Span, next_record
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

COMPILED: bool = bool(cython.compiled)

HEAD_BYTES = 5


def schema_ids(records: Buffer, count: int, last_offset_delta: int, base_timestamp: int) -> tuple[set[int], int]:
    """Return the ids of all values, and the index of the first record without one (-1 if all have one)."""
    check_bounds(records, count, 0, last_offset_delta, base_timestamp)
    if cython.compiled:
        found = _ids_compiled(records, count, last_offset_delta, base_timestamp)
        if found is None:
            raise_section_error(records, count, last_offset_delta, base_timestamp=base_timestamp)
        return found
    else:
        ids: set[int] = set()
        bad = -1
        for index, span in enumerate(iter_records(records, count, last_offset_delta, base_timestamp=base_timestamp)):
            value = span.value
            if value is None:
                continue
            if len(value) >= HEAD_BYTES and value[0] == 0:
                ids.add(int.from_bytes(value[1:HEAD_BYTES], "big"))
            elif bad < 0:
                bad = index
        return ids, bad


@cython.cfunc
def _ids_compiled(
    records: object, count: cython.longlong, last_offset_delta: cython.longlong, base_timestamp: cython.longlong
) -> object:
    view: Py_buffer
    span: Span
    p: cython.p_uchar
    v: cython.p_uchar
    end: cython.p_uchar
    index: cython.longlong
    number: cython.longlong
    last: cython.longlong = -1
    bad: cython.longlong = -1
    ids: set = set()
    span.offset_delta = -1
    PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
    try:
        p = cython.cast(cython.p_uchar, view.buf)
        end = p + view.len
        for index in range(count):
            p = next_record(p, end, last_offset_delta, base_timestamp, cython.address(span))
            if p == cython.NULL:
                return None
            if span.value_length < 0:
                continue
            v = span.value
            if span.value_length < 5 or v[0] != 0:
                bad = index if bad < 0 else bad
                continue
            number = v[1]
            number = (((number << 8 | v[2]) << 8 | v[3]) << 8) | v[4]
            if number != last:  # consecutive values mostly have the same id
                ids.add(number)
                last = number
        return (ids, bad) if p == end else None
    finally:
        PyBuffer_Release(cython.address(view))
