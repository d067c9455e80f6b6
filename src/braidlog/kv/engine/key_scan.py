"""Scan the names of keys in pieces, without state between the pieces and without long pauses.

Invariant: a key that exists from the first piece to the last is returned at least once. Keys stay in insertion
order, so those before the last scanned key have been scanned, wherever it is now. If that key was removed, the end
of the last piece is unknown, and the scan restarts.
"""

from itertools import islice
from typing import Final, NamedTuple

import msgspec

from braidlog.kv.engine.keyspace import Keyspace

LOOKED_AT_MAX: Final = 5_000
"""Keys in one piece, told or not: about a millisecond."""
NAMES_MAX: Final = 5_000


class Scan(msgspec.Struct, frozen=True):
    """A scan request; see `Scan` of the dialect."""

    slot: int
    position: int
    after: bytes
    prefix: bytes
    count: int


class Scanned(NamedTuple):
    names: list[bytes]
    position: int
    """Where the next piece begins; 0: nothing is left."""
    after: bytes
    """The last key that was looked at."""
    slots: int = 1


def scan(keyspace: Keyspace, asked: Scan, now_ms: int) -> Scanned:
    """Return one piece of the names in a keyspace."""
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
    """Return where to start: after the last scanned key, even if removed keys have moved it forward.

    Without that key the position decides.
    """
    data, position = keyspace.data, asked.position
    if not position or not asked.after or next(islice(data, position - 1, position), None) == asked.after:
        return position
    if asked.after not in data:
        return 0
    return next(at for at, key in enumerate(data, 1) if key == asked.after)
