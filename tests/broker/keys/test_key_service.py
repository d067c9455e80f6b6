"""The key-value store as a service: acknowledgements, snapshots in slices, figures, and the change feed through every crash."""

import errno
import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import pytest
from tests.broker.node import Node, batch_of
from tests.kv.crashing import KEYS, plain
from tests.kv.workloads import Mixed
from tests.refusals import refused_with
from tests.sampling import FULL

from braidlog.broker.keys.change_feed import RETRY_SECONDS, last_sequence
from braidlog.broker.keys.key_service import KeyValue
from braidlog.kv.engine import operations as o
from braidlog.kv.engine.settings import Eviction, KeyValueSettings
from braidlog.kv.engine.values import HashValue, ListValue, read_value
from braidlog.kv.feed import feed_records as f
from braidlog.kv.replicated.slots import FEED_TOPIC
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.record import Record
from braidlog.model.settings import Flush
from braidlog.partition.hosted_log import Role
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk
from braidlog.testing.faults import Operation


class KvNode(Node):
    """A node whose store is open and whose feed runs."""

    def __init__(self, *args: Any, kv: KeyValueSettings | None = None, **more: Any) -> None:
        self.kv_settings = msgspec.structs.replace(kv or KeyValueSettings(), feed_linger_ms=0)
        super().__init__(*args, kv=self.kv_settings, **more)
        self.kv: KeyValue = self.services.keyvalue
        self.kv.open()
        for _, work in self.kv.background():
            self.spawn(work())
        self.runtime.settle()

    def again(self, disk: SimulatedDisk | None = None, kv: KeyValueSettings | None = None) -> "KvNode":
        return KvNode(disk or self.disk.after_kill(), self.clock, kv=kv or self.kv_settings)

    def do(self, operation: o.Operation[Any]) -> Any:
        return self.run(self.kv.execute(operation))

    def feed(self) -> list[Record]:
        """Everything that a reader finds in the feed."""
        if not self.services.hosting.exists(FEED_TOPIC):
            return []
        found: list[Record] = []
        offset = 0
        while True:
            got = self.run(self.services.fetch.records(FEED_TOPIC, 0, offset, bytes_max=1 << 20))
            if not got.records:
                return found
            found += got.records
            offset = got.next_offset


def told(records: list[Record]) -> Iterator[int]:
    for record in records:
        sequence = f.sequence_in(record.headers)
        assert sequence is not None
        yield sequence


def folded(records: list[Record]) -> dict[bytes, tuple[Any, int]]:
    """What a reader of the feed takes the store to hold."""
    last = {record.key: record for record in records}
    there: dict[bytes, tuple[Any, int]] = {}
    for key, record in last.items():
        assert key is not None
        headers = dict(record.headers)
        if record.value is None:
            continue
        kind = headers[f.TYPE]
        assert kind is not None
        value = read_value(kind.decode(), record.value)
        kept: Any = value
        if isinstance(value, ListValue):
            kept = list(value.items)
        elif isinstance(value, HashValue):
            kept = value.fields
        elif isinstance(value, int):
            kept = b"%d" % value
        there[key] = (kept, int(headers.get(f.EXPIRES) or 0))
    return there


def check_feed(node: KvNode) -> None:
    """No mutation is missing, none is told twice, and the last word on every key is what the store holds."""
    records = node.feed()
    sequence = node.kv.store.sequence
    assert list(told(records)) == list(range(1, sequence + 1))
    assert folded(records) == plain(node.kv.store)
    stamps = [dict(record.headers)[f.STAMP] for record in records]
    assert stamps == sorted(set(stamps), key=lambda stamp: stamp or b""), "stamps do not sort as the mutations do"


# -- acknowledgements --------------------------------------------------------------------------------------------


def test_a_mutation_is_acknowledged_when_it_is_durable() -> None:
    node = KvNode()
    with node.runtime.holding_syncs():
        job = node.spawn(node.kv.execute(o.Set(b"a", b"1")))
        assert not job.is_done
        assert node.do(o.Get(b"a")) == b"1", "a read does not wait, and sees what is under way"
    assert job.result() is True
    assert node.kv.stats().durable_sequence == 1


def test_many_mutations_share_a_sync() -> None:
    node = KvNode(kv=KeyValueSettings(feed=False))
    before = node.runtime.syncs
    with node.runtime.holding_syncs():
        jobs = [node.spawn(node.kv.execute(o.Increment(b"count"))) for _ in range(50)]
    assert [job.result() for job in jobs] == list(range(1, 51))
    assert node.runtime.syncs == before + 1


@pytest.mark.parametrize("flush", [Flush.OS, Flush.INTERVAL])
def test_lazy_mutations_survive_a_kill(flush: Flush) -> None:
    node = KvNode(kv=KeyValueSettings(flush=flush))
    for _ in range(5):
        node.do(o.Increment(b"count"))
    assert node.kv.stats().durable_sequence == 1, "nobody has synced since the feed began"
    assert node.again().do(o.Get(b"count")) == b"5"
    node.runtime.advance(1_100)
    assert node.kv.stats().feed_sequence == 5, "the feed syncs once an interval"
    check_feed(node)


def test_refusals_are_broker_errors() -> None:
    node = KvNode(kv=KeyValueSettings(memory_bytes_max=2_000))
    node.do(o.Push(b"list", o.End.LEFT, (b"x",)))
    for operation, reason in (
        (o.Get(b"missing"), Reason.KEY_NOT_FOUND),
        (o.Get(b"list"), Reason.WRONG_TYPE),
        (o.Get(b""), Reason.INVALID_KEY),
        (o.Get(b"k" * 257), Reason.KEY_TOO_LONG),
        (o.Set(b"a", b"x" * 65537), Reason.VALUE_TOO_LARGE),
        (o.Set(b"a", b"x" * 1500), Reason.OUT_OF_MEMORY),
        (o.Increment(b"list"), Reason.WRONG_TYPE),
    ):
        with refused_with(reason):
            node.do(operation)
    assert node.kv.stats().refused_for_memory == 1


# -- snapshots and figures ---------------------------------------------------------------------------------------


def test_a_snapshot_shows_one_moment_while_the_store_goes_on() -> None:
    node = KvNode()
    for number in range(600):
        node.do(o.Set(b"key%d" % number, b"old"))
    node.do(o.Push(b"list", o.End.LEFT, (b"old",)))
    wanted, sequence = plain(node.kv.store), node.kv.store.sequence
    job = node.spawn(node.kv.snapshot())
    pushed = 0
    while not job.is_done and pushed < 50:
        node.kv.store.execute(o.Push(b"list", o.End.LEFT, (b"new",)), node.clock.now_ms())
        node.kv.store.execute(o.Set(b"key%d" % pushed, b"new"), node.clock.now_ms())
        pushed += 1
        node.runtime._step(node.runtime._ready.popleft()) if node.runtime._ready else node.runtime.settle()
    node.runtime.settle()
    done = job.result()
    assert done.keys == 601
    assert done.sequence >= sequence
    assert done.bytes == len(node.disk.content(f"/data/kv/{done.sequence:020d}.snapshot"))
    again = node.again()
    assert plain(again.kv.store) == plain(node.kv.store)
    assert again.kv.stats().snapshot_sequence == done.sequence
    assert len(wanted) == 601
    check_feed(again)


def test_the_log_is_let_go_after_a_snapshot() -> None:
    node = KvNode()
    for _ in range(200):
        node.do(o.Set(b"a", b"x" * 1000))
    before = node.kv.stats()
    assert before.wal_bytes > 200_000
    done = node.run(node.kv.snapshot())
    after = node.kv.stats()
    assert done.wal_bytes_freed > 200_000
    assert after.wal_bytes < 1_000
    assert (after.snapshots, after.snapshot_sequence) == (1, 200)
    assert node.run(node.kv.maybe_snapshot()) is None, "there is nothing to gain"


def test_a_snapshot_is_taken_when_the_log_has_grown() -> None:
    node = KvNode(kv=KeyValueSettings(snapshot_wal_bytes=8_192))
    done = None
    for number in range(20):
        node.do(o.Set(b"key%d" % number, b"x" * 500))
        done = node.run(node.kv.maybe_snapshot())
        if done is not None:
            break
    assert done is not None
    assert done.wal_bytes_freed >= 8_192


def test_keys_go_when_their_time_has_come() -> None:
    node = KvNode()
    for number in range(1_200):
        node.do(o.Set(b"key%d" % number, b"v", 1 + number % 2))
    node.clock.advance(1_000)
    assert node.run(node.kv.expire()) == 600
    node.clock.advance(1_000)
    assert node.run(node.kv.expire()) == 600
    stats = node.kv.stats()
    assert (stats.keys, stats.expired, stats.keys_with_ttl) == (0, 1_200, 0)
    assert node.kv.memory().used_bytes == 0
    assert node.again().kv.stats().keys == 0
    check_feed(node)


def test_figures() -> None:
    node = KvNode(kv=KeyValueSettings(memory_bytes_max=5_000, eviction=Eviction.LRU))
    for number in range(30):
        node.do(o.Set(b"key%d" % number, b"x" * 100))
    node.do(o.HashSet(b"hash", ((b"f", b"v"),)))
    with pytest.raises(BrokerError):
        node.do(o.Get(b"key0"))
    node.do(o.Get(b"key29"))
    stats, memory = node.kv.stats(), node.kv.memory()
    assert stats.evicted > 10
    assert (stats.hits, stats.misses, stats.hashes, stats.lists) == (1, 1, 1, 0)
    assert stats.strings == stats.keys - 1
    assert stats.operations == 33
    assert stats.mutations == stats.sequence == 31 + stats.evicted
    assert memory.used_bytes <= 5_000
    assert memory.peak_bytes <= 5_000
    assert memory.used_bytes == sum(map(node.kv.store.keyspace.cost, node.kv.store.keyspace.data))
    again = node.again()
    assert plain(again.kv.store) == plain(node.kv.store), "evicted keys stay away"
    check_feed(again)


def test_a_store_whose_last_log_has_lost_its_head_is_offline_and_says_so() -> None:
    node = KvNode()
    node.do(o.Set(b"a", b"1"))
    disk = node.disk.after_kill()
    disk.zero("/data/kv/00000000000000000001.wal", 0, 64)
    broken = Node(disk, node.clock)
    with pytest.raises(StorageFault, match="damaged"):
        broken.services.keyvalue.open()
    with pytest.raises(StorageFault, match="offline"):
        broken.run(broken.services.keyvalue.execute(o.Get(b"a")))
    broken.create("t")
    broken.append("t", b"the rest is served")


# -- the feed ----------------------------------------------------------------------------------------------------


def test_what_a_record_of_the_feed_says() -> None:
    node = KvNode()
    node.do(o.Set(b"a", b"\x00bytes", 60))
    node.do(o.Increment(b"n", -5))
    node.do(o.HashSet(b"h", ((b"f", b"v"),)))
    node.do(o.Delete(b"a"))
    first, second, third, fourth = node.feed()
    now_ms = node.clock.now_ms()
    node_id = bytes.fromhex(node.folder.identity.folder_id)
    assert (first.key, first.value, first.timestamp_ms) == (b"a", b"\x00bytes", now_ms)
    assert dict(first.headers) == {
        "kv.seq": b"1",
        "kv.hlc": (now_ms.to_bytes(8, "big") + bytes(4) + node_id).hex().encode(),
        "kv.op": b"set",
        "kv.type": b"string",
        "kv.expires": b"%d" % (now_ms + 60_000),
    }
    assert (second.key, second.value, dict(second.headers)["kv.type"]) == (b"n", b"-5", b"counter")
    assert third.value == b"\0\0\0\x01\0\0\0\x01f\0\0\0\x01v"
    assert dict(third.headers)["kv.op"] == b"hset"
    assert (fourth.key, fourth.value) == (b"a", None)
    assert dict(fourth.headers) == {
        "kv.seq": b"4",
        "kv.hlc": (now_ms.to_bytes(8, "big") + (3).to_bytes(4, "big") + node_id).hex().encode(),
        "kv.op": b"del",
    }


def test_a_burst_of_pushes_is_told_in_parts_and_then_whole() -> None:
    node = KvNode()
    with node.runtime.holding_syncs():
        jobs = [node.spawn(node.kv.execute(o.Push(b"list", o.End.RIGHT, (b"%d" % n,)))) for n in range(100)]
    assert all(job.is_done for job in jobs)
    node.runtime.settle()
    check_feed(node)
    kinds = [dict(record.headers)[f.TYPE] for record in node.feed()]
    assert kinds.count(b"list") < 10, "the whole list is not written out for every push"
    assert kinds[-1] == b"list"
    parts = [record.value for record in node.feed() if dict(record.headers)[f.TYPE] == b"part"]
    assert b"\0\0\0\x02" + b"42" in parts


def test_columns_are_told_in_as_many_batches_as_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidlog.kv.feed.feed_records.BATCH_RECORDS_MAX", 2)
    monkeypatch.setattr("braidlog.broker.keys.change_feed.PENDING_MAX", 4)
    node = Node(kv=KeyValueSettings(feed_linger_ms=0))
    kv = node.services.keyvalue
    kv.open()
    kinds = bytes((o.Kind.SET, o.Kind.DELETE, o.Kind.INCREMENT, o.Kind.SET, o.Kind.DELETE, o.Kind.SET))
    columns = o.Columns(True, kinds, [b"a", b"b", b"n", b"b", b"a", b"c"], [b"1", b"", b"", b"2", b"", b"3"])
    asking = node.spawn(kv.execute_columns(columns))
    node.runtime.settle()
    assert kv.stats().sequence == 5
    assert not asking.is_done, "the feed has more to tell than may wait for it"
    node.spawn(kv.background()[0][1]())
    node.runtime.settle()
    assert asking.is_done
    assert kv.stats().feed_sequence == 5
    feed = kv._feed
    assert feed is not None
    assert not feed._queue.count
    check_feed(KvNode(node.disk.after_kill(), node.clock))


def test_what_is_written_at_once_and_what_waits_for_its_batch_come_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Collections wait, and what comes behind them; batches share the syncs of their round."""
    monkeypatch.setattr("braidlog.kv.feed.feed_records.BATCH_RECORDS_MAX", 3)
    node = KvNode()
    node.do(o.Set(b"first", b"1"))
    columns = o.Columns(True, bytes([o.Kind.SET] * 4), [b"a", b"b", b"c", b"d"], [b"1", b"2", b"3", b"4"])
    push = o.Push(b"list", o.End.RIGHT, (b"x",))
    queued: list[o.Operation[Any] | o.Columns] = [o.Set(b"k", b"v"), push, o.Increment(b"n"), push, columns]
    queued += [o.Delete(b"list"), columns]
    with node.runtime.holding_syncs():
        jobs: list[Any] = [node.spawn(node.kv.execute(o.Set(b"held", b"2")))]  # the feed waits for the sync of this one
        node.runtime.settle()
        for each in queued:
            work = node.kv.execute_columns(each) if isinstance(each, o.Columns) else node.kv.execute(each)
            jobs.append(node.spawn(work))
        before = node.runtime.syncs
    assert all(job.is_done for job in jobs)
    node.runtime.settle()
    check_feed(node)
    assert [f.sequence_in(record.headers) for record in node.feed()] == list(range(1, 16))
    assert node.runtime.syncs - before <= 6, "five batches, two rounds, and what the mutations themselves wait for"
    assert node.kv._feed is not None
    assert not node.kv._feed._queue._latest


def test_large_values_that_wait_for_the_feed_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidlog.broker.keys.change_feed.PENDING_BYTES_MAX", 1_000)
    node = KvNode(kv=KeyValueSettings(flush=Flush.OS))
    node.do(o.Set(b"first", b"1"))
    with node.runtime.holding_syncs():
        asked = [node.spawn(node.kv.execute(o.Set(b"k%d" % n, bytes(600)))) for n in range(2)]
        node.runtime.settle()
        assert [job.is_done for job in asked] == [True, False]
    node.runtime.settle()
    assert asked[1].is_done
    check_feed(node)


def test_a_change_waits_for_nothing_unless_the_disk_or_the_feed_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not KvNode(kv=KeyValueSettings(flush=Flush.ACK)).kv.changes_at_once
    node = KvNode(kv=KeyValueSettings(flush=Flush.OS))
    assert not node.kv.changes_at_once, "the feed has no topic yet"
    node.do(o.Set(b"a", b"1"))
    assert node.kv.changes_at_once
    assert node.kv.change(o.Increment(b"n")) == 1
    assert node.again().do(o.Get(b"n")) == b"1", "it is with the kernel"
    columns = o.Columns(
        True, bytes((o.Kind.SET, o.Kind.INCREMENT, o.Kind.DELETE)), [b"c", b"n", b"x"], [b"3", b"", b""]
    )
    assert node.kv.change_columns(columns) == ([True, 2, None], [])
    again = node.again()
    assert [again.do(o.Get(b"c")), again.do(o.Get(b"n"))] == [b"3", b"2"]
    monkeypatch.setattr("braidlog.broker.keys.change_feed.PENDING_MAX", 0)
    assert not node.kv.changes_at_once
    monkeypatch.undo()
    assert node.kv.changes_at_once
    node.kv.no_room = StorageFault("no room")
    assert not node.kv.changes_at_once
    with pytest.raises(BrokerError):
        node.do(o.Increment(b"n"))
    node.do(o.Delete(b"n"))
    columns = o.Columns(True, bytes((o.Kind.SET, o.Kind.DELETE)), [b"d", b"c"], [b"4", b""])
    refused = node.run(node.kv.execute_columns(columns))
    assert (refused.refused, refused.found[1]) == ([0], True)
    node.runtime.advance(2_000)
    check_feed(node)


def test_a_feed_that_has_much_to_tell_does_not_linger_until_somebody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidlog.broker.keys.change_feed.PENDING_EARLY", 3)
    node = KvNode(kv=KeyValueSettings(flush=Flush.OS))
    node.do(o.Set(b"first", b"1"))
    node.runtime.advance(2_000)
    for number in range(3):
        node.do(o.Set(b"k", b"%d" % number))
    node.runtime.settle()
    assert node.kv.stats().feed_sequence == 1, "it lingers"
    node.do(o.Set(b"k", b"3"))
    node.runtime.settle()
    assert node.kv.stats().feed_sequence == 5
    check_feed(node)


def test_a_long_round_of_the_feed_gives_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidlog.kv.feed.feed_records.BATCH_RECORDS_MAX", 1)
    monkeypatch.setattr("braidlog.broker.keys.change_feed.TURN_BYTES", 1)
    node = KvNode(kv=KeyValueSettings(flush=Flush.OS))
    node.do(o.Set(b"first", b"1"))
    node.runtime.advance(2_000)
    feed = node.kv._feed
    assert feed is not None
    ends: list[int] = []

    async def look() -> None:
        while feed.sequence < 6:
            if not ends or ends[-1] != feed._end:
                ends.append(feed._end)
            await node.runtime.wakeup().wait(0)

    for number in range(5):
        node.do(o.Set(b"k", b"%d" % number))
    before = node.runtime.syncs
    node.spawn(feed.reach(6))
    watching = node.spawn(look())
    node.runtime.advance(1)
    assert watching.is_done
    assert len(ends) >= 4, "five batches one after another, with a turn of the loop between them"
    assert node.runtime.syncs - before == 2, "of the store and of the feed"
    check_feed(node)


def test_the_feed_waits_a_little_for_more_but_not_when_somebody_waits_for_it() -> None:
    node = Node(kv=KeyValueSettings(feed_linger_ms=50))
    kv = node.services.keyvalue
    kv.open()
    node.spawn(kv.background()[0][1]())
    node.run(kv.execute(o.Increment(b"count")))
    assert node.services.hosting.exists(FEED_TOPIC), "the first mutation is acknowledged when there is a topic"
    node.runtime.advance(1_000)
    for _ in range(3):
        node.run(kv.execute(o.Increment(b"count")))
    node.runtime.advance(48)
    assert kv.stats().feed_sequence == 1
    node.runtime.advance(2)
    assert kv.stats().feed_sequence == 4
    node.run(kv.execute(o.Increment(b"count")))
    node.run(kv.drain())
    assert kv.stats().feed_sequence == 5


def test_the_feed_is_there_for_readers_only() -> None:
    node = KvNode()
    assert FEED_TOPIC not in node.services.hosting.names(), "no topic before there is anything to tell"
    node.do(o.Set(b"a", b"1"))
    assert FEED_TOPIC in node.services.hosting.names()
    services = node.services
    for change in (
        lambda: services.append.append(FEED_TOPIC, 0, batch_of(b"forged")),
        lambda: services.topics.delete(FEED_TOPIC),
        lambda: services.topics.grow(FEED_TOPIC, 2),
        lambda: services.topics.alter(FEED_TOPIC, {"compact": False}),
        lambda: services.topics.create(FEED_TOPIC, 1),
        lambda: services.placement.set_role(FEED_TOPIC, 0, Role.FOLLOWER),
        lambda: services.trim.delete_before(FEED_TOPIC, 0, 1),
        lambda: node.transactions.add_partitions("t", 1, 0, [(FEED_TOPIC, 0)]),
    ):
        with refused_with(Reason.INVALID_TOPIC_NAME):
            node.run(change())
    check_feed(node)


def test_a_store_without_a_feed_makes_no_topic() -> None:
    node = KvNode(kv=KeyValueSettings(feed=False))
    node.do(o.Set(b"a", b"1"))
    node.run(node.kv.snapshot())
    assert node.services.hosting.names() == []


def test_a_feed_that_was_off_tells_the_state_first() -> None:
    node = KvNode()
    node.do(o.Set(b"a", b"1"))
    node.do(o.Set(b"b", b"1"))
    node = node.again(kv=KeyValueSettings(feed=False))
    node.do(o.Delete(b"a"))
    node.do(o.Push(b"list", o.End.LEFT, (b"x", b"y")))
    node.do(o.Set(b"c", b"2", 50))
    node.run(node.kv.snapshot())
    node = node.again(kv=KeyValueSettings())
    node.do(o.Increment(b"n"))
    records = node.feed()
    assert folded(records) == plain(node.kv.store)
    assert list(told(records)) == [1, 2, 0, 0, 0, 5, 6]
    assert [record.key for record in records if record.value is None] == [b"a"]


def test_a_feed_that_is_ahead_belongs_to_another_store() -> None:
    node = KvNode()
    node.do(o.Set(b"a", b"1"))
    disk = node.disk.after_kill()
    for name in disk.names("/data/kv"):
        disk.drop(f"/data/kv/{name}")
    with pytest.raises(StorageFault, match="do not belong together"):
        KvNode(disk, node.clock)


def test_a_feed_whose_disk_fails_stops_the_mutations() -> None:
    node = KvNode()
    node.do(o.Set(b"a", b"1"))
    feed_folder = node.services.hosting.partition(FEED_TOPIC, 0).log.folder

    def before(operation: Operation) -> None:
        if operation.path.startswith(feed_folder) and operation.kind == "sync":
            node.disk.fail_at[operation.number] = 5

    node.disk.on_operation = before
    assert node.do(o.Set(b"a", b"2")) is True, "its own log has it"
    with pytest.raises(StorageFault, match="feed has stopped"):
        node.do(o.Set(b"a", b"3"))
    assert node.do(o.Get(b"a")) == b"2"
    node.disk.on_operation = None
    check_feed(node.again())


@pytest.mark.parametrize("where", ["/data/kv/", "/data/topics/"])
@pytest.mark.parametrize("attempts", [1, 3])
def test_a_full_disk_that_has_room_again_is_gone_on_with(where: str, attempts: int) -> None:
    """Whether the store's own log or the feed's topic did not fit: nothing is missing, nothing is told twice.

    Only writes that make a file longer are refused: a mark is written where there is room already.
    """
    key = b"n" * 100
    node = KvNode()
    node.do(o.Increment(key))
    left = attempts

    def refuse(operation: Operation) -> None:
        nonlocal left
        grows = operation.kind in ("write_at", "append") and operation.bytes > len(key)
        if left and grows and operation.path.startswith(where):
            left -= 1
            node.disk.fail_at[operation.number] = errno.ENOSPC

    node.disk.on_operation = refuse
    with suppress(StorageFault):  # its own log has it, or has not: then it says so
        node.do(o.Increment(key))
    node.runtime.settle()
    seen = node.do(o.Get(key))
    while left:
        with pytest.raises(StorageFault) as refused:
            node.do(o.Increment(key))
        assert refused.value.is_full
        assert node.do(o.Get(key)) == seen, "what is refused does not happen, what is there is read"
        node.runtime.advance(int(RETRY_SECONDS * 1000))
    node.runtime.advance(int(RETRY_SECONDS * 1000))
    assert node.do(o.Increment(key)) == int(seen) + 1
    node.runtime.settle()
    check_feed(node)
    check_feed(node.again())


@pytest.mark.parametrize(("days", "restarts"), [(-2, False), (-2, True), (2, False)])
def test_a_clock_that_steps_neither_freezes_nor_shortens_a_time_to_live(days: int, restarts: bool) -> None:
    """Not forward and a restart: for all a node can know, two days have passed between its two runs."""
    node = KvNode()
    node.do(o.Set(b"k", b"v", ttl_seconds=10))
    node.clock.step(days * 86_400_000)
    if restarts:
        node = node.again()
    assert node.do(o.TimeToLive(b"k")) == 10
    node.clock.advance(9_999)
    assert node.do(o.Get(b"k")) == b"v"
    node.clock.advance(1)
    assert node.do(o.Exists(b"k")) is False


def test_a_part_is_told_only_when_the_whole_is_sure_to_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second push is not durable when the first one's record, which leans on it, could be written."""
    monkeypatch.setattr("braidlog.kv.feed.feed_records.BATCH_RECORDS_MAX", 1)
    node = Node(kv=KeyValueSettings(feed_linger_ms=0))
    kv = node.services.keyvalue
    kv.open()
    node.spawn(kv.execute(o.Push(b"list", o.End.LEFT, (b"1",))))
    node.runtime.settle()
    assert kv.stats().durable_sequence == 1
    with node.runtime.holding_syncs():
        node.spawn(kv.execute(o.Push(b"list", o.End.LEFT, (b"2",))))
        node.spawn(kv.background()[0][1]())
        node.runtime.settle()
        states = [node.disk.after_kill(), *(disk for _, disk in node.disk.crash_states())]
        for disk in states:
            check_feed(KvNode(disk, node.clock))


SNAPSHOT_STATES = 4


@pytest.mark.parametrize("flush", list(Flush))
def test_a_snapshot_under_load_is_never_ahead_of_the_log(flush: Flush) -> None:
    """Without a feed to wait for. Mutations come at every pause of the snapshot; a crash comes at every operation of the disk, in
    some of the ways there are; in `make crash`, in all of them."""
    node = KvNode(kv=KeyValueSettings(feed=False, flush=flush))
    acked = 0
    states = 0
    seen: set[int] = set()
    rng = Random(3)

    def crash(operation: Operation) -> None:
        nonlocal states
        some = node.disk.crash_states(seen=seen, limit=None if FULL else SNAPSHOT_STATES, rng=None if FULL else rng)
        for label, disk in [("killed", node.disk.after_kill()), *some]:
            again = Node(disk, node.clock, kv=node.kv_settings)
            again.services.keyvalue.open()
            found = again.services.keyvalue.store
            promised = acked if flush is Flush.ACK or label == "killed" else 0
            assert found.sequence >= promised, f"{operation}, {label}"
            assert found.keyspace.data == ({b"count": found.sequence} if found.sequence else {}), (
                f"{operation}, {label}"
            )
            states += 1

    async def count() -> None:
        nonlocal acked
        for _ in range(12):
            acked = max(acked, await node.kv.execute(o.Increment(b"count")))
            await node.runtime.pause()

    node.disk.on_operation = crash
    for _ in range(3):
        jobs: list[Any] = [node.spawn(work) for work in (count(), node.kv.snapshot(), count(), count())]
        node.runtime.settle()
        assert jobs[1].result().sequence > 0
        assert [job.result() for job in (jobs[0], *jobs[2:])] == [None] * 3
    print(f"{flush}: {states} states")
    assert states > 100


# -- damage ------------------------------------------------------------------------------------------------------


def damaged(node: KvNode, *keys: bytes) -> KvNode:
    """The same node, started again after a bit flipped in the last entry of each key; of one, two flipped."""
    disk = node.disk.after_kill()
    path = next(path for path in disk.files() if path.endswith(".wal"))
    for key in keys:
        at = disk.content(path).rindex(key)
        disk.flip_bit(path, 8 * at)
        if key.startswith(b"two"):
            disk.flip_bit(path, 8 * at + 9)
    return node.again(disk)


def refused(node: KvNode, operation: o.Operation[Any]) -> str:
    with refused_with(Reason.UNAVAILABLE) as error:
        node.do(operation)
    return str(error.value)


def test_a_flipped_bit_in_the_log_costs_one_key() -> None:
    node = KvNode()
    for key in (b"first", b"second", b"third"):
        node.do(o.Set(key, b"1"))
    node = damaged(node, b"second")
    assert [node.do(o.Get(b"first")), node.do(o.Get(b"third")), node.do(o.Exists(b"fourth"))] == [b"1", b"1", False]
    assert "key 'second' is in doubt" in refused(node, o.Get(b"second"))
    assert "braid kv repair" in refused(node, o.Increment(b"second"))
    assert (node.kv.fault, node.kv.doubt[:19]) == (None, "1 keys are in doubt")
    assert ["mutation 2" in each for each in node.kv.damages] == [True]
    with pytest.raises(BrokerError, match="no snapshot is taken"):
        node.run(node.kv.snapshot())
    assert node.run(node.kv.maybe_snapshot()) is None
    node.do(o.Set(b"second", b"2"))
    assert (node.do(o.Get(b"second")), node.kv.doubt) == (b"2", "")
    check_feed(node)
    node.run(node.kv.snapshot())
    again = node.again()
    assert (again.do(o.Get(b"second")), again.kv.damages) == (b"2", [])
    check_feed(again)


def test_damage_that_names_no_key_puts_all_in_doubt_that_were_not_set_since() -> None:
    node = KvNode()
    for key in (b"first", b"two bits", b"third"):
        node.do(o.Set(key, b"1"))
    node = damaged(node, b"two bits")
    for key in (b"first", b"two bits", b"third", b"never"):
        assert f"key '{key.decode()}' is in doubt" in refused(node, o.Get(key))
    node.do(o.Set(b"third", b"2"))
    node.do(o.Delete(b"third"))
    node.do(o.Set(b"first", b"2"))
    again = node.again()
    assert (again.do(o.Exists(b"third")), again.do(o.Get(b"first"))) == (False, b"2")
    assert "key 'never' is in doubt" in refused(again, o.Get(b"never"))
    assert list(told(again.feed())) == [1, 2, 3, 4, 5, 6]


def test_a_feed_does_not_say_of_keys_in_doubt_that_they_are_gone() -> None:
    """It was off for a while, so it begins with the state of all keys."""
    node = KvNode()
    node.do(o.Set(b"told", b"1"))
    node = node.again(kv=KeyValueSettings(feed=False))
    node.do(o.Set(b"meanwhile", b"1"))
    node.run(node.kv.snapshot())
    node.do(o.Set(b"told", b"2"))
    node = damaged(node, b"told").again(kv=KeyValueSettings())
    assert node.kv.damages
    node.do(o.Set(b"other", b"1"))
    keys = [(record.key, record.value) for record in node.feed()]
    assert keys == [(b"told", b"1"), (b"meanwhile", b"1"), (b"other", b"1")]


# -- the feed through every crash --------------------------------------------------------------------------------

STATES_PER_OPERATION = 6 if FULL else 3
"""A plain run takes two workloads (one of small batches) and three states of each operation, `make crash` four and six."""


class Campaign:
    """A workload with a crash at every operation of the disk: of the store's log, of snapshots, of the feed's partition."""

    def __init__(self, seed: int, kv: KeyValueSettings) -> None:
        self.mix = Mixed(seed)
        self.random = self.mix.random
        self.node = KvNode(kv=kv)
        self.states = self.kills = self.behind = 0
        self._seen: set[int] = set()
        self._next = 0

    def run(self, steps: int) -> None:
        node = self.node
        node.disk.on_operation = self.crash
        for _ in range(steps):
            drawn = self.random.random()
            if drawn < 0.08:
                node.run(node.kv.snapshot())
            elif drawn < 0.2:
                node.clock.advance(self.random.randrange(1_500))
                node.run(node.kv.expire())
            elif drawn < 0.26:
                node.run(node.kv.execute_columns(self.columns()))
            elif drawn < 0.4:
                # Several at once: they share syncs and batches of the feed.
                jobs = [node.spawn(node.kv.execute(self.mix.operation())) for _ in range(6)]
                node.runtime.settle()
                assert all(job.is_done for job in jobs)
            else:
                job = node.spawn(node.kv.execute(self.mix.operation()))
                node.runtime.settle()
                assert job.is_done
            if node.kv.settings.flush is not Flush.ACK:
                node.runtime.advance(self.random.randrange(800))
        node.disk.on_operation = None
        node.runtime.advance(2_000)
        check_feed(node)

    def columns(self) -> o.Columns:
        """Changes of keys that hold anything, and of some that hold a string or nothing."""
        rows = [(self.random.choice(list(o.Kind)[1:]), self.random.choice([*KEYS, b"p", b"q", b"n"])) for _ in range(6)]
        return o.Columns(True, bytes(kind for kind, _ in rows), [key for _, key in rows], [b"%d" % self._next] * 6)

    def crash(self, operation: Operation) -> None:
        self._next += 1
        states = [("killed", self.node.disk.after_kill())]
        self.kills += 1
        states += self.node.disk.crash_states(limit=STATES_PER_OPERATION, rng=Random(self._next), seen=self._seen)
        for label, disk in states:
            self.states += 1
            try:
                self.check(disk)
            except Exception as error:
                where = f"operation {operation.number} {operation.kind} {operation.path}, {label}"
                raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error

    def check(self, disk: SimulatedDisk) -> None:
        quiet = Node(disk.copy(), self.node.clock, kv=self.node.kv_settings)
        if quiet.services.hosting.exists(FEED_TOPIC):
            there = last_sequence(quiet.services.hosting.partition(FEED_TOPIC, 0))
            quiet.services.keyvalue.open()
            self.behind += there < quiet.services.keyvalue.store.sequence
        # A clock of its own: what is tried here must not age the store that goes on.
        again = KvNode(disk, ManualClock(self.node.clock.now_ms()), kv=self.node.kv_settings)
        again.runtime.advance(2_000)
        check_feed(again)


@pytest.mark.parametrize("seed", range(4 if FULL else 2))
@pytest.mark.parametrize("flush", [Flush.ACK, Flush.OS])
def test_feed_and_store_agree_after_every_crash(seed: int, flush: Flush, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        # Small batches: a part and the whole that it leans on come in different ones, and a crash comes between.
        monkeypatch.setattr("braidlog.kv.feed.feed_records.BATCH_RECORDS_MAX", 2)
    campaign = Campaign(seed, KeyValueSettings(flush=flush))
    began = time.process_time()
    try:
        campaign.run(steps=25)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    print(
        f"seed {seed}, {flush}: {campaign.states} states, {campaign.kills} of them kills, {campaign.behind} with a feed behind "
        f"its store, {time.process_time() - began:.1f} s of CPU"
    )
    assert campaign.states > (150 if FULL else 100)
    assert campaign.behind > 10, "crashes between log and feed must have been met"
