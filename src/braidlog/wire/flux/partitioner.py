"""The partition of a key: FNV-1a as Flux's own broker computes it.

Invariant: a key of a topic maps to the same partition as in the original broker.
"""

from functools import lru_cache

_OFFSET_BASIS = 0x811C9DC5
_PRIME = 0x01000193
_MASK = 0xFFFFFFFF

_CACHED_KEY_BYTES_MAX = 64


def fnv1a_32(data: bytes) -> int:
    """Return the 32-bit hash, unsigned."""
    h = _OFFSET_BASIS
    for byte in data:
        h = (h ^ byte) * _PRIME & _MASK
    return h


# Keys repeat. Only short keys are cached, so the cache stays under a megabyte.
_remembered = lru_cache(maxsize=4096)(fnv1a_32)


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return FNV-1a-32(key) mod partitions (the Flux page, §2: `user1` of 3 is 2). An empty key is hashed like any
    other.
    """
    return (_remembered(key) if len(key) <= _CACHED_KEY_BYTES_MAX else fnv1a_32(key)) % partitions
