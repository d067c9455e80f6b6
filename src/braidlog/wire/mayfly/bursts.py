# cython: cdivision=True, boundscheck=False, wraparound=False
# ruff: noqa: C901, PLR0912, PLR0915, RET505, SIM108
# - as in codec/batch/kernel.py: a hot loop is one function, and the compiler drops the other twin's branch only where
# it is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call"
"""Parses many small requests of one read to columns, and encodes columns of results, without a Python object per
request.

Handles plain GET, SET, DEL, INCR and DECR frames and their usual answers, in C if it was compiled. Reading ends
before any other frame. A test compares both with the declarations (`fields.py`).
Invariants: both implementations give the same results. No byte outside the data is read. A row is in every column or
in none.

    GET, DEL, INCR, DECR     key length 2 | key
    SET                      key length 2 | key | value length 4 | value [| TTL 4]
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from braidlog.model.limits import KV_KEY_BYTES_MAX, KV_VALUE_BYTES_MAX
from braidlog.wire.mayfly.messages import Status

try:
    import cython
except ImportError:
    from braidlog.codec import cython_shim as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy

COMPILED: bool = bool(cython.compiled)
# C types, so that comparing with them is free.
_SET = cython.declare(cython.int, 0x01)
_GET = cython.declare(cython.int, 0x02)
_DEL = cython.declare(cython.int, 0x03)
_INCR = cython.declare(cython.int, 0x20)
_DECR = cython.declare(cython.int, 0x21)
_OK = cython.declare(cython.longlong, int.from_bytes((0xCA, 0xFE, 0x01, Status.OK), "big"))
_MISSING = cython.declare(cython.longlong, int.from_bytes((0xCA, 0xFE, 0x01, Status.NOT_FOUND), "big"))
_KEY_BYTES_MAX = cython.declare(cython.longlong, KV_KEY_BYTES_MAX)
_VALUE_BYTES_MAX = cython.declare(cython.longlong, KV_VALUE_BYTES_MAX)
_HEAD: Final = struct.Struct(">I4sI").pack
_WITH_LENGTH: Final = struct.Struct(">I4sII").pack
_WITH_NUMBER: Final = struct.Struct(">I4sIq").pack


@cython.cfunc
@cython.inline
def _cut(data: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> bytes:
    if cython.compiled:
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + start, end - start)
    else:
        return data[start:end]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _u32(p: cython.p_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    high: cython.longlong = p[at] << 8 | p[at + 1]
    return high << 16 | p[at + 2] << 8 | p[at + 3]


def read_burst(
    data: bytes,
    at: cython.Py_ssize_t,
    most: cython.Py_ssize_t,
    payload_bytes_max: cython.longlong,
    consistency: cython.int = 0,
) -> tuple[int, bytes, bytes, list[bytes], list[bytes], list[int] | None]:
    """Parse complete plain frames from `at` on, at most `most`: reads up to the first write, or writes up to the
    first read.

    Accepts frames of version 1; with a `consistency`, frames of version 2 with that consistency.

    Returns where the next frame begins; commands, a byte each; ids, four bytes each; keys; values (of SET, else
    empty; no column for reads); TTLs, None if no SET has one.
    """
    p: cython.p_uchar
    have: cython.Py_ssize_t = len(data)
    begin: cython.Py_ssize_t
    end: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    kind: cython.int
    size: cython.longlong
    key_size: cython.longlong
    value_size: cython.longlong
    count: cython.Py_ssize_t = 0
    head: cython.Py_ssize_t = 13 if consistency else 12
    version: cython.int = 2 if consistency else 1
    reads: cython.bint = False
    kinds = bytearray()
    ids = bytearray()
    keys: list = []
    values: list = []
    ttls: list | None = None
    if cython.compiled:
        p = cython.cast(cython.p_uchar, PyBytes_AS_STRING(data))
    else:
        p = data
    while count < most and have - at >= head:
        kind = p[at + 3]
        size = _u32(p, at + 8)
        if p[at] != 0xCA or p[at + 1] != 0xFE or p[at + 2] != version or (consistency and p[at + 12] != consistency):
            break
        if size > payload_bytes_max or size > have - at - head:
            break
        if size < 3 or kind not in {_SET, _GET, _DEL, _INCR, _DECR}:
            break
        if count == 0:
            reads = kind == _GET
        elif (kind == _GET) != reads:
            break
        begin = at + head
        end = begin + size
        key_size = p[begin] << 8 | p[begin + 1]
        value_at = begin + 2 + key_size
        if key_size == 0 or key_size > _KEY_BYTES_MAX:
            break
        if kind == _SET:
            if value_at + 4 > end:
                break
            value_size = _u32(p, value_at)
            value_at += 4
            if value_size > _VALUE_BYTES_MAX or (value_at + value_size != end and value_at + value_size + 4 != end):
                break
            if value_at + value_size != end and ttls is None:
                ttls = [0] * count
            if ttls is not None:
                ttls.append(0 if value_at + value_size == end else _u32(p, end - 4))
            keys.append(_cut(data, begin + 2, value_at - 4))
            values.append(_cut(data, value_at, value_at + value_size))
        elif value_at != end:
            break
        else:
            keys.append(_cut(data, begin + 2, end))
            if not reads:
                values.append(b"")
            if ttls is not None:
                ttls.append(0)
        kinds.append(kind)
        if cython.compiled:
            ids.append(p[at + 4])
            ids.append(p[at + 5])
            ids.append(p[at + 6])
            ids.append(p[at + 7])
        else:
            ids += data[at + 4 : at + 8]
        count += 1
        at = end
    return at, bytes(kinds), bytes(ids), keys, values, ttls


def write_burst(ids: bytes, results: list[Any], other: Callable[[int, Any], bytes]) -> bytes:
    """Encode the answers in one piece: bytes are a value, an int is a number, True is done, None is a missing key.

    `other(id, result)` encodes every other result.
    """
    if len(ids) != 4 * len(results):
        raise AssertionError("an answer for each")
    if cython.compiled:
        return _write_compiled(ids, results, other)
    else:
        return b"".join(
            [_frame(ids[4 * row : 4 * row + 4], result, other) for row, result in enumerate(results)],
        )


def _frame(packed: bytes, result: Any, other: Callable[[int, Any], bytes]) -> bytes:  # noqa: ANN401 - a result, or a message
    if result is True:
        return _HEAD(_OK, packed, 0)
    if result is None:
        return _HEAD(_MISSING, packed, 0)
    if type(result) is bytes:
        return _WITH_LENGTH(_OK, packed, len(result) + 4, len(result)) + result
    if type(result) is int:
        return _WITH_NUMBER(_OK, packed, 8, result)
    return other(int.from_bytes(packed, "big"), result)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_u32(p: cython.p_uchar, value: cython.longlong) -> cython.p_uchar:
    p[0] = value >> 24
    p[1] = value >> 16
    p[2] = value >> 8
    p[3] = value
    return p + 4


@cython.cfunc
def _write_compiled(ids: bytes, results: list, other: Callable[[int, Any], bytes]) -> object:
    """Measure, allocate once, then write."""
    count: cython.Py_ssize_t = len(results)
    row: cython.Py_ssize_t
    total: cython.Py_ssize_t = 0
    length: cython.Py_ssize_t
    number: cython.longlong
    p: cython.p_uchar
    id_at: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(ids))
    others: dict = {}
    for row in range(count):
        result = results[row]
        if result is True or result is None:
            total += 12
        elif type(result) is bytes:
            total += 16 + len(cython.cast(bytes, result))
        elif type(result) is int:
            total += 20
        else:
            frame: bytes = other(_u32(id_at, 4 * row), result)
            others[row] = frame
            total += len(frame)
    out: bytes = PyBytes_FromStringAndSize(cython.NULL, total)
    p = cython.cast(cython.p_uchar, PyBytes_AS_STRING(out))
    for row in range(count):
        result = results[row]
        if result is not True and result is not None and type(result) is not bytes and type(result) is not int:
            frame = others[row]
            memcpy(p, PyBytes_AS_STRING(frame), len(frame))
            p += len(frame)
            continue
        p = _put_u32(p, _MISSING if result is None else _OK)
        memcpy(p, id_at + 4 * row, 4)
        p += 4
        if result is True or result is None:
            p = _put_u32(p, 0)
        elif type(result) is bytes:
            length = len(cython.cast(bytes, result))
            p = _put_u32(_put_u32(p, length + 4), length)
            memcpy(p, PyBytes_AS_STRING(result), length)
            p += length
        else:
            number = result
            p = _put_u32(_put_u32(_put_u32(p, 8), number >> 32), number)
    return out
