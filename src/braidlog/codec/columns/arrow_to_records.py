# cython: cdivision=True
# ruff: noqa: C901, ERA001, F821, PLR0913, PLR0912, PLR0915, PLR0917, RET505, SIM108
# - as in kernel.py: a hot loop is one function, and the compiler drops the other twin's branch only where it
# is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call"
"""Packs Arrow columns into the records section of a batch without creating a Python object per record.

Reads the buffers of columns of texts or bytes, and chooses the partition of each key. Runs in C if it was compiled.
Headers are not supported: use `kernel.encode_records`.
Invariants: both implementations give the same bytes and the same rows. No byte outside the buffers is read: every
column's ends are compared with its data before they are used. A record is written completely or not at all.

The GIL is held throughout, and no Python code runs between taking a buffer's address and its last use. The caller
keeps the buffers alive.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from braidlog.codec.batch.records_section import RECORD_BYTES_MAX, Buffer
from braidlog.codec.murmur import partition_for_key
from braidlog.codec.varint import encode_varint, encode_varlong

try:
    import cython
except ImportError:
    from braidlog.codec import cython_shim as cython

if cython.compiled:
    from cython.cimports.braidlog.codec.batch.record import body_size, put_bytes, put_head, put_varint, varint_size
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize

COMPILED: bool = bool(cython.compiled)


class Strings(NamedTuple):
    """A column of texts or bytes in Arrow's layout."""

    rows: int
    start: int
    """The index of the first row in the buffers."""
    validity: Buffer | None
    """One bit per row, 0 for null; None if no row is null."""
    ends: Buffer
    """i32: where each row's bytes begin, and one more."""
    data: Buffer

    def row(self, index: int) -> bytes | None:
        at = self.start + index
        if self.validity is not None and not (self.validity[at >> 3] >> (at & 7)) & 1:
            return None
        ends = memoryview(self.ends).cast("B")[4 * at : 4 * at + 8].cast("i")
        return bytes(memoryview(self.data).cast("B")[ends[0] : ends[1]])


_View = cython.struct(
    validity=cython.p_uchar, ends=cython.p_int, data=cython.p_uchar, size=cython.longlong, start=cython.longlong
)


def check_strings(column: Strings) -> None:
    """Raise ValueError unless the buffers are large enough for the column."""
    until = column.start + column.rows
    if column.start < 0 or column.rows < 0:
        raise ValueError(f"a column of {column.rows} rows from {column.start} on")
    if memoryview(column.ends).nbytes < 4 * (until + 1) and column.rows:
        raise ValueError(f"the ends of {until} rows are missing")
    if column.validity is not None and 8 * memoryview(column.validity).nbytes < until:
        raise ValueError(f"the validity of {until} rows is missing")


def append_rows(
    out: bytearray,
    count: int,
    values: Strings,
    keys: Strings | None,
    times: Buffer | None,
    base_time: int,
    rows: Buffer | None,
    at: int,
    until: int,
    bytes_max: int,
) -> tuple[int, int]:
    """Append rows as records to a section that holds `count` records, up to `bytes_max`.

    `rows`: i32 row numbers of the columns, of which those in [at, until) are appended; None: the row numbers [at,
    until). `times`: i64, one per row of the columns; None: every record has the base time. An empty section takes one
    record of any size.
    Returns where it stopped in `rows`, and the latest time written (`base_time` if none was later).
    """
    check_strings(values)
    if keys is not None:
        check_strings(keys)
        if keys.rows != values.rows:
            raise ValueError(f"{keys.rows} keys for {values.rows} values")
    if times is not None and memoryview(times).nbytes < 8 * values.rows:
        raise ValueError(f"{memoryview(times).nbytes // 8} times for {values.rows} values")
    known = values.rows if rows is None else memoryview(rows).nbytes // 4
    if not 0 <= at <= until <= known:
        raise ValueError(f"rows {at} to {until} of {known}")
    if not 0 <= count <= 0x7FFFFFFF:
        raise ValueError(f"a section of {count} records")
    if cython.compiled:
        return _append_compiled(out, count, values, keys, times, base_time, rows, at, until, bytes_max)
    else:
        return _append_plain(out, count, values, keys, times, base_time, rows, at, until, bytes_max)


def group_rows(
    rows: int, keys: Strings | None, chosen: Buffer | None, chosen_validity: Buffer | None, partitions: int
) -> tuple[bytearray, list[int]]:
    """Return the rows sorted by partition, i32 each, and where each partition ends in that list.

    A row belongs to the partition in `chosen` (i32 each; null by its validity), else to its key's partition, else to
    none. Rows without a partition come last, so the list of ends has one entry more than there are partitions. Within
    a partition rows keep their order.
    """
    if not 1 <= partitions < 2**31 - 1:
        raise ValueError(f"{partitions} partitions")
    if keys is not None:
        check_strings(keys)
        if keys.rows != rows:
            raise ValueError(f"{keys.rows} keys for {rows} rows")
    if chosen is not None and memoryview(chosen).nbytes < 4 * rows:
        raise ValueError(f"{memoryview(chosen).nbytes // 4} partitions for {rows} rows")
    if chosen_validity is not None and 8 * memoryview(chosen_validity).nbytes < rows:
        raise ValueError(f"the validity of {rows} rows is missing")
    if cython.compiled:
        return _group_compiled(rows, keys, chosen, chosen_validity, partitions)
    else:
        return _group_plain(rows, keys, chosen, chosen_validity, partitions)


# ------------------------------------------------------------------------------------------------------ in C


@cython.cfunc
def _address(buffer: object, size: cython.p_longlong) -> cython.p_uchar:
    """Return the address and size of a buffer. The caller keeps the buffer alive."""
    view: Py_buffer
    p: cython.p_uchar
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    p = cython.cast(cython.p_uchar, view.buf)
    size[0] = view.len
    PyBuffer_Release(cython.address(view))
    return p


@cython.cfunc
def _open_column(column: object, c: cython.pointer(_View)) -> object:
    ignored: cython.longlong = 0
    c.start = column.start
    c.validity = cython.NULL
    if column.validity is not None:
        c.validity = _address(column.validity, cython.address(ignored))
    c.ends = cython.cast(cython.p_int, _address(column.ends, cython.address(ignored)))
    c.data = _address(column.data, cython.address(c.size))
    return None


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _length(c: cython.pointer(_View), row: cython.longlong) -> cython.longlong:
    """Return the row's length: -1 for null, -2 if its ends are outside the data."""
    row += c.start
    if c.validity != cython.NULL and not (c.validity[row >> 3] >> (row & 7)) & 1:
        return -1
    if c.ends[row] < 0 or c.ends[row + 1] < c.ends[row] or c.ends[row + 1] > c.size:
        return -2
    return c.ends[row + 1] - c.ends[row]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_row(
    p: cython.p_uchar, c: cython.pointer(_View), row: cython.longlong, length: cython.longlong
) -> cython.p_uchar:
    return put_bytes(p, c.data + c.ends[c.start + row], length)


@cython.cfunc
def _append_compiled(
    out: bytearray,
    count: cython.longlong,
    values: object,
    keys: object,
    times: object,
    base_time: cython.longlong,
    rows: object,
    at: cython.longlong,
    until: cython.longlong,
    bytes_max: cython.longlong,
) -> tuple:
    """Measure as many rows as fit, reserve room once, then write."""
    v: _View
    k: _View
    p: cython.p_uchar
    chosen: cython.p_int = cython.NULL
    clock: cython.p_longlong = cython.NULL
    ignored: cython.longlong = 0
    known: cython.longlong = values.rows
    keyed: cython.bint = keys is not None
    size: cython.longlong = len(out)
    before: cython.longlong = size
    index: cython.longlong
    row: cython.longlong
    number: cython.longlong = count
    delta: cython.longlong = 0
    latest: cython.longlong = base_time
    key: cython.longlong = -1
    value: cython.longlong
    body: cython.longlong
    stop: cython.longlong = until
    _open_column(values, cython.address(v))
    if keyed:
        _open_column(keys, cython.address(k))
    if rows is not None:
        chosen = cython.cast(cython.p_int, _address(rows, cython.address(ignored)))
    if times is not None:
        clock = cython.cast(cython.p_longlong, _address(times, cython.address(ignored)))
    for index in range(at, until):
        row = index if chosen == cython.NULL else chosen[index]
        if row < 0 or row >= known:
            raise ValueError(f"row {row} of {known}")
        if clock != cython.NULL:
            delta = clock[row] - base_time
            if (clock[row] >= 0) != (base_time >= 0) and (delta >= 0) != (clock[row] >= 0):
                raise ValueError(f"the times {base_time} and {clock[row]} are further apart than 64 bits can express")
        if keyed:
            key = _length(cython.address(k), row)
        value = _length(cython.address(v), row)
        if key == -2 or value == -2:
            raise ValueError(f"row {row} has ends that its data do not have")
        body = body_size(delta, number, key, value, 1)
        if body > 0x7FFFFFFF:
            raise ValueError(f"a record of {body} bytes")
        if size + varint_size(body) + body > bytes_max and number > 0:
            stop = index
            break
        size += varint_size(body) + body
        number += 1
        if clock != cython.NULL and clock[row] > latest:
            latest = clock[row]
    if stop == at:
        return at, latest
    PyByteArray_Resize(out, size)
    p = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out)) + before
    number = count
    for index in range(at, stop):
        row = index if chosen == cython.NULL else chosen[index]
        if clock != cython.NULL:
            delta = clock[row] - base_time
        if keyed:
            key = _length(cython.address(k), row)
        value = _length(cython.address(v), row)
        p = put_head(p, body_size(delta, number, key, value, 1), delta, number)
        if keyed:
            p = _put_row(p, cython.address(k), row, key)
        else:
            p = put_varint(p, -1)
        p = _put_row(p, cython.address(v), row, value)
        p[0] = 0
        p += 1
        number += 1
    assert p == cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out)) + size
    return stop, latest


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _murmur2(p: cython.p_uchar, length: cython.longlong) -> cython.uint:
    m: cython.uint = 0x5BD1E995
    h: cython.uint = 0x9747B28C ^ cython.cast(cython.uint, length)
    k: cython.uint
    while length >= 4:
        k = (
            cython.cast(cython.uint, p[0])
            | cython.cast(cython.uint, p[1]) << 8
            | cython.cast(cython.uint, p[2]) << 16
            | cython.cast(cython.uint, p[3]) << 24
        )
        k *= m
        k ^= k >> 24
        k *= m
        h *= m
        h ^= k
        p += 4
        length -= 4
    if length >= 3:
        h ^= cython.cast(cython.uint, p[2]) << 16
    if length >= 2:
        h ^= cython.cast(cython.uint, p[1]) << 8
    if length >= 1:
        h ^= p[0]
        h *= m
    h ^= h >> 13
    h *= m
    h ^= h >> 15
    return h


@cython.cfunc
def _group_compiled(
    rows: cython.longlong, keys: object, chosen: object, chosen_validity: object, partitions: cython.longlong
) -> tuple:
    """Count, then place: two passes that keep the order within a partition."""
    k: _View
    told: cython.p_int = cython.NULL
    told_valid: cython.p_uchar = cython.NULL
    ignored: cython.longlong = 0
    row: cython.longlong
    length: cython.longlong
    number: cython.longlong
    place: cython.longlong = 0
    keyed: cython.bint = keys is not None
    numbers_room: bytearray = bytearray(4 * rows)
    order_room: bytearray = bytearray(4 * rows)
    next_room: bytearray = bytearray(8 * (partitions + 1))
    numbers: cython.p_int = cython.cast(cython.p_int, PyByteArray_AS_STRING(numbers_room))
    order: cython.p_int = cython.cast(cython.p_int, PyByteArray_AS_STRING(order_room))
    following: cython.p_longlong = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(next_room))
    if keyed:
        _open_column(keys, cython.address(k))
    if chosen is not None:
        told = cython.cast(cython.p_int, _address(chosen, cython.address(ignored)))
    if chosen_validity is not None:
        told_valid = _address(chosen_validity, cython.address(ignored))
    for row in range(rows):
        number = partitions
        if told != cython.NULL and (told_valid == cython.NULL or (told_valid[row >> 3] >> (row & 7)) & 1):
            number = told[row]
            if number < 0 or number >= partitions:
                raise ValueError(f"partition {number} of {partitions}")
        elif keyed:
            length = _length(cython.address(k), row)
            if length == -2:
                raise ValueError(f"row {row} has ends that its data do not have")
            if length >= 0:
                number = (_murmur2(k.data + k.ends[k.start + row], length) & 0x7FFFFFFF) % partitions
        numbers[row] = cython.cast(cython.int, number)
        following[number] += 1
    ends: list = []
    for number in range(partitions + 1):
        length = following[number]
        following[number] = place
        place += length
        ends.append(place)
    for row in range(rows):
        number = numbers[row]
        order[following[number]] = cython.cast(cython.int, row)
        following[number] += 1
    return order_room, ends


# ------------------------------------------------------------------------------------------------- in Python


def _checked(column: Strings, index: int) -> bytes | None:
    at = column.start + index
    if column.validity is None or (memoryview(column.validity).cast("B")[at >> 3] >> (at & 7)) & 1:
        first, last = memoryview(column.ends).cast("B")[4 * at : 4 * at + 8].cast("i")
        if not 0 <= first <= last <= memoryview(column.data).nbytes:
            raise ValueError(f"row {index} has ends that its data do not have")
    return column.row(index)


def _append_plain(
    out: bytearray,
    count: int,
    values: Strings,
    keys: Strings | None,
    times: Buffer | None,
    base_time: int,
    rows: Buffer | None,
    at: int,
    until: int,
    bytes_max: int,
) -> tuple[int, int]:
    chosen = None if rows is None else memoryview(rows).cast("B").cast("i")
    clock = None if times is None else memoryview(times).cast("B")[: 8 * values.rows].cast("q")
    latest = base_time
    pieces: list[bytes] = []
    size = len(out)
    stop = until
    for index in range(at, until):
        row = index if chosen is None else chosen[index]
        if not 0 <= row < values.rows:
            raise ValueError(f"row {row} of {values.rows}")
        time = base_time if clock is None else clock[row]
        if not -(2**63) <= time - base_time < 2**63:
            raise ValueError(f"the times {base_time} and {time} are further apart than 64 bits can express")
        key = None if keys is None else _checked(keys, row)
        record = _record(time - base_time, count + len(pieces), key, _checked(values, row))
        if size + len(record) > bytes_max and count + len(pieces) > 0:
            stop = index
            break
        pieces.append(record)
        size += len(record)
        latest = max(latest, time)
    out += b"".join(pieces)
    return stop, latest


def _record(delta: int, number: int, key: bytes | None, value: bytes | None) -> bytes:
    body = b"".join(
        (
            b"\0",
            encode_varlong(delta),
            encode_varint(number),
            encode_varint(-1) if key is None else encode_varint(len(key)) + key,
            encode_varint(-1) if value is None else encode_varint(len(value)) + value,
            b"\0",
        )
    )
    if len(body) > RECORD_BYTES_MAX:
        raise ValueError(f"a record of {len(body)} bytes")
    return encode_varint(len(body)) + body


def _group_plain(
    rows: int, keys: Strings | None, chosen: Buffer | None, chosen_validity: Buffer | None, partitions: int
) -> tuple[bytearray, list[int]]:
    told = None if chosen is None else memoryview(chosen).cast("B")[: 4 * rows].cast("i")
    valid = None if chosen_validity is None else memoryview(chosen_validity).cast("B")
    groups: list[list[int]] = [[] for _ in range(partitions + 1)]
    for row in range(rows):
        number = partitions
        if told is not None and (valid is None or (valid[row >> 3] >> (row & 7)) & 1):
            number = told[row]
            if not 0 <= number < partitions:
                raise ValueError(f"partition {number} of {partitions}")
        elif keys is not None and (key := _checked(keys, row)) is not None:
            number = partition_for_key(key, partitions)
        groups[number].append(row)
    order = bytearray()
    ends: list[int] = []
    for group in groups:
        order += array("i", group).tobytes()
        ends.append(len(order) // 4)
    return order, ends
