"""Any bytes into both ends: the only acceptable outcomes are messages and refusals."""

from functools import partial
from typing import Any

from tests.wire.lone import check_lone

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.cursus.batch import Spelling
from braidlog.wire.cursus.connection import ClientConnection, ServerConnection
from braidlog.wire.cursus.failures import Failure
from braidlog.wire.cursus.messages import OPERATIONS, Request

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


def fuzz_one(data: bytes) -> None:
    """The first byte chooses the compression and the operation that a client has asked for; the rest is what arrives."""
    choice, data = (data[0] if data else 0), data[1:]
    compression = COMPRESSIONS[choice % len(COMPRESSIONS)]
    open_connection = partial(ServerConnection, compression=compression, frame_bytes_max=1 << 20)
    check_lone(open_connection, data)
    _drive_server(open_connection(), data)
    client = ClientConnection(compression=compression, frame_bytes_max=1 << 20)
    client._asked.extend([OPERATIONS[choice % len(OPERATIONS)]] * 3)
    _drive_client(client, data)


def _drive_server(server: ServerConnection, data: bytes) -> None:
    server.receive(data)
    while (event := server.next_event()) is not NEED_DATA:
        if isinstance(event, Refused):
            assert server.respond(event, event.answer)
            continue
        assert isinstance(event, Request)
        repr(event)
        _write_again(event)


def _write_again(request: Request) -> None:
    """What was understood can be said again, and means the same."""
    try:
        wire = ClientConnection(spelling=request.spelling, envelope=None).request(request.message, request.credentials)
    except ValueError:
        return  # e.g. metadata that only a foreign client writes so
    server = ServerConnection()
    server.receive(wire)
    again: Any = server.next_event()
    assert isinstance(again, Request), again
    assert again.message == request.message, (again.message, request.message)
    if request.operation.positional is not None or request.operation.name == "0xBA7C":
        assert again.spelling in {
            request.spelling,
            Spelling.DOCUMENT if request.operation.name == "LIST" else again.spelling,
        }


def _drive_client(client: ClientConnection, data: bytes) -> None:
    client.receive(data)
    while (event := client.next_event()) is not NEED_DATA:
        assert isinstance(event, (Refused, Failure)) or any(isinstance(event, row.answers) for row in OPERATIONS)
