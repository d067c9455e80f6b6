# cython: cdivision=True
# ruff: noqa: B007, C901, ERA001, F821, FBT001, PLR0912, PLR0913, PLR0915, PLR0917
# - as in kernel.py: a hot loop is one function, and the compiler drops the other twin's branch only where it
# is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call"
"""Appends the records section of a batch to Arrow columns without creating a Python object per record.

Writes the buffers of Arrow columns, in C if it was compiled. Batch headers, compression and checksums are the
caller's work.
Invariants: both implementations give the same buffers and the same errors, and read no byte outside the section. A
batch or a block is appended completely or not at all.
Over 500 lines because the compiler inlines only within a module: batches and blocks extend the same columns.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from sys import byteorder

from braidlog.codec.batch.kernel_python import Decoded, decode_columns
from braidlog.codec.batch.records_section import INT64_MAX, INT64_MIN, Buffer, Header, check_bounds, raise_section_error
from braidlog.codec.columns.column_blocks import check_block
from braidlog.codec.errors import ProtocolError

try:
    import cython
except ImportError:
    from braidlog.codec import cython_shim as cython

if cython.compiled:
    from cython.cimports.braidlog.codec.batch.record import (
        HeaderSpan,
        Span,
        copy_short,
        get_i32,
        next_header,
        next_record,
    )
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.libc.string import memcpy, memset

COMPILED: bool = bool(cython.compiled)

COLUMN_BYTES_MAX = 2**31 - 1  # Arrow's binary columns count bytes in 32 bits

_WRONG = {
    1: "a block's offset deltas do not rise from 0 to its last one",
    2: "a block's key lengths are not those of its keys",
}

# One Arrow column while a batch is added to it: where its buffers are, how much they hold, and their capacity.
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


class BinaryColumn:
    """A growing Arrow column of bytes: `ends` are its 32-bit offsets with the leading 0, `validity` its null bits.

    Only the first `rows` rows and `size` bytes count. Until `finish`, `validity` has one byte per row in the Python
    implementation.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.size = 0
        self.nulls = 0
        self.validity = bytearray()
        self.ends = bytearray(4)
        self.data = bytearray()

    def finish(self) -> None:
        """Trim the buffers to the used rows and bytes."""
        if cython.compiled:
            del self.validity[(self.rows + 7) // 8 :]
            if self.rows % 8:
                self.validity[-1] &= (1 << self.rows % 8) - 1
        else:
            self.validity = _packed_bits(self.validity)
        del self.ends[4 * (self.rows + 1) :]
        del self.data[self.size :]


class Columns:
    """Extends Arrow columns batch by batch: offset, timestamp in milliseconds, key, value, headers.

    A batch is appended completely or not at all: bytes of a rejected batch lie beyond the used rows. A record without
    headers has a null list. Columns that were not requested are checked too and stay empty. After `finish` the
    buffers have Arrow's layout, in native byte order.
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
        self.header_lists = BinaryColumn()  # `size` and `ends` count headers; this column has no data
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
            decoded = decode_columns(records, count, base_offset, last_offset_delta, base_timestamp, append_time)
            sound = decoded is not None
            if decoded is not None:
                _append_plain(self, decoded, start_offset, end_offset)
        if not sound:
            raise_section_error(records, count, last_offset_delta, base_timestamp=base_timestamp)

    def append_block(
        self,
        block: Buffer,
        count: int,
        base_offset: int,
        last_offset_delta: int,
        *,
        start_offset: int = 0,
        end_offset: int = INT64_MAX,
    ) -> None:
        """Add the rows of a block of columns (`column_blocks.py`) whose offsets are in [start_offset, end_offset)."""
        has_keys, has_offsets = check_block(block, count, base_offset, last_offset_delta)
        if self.want_value or self.want_headers or (self.want_key and not has_keys):
            raise ProtocolError("a block of columns lacks a requested column")
        used = max(self.key.size, 8 * self.rows)
        if used + len(block) > COLUMN_BYTES_MAX:
            raise OverflowError(f"{used + len(block)} bytes do not fit one Arrow column")
        first = min(max(start_offset - base_offset, 0), last_offset_delta + 1)
        last = min(max(end_offset - base_offset, first), last_offset_delta + 1)
        if cython.compiled:
            wrong = _append_block_compiled(
                self, block, count, base_offset, last_offset_delta, first, last, has_keys, has_offsets
            )
        else:
            wrong = _append_block_plain(
                self, block, count, base_offset, last_offset_delta, first, last, has_keys, has_offsets
            )
        if wrong:
            raise ProtocolError(_WRONG[wrong])

    def finish(self) -> None:
        """Trim every buffer to its used bytes. Nothing may be appended afterwards."""
        del self.offsets[8 * self.rows :]
        del self.timestamps[8 * self.rows :]
        for column in (self.key, self.value, self.header_lists, self.header_key, self.header_value):
            column.finish()


# -------------------------------------------------------------------------------------------------------- in C


@cython.cfunc
def _reserve(
    column: object, c: cython.pointer(_Column), more_rows: cython.longlong, more_bytes: cython.longlong
) -> object:
    """Reserve that many more rows and bytes after the used ones of `c`.

    Capacity doubles, so that many small batches copy little.
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
    # A rejected batch may have left bits after the last used row.
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
def _add(c: cython.pointer(_Column), p: cython.p_uchar, length: cython.longlong, end: cython.p_uchar) -> cython.void:
    """Append one row of `length` bytes, -1 for null. The room is already reserved.

    Without `p`, the row is a list of `length` items; otherwise its bytes end at or before `end`.
    """
    if c.rows & 7 == 0:
        c.validity[c.rows >> 3] = 0
    if length < 0:
        c.nulls += 1
    else:
        c.validity[c.rows >> 3] |= 1 << (c.rows & 7)
        if p != cython.NULL:
            copy_short(c.data + c.size, c.data + c.bytes_room, p, end, length)
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
    """Append the headers of one record. Each is checked again: reserving room can run Python code."""
    header: HeaderSpan
    index: cython.longlong
    _reserve(columns.header_key, keys, count, end - p)
    _reserve(columns.header_value, values, count, end - p)
    for index in range(count):
        p = next_header(p, end, cython.address(header))
        if p == cython.NULL:
            return False
        _add(keys, header.name, header.name_length, end)
        _add(values, header.value, header.value_length, end)
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
    """Return whether the section is valid; if not, the columns are unchanged."""
    view: Py_buffer
    span: Span
    keys: _Column
    values: _Column
    lists: _Column
    header_keys: _Column
    header_values: _Column
    p: cython.p_uchar
    end: cython.p_uchar
    index: cython.longlong
    offset: cython.longlong
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
    span.offset_delta = -1
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
            p = next_record(p, end, last_offset_delta, base_timestamp, cython.address(span))
            if p == cython.NULL:
                return False
            offset = base_offset + span.offset_delta
            if offset < start_offset or offset >= end_offset:
                continue
            offsets[row] = offset
            timestamps[row] = stamp if stamped else base_timestamp + span.timestamp_delta
            row += 1
            if want_key:
                _add(cython.address(keys), span.key, span.key_length, end)
            if want_value:
                _add(cython.address(values), span.value, span.value_length, end)
            if want_headers:
                if span.header_count == 0:
                    _add(cython.address(lists), cython.NULL, -1, end)
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
                _add(cython.address(lists), cython.NULL, span.header_count, end)
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


@cython.cfunc
def _append_block_compiled(
    columns: object,
    block: object,
    count: cython.longlong,
    base_offset: cython.longlong,
    last_offset_delta: cython.longlong,
    first: cython.longlong,
    last: cython.longlong,
    has_keys: cython.bint,
    has_offsets: cython.bint,
) -> cython.int:
    """Append the rows whose offset deltas are in [first, last). Returns an error number or 0. `check_block` has
    checked the count.
    """
    view: Py_buffer
    keys: _Column
    deltas: cython.p_uchar
    lengths: cython.p_uchar
    key: cython.p_uchar
    offsets: cython.p_longlong
    offsets_room: bytearray = columns.offsets
    times_room: bytearray = columns.timestamps
    row: cython.longlong = columns.rows
    index: cython.longlong
    delta: cython.longlong
    before: cython.longlong = -1
    length: cython.longlong
    skipped: cython.longlong = 0
    size: cython.longlong = 0
    begin: cython.longlong = first
    end: cython.longlong = last
    PyObject_GetBuffer(block, cython.address(view), PyBUF_SIMPLE)
    try:
        deltas = cython.cast(cython.p_uchar, view.buf) + 1 + 8 * count
        lengths = deltas + (4 * count if has_offsets else 0)
        key = lengths + (4 * count if has_keys else 0)
        if has_offsets:
            begin = end = 0
            for index in range(count):
                delta = get_i32(deltas + 4 * index)
                if delta <= before:
                    return 1
                before = delta
                begin += delta < first
                end += delta < last
            if before > last_offset_delta:
                return 1
        if has_keys:
            for index in range(count):
                length = get_i32(lengths + 4 * index)
                if length < -1:
                    return 2
                length = max(length, 0)
                skipped += length if index < begin else 0
                size += length
            if size != view.len - (key - cython.cast(cython.p_uchar, view.buf)):
                return 2
        if begin == end:
            return 0
        if 8 * (row + end - begin) > len(offsets_room):
            PyByteArray_Resize(offsets_room, 8 * max(row + end - begin, 2 * row))
            PyByteArray_Resize(times_room, 8 * max(row + end - begin, 2 * row))
        memcpy(
            PyByteArray_AS_STRING(times_room) + 8 * row,
            cython.cast(cython.p_uchar, view.buf) + 1 + 8 * begin,
            8 * (end - begin),
        )
        offsets = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(offsets_room)) + row
        if has_offsets:
            for index in range(end - begin):
                offsets[index] = base_offset + get_i32(deltas + 4 * (begin + index))
        else:
            for index in range(end - begin):
                offsets[index] = base_offset + begin + index
        if columns.want_key:
            _open_column(columns.key, cython.address(keys), end - begin, size - skipped)
            _add_keys(cython.address(keys), lengths + 4 * begin, end - begin, key + skipped)
            _close_column(columns.key, cython.address(keys))
        columns.rows = row + end - begin
        return 0
    finally:
        PyBuffer_Release(cython.address(view))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _add_keys(
    c: cython.pointer(_Column), lengths: cython.p_uchar, count: cython.longlong, key: cython.p_uchar
) -> cython.void:
    """Append rows of these lengths from concatenated bytes. The room is reserved and the lengths are checked."""
    index: cython.longlong
    length: cython.longlong
    size: cython.longlong = c.size
    nulls: cython.longlong = 0
    ends: cython.p_int = c.ends + c.rows + 1
    for index in range(count):
        length = get_i32(lengths + 4 * index)
        nulls += length < 0
        size += max(length, 0)
        ends[index] = cython.cast(cython.int, size)
    memcpy(c.data + c.size, key, size - c.size)
    if nulls == 0:
        for index in range(c.rows, min(c.rows + count, (c.rows + 7) & ~7)):
            c.validity[index >> 3] |= 1 << (index & 7)
        if c.rows + count > (c.rows + 7) & ~7:
            memset(c.validity + ((c.rows + 7) >> 3), 0xFF, ((c.rows + count + 7) >> 3) - ((c.rows + 7) >> 3))
    else:
        for index in range(count):
            if (c.rows + index) & 7 == 0:
                c.validity[(c.rows + index) >> 3] = 0
            if get_i32(lengths + 4 * index) >= 0:
                c.validity[(c.rows + index) >> 3] |= 1 << ((c.rows + index) & 7)
    c.nulls += nulls
    c.rows += count
    c.size = size


# ------------------------------------------------------------------------------------------ in Python


def _append_block_plain(
    columns: Columns,
    block: Buffer,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    first: int,
    last: int,
    has_keys: bool,
    has_offsets: bool,
) -> int:
    at = 1 + 8 * count
    deltas: Sequence[int] = range(count)
    if has_offsets:
        deltas = _numbers("i", block, at, count)
        at += 4 * count
        if any(later <= earlier for earlier, later in pairwise((-1, *deltas, last_offset_delta + 1))):
            return 1
    lengths: Sequence[int] = ()
    if has_keys:
        lengths = _numbers("i", block, at, count)
        at += 4 * count
        if any(length < -1 for length in lengths) or sum(max(length, 0) for length in lengths) != len(block) - at:
            return 2
    begin, end = bisect_left(deltas, first), bisect_left(deltas, last)
    columns.offsets += array("q", (base_offset + delta for delta in deltas[begin:end])).tobytes()
    columns.timestamps += memoryview(block)[1 + 8 * begin : 1 + 8 * end]
    columns.rows += end - begin
    if columns.want_key:
        stops = list(accumulate((max(length, 0) for length in lengths), initial=at))
        places = zip(lengths[begin:end], stops[begin:end], stops[begin + 1 : end + 1], strict=True)
        _extend(columns.key, [None if length < 0 else bytes(block[here:stop]) for length, here, stop in places])
    return 0


def _numbers(kind: str, block: Buffer, at: int, count: int) -> array[int]:
    found = array(kind)
    found.frombytes(memoryview(block)[at : at + found.itemsize * count])
    return found


def _append_plain(columns: Columns, decoded: Decoded, start_offset: int, end_offset: int) -> None:
    """Append the decoded records whose offsets are in [start_offset, end_offset)."""
    offsets, timestamps, keys, values, headers = decoded
    if offsets and (offsets[0] < start_offset or offsets[-1] >= end_offset):
        wanted = slice(bisect_left(offsets, start_offset), bisect_left(offsets, end_offset))
        offsets, timestamps, keys = offsets[wanted], timestamps[wanted], keys[wanted]
        values, headers = values[wanted], headers[wanted]
    if not offsets:
        return
    columns.offsets += memoryview(array("q", offsets)).cast("B")
    columns.timestamps += memoryview(array("q", timestamps)).cast("B")
    columns.rows += len(offsets)
    if columns.want_key:
        _extend(columns.key, keys)
    if columns.want_value:
        _extend(columns.value, values)
    if columns.want_headers:
        _append_headers(columns, headers)


def _append_headers(columns: Columns, headers: Sequence[tuple[Header, ...]]) -> None:
    lists = columns.header_lists
    if not any(headers):
        _extend_nulls(lists, len(headers))
        return
    ends = array("i", accumulate(map(len, headers), initial=lists.size))
    lists.validity += bytes(map(bool, headers))
    lists.ends += memoryview(ends)[1:].cast("B")
    lists.rows += len(headers)
    lists.nulls += headers.count(())
    pairs = [pair for row in headers for pair in row]
    _extend(columns.header_key, [name.encode() for name, _ in pairs])
    _extend(columns.header_value, [value for _, value in pairs])
    lists.size = ends[-1]


def _packed_bits(flags: bytearray) -> bytearray:
    """Return one bit for each byte that is 1, lowest first: eight strides, each shifted into place as one number."""
    packed = 0
    for bit in range(8):
        packed |= int.from_bytes(flags[bit::8], "little") << bit
    return bytearray(packed.to_bytes((len(flags) + 7) // 8, "little"))


def _extend(column: BinaryColumn, items: Sequence[bytes | None]) -> None:
    nulls = items.count(None)
    if nulls == len(items):
        _extend_nulls(column, nulls)
        return
    if nulls:
        column.validity += bytes([item is not None for item in items])
        column.nulls += nulls
        items = [item or b"" for item in items]
    else:
        column.validity += b"\x01" * len(items)
    column.data += b"".join(items)  # type: ignore[arg-type]
    ends = array("i", accumulate(map(len, items), initial=column.size))  # type: ignore[arg-type]
    column.ends += memoryview(ends)[1:].cast("B")
    column.size = ends[-1]
    column.rows += len(items)


def _extend_nulls(column: BinaryColumn, count: int) -> None:
    """Append nulls only: the keys of most logs, the headers of nearly all."""
    column.validity += bytes(count)
    column.ends += column.size.to_bytes(4, byteorder) * count
    column.nulls += count
    column.rows += count
