"""Drive a connection to its end: what the tests of both ends share."""

from typing import Any

from tests.wire.conversation import feed

from braidlog.wire.contract import Refused
from braidlog.wire.flux.connection import ClientConnection, ServerConnection
from braidlog.wire.flux.messages import Request, Response


def serve(*pieces: bytes) -> list[Any]:
    return feed(ServerConnection(), *pieces)


def serve_one(data: bytes) -> Request | Refused:
    (event,) = serve(data)
    assert isinstance(event, Request | Refused)
    return event


def ask(request: Request, *pieces: bytes) -> list[Any]:
    """What a client that asked `request` understands of these bytes."""
    client = ClientConnection()
    client.request(request)
    return feed(client, *pieces)


def ask_one(request: Request, data: bytes) -> Response | Refused:
    (event,) = ask(request, data)
    assert isinstance(event, Response | Refused)
    return event
