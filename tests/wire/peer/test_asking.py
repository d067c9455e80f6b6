"""The two ends of a connection about keys: each answer with its question, and an end to whoever answers what was not asked."""

import pytest
from tests.wire.conversation import feed
from tests.wire.peer.vectors import MESSAGES

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.peer import asking
from braidlog.wire.peer import messages as m
from braidlog.wire.peer.asking import LeafKeys, RequestingConnection, Response, ServingConnection
from braidlog.wire.peer.connection import Frame, write

ONE, TWO = bytes([1]) * 16, bytes([2]) * 16
BY_KIND = {type(each.message): each.message for each in MESSAGES}
FORWARD, REPLICATE = BY_KIND[m.Forward], BY_KIND[m.Replicate]
DIFF = m.SyncDiff(7, 3, 50, bytes(28), 0, 1, b"k", b"v")
ALL = m.SyncRequest(7, 3, 40, 0, 1024, 99)
LEAF = m.SyncRequest(7, 3, 40, 5, 6, 98)


def told(*messages: m.Message) -> bytes:
    return b"".join(write(ONE, each) for each in messages)


def test_questions_are_numbered_and_answers_come_in_any_order() -> None:
    asking_end, serving = RequestingConnection(TWO), ServingConnection(ONE)
    numbers = []
    for message in (FORWARD, REPLICATE, FORWARD):
        numbers.append(asking_end.next_id)
        serving.receive(asking_end.request(message))
    assert numbers == [1, 2, 3]
    asked = []
    while isinstance(frame := serving.next_event(), Frame):
        assert frame.sender == TWO
        asked.append(frame)
    assert [type(each.message) for each in asked] == [m.Forward, m.Replicate, m.Forward]
    answers = [m.Answer(3, 1, b"three"), m.Replicated(2, is_settled=True), m.TopologyChanged(1, 9)]
    asking_end.receive(b"".join(serving.respond(asked[0], each) for each in answers))
    assert [asking_end.next_event() for _ in range(4)] == [
        Response(3, answers[0]),
        Response(2, answers[1]),
        Response(1, answers[2]),
        NEED_DATA,
    ]


def test_numbers_wrap_around_and_pass_over_the_open_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "U32_MAX", 3)
    end = RequestingConnection(TWO)
    for _ in range(2):
        end.request(FORWARD)
    assert feed(end, told(m.Answer(2, 1, b""))) == [Response(2, m.Answer(2, 1, b""))]
    end.request(FORWARD)
    assert end.next_id == 2


def test_what_is_told_of_a_leaf_comes_whole() -> None:
    end = RequestingConnection(TWO)
    end.request(ALL)
    assert feed(end, told(m.SyncEnd(7, 3, 40, 0, 1024, 0, m.Verdict.NARROWER))) == [
        Response(1, m.SyncEnd(7, 3, 40, 0, 1024, 0, m.Verdict.NARROWER))
    ]
    end.request(LEAF)
    assert feed(end, told(DIFF)) == []
    ended = m.SyncEnd(7, 3, 50, 5, 6, 1, m.Verdict.TOLD)
    assert feed(end, told(ended)) == [Response(2, LeafKeys((DIFF,), ended))]
    end.request(ALL)
    assert feed(end, told(m.SyncOk(7, 3, 40, 0, 1024))) == [Response(3, m.SyncOk(7, 3, 40, 0, 1024))]


@pytest.mark.parametrize(
    "answers",
    [
        (m.Answer(2, 1, b""),),
        (m.Replicated(9, is_settled=True),),
        (m.SyncOk(7, 3, 40, 0, 512),),
        (m.SyncOk(8, 3, 40, 0, 1024),),
        (DIFF, DIFF, DIFF),
        (m.SyncEnd(7, 3, 50, 5, 6, 1, m.Verdict.TOLD),),
    ],
)
def test_an_answer_to_nothing_that_was_asked_ends_the_connection(
    answers: tuple[m.Message, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "LEAF_BYTES_MAX", 2)
    end = RequestingConnection(TWO)
    end.request(FORWARD)
    end.request(LEAF)
    (refused,) = feed(end, told(*answers))
    assert isinstance(refused, Refused)
    assert refused.close
    assert feed(end, told(m.Answer(1, 1, b""))) == []


def test_neither_end_takes_what_is_said_by_the_other_or_gossip() -> None:
    for end in (RequestingConnection(TWO), ServingConnection(ONE)):
        for each in MESSAGES:
            made: RequestingConnection | ServingConnection = type(end)(ONE)
            made.receive(each.data[:4])
            is_asked = isinstance(each.message, m.Forward | m.Replicate | m.SyncRequest)
            is_gossip = each.data[3] < 0x10
            wanted = not is_gossip and is_asked is isinstance(made, ServingConnection)
            assert (made.next_event() is NEED_DATA) is wanted, each.name


def test_who_is_not_let_in_is_told_nothing() -> None:
    connection = ServingConnection(ONE)
    refused = connection.turn_away("no")
    assert (refused.close, connection.respond(refused, refused.answer)) == (True, b"")
