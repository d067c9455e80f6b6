"""Whatever one end writes, the other reads: every row of the table, both forms, both directions."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.conversation import feed
from tests.wire.rustlog import strategies

from braidlog.codec.cursor import Reader
from braidlog.codec.errors import ProtocolError
from braidlog.wire.rustlog import binary
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.connection import ClientConnection, Request, Response, ServerConnection
from braidlog.wire.rustlog.messages import Form
from braidlog.wire.rustlog.operations import OPERATIONS, Operation

both_forms = pytest.mark.parametrize("form", list(Form))
every_row = pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)


@every_row
@both_forms
@given(data=st.data())
@settings(max_examples=40)
def test_there_and_back(row: Operation, form: Form, data: st.DataObject) -> None:
    client, server = ClientConnection(form), ServerConnection()
    message = data.draw(strategies.request(row.request, form))
    (request,) = feed(server, client.request(message))
    assert request == Request(message, form)
    assert isinstance(request, Request)

    kind = row.response if form is Form.JSON else row.binary_response
    answer = data.draw(strategies.answers[kind])
    (response,) = feed(client, server.respond(request, answer))
    assert isinstance(response, Response)
    assert response.request is row.request
    assert response.message == expected(answer, message, form)


@both_forms
@given(data=st.data())
@settings(max_examples=60)
def test_an_error_answers_any_request(form: Form, data: st.DataObject) -> None:
    client, server = ClientConnection(form), ServerConnection()
    message = data.draw(strategies.request(data.draw(st.sampled_from(OPERATIONS)).request, form))
    (request,) = feed(server, client.request(message))
    assert isinstance(request, Request)
    error = data.draw(strategies.errors if form is Form.JSON else strategies.brief_errors)
    assert feed(client, server.respond(request, error)) == [
        Response(expected(error, message, form), form, type(message))
    ]


def expected(answer: Any, message: m.Message, form: Form) -> Any:
    """JSON gets the request's id; a binary list of topics comes sorted."""
    if form is Form.JSON:
        return msgspec.structs.replace(answer, id=message.id)
    if isinstance(answer, m.ListTopicsResponse):
        return m.ListTopicsResponse(sorted(answer.topics, key=lambda topic: topic.name))
    return answer


@pytest.mark.parametrize("row", [row for row in OPERATIONS if row.narrow], ids=lambda row: row.name)
@given(data=st.data())
def test_an_answer_in_the_shape_of_json_is_narrowed_for_a_binary_client(row: Operation, data: st.DataObject) -> None:
    request = Request(data.draw(strategies.request(row.request, Form.BINARY)), Form.BINARY)
    full = data.draw(strategies.answers[row.response])
    assert row.narrow is not None
    frame = ServerConnection().respond(request, full)
    assert frame == ServerConnection().respond(request, row.narrow(full))
    client = ClientConnection(Form.BINARY)
    client.request(request.message)
    (response,) = feed(client, frame)
    assert isinstance(response, Response)
    carried = set(response.message.__struct_fields__) & set(full.__struct_fields__) - {"records", "partitions"}
    assert all(getattr(response.message, name) == getattr(full, name) for name in carried)


@given(strategies.records, st.data())
def test_records_that_are_cut_short_are_refused_with_the_place(values: list[bytes], data: st.DataObject) -> None:
    written = binary.RECORDS.write(values)
    whole = Reader(written)
    assert binary.RECORDS.read(whole, "records") == values
    assert whole.position == len(written)
    if values:
        cut = data.draw(st.integers(4, len(written) - 1))
        with pytest.raises(ProtocolError, match="record"):
            binary.RECORDS.read(Reader(written[:cut]), "records")


@given(st.data(), st.binary(max_size=40))
def test_a_fetch_is_read_as_its_fields_say(data: st.DataObject, garbage: bytes) -> None:
    """By the short way and by the table: the same, or the table refuses it."""
    whole = binary.write_request(data.draw(strategies.request(m.Fetch, Form.BINARY)))
    at = data.draw(st.integers(1, len(whole)))
    damaged = (whole[:at] + garbage, whole[:at] + garbage + whole[at + len(garbage) :], whole[:1] + garbage)
    assert binary._read_fetch(whole) == binary._read(whole, m.Fetch)
    for payload in damaged:
        try:
            wanted = binary._read(payload, m.Fetch)
        except ProtocolError:
            assert binary._read_fetch(payload) is None
        else:
            assert binary._read_fetch(payload) == wanted


def test_a_narrowed_topic_counts_its_partitions() -> None:
    full = m.DescribeTopicResponse("t", [m.PartitionSummary(0, 5, 1, 2), m.PartitionSummary(1, 9, 0, 1)])
    brief = m.BriefDescribeTopicResponse("t", 2, [m.BriefPartition(0, 5), m.BriefPartition(1, 9)])
    request = Request(m.DescribeTopic("t"), Form.BINARY)
    server = ServerConnection()
    assert server.respond(request, full) == server.respond(request, brief)


def test_a_length_that_lies_by_little_is_named_for_what_it_is() -> None:
    with pytest.raises(ProtocolError, match="the last of 1 records ends 1 bytes after the message"):
        binary.RECORDS.read(Reader(b"\x00\x00\x00\x01\x00\x00\x00\x03ab"), "records")


def test_every_answer_type_has_a_strategy() -> None:
    assert {row.response for row in OPERATIONS} | {row.binary_response for row in OPERATIONS} == set(strategies.answers)
