"""A frame that is one Produce of one record, and its answer, are read and written in one place each: as by the tables."""

import pytest
from tests.wire.lone import check_lone

from braidlog.codec.errors import ProtocolError
from braidlog.wire.rustlog import binary
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.connection import ClientConnection, Request, ServerConnection
from braidlog.wire.rustlog.messages import FRAME_BYTES_MAX, Form, Produce, ProduceResponse
from braidlog.wire.rustlog.operations import BY_REQUEST


def frame_of(topic: str = "té", partition: int = 3, values: tuple[bytes, ...] = (b"value",)) -> bytes:
    return ClientConnection(Form.BINARY).request(Produce(topic=topic, partition=partition, records=list(values)))


@pytest.mark.parametrize("values", [(b"value",), (b"",), (b"x" * 70_000,)])
@pytest.mark.parametrize("topic", ["té", "", "t" * 300])
def test_it_is_read_as_by_the_table(topic: str, values: tuple[bytes, ...]) -> None:
    frame = frame_of(topic, 2**32 - 1, values)
    found = binary.read_lone_produce(frame, FRAME_BYTES_MAX)
    assert found == binary.read_request(frame[4:]) == Produce(topic=topic, partition=2**32 - 1, records=list(values))
    assert check_lone(ServerConnection, frame)


def test_damaged_ones_are_read_alike_or_left_to_others() -> None:
    frame = frame_of()
    for size in range(len(frame)):
        check_lone(ServerConnection, frame[:size])
        check_lone(ServerConnection, size.to_bytes(4, "big") + frame[4 : 4 + size])  # a whole frame that ends early
    for at in range(len(frame)):
        for value in range(256):
            damaged = frame[:at] + bytes((value,)) + frame[at + 1 :]
            check_lone(ServerConnection, damaged)
            found = binary.read_lone_produce(damaged, FRAME_BYTES_MAX)
            try:
                expected: m.Message | None = binary.read_request(damaged[4:])
            except (ProtocolError, KeyError):
                expected = None
            assert found in (expected, None)
    for more in (b"\0", frame):
        check_lone(ServerConnection, frame + more)


def test_others_are_left_to_the_table() -> None:
    assert binary.read_lone_produce(frame_of(values=(b"a", b"b")), FRAME_BYTES_MAX) is None
    assert binary.read_lone_produce(frame_of(values=()), FRAME_BYTES_MAX) is None
    frame = frame_of()
    assert binary.read_lone_produce(frame, len(frame) - 4) is not None
    assert binary.read_lone_produce(frame, len(frame) - 5) is None, "a client that has not said who it is sends less"


@pytest.mark.parametrize("answer", [(0, 1), (2**64 - 1, 2**32 - 1)])
def test_the_answer_is_written_as_by_the_table(answer: tuple[int, int]) -> None:
    said = ProduceResponse(base_offset=answer[0], record_count=answer[1])
    payload = binary.write_answer(BY_REQUEST[Produce], said)
    request = Request(Produce(topic="t", partition=0, records=[b"x"]), Form.BINARY)
    assert ServerConnection().respond(request, said) == len(payload).to_bytes(4, "big") + payload


def test_an_answer_that_does_not_fit_or_answers_something_else_is_our_mistake() -> None:
    request = Request(Produce(topic="t", partition=0, records=[b"x"]), Form.BINARY)
    with pytest.raises(ValueError, match="does not fit"):
        ServerConnection().respond(request, ProduceResponse(base_offset=0, record_count=2**32))
    with pytest.raises(TypeError):
        ServerConnection().respond(Request(m.Ping(), Form.BINARY), ProduceResponse(base_offset=0, record_count=1))
