"""The five tests every dialect owes, over the golden vectors: read and write, ask for more, cut anywhere, and none is missing."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.conversation import cut, feed, single_bytes
from tests.wire.kafka.drive import client_at, client_that_asked
from tests.wire.kafka.vectors import REFUSED, REQUESTS, RESPONSES, Vector

from braidlog.wire.kafka.apis import APIS, OWN
from braidlog.wire.kafka.connection import RefusedRequest, Request, Response, ServerConnection


def named(vectors: list[Vector]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors, ids=[each.name for each in vectors])


def request_of(vector: Vector) -> Request:
    assert vector.api is not None
    return Request(vector.api, vector.version, vector.correlation_id, vector.client_id, vector.message)


def uncounted(requests: list[Any]) -> list[Any]:
    """The vectors do not say how many parts a request has: that is the server's, to know the large ones."""
    return [msgspec.structs.replace(each, parts=0) for each in requests]


@named(REQUESTS)
def test_a_request_reads(vector: Vector) -> None:
    server = ServerConnection()
    assert uncounted(feed(server, vector.data)) == [request_of(vector)]
    assert server.buffered_bytes == 0


@named([each for each in REQUESTS if not each.reads_only])
def test_a_request_writes(vector: Vector) -> None:
    assert client_at(vector.correlation_id, vector.client_id).request(vector.message, vector.version) == vector.data


@named(RESPONSES)
def test_a_response_reads(vector: Vector) -> None:
    client = client_that_asked(vector)
    assert vector.api is not None
    assert feed(client, vector.data) == [Response(vector.api, vector.version, vector.correlation_id, vector.message)]
    assert client.in_flight == 0


@named([each for each in RESPONSES if not each.reads_only])
def test_a_response_writes(vector: Vector) -> None:
    assert vector.api is not None
    request = Request(vector.api, vector.version, vector.correlation_id, None, None)
    assert ServerConnection().respond(request, vector.message) == vector.data


@named(REFUSED)
def test_a_refusal(vector: Vector) -> None:
    (event,) = feed(ServerConnection(), vector.data)
    assert isinstance(event, RefusedRequest)
    assert event.close is vector.closes
    assert (event.answer is None) is vector.closes


@named(REQUESTS + REFUSED)
def test_a_request_cut_short_asks_for_more(vector: Vector) -> None:
    """Whatever a frame is for can be refused as soon as that is known, and not before."""
    for size in range(len(vector.data)):
        assert feed(ServerConnection(), vector.data[:size]) == [] or vector.closes


@named(RESPONSES)
def test_a_response_cut_short_asks_for_more(vector: Vector) -> None:
    for size in range(len(vector.data)):
        assert feed(client_that_asked(vector), vector.data[:size]) == []


STREAM = b"".join(each.data for each in REQUESTS)
WHOLE = [request_of(each) for each in REQUESTS]


def test_a_stream_in_single_bytes() -> None:
    assert uncounted(feed(ServerConnection(), *single_bytes(STREAM))) == WHOLE


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_a_stream_cut_anywhere_gives_the_same_requests(cuts: list[int]) -> None:
    assert uncounted(feed(ServerConnection(), *cut(STREAM, cuts))) == WHOLE


@given(st.data())
def test_a_stream_cut_anywhere_gives_the_same_responses(data: st.DataObject) -> None:
    client = client_at(0)
    stream = b""
    for number, each in enumerate(RESPONSES):
        assert each.api is not None
        # A default Produce has acks 0, and awaits nothing.
        client.request(each.api.request(acks=1) if each.api.name == "Produce" else each.api.request(), each.version)
        stream += each.data[:4] + number.to_bytes(4, "big") + each.data[8:]
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=40))
    assert [event.message for event in feed(client, *cut(stream, cuts))] == [each.message for each in RESPONSES]


@pytest.mark.parametrize("api", [*APIS, *OWN], ids=lambda api: api.name)
def test_every_api_has_vectors(api: object) -> None:
    assert any(each.api is api for each in REQUESTS)
    assert any(each.api is api for each in RESPONSES)


def test_every_vector_names_its_source() -> None:
    assert all(each.source for each in REQUESTS + RESPONSES + REFUSED)
