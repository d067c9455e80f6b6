# cython: cdivision=True
# ruff: noqa: B007, C901, ERA001, F821, FBT001, PLR0913, PLR0915, PLR0917, RET505
# - as in kernel.py: a hot loop is one function, and the compiler drops the other twin's branch only where it is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call"
"""Encodes a run of batches as one block of columns, times and keys, for readers that do not request values.

Runs in C if it was compiled. `records_to_arrow.py` appends blocks to columns.
Invariants: every record of the run is in the block, with its offset and its time, in log order. No part of a batch is
used before its CRC has matched, and a block has a valid CRC. Both implementations write the same bytes and reject the
same batches.

A block starts with the header of its first batch, with another magic, the largest timestamp of the run, and the
offsets that the run spans. `record count` is the number of rows in the columns that follow:

    parts          u8          1: has keys, 2: has offsets; without offsets they are consecutive
    timestamps     i64 x rows  milliseconds
    offset deltas  i32 x rows  only with 2; strictly increasing, relative to the base offset
    key lengths    i32 x rows  only with 1; -1: null
    keys                       concatenated

Numbers after the header are little-endian, as columns are on nearly all machines.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NoReturn

from braidlog.codec.batch.header import (
    BLOCK_MAGIC,
    COMPRESSION_MASK,
    CONTROL,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchHeader,
    check_crc,
    put_crc,
    read_header,
)
from braidlog.codec.batch.records_section import INT64_MAX, Buffer, check_bounds, iter_records, raise_section_error
from braidlog.codec.crc import crc32c
from braidlog.codec.errors import ProtocolError

try:
    import cython
except ImportError:
    from braidlog.codec import cython_shim as cython

if cython.compiled:
    from cython.cimports.braidlog.codec.batch.record import (
        Span,
        copy_short,
        get_big,
        next_record,
        put_big,
        put_i32,
        put_i64,
    )
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytearray import (
        PyByteArray_AS_STRING,
        PyByteArray_FromStringAndSize,
        PyByteArray_Resize,
    )
    from cython.cimports.libc.string import memcpy

COMPILED: bool = bool(cython.compiled)

KEYS = 1
OFFSETS = 2


def check_block(block: Buffer, count: int, base_offset: int, last_offset_delta: int) -> tuple[bool, bool]:
    """Return whether the block has keys, and offsets. Raises if its rows do not fit its bytes or its offsets."""
    if not 0 <= last_offset_delta < 2**31 or not 0 <= base_offset <= INT64_MAX - last_offset_delta:
        raise ProtocolError(f"a block of columns from offset {base_offset} over {last_offset_delta} more does not fit")
    if not len(block) or block[0] & ~(KEYS | OFFSETS):
        raise ProtocolError("a block of columns has parts that are not known here")
    has_keys, has_offsets = block[0] & KEYS != 0, block[0] & OFFSETS != 0
    size = 1 + count * (8 + 4 * has_offsets + 4 * has_keys)
    if count < 0 or size > len(block) or (size < len(block) and not has_keys):
        raise ProtocolError(f"{count} rows of columns cannot stand in {len(block)} bytes")
    if count > last_offset_delta + 1 or (count <= last_offset_delta and not has_offsets):
        raise ProtocolError(f"{count} rows do not fill {last_offset_delta + 1} offsets")
    return has_keys, has_offsets


def new_room(size: int) -> bytearray:
    """Return a buffer for blocks. Its content is undefined: the caller overwrites it or cuts it off."""
    if cython.compiled:
        return PyByteArray_FromStringAndSize(cython.NULL, size)
    else:
        return bytearray(size)


def write_block(
    data: Buffer, position: int, out: bytearray, at: int, *, keys: bool, batch_bytes_max: int, batch_records_max: int
) -> tuple[int, int]:
    """Write the batches from `position` on that fit one block at `at` of `out`, which grows if needed.

    Returns where the batches end and where the block ends. Both are unchanged if the first batch cannot be in a
    block: it is compressed, a control batch, too large, incomplete in `data`, or its header is invalid.
    A transactional batch is a block of its own: its producer may have aborted it. Raises if a batch's checksum or
    records are invalid.
    """
    if cython.compiled:
        end, rows, consecutive, newest = _find_run(data, position, batch_bytes_max, batch_records_max)
    else:
        end, rows, consecutive, newest = _find_run_plain(data, position, batch_bytes_max, batch_records_max)
    if end == position:
        return position, at
    if cython.compiled:
        stop, wrong = _write_compiled(data, position, end, out, at, rows, keys, not consecutive, newest)
        if wrong >= 0:
            _refuse(data, wrong)
    else:
        columns = _columns_plain(data, position, end, keys, consecutive)
        header = read_header(data, position)
        last_offset = max(each.last_offset for _, each in _batches(data, position, end))
        length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(columns)
        head = header._replace(
            batch_length=length,
            magic=BLOCK_MAGIC,
            last_offset_delta=last_offset - header.base_offset,
            max_timestamp=newest,
            record_count=rows,
        )
        stop = at + HEADER_BYTES + len(columns)
        out[at:stop] = HEADER.pack(*head) + columns
    put_crc(memoryview(out)[at:stop])
    return end, stop


def _refuse(data: Buffer, position: int) -> NoReturn:
    header = read_header(data, position)
    check_crc(data, position, header)
    section = memoryview(data)[position + HEADER_BYTES : position + header.size_bytes]
    raise_section_error(section, header.record_count, header.last_offset_delta, base_timestamp=header.base_timestamp)


# -------------------------------------------------------------------------------------------------------- in C


@cython.cfunc
def _find_run(
    data: object, position: cython.longlong, batch_bytes_max: cython.longlong, batch_records_max: cython.longlong
) -> tuple:
    """Return where the run ends, its rows, whether its offsets are consecutive, and its largest time. Reads headers
    only.
    """
    view: Py_buffer
    p: cython.p_uchar
    at: cython.longlong = position
    size: cython.longlong
    base: cython.longlong
    last_delta: cython.longlong
    count: cython.longlong
    attributes: cython.longlong
    run_attributes: cython.longlong = -1
    run_base: cython.longlong = 0
    last: cython.longlong = -1
    rows: cython.longlong = 0
    newest: cython.longlong = 0
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    try:
        while at >= 0 and view.len - at >= 61:
            p = cython.cast(cython.p_uchar, view.buf) + at
            base = get_big(p, 8)
            size = get_big(p + 8, 4) + 12
            attributes = get_big(p + 21, 2)
            last_delta = get_big(p + 23, 4)
            count = get_big(p + 57, 4)
            if p[16] != 2 or size < 61 or size > view.len - at or size > batch_bytes_max:
                break
            if attributes & 0x27 != 0 or last_delta < 0 or base < 0 or base > 0x7FFFFFFFFFFFFFFF - last_delta:
                break
            if count < 0 or count > last_delta + 1 or count > batch_records_max or count > (size - 61) // 7:
                break
            if run_attributes < 0:
                run_attributes = attributes
                run_base = base
                newest = get_big(p + 35, 8)
            elif (
                attributes != run_attributes
                or attributes & 0x10 != 0
                or base <= last
                or base + last_delta - run_base > 0x7FFFFFFE
            ):
                break
            last = base + last_delta
            newest = max(newest, get_big(p + 35, 8))
            rows += count
            at += size
        return at, rows, rows == last - run_base + 1, newest
    finally:
        PyBuffer_Release(cython.address(view))


@cython.cfunc
def _write_compiled(
    data: Buffer,
    position: cython.longlong,
    stop: cython.longlong,
    out: bytearray,
    at: cython.longlong,
    rows: cython.longlong,
    keys: cython.bint,
    gaps: cython.bint,
    newest: cython.longlong,
) -> tuple:
    """Return where the block ends, and the position of an invalid batch or -1. `_find_run` chose the batches."""
    view: Py_buffer
    span: Span
    p: cython.p_uchar
    end: cython.p_uchar
    start: cython.p_uchar
    times: cython.p_uchar
    deltas: cython.p_uchar
    lengths: cython.p_uchar
    to: cython.p_uchar
    limit: cython.p_uchar
    size: cython.longlong
    count: cython.longlong
    last_delta: cython.longlong = 0
    base: cython.longlong
    stamp: cython.longlong
    run_base: cython.longlong
    ahead: cython.longlong = 0
    index: cython.longlong
    room: cython.longlong
    total: cython.longlong = rows
    stamped: cython.bint
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    try:
        # The keys need less room than their batches, and untouched pages cost no memory: generous room is free.
        room = 62 + rows * (8 + (4 if gaps else 0) + (4 if keys else 0)) + (stop - position if keys else 0)
        if at < 0 or position < 0 or stop > view.len:
            raise ValueError("outside of the received bytes")
        if len(out) - at < room:
            PyByteArray_Resize(out, max(at + room, 2 * at))
        start = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out)) + at
        limit = start + room
        times = start + 62
        deltas = times + 8 * rows
        lengths = deltas + (4 * rows if gaps else 0)
        to = lengths + (4 * rows if keys else 0)
        p = cython.cast(cython.p_uchar, view.buf) + position
        memcpy(start, p, 61)
        start[16] = 99
        start[61] = (1 if keys else 0) | (2 if gaps else 0)
        run_base = get_big(p, 8)
        while position < stop:
            p = cython.cast(cython.p_uchar, view.buf) + position
            size = get_big(p + 8, 4) + 12
            if get_big(p + 17, 4) & 0xFFFFFFFF != crc32c(memoryview(data)[position + 21 : position + size]):
                return 0, position
            stamped = p[22] & 8 != 0
            last_delta = get_big(p + 23, 4)
            base = get_big(p + 27, 8)
            stamp = get_big(p + 35, 8)
            count = get_big(p + 57, 4)
            ahead = get_big(p, 8) - run_base
            rows -= count
            if rows < 0 or size < 61 or size > stop - position:
                return 0, position
            end = p + size
            p += 61
            span.offset_delta = -1
            for index in range(count):
                p = next_record(p, end, last_delta, base, cython.address(span))
                if p == cython.NULL:
                    return 0, position
                times = put_i64(times, stamp if stamped else base + span.timestamp_delta)
                if gaps:
                    deltas = put_i32(deltas, ahead + span.offset_delta)
                if keys:
                    lengths = put_i32(lengths, span.key_length)
                    if span.key_length > 0:
                        copy_short(to, limit, span.key, end, span.key_length)
                        to += span.key_length
            if p != end:
                return 0, position
            position += size
        put_big(start + 8, to - start - 12, 4)
        put_big(start + 23, ahead + last_delta, 4)
        put_big(start + 35, newest, 8)
        put_big(start + 57, total, 4)
        return at + (to - start), -1
    finally:
        PyBuffer_Release(cython.address(view))


# ------------------------------------------------------------------------------------------ in Python


def _batches(data: Buffer, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    while position < end:
        header = read_header(data, position)
        yield position, header
        position += header.size_bytes


def _find_run_plain(
    data: Buffer, position: int, batch_bytes_max: int, batch_records_max: int
) -> tuple[int, int, bool, int]:
    run: list[BatchHeader] = []
    at = position
    while len(data) - at >= HEADER_BYTES:
        try:
            header = read_header(data, at)
            check_bounds(
                memoryview(data)[at + HEADER_BYTES : at + header.size_bytes],
                header.record_count,
                header.base_offset,
                header.last_offset_delta,
                header.base_timestamp,
            )
        except ProtocolError:
            break
        if header.size_bytes > min(len(data) - at, batch_bytes_max) or header.record_count > batch_records_max:
            break
        if header.attributes & (COMPRESSION_MASK | CONTROL) or (run and not _continues(run[0], run[-1], header)):
            break
        run.append(header)
        at += header.size_bytes
    if not run:
        return position, 0, True, 0
    rows = sum(header.record_count for header in run)
    newest = max(header.max_timestamp for header in run)
    return at, rows, rows == run[-1].next_offset - run[0].base_offset, newest


def _continues(first: BatchHeader, before: BatchHeader, header: BatchHeader) -> bool:
    return (
        header.attributes == first.attributes
        and not header.is_transactional
        and header.base_offset > before.last_offset
        and header.next_offset - first.base_offset < 2**31
    )


def _columns_plain(data: Buffer, position: int, end: int, keys: bool, consecutive: bool) -> bytes:
    times, deltas, lengths = array("q"), array("i"), array("i")
    told: list[bytes] = []
    run_base = read_header(data, position).base_offset
    for at, header in _batches(data, position, end):
        check_crc(data, at, header)
        section = memoryview(data)[at + HEADER_BYTES : at + header.size_bytes]
        base, ahead = header.base_timestamp, header.base_offset - run_base
        for span in iter_records(section, header.record_count, header.last_offset_delta, base_timestamp=base):
            times.append(header.max_timestamp if header.has_append_time else base + span.timestamp_delta)
            deltas.append(ahead + span.offset_delta)
            lengths.append(-1 if span.key is None else len(span.key))
            told.append(span.key or b"")
    parts = [bytes([(KEYS if keys else 0) | (0 if consecutive else OFFSETS)]), times.tobytes()]
    if not consecutive:
        parts.append(deltas.tobytes())
    if keys:
        parts += (lengths.tobytes(), *told)
    return b"".join(parts)
