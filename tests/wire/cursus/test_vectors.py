"""The golden vectors: each is read, each is written, cut anywhere and short of any byte."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.conversation import comparable, cut, feed, single_bytes
from tests.wire.cursus.drive import ROWS, asked, client_that_asked, say
from tests.wire.cursus.vectors import VECTORS, Vector
from tests.wire.lone import check_lone

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.cursus.connection import ClientConnection, ServerConnection
from braidlog.wire.cursus.messages import BATCH, OPERATIONS, Request

ENVELOPES = {None: None, "empty": "", "admin": "admin"}
REQUESTS = [v for v in VECTORS if v.from_client and v.mode != "refuse"]
ANSWERS = [v for v in VECTORS if not v.from_client]
REFUSALS = [v for v in VECTORS if v.mode == "refuse"]


def ids(vectors: list[Vector]) -> list[str]:
    return [vector.name for vector in vectors]


def reader(vector: Vector) -> ServerConnection | ClientConnection:
    if vector.from_client:
        return ServerConnection()
    return client_that_asked(ROWS[vector.operation], vector.spelling)


@pytest.mark.parametrize("vector", REQUESTS, ids=ids(REQUESTS))
def test_requests_are_read(vector: Vector) -> None:
    (event,) = feed(ServerConnection(), vector.data)
    assert isinstance(event, Request), event
    assert (event.operation.name, event.message) == (vector.operation, vector.message)
    if event.operation.positional is not None or event.operation.name == "0xBA7C":
        # Without arguments the two spellings are one.
        assert event.operation.name == "LIST" or event.spelling is vector.spelling


@pytest.mark.parametrize("vector", REQUESTS, ids=ids(REQUESTS))
def test_a_command_that_comes_alone_is_read_alike(vector: Vector) -> None:
    assert check_lone(ServerConnection, vector.data) is (vector.operation != BATCH)
    assert not check_lone(partial(ServerConnection, compression="snappy"), vector.data)


@pytest.mark.parametrize("vector", [v for v in REQUESTS if v.mode == "both"], ids=lambda v: v.name)
def test_requests_are_written(vector: Vector) -> None:
    client = ClientConnection(spelling=vector.spelling, envelope=ENVELOPES[vector.lines.get("envelope")])
    assert client.request(vector.message) == vector.data


@pytest.mark.parametrize("vector", ANSWERS, ids=ids(ANSWERS))
def test_answers_are_read(vector: Vector) -> None:
    assert feed(reader(vector), vector.data) == [vector.message]


@pytest.mark.parametrize("vector", [v for v in ANSWERS if v.mode == "both"], ids=lambda v: v.name)
def test_answers_are_written(vector: Vector) -> None:
    request = asked(ROWS[vector.operation], vector.spelling)
    assert say(ServerConnection(), request, vector.message) == vector.data


@pytest.mark.parametrize("vector", REFUSALS, ids=ids(REFUSALS))
def test_refusals(vector: Vector) -> None:
    server = ServerConnection()
    (event,) = feed(server, vector.data)
    assert isinstance(event, Refused), event
    assert event.answer.code == vector.lines["error"]
    assert event.close == (vector.lines.get("close") == "yes")
    answer = server.respond(event, event.answer)
    assert answer[4:].startswith(b"ERROR: " + event.answer.code.encode())
    (after,) = feed(ServerConnection(), b"\x00\x00\x00\x04LIST")
    assert isinstance(after, Request)
    if not event.close:
        assert feed(server, b"\x00\x00\x00\x04LIST") == [after]
    else:
        assert feed(server, b"\x00\x00\x00\x04LIST") == []


@pytest.mark.parametrize("vector", VECTORS, ids=ids(VECTORS))
def test_short_of_any_byte_more_is_asked_for(vector: Vector) -> None:
    whole = feed(reader(vector), vector.data)
    for length in range(len(vector.data)):
        connection = reader(vector)
        found = feed(connection, vector.data[:length])
        if vector.lines.get("close") == "yes" and length >= 4:
            assert found == [] or found[0].close
            continue
        assert found == [], f"at {length} bytes"
        assert connection.next_event() is NEED_DATA
        assert comparable(feed(connection, vector.data[length:])) == comparable(whole)


@pytest.mark.parametrize("vector", VECTORS, ids=ids(VECTORS))
def test_byte_by_byte(vector: Vector) -> None:
    found = feed(reader(vector), *single_bytes(vector.data))
    assert comparable(found) == comparable(feed(reader(vector), vector.data))


@given(st.lists(st.sampled_from(REQUESTS + REFUSALS), min_size=1, max_size=6), st.lists(st.integers(0), max_size=12))
def test_a_conversation_cut_anywhere_is_the_same(vectors: list[Vector], places: list[int]) -> None:
    data = b"".join(v.data for v in vectors)
    found = feed(ServerConnection(), *cut(data, places))
    assert comparable(found) == comparable(feed(ServerConnection(), data))


def test_every_row_has_vectors() -> None:
    asked_for = {v.operation for v in REQUESTS}
    answered = {(v.operation, type(v.message)) for v in ANSWERS}
    for row in OPERATIONS:
        assert row.name in asked_for, f"{row.name} has no request vector"
        for answer in row.answers:
            assert (row.name, answer) in answered or answer.__name__ == "Ok", f"{row.name} → {answer.__name__}"


def test_both_spellings_of_every_command_of_the_document() -> None:
    seen = {(v.operation, v.spelling.value) for v in REQUESTS}
    for row in OPERATIONS:
        if row.positional:
            assert {(row.name, "document"), (row.name, "clients")} <= seen, row.name
