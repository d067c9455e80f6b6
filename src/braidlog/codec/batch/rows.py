# cython: cdivision=True
# ruff: noqa: B007, C901, ERA001, F821, FURB136, PLR0913, PLR0911, PLR0912, PLR0915, PLR0917, RET505
# - as in kernel.py: a hot loop is one function, and the compiler drops the other twin's branch only where it
# is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call"
"""Writes the records section of a batch as a dialect's rows, and reads rows, without creating a Python object per
record.

Handles the parts that `layout` declares, in C if it was compiled.
Invariants: both implementations give the same bytes, values and errors, up to the last record they read. No byte
outside the buffers is read. A row is written completely or not at all. Rows that differ from their layout are not
read: the caller then parses them with its slower code, which reports the error.
Over 500 lines because the compiler inlines only within a module, and reading and writing share the parts.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from braidlog.codec.batch.kernel_python import decode_columns
from braidlog.codec.batch.records_section import (
    INT64_MAX,
    Buffer,
    Header,
    check_bounds,
    iter_records,
    raise_section_error,
)
from braidlog.codec.batch.row_layout import PARTS_MAX, Kind, Layout, RowForm

try:
    import cython
except ImportError:
    from braidlog.codec import cython_shim as cython

if cython.compiled:
    from cython.cimports.braidlog.codec.batch.record import Span, bytes_cut, bytes_start, new_bytes, next_record
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
    from cython.cimports.libc.string import memcmp, memcpy, memset

COMPILED: bool = bool(cython.compiled)

_KEY_BYTES_MAX = 0xFFFF
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PAIRS = bytes([letter for high in _ALPHABET for low in _ALPHABET for letter in (high, low)])
"""Two base64 characters for each twelve bits: three bytes need two lookups."""

_Parts = cython.struct(
    count=cython.int,
    kinds=cython.int[16],
    sizes=cython.longlong[16],
    texts=cython.p_uchar[16],
    short_texts=cython.uchar[256],
    fixed=cython.longlong,
    keys=cython.longlong,
    values=cython.longlong,
    others=cython.int,
)
"""A layout in C. `short_texts`: the text of each part in 16 bytes, if it fits. A row's size follows from `fixed`
(constant), and from `keys` and `values` (how often each is copied unchanged); the parts in `others` are computed
per record.
"""


class Ended(IntEnum):
    """Why the rows end."""

    ALL = 0
    """The section ended."""
    ENOUGH = 1
    """A limit was reached."""
    FULL = 2
    """The next row does not fit, or cannot be written."""
    HEADERS = 3
    """The next record has headers, and the form does not allow them."""


_ENDED: tuple[Ended, ...] = tuple(Ended)


class Written(NamedTuple):
    """The rows, their count, the bytes of their keys and values, and the offset of the next record."""

    data: bytes
    count: int
    content_bytes: int
    ended: Ended
    next_offset: int
    """-1 after the last record of the section."""


def write_rows(
    records: Buffer,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_time: int | None,
    form: RowForm,
    *,
    start_offset: int = 0,
    records_max: int,
    content_bytes_max: int,
    follows: bool = False,
) -> Written:
    """Write the records of one section from `start_offset` on as rows, within limits of records and of key and value
    bytes.

    The first record is written regardless of its size, unless these rows follow others of the same response. Records
    after the last row are not read.
    """
    if len(form.layout) > PARTS_MAX:
        raise ValueError(f"a row has at most {PARTS_MAX} parts, not {len(form.layout)}")
    check_bounds(records, count, base_offset, last_offset_delta, base_timestamp)
    records_max = min(max(records_max, 0), INT64_MAX)
    content_bytes_max = min(max(content_bytes_max, 0), INT64_MAX)
    room = min(max(form.bytes_max, 0), INT64_MAX)
    if cython.compiled:
        found = _write_compiled(
            records,
            count,
            base_offset,
            last_offset_delta,
            base_timestamp,
            append_time is not None,
            0 if append_time is None else append_time,
            form,
            min(max(start_offset, 0), INT64_MAX),
            records_max,
            content_bytes_max,
            room,
            follows,
        )
        if found is None:
            raise_section_error(records, count, last_offset_delta, base_timestamp=base_timestamp)
        return Written(found[0], found[1], found[2], _ENDED[found[3]], found[4])
    else:
        rows = _rows_plain(records, count, base_offset, last_offset_delta, base_timestamp, append_time)
        return _write_plain(rows, form, room, start_offset, records_max, content_bytes_max, follows)


def read_rows(
    data: Buffer, position: int, count: int, layout: Layout
) -> tuple[list[bytes], list[bytes | None] | None, int] | None:
    """Read values, keys (None if no row has one) and the position after `count` rows. None if a row differs from the
    layout.
    """
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
    """Copy the layout's numbers and texts to C. The texts must live as long as the layout."""
    index: cython.int = 0
    kind: cython.int
    text: bytes
    memset(parts.short_texts, 0, 256)
    parts.fixed = parts.keys = parts.values = 0
    parts.others = 0
    for part in layout:
        text = part[1]
        kind = part[0]
        parts.kinds[index] = kind
        parts.sizes[index] = PyBytes_GET_SIZE(text)
        parts.texts[index] = cython.cast(cython.p_uchar, PyBytes_AS_STRING(text))
        if parts.sizes[index] <= 16:
            memcpy(parts.short_texts + 16 * index, parts.texts[index], parts.sizes[index])
        if kind == 0:
            parts.fixed += parts.sizes[index]
        elif kind == 1:
            parts.fixed += 8
        elif kind == 4:
            parts.fixed += 2
            parts.keys += 1
        elif kind == 5:
            parts.fixed += 4
            parts.values += 1
        else:
            parts.others += 1
        index += 1
    parts.count = index
    return None


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
    """Return the size of a row; -1 if it cannot be written."""
    size: cython.longlong = parts.fixed
    index: cython.int
    kind: cython.int
    if key > 0:
        if parts.keys > 0 and key > 0xFFFF:
            return -1
        size += parts.keys * key
    if value > 0:
        size += parts.values * value
    if parts.others > 0:
        for index in range(parts.count):
            kind = parts.kinds[index]
            if kind == 2:
                size += _digits(offset)
            elif kind == 3:
                size += _digits(_micros(timestamp))
            elif kind == 6:
                size += parts.sizes[index] if value < 0 else 2 + (value + 2) // 3 * 4
            elif kind == 7 and key >= 0:
                size += parts.sizes[index] + (key + 2) // 3 * 4 + 1
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_16(p: cython.p_uchar, number: cython.ulonglong) -> cython.p_uchar:
    p[0] = cython.cast(cython.uchar, number >> 8)
    p[1] = cython.cast(cython.uchar, number)
    return p + 2


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_32(p: cython.p_uchar, number: cython.ulonglong) -> cython.p_uchar:
    """Write byte by byte: the compiler makes one store of it."""
    p[0] = cython.cast(cython.uchar, number >> 24)
    p[1] = cython.cast(cython.uchar, number >> 16)
    p[2] = cython.cast(cython.uchar, number >> 8)
    p[3] = cython.cast(cython.uchar, number)
    return p + 4


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
            if parts.sizes[index] <= 16:
                memcpy(p, parts.short_texts + 16 * index, 16)  # the buffer has 16 spare bytes at its end
            else:
                memcpy(p, parts.texts[index], parts.sizes[index])
            p += parts.sizes[index]
        elif kind == 1:
            p = _put_32(p, cython.cast(cython.ulonglong, offset) >> 32)
            p = _put_32(p, cython.cast(cython.ulonglong, offset))
        elif kind == 2:
            p = _put_decimal(p, offset)
        elif kind == 3:
            p = _put_decimal(p, _micros(timestamp))
        elif kind == 4:
            p = _put_16(p, cython.cast(cython.ulonglong, key_size if key_size > 0 else 0))
            if key_size > 0:
                memcpy(p, key, key_size)
                p += key_size
        elif kind == 5:
            p = _put_32(p, cython.cast(cython.ulonglong, value_size if value_size > 0 else 0))
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
@cython.inline
@cython.exceptval(check=False)
def _most_bytes(
    parts: cython.pointer(_Parts), rows: cython.longlong, content: cython.longlong, gap: cython.longlong
) -> cython.longlong:
    """Return an upper bound of the bytes of that many rows with that many key and value bytes."""
    each: cython.longlong = gap + parts.fixed
    of_key: cython.longlong = 3 * parts.keys
    of_value: cython.longlong = 3 * parts.values
    index: cython.int
    kind: cython.int
    for index in range(parts.count):
        kind = parts.kinds[index]
        if kind == 2 or kind == 3:  # noqa: PLR1714 - numbers, in C
            each += 20
        elif kind == 6:
            of_value += 4
            each += parts.sizes[index] + 6
        elif kind == 7:
            of_key += 4
            each += parts.sizes[index] + 5
    return rows * each + (of_key if of_key > of_value else of_value) * (content // 3 + 1)


@cython.cfunc
def _write_compiled(
    records: object,
    count: cython.longlong,
    base_offset: cython.longlong,
    last_offset_delta: cython.longlong,
    base_timestamp: cython.longlong,
    stamped: cython.bint,
    stamp: cython.longlong,
    form: object,
    start_offset: cython.longlong,
    records_max: cython.longlong,
    content_max: cython.longlong,
    room: cython.longlong,
    follows: cython.bint,
) -> object:
    """Return None if a record is invalid. Allocates the upper bound once, writes, and trims: no Python code runs in
    between.
    """
    parts: _Parts
    view: Py_buffer
    span: Span
    p: cython.p_uchar
    end: cython.p_uchar
    start: cython.p_uchar
    w: cython.p_uchar
    between: bytes = form.between
    plain_only: cython.bint = form.plain_only
    gap: cython.longlong = PyBytes_GET_SIZE(between)
    gap_text: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(between))
    pairs: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(cython.cast(bytes, _PAIRS)))
    index: cython.longlong
    offset: cython.longlong
    timestamp: cython.longlong
    size: cython.longlong
    most: cython.longlong
    content: cython.longlong = 0
    kept: cython.longlong = 0
    ended: cython.int = 0
    next_offset: cython.longlong = -1
    is_sound: cython.bint = True
    _open_parts(form.layout, cython.address(parts))
    span.offset_delta = -1
    PyObject_GetBuffer(records, cython.address(view), PyBUF_SIMPLE)
    try:
        p = cython.cast(cython.p_uchar, view.buf)
        end = p + view.len
        most = _most_bytes(cython.address(parts), min(count, max(records_max, 1)), view.len, gap)
        room = min(room, most)
        made = new_bytes(cython.NULL, room + 16)  # spare bytes: a short text is written as if it had 16 bytes
        start = w = bytes_start(made)
        for index in range(count):
            p = next_record(p, end, last_offset_delta, base_timestamp, cython.address(span))
            if p == cython.NULL:
                is_sound = False
                break
            offset = base_offset + span.offset_delta
            if offset < start_offset:
                continue
            size = (span.key_length if span.key_length > 0 else 0) + (span.value_length if span.value_length > 0 else 0)
            if (kept > 0 or follows) and (kept >= records_max or size > content_max - content):
                ended = 1
            elif plain_only and span.header_count > 0:
                ended = 3
            else:
                timestamp = stamp if stamped else base_timestamp + span.timestamp_delta
                most = _row_size(cython.address(parts), offset, timestamp, span.key_length, span.value_length)
                if kept > 0 or follows:
                    most += gap if most >= 0 else 0
                if most < 0 or most > room - (w - start):
                    ended = 2
            if ended != 0:
                next_offset = offset
                break
            if gap > 0 and (kept > 0 or follows):
                memcpy(w, gap_text, gap)
                w += gap
            w = _put_row(
                w,
                cython.address(parts),
                offset,
                timestamp,
                span.key,
                span.key_length,
                span.value,
                span.value_length,
                pairs,
            )
            kept += 1
            content += size
        if ended == 0 and p != end:
            is_sound = False
        written: bytes = bytes_cut(made, w - start)
        return (written, kept, content, ended, next_offset) if is_sound else None
    finally:
        PyBuffer_Release(cython.address(view))


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


_Plain = tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]


def _rows_plain(
    records: Buffer,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_time: int | None,
) -> Iterator[_Plain]:
    decoded = decode_columns(records, count, base_offset, last_offset_delta, base_timestamp, append_time)
    if decoded is not None:
        yield from zip(*decoded, strict=True)
        return
    # The section is invalid somewhere, perhaps after the requested records.
    for span in iter_records(records, count, last_offset_delta, base_timestamp=base_timestamp):
        timestamp = base_timestamp + span.timestamp_delta if append_time is None else append_time
        yield base_offset + span.offset_delta, timestamp, span.key, span.value, span.headers


def _write_plain(
    rows: Iterator[_Plain],
    form: RowForm,
    room: int,
    start_offset: int,
    records_max: int,
    content_bytes_max: int,
    follows: bool,  # noqa: FBT001 - as in the compiled function
) -> Written:
    written: list[bytes] = []
    content = count = 0
    for offset, timestamp, key, value, headers in rows:
        if offset < start_offset:
            continue
        size = len(key or b"") + len(value or b"")
        ended = Ended.ALL
        gap = form.between if count or follows else b""
        text = None
        if (count or follows) and (count >= records_max or content + size > content_bytes_max):
            ended = Ended.ENOUGH
        elif form.plain_only and headers:
            ended = Ended.HEADERS
        else:
            text = _row_plain(form.layout, offset, timestamp, key, value)
            if text is None or len(gap) + len(text) > room:
                ended = Ended.FULL
        if ended or text is None:
            return Written(b"".join(written), count, content, ended, offset)
        written += (gap, text)
        room -= len(gap) + len(text)
        count += 1
        content += size
    return Written(b"".join(written), count, content, Ended.ALL, -1)


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
