"""Put a client in the state in which an answer makes sense, and a server in the one in which it gives it."""

from typing import Any

import msgspec

from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus.batch import Batch, Spelling
from braidlog.wire.cursus.connection import ClientConnection, ServerConnection
from braidlog.wire.cursus.messages import OPERATIONS, Operation, Request

ROWS: dict[str, Operation] = {row.name: row for row in OPERATIONS}


def client_that_asked(operation: Operation, spelling: Spelling = Spelling.CLIENTS, **options: Any) -> ClientConnection:
    """A client that waits for the answer to `operation`; what it asked does not matter to its reader."""
    client = ClientConnection(spelling=spelling, **options)
    client._asked.append(operation)
    return client


def asked(operation: Operation, spelling: Spelling = Spelling.CLIENTS) -> Request:
    """A request of an operation, as a server would hold it. Required arguments are filled with something."""
    fill: dict[Any, Any] = {str: "x", bytes: b"x"}
    values = {
        field.name: fill.get(field.type, () if "tuple" in str(field.type) else 1)
        for field in msgspec.structs.fields(operation.request)
        if field.required
    }
    return Request(operation, operation.request(**values), spelling)


def say(server: ServerConnection, request: Request, answer: Any) -> bytes:
    """What a broker sends for an answer: pushed for a stream, else responded."""
    if isinstance(answer, (Batch, a.KeepAlive, a.StreamControl)) and request.operation.name == "STREAM":
        return server.push(request, answer)
    said: bytes = server.respond(request, answer)
    return said
