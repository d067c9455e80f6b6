"""Where a key goes: FNV-1a as flux's own broker computes it.

Knows: the hash. Refuses to know: topics, records, what other dialects do with a key.
Invariant: the same key of the same topic goes to the same partition as it did under the original.
"""

from functools import lru_cache

_OFFSET_BASIS = 0x811C9DC5
_PRIME = 0x01000193
_MASK = 0xFFFFFFFF

_CACHED_KEY_BYTES_MAX = 64


def fnv1a_32(data: bytes) -> int:
    """The 32-bit hash, unsigned."""
    h = _OFFSET_BASIS
    for byte in data:
        h = (h ^ byte) * _PRIME & _MASK
    return h


# Keys come again and again; only short ones are remembered, so what the cache holds stays under a megabyte.
_remembered = lru_cache(maxsize=4096)(fnv1a_32)


def partition_for_key(key: bytes, partitions: int) -> int:
    """FNV-1a-32(key) mod partitions (the Flux page, §2: `user1` of 3 goes to 2). An empty key is a key like any other."""
    return (_remembered(key) if len(key) <= _CACHED_KEY_BYTES_MAX else fnv1a_32(key)) % partitions
