"""The five tests every dialect owes, over the golden vectors: read and write, ask for more, cut anywhere, and none is missing."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.conversation import comparable, cut, feed, single_bytes
from tests.wire.mayfly.vectors import ANSWERS, REFUSED, REQUESTS, Refusal, Vector

from braidlog.wire.contract import Refused
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import (
    Burst,
    ClientConnection,
    RefusedFrame,
    Request,
    Response,
    ServerConnection,
)
from braidlog.wire.mayfly.messages import Consistency, Status
from braidlog.wire.mayfly.operations import OPERATIONS


def named(vectors: list[Vector]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors, ids=[each.name for each in vectors])


def requests(*events: Any) -> list[Any]:
    """A burst counts as its requests."""
    return [each for event in events for each in (event.requests if isinstance(event, Burst) else [event])]


def client_that_asked(request: Request) -> ClientConnection:
    client = ClientConnection()
    client.request(request, version=1 if request.consistency is Consistency.QUORUM else 2)
    return client


@named(REQUESTS)
def test_a_request_reads(vector: Vector) -> None:
    server = ServerConnection()
    assert requests(*feed(server, vector.data)) == [msgspec.structs.replace(vector.request, version=vector.data[2])]
    assert server.buffered_bytes == 0


@named([each for each in REQUESTS if not each.reads_only])
def test_a_request_writes(vector: Vector) -> None:
    assert ClientConnection().request(vector.request, version=vector.data[2]) == vector.data


@named(ANSWERS)
def test_an_answer_reads(vector: Vector) -> None:
    client = client_that_asked(vector.asked)
    assert feed(client, vector.data) == [Response(vector.asked.id, vector.answer, type(vector.asked.message))]
    assert client.in_flight == 0


@named([each for each in ANSWERS if not each.reads_only])
def test_an_answer_writes(vector: Vector) -> None:
    assert ServerConnection().respond(vector.asked, vector.answer) == vector.data


def refusals(found: list[Any]) -> list[Refusal]:
    assert all(isinstance(event, RefusedFrame) for event in found)
    return [Refusal(event.close, event.answer and event.answer.status, event.id) for event in found]


@named(REFUSED)
def test_a_refusal(vector: Vector) -> None:
    server = ServerConnection()
    found = requests(*feed(server, vector.data))
    if vector.request is not None:
        assert found.pop(0) == vector.request
    assert tuple(refusals(found)) == vector.refusals
    for event in found:
        if event.answer is not None:
            answer = server.respond(event, event.answer)
            assert answer[:4] == b"\xca\xfe\x01" + bytes((event.answer.status,))
            assert str(event.error).encode()[:1000] in answer
    closed = any(each.close for each in vector.refusals)
    assert len(requests(*feed(server, REQUESTS[0].data))) == (0 if closed or vector.unfinished else 1)


@named([*REQUESTS, *(each for each in REFUSED if not each.refusals[0].close and each.data[3] != 0x40)])
def test_a_request_cut_short_asks_for_more(vector: Vector) -> None:
    """Or is refused by what is there already: never anything else."""
    wanted = in_pieces(ServerConnection(), [vector.data])
    for size in range(len(vector.data)):
        server = ServerConnection()
        found = in_pieces(server, [vector.data[:size]])
        if vector in REQUESTS:
            assert found == []
        assert found + in_pieces(server, [vector.data[size:]]) == wanted


@named(ANSWERS)
def test_an_answer_cut_short_asks_for_more(vector: Vector) -> None:
    for size in range(len(vector.data)):
        client = client_that_asked(vector.asked)
        assert feed(client, vector.data[:size]) == []
        assert feed(client, vector.data[size:]) == [
            Response(vector.asked.id, vector.answer, type(vector.asked.message))
        ]


STAYING = [each for each in REFUSED if not any(r.close for r in each.refusals) and not each.unfinished]
STREAM = b"".join(each.data for each in REQUESTS + STAYING + REQUESTS)


def in_pieces(server: ServerConnection, pieces: list[bytes]) -> list[Any]:
    return comparable(requests(*feed(server, *pieces)))


WHOLE = in_pieces(ServerConnection(), [STREAM])


@pytest.mark.parametrize("burst_max", [1, 2, 64])
def test_a_stream_byte_by_byte_gives_the_same_requests(burst_max: int) -> None:
    assert len(WHOLE) == 2 * len(REQUESTS) + len(STAYING)
    server = ServerConnection(burst_max=burst_max)
    assert in_pieces(server, single_bytes(STREAM)) == WHOLE


@given(st.lists(st.integers(0, len(STREAM)), max_size=40), st.sampled_from([1, 3, 64]))
def test_a_stream_cut_anywhere_gives_the_same_requests(cuts: list[int], burst_max: int) -> None:
    assert in_pieces(ServerConnection(burst_max=burst_max), cut(STREAM, cuts)) == WHOLE


@given(st.lists(st.integers(0, 400), max_size=20), st.randoms(use_true_random=False))
def test_answers_in_any_order_and_cut_anywhere_find_their_requests(cuts: list[int], chance: Any) -> None:
    client = ClientConnection()
    asked = dict(enumerate(ANSWERS, 1))
    for number, vector in asked.items():
        client.request(Request(number, vector.asked.message))
    order = list(asked)
    chance.shuffle(order)
    frames = [asked[n].data[:4] + n.to_bytes(4, "big") + asked[n].data[8:] for n in order]
    stream = b"".join(frames)
    found = feed(client, *cut(stream, cuts))
    assert [(each.id, each.message) for each in found] == [(n, asked[n].answer) for n in order]
    assert client.in_flight == 0


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_every_command_has_vectors(row: Any) -> None:
    assert any(type(each.request.message) is row.request and each.data[3] == row.number for each in REQUESTS)
    assert any(
        type(each.asked.message) is row.request and type(each.answer) is row.answer and each.data[3] == Status.OK
        for each in ANSWERS
    )


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_a_vector(status: Status) -> None:
    assert any(each.data[3] == status for each in ANSWERS)


def test_every_vector_names_its_source() -> None:
    assert all(each.source for each in REQUESTS + ANSWERS + REFUSED)


def test_the_documents_misprints_both_ways() -> None:
    def of(vectors: list[Vector], name: str) -> bytes:
        return next(each.data for each in vectors if each.name == name)

    right, printed = of(REQUESTS, "auth"), of(REFUSED, "auth as the document prints it")
    assert (right[:11], right[14:]) == (printed[:11], printed[14:])
    assert (right[11:14], printed[11:14]) == (b"\x0d\x00\x0b", b"\x0c\x00\x0a")
    right, printed = of(REQUESTS, "set"), of(REFUSED, "set as the document prints it")
    assert (right[:11], right[12:]) == (printed[:11], printed[12:])
    assert (right[11], printed[11], len(right)) == (12, 9, 24)


def test_a_status_of_zero_is_none() -> None:
    client = client_that_asked(Request(1, m.Ping()))
    (event,) = feed(client, bytes.fromhex("CAFE0100 00000001 00000000"))
    assert isinstance(event, Refused)
    assert event.close
