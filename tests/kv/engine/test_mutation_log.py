"""The store over any log that keeps the port's two promises: here a list, and a log that refuses."""

import asyncio
from typing import NamedTuple

import pytest
from tests.kv.crashing import FOLDER, NODE, open_store

from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import HybridClock
from braidlog.kv.engine.keyspace import Keyspace
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.engine.store import Store
from braidlog.kv.wal.wal_entries import Op
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.settings import Flush
from braidlog.testing.disk import SimulatedDisk


class Change(NamedTuple):
    op: int
    key: bytes
    argument: bytes
    ttl_seconds: int
    stamp: tuple[int, int]


class ListLog:
    """Keeps changes in memory, as the leader of a replicated partition would before others have them."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.fault: StorageFault | None = None
        self.refusal: BrokerError | None = None

    def append(self, op: int, key: bytes, argument: bytes, ttl_seconds: int, stamp: tuple[int, int]) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.changes.append(Change(op, key, argument, ttl_seconds, stamp))
        return len(self.changes)

    async def durable(self, sequence: int, flush: Flush = Flush.ACK) -> None:
        assert flush is Flush.ACK
        assert sequence <= len(self.changes)


def store_over(log: ListLog) -> Store:
    return Store(log, Keyspace(recency=False), HybridClock(NODE), KeyValueSettings(), sequence=0)


def test_who_applies_the_log_has_the_same_keys() -> None:
    log = ListLog()
    store = store_over(log)
    store.execute(o.Set(b"a", b"1", ttl_seconds=5), 1_000)
    store.execute(o.Increment(b"n", 7), 1_000)
    store.execute(o.Push(b"l", o.End.LEFT, (b"x", b"y")), 1_001)
    store.execute(o.Pop(b"l", o.End.RIGHT), 1_001)
    store.execute(o.HashSet(b"h", ((b"f", b"v"),)), 1_002)
    store.execute(o.Set(b"a", b"2"), 7_000)  # its time had come: it goes first
    store.execute(o.Delete(b"n"), 7_001)
    assert store.sequence == len(log.changes) == 8
    assert Op.EXPIRED in {change.op for change in log.changes}
    follower = Keyspace(recency=False)
    for change in log.changes:
        follower.apply(change.op, change.key, change.argument, change.ttl_seconds, change.stamp[0])
    assert follower.data.keys() == store.keyspace.data.keys() == {b"a", b"l", b"h"}
    for key in follower.data:
        assert follower.cost(key) == store.keyspace.cost(key)
    assert follower.deadlines == store.keyspace.deadlines
    stamps = [change.stamp for change in log.changes]
    assert stamps == sorted(set(stamps)), "each change has a stamp of its own, later than the last"


def test_a_refused_change_leaves_keys_sequence_and_clock_as_they_were() -> None:
    log = ListLog()
    store = store_over(log)
    store.execute(o.Set(b"k", b"1"), 1_000)
    before = store.clock.wall_ms, store.clock.counter
    log.refusal = BrokerError(Reason.NOT_LEADER, "another node leads this shard")
    with pytest.raises(BrokerError, match="another node"):
        store.execute(o.Set(b"k", b"2"), 2_000)
    assert store.execute(o.Get(b"k"), 2_000) == b"1"
    assert (store.clock.wall_ms, store.clock.counter) == before
    assert store.sequence == 1
    log.refusal = None
    store.execute(o.Set(b"k", b"3"), 2_000)
    assert store.sequence == 2


def test_a_log_that_has_stopped_stops_its_store() -> None:
    log = ListLog()
    store = store_over(log)
    log.fault = StorageFault("the disk is gone")
    with pytest.raises(StorageFault, match="the disk is gone"):
        store.execute(o.Exists(b"k"), 0)


@pytest.mark.parametrize("flush", Flush)
def test_the_write_ahead_log_keeps_as_flush_says(flush: Flush) -> None:
    disk = SimulatedDisk()
    disk.make_folder("/data")
    store = open_store(disk)
    store.execute(o.Set(b"k", b"v"), 0)
    wal = f"{FOLDER}/00000000000000000001.wal"
    empty = len(disk.content(wal))
    asyncio.run(store.wal.durable(store.sequence, flush))
    assert len(disk.content(wal)) > empty, "the kernel has it"
    assert store.wal.durable_sequence == (1 if flush is Flush.ACK else 0)
