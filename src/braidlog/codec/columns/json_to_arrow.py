# cython: cdivision=True
# ruff: noqa: C901, ERA001, F821, PLR0911, PLR0912, PLR0913, PLR0915, PLR0917, RET505
# - as in kernel.py: a hot loop is one function, and the compiler drops the other twin's branch only where it is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call, operator, redundant-expr"
"""Reads JSON objects into Arrow columns without creating a Python object per value.

Runs in C if it was compiled.
Invariant: the result equals that of a decoder of whole objects, or is None. A decoder of whole objects handles: an
unexpected or repeated field, a value that does not fit its column, a field name with an escape, and anything that is
not a JSON object.
Bytes above 127 are reported, not checked: whether they are UTF-8 is found faster for all values together.
Over 500 lines because the compiler inlines the readers of JSON values only within one module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from braidlog.codec.batch.records_section import Buffer

try:
    import cython
except ImportError:
    from braidlog.codec import cython_shim as cython

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.stdlib import free, malloc
    from cython.cimports.libc.string import memcmp, memcpy

COMPILED: bool = bool(cython.compiled)

BOOLEAN, LONG, DOUBLE, TEXT = range(4)

Filled = tuple[bytearray, int, bytearray | None, bytearray]
"""One column: its validity bits, its count of nulls, the ends of its texts, and its values."""

_Column = cython.struct(
    name=cython.p_uchar,
    name_bytes=cython.longlong,
    kind=cython.longlong,
    validity=cython.p_uchar,
    ends=cython.p_int,
    data=cython.p_uchar,
    size=cython.longlong,
    room=cython.longlong,
    found=cython.longlong,
    row=cython.longlong,
    after=cython.longlong,
)
# `row`: the last row that had the field. `after`: the column whose field followed last time; it is tried first.


def read_objects(
    values: tuple[Buffer | None, Buffer, Buffer],
    first: int,
    count: int,
    names: Sequence[bytes],
    kinds: bytes,
    as_text: Callable[[bytes], bytes],
) -> tuple[list[Filled], bool] | None:
    """Read `count` values from `first` on, objects with fields of these names, into columns.

    Also returns whether a byte is above 127. None: see the invariant above; without a compiler the result is always
    None.

    `values`: the buffers of an Arrow binary column. `kinds`: one of the four kinds above for each name. `as_text`:
    converts a list or an object for a text column; its exceptions propagate.
    """
    if cython.compiled:
        if not names:
            return None
        validity, ends, data = values
        return _read_compiled(validity, ends, data, first, count, list(names), kinds, as_text)
    else:
        return None


@cython.cfunc
def _read_compiled(
    validity: object,
    ends: object,
    data: object,
    first: cython.longlong,
    count: cython.longlong,
    names: list,
    kinds: bytes,
    as_text: object,
) -> object:
    valid_view: Py_buffer
    ends_view: Py_buffer
    data_view: Py_buffer
    tens: cython.double[23]
    high: cython.uchar = 0
    wide: cython.longlong = len(names)
    at: cython.longlong
    columns: cython.pointer(_Column) = cython.NULL
    has_nulls: cython.bint = validity is not None
    tens[0] = 1.0
    for at in range(1, 23):
        tens[at] = tens[at - 1] * 10.0
    PyObject_GetBuffer(ends, cython.address(ends_view), PyBUF_SIMPLE)
    PyObject_GetBuffer(data, cython.address(data_view), PyBUF_SIMPLE)
    if has_nulls:
        PyObject_GetBuffer(validity, cython.address(valid_view), PyBUF_SIMPLE)
    try:
        columns = cython.cast(cython.pointer(_Column), malloc((wide + 1) * cython.sizeof(_Column)))
        if columns == cython.NULL:
            raise MemoryError
        kept = [_begin(cython.address(columns[at]), names[at], kinds[at], count) for at in range(wide)]
        columns[wide].after = 0  # precedes the first field
        if not _rows(
            columns,
            wide,
            kept,
            cython.cast(cython.p_uchar, valid_view.buf) if has_nulls else cython.NULL,
            cython.cast(cython.p_int, ends_view.buf),
            cython.cast(cython.p_uchar, data_view.buf),
            first,
            count,
            tens,
            cython.address(high),
            as_text,
        ):
            return None
        found = []
        for at in range(wide):
            valid, held_ends, held = kept[at]
            if held_ends is not None:
                del held[columns[at].size :]
            found.append((valid, count - columns[at].found, held_ends, held))
        return found, high >= 128
    finally:
        free(columns)
        if has_nulls:
            PyBuffer_Release(cython.address(valid_view))
        PyBuffer_Release(cython.address(data_view))
        PyBuffer_Release(cython.address(ends_view))


@cython.cfunc
def _begin(column: cython.pointer(_Column), name: bytes, kind: cython.longlong, count: cython.longlong) -> tuple:
    bits: cython.longlong = (count + 7) // 8
    valid: bytearray = bytearray(bits)
    held: bytearray = bytearray(1024 if kind == 3 else bits if kind == 0 else 8 * count)
    ends: bytearray = bytearray(4 * (count + 1)) if kind == 3 else None
    column.name = cython.cast(cython.p_uchar, PyBytes_AS_STRING(name))
    column.name_bytes = len(name)
    column.kind = kind
    column.validity = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(valid))
    column.ends = cython.NULL if ends is None else cython.cast(cython.p_int, PyByteArray_AS_STRING(ends))
    column.data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(held))
    column.size = 0
    column.room = len(held)
    column.found = 0
    column.row = -1
    column.after = 0
    return valid, ends, held


@cython.cfunc
def _rows(
    columns: cython.pointer(_Column),
    wide: cython.longlong,
    kept: list,
    valid: cython.p_uchar,
    ends: cython.p_int,
    data: cython.p_uchar,
    first: cython.longlong,
    count: cython.longlong,
    tens: cython.pointer(cython.double),
    high: cython.p_uchar,
    as_text: object,
) -> cython.bint:
    """Return whether all rows were read."""
    row: cython.longlong
    at: cython.longlong
    before: cython.longlong
    p: cython.p_uchar
    q: cython.p_uchar
    end: cython.p_uchar
    column: cython.pointer(_Column)
    for row in range(count):
        if valid == cython.NULL or valid[(first + row) >> 3] >> ((first + row) & 7) & 1:
            end = data + ends[first + row + 1]
            p = _skip(data + ends[first + row], end)
            if p == end or p[0] != 123:  # {
                return False
            p = _skip(p + 1, end)
            before = wide
            if p < end and p[0] == 125:  # }
                p += 1
            else:
                while True:
                    if p == end or p[0] != 34:  # "
                        return False
                    p += 1
                    at = columns[before].after
                    column = cython.address(columns[at])
                    if (
                        end - p <= column.name_bytes
                        or p[column.name_bytes] != 34
                        or memcmp(p, column.name, column.name_bytes)
                    ):
                        q = p
                        while q < end and q[0] != 34:
                            q += 1
                        if q == end:
                            return False
                        at = 0
                        while at < wide and (columns[at].name_bytes != q - p or memcmp(p, columns[at].name, q - p)):
                            at += 1
                        if at == wide:
                            return False
                        columns[before].after = at
                        column = cython.address(columns[at])
                    if column.row == row:
                        return False
                    column.row = row
                    before = at
                    p = _skip(p + column.name_bytes + 1, end)
                    if p == end or p[0] != 58:  # :
                        return False
                    p = _skip(p + 1, end)
                    if p == end:
                        return False
                    if p[0] == 110:  # n
                        if end - p < 4 or memcmp(p, b"null", 4):
                            return False
                        p += 4
                    else:
                        if column.kind == 3:
                            p = _text(p, end, column, kept, at, high, as_text)
                        elif column.kind == 1:
                            p = _long(p, end, column, row)
                        elif column.kind == 2:
                            p = _double(p, end, column, row, tens)
                        elif end - p >= 4 and not memcmp(p, b"true", 4):
                            column.data[row >> 3] |= 1 << (row & 7)
                            p += 4
                        elif end - p >= 5 and not memcmp(p, b"false", 5):
                            p += 5
                        else:
                            return False
                        if p == cython.NULL:
                            return False
                        column.validity[row >> 3] |= 1 << (row & 7)
                        column.found += 1
                    p = _skip(p, end)
                    if p == end:
                        return False
                    if p[0] == 44:  # ,
                        p = _skip(p + 1, end)
                    elif p[0] == 125:  # }
                        p += 1
                        break
                    else:
                        return False
            if _skip(p, end) != end:
                return False
        for at in range(wide):
            if columns[at].kind == 3:
                columns[at].ends[row + 1] = cython.cast(cython.int, columns[at].size)
    return True


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _skip(p: cython.p_uchar, end: cython.p_uchar) -> cython.p_uchar:
    """Skip JSON white space."""
    while p < end and (p[0] == 32 or p[0] == 10 or p[0] == 13 or p[0] == 9):
        p += 1
    return p


@cython.cfunc
@cython.exceptval(check=False)
def _long(
    p: cython.p_uchar, end: cython.p_uchar, column: cython.pointer(_Column), row: cython.longlong
) -> cython.p_uchar:
    number: cython.ulonglong = 0
    digits: cython.int = 0
    negative: cython.bint = p[0] == 45  # -
    if negative:
        p += 1
    if p == end or p[0] < 48 or p[0] > 57 or (p[0] == 48 and end - p > 1 and 48 <= p[1] <= 57):
        return cython.NULL
    while p < end and 48 <= p[0] <= 57:
        number = number * 10 + (p[0] - 48)
        digits += 1
        p += 1
        if digits > 19:
            return cython.NULL
    if p < end and (p[0] == 46 or p[0] == 101 or p[0] == 69):  # . e E
        return cython.NULL
    if number > 9223372036854775807 + cython.cast(cython.ulonglong, negative):
        return cython.NULL
    values: cython.pointer(cython.ulonglong) = cython.cast(cython.pointer(cython.ulonglong), column.data)
    values[row] = 0 - number if negative else number
    return p


@cython.cfunc
def _double(
    p: cython.p_uchar,
    end: cython.p_uchar,
    column: cython.pointer(_Column),
    row: cython.longlong,
    tens: cython.pointer(cython.double),
) -> cython.p_uchar:
    """Parse a number of digits that a double holds exactly, times or divided by a power of ten that it holds exactly:
    rounded once, hence correct (Clinger, 1990). Python's parser handles other numbers.
    """
    start: cython.p_uchar = p
    number: cython.ulonglong = 0
    digits: cython.int = 0
    power: cython.int = 0
    said: cython.int = 0
    is_whole: cython.bint = True
    is_minus: cython.bint
    found: cython.double
    negative: cython.bint = p[0] == 45
    if negative:
        p += 1
    if p == end or p[0] < 48 or p[0] > 57 or (p[0] == 48 and end - p > 1 and 48 <= p[1] <= 57):
        return cython.NULL
    while p < end and 48 <= p[0] <= 57:
        if digits < 19:
            number = number * 10 + (p[0] - 48)
        if number:
            digits += 1
        p += 1
    if p < end and p[0] == 46:  # .
        is_whole = False
        p += 1
        if p == end or p[0] < 48 or p[0] > 57:
            return cython.NULL
        while p < end and 48 <= p[0] <= 57:
            if digits < 19:
                number = number * 10 + (p[0] - 48)
                power -= 1
            if number:
                digits += 1
            p += 1
    if p < end and (p[0] == 101 or p[0] == 69):
        is_whole = False
        p += 1
        is_minus = p < end and p[0] == 45
        if p < end and (p[0] == 43 or p[0] == 45):
            p += 1
        if p == end or p[0] < 48 or p[0] > 57:
            return cython.NULL
        while p < end and 48 <= p[0] <= 57:
            said = said * 10 + (p[0] - 48)
            p += 1
            if said > 400:
                return cython.NULL
        power += -said if is_minus else said
    if digits <= 19 and number <= 9007199254740992 and -22 <= power <= 22:
        found = cython.cast(cython.double, number)
        found = found / tens[-power] if power < 0 else found * tens[power]
        if negative and not (is_whole and number == 0):
            found = -found
    else:
        found = float(PyBytes_FromStringAndSize(cython.cast(cython.p_char, start), p - start))
        if not -1e300 < found < 1e300:
            return cython.NULL
    cython.cast(cython.pointer(cython.double), column.data)[row] = found
    return p


@cython.cfunc
def _text(
    p: cython.p_uchar,
    end: cython.p_uchar,
    column: cython.pointer(_Column),
    kept: list,
    at: cython.longlong,
    high: cython.p_uchar,
    as_text: object,
) -> cython.p_uchar:
    q: cython.p_uchar
    out: cython.p_uchar
    code: cython.longlong
    low: cython.longlong
    seen: cython.uchar = 0
    if p[0] == 123 or p[0] == 91:
        return _nested(p, end, column, kept, at, as_text)
    if p[0] != 34:
        return cython.NULL
    p += 1
    q = p
    while q < end and q[0] != 34 and q[0] != 92 and q[0] >= 32:
        seen |= q[0]
        q += 1
    high[0] |= seen
    if q == end or q[0] < 32:
        return cython.NULL
    if q[0] == 34:
        _make_room(column, kept, at, q - p)
        memcpy(column.data + column.size, p, q - p)
        column.size += q - p
        return q + 1
    # An escape is never shorter than its character.
    _make_room(column, kept, at, end - p)
    out = column.data + column.size
    memcpy(out, p, q - p)
    out += q - p
    p = q
    while p < end and p[0] != 34:
        if p[0] < 32:
            return cython.NULL
        if p[0] != 92:  # \
            high[0] |= p[0]
            out[0] = p[0]
            out += 1
            p += 1
            continue
        if end - p < 2:
            return cython.NULL
        code = p[1]
        p += 2
        if code == 117:  # u
            code = _four_digits(p, end)
            p += 4
            if 0xD800 <= code <= 0xDBFF:
                if end - p < 6 or p[0] != 92 or p[1] != 117:
                    return cython.NULL
                low = _four_digits(p + 2, end)
                if low < 0xDC00 or low > 0xDFFF:
                    return cython.NULL
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                p += 6
            elif code < 0 or 0xDC00 <= code <= 0xDFFF:
                return cython.NULL
            out += _put(out, code)
            continue
        if code == 98:
            code = 8
        elif code == 102:
            code = 12
        elif code == 110:
            code = 10
        elif code == 114:
            code = 13
        elif code == 116:
            code = 9
        elif code not in (34, 47, 92):
            return cython.NULL
        out[0] = cython.cast(cython.uchar, code)
        out += 1
    if p == end:
        return cython.NULL
    column.size = out - column.data
    return p + 1


@cython.cfunc
@cython.exceptval(check=False)
def _four_digits(p: cython.p_uchar, end: cython.p_uchar) -> cython.longlong:
    """Parse four hexadecimal digits; -1 if they are not present."""
    number: cython.longlong = 0
    index: cython.int
    if end - p < 4:
        return -1
    for index in range(4):
        if 48 <= p[index] <= 57:
            number = number * 16 + p[index] - 48
        elif 97 <= p[index] <= 102:
            number = number * 16 + p[index] - 87
        elif 65 <= p[index] <= 70:
            number = number * 16 + p[index] - 55
        else:
            return -1
    return number


@cython.cfunc
@cython.exceptval(check=False)
def _put(out: cython.p_uchar, code: cython.longlong) -> cython.longlong:
    """Write a code point as UTF-8; return its length in bytes."""
    if code < 0x80:
        out[0] = code
        return 1
    if code < 0x800:
        out[0] = 0xC0 | code >> 6
        out[1] = 0x80 | code & 0x3F
        return 2
    if code < 0x10000:
        out[0] = 0xE0 | code >> 12
        out[1] = 0x80 | code >> 6 & 0x3F
        out[2] = 0x80 | code & 0x3F
        return 3
    out[0] = 0xF0 | code >> 18
    out[1] = 0x80 | code >> 12 & 0x3F
    out[2] = 0x80 | code >> 6 & 0x3F
    out[3] = 0x80 | code & 0x3F
    return 4


@cython.cfunc
def _nested(
    p: cython.p_uchar,
    end: cython.p_uchar,
    column: cython.pointer(_Column),
    kept: list,
    at: cython.longlong,
    as_text: object,
) -> cython.p_uchar:
    """Read a list or an object. Only its end is searched here."""
    start: cython.p_uchar = p
    depth: cython.longlong = 0
    while p < end:
        if p[0] == 34:
            p += 1
            while p < end and p[0] != 34:
                p += 2 if p[0] == 92 else 1
            if p >= end:
                return cython.NULL
        elif p[0] == 123 or p[0] == 91:
            depth += 1
        elif p[0] == 125 or p[0] == 93:
            depth -= 1
            if depth == 0:
                p += 1
                text: bytes = as_text(PyBytes_FromStringAndSize(cython.cast(cython.p_char, start), p - start))
                _make_room(column, kept, at, len(text))
                memcpy(column.data + column.size, PyBytes_AS_STRING(text), len(text))
                column.size += len(text)
                return p
        p += 1
    return cython.NULL


@cython.cfunc
def _make_room(column: cython.pointer(_Column), kept: list, at: cython.longlong, more: cython.longlong) -> cython.void:
    held: bytearray
    if column.size + more > column.room:
        held = kept[at][2]
        column.room = 2 * (column.size + more)
        PyByteArray_Resize(held, column.room)
        column.data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(held))
