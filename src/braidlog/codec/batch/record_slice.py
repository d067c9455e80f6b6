# cython: cdivision=True
# ruff: noqa: B007, ERA001, F821, PLR0913, PLR0917, RET505
# - as in kernel.py: a hot loop is one function, and the compiler drops the other twin's branch only where it is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call"
"""Finds a range of records in a records section without creating an object for the other records.

Runs in C if it was compiled. Batch headers and compression are the caller's work.
Invariant: both implementations find the same bytes and reject the same sections, up to the last record they read.
"""

from __future__ import annotations

from typing import NamedTuple

from braidlog.codec.batch.records_section import INT64_MIN, Buffer, check_bounds, iter_records, raise_section_error

try:
    import cython
except ImportError:
    from braidlog.codec import cython_shim as cython

if cython.compiled:
    from cython.cimports.braidlog.codec.batch.record import Span, next_record
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

COMPILED: bool = bool(cython.compiled)


class RecordSlice(NamedTuple):
    """Consecutive records: the bytes [start, end) of their section, their count, and the offset delta of the next
    record.
    """

    start: int
    end: int
    count: int
    next_delta: int
    """-1 if no record follows."""


def slice_records(
    records: Buffer,
    count: int,
    last_offset_delta: int,
    base_timestamp: int,
    *,
    start_delta: int,
    start_timestamp: int = INT64_MIN,
    records_max: int,
    bytes_max: int,
) -> RecordSlice:
    """Return the records from the first one on that has at least this offset delta and at least this timestamp.

    Returns at least one record if one matches, then at most `records_max` records of at most `bytes_max` bytes.
    """
    check_bounds(records, count, 0, last_offset_delta, base_timestamp)
    if cython.compiled:
        found = _clip_compiled(
            records, count, last_offset_delta, base_timestamp, start_delta, start_timestamp, records_max, bytes_max
        )
        if found is None:
            raise_section_error(records, count, last_offset_delta, base_timestamp=base_timestamp)
        return RecordSlice(*found)
    else:
        start = end = kept = 0
        for span in iter_records(records, count, last_offset_delta, base_timestamp=base_timestamp):
            if not kept:
                if span.offset_delta < start_delta or base_timestamp + span.timestamp_delta < start_timestamp:
                    continue
                start = span.start
            elif kept >= records_max or span.end - start > bytes_max:
                return RecordSlice(start, end, kept, span.offset_delta)
            kept += 1
            end = span.end
        return RecordSlice(start, end, kept, -1)


@cython.cfunc
def _clip_compiled(
    records: object,
    count: cython.longlong,
    last_offset_delta: cython.longlong,
    base_timestamp: cython.longlong,
    start_delta: cython.longlong,
    start_timestamp: cython.longlong,
    records_max: cython.longlong,
    bytes_max: cython.longlong,
) -> object:
    view: Py_buffer
    span: Span
    base: cython.p_uchar
    before: cython.p_uchar
    p: cython.p_uchar
    end: cython.p_uchar
    index: cython.longlong
    start: cython.longlong = 0
    stop: cython.longlong = 0
    kept: cython.longlong = 0
    span.offset_delta = -1
    PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
    try:
        p = base = cython.cast(cython.p_uchar, view.buf)
        end = p + view.len
        for index in range(count):
            before = p
            p = next_record(p, end, last_offset_delta, base_timestamp, cython.address(span))
            if p == cython.NULL:
                return None
            if kept == 0:
                if span.offset_delta < start_delta or base_timestamp + span.timestamp_delta < start_timestamp:
                    continue
                start = before - base
            elif kept >= records_max or (p - base) - start > bytes_max:
                return start, stop, kept, span.offset_delta
            kept += 1
            stop = p - base
        return (start, stop, kept, -1) if p == end else None
    finally:
        PyBuffer_Release(cython.address(view))
