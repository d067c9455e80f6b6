"""Names of keys, piece by piece: nothing is held for who looks, and no piece takes long.

Knows: where a piece begins and ends. Refuses to know: who may see which names, what keys hold.
Invariant: a key that is there from the first piece of its keyspace to the last is told at least once. Keys stay in the order in
which they came, so those before the last name looked at have been looked at, wherever it is by now; if that one is gone, nobody
knows where the piece before ended, and it begins anew.
"""

from itertools import islice
from typing import Final, NamedTuple

import msgspec

from braidlog.kv.engine.keyspace import Keyspace

LOOKED_AT_MAX: Final = 5_000
"""Keys in one piece, told or not: about a millisecond."""
NAMES_MAX: Final = 5_000


class Scan(msgspec.Struct, frozen=True):
    """What is asked; see `Scan` of the dialect."""

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
    """One piece of the names in a keyspace."""
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
    """After the key with which the last piece ended, which is nearer to the beginning if others went. Who does not name it goes
    on from the position."""
    data, position = keyspace.data, asked.position
    if not position or not asked.after or next(islice(data, position - 1, position), None) == asked.after:
        return position
    if asked.after not in data:
        return 0
    return next(at for at, key in enumerate(data, 1) if key == asked.after)
