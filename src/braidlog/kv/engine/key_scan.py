"""Scans names of keys in pages: the server keeps no cursor, and no page takes long.

Does not handle: access rights, values.
Invariant: a key that exists from the first page of its keyspace to the last is returned at least once. Keys stay
in insertion order, so all keys before the last scanned one have been scanned, even if its position has changed.
If that key was deleted, the previous page's end is unknown, and the scan starts over.
"""

from itertools import islice
from typing import Final, NamedTuple

import msgspec

from braidlog.kv.engine.keyspace import Keyspace

LOOKED_AT_MAX: Final = 5_000
"""Keys scanned for one page, returned or not: about a millisecond."""
NAMES_MAX: Final = 5_000


class Scan(msgspec.Struct, frozen=True):
    """A request for one page; see `Scan` of the wire protocol."""

    slot: int
    position: int
    after: bytes
    prefix: bytes
    count: int


class Scanned(NamedTuple):
    names: list[bytes]
    position: int
    """Where the next page begins; 0: nothing is left."""
    after: bytes
    """The last scanned key."""
    slots: int = 1


def scan(keyspace: Keyspace, asked: Scan, now_ms: int) -> Scanned:
    """Return one page of the names in a keyspace."""
    start = _begin(keyspace, asked)
    names: list[bytes] = []
    count, at, after = min(max(asked.count, 1), NAMES_MAX), start, b""
    for key in islice(keyspace.data, start, start + LOOKED_AT_MAX):
        at, after = at + 1, key
        if key.startswith(asked.prefix) and keyspace.find(key, now_ms) is not None:
            names.append(key)
            if len(names) == count:
                break
    return Scanned(names, at if at < len(keyspace) else 0, after)


def _begin(keyspace: Keyspace, asked: Scan) -> int:
    """Return the position after the previous page's last key, which may have moved towards the beginning. Without
    that key, use the given position."""
    data, position = keyspace.data, asked.position
    if not position or not asked.after or next(islice(data, position - 1, position), None) == asked.after:
        return position
    if asked.after not in data:
        return 0
    return next(at for at, key in enumerate(data, 1) if key == asked.after)
