"""A Merkle tree over the keys of one log: two replicas find out which keys they do not hold alike without sending them.

Knows: a digest of every key, and their sums. Refuses to know: logs, wires, what is done about a difference.
Invariants: the tree depends on nothing but keys, values, deadlines and stamps: not on the order in which they came, nor on what
was there before. After `update` has returned False it is that of the keyspace as it is.

    root     digest of all leaves                                 1
    ranges   digest of the leaves [first, last)                   any: who compares narrows them down
    leaves   sum of the digests of its keys, modulo 2^64          16,384 by the key's CRC-32

A change costs the note of its key. Its digest is taken when the tree is asked for, once for all changes since: a list that a
thousand elements were pushed to is read once.
"""

import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, Protocol

from braidlog.codec.crc import crc32c
from braidlog.kv.engine.hybrid_clock import Stamp
from braidlog.kv.engine.values import Value, code_of, write_value

LEAVES: Final = 16 * 1024
FAN_OUT: Final = 32
"""A range that differs is divided into so many: three questions lead from the root to a leaf."""
_MASK: Final = 2**64 - 1
UPDATED_AT_ONCE: Final = 1024
Range = tuple[int, int]
"""Leaves [first, last)."""


class Keys(Protocol):
    """A keyspace."""

    @property
    def data(self) -> Mapping[bytes, Value]: ...

    @property
    def deadlines(self) -> Mapping[bytes, int]: ...


def leaf_of(key: bytes) -> int:
    """Not by CRC-32C: that has chosen the log, and the keys of one log would share leaves."""
    return zlib.crc32(key) % LEAVES


def digest_of(key: bytes, value: Value, deadline_ms: int, stamp: Stamp | None) -> int:
    """64 bits. Checksums are mixed by multiplications: they are linear, and two values that changed places would cancel out."""
    written = write_value(value)
    mixed = (crc32c(key) << 32 | zlib.crc32(key)) + 0x9E3779B97F4A7C15
    for part in (
        crc32c(written) << 32 | zlib.crc32(written),
        len(written) << 3 | code_of(value),
        deadline_ms,
        0 if stamp is None else stamp.wall_ms << 32 | stamp.counter,
        0 if stamp is None else crc32c(stamp.node),
    ):
        mixed = ((mixed ^ part) * 0xBF58476D1CE4E5B9) & _MASK
        mixed ^= mixed >> 29
    return mixed


class MerkleTree:
    """The tree of one log's keys. Belongs to the thread that changes them."""

    def __init__(self, keys: Keys, stamp_of: Callable[[bytes], Stamp | None] = lambda _: None) -> None:
        self._keys = keys
        self._stamp_of = stamp_of
        self._leaves = [0] * LEAVES
        self._digests: dict[bytes, int] = {}
        self._changed = set(keys.data)
        self.note: Callable[[Iterable[bytes]], None] = self._changed.update
        """Call it with every key that has changed, or gone."""

    def update(self, count_max: int) -> bool:
        """Take up to so many changed keys into the tree; return whether there are more."""
        changed, leaves, digests = self._changed, self._leaves, self._digests
        data, deadlines = self._keys.data, self._keys.deadlines
        for _ in range(min(count_max, len(changed))):
            key = changed.pop()
            value = data.get(key)
            before, digest = digests.pop(key, 0), 0
            if value is not None:
                digest = digests[key] = digest_of(key, value, deadlines.get(key, 0), self._stamp_of(key))
            leaf = leaf_of(key)
            leaves[leaf] = (leaves[leaf] + digest - before) & _MASK
        return bool(changed)

    def leaves(self) -> tuple[int, ...]:
        """All of them, as they are now: what a later comparison is held against."""
        while self.update(UPDATED_AT_ONCE):
            pass
        return tuple(self._leaves)

    def keys_in(self, leaves: Collection[int]) -> list[bytes]:
        """The keys of some leaves, as they are now."""
        return [key for key in self._keys.data if leaf_of(key) in leaves]


def range_digest(leaves: tuple[int, ...], among: Range) -> int:
    """One number for the leaves of a range; of all of them, the root. Equal leaves have equal ones."""
    first, last = among
    packed = struct.pack(f">{last - first}Q", *leaves[first:last])
    return crc32c(packed) << 32 | zlib.crc32(packed)


def narrowed(among: Range) -> Iterator[Range]:
    """The ranges that a range consists of; of a single leaf, none."""
    first, last = among
    if last - first > 1:
        step = max((last - first) // FAN_OUT, 1)
        for start in range(first, last, step):
            yield start, min(start + step, last)
