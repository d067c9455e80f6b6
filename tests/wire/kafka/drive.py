"""Clients that wait for an answer, for tests."""

from tests.wire.kafka.vectors import Vector

from braidlog.wire.kafka.connection import ClientConnection


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
