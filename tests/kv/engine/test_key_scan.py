"""Names, piece by piece, while keys come and go."""

import random

import pytest

from braidlog.kv.engine.key_scan import LOOKED_AT_MAX, Scan, scan
from braidlog.kv.engine.keyspace import Keyspace
from braidlog.kv.wal.wal_entries import Op


def made(count: int) -> Keyspace:
    keyspace = Keyspace()
    for number in range(count):
        keyspace.apply(Op.SET, b"key-%d" % number, b"v", 0, 1)
    return keyspace


def test_a_piece_ends_when_enough_was_found_or_looked_at() -> None:
    keyspace = made(2 * LOOKED_AT_MAX)
    first = scan(keyspace, Scan(0, 0, b"", b"", 3), 1)
    assert (first.names, first.position, first.after) == ([b"key-0", b"key-1", b"key-2"], 3, b"key-2")
    none = scan(keyspace, Scan(0, 0, b"", b"other", 3), 1)
    assert (none.names, none.position) == ([], LOOKED_AT_MAX)
    last = scan(keyspace, Scan(0, none.position, none.after, b"other", 3), 1)
    assert (last.names, last.position) == ([], 0)


def test_a_key_whose_time_has_come_is_not_told() -> None:
    keyspace = made(1)
    keyspace.apply(Op.SET, b"short", b"v", 1, 1)
    assert scan(keyspace, Scan(0, 0, b"", b"", 9), 1000).names == [b"key-0", b"short"]
    assert scan(keyspace, Scan(0, 0, b"", b"", 9), 1001).names == [b"key-0"]


@pytest.mark.parametrize("seed", range(30))
def test_a_key_that_stays_is_told_whatever_comes_and_goes(seed: int) -> None:
    """Also if the key with which a piece ended goes: then it begins anew."""
    draw = random.Random(seed)
    keyspace = made(40)
    stays, goes = {b"key-%d" % number for number in range(0, 40, 3)}, set(keyspace.data)
    told: set[bytes] = set()
    position, after = 0, b""
    while True:
        found = scan(keyspace, Scan(0, position, after, b"", draw.randrange(1, 6)), 1)
        told.update(found.names)
        position, after = found.position, found.after
        if not position:
            break
        for key in draw.sample(sorted(goes - stays), k=min(4, len(goes - stays))):
            keyspace.apply(Op.DEL, key, b"", 0, 1)
            goes.discard(key)
            if draw.random() < 0.3:
                keyspace.apply(Op.SET, b"new-" + key, b"v", 0, 1)
    assert stays <= told, f"seed {seed}"


def test_who_does_not_name_the_last_key_goes_on_from_the_position() -> None:
    keyspace = made(10)
    keyspace.remove(b"key-0")
    assert scan(keyspace, Scan(0, 5, b"", b"", 2), 1).names == [b"key-6", b"key-7"]
