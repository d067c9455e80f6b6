"""Drive both ends of the dialect with arbitrary bytes. Anything but an event of the contract is a defect.

`fuzz_one` is for a coverage-guided fuzzer; the seeded test beside it feeds it damaged valid frames.
"""

from typing import Any

from tests.wire.lone import check_lone
from tests.wire.mayfly.vectors import ANSWERS

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import (
    Burst,
    ClientConnection,
    RefusedFrame,
    Request,
    Response,
    ServerConnection,
)
from braidlog.wire.mayfly.operations import OPERATIONS

ASKED = {type(each.asked.message): each.asked.message for each in ANSWERS}


def fuzz_one(data: bytes) -> None:
    assert server_events(data, burst_max=1) == server_events(data, burst_max=64)
    check_lone(ServerConnection, data)
    _client(data)


def server_events(data: bytes, *, burst_max: int) -> list[Any]:
    """What a server makes of it, each refusal as what it says."""
    connection = ServerConnection(burst_max=burst_max)
    connection.receive(data)
    found: list[Any] = []
    while (event := connection.next_event()) is not NEED_DATA:
        if isinstance(event, RefusedFrame):
            found.append((str(event.error), event.answer, event.close, event.id))
            if event.answer is not None:
                assert len(connection.respond(event, event.answer)) >= 12
            continue
        requests = event.requests if isinstance(event, Burst) else [event]
        for request in requests:
            assert isinstance(request, Request)
            if request.id:
                ClientConnection().request(request, version=2)  # what was read can be written
        found += requests
    return found


def _client(data: bytes) -> None:
    """Ask for everything under the id that the first answer has, so that damage is found in the fields and not in the id."""
    request_id = int.from_bytes(data[4:8], "big")
    if not request_id:
        return
    for row in OPERATIONS:
        connection = ClientConnection()
        connection.request(Request(request_id, ASKED[row.request]))
        connection.receive(data)
        while (event := connection.next_event()) is not NEED_DATA:
            if isinstance(event, Refused):
                assert event.close
                break
            assert isinstance(event, Response)
            assert isinstance(event.message, m.Message)
