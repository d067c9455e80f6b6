"""Drive a connection to its end: what the tests of both ends share."""

from collections.abc import Iterable

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.flux.connection import ClientConnection, ServerConnection
from braidlog.wire.flux.messages import Request, Response


def drain(connection: ServerConnection | ClientConnection) -> list[object]:
    events: list[object] = []
    while (event := connection.next_event()) is not NEED_DATA:
        events.append(event)
    return events


def seen(events: Iterable[object]) -> list[object]:
    """Events as values that can be compared: two errors with the same words are two objects."""
    return [(str(e.error), e.answer, e.close) if isinstance(e, Refused) else e for e in events]


def serve(*pieces: bytes) -> list[object]:
    server = ServerConnection()
    events: list[object] = []
    for piece in pieces:
        server.receive(piece)
        events += drain(server)
    return events


def serve_one(data: bytes) -> Request | Refused:
    (event,) = serve(data)
    assert isinstance(event, Request | Refused)
    return event


def ask(request: Request, *pieces: bytes) -> list[object]:
    """What a client that asked `request` understands of these bytes."""
    client = ClientConnection()
    client.request(request)
    events: list[object] = []
    for piece in pieces:
        client.receive(piece)
        events += drain(client)
    return events


def ask_one(request: Request, data: bytes) -> Response | Refused:
    (event,) = ask(request, data)
    assert isinstance(event, Response | Refused)
    return event
