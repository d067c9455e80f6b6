"""What the tests of this folder say to connections."""

from braidlog.wire.mlog.connection import ClientConnection, ServerConnection
from braidlog.wire.mlog.operations import OPERATIONS, Operation

from .vectors import Vector

BY_REQUEST_RESPONSE: dict[int, Operation] = {row.response_number: row for row in OPERATIONS}


def reader_of(vector: Vector) -> ServerConnection | ClientConnection:
    """A connection to which these bytes may be sent: a client has asked for what it is about to be told."""
    if vector.direction == ">":
        return ServerConnection()
    client = ClientConnection()
    operation = BY_REQUEST_RESPONSE.get(int.from_bytes(vector.data[:2], "big"))
    if operation is not None:
        client.request(operation.request())
    return client
