"""The order of a connection: a STREAM begins when all before it is answered, however that was read."""

from braidlog.adapters.cursus.served import SessionConnection
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.batch import Batch
from braidlog.wire.cursus.connection import ClientConnection

CONSUME = ClientConnection().request(r.Consume("orders", 0, 42))
STREAM = ClientConnection().request(r.Stream("orders", 0))


def test_a_stream_waits_for_the_answer_to_a_request_that_came_alone() -> None:
    served = SessionConnection()
    consume = served.single_frame(CONSUME)
    assert consume is not None
    served.receive(STREAM)
    assert served.next_event() is NEED_DATA
    served.respond(consume, Batch("orders", 0, ()))
    stream = served.next_event()
    assert getattr(stream, "message", None) == r.Stream("orders", 0)


def test_a_stream_waits_for_no_request_that_another_node_has_answered() -> None:
    served = SessionConnection()
    consume = served.single_frame(CONSUME)
    assert consume is not None
    served.receive(STREAM)
    assert served.respond(consume, b"its answer") == b"its answer"
    assert getattr(served.next_event(), "message", None) == r.Stream("orders", 0)


def test_nothing_is_read_by_the_short_way_behind_a_stream_nor_the_stream_itself() -> None:
    served = SessionConnection()
    assert served.single_frame(STREAM) is None
    served.receive(STREAM)
    assert getattr(served.next_event(), "message", None) == r.Stream("orders", 0)
    assert served.single_frame(CONSUME) is None
    served.begin_pushing()
    assert served.single_frame(CONSUME) is None
