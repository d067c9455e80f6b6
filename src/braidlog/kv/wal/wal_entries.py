"""The entries of the store's log: one mutation each, in the bytes of the Mayfly protocol document.

Does not handle: files, the effect of mutations, the reaction to a bad entry.
Invariant: an entry is yielded only if it is complete, its checksum is valid, and its time is not before the
previous one's.

     0  crc        u32  CRC-32 (IEEE) of everything after it
     4  timestamp  u64  ms since 1970: the wall part of the mutation's stamp (hybrid_clock.py restores the rest)
    12  operation  u8
    13  key length u16
    15  key
        value length u32
        value            as the operation defines
        ttl        u32   seconds from the timestamp, 0 is never; not 0 only where the operation sets an expiry

| operation | code | value                                    |
|-----------|------|------------------------------------------|
| SET       | 0x01 | the string                               |
| DEL       | 0x03 |                                          |
| LPUSH     | 0x10 | of each element: length u32, bytes       |
| RPUSH     | 0x11 | as LPUSH                                 |
| LPOP      | 0x12 |                                          |
| RPOP      | 0x13 |                                          |
| INCRBY    | 0x22 | the amount, i64                          |
| HSET      | 0x30 | of each field: length u32, name, length u32, value |
| HDEL      | 0x32 | of each field: length u32, name          |
| EXPIRE    | 0x70 | (ttl 0 removes an expiry)                |
| EXPIRED   | 0x71 | the key has expired                      |
| EVICTED   | 0x72 | the key was evicted to free memory       |

Codes up to 0x6f are those of the client commands; 0x7_ codes exist only in the log, not on the wire.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from braidlog.model.limits import KV_COLLECTION_BYTES_MAX, KV_KEY_BYTES_MAX
from braidlog.storage.files import File

_HEAD = struct.Struct(">QBH")
_ENTRY_HEAD = struct.Struct(">IQBH")
_U32 = struct.Struct(">I")
_pack_head = _HEAD.pack
_pack_u32 = _U32.pack
ENTRY_BYTES_MIN = _ENTRY_HEAD.size + 2 * _U32.size
ENTRY_BYTES_MAX = ENTRY_BYTES_MIN + KV_KEY_BYTES_MAX + KV_COLLECTION_BYTES_MAX
WINDOW_BYTES = 1024 * 1024
_OP_AT = 12


class Op(IntEnum):
    """The effect of an entry on its key."""

    SET = 0x01
    DEL = 0x03
    LPUSH = 0x10
    RPUSH = 0x11
    LPOP = 0x12
    RPOP = 0x13
    INCRBY = 0x22
    HSET = 0x30
    HDEL = 0x32
    EXPIRE = 0x70
    EXPIRED = 0x71
    EVICTED = 0x72


OPS = {int(op): op for op in Op}
REPLACES = frozenset((Op.SET, Op.DEL, Op.EXPIRED, Op.EVICTED))
"""After these operations, the key's previous value has no effect."""


class BadEntry(Exception):  # noqa: N818 - a finding that the caller turns into a truncation or a fault
    """The bytes at `position` are not a valid next entry."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"no whole entry at byte {position}: {why}")
        self.position = position
        self.why = why


class Entry(NamedTuple):
    """One mutation. `end` is the position after it."""

    end: int
    wall_ms: int
    op: int
    key: bytes
    value: bytes
    ttl_seconds: int


def pack_entry(wall_ms: int, op: int, key: bytes, value: bytes, ttl_seconds: int) -> tuple[bytes, bytes]:
    """Return the entry in two parts, checksum and rest: the caller joins all parts once."""
    body = b"".join(
        (_pack_head(wall_ms, op, len(key)), key, _pack_u32(len(value)), value, _pack_u32(ttl_seconds)),
    )
    return _pack_u32(zlib.crc32(body)), body


def walk_entries(file: File, start: int, end: int, wall_ms: int) -> Iterator[Entry]:
    """Yield the entries in [start, end) of a file, none older than `wall_ms`; raise `BadEntry` at the first invalid
    one."""
    window, window_at, position = b"", start, start
    while position < end:
        at = position - window_at
        need = size_at(window, at)
        if need is None or at + need > len(window):
            window, window_at, at = file.read_at(min(WINDOW_BYTES, end - position), position), position, 0
            need = size_at(window, 0)
            if need is None:
                raise BadEntry(position, f"the {end - position} bytes that are left do not hold its lengths")
            if need > min(ENTRY_BYTES_MAX, end - position):
                raise BadEntry(position, f"an entry of {need} bytes does not fit in the {end - position} that are left")
            if need > len(window):
                window = file.read_at(need, position)
        entry = entry_at(window, at, need, position)
        if entry.wall_ms < wall_ms:
            raise BadEntry(position, f"its time, {entry.wall_ms}, is before {wall_ms}, the last one's")
        wall_ms = entry.wall_ms
        yield entry
        position = entry.end


def is_entry(data: bytes, at: int) -> bool:
    """Return whether a complete entry begins at `at`."""
    size = size_at(data, at)
    if size is None or at + size > len(data):
        return False
    try:
        entry_at(data, at, size, at)
    except BadEntry:
        return False
    return True


def following_entry(data: bytes, at: int) -> int:
    """Return where the next intact entry begins after the damaged one at `at`; the end of `data` if there is none.

    The damaged entry's lengths are used if they lead to an entry. Else one is searched for; bytes of a value may
    look like one.
    """
    size = size_at(data, at)
    if size is not None and (at + size == len(data) or is_entry(data, at + size)):
        return at + size
    tries = range(at + 1, len(data) - ENTRY_BYTES_MIN + 1)
    return next((each for each in tries if data[each + _OP_AT] in OPS and is_entry(data, each)), len(data))


def key_of_entry(data: bytes, at: int) -> bytes:
    """Return the key of an entry that may be damaged."""
    return data[at + _ENTRY_HEAD.size : at + _ENTRY_HEAD.size + int.from_bytes(data[at + 13 : at + 15], "big")]


def size_at(window: bytes, at: int) -> int | None:
    """Return the size in the head of the entry at `at`; None if the window ends before its lengths."""
    if at + ENTRY_BYTES_MIN > len(window):
        return None
    key_length = int.from_bytes(window[at + 13 : at + 15], "big")
    value_at = at + _ENTRY_HEAD.size + key_length
    if value_at + _U32.size > len(window):
        return None
    return ENTRY_BYTES_MIN + key_length + int.from_bytes(window[value_at : value_at + 4], "big")


def entry_at(window: bytes, at: int, size: int, position: int) -> Entry:
    crc, wall_ms, op, key_length = _ENTRY_HEAD.unpack_from(window, at)
    if at + size > len(window):
        raise BadEntry(position, f"{len(window) - at} bytes are left of its {size}")
    if crc != zlib.crc32(memoryview(window)[at + 4 : at + size]):
        raise BadEntry(position, "checksum does not hold")
    if op not in OPS:
        raise BadEntry(position, f"operation {op:#04x} is not known here")
    key_at = at + _ENTRY_HEAD.size
    value_at = key_at + key_length + 4
    ttl_at = at + size - 4
    (ttl_seconds,) = _U32.unpack_from(window, ttl_at)
    return Entry(
        position + size, wall_ms, op, window[key_at : key_at + key_length], window[value_at:ttl_at], ttl_seconds
    )
