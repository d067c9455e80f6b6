"""The five tests every dialect owes, over the golden vectors: read and write, ask for more, cut anywhere, and none is missing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.conversation import comparable, cut, feed, single_bytes
from tests.wire.rustlog.vectors import ANSWERS, REFUSED, REQUESTS, Vector

from braidlog.wire.rustlog.connection import ClientConnection, RefusedFrame, Request, Response, ServerConnection
from braidlog.wire.rustlog.messages import Error, Form
from braidlog.wire.rustlog.operations import OPERATIONS


def named(vectors: list[Vector]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors, ids=[f"{each.form.value} {each.name}" for each in vectors])


def client_that_asked(vector: Vector) -> ClientConnection:
    client = ClientConnection(vector.form)
    client.request(vector.asked)
    return client


@named(REQUESTS)
def test_a_request_reads(vector: Vector) -> None:
    assert feed(ServerConnection(), vector.data) == [Request(vector.message, vector.form)]


@named([each for each in REQUESTS if not each.reads_only])
def test_a_request_writes(vector: Vector) -> None:
    assert ClientConnection(vector.form).request(vector.message) == vector.data


@named(ANSWERS)
def test_an_answer_reads(vector: Vector) -> None:
    client = client_that_asked(vector)
    assert feed(client, vector.data) == [Response(vector.message, vector.form, type(vector.asked))]
    assert client.in_flight == 0


@named([each for each in ANSWERS if not each.reads_only])
def test_an_answer_writes(vector: Vector) -> None:
    assert ServerConnection().respond(Request(vector.asked, vector.form), vector.message) == vector.data


@named(REFUSED)
def test_a_refusal(vector: Vector) -> None:
    server = ServerConnection()
    (event,) = feed(server, vector.data)
    assert isinstance(event, RefusedFrame)
    assert vector.refusal is not None
    assert (event.close, event.answer.code, event.form, event.id) == vector.refusal

    answer = server.respond(event, event.answer)
    assert answer[4] == (0x7B if event.form is Form.JSON else 0xFE)
    (response,) = feed(ClientConnection(event.form), answer)
    assert isinstance(response, Response) or event.id is not None
    assert len(feed(server, ClientConnection().request(REQUESTS[0].message))) == (0 if event.close else 1)


@named(REQUESTS)
def test_a_request_cut_short_asks_for_more(vector: Vector) -> None:
    for size in range(len(vector.data)):
        server = ServerConnection()
        assert feed(server, vector.data[:size]) == []
        assert feed(server, vector.data[size:]) == [Request(vector.message, vector.form)]


@named(ANSWERS)
def test_an_answer_cut_short_asks_for_more(vector: Vector) -> None:
    for size in range(len(vector.data)):
        client = client_that_asked(vector)
        assert feed(client, vector.data[:size]) == []
        assert feed(client, vector.data[size:]) == [Response(vector.message, vector.form, type(vector.asked))]


STREAM = b"".join(
    each.data for each in REQUESTS + [each for each in REFUSED if each.refusal and not each.refusal.close]
)
ANSWER_STREAMS = {form: [each for each in ANSWERS if each.form is form] for form in Form}


WHOLE = comparable(feed(ServerConnection(), STREAM))


def test_a_stream_byte_by_byte_gives_the_same_requests() -> None:
    assert len(WHOLE) == len(REQUESTS) + sum(1 for each in REFUSED if each.refusal and not each.refusal.close)
    assert comparable(feed(ServerConnection(), *single_bytes(STREAM))) == WHOLE


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_a_stream_cut_anywhere_gives_the_same_requests(cuts: list[int]) -> None:
    assert comparable(feed(ServerConnection(), *cut(STREAM, cuts))) == WHOLE


@pytest.mark.parametrize("form", list(Form))
@given(data=st.data())
def test_a_stream_cut_anywhere_gives_the_same_answers(form: Form, data: st.DataObject) -> None:
    client = ClientConnection(form)
    for each in ANSWER_STREAMS[form]:
        client.request(each.asked)
    stream = b"".join(each.data for each in ANSWER_STREAMS[form])
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=40))
    found = feed(client, *cut(stream, cuts))
    assert [event.message for event in found] == [each.message for each in ANSWER_STREAMS[form]]


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_every_row_of_the_table_has_vectors(row: Any, form: Form) -> None:
    response = row.response if form is Form.JSON else row.binary_response
    assert any(type(each.message) is row.request and each.form is form for each in REQUESTS)
    assert any(type(each.message) is response and each.form is form for each in ANSWERS)


@pytest.mark.parametrize("form", list(Form))
def test_errors_have_vectors(form: Form) -> None:
    assert any(type(each.message) is Error and each.form is form for each in ANSWERS)


def test_every_vector_names_its_source() -> None:
    assert all(each.source for each in REQUESTS + ANSWERS + REFUSED)


def test_the_documents_misprint_both_ways() -> None:
    right = next(each for each in REQUESTS if each.name.startswith("produce, the example frame"))
    printed = next(each for each in REFUSED if each.name.startswith("the example frame"))
    assert right.data[4:] == printed.data[4:]
    assert (right.data[3], printed.data[3]) == (78, 74)
    assert right.message.records == [b"Hello World"]
