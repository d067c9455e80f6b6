"""Drive a connection of any dialect: feed it bytes cut anywhere, collect what it understands."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from braidlog.wire.contract import NEED_DATA, Refused


def drain(connection: Any) -> list[Any]:
    """Every event of what has arrived."""
    found: list[Any] = []
    while (event := connection.next_event()) is not NEED_DATA:
        found.append(event)
    return found


def feed(connection: Any, *pieces: bytes) -> list[Any]:
    """Every event of these pieces, which arrive one after the other."""
    found: list[Any] = []
    for piece in pieces:
        connection.receive(piece)
        found += drain(connection)
    return found


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The bytes in pieces."""
    ends = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def single_bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def comparable(events: Sequence[Any]) -> list[Any]:
    """Events as values that can be compared: two errors with the same words are two objects."""
    return [(str(e.error), *msgspec.structs.astuple(e)[1:]) if isinstance(e, Refused) else e for e in events]
