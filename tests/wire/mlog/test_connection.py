"""Two ends of a conversation, face to face without a socket; and what neither lets the other do."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.conversation import comparable, cut, feed, single_bytes
from tests.wire.damage import measured

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.mlog.connection import IN_FLIGHT_MAX, ClientConnection, ServerConnection, frame
from braidlog.wire.mlog.errors import ErrorCode, RPCErrorResponse
from braidlog.wire.mlog.messages import (
    FetchBatchRequest,
    FetchBatchResponse,
    FetchRequest,
    FetchResponse,
    FetchStreamRequest,
    FetchStreamResponse,
    ListTopicsRequest,
    ListTopicsResponse,
    LogEntry,
    ProduceRequest,
    ProduceResponse,
    ReplicateRequest,
    ReplicateResponse,
)
from braidlog.wire.mlog.operations import NUMBER_OF, OPERATIONS, Operation
from braidlog.wire.mlog.sizes import PAYLOAD_BYTES_MAX

from .conversation import reader_of
from .strategies import any_of
from .vectors import Vector, load

SENT = [vector for vector in load() if vector.direction == ">" and vector.message is not None]
REQUESTS = b"".join(vector.data for vector in SENT)
EXPECTED = [vector.message for vector in SENT]
ROWS = [pytest.param(row, id=row.name) for row in OPERATIONS]


def test_cutting_the_stream_at_any_byte_changes_nothing() -> None:
    for place in range(len(REQUESTS) + 1):
        assert feed(ServerConnection(), *cut(REQUESTS, [place])) == EXPECTED
    assert feed(ServerConnection(), *single_bytes(REQUESTS)) == EXPECTED


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_random_cuts_change_nothing(places: list[int]) -> None:
    assert feed(ServerConnection(), *cut(REQUESTS, places)) == EXPECTED


@given(
    st.lists(st.integers(0, 10_000), max_size=12),
    st.sampled_from([v for v in load() if v.refused and v.direction == ">"]),
)
def test_random_cuts_do_not_change_a_refusal(places: list[int], vector: Vector) -> None:
    data = REQUESTS + vector.data + REQUESTS
    whole = feed(ServerConnection(), data)
    assert whole[:-1] == EXPECTED
    assert isinstance(whole[-1], Refused)
    assert comparable(feed(ServerConnection(), *cut(data, places))) == comparable(whole)


@given(st.lists(st.integers(0, 1_000), max_size=6), st.sampled_from([v for v in load() if v.direction == "<"]))
def test_random_cuts_change_nothing_for_a_client(places: list[int], vector: Vector) -> None:
    found = feed(reader_of(vector), *cut(vector.data, places))
    assert comparable(found) == comparable(feed(reader_of(vector), vector.data))


@pytest.mark.parametrize("row", ROWS)
@given(data=st.data())
def test_a_request_and_its_answer_make_the_round_trip(row: Operation, data: st.DataObject) -> None:
    client, server = ClientConnection(), ServerConnection()
    request, answer = data.draw(any_of(row.request)), data.draw(any_of(row.response))
    assert feed(server, client.request(request)) == [request]
    assert feed(client, server.push(answer) if row.streams else server.respond(request, answer)) == [answer]


@pytest.mark.parametrize("row", ROWS)
@given(error=any_of(RPCErrorResponse))
def test_an_error_may_answer_anything(row: Operation, error: RPCErrorResponse) -> None:
    client, server = ClientConnection(), ServerConnection()
    (request,) = feed(server, client.request(row.request()))
    assert feed(client, server.respond(request, error)) == [error]
    assert client.in_flight == 0


@pytest.mark.parametrize("row", ROWS)
def test_nothing_else_answers_a_request(row: Operation) -> None:
    server = ServerConnection()
    others: set[Any] = set(NUMBER_OF) - {RPCErrorResponse}
    for message_type in others:
        if message_type is not row.response or row.streams:
            with pytest.raises(TypeError):
                server.respond(row.request(), message_type())
        if message_type not in (ReplicateResponse, FetchStreamResponse):
            with pytest.raises(TypeError):
                server.push(message_type())


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("other", ROWS)
def test_a_client_takes_only_the_answer_that_is_due(row: Operation, other: Operation) -> None:
    client = ClientConnection()
    client.request(row.request())
    (event,) = feed(client, frame(other.response()))
    if other is row:
        assert event == row.response()
    else:
        assert isinstance(event, Refused)
        assert event.answer is None
        assert event.close
        with pytest.raises(ValueError, match="was rejected"):
            client.request(row.request())


def test_a_refusal_is_answered_in_the_dialect_s_words() -> None:
    server, client = ServerConnection(), ClientConnection()
    client.request(ListTopicsRequest())
    (refused,) = feed(server, b"\x00\x1d\x00\x00\x00\x00")
    assert isinstance(refused, Refused)
    (answer,) = feed(client, server.respond(refused, refused.answer))
    assert answer.code == ErrorCode.UNKNOWN
    assert "29" in answer.message
    with pytest.raises(TypeError):
        server.respond(refused, ListTopicsResponse())


def test_pipelined_answers_come_in_order() -> None:
    client = ClientConnection()
    client.request(ProduceRequest("t", b"x"))
    client.request(FetchRequest("t"))
    client.request(ListTopicsRequest())
    assert client.in_flight == 3
    assert feed(
        client, frame(ProduceResponse(7)) + frame(RPCErrorResponse(6, "past the end")) + frame(ListTopicsResponse())
    ) == [ProduceResponse(7), RPCErrorResponse(6, "past the end"), ListTopicsResponse()]
    assert client.in_flight == 0


def test_an_answer_that_nobody_asked_for_is_refused_but_an_error_is_heard() -> None:
    client = ClientConnection()
    error, refused = feed(client, frame(RPCErrorResponse(0, "too many connections")) + frame(FetchResponse()))
    assert error == RPCErrorResponse(0, "too many connections")
    assert isinstance(refused, Refused)


def test_a_replicate_stream_ends_with_its_last_frame() -> None:
    client = ClientConnection()
    client.request(ReplicateRequest("t"))
    client.request(ListTopicsRequest())
    server = ServerConnection()
    chunks = [ReplicateResponse("t", b"1"), ReplicateResponse("t", b"2"), ReplicateResponse("t", None, True, 2)]
    assert feed(client, b"".join(map(server.push, chunks))) == chunks
    assert client.in_flight == 1
    assert feed(client, frame(ListTopicsResponse())) == [ListTopicsResponse()]


def test_a_fetch_stream_goes_on_until_an_error_and_has_the_connection_for_itself() -> None:
    client, server = ClientConnection(), ServerConnection()
    assert feed(server, client.request(FetchStreamRequest("t"))) == [FetchStreamRequest("t")]
    with pytest.raises(ValueError, match="FetchStream is open"):
        client.request(ListTopicsRequest())
    entries = [LogEntry(offset, b"x") for offset in range(3)]
    assert feed(client, server.push_entries(entries)) == [FetchStreamResponse(entry) for entry in entries]
    assert feed(client, server.respond(FetchStreamRequest("t"), RPCErrorResponse(3, "deleted"))) == [
        RPCErrorResponse(3, "deleted")
    ]
    client.request(ListTopicsRequest())


def test_a_server_serves_requests_beside_a_fetch_stream() -> None:
    assert feed(ServerConnection(), frame(FetchStreamRequest("t")) + frame(ListTopicsRequest())) == [
        FetchStreamRequest("t"),
        ListTopicsRequest(),
    ]


def test_requests_in_flight_are_bounded() -> None:
    client = ClientConnection()
    for _ in range(IN_FLIGHT_MAX):
        client.request(ListTopicsRequest())
    with pytest.raises(ValueError, match="requests are unanswered"):
        client.request(ListTopicsRequest())


def test_a_request_that_was_not_written_is_not_waited_for() -> None:
    client = ClientConnection()
    with pytest.raises(ValueError, match="may have 4194304"):
        client.request(ProduceRequest("t", bytes(PAYLOAD_BYTES_MAX)))
    assert client.in_flight == 0


def produce_of(payload_bytes: int) -> bytes:
    """A produce whose payload has exactly so many bytes."""
    empty = len(frame(ProduceRequest("", b""))) - 6
    value = bytes((payload_bytes - empty) // 4 * 3)
    return frame(ProduceRequest("t" * ((payload_bytes - empty) % 4), value))


def test_a_payload_of_the_limit_is_fine_and_one_more_is_not() -> None:
    data = produce_of(PAYLOAD_BYTES_MAX)
    assert len(data) == PAYLOAD_BYTES_MAX + 6
    server = ServerConnection()
    server.receive(data)
    assert isinstance(server.next_event(), ProduceRequest)
    with pytest.raises(ValueError, match="4194305 bytes"):
        produce_of(PAYLOAD_BYTES_MAX + 1)


def test_an_answer_over_the_limit_is_not_built() -> None:
    with pytest.raises(ValueError, match="FetchBatchResponse takes"):
        ServerConnection().respond(
            FetchBatchRequest("t"),
            FetchBatchResponse((LogEntry(0, bytes(2_000_000)), LogEntry(1, bytes(2_000_000)))),
        )


@pytest.mark.parametrize(
    "document",
    [
        b'{"Values":[' + b"[],[]," * 600_000 + b"[]]}",
        b'{"Values":[' + b"{}," * 1_000_000 + b"{}]}",
        b'{"Values":[' + b'"",' * 1_000_000 + b'""]}',
        b'{"Values":[' + b"1," * 1_500_000 + b"1]}",
        b'{"x":' + b"[" * 2_000_000,
        b'{"x":' + b'{"x":' * 500_000,
        b'{"Offset":' + b"1" * 4_000_000 + b"}",
    ],
    ids=["arrays", "objects", "values", "numbers", "deep arrays", "deep objects", "a long number"],
)
def test_a_small_document_does_not_become_a_large_one(document: bytes) -> None:
    assert len(document) <= PAYLOAD_BYTES_MAX
    header = b"\x00\x04" + len(document).to_bytes(4, "big")
    server = ServerConnection()
    server.receive(header + document)
    assert isinstance(server.next_event(), Refused)
    assert measured(ServerConnection(), header + document).peak_bytes < 4 * PAYLOAD_BYTES_MAX


def test_a_lying_length_holds_no_memory() -> None:
    assert measured(ServerConnection(), b"\x00\x04\x00\x40\x00\x00{").peak_bytes < 64 * 1024
    assert measured(ServerConnection(), b"\x00\x04\xff\xff\xff\xff{").peak_bytes < 64 * 1024


def test_a_refused_connection_keeps_nothing() -> None:
    server = ServerConnection()
    server.receive(b"\xff\xff\xff\xff\xff\xff" + bytes(1_000_000))
    assert isinstance(server.next_event(), Refused)
    server.receive(bytes(1_000_000))
    assert len(server._inbox) == 0
    assert server.next_event() is NEED_DATA
