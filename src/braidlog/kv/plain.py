# cython: cdivision=True, boundscheck=False, wraparound=False
# ruff: noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917
# - as in codec/kernel.py: a hot loop is one function, and the compiler drops the other twin's branch only where it is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call, arg-type, call-overload"
"""The plain operations among many, carried out on columns and the dictionary of keys, without an object each.

Knows: what a plain GET, SET, DELETE, INCREMENT and DECREMENT find and change, what keys and values take, the bytes of their log
entries (entries.py). In C where a compiler was found. Refuses to know: the wire, files, clocks, and everything that is not plain:
there it ends, and `Store.execute`, which defines all of it, takes over for one.
Invariants: both twins give the same; a row is carried out whole or not at all.

Not plain: a time to live, a change of a key that has a deadline, a list or hash, a string that is counted with, a counter at
the end of its range, a key or value of a size that is refused, no room.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from braidlog.kv.entries import Op, pack_entry
from braidlog.kv.values import COUNTER_COST, STRING_COST
from braidlog.model.limits import KV_KEY_BYTES_MAX, KV_VALUE_BYTES_MAX

try:
    import cython
except ImportError:
    from braidlog.codec import nocython as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.libc.string import memcpy

COMPILED: bool = bool(cython.compiled)
_SET = cython.declare(cython.int, 1)
_DELETE = cython.declare(cython.int, 2)
_INCREMENT = cython.declare(cython.int, 3)
_STRING_COST = cython.declare(cython.longlong, STRING_COST)
_COUNTER_COST = cython.declare(cython.longlong, COUNTER_COST)
_KEY_BYTES_MAX = cython.declare(cython.longlong, KV_KEY_BYTES_MAX)
_VALUE_BYTES_MAX = cython.declare(cython.longlong, KV_VALUE_BYTES_MAX)
_NUMBER_MIN = cython.declare(cython.longlong, -(2**63) + 1)
_NUMBER_MAX = cython.declare(cython.longlong, 2**63 - 2)
_OP_SET = cython.declare(cython.int, Op.SET)
_OP_DEL = cython.declare(cython.int, Op.DEL)
_OP_INCRBY = cython.declare(cython.int, Op.INCRBY)
_ENTRY_BYTES = cython.declare(cython.longlong, 23)
_PLUS_ONE = cython.declare(bytes, (1).to_bytes(8, "big", signed=True))
_MINUS_ONE = cython.declare(bytes, (-1).to_bytes(8, "big", signed=True))


def _crc_tables() -> bytes:
    """CRC-32 (IEEE) of each byte, and of each byte with one to seven zeros behind it: eight bytes are taken in a step."""
    zero = zlib.crc32(b"\0")
    first = [zlib.crc32(bytes((byte,))) ^ zero for byte in range(256)]  # the part that depends on the byte alone
    packed, table = bytearray(), first
    for _ in range(8):
        packed += struct.pack("=256I", *table)
        table = [first[value & 0xFF] ^ (value >> 8) for value in table]
    return bytes(packed)


_TABLES = cython.declare(bytes, _crc_tables())


def read_plain(
    data: dict[bytes, Any],
    deadlines: Any,  # noqa: ANN401 - a dict, or one that somebody looks at
    recency: Any,  # noqa: ANN401
    keys: list[bytes],
    now_ms: int,
    results: list[Any],
) -> int:
    """Look up keys from row `len(results)` on, into `results` (None: not there); return how many were there."""
    row: cython.Py_ssize_t
    hits: cython.Py_ssize_t = 0
    has_deadlines: cython.bint = bool(deadlines)
    keeps_order: cython.bint = recency is not None
    key: bytes
    for row in range(len(results), len(keys)):
        key = keys[row]
        if len(key) == 0 or len(key) > _KEY_BYTES_MAX:
            break
        held = data.get(key)
        if held is not None and has_deadlines:
            deadline_ms = deadlines.get(key)
            if deadline_ms is not None and deadline_ms <= now_ms:
                held = None
        if held is not None:
            if type(held) is int:
                held = b"%d" % held
            elif type(held) is not bytes:
                break
            hits += 1
            if keeps_order:
                recency.move_to_end(key)
        results.append(held)
    return hits


def change_plain(
    data: dict[bytes, Any],
    deadlines: Any,  # noqa: ANN401 - a dict, or one that somebody looks at
    recency: Any,  # noqa: ANN401
    kinds: bytes,
    keys: list[bytes],
    values: list[bytes],
    ttls: list[int] | None,
    used_bytes: cython.longlong,
    used_bytes_max: cython.longlong,
    key_cost: cython.longlong,
    wall_ms: cython.longlong,
    results: list[Any],
) -> tuple[bytes | bytearray, int, int, int]:
    """Carry out changes from row `len(results)` on, into `results` (None: a key to delete that is not there).

    Returns their log entries, all at `wall_ms`; how many; and what the keys take now and took at most.
    """
    row: cython.Py_ssize_t
    kind: cython.int
    op: cython.int
    size: cython.Py_ssize_t = 0
    count: cython.longlong = 0
    peak: cython.longlong = used_bytes
    old_cost: cython.longlong
    growth: cython.longlong
    number: cython.longlong
    has_deadlines: cython.bint = bool(deadlines)
    keeps_order: cython.bint = recency is not None
    key: bytes
    value: bytes
    new: object
    result: object
    out = bytearray()
    if len(kinds) < len(keys) or len(values) < len(keys) or (ttls is not None and len(ttls) < len(keys)):
        raise ValueError(f"{len(kinds)} kinds and {len(values)} values for {len(keys)} keys")
    for row in range(len(results), len(keys)):
        key = keys[row]
        kind = kinds[row]
        if len(key) == 0 or len(key) > _KEY_BYTES_MAX or (ttls is not None and ttls[row]):
            break
        if has_deadlines and key in deadlines:
            break
        held = data.get(key)
        if held is None:
            old_cost = -key_cost - len(key)
        elif type(held) is bytes:
            old_cost = _STRING_COST + len(held)
        elif type(held) is int:
            old_cost = _COUNTER_COST
        else:
            break
        if kind == _SET:
            op = _OP_SET
            value = values[row]
            if len(value) > _VALUE_BYTES_MAX:
                break
            growth = _STRING_COST + len(value) - old_cost
            new = value
            result = True
        elif kind == _DELETE:
            if held is None:
                results.append(None)
                continue
            op = _OP_DEL
            value = b""
            growth = -old_cost - key_cost - len(key)
            new = None
            result = True
        else:
            if type(held) is bytes:
                break
            number = 0 if held is None else held
            if number > _NUMBER_MAX or number < _NUMBER_MIN:
                break
            op = _OP_INCRBY
            value = _PLUS_ONE if kind == _INCREMENT else _MINUS_ONE
            growth = _COUNTER_COST - old_cost
            result = number + 1 if kind == _INCREMENT else number - 1
            new = result
        if growth > 0 and used_bytes + growth > used_bytes_max:
            break
        size = _put_entry(out, size, wall_ms, op, key, value)
        if new is None:
            del data[key]
        else:
            data[key] = new
        if keeps_order:
            if new is None:
                del recency[key]
            elif held is None:
                recency[key] = None
            else:
                recency.move_to_end(key)
        used_bytes += growth
        peak = max(peak, used_bytes)
        count += 1
        results.append(result)
    if cython.compiled:
        PyByteArray_Resize(out, size)
    return out, count, used_bytes, peak


@cython.cfunc
@cython.inline
def _put_entry(
    out: bytearray, at: cython.Py_ssize_t, wall_ms: cython.longlong, op: cython.int, key: bytes, value: bytes
) -> cython.Py_ssize_t:
    """Write an entry at `at`; return where the next one begins. `out` may be longer than what is written."""
    size: cython.Py_ssize_t = _ENTRY_BYTES + len(key) + len(value)
    if cython.compiled:
        start: cython.p_uchar
        p: cython.p_uchar
        if at + size > len(out):
            PyByteArray_Resize(out, 2 * (at + size) + 4096)
        start = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out)) + at
        p = _put_u32(_put_u32(start + 4, wall_ms >> 32), wall_ms)
        p[0] = op
        p[1] = len(key) >> 8
        p[2] = len(key) & 0xFF
        memcpy(p + 3, PyBytes_AS_STRING(key), len(key))
        p = _put_u32(p + 3 + len(key), len(value))
        memcpy(p, PyBytes_AS_STRING(value), len(value))
        _put_u32(p + len(value), 0)
        _put_u32(start, _crc(start + 4, size - 4))
    else:
        for part in pack_entry(wall_ms, op, key, value, 0):
            out += part
    return at + size


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
@cython.exceptval(check=False)
def _crc(p: cython.p_uchar, size: cython.Py_ssize_t) -> cython.longlong:
    """CRC-32 (IEEE), without a call of zlib for some forty bytes."""
    table: cython.p_uint = cython.cast(cython.p_uint, PyBytes_AS_STRING(_TABLES))
    crc: cython.uint = 0
    crc = ~crc  # a literal of 32 bits would be a Python object to the compiler, and every step with it a call
    while size >= 8:
        crc ^= p[0] | p[1] << 8 | p[2] << 16 | cython.cast(cython.uint, p[3]) << 24
        crc = (
            table[1792 + (crc & 0xFF)]
            ^ table[1536 + (crc >> 8 & 0xFF)]
            ^ table[1280 + (crc >> 16 & 0xFF)]
            ^ table[1024 + (crc >> 24)]
            ^ table[768 + p[4]]
            ^ table[512 + p[5]]
            ^ table[256 + p[6]]
            ^ table[p[7]]
        )
        p += 8
        size -= 8
    if size >= 4:
        crc ^= p[0] | p[1] << 8 | p[2] << 16 | cython.cast(cython.uint, p[3]) << 24
        crc = (
            table[768 + (crc & 0xFF)]
            ^ table[512 + (crc >> 8 & 0xFF)]
            ^ table[256 + (crc >> 16 & 0xFF)]
            ^ table[crc >> 24]
        )
        p += 4
        size -= 4
    while size > 0:
        crc = table[(crc ^ p[0]) & 0xFF] ^ crc >> 8
        p += 1
        size -= 1
    return ~crc
