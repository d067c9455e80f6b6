# cython: cdivision=True
# ruff: noqa: B007, C901, ERA001, F821, FURB136, PLR0913, PLR0911, PLR0912, PLR0917, RET505
# - as in kernel.py: a hot loop is one function, and the compiler drops the other twin's branch only where it
# is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call"
"""Rows: the columns of a batch as a dialect writes its records, and back, without a Python object a record.

Knows: the parts that `layout` declares, in C where a compiler was found. Refuses to know: which dialect a
layout is of, frames, batches.
Invariants: both twins give the same bytes and the same values; no byte outside the buffers is read; a row is
written whole or not at all; rows that are not exactly as their layout says are not read, and whoever asked
reads them in its own, slower way, which knows the words for what is wrong.
"""

from __future__ import annotations

from base64 import b64encode

from braidlog.codec.columns import BinaryColumn, Columns
from braidlog.codec.layout import PARTS_MAX, Kind, Layout
from braidlog.codec.section import INT64_MAX, Buffer

try:
    import cython
except ImportError:
    from braidlog.codec import nocython as cython

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
    from cython.cimports.libc.string import memcmp, memcpy

COMPILED: bool = bool(cython.compiled)

_KEY_BYTES_MAX = 0xFFFF
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PAIRS = bytes([letter for high in _ALPHABET for low in _ALPHABET for letter in (high, low)])
"""Two letters of base64 for each twelve bits: three bytes are two lookups."""

_Column = cython.struct(validity=cython.p_uchar, ends=cython.p_int, data=cython.p_uchar)
_Parts = cython.struct(
    count=cython.int,
    kinds=cython.int[16],
    sizes=cython.longlong[16],
    texts=cython.p_uchar[16],
)


def write_rows(
    columns: Columns, layout: Layout, *, rows: int, bytes_max: int, between: bytes = b""
) -> tuple[bytes, int]:
    """The first rows of finished columns, `between` between them: at most so many, in at most so many bytes.

    The bytes, and how many rows they hold. Keys and values must have been wanted of the columns.
    """
    if len(layout) > PARTS_MAX:
        raise ValueError(f"a row has at most {PARTS_MAX} parts, not {len(layout)}")
    rows = min(rows, columns.rows)
    if cython.compiled:
        return _write_compiled(columns, layout, rows, max(bytes_max, 0), between)
    else:
        return _write_plain(columns, layout, rows, bytes_max, between)


def read_rows(
    data: Buffer, position: int, count: int, layout: Layout
) -> tuple[list[bytes], list[bytes | None] | None, int] | None:
    """Values, keys (None if no row has one) and the position after `count` rows; None if one is not as declared."""
    if len(layout) > PARTS_MAX:
        raise ValueError(f"a row has at most {PARTS_MAX} parts, not {len(layout)}")
    if not 0 <= position <= len(data) or not 0 <= count <= len(data):
        return None
    if cython.compiled:
        return _read_compiled(data, position, count, layout)
    else:
        return _read_plain(data, position, count, layout)


# ------------------------------------------------------------------------------------------------------ in C


@cython.cfunc
def _open_parts(layout: object, parts: cython.pointer(_Parts)) -> object:
    """The layout's numbers and texts as C sees them. The texts live as long as the layout does."""
    index: cython.int = 0
    text: bytes
    for part in layout:
        text = part[1]
        parts.kinds[index] = part[0]
        parts.sizes[index] = PyBytes_GET_SIZE(text)
        parts.texts[index] = cython.cast(cython.p_uchar, PyBytes_AS_STRING(text))
        index += 1
    parts.count = index
    return None


@cython.cfunc
def _open_column(column: object, rows: cython.longlong, c: cython.pointer(_Column)) -> cython.bint:
    """Whether the column has that many rows."""
    validity: bytearray = column.validity
    ends: bytearray = column.ends
    data: bytearray = column.data
    c.validity = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(validity))
    c.ends = cython.cast(cython.p_int, PyByteArray_AS_STRING(ends))
    c.data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(data))
    return len(ends) >= 4 * (rows + 1) and 8 * len(validity) >= rows


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _length(c: cython.pointer(_Column), row: cython.longlong) -> cython.longlong:
    """-1 for null."""
    if not (c.validity[row >> 3] >> (row & 7)) & 1:
        return -1
    return c.ends[row + 1] - c.ends[row]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _digits(number: cython.longlong) -> cython.longlong:
    count: cython.longlong = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_decimal(p: cython.p_uchar, number: cython.longlong) -> cython.p_uchar:
    size: cython.longlong = _digits(number)
    index: cython.longlong
    for index in range(size - 1, -1, -1):
        p[index] = cython.cast(cython.uchar, 48 + number % 10)
        number //= 10
    return p + size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _micros(timestamp: cython.longlong) -> cython.longlong:
    if timestamp <= 0:
        return 0
    if timestamp > cython.cast(cython.longlong, 0x7FFFFFFFFFFFFFFF) // 1000:
        return cython.cast(cython.longlong, 0x7FFFFFFFFFFFFFFF)
    return timestamp * 1000


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_base64(
    p: cython.p_uchar, data: cython.p_uchar, size: cython.longlong, pairs: cython.p_uchar
) -> cython.p_uchar:
    word: cython.uint
    index: cython.longlong = 0
    while index + 3 <= size:
        word = (
            (cython.cast(cython.uint, data[index]) << 16)
            | (cython.cast(cython.uint, data[index + 1]) << 8)
            | data[index + 2]
        )
        memcpy(p, pairs + 2 * (word >> 12), 2)
        memcpy(p + 2, pairs + 2 * (word & 0xFFF), 2)
        p += 4
        index += 3
    if index < size:
        word = cython.cast(cython.uint, data[index]) << 16
        if index + 1 < size:
            word |= cython.cast(cython.uint, data[index + 1]) << 8
        memcpy(p, pairs + 2 * (word >> 12), 2)
        memcpy(p + 2, pairs + 2 * (word & 0xFFF), 2)
        p[3] = 61
        if index + 1 == size:
            p[2] = 61
        p += 4
    return p


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _row_size(
    parts: cython.pointer(_Parts),
    offset: cython.longlong,
    timestamp: cython.longlong,
    key: cython.longlong,
    value: cython.longlong,
) -> cython.longlong:
    """The bytes of a row; -1 if it cannot be written."""
    size: cython.longlong = 0
    index: cython.int
    kind: cython.int
    for index in range(parts.count):
        kind = parts.kinds[index]
        if kind == 0:
            size += parts.sizes[index]
        elif kind == 1:
            size += 8
        elif kind == 2:
            size += _digits(offset)
        elif kind == 3:
            size += _digits(_micros(timestamp))
        elif kind == 4:
            if key > 0xFFFF:
                return -1
            size += 2 + (key if key > 0 else 0)
        elif kind == 5:
            size += 4 + (value if value > 0 else 0)
        elif kind == 6:
            size += parts.sizes[index] if value < 0 else 2 + (value + 2) // 3 * 4
        elif key >= 0:
            size += parts.sizes[index] + (key + 2) // 3 * 4 + 1
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_number(p: cython.p_uchar, number: cython.ulonglong, size: cython.int) -> cython.p_uchar:
    index: cython.int
    for index in range(size):
        p[index] = cython.cast(cython.uchar, number >> (8 * (size - 1 - index)))
    return p + size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_row(
    p: cython.p_uchar,
    parts: cython.pointer(_Parts),
    offset: cython.longlong,
    timestamp: cython.longlong,
    key: cython.p_uchar,
    key_size: cython.longlong,
    value: cython.p_uchar,
    value_size: cython.longlong,
    pairs: cython.p_uchar,
) -> cython.p_uchar:
    index: cython.int
    kind: cython.int
    for index in range(parts.count):
        kind = parts.kinds[index]
        if kind == 0:
            memcpy(p, parts.texts[index], parts.sizes[index])
            p += parts.sizes[index]
        elif kind == 1:
            p = _put_number(p, cython.cast(cython.ulonglong, offset), 8)
        elif kind == 2:
            p = _put_decimal(p, offset)
        elif kind == 3:
            p = _put_decimal(p, _micros(timestamp))
        elif kind == 4:
            p = _put_number(p, cython.cast(cython.ulonglong, key_size if key_size > 0 else 0), 2)
            if key_size > 0:
                memcpy(p, key, key_size)
                p += key_size
        elif kind == 5:
            p = _put_number(p, cython.cast(cython.ulonglong, value_size if value_size > 0 else 0), 4)
            if value_size > 0:
                memcpy(p, value, value_size)
                p += value_size
        elif kind == 6 and value_size >= 0:
            p[0] = 34
            p = _put_base64(p + 1, value, value_size, pairs)
            p[0] = 34
            p += 1
        elif kind == 6:
            memcpy(p, parts.texts[index], parts.sizes[index])
            p += parts.sizes[index]
        elif key_size >= 0:
            memcpy(p, parts.texts[index], parts.sizes[index])
            p = _put_base64(p + parts.sizes[index], key, key_size, pairs)
            p[0] = 34
            p += 1
    return p


@cython.cfunc
def _write_compiled(
    columns: object, layout: object, rows: cython.longlong, bytes_max: cython.longlong, between: bytes
) -> object:
    """Measured exactly, allocated once, then written. No Python code runs in between."""
    parts: _Parts
    keys: _Column
    values: _Column
    p: cython.p_uchar
    row: cython.longlong
    size: cython.longlong
    total: cython.longlong = 0
    fitting: cython.longlong = 0
    gap: cython.longlong = PyBytes_GET_SIZE(between)
    gap_text: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(between))
    pairs: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(cython.cast(bytes, _PAIRS)))
    offset_bytes: bytearray = columns.offsets
    timestamp_bytes: bytearray = columns.timestamps
    offsets: cython.p_longlong = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(offset_bytes))
    timestamps: cython.p_longlong = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(timestamp_bytes))
    _open_parts(layout, cython.address(parts))
    if not _open_column(columns.key, rows, cython.address(keys)) or not _open_column(
        columns.value, rows, cython.address(values)
    ):
        raise ValueError("rows are written of keys and values, and one of them was not wanted")
    if len(offset_bytes) < 8 * rows or len(timestamp_bytes) < 8 * rows:
        raise ValueError("the columns are not whole")
    for row in range(rows):
        size = _row_size(
            cython.address(parts),
            offsets[row],
            timestamps[row],
            _length(cython.address(keys), row),
            _length(cython.address(values), row),
        )
        if row > 0:
            size += gap if size >= 0 else 0
        if size < 0 or total + size > bytes_max:
            break
        total += size
        fitting += 1
    written: bytes = PyBytes_FromStringAndSize(cython.NULL, total)
    p = cython.cast(cython.p_uchar, PyBytes_AS_STRING(written))
    for row in range(fitting):
        if row > 0 and gap > 0:
            memcpy(p, gap_text, gap)
            p += gap
        p = _put_row(
            p,
            cython.address(parts),
            offsets[row],
            timestamps[row],
            keys.data + keys.ends[row],
            _length(cython.address(keys), row),
            values.data + values.ends[row],
            _length(cython.address(values), row),
            pairs,
        )
    assert p == cython.cast(cython.p_uchar, PyBytes_AS_STRING(written)) + total
    return written, fitting


@cython.cfunc
def _read_compiled(data: object, position: cython.longlong, count: cython.longlong, layout: object) -> object:
    parts: _Parts
    view: Py_buffer
    p: cython.p_uchar
    end: cython.p_uchar
    row: cython.longlong
    index: cython.int
    kind: cython.int
    size: cython.longlong
    values: list = []
    keys: list = []
    any_key: cython.bint = False
    _open_parts(layout, cython.address(parts))
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    try:
        p = cython.cast(cython.p_uchar, view.buf) + position
        end = cython.cast(cython.p_uchar, view.buf) + view.len
        for row in range(count):
            for index in range(parts.count):
                kind = parts.kinds[index]
                if kind == 0:
                    size = parts.sizes[index]
                    if end - p < size or memcmp(p, parts.texts[index], size) != 0:
                        return None
                    p += size
                elif kind == 1:
                    if end - p < 8:
                        return None
                    p += 8
                elif kind == 4:
                    if end - p < 2:
                        return None
                    size = (cython.cast(cython.longlong, p[0]) << 8) | p[1]
                    p += 2
                    if end - p < size:
                        return None
                    if size > 0:
                        any_key = True
                        keys.append(PyBytes_FromStringAndSize(cython.cast(cython.p_char, p), size))
                    else:
                        keys.append(None)
                    p += size
                elif kind == 5:
                    if end - p < 4:
                        return None
                    size = (
                        (cython.cast(cython.longlong, p[0]) << 24)
                        | (cython.cast(cython.longlong, p[1]) << 16)
                        | (cython.cast(cython.longlong, p[2]) << 8)
                        | p[3]
                    )
                    p += 4
                    if end - p < size:
                        return None
                    values.append(PyBytes_FromStringAndSize(cython.cast(cython.p_char, p), size))
                    p += size
                else:
                    return None
        return values, (keys if any_key else None), p - cython.cast(cython.p_uchar, view.buf)
    finally:
        PyBuffer_Release(cython.address(view))


# ------------------------------------------------------------------------------------------- the plain twin


def _items(column: BinaryColumn, rows: int) -> list[bytes | None]:
    with memoryview(column.ends) as raw, raw.cast("i") as ends:
        data, validity = column.data, column.validity
        return [
            bytes(data[ends[row] : ends[row + 1]]) if validity[row >> 3] >> (row & 7) & 1 else None
            for row in range(rows)
        ]


def _write_plain(columns: Columns, layout: Layout, rows: int, bytes_max: int, between: bytes) -> tuple[bytes, int]:
    if len(columns.key.ends) < 4 * (rows + 1) or len(columns.value.ends) < 4 * (rows + 1):
        raise ValueError("rows are written of keys and values, and one of them was not wanted")
    keys, values = _items(columns.key, rows), _items(columns.value, rows)
    with memoryview(columns.offsets) as raw_offsets, memoryview(columns.timestamps) as raw_timestamps:
        offsets, timestamps = raw_offsets.cast("q").tolist(), raw_timestamps.cast("q").tolist()
    written: list[bytes] = []
    left = bytes_max
    for row in range(rows):
        text = _row_plain(layout, offsets[row], timestamps[row], keys[row], values[row])
        if text is None:
            break
        left -= len(text) + (len(between) if row else 0)
        if left < 0:
            break
        written.append(text)
    return between.join(written), len(written)


def _row_plain(layout: Layout, offset: int, timestamp: int, key: bytes | None, value: bytes | None) -> bytes | None:
    parts = []
    for kind, text in layout:
        if kind == Kind.LITERAL:
            parts.append(text)
        elif kind == Kind.OFFSET_64:
            parts.append(offset.to_bytes(8, "big"))
        elif kind == Kind.OFFSET_DECIMAL:
            parts.append(b"%d" % offset)
        elif kind == Kind.MICROS_DECIMAL:
            parts.append(b"%d" % min(max(timestamp, 0) * 1000, INT64_MAX))
        elif kind == Kind.KEY_16:
            if key is not None and len(key) > _KEY_BYTES_MAX:
                return None
            parts += (len(key or b"").to_bytes(2, "big"), key or b"")
        elif kind == Kind.VALUE_32:
            parts += (len(value or b"").to_bytes(4, "big"), value or b"")
        elif kind == Kind.VALUE_BASE64:
            parts.append(text if value is None else b'"%s"' % b64encode(value))
        elif key is not None:
            parts.append(b'%s%s"' % (text, b64encode(key)))
    return b"".join(parts)


def _read_plain(
    data: Buffer, position: int, count: int, layout: Layout
) -> tuple[list[bytes], list[bytes | None] | None, int] | None:
    values: list[bytes] = []
    keys: list[bytes | None] = []
    end = len(data)
    for _ in range(count):
        for kind, text in layout:
            if kind in {Kind.KEY_16, Kind.VALUE_32}:
                width = 2 if kind == Kind.KEY_16 else 4
                start = position + width
                position = start + int.from_bytes(data[position:start], "big")
                if start > end or position > end:
                    return None
                item = bytes(data[start:position])
                if kind == Kind.KEY_16:
                    keys.append(item or None)
                else:
                    values.append(item)
            elif kind == Kind.OFFSET_64:
                position += 8
            elif kind == Kind.LITERAL and bytes(data[position : position + len(text)]) == text:
                position += len(text)
            else:
                return None
            if position > end:
                return None
    return values, (keys if any(key is not None for key in keys) else None), position
