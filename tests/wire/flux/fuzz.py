"""Any bytes at all, into both ends: what atheris drives, and what the seeded test drives."""

from tests.wire.flux.vectors import ANSWERED

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.flux.connection import ClientConnection, ServerConnection
from braidlog.wire.flux.messages import Failed, Request, Response
from braidlog.wire.flux.records import LINE_BYTES_MAX

QUESTIONS = {vector.request.correlation_id: vector.request for vector in ANSWERED}


def fuzz_server(data: bytes) -> None:
    server = ServerConnection()
    half = len(data) // 2
    for piece in (data[:half], data[half:]):
        server.receive(piece)
        while (event := server.next_event()) is not NEED_DATA:
            if isinstance(event, Refused):
                line = server.refuse(event)
            else:
                assert isinstance(event, Request)
                line = server.respond(event, Failed("UNAVAILABLE", "x"))
                check_request(event)
            assert line.endswith(b"\n")
            assert line.count(b"\n") == 1
            assert len(line) <= LINE_BYTES_MAX


def check_request(request: Request) -> None:
    """What was read can be asked again, if a client of ours may say it: then it is read as the same."""
    client = ClientConnection()
    try:
        line = client.request(request)
    except ValueError:  # id 0; or base64 of what is longer than it was plain
        return
    server = ServerConnection()
    server.receive(line)
    assert server.next_event() == request


def fuzz_client(data: bytes) -> None:
    client = ClientConnection()
    for question in QUESTIONS.values():
        client.request(question)
    client.receive(data)
    while (event := client.next_event()) is not NEED_DATA:
        assert isinstance(event, Response | Refused)
        if isinstance(event, Refused):
            assert event.close
            assert event.answer is None


def fuzz_one(data: bytes) -> None:
    fuzz_server(data)
    fuzz_client(data)
