"""Large responses are read where they will stay: however the stream is cut, the answers are the same."""

import random
from typing import Any

import pytest
from tests.wire.conversation import feed

from braidlog.wire.contract import NEED_DATA
from braidlog.wire.kafka.connection import LARGE_BYTES, ClientConnection, Request, ServerConnection
from braidlog.wire.kafka.messages import data as d

SIZES = (0, 10, LARGE_BYTES - 100, LARGE_BYTES, LARGE_BYTES + 1, 3 * LARGE_BYTES, 5, 2 * LARGE_BYTES)


def conversation() -> tuple[ClientConnection, bytes]:
    """A client that asked for records several times, and all that it is answered."""
    client, server = ClientConnection("me"), ServerConnection()
    stream = b""
    for size in SIZES:
        (request,) = feed(server, client.request(d.FetchRequest(), 11))
        assert isinstance(request, Request)
        part = d.FetchResponsePartition(records=random.Random(size).randbytes(size))
        answer = server.respond(request, d.FetchResponse(responses=[d.FetchResponseTopic("t", partitions=[part])]))
        assert isinstance(answer, bytes)
        stream += answer
    return client, stream


def drained(client: ClientConnection) -> list[bytes]:
    found = []
    while (event := client.next_event()) is not NEED_DATA:
        message: Any = event.message
        found.append(bytes(message.responses[0].partitions[0].records))
    return found


@pytest.mark.parametrize("step", [1_000, 4_096, 65_536, LARGE_BYTES + 7, 10**9])
@pytest.mark.parametrize("roomy", [True, False])
def test_the_answers_are_the_same(step: int, roomy: bool) -> None:
    client, stream = conversation()
    found: list[bytes] = []
    at = rooms = 0
    while at < len(stream):
        room = client.receive_buffer() if roomy else None
        if room is None:
            taken = min(step, len(stream) - at)
            client.receive(stream[at : at + taken])
        else:
            rooms += 1
            taken = min(step, len(room))
            room[:taken] = stream[at : at + taken]
            client.filled(taken)
        at += taken
        found += drained(client)
    assert found == [random.Random(size).randbytes(size) for size in SIZES]
    assert (rooms > 0) == (roomy and step < 10**9)


def test_a_length_over_the_limit_gets_no_room() -> None:
    client = ClientConnection("me", frame_bytes_max=LARGE_BYTES)
    client.request(d.FetchRequest(), 11)
    client.receive((LARGE_BYTES + 1).to_bytes(4, "big"))
    assert client.receive_buffer() is None
    assert client.next_event() is not NEED_DATA  # it is refused
