"""Fetch sessions: named once, then only what has changed, and nothing that one may not read any more."""

from typing import Any

import msgspec
import pytest
from tests.adapters.kafka.client import fetch_of, values_of
from tests.adapters.kafka.test_served import Door, Talk

from braidlog.adapters.kafka.records import fetch_sessions
from braidlog.security.authorization import Authorize, Operation, Rule
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import data as d


class Reader:
    """One connection with a session over topics `a` and `b`."""

    def __init__(self, door: Door, *topics: str) -> None:
        self.door = door
        self.talk = Talk("alice")
        first = self.ask(fetch_of(*((topic, 0, 0) for topic in topics), session_epoch=0))
        assert first.error_code == 0
        self.number = first.session_id
        self.first = first
        self.epoch = 0

    def ask(self, message: d.FetchRequest) -> Any:
        return self.door.ask(message, 12, talk=self.talk)

    def more(self, *parts: tuple[str, int, int], forgotten: tuple[str, ...] = ()) -> Any:
        self.epoch += 1
        gone = [d.FetchRequestForgotten(topic, partitions=[0]) for topic in forgotten]
        return self.ask(fetch_of(*parts, session_id=self.number, session_epoch=self.epoch, forgotten_topics_data=gone))


def told(answer: Any) -> dict[str, Any]:
    assert answer.error_code == 0, answer
    return {
        topic.topic: [value for _, value in values_of(each.records.read() if each.records else b"")]
        if not each.error_code
        else each.error_code
        for topic in answer.responses
        for each in topic.partitions
    }


@pytest.fixture
def door() -> Door:
    made = Door()
    made.node.create("a")
    made.node.create("b")
    return made


def test_only_what_is_new_is_asked_and_told(door: Door) -> None:
    reader = Reader(door, "a", "b")
    assert reader.number > 0
    assert told(reader.first) == {"a": [], "b": []}, "the first answer has everything"
    assert told(reader.more()) == {}
    door.node.append("b", b"one")
    assert told(reader.more()) == {"b": [b"one"]}
    assert told(reader.more(("b", 0, 1))) == {}, "it is told of no watermark twice"
    door.node.append("a", b"two")
    assert told(reader.more()) == {"a": [b"two"]}
    assert told(reader.more(("a", 0, 1), forgotten=("b",))) == {}
    door.node.append("b", b"three")
    assert told(reader.more()) == {}, "it was forgotten"
    assert told(reader.more(("b", 0, 1))) == {"b": [b"three"]}


def test_a_session_is_a_connections_own_and_its_epochs_count(door: Door) -> None:
    reader = Reader(door, "a")
    stranger = Talk("alice")
    wrong = fetch_of(session_id=reader.number, session_epoch=1)
    assert door.ask(wrong, 12, talk=stranger).error_code == E.FETCH_SESSION_ID_NOT_FOUND
    assert (
        reader.ask(fetch_of(session_id=reader.number + 1, session_epoch=1)).error_code == E.FETCH_SESSION_ID_NOT_FOUND
    )
    assert reader.ask(fetch_of(session_id=reader.number, session_epoch=2)).error_code == E.INVALID_FETCH_SESSION_EPOCH
    assert told(reader.more()) == {}
    full = reader.ask(fetch_of(("b", 0, 0), session_id=reader.number, session_epoch=-1))
    assert (full.session_id, told(full)) == (0, {"b": []})
    assert reader.more().error_code == E.FETCH_SESSION_ID_NOT_FOUND, "it was ended"
    assert reader.talk.held_bytes == 0


def test_what_a_session_wants_is_allowed_each_time(door: Door) -> None:
    reader = Reader(door, "a", "b")
    rules = [Rule("alice", [Operation.READ], topic="b")]
    guarded = msgspec.structs.replace(door.services, authorize=Authorize({}, rules))
    door.adapter._services = guarded.only(type(door.adapter).uses)
    door.node.append("a", b"secret")
    door.node.append("b", b"mine")
    assert told(reader.more()) == {"a": E.TOPIC_AUTHORIZATION_FAILED, "b": [b"mine"]}


def test_there_are_so_many_and_what_they_keep_is_counted(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "SESSIONS_MAX", 2)
    readers = [Reader(door, "a", "b") for _ in range(3)]
    assert [bool(each.number) for each in readers] == [True, True, False]
    assert [each.talk.held_bytes for each in readers] == [1024, 1024, 0]
    assert told(readers[0].more(forgotten=("a",))) == {}
    assert readers[0].talk.held_bytes == 512
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 1)
    assert readers[1].more().error_code == E.FETCH_SESSION_ID_NOT_FOUND


def test_every_partition_has_its_turn_when_not_all_fit(door: Door) -> None:
    for topic in ("a", "b"):
        for _ in range(3):
            door.node.append(topic, bytes(1000))
    reader = Reader(door, "a", "b")
    seen = [next(iter(told(reader.ask(_little(reader, epoch))))) for epoch in (1, 2, 3, 4)]
    assert sorted(seen) == ["a", "a", "b", "b"]


def _little(reader: Reader, epoch: int) -> d.FetchRequest:
    return fetch_of(max_bytes=1, session_id=reader.number, session_epoch=epoch)


def test_a_version_without_sessions_has_none(door: Door) -> None:
    answer = door.ask(fetch_of(("a", 0, 0)), 6, talk=Talk("alice"))
    assert (answer.error_code, answer.session_id) == (0, 0)
