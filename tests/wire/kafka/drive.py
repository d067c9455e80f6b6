"""Ask and answer over the two connections, for tests."""

from typing import Any

from tests.wire.kafka.vectors import Vector

from braidlog.wire.contract import NEED_DATA
from braidlog.wire.kafka.connection import ClientConnection, ServerConnection


def events(connection: ServerConnection | ClientConnection) -> list[Any]:
    found: list[Any] = []
    while (event := connection.next_event()) is not NEED_DATA:
        found.append(event)
    return found


def in_pieces(connection: ServerConnection | ClientConnection, stream: bytes, cuts: list[int]) -> list[Any]:
    found: list[Any] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        connection.receive(stream[start:end])
        found += events(connection)
    return found


def client_at(correlation_id: int, client_id: str | None = None) -> ClientConnection:
    """A client whose next request has this id."""
    client = ClientConnection(client_id)
    client._next_id = correlation_id
    return client


def client_that_asked(vector: Vector) -> ClientConnection:
    """A client that awaits the vector's answer."""
    assert vector.api is not None
    client = client_at(vector.correlation_id)
    client.request(vector.api.request(acks=1) if vector.api.name == "Produce" else vector.api.request(), vector.version)
    return client
