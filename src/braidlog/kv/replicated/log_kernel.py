# cython: cdivision=True, boundscheck=False, wraparound=False
# ruff: noqa: C901, F821, PLR0912, PLR0913, PLR0915, PLR0917, RET505
# - as in codec/batch/kernel.py: a hot loop is one function, and the compiler drops the other twin's branch only where
# it is an `else`
# mypy: disable-error-code="name-defined, valid-type, attr-defined, untyped-decorator"
# mypy: disable-error-code="type-arg, assignment, no-any-return, no-untyped-call, arg-type, call-overload"
"""Kernel for plain operations on the keys of one log: changes keys and appends records without a Python object per
operation.

A plain operation is GET, SET, DELETE, INCREMENT or DECREMENT. The kernel also writes the stamps of keys, the
records of a replicated log (log_records.py) and the entries of a local store's log (wal_entries.py). It is
compiled to C if a compiler is available.
Does not handle: files, clocks, batch headers.

At an operation that is not plain the kernel stops, and the caller uses `execute` or `apply` of the store or slot,
which define the semantics, for that one operation.
Invariants: compiled and Python code give the same results; a row or record is executed completely or not at all.

Not plain: a time to live, a key with a deadline, a list or hash, a string that is incremented, a counter at the
end of its range, a key or value of a refused size, a lack of memory, a salvaged record.

Over 500 lines because the compiler inlines within a unit only, and leader and follower share the parts.
"""

from __future__ import annotations

import struct
from typing import Any

from braidlog.codec.batch.kernel import decode_records
from braidlog.codec.crc import crc32c
from braidlog.codec.varint import encode_varint
from braidlog.kv.engine.values import COUNTER_COST, STRING_COST
from braidlog.kv.replicated.slots import SLOTS
from braidlog.kv.wal.wal_entries import ENTRY_BYTES_MIN, Op, pack_entry
from braidlog.model.limits import KV_KEY_BYTES_MAX, KV_VALUE_BYTES_MAX

try:
    import cython
except ImportError:
    from braidlog.codec import cython_shim as cython

if cython.compiled:
    from cython.cimports.braidlog.codec.batch.record import (
        Span,
        body_size,
        next_record,
        put_bytes,
        put_head,
        put_varint,
        varint_size,
    )
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy

COMPILED: bool = bool(cython.compiled)
HEAD_BYTES = 36
STAMP_BYTES = 28
PART_BYTES = 12 + 2 * STAMP_BYTES
_PART_BYTES = cython.declare(cython.longlong, PART_BYTES)
_PART_KEY = cython.declare(cython.int, 0x7A)
_PART_STRING = cython.declare(cython.int, 1)
_HEAD_BYTES = cython.declare(cython.longlong, HEAD_BYTES)
_ENTRY_BYTES = cython.declare(cython.longlong, ENTRY_BYTES_MIN)
_STAMP_BYTES = cython.declare(cython.longlong, STAMP_BYTES)
_SLOTS = cython.declare(cython.uint, SLOTS)
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
_LEVEL_MAX = cython.declare(cython.int, 3)
_PLUS_ONE = cython.declare(bytes, (1).to_bytes(8, "big", signed=True))
_MINUS_ONE = cython.declare(bytes, (-1).to_bytes(8, "big", signed=True))
_NEVER = cython.declare(bytes, bytes(STAMP_BYTES))
_TTL = struct.Struct(">I")
_WALL = struct.Struct(">QI")


def _crc_tables(polynomial: int) -> bytes:
    """Return the CRC of each byte, and of each byte with one to seven zeros after it: the CRC takes eight bytes in a
    step."""
    first = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
        first.append(value)
    packed, table = bytearray(), first
    for _ in range(8):
        packed += struct.pack("=256I", *table)
        table = [first[value & 0xFF] ^ (value >> 8) for value in table]
    return bytes(packed)


_CRC32C = cython.declare(bytes, _crc_tables(0x82F63B78))
_CRC32 = cython.declare(bytes, _crc_tables(0xEDB88320))


def read_rows(
    keyspaces: list[tuple[Any, ...] | None],
    keys: list[bytes],
    rows: list[int] | None,
    now_ms: cython.longlong,
    results: list[Any],
) -> tuple[list[list[int]], int]:
    """Look up the keys of some rows (None: all) in their logs, into `results` (None: no such key).

    `keyspaces`: data, deadlines and recency of each log; None: the log cannot be read here. Returns the rows left
    to the caller, by log and in order, or [] if none; and the count of keys found. An expired key is left to the
    caller. A follower passes no deadlines: its keys exist until the leader's record removes them. If recency is
    kept, all later rows of a log with a left row are left, too.
    """
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    log: cython.uint = 0
    logs: cython.uint = len(keyspaces)
    end: cython.Py_ssize_t = len(keys) if rows is None else len(rows)
    hits: cython.Py_ssize_t = 0
    key: bytes
    keyspace: tuple | None
    data: dict
    deadlines: dict
    has_deadlines: cython.bint = False
    keeps_order: cython.bint = False
    left: list = []
    if len(results) < len(keys):
        raise ValueError(f"{len(results)} results for {len(keys)} keys")
    for at in range(end):
        row = at if rows is None else rows[at]
        key = keys[row]
        if logs > 1:
            if cython.compiled:
                log = _crc(_CRC32C, cython.cast(cython.p_uchar, PyBytes_AS_STRING(key)), len(key)) % _SLOTS % logs
            else:
                log = crc32c(key) % SLOTS % logs
        if logs > 1 or at == 0:
            keyspace = keyspaces[log]
            if keyspace is not None:
                data, deadlines, keeps_order = keyspace[0], keyspace[1], keyspace[2] is not None
                has_deadlines = bool(deadlines)
        if keyspace is not None and 0 < len(key) <= _KEY_BYTES_MAX:
            held = data.get(key)
            if held is None:
                continue
            if not has_deadlines or deadlines.get(key, now_ms + 1) > now_ms:
                if type(held) is int:
                    held = b"%d" % held
                if type(held) is bytes:
                    results[row] = held
                    hits += 1
                    if keeps_order:
                        keyspace[2].move_to_end(key)
                    continue
        if not left:
            left = [[] for _ in range(logs)]
        cython.cast(list, left[log]).append(row)
        if keyspace is not None and keeps_order:
            keyspaces, keyspace = [None if other == log else keyspaces[other] for other in range(logs)], None
    return left, hits


def change_rows(
    keyspace: tuple[Any, ...],
    kinds: bytes,
    keys: list[bytes],
    values: list[bytes],
    ttls: list[int] | None,
    rows: list[int] | None,
    at: cython.Py_ssize_t,
    records_max: cython.longlong,
    used_bytes: cython.longlong,
    used_bytes_max: cython.longlong,
    key_cost: cython.longlong,
    section: bytearray,
    count: cython.longlong,
    section_bytes_max: cython.longlong,
    head: bytes,
    counter: cython.longlong,
    results: list[Any],
) -> tuple[int, int, int, int]:
    """Execute the changes of rows[at:], into `results` (None: no such key to delete), and append their records to a
    section.

    Without `rows`: all. `keyspace`: data, deadlines, recency, stamps, deletions, and the heap of deletions by
    time; without stamps, WAL entries are appended. `head`: the template of record heads; the first record has
    `counter`. `count`: records of the section so far. Stops after `records_max` records, or once the section has
    `section_bytes_max`. Returns the position where it stopped, the count of records written, and the memory that
    the keys use now and at the peak.
    """
    data: dict = keyspace[0]
    deadlines = keyspace[1]
    recency = keyspace[2]
    stamps: dict = keyspace[3]
    gone: dict = keyspace[4]
    gone_by_time: list = keyspace[5]
    row: cython.Py_ssize_t
    kind: cython.int
    op: cython.int
    end: cython.Py_ssize_t = len(keys) if rows is None else len(rows)
    size: cython.Py_ssize_t = len(section)
    first: cython.longlong = count
    peak: cython.longlong = 0
    old_cost: cython.longlong
    growth: cython.longlong
    number: cython.longlong
    has_deadlines: cython.bint = bool(deadlines)
    keeps_order: cython.bint = recency is not None
    key: bytes
    value: bytes
    new: object
    result: object
    wall_ms, _ = _WALL.unpack_from(head, 4)
    at_ms: cython.longlong = wall_ms
    if len(kinds) < len(keys) or len(values) < len(keys) or (ttls is not None and len(ttls) < len(keys)):
        raise ValueError(f"{len(kinds)} kinds and {len(values)} values for {len(keys)} keys")
    if len(head) != _HEAD_BYTES:
        raise ValueError(f"a head of {len(head)} bytes")
    try:
        while at < end and count - first < records_max and size < section_bytes_max:
            row = at if rows is None else rows[at]
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
                    results[row] = None
                    at += 1
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
            if stamps is None:
                size = _put_entry(section, size, at_ms, op, key, value)
            else:
                size = _put_record(section, size, count, head, op, counter, key, value)
                _note(stamps, gone, gone_by_time, op, key, _stamp_of(head, counter), wall_ms)
            _keep(data, recency, keeps_order, key, held, new)
            used_bytes += growth
            peak = max(peak, used_bytes)
            count += 1
            counter += 1
            results[row] = result
            at += 1
    finally:
        if cython.compiled:
            PyByteArray_Resize(section, size)
    return at, count - first, used_bytes, peak


def apply_records(
    keyspace: tuple[Any, ...],
    section: Any,  # noqa: ANN401 - a buffer
    records: cython.longlong,
    base_offset: cython.longlong,
    last_offset_delta: cython.longlong,
    base_timestamp: cython.longlong,
    applied: cython.longlong,
    end: cython.longlong,
    used_bytes: cython.longlong,
    key_cost: cython.longlong,
    forget_ms: cython.longlong,
    retention_ms: cython.longlong,
    restores: cython.bint,
    changed: list[bytes],
) -> tuple[int, int, int, int]:
    """Apply the records of a section with offsets in [applied, end), as a follower, up to the first that is not
    plain.

    Stops after the first record whose wall time is `forget_ms` or later (or the retention after the first
    deletion), so that the caller can drop old deletions. Appends the keys to `changed`. Returns the offset after
    the last applied record, the memory that the keys use, and their greatest stamp as wall time and counter; -1:
    no mutation was applied. A checkpoint's key (checkpoints.py) is restored if the state is built from that
    checkpoint (`restores`); else it changes nothing.
    """
    data: dict = keyspace[0]
    deadlines = keyspace[1]
    recency = keyspace[2]
    stamps: dict = keyspace[3]
    gone: dict = keyspace[4]
    gone_by_time: list = keyspace[5]
    keeps_order: cython.bint = recency is not None
    offset: cython.longlong
    wall_ms: cython.longlong
    counter: cython.longlong
    latest_ms: cython.longlong = -1
    latest_counter: cython.longlong = 0
    growth: cython.longlong
    op: cython.int
    key: bytes
    stamp: bytes
    argument: bytes
    if cython.compiled:
        view: Py_buffer
        span: Span
        p: cython.p_uchar
        stop: cython.p_uchar
        v: cython.p_uchar
        left: cython.longlong = records
        PyObject_GetBuffer(section, cython.address(view), PyBUF_SIMPLE)
        try:
            p = cython.cast(cython.p_uchar, view.buf)
            stop = p + view.len
            span.offset_delta = -1
            while left > 0:
                left -= 1
                p = next_record(p, stop, last_offset_delta, base_timestamp, cython.address(span))
                if p == cython.NULL:
                    break
                offset = base_offset + span.offset_delta
                if offset < applied:
                    continue
                if offset >= end or span.key_length <= 0 or span.value_length < _HEAD_BYTES:
                    break
                v = span.value
                if v[0] == 1 and v[1] == _PART_KEY:
                    if restores:
                        if v[2] != _PART_STRING or v[3] != 1 or span.value_length < _PART_BYTES:
                            break
                        if (v[4] | v[5] | v[6] | v[7] | v[8] | v[9] | v[10] | v[11]) != 0:
                            break
                        key = PyBytes_FromStringAndSize(cython.cast(cython.p_char, span.key), span.key_length)
                        stamp = PyBytes_FromStringAndSize(cython.cast(cython.p_char, v + 12), 2 * _STAMP_BYTES)
                        argument = PyBytes_FromStringAndSize(
                            cython.cast(cython.p_char, v + _PART_BYTES), span.value_length - _PART_BYTES
                        )
                        growth = _restored(
                            data, deadlines, recency, keeps_order, stamps, key, argument, stamp, key_cost
                        )
                        if growth == _NOT_PLAIN:
                            break
                        used_bytes += growth
                    applied = offset + 1
                    continue
                if v[0] != 1 or v[2] < 1 or v[2] > _LEVEL_MAX or v[3] != 0 or (v[32] | v[33] | v[34] | v[35]) != 0:
                    break
                op = v[1]
                wall_ms = _get_u32(v + 4) << 32 | _get_u32(v + 8)
                counter = _get_u32(v + 12)
                key = PyBytes_FromStringAndSize(cython.cast(cython.p_char, span.key), span.key_length)
                stamp = PyBytes_FromStringAndSize(cython.cast(cython.p_char, v + 4), _STAMP_BYTES)
                argument = PyBytes_FromStringAndSize(
                    cython.cast(cython.p_char, v + _HEAD_BYTES), span.value_length - _HEAD_BYTES
                )
                growth = _applied(
                    data,
                    deadlines,
                    recency,
                    keeps_order,
                    stamps,
                    gone,
                    gone_by_time,
                    op,
                    key,
                    argument,
                    stamp,
                    wall_ms,
                    key_cost,
                )
                if growth == _NOT_PLAIN:
                    break
                used_bytes += growth
                applied = offset + 1
                changed.append(key)
                if wall_ms > latest_ms or (wall_ms == latest_ms and counter > latest_counter):
                    latest_ms = wall_ms
                    latest_counter = counter
                if op == _OP_DEL and wall_ms + retention_ms < forget_ms:
                    forget_ms = wall_ms + retention_ms
                if wall_ms >= forget_ms:
                    break
        finally:
            PyBuffer_Release(cython.address(view))
    else:
        for offset, _, row_key, value, *_ in decode_records(
            section, records, base_offset, last_offset_delta, base_timestamp, None
        ):
            if offset < applied:
                continue
            if offset >= end or not row_key or value is None or len(value) < HEAD_BYTES:
                break
            if value[0] == 1 and value[1] == _PART_KEY:
                if restores:
                    if value[2] != _PART_STRING or value[3] != 1 or len(value) < PART_BYTES or any(value[4:12]):
                        break
                    stamp, argument = value[12:PART_BYTES], value[PART_BYTES:]
                    growth = _restored(
                        data, deadlines, recency, keeps_order, stamps, row_key, argument, stamp, key_cost
                    )
                    if growth == _NOT_PLAIN:
                        break
                    used_bytes += growth
                applied = offset + 1
                continue
            if value[0] != 1 or not 1 <= value[2] <= _LEVEL_MAX or value[3] or _TTL.unpack_from(value, 32)[0]:
                break
            op, (wall_ms, counter), stamp = value[1], _WALL.unpack_from(value, 4), value[4:32]
            growth = _applied(
                data,
                deadlines,
                recency,
                keeps_order,
                stamps,
                gone,
                gone_by_time,
                op,
                row_key,
                value[HEAD_BYTES:],
                stamp,
                wall_ms,
                key_cost,
            )
            if growth == _NOT_PLAIN:
                break
            used_bytes += growth
            applied = offset + 1
            changed.append(row_key)
            latest_ms, latest_counter = max((latest_ms, latest_counter), (wall_ms, counter))
            if op == _OP_DEL:
                forget_ms = min(forget_ms, wall_ms + retention_ms)
            if wall_ms >= forget_ms:
                break
    return applied, used_bytes, latest_ms, latest_counter


def append_record(section: bytearray, count: int, key: bytes | None, value: bytes) -> None:
    """Append one record of any kind to a section of `count` records."""
    body = b"".join((
        b"\0\0", encode_varint(count), *((encode_varint(-1),) if key is None else (encode_varint(len(key)), key)),
        encode_varint(len(value)), value, b"\0",
    ))  # fmt: skip
    section += encode_varint(len(body))
    section += body


_NOT_PLAIN = cython.declare(cython.longlong, -(2**62))


@cython.cfunc
def _restored(
    data: dict,
    deadlines: Any,  # noqa: ANN401 - a dict, or its copy-on-write view
    recency: Any,  # noqa: ANN401
    keeps_order: cython.bint,
    stamps: dict,
    key: bytes,
    value: bytes,
    stamp: bytes,
    key_cost: cython.longlong,
) -> cython.longlong:
    """Restore a string of a checkpoint with two equal stamps; return the growth in memory, or `_NOT_PLAIN`."""
    held = data.get(key)
    growth: cython.longlong = _STRING_COST + len(value)
    changed: bytes = stamp[:28]
    if (deadlines and key in deadlines) or changed != stamp[28:]:
        return _NOT_PLAIN
    if held is None:
        growth += key_cost + len(key)
    elif type(held) is bytes:
        growth -= _STRING_COST + len(held)
    else:
        return _NOT_PLAIN
    stamps[key] = changed
    _keep(data, recency, keeps_order, key, held, value)
    return growth


@cython.cfunc
def _applied(
    data: dict,
    deadlines: Any,  # noqa: ANN401 - a dict, or its copy-on-write view
    recency: Any,  # noqa: ANN401
    keeps_order: cython.bint,
    stamps: dict,
    gone: dict,
    gone_by_time: list,
    op: cython.int,
    key: bytes,
    argument: bytes,
    stamp: bytes,
    wall_ms: cython.longlong,
    key_cost: cython.longlong,
) -> cython.longlong:
    """Apply one record; return the growth in memory, or `_NOT_PLAIN`."""
    old_cost: cython.longlong
    growth: cython.longlong
    number: cython.longlong
    amount: cython.longlong
    new: object
    if deadlines and key in deadlines:
        return _NOT_PLAIN
    held = data.get(key)
    if held is None:
        old_cost = -key_cost - len(key)
    elif type(held) is bytes:
        old_cost = _STRING_COST + len(held)
    elif type(held) is int:
        old_cost = _COUNTER_COST
    else:
        return _NOT_PLAIN
    if op == _OP_SET:
        growth = _STRING_COST + len(argument) - old_cost
        new = argument
    elif op == _OP_DEL:
        if held is None:
            return _NOT_PLAIN
        growth = -old_cost - key_cost - len(key)
        new = None
    elif op == _OP_INCRBY and type(held) is not bytes and len(argument) == 8:
        number = 0 if held is None else held
        amount = _signed(argument)
        if amount > 0 if number > _NUMBER_MAX - amount else number < _NUMBER_MIN - amount:
            return _NOT_PLAIN
        growth = _COUNTER_COST - old_cost
        new = number + amount
    else:
        return _NOT_PLAIN
    _note(stamps, gone, gone_by_time, op, key, stamp, wall_ms)
    _keep(data, recency, keeps_order, key, held, new)
    return growth


@cython.cfunc
@cython.inline
def _note(
    stamps: dict, gone: dict, gone_by_time: list, op: cython.int, key: bytes, stamp: bytes, wall_ms: cython.longlong
) -> object:
    """Record a key's stamp (log_records.py), and its deletion. No earlier stamp of the log is greater."""
    known: object
    if op == _OP_INCRBY:
        known = stamps.get(key)
        stamps[key] = stamp + (_NEVER if known is None else known[len(known) - 28 :])
    else:
        stamps[key] = stamp
    if op == _OP_DEL:
        gone[key] = wall_ms
        gone_by_time.append((wall_ms, key))  # keeps the heap's order: no entry is later
    elif gone:
        gone.pop(key, None)
    return None


@cython.cfunc
@cython.inline
def _keep(
    data: dict,
    recency: Any,  # noqa: ANN401 - an ordered dict, or None
    keeps_order: cython.bint,
    key: bytes,
    held: object,
    new: object,
) -> object:
    """Set the value of a key; None deletes it."""
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
    return None


@cython.cfunc
@cython.inline
def _stamp_of(head: bytes, counter: cython.longlong) -> bytes:
    if cython.compiled:
        stamp: cython.uchar[28]
        memcpy(stamp, PyBytes_AS_STRING(head) + 4, _STAMP_BYTES)
        _put_u32(cython.cast(cython.p_uchar, stamp) + 8, counter)
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, stamp), _STAMP_BYTES)
    else:
        return head[4:12] + counter.to_bytes(4, "big") + head[16:32]


@cython.cfunc
@cython.inline
def _put_record(
    section: bytearray,
    at: cython.Py_ssize_t,
    offset_delta: cython.longlong,
    head: bytes,
    op: cython.int,
    counter: cython.longlong,
    key: bytes,
    argument: bytes,
) -> cython.Py_ssize_t:
    """Write a record at `at`; return where the next one begins. `section` may be longer than its contents."""
    if cython.compiled:
        value_size: cython.longlong = _HEAD_BYTES + len(argument)
        body: cython.longlong = body_size(0, offset_delta, len(key), value_size, 1)
        size: cython.Py_ssize_t = varint_size(body) + body
        p: cython.p_uchar
        if at + size > len(section):
            PyByteArray_Resize(section, 2 * (at + size) + 4096)
        p = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(section)) + at
        p = put_head(p, body, 0, offset_delta)
        p = put_bytes(p, PyBytes_AS_STRING(key), len(key))
        p = put_varint(p, value_size)
        memcpy(p, PyBytes_AS_STRING(head), _HEAD_BYTES)
        p[1] = op
        _put_u32(p + 12, counter)
        memcpy(p + _HEAD_BYTES, PyBytes_AS_STRING(argument), len(argument))
        p[value_size] = 0  # headers
        return at + size
    else:
        stamped = b"%b%c%b%b%b" % (head[:1], op, head[2:4], _stamp_of(head, counter), head[32:])
        append_record(section, offset_delta, key, stamped + argument)
        return len(section)


@cython.cfunc
@cython.inline
def _put_entry(
    out: bytearray, at: cython.Py_ssize_t, wall_ms: cython.longlong, op: cython.int, key: bytes, value: bytes
) -> cython.Py_ssize_t:
    """Write an entry at `at`; return where the next one begins. `out` may be longer than its contents."""
    size: cython.Py_ssize_t = _ENTRY_BYTES + len(key) + len(value)
    if cython.compiled:
        start: cython.p_uchar
        p: cython.p_uchar
        if at + size > len(out):
            PyByteArray_Resize(out, 2 * (at + size) + 4096)
        start = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out)) + at
        _put_u32(start + 4, wall_ms >> 32)
        _put_u32(start + 8, wall_ms)
        start[12] = op
        start[13] = len(key) >> 8
        start[14] = len(key) & 0xFF
        memcpy(start + 15, PyBytes_AS_STRING(key), len(key))
        p = start + 15 + len(key)
        _put_u32(p, len(value))
        memcpy(p + 4, PyBytes_AS_STRING(value), len(value))
        _put_u32(p + 4 + len(value), 0)
        _put_u32(start, _crc(_CRC32, start + 4, size - 4))
    else:
        for part in pack_entry(wall_ms, op, key, value, 0):
            out += part
    return at + size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_u32(p: cython.p_uchar, value: cython.longlong) -> cython.void:
    p[0] = value >> 24
    p[1] = value >> 16
    p[2] = value >> 8
    p[3] = value


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _get_u32(p: cython.p_uchar) -> cython.longlong:
    return (
        cython.cast(cython.longlong, p[0]) << 24
        | cython.cast(cython.longlong, p[1]) << 16
        | cython.cast(cython.longlong, p[2]) << 8
        | p[3]
    )


@cython.cfunc
@cython.inline
def _signed(argument: bytes) -> cython.longlong:
    if cython.compiled:
        p: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(argument))
        value: cython.ulonglong = cython.cast(cython.ulonglong, _get_u32(p)) << 32 | _get_u32(p + 4)
        return cython.cast(cython.longlong, value)
    else:
        return int.from_bytes(argument, "big", signed=True)


@cython.cfunc
@cython.exceptval(check=False)
def _crc(tables: bytes, p: cython.p_uchar, size: cython.Py_ssize_t) -> cython.uint:
    """Return a CRC; for about twenty bytes, this is faster than a library call."""
    table: cython.p_uint = cython.cast(cython.p_uint, PyBytes_AS_STRING(tables))
    crc: cython.uint = 0
    crc = ~crc  # a 32-bit literal would be a Python object to the compiler, and every step would be a call
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
    while size > 0:
        crc = table[(crc ^ p[0]) & 0xFF] ^ crc >> 8
        p += 1
        size -= 1
    return ~crc
