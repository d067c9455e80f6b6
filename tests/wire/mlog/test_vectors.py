"""Every golden vector reads, writes, waits for its last byte, and is refused where it must be."""

import json
from typing import Any

import pytest
from tests.wire.conversation import feed

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.mlog.connection import frame
from braidlog.wire.mlog.errors import ErrorCode, RPCErrorResponse
from braidlog.wire.mlog.messages import MessageType
from braidlog.wire.mlog.operations import NUMBER_OF, OPERATIONS
from braidlog.wire.mlog.replication import encode_batch

from .batches import ReplicationBatch, read_batch
from .conversation import reader_of
from .vectors import Vector, load

FRAMES = [vector for vector in load() if vector.direction in "<>"]
MESSAGES = [vector for vector in FRAMES if vector.message is not None]
LENIENT = [vector for vector in FRAMES if vector.canonical is not None]
REFUSED = [vector for vector in FRAMES if vector.refused]
BATCHES = load("batches", "epochs")


def read(vector: Vector) -> Any:
    connection = reader_of(vector)
    connection.receive(vector.data)
    event = connection.next_event()
    assert connection.next_event() is NEED_DATA
    return event


@pytest.mark.parametrize("vector", MESSAGES, ids=str)
def test_a_vector_reads(vector: Vector) -> None:
    assert read(vector) == vector.message
    assert type(read(vector)) is type(vector.message)


@pytest.mark.parametrize("vector", MESSAGES, ids=str)
def test_a_vector_is_written(vector: Vector) -> None:
    assert frame(vector.message) == vector.data


@pytest.mark.parametrize("vector", [*MESSAGES, *LENIENT], ids=str)
def test_a_cut_vector_asks_for_more(vector: Vector) -> None:
    for length in range(len(vector.data)):
        connection = reader_of(vector)
        assert feed(connection, vector.data[:length]) == []


@pytest.mark.parametrize("vector", LENIENT, ids=str)
def test_what_go_would_read_is_read_as_go_reads_it(vector: Vector) -> None:
    message = read(vector)
    assert vector.canonical is not None
    # Compared as JSON, keys in order: Go escapes `<` and `>` in what it writes, we do not.
    ours = json.loads(frame(message)[6:], object_pairs_hook=list)
    assert ours == json.loads(vector.canonical[6:], object_pairs_hook=list)


@pytest.mark.parametrize("vector", REFUSED, ids=str)
def test_a_refused_vector_is_refused_and_ends_the_connection(vector: Vector) -> None:
    connection = reader_of(vector)
    (event,) = feed(connection, vector.data)
    assert isinstance(event, Refused)
    assert event.close
    if vector.direction == ">":
        assert isinstance(event.answer, RPCErrorResponse)
        assert event.answer.code == ErrorCode.UNKNOWN
        assert event.answer.message == str(event.error) != ""
    else:
        assert event.answer is None
    assert feed(connection, b"\x00\x19\x00\x00\x00\x02{}") == []


@pytest.mark.parametrize("vector", load("frames"), ids=str)
def test_a_header_that_cannot_be_right_is_refused_before_its_payload(vector: Vector) -> None:
    connection = reader_of(vector)
    assert feed(connection, vector.data[:5]) == []
    connection.receive(vector.data[5:6])
    assert isinstance(connection.next_event(), Refused)


def test_every_message_has_a_vector() -> None:
    assert {type(vector.message) for vector in MESSAGES} == set(NUMBER_OF)
    assert sorted(NUMBER_OF.values()) == list(MessageType)
    assert len({row.number for row in OPERATIONS}) == len(OPERATIONS) == 14


@pytest.mark.parametrize("vector", BATCHES, ids=str)
def test_a_batch_is_written(vector: Vector) -> None:
    batch: ReplicationBatch = vector.message
    assert read_batch(vector.data) == batch
    assert encode_batch(batch.records, batch.leader_epoch) == vector.data
