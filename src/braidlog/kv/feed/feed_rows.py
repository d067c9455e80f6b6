# cython: cdivision=True, boundscheck=False, wraparound=False
# ruff: noqa: F821, PLR0913, PLR0915, PLR0917, RET505
# - as in codec/batch/kernel.py: a hot loop is one function, and the compiler drops the other twin's branch only where
# it is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call, arg-type"
"""Encodes mutations into the records section of a feed batch, without a Python object per header.

feed_records.py defines the meaning of the headers. The module is compiled to C if a compiler is available.
Does not handle: batches, topics, the selection of mutations.
Invariant: compiled and Python code write the same bytes.
"""

from __future__ import annotations

from typing import Any, Final

from braidlog.codec.varint import encode_varint, encode_varlong

try:
    import cython
except ImportError:
    from braidlog.codec import cython_shim as cython

if cython.compiled:
    from cython.cimports.braidlog.codec.batch.record import body_size, put_bytes, put_head, put_varint, varint_size
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.libc.string import memcpy

COMPILED: bool = bool(cython.compiled)
NODE_DIGITS: Final = 32
_SET = cython.declare(cython.int, 1)
_DELETE = cython.declare(cython.int, 2)
# C constants of the module, so that no record looks them up by name.
_DIGITS = cython.declare(bytes, b"0123456789abcdef")
_SEQUENCE = cython.declare(bytes, encode_varint(6) + b"kv.seq")
_STAMP = cython.declare(bytes, encode_varint(6) + b"kv.hlc" + encode_varint(56))
_EXPIRES = cython.declare(bytes, encode_varint(10) + b"kv.expires")


def packed_header(name: str, value: bytes) -> bytes:
    """Return a header in the encoding of a record."""
    return encode_varint(len(name)) + name.encode() + encode_varint(len(value)) + value


def append_columns(
    out: bytearray,
    count: cython.longlong,
    count_max: cython.longlong,
    bytes_max: cython.longlong,
    delta_ms: cython.longlong,
    stamp: tuple[int, int, int, bytes],
    headers: tuple[bytes, bytes, bytes, bytes, bytes],
    kinds: bytes,
    keys: list[bytes],
    values: list[bytes],
    found: list[Any],
    row: cython.Py_ssize_t,
    until: cython.Py_ssize_t,
) -> tuple[int, int]:
    """Append the mutations of rows [row, until) to a section of `count` records, up to `count_max` records or
    `bytes_max` bytes.

    `stamp`: the first one's sequence, wall time and counter, and the node in hexadecimal digits. `headers`,
    packed: of a set, a deletion, an increment, a string, a counter. Returns the row where it stopped, and the
    count of appended records.
    """
    if min(len(kinds), len(keys), len(values), len(found)) < until or row < 0:
        raise ValueError(f"rows {row} to {until} of {len(keys)}")
    set_op, delete_op, count_op, of_string, of_counter = headers
    _check(stamp[3], max(len(set_op), len(delete_op), len(count_op)) + max(len(of_string), len(of_counter)))
    if cython.compiled:
        return _append_rows(
            out, count, count_max, bytes_max, delta_ms, stamp, headers, kinds, keys, values, found, row, until
        )
    else:
        first = count
        sequence, wall_ms, counter, node = stamp
        while row < until and count < count_max and len(out) < bytes_max:
            kind, op, of, value = kinds[row], set_op, of_string, values[row]
            if kind == _DELETE and found[row] is None:
                row += 1
                continue
            if kind == _DELETE:
                op, of, value = delete_op, b"", None
            elif kind != _SET:
                op, of, value = count_op, of_counter, b"%d" % found[row]
            _put(out, count, delta_ms, sequence, wall_ms, counter, node, op, of, keys[row], value, 0)
            row += 1
            count += 1
            sequence += 1
            counter += 1
        return row, count - first


@cython.cfunc
def _append_rows(
    out: bytearray,
    count: cython.longlong,
    count_max: cython.longlong,
    bytes_max: cython.longlong,
    delta_ms: cython.longlong,
    stamp: tuple,
    headers: tuple,
    kinds: bytes,
    keys: list,
    values: list,
    found: list,
    row: cython.Py_ssize_t,
    until: cython.Py_ssize_t,
) -> tuple:
    """Sequence and counter of a record are those of the one before it, plus one: they are written once, then
    incremented as digits. `out` is enlarged in large steps and cut to its size at the end."""
    kind: cython.int
    first: cython.longlong = count
    sequence: cython.longlong = stamp[0]
    wall_ms: cython.longlong = stamp[1]
    counter: cython.longlong = stamp[2]
    node: bytes = stamp[3]
    op: bytes
    of: bytes
    key: bytes
    value: bytes
    size: cython.Py_ssize_t = len(out)
    needed: cython.Py_ssize_t
    room: cython.longlong
    value_size: cython.longlong
    stamp_size: cython.longlong
    body: cython.longlong
    start: cython.p_uchar
    p: cython.p_uchar
    value_at: cython.p_uchar
    head: cython.uchar[128]
    digits: cython.uchar[24]
    stamp_size = _put_stamp(head, sequence, wall_ms, counter, node) - cython.cast(cython.p_uchar, head)
    try:
        while row < until and count < count_max and size < bytes_max:
            kind = kinds[row]
            key = keys[row]
            if kind == _SET:
                op = cython.cast(bytes, headers[0])
                of = cython.cast(bytes, headers[3])
                value = values[row]
                value_at = cython.cast(cython.p_uchar, PyBytes_AS_STRING(value))
                value_size = len(value)
            elif kind != _DELETE:
                op = cython.cast(bytes, headers[2])
                of = cython.cast(bytes, headers[4])
                value_at = digits
                value_size = _put_number(digits, found[row]) - value_at
            elif found[row] is None:
                row += 1
                continue
            else:
                op = cython.cast(bytes, headers[1])
                of = b""
                value_at = cython.NULL
                value_size = -1
            body = body_size(delta_ms, count, len(key), value_size, 1 + stamp_size + len(op) + len(of))
            needed = varint_size(body) + body
            if size + needed > len(out):
                # As if all following records had this size, up to the section's limit.
                room = min(needed * min(until - row, count_max - count), needed + bytes_max - size)
                PyByteArray_Resize(out, size + room)
            start = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out)) + size
            p = put_head(start, body, delta_ms, count)
            p = put_bytes(p, PyBytes_AS_STRING(key), len(key))
            p = put_bytes(p, value_at, value_size)
            p[0] = 8 if len(of) > 0 else 6  # headers, as a varint
            memcpy(p + 1, head, stamp_size)
            _copy(_copy(p + 1 + stamp_size, op), of)
            size += needed
            row += 1
            count += 1
            sequence += 1
            counter += 1
            if not (_count_up(head + 8, head[7] >> 1) and _count_up_hex(head + stamp_size - 40)):
                stamp_size = _put_stamp(head, sequence, wall_ms, counter, node) - cython.cast(cython.p_uchar, head)
    finally:
        PyByteArray_Resize(out, size)
    return row, count - first


def append_mutation(
    out: bytearray,
    count: int,
    delta_ms: int,
    stamp: tuple[int, int, int, bytes],
    op: bytes,
    kind: bytes,
    key: bytes,
    value: bytes | None,
    deadline_ms: int,
) -> None:
    """Append one mutation, with the packed headers of its operation and type (none: b"")."""
    _check(stamp[3], len(op) + len(kind))
    _put(out, count, delta_ms, stamp[0], stamp[1], stamp[2], stamp[3], op, kind, key, value, deadline_ms)


def _check(node: bytes, headers_size: int) -> None:
    """Raise if the headers could exceed their buffer of 256 bytes: 165 are used beside the packed ones."""
    if len(node) != NODE_DIGITS or headers_size > 90:
        raise ValueError(f"a node of {len(node)} digits, headers of {headers_size} bytes")


@cython.cfunc
def _put(
    out: bytearray,
    offset_delta: cython.longlong,
    delta_ms: cython.longlong,
    sequence: cython.longlong,
    wall_ms: cython.longlong,
    counter: cython.longlong,
    node: bytes,
    op: bytes,
    kind: bytes,
    key: bytes,
    value: Any,  # noqa: ANN401 - bytes or None
    deadline_ms: cython.longlong,
) -> object:
    count: cython.longlong = 3 + (len(kind) > 0) + (deadline_ms > 0)
    if cython.compiled:
        at: cython.Py_ssize_t = len(out)
        value_size: cython.longlong = -1 if value is None else len(cython.cast(bytes, value))
        headers_size: cython.longlong
        body: cython.longlong
        head: cython.uchar[256]
        p: cython.p_uchar = _put_stamp(put_varint(head, count), sequence, wall_ms, counter, node)
        p = _copy(_copy(p, op), kind)
        if deadline_ms > 0:
            p = _put_decimal(_copy(p, _EXPIRES), deadline_ms)
        headers_size = p - cython.cast(cython.p_uchar, head)
        body = body_size(delta_ms, offset_delta, len(key), value_size, headers_size)
        PyByteArray_Resize(out, at + varint_size(body) + body)
        p = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out)) + at
        p = put_head(p, body, delta_ms, offset_delta)
        p = put_bytes(p, PyBytes_AS_STRING(key), len(key))
        p = put_bytes(p, cython.NULL if value is None else PyBytes_AS_STRING(value), value_size)
        memcpy(p, head, headers_size)
    else:
        digits, expires = b"%d" % sequence, b"%d" % deadline_ms
        parts = [b"\0", encode_varlong(delta_ms), encode_varint(offset_delta), encode_varint(len(key)), key]
        parts += [encode_varint(-1)] if value is None else [encode_varint(len(value)), value]
        parts += [encode_varint(count), _SEQUENCE, encode_varint(len(digits)), digits]
        parts += [_STAMP, b"%016x%08x" % (wall_ms, counter), node, op, kind]
        if deadline_ms > 0:
            parts += [_EXPIRES, encode_varint(len(expires)), expires]
        packed = b"".join(parts)
        out += encode_varint(len(packed))
        out += packed
    return None


@cython.cfunc
@cython.exceptval(check=False)
def _put_stamp(
    p: cython.p_uchar, sequence: cython.longlong, wall_ms: cython.longlong, counter: cython.longlong, node: bytes
) -> cython.p_uchar:
    """name 7 | digits 1 | sequence | name 7 | digits 1 | wall 16 | counter 8 | node 32"""
    p = _put_decimal(_copy(p, _SEQUENCE), sequence)
    return _copy(_put_hex(_put_hex(_copy(p, _STAMP), wall_ms, 16), counter, 8), node)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _count_up(p: cython.p_uchar, size: cython.int) -> cython.bint:
    """Increment decimal digits; False: one more digit is needed."""
    while size > 0:
        size -= 1
        if p[size] != 57:
            p[size] += 1
            return True
        p[size] = 48
    return False


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _count_up_hex(p: cython.p_uchar) -> cython.bint:
    """Increment the hexadecimal digits of a counter; False: it overflowed."""
    at: cython.int = 8
    while at > 0:
        at -= 1
        if p[at] != 102:
            p[at] = 97 if p[at] == 57 else p[at] + 1
            return True
        p[at] = 48
    return False


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _copy(p: cython.p_uchar, data: bytes) -> cython.p_uchar:
    memcpy(p, PyBytes_AS_STRING(data), len(data))
    return p + len(data)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_decimal(p: cython.p_uchar, value: cython.longlong) -> cython.p_uchar:
    """Write the digits of a non-negative number, after their count."""
    size: cython.int = 1
    rest: cython.longlong = value // 10
    index: cython.int
    while rest > 0:
        rest //= 10
        size += 1
    p[0] = 2 * size
    for index in range(size, 0, -1):
        p[index] = 48 + value % 10
        value //= 10
    return p + 1 + size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_number(p: cython.p_uchar, value: cython.longlong) -> cython.p_uchar:
    """Write a 64-bit number, in at most 20 digits and a sign."""
    backwards: cython.uchar[20]
    size: cython.int = 0
    rest: cython.ulonglong = value
    if value < 0:
        p[0] = 45
        p += 1
        rest = 0 - rest
    while True:
        backwards[size] = 48 + rest % 10
        rest //= 10
        size += 1
        if rest == 0:
            break
    while size > 0:
        size -= 1
        p[0] = backwards[size]
        p += 1
    return p


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_hex(p: cython.p_uchar, value: cython.longlong, size: cython.int) -> cython.p_uchar:
    index: cython.int
    digits: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(_DIGITS))
    for index in range(size):
        p[index] = digits[(value >> 4 * (size - 1 - index)) & 15]
    return p + size
