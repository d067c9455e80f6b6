"""Each vector reads and writes; cut short it asks for more; cut anywhere it says the same. Every row of the table has one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.conversation import comparable, cut, single_bytes
from tests.wire.flux.conversation import ask, ask_one, serve, serve_one
from tests.wire.flux.vectors import ANSWERED, READ, REFUSED, VECTORS, Vector

from braidlog.wire.contract import Refused
from braidlog.wire.flux.connection import ClientConnection, ServerConnection
from braidlog.wire.flux.messages import Failed, Response
from braidlog.wire.flux.operations import OPERATIONS, Operation


def named(vectors: list[Vector]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors, ids=lambda vector: vector.name)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.command)
def test_every_row_has_a_vector_that_is_read_and_written_both_ways(operation: Operation) -> None:
    whole = [v for v in ANSWERED if v.sent.written and v.answered.written and type(v.request) is operation.request]
    assert any(type(vector.answer) is operation.answer for vector in whole)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.command)
def test_every_row_has_arguments_that_are_refused_or_none(operation: Operation) -> None:
    refused = [v for v in REFUSED if f"|{operation.command}|".encode() in v.sent.data]
    assert refused or operation.command in UNREFUSED


UNREFUSED = {  # the same arguments as a command that has such a vector
    "SYNC",
    "HEARTBEAT",
    "LEAVE",
    "ADMIN_CREATE_TOPIC",
    "ADMIN_BROKER_HEARTBEAT",
    "ADMIN_UNFENCE_BROKER",
    "ADMIN_GET_METADATA",
}


@named(READ)
def test_a_request_is_read(vector: Vector) -> None:
    assert serve_one(vector.sent.data) == vector.request


@named([vector for vector in READ if vector.sent.written])
def test_a_request_is_written(vector: Vector) -> None:
    assert ClientConnection().request(vector.request) == vector.sent.data


@named(ANSWERED)
def test_an_answer_is_read(vector: Vector) -> None:
    assert ask_one(vector.request, vector.answered.data) == Response(vector.request.correlation_id, vector.answer)


@named([vector for vector in ANSWERED if vector.answered.written])
def test_an_answer_is_written(vector: Vector) -> None:
    assert ServerConnection().respond(vector.request, vector.answer) == vector.answered.data


@named(REFUSED)
def test_what_is_wrong_is_refused_and_answered(vector: Vector) -> None:
    event = serve_one(vector.sent.data)
    assert isinstance(event, Refused)
    assert isinstance(event.answer, Response)
    assert isinstance(event.answer.answer, Failed)
    assert (event.answer.correlation_id, event.answer.answer.code, event.close) == vector.refused
    line = ServerConnection().refuse(event)
    assert vector.refused is not None
    assert line.startswith(b"V1|%b|ERR|%b|" % (vector.refused[0].encode(), vector.refused[1].encode()))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")


@named(VECTORS)
def test_a_request_cut_short_asks_for_more(vector: Vector) -> None:
    data = vector.sent.data
    whole = comparable(serve(data))
    for size in range(len(data)):
        assert serve(data[:size]) == []
        assert comparable(serve(data[:size], data[size:])) == whole


@named(ANSWERED)
def test_an_answer_cut_short_asks_for_more(vector: Vector) -> None:
    data = vector.answered.data
    whole = ask(vector.request, data)
    for size in range(len(data)):
        assert ask(vector.request, data[:size]) == []
        assert ask(vector.request, data[:size], data[size:]) == whole


STREAM = b"".join(vector.sent.data for vector in VECTORS)
EVENTS = comparable(serve(STREAM))


def test_the_stream_of_all_vectors_gives_one_event_each_even_byte_by_byte() -> None:
    assert len(EVENTS) == len(VECTORS)
    assert comparable(serve(*single_bytes(STREAM))) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_cutting_the_stream_anywhere_changes_nothing(cuts: list[int]) -> None:
    assert comparable(serve(*cut(STREAM, cuts))) == EVENTS


def test_answers_of_many_requests_are_read_in_any_order_however_cut() -> None:
    client = ClientConnection()
    by_id = {vector.request.correlation_id: vector for vector in ANSWERED}
    for vector in by_id.values():
        client.request(vector.request)
    events: list[object] = []
    stream = b"".join(vector.answered.data for vector in reversed(by_id.values()))
    for at in range(0, len(stream), 7):
        client.receive(stream[at : at + 7])
        while isinstance(event := client.next_event(), Response):
            events.append(event)
    assert events == [Response(v.request.correlation_id, v.answer) for v in reversed(by_id.values())]
    assert client.in_flight == 0
