"""The change feed of a slot over real partitions of three nodes in one process: what is told, through changes of both leaders."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.broker.keys.test_slot_service import KEY, SETTINGS, KeyPeers, burst, checkpoint
from tests.partition.peers import Peers

from braidlog.broker.keys.feed_sources import LogFeeds
from braidlog.codec.batch.records import decode_batch
from braidlog.kv.engine import operations as o
from braidlog.kv.engine.operations import Level
from braidlog.kv.feed.feed_records import OPERATION, SEQUENCE
from braidlog.kv.replicated.slots import KEY_LOGS, log_of, slot_of
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.partition.internal.system_topic import read_published

KEYS = [key for at in range(10_000) if log_of(slot_of(key := b"other %d" % at), KEY_LOGS) == 0][:5]
Row = tuple[bytes, bytes | None, str, int]


class FedPeers:
    """Slot 0, and the partition of the feed that tells of it."""

    def __init__(self) -> None:
        self.keys = KeyPeers()
        self.feed = Peers(beside=self.keys)
        self.feeds = {
            number: LogFeeds(self.keys.slots[number], SETTINGS, self.keys.runtime, self.feed[number].spawn)
            for number in (1, 2, 3)
        }
        self.lead(1)

    def lead(self, number: int) -> None:
        """Another node leads the feed."""
        self.feed.elect(number)
        self.pass_time()
        for each, feeds in self.feeds.items():
            feeds.on_leadership_change(self.feed[each].partition)
        self.pass_time()

    def pass_time(self) -> None:
        for _ in range(4):
            self.keys.tick()
            self.feed.tick()

    def do(self, *operations: o.Operation[Any], node: int = 1) -> None:
        for operation in operations:
            self.keys.ask(node, operation)
        self.pass_time()

    def told(self, node: int = 1) -> list[Row]:
        rows = []
        for data, position, _ in read_published(self.feed[node].partition, 0):
            for _, _, key, value, headers in decode_batch(
                data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX
            ):
                named = dict(headers)
                rows.append((key or b"", value, (named[OPERATION] or b"").decode(), int(named[SEQUENCE] or 0)))
        return rows

    def stop(self) -> None:
        for number, feeds in self.feeds.items():
            self.feed[number].partition.retire()
            feeds.on_leadership_change(self.feed[number].partition)
        self.pass_time()


@pytest.fixture
def fed() -> Iterator[FedPeers]:
    fed = FedPeers()
    yield fed
    fed.stop()


def test_every_change_is_told_once_and_in_order(fed: FedPeers) -> None:
    fed.do(o.Increment(KEY), o.Increment(KEY), o.Set(KEYS[0], b"x", 9), o.Delete(KEYS[0]))
    assert fed.told() == [
        (KEY, b"1", "incrby", 1),
        (KEY, b"2", "incrby", 2),
        (KEYS[0], b"x", "set", 3),
        (KEYS[0], None, "del", 4),
    ]
    fed.do(o.Get(KEY), o.Increment(KEY))
    assert fed.told()[4:] == [(KEY, b"3", "incrby", 5)]


def test_a_burst_is_told_as_its_changes_are(fed: FedPeers) -> None:
    """In columns, with changes that are not plain between; by the leader, by the next one, and by a follower from the log."""
    fed.do(o.Push(KEYS[1], o.End.LEFT, (b"x",)))
    burst(fed.keys, o.Set(KEY, b"5"), o.Increment(KEY), o.Delete(KEYS[2]), o.Set(KEYS[0], b"x", 9), o.Delete(KEYS[1]))
    burst(fed.keys, o.Delete(KEY), o.Increment(KEY))
    fed.pass_time()
    wanted = [
        (KEYS[1], None, "lpush", 1),
        (KEY, b"5", "set", 2),
        (KEY, b"6", "incrby", 3),
        (KEYS[0], b"x", "set", 4),
        (KEYS[1], None, "del", 5),
        (KEY, None, "del", 6),
        (KEY, b"1", "incrby", 7),
    ]
    assert [(key, None if op == "lpush" else value, op, at) for key, value, op, at in fed.told()] == wanted
    fed.lead(2)
    burst(fed.keys, o.Increment(KEY), o.Increment(KEY))
    fed.pass_time()
    assert fed.told(2)[7:] == [(KEY, b"2", "incrby", 8), (KEY, b"3", "incrby", 9)]


def test_whoever_leads_the_feed_next_goes_on_after_the_last_record(fed: FedPeers) -> None:
    for at, node in enumerate((2, 3, 1), 1):
        fed.do(o.Increment(KEY))
        fed.feed.away = {1, 2, 3}
        fed.do(o.Increment(KEY))
        fed.feed.away = set()
        fed.lead(node)
        assert [row[1] for row in fed.told(node)] == [b"%d" % each for each in range(1, 2 * at + 1)]


def test_a_feed_that_is_ahead_of_the_state_beside_it_tells_nothing_again(fed: FedPeers) -> None:
    """A follower of a slot learns late what is committed; by then it may lead the feed, which tells of that already."""
    fed.do(o.Increment(KEY))
    held = fed.keys.slots[2].held(0)
    assert held is not None
    held[1].hold_at = held[1].slot.applied
    fed.do(o.Increment(KEY), o.Increment(KEY))
    fed.lead(2)
    assert (held[1].slot.applied, len(fed.told(2))) == (1, 3)
    held[1].hold_at = None
    fed.keys.slots[2].resume_applying(0)
    fed.do(o.Increment(KEY))
    assert [row[1] for row in fed.told(2)] == [b"1", b"2", b"3", b"4"]


def test_what_is_not_committed_is_not_told_and_what_is_cut_never_was(fed: FedPeers) -> None:
    fed.do(o.Push(KEY, o.End.RIGHT, (b"a",)))
    fed.keys.away = {1}
    fed.keys.ask(1, o.Push(KEY, o.End.RIGHT, (b"lost",)), Level.ONE)
    fed.pass_time()
    assert len(fed.told()) == 1
    fed.keys.elect(2)
    fed.keys.assign(fed.keys.assignment.with_changes(in_sync=(2, 3)))
    fed.do(o.Push(KEY, o.End.RIGHT, (b"b",)), node=2)
    fed.keys.away = set()
    fed.keys.assign()
    fed.pass_time()
    rows = fed.told()
    assert [row[2:] for row in rows] == [("rpush", 1), ("rpush", 2)]
    assert rows[-1][1] == b"\0\0\0\2" + b"\0\0\0\1a" + b"\0\0\0\1b"


def test_of_a_list_that_changes_often_the_last_record_has_the_whole(fed: FedPeers) -> None:
    fed.lead(2)  # from the copy of a follower
    for at in range(9):
        fed.keys.ask(1, o.Push(KEY, o.End.RIGHT, (b"%d" % at,)))
    fed.keys.ask(1, o.Pop(KEY, o.End.LEFT))
    for element in (b"next", b"last"):
        fed.keys.ask(1, o.Push(KEY, o.End.RIGHT, (element,)))
    fed.pass_time()
    rows = fed.told(2)
    assert [row[3] for row in rows] == list(range(1, 13))
    assert (rows[-1][1] or b"")[:4] == b"\0\0\0\x0a"
    assert (KEY, b"", "lpop", 10) in rows, "a part, which leans on the last"


def test_a_feed_that_is_further_behind_than_the_log_tells_what_every_key_holds(fed: FedPeers) -> None:
    fed.do(*[o.Set(key, b"before") for key in KEYS])
    fed.feed.away = {1, 2, 3}
    fed.do(o.Delete(KEYS[0]), o.Set(KEYS[1], b"after"), o.Increment(KEY))
    assert checkpoint(fed.keys).result()
    fed.feed.away = set()
    before = len(fed.told(2))
    fed.lead(2)
    states = {key: value for key, value, op, _ in fed.told(2)[before:] if op == "state"}
    assert states == {KEYS[0]: None, KEYS[1]: b"after", KEY: b"1"} | dict.fromkeys(KEYS[2:], b"before")
    fed.do(o.Increment(KEY))
    assert fed.told(2)[-1][:3] == (KEY, b"2", "incrby")


def test_a_feed_that_cannot_write_tells_it_later(fed: FedPeers) -> None:
    fed.feed.assign(fed.feed.assignment.with_changes(in_sync=(1,), eligible=(2, 3)))
    fed.do(o.Increment(KEY))
    assert fed.told() == []
    fed.feed.assign(fed.feed.assignment.with_changes(in_sync=(1, 2, 3), eligible=()))
    fed.pass_time()
    assert [row[1] for row in fed.told()] == [b"1"]


def test_a_log_that_was_opened_again_is_read_again(fed: FedPeers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while there is nothing to publish: the state that hears of changes is another."""
    monkeypatch.setattr("braidlog.broker.keys.change_feed.WAIT_SECONDS", 0.1)
    fed.lead(1)
    fed.do(o.Increment(KEY))
    held = fed.keys.slots[1].held(0)
    assert held is not None
    fed.keys.slots[1].attach(held[0])
    fed.pass_time()
    fed.do(o.Increment(KEY))
    assert [row[1] for row in fed.told()] == [b"1", b"2"]


def test_changes_that_are_too_many_to_wait_are_read_from_the_log(
    fed: FedPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("braidlog.broker.keys.change_feed.PENDING_MAX", 3)
    fed.feed.away = {1, 2, 3}
    fed.do(o.Increment(KEY))  # its record is appended, and not committed
    fed.do(*[o.Increment(KEY)] * 9)
    feed, _ = fed.feeds[1]._feeds[0]
    assert feed._queue.count <= 3
    fed.feed.away = set()
    fed.pass_time()
    fed.do(o.Increment(KEY))
    assert [row[1] for row in fed.told()] == [b"%d" % each for each in range(1, 12)]
