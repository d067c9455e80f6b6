"""What the tests of this folder say to connections."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.mlog.connection import ClientConnection, ServerConnection
from braidlog.wire.mlog.operations import OPERATIONS, Operation

from .vectors import Vector

BY_REQUEST_RESPONSE: dict[int, Operation] = {row.response_number: row for row in OPERATIONS}


def drain(connection: ServerConnection | ClientConnection) -> list[Any]:
    """Every event that can be had; a refusal as its sentence, so that events compare."""
    events: list[Any] = []
    while (event := connection.next_event()) is not NEED_DATA:
        events.append(("refused", str(event.error), event.answer, event.close) if isinstance(event, Refused) else event)
    return events


def feed(connection: ServerConnection | ClientConnection, pieces: Iterable[bytes]) -> list[Any]:
    events: list[Any] = []
    for piece in pieces:
        connection.receive(piece)
        events += drain(connection)
    return events


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The bytes in pieces."""
    ends = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def reader_of(vector: Vector) -> ServerConnection | ClientConnection:
    """A connection to which these bytes may be sent: a client has asked for what it is about to be told."""
    if vector.direction == ">":
        return ServerConnection()
    client = ClientConnection()
    operation = BY_REQUEST_RESPONSE.get(int.from_bytes(vector.data[:2], "big"))
    if operation is not None:
        client.request(operation.request())
    return client
