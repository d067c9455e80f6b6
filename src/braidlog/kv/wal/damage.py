"""Limits the loss from damage in a store's log: finds a flipped bit by the checksum, and tracks the keys whose value
is unknown.

Does not handle: files, the reaction to damage (`recovery.py`).
Invariant: a key is in doubt from the first damage that may hide a change of it until a later mutation defines its
value. A read never returns a value older than the key's last change.
"""

import zlib
from collections.abc import Callable
from typing import Final

from braidlog.kv.engine.keyspace import Keyspace
from braidlog.kv.wal.wal_entries import OPS, REPLACES, Entry, Op, entry_at, size_at

SEARCHED_BYTES_MAX: Final = 1024 * 1024
"""A flipped bit is searched in entries up to this size."""
ABSENT_MAX: Final = 1_000_000
"""Limit of keys known to be deleted while all others are in doubt. Beyond it, the oldest are in doubt again."""
_KEY_LENGTH_AT: Final = 13
_STEPS: Final = [zlib.crc32(bytes((byte,))) ^ zlib.crc32(b"\0") for byte in range(256)]
_BY_TOP_BYTE: Final = {step >> 24: byte for byte, step in enumerate(_STEPS)}
_BITS: Final = {_STEPS[1 << bit]: bit for bit in range(8)}
"""The change of a CRC-32 by one bit of the last byte."""


class Doubt:
    """The keys of a store whose value is unknown. The keyspace does not contain them."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self._keys: dict[bytes, None] = {}
        self._is_about_all = False
        """Every key is in doubt except those of the keyspace and of `_absent`."""
        self._absent: dict[bytes, None] = {}

    def __bool__(self) -> bool:
        return self._is_about_all or bool(self._keys)

    def __str__(self) -> str:
        if self._is_about_all:
            return "every key that was not set since the damage is in doubt"
        return f"{len(self._keys)} keys are in doubt"

    def holds(self, key: bytes) -> bool:
        if self._is_about_all:
            return key not in self._keyspace.data and key not in self._absent
        return key in self._keys

    def add(self, key: bytes) -> None:
        """Record that a change of this key is unreadable."""
        if key in self._keyspace.data:
            self._keyspace.remove(key)
        self._absent.pop(key, None)
        if not self._is_about_all:
            self._keys[key] = None

    def add_all(self, keyspace: Keyspace) -> None:
        """Record that changes of unknown keys are unreadable. `keyspace`: an empty one."""
        self._keyspace, self._is_about_all = keyspace, True
        self._keys.clear()
        self._absent.clear()

    def admits(self, op: int, key: bytes) -> bool:
        """Return whether the keyspace can apply a change from the log."""
        return op == Op.SET or not self.holds(key)

    def settles(self, op: int, key: bytes) -> bool:
        """Return whether a key's value is known after a change from the log."""
        return op in REPLACES or not self.holds(key)

    def settled(self, key: bytes) -> None:
        """Record that the keyspace has the key's current value."""
        self._keys.pop(key, None)
        if self._is_about_all:
            self._absent.pop(key, None)
            if key not in self._keyspace.data:
                self._absent[key] = None
                if len(self._absent) > ABSENT_MAX:
                    del self._absent[next(iter(self._absent))]


def mended_entry(data: bytes, wall_ms: int) -> Entry | None:
    """Return the entry at the start of `data` if its only damage is one flipped bit; `end` is its size.

    The checksum locates the bit. Other damage to an entry of n bits looks like one flipped bit with a probability
    of n in 2^32.
    """
    size = size_at(data, 0)
    if size is not None and size <= min(len(data), SEARCHED_BYTES_MAX):
        at = _flipped_bit(data, size)
        found = None if at is None else _entry(_flip(data, *at), size, wall_ms)
        if found is not None:
            return found
    key_end = 15 + int.from_bytes(data[_KEY_LENGTH_AT:15], "big")
    for byte in (_KEY_LENGTH_AT, _KEY_LENGTH_AT + 1, *range(key_end, key_end + 4)):
        for bit in range(8 if byte < len(data) else 0):
            flipped = _flip(data, byte, bit)
            size = size_at(flipped, 0)
            if size is not None and size <= len(data) and (found := _entry(flipped, size, wall_ms)) is not None:
                return found
    return None


def mended(data: bytes, is_whole: Callable[[bytes], bool]) -> bytes | None:
    """Return short data with one flipped bit restored, if that makes it valid."""
    flips = (_flip(data, byte, bit) for byte in range(len(data)) for bit in range(8))
    return next((each for each in flips if is_whole(each)), None)


def _flip(data: bytes, byte: int, bit: int) -> bytes:
    return data[:byte] + bytes((data[byte] ^ 1 << bit,)) + data[byte + 1 :]


def _entry(data: bytes, size: int, wall_ms: int) -> Entry | None:
    if data[12] not in OPS or int.from_bytes(data[:4], "big") != zlib.crc32(memoryview(data)[4:size]):
        return None
    entry = entry_at(data, 0, size, 0)
    return entry if entry.wall_ms >= wall_ms else None


def _flipped_bit(data: bytes, size: int) -> tuple[int, int] | None:
    """Return byte and bit of an entry that explain the difference between its checksum and its bytes."""
    difference = int.from_bytes(data[:4], "big") ^ zlib.crc32(memoryview(data)[4:size])
    if difference and not difference & (difference - 1):  # a bit of the checksum itself
        bit = difference.bit_length() - 1
        return 3 - bit // 8, bit % 8
    for byte in range(size - 1, 3, -1):  # as it would be if the entry ended with this byte
        if difference in _BITS:
            return byte, _BITS[difference]
        step = _BY_TOP_BYTE[difference >> 24]
        difference = ((difference ^ _STEPS[step]) << 8 | step) & 0xFFFFFFFF
    return None
