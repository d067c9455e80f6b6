"""Records are counted over the door: a part at a time, for who may read them."""

import pytest
from tests.adapters.kafka.client import batch_of, produce_of
from tests.adapters.kafka.test_served import Door, Talk, produced

from braidlog.adapters.kafka.records import count_records
from braidlog.security.authorization import Operation, Rule
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import counting as m


def filled(*rules: Rule, tokens: bool = False) -> Door:
    """Topic a: three batches of two records each in partition 0, nothing in partition 1."""
    door = Door(None, *rules, tokens=tokens)
    door.node.create("a", 2)
    for _ in range(3):
        assert produced(door.ask(produce_of(("a", 0, batch_of(b"x", b"y"))))) == [E.NONE]
    return door


def told(door: Door, *parts: tuple[int, int, int], topic: str = "a", talk: Talk | None = None) -> list[tuple[int, ...]]:
    """Of partitions and ranges: error, records, counted below."""
    asked = m.CountRecordsRequestTopic(topic, [m.CountRecordsRequestPartition(*each) for each in parts])
    answer = door.ask(m.CountRecordsRequest(1, [asked]), talk=talk)
    return [(part.error_code, part.records, part.next_offset) for part in answer.topics[0].partitions]


def test_every_partition_is_told_by_itself() -> None:
    door = filled()
    assert told(door, (0, 0, 6)) == [(E.NONE, 6, 6)]
    assert told(door, (0, 1, 4), (1, 0, 5), (7, 0, 1)) == [
        (E.NONE, 3, 4),
        (E.NONE, 0, 0),
        (E.UNKNOWN_TOPIC_OR_PARTITION, 0, -1),
    ]
    assert told(door, (0, 0, 100)) == [(E.NONE, 6, 6)], "no further than a reader may go"
    assert told(door, (0, 9, 100)) == [(E.OFFSET_OUT_OF_RANGE, 0, -1)]
    assert told(door, (0, 0, 1), topic="b") == [(E.UNKNOWN_TOPIC_OR_PARTITION, 0, -1)]


def test_a_request_takes_so_many_turns_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidlog.partition.fetch.fetch.COUNTED_AT_ONCE", 1)
    monkeypatch.setattr(count_records, "PIECES_MAX", 2)
    door = filled()
    assert told(door, (0, 0, 6)) == [(E.NONE, 4, 4)]
    assert told(door, (0, 4, 6)) == [(E.NONE, 2, 6)]
    assert told(door, (0, 0, 6), (1, 0, 0)) == [(E.NONE, 2, 2), (E.NONE, 0, 0)], "a turn for each"


def test_who_may_not_read_is_told_nothing() -> None:
    door = filled(
        Rule("alice", [Operation.WRITE, Operation.READ], "a"), Rule("bob", [Operation.WRITE], "a"), tokens=True
    )
    assert told(door, (0, 0, 6)) == [(E.NONE, 6, 6)]
    assert told(door, (0, 0, 6), talk=Talk("bob")) == [(E.TOPIC_AUTHORIZATION_FAILED, 0, -1)]
