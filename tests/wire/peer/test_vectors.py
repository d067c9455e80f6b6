"""The five tests every dialect owes, over the golden vectors: read and write, ask for more, cut anywhere, and none is missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.conversation import cut, feed
from tests.wire.peer.fuzz import events
from tests.wire.peer.vectors import MESSAGES, REFUSED, Vector

from braidlog.wire.peer.connection import Frame, PeerConnection, write
from braidlog.wire.peer.messages import OPERATIONS, Ping, Row

STREAM = b"".join(each.data for each in MESSAGES) * 2


@pytest.mark.parametrize("vector", MESSAGES, ids=lambda each: each.name)
def test_a_message_reads_and_writes(vector: Vector) -> None:
    connection = PeerConnection()
    connection.receive(vector.data)
    sender = vector.data[4:20]
    assert events(connection) == [Frame(sender, vector.message)]
    assert connection.buffered_bytes == 0
    assert write(sender, vector.message) == vector.data


@pytest.mark.parametrize("vector", MESSAGES, ids=lambda each: each.name)
def test_a_message_cut_short_asks_for_more(vector: Vector) -> None:
    for size in range(len(vector.data)):
        connection = PeerConnection()
        assert feed(connection, vector.data[:size]) == []
        connection.receive(vector.data[size:])
        assert len(events(connection)) == 1


@pytest.mark.parametrize("vector", REFUSED, ids=lambda each: each.name)
def test_a_refusal_is_known_at_its_first_wrong_byte_and_not_before(vector: Vector) -> None:
    connection = PeerConnection()
    assert feed(connection, vector.data[:-1]) == []
    connection.receive(vector.data[-1:])
    ((_, position),) = events(connection)
    assert position == vector.refused
    connection.receive(MESSAGES[0].data)
    assert (events(connection), connection.buffered_bytes) == ([], 0), "after the end nothing is taken"


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_a_stream_cut_anywhere_gives_the_same_messages(cuts: list[int]) -> None:
    found = [event.message for event in feed(PeerConnection(), *cut(STREAM, cuts))]
    assert found == [each.message for each in MESSAGES] * 2


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_every_type_has_a_vector(row: Row) -> None:
    assert any(type(each.message) is row.kind and each.data[3] == row.number for each in MESSAGES)


def test_what_does_not_fit_is_not_written() -> None:
    with pytest.raises(ValueError, match="cannot be encoded"):
        write(bytes(16), Ping(-1))
    with pytest.raises(ValueError, match="16 bytes"):
        write(b"short", Ping(1))
