"""A Merkle tree over the keys of one log: two replicas find the keys in which they differ without sending them.

Does not handle: logs, transport, repairs.
Invariants: the tree depends only on keys, values, deadlines and stamps, not on their history. After `update`
returns False, the tree matches the keyspace.

    root     digest of all leaves                                 1
    ranges   digest of the leaves [first, last)                   any: a comparison narrows them down
    leaves   sum of the digests of its keys, modulo 2^64          16,384 by the key's CRC-32

A change only notes its key. Its digest is computed when the tree is read, once for all changes since: a list with
a thousand pushes is read once.
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
"""A range that differs is divided into this many parts: three questions lead from the root to a leaf."""
_MASK: Final = 2**64 - 1
UPDATED_AT_ONCE: Final = 1024
Range = tuple[int, int]
"""Leaves [first, last)."""


class Keys(Protocol):
    """A keyspace, read-only."""

    @property
    def data(self) -> Mapping[bytes, Value]: ...

    @property
    def deadlines(self) -> Mapping[bytes, int]: ...


def leaf_of(key: bytes) -> int:
    """Return the leaf of a key. CRC-32C selects the log, so with it the keys of one log would share leaves."""
    return zlib.crc32(key) % LEAVES


def digest_of(key: bytes, value: Value, deadline_ms: int, stamp: Stamp | None) -> int:
    """Return a digest of 64 bits. Checksums are linear, so multiplications mix them: else two exchanged values would
    cancel out."""
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
    """The tree of one log's keys. Not thread-safe: it belongs to the thread that changes the keys."""

    def __init__(self, keys: Keys, stamp_of: Callable[[bytes], Stamp | None] = lambda _: None) -> None:
        self._keys = keys
        self._stamp_of = stamp_of
        self._leaves = [0] * LEAVES
        self._digests: dict[bytes, int] = {}
        self._changed = set(keys.data)
        self.note: Callable[[Iterable[bytes]], None] = self._changed.update
        """Call it with every key that was changed or deleted."""

    def update(self, count_max: int) -> bool:
        """Update the tree with up to `count_max` changed keys; return whether more are left."""
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
        """Return all leaves as of now, for later comparisons."""
        while self.update(UPDATED_AT_ONCE):
            pass
        return tuple(self._leaves)

    def keys_in(self, leaves: Collection[int]) -> list[bytes]:
        """Return the current keys of some leaves."""
        return [key for key in self._keys.data if leaf_of(key) in leaves]


def range_digest(leaves: tuple[int, ...], among: Range) -> int:
    """Return one digest for a range of leaves; of all leaves, the root. Equal leaves have equal digests."""
    first, last = among
    packed = struct.pack(f">{last - first}Q", *leaves[first:last])
    return crc32c(packed) << 32 | zlib.crc32(packed)


def narrowed(among: Range) -> Iterator[Range]:
    """Yield the parts of a range; none for a single leaf."""
    first, last = among
    if last - first > 1:
        step = max((last - first) // FAN_OUT, 1)
        for start in range(first, last, step):
            yield start, min(start + step, last)
