"""Bursts on logs whose only replica is here: no step of replication is taken, and nothing else differs."""

import errno
from random import Random
from typing import Any

import pytest
from tests.broker.keys.test_slot_service import columns_of
from tests.model.manual_world import Job
from tests.partition.peers import Peers
from tests.refusals import reason_of

from braidlog.broker.keys.key_writes import SEVERAL_BYTES, WrittenLogs
from braidlog.broker.keys.slot_service import ANSWER_SECONDS_MAX, SlotService
from braidlog.kv.engine import operations as o
from braidlog.kv.engine.operations import Level
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.settings import Flush, TopicSettings
from braidlog.partition.hosted_log import HostedLog
from braidlog.partition.key_log import TailFolder
from braidlog.partition.partition import Partition
from braidlog.storage.log.partition_log import PartitionLog

SEEDS = 12
STEPS = 40
SETTINGS = KeyValueSettings(memory_bytes_max=3_000, feed=False)
FLUSHES = (Flush.ACK, Flush.INTERVAL)
SEGMENT_BYTES = 16 * 1024
KEYS = [b"key-%d" % at for at in range(12)]


class Only:
    """Slots with a single log, whose only replica is here."""

    def __init__(self, flush: Flush) -> None:
        self.flush = flush
        self.peers = Peers(TopicSettings(flush=flush, segment_bytes=SEGMENT_BYTES), min_in_sync=1, first=(1,))
        self.peer, self.runtime = self.peers[1], self.peers.runtime
        self.slots = self.slots_of(1)
        self.made_anew, self.counted = 0, (0, 0)

    def slots_of(self, node: int) -> SlotService:
        peer = self.peers[node]
        tails = TailFolder(peer.disk, "/tails")
        slots = SlotService(self.runtime, b"node %011d" % node, SETTINGS, tails, peer.spawn, logs=lambda: 1)
        slots.attach(peer.partition)
        return slots

    @property
    def partition(self) -> Partition:
        return self.peer.partition

    def burst(self, *operations: o.Operation[Any], level: Level = Level.QUORUM) -> Job[list[Any]]:
        async def found() -> list[Any]:
            results = await self.slots.execute_columns(columns_of(*operations), level)
            assert results.refused == [row for row, each in enumerate(results.found) if isinstance(each, BrokerError)]
            return results.found

        return self.runtime.spawn(found())

    def carry(self) -> None:
        """Until nobody waits for anything but time; then until their time has run out. A failed disk is noticed by then."""
        self.peers.carry()
        self.runtime.advance(int(ANSWER_SECONDS_MAX * 1000) + 1)
        self.partition.tick()
        self.peers.carry()

    def seen(self) -> tuple[Any, ...]:
        partition, (slot,) = self.partition, self.slots.local_logs().values()
        log, state = partition.log, slot.slot
        data = log.read(log.start_offset, 1 << 20)
        if slot.made_anew != self.made_anew:  # a state that is made anew counts from zero
            self.made_anew, self.counted = slot.made_anew, (self.slots.reads, self.slots.hits)
        reads, hits = self.slots.reads - self.counted[0], self.slots.hits - self.counted[1]
        return (
            data, [each.data_bytes for each in log.segments], log.end_offset, partition.high_watermark,
            self.flush is Flush.ACK and log.durable_offset,
            state.keyspace.data, state.keyspace.used_bytes, state.stamps, state.applied, slot.made_anew,
            self.slots.peak_bytes, state.clock.stamp, [reads + state.store.operations, state.store.mutations],
            [hits + state.store.hits, reads - hits + state.store.misses],
        )  # fmt: skip


class Twins:
    """The same is asked of both; the replica of the second takes a step for all that it writes."""

    def __init__(self, patched: pytest.MonkeyPatch, flush: Flush) -> None:
        self.both = Only(flush), Only(flush)
        self.lone = 0
        is_sole: Any = HostedLog.is_sole

        def shown(partition: HostedLog) -> bool:
            return partition is not self.both[1].partition and bool(is_sole.fget(partition))

        append = PartitionLog.append_section

        def append_section(log: PartitionLog, *what: Any, **how: Any) -> Any:
            self.lone += 1
            return append(log, *what, **how)

        patched.setattr(HostedLog, "is_sole", property(shown))
        patched.setattr(PartitionLog, "append_section", append_section)

    def step(self, chance: Random) -> list[Any]:
        kind = chance.choice(["burst"] * 6 + ["single", "time", "fault", "checkpoint", "expire"])
        level, seed = chance.choice(list(Level)), chance.randrange(1 << 30)
        return [_play(each, kind, level, Random(seed)) for each in self.both]


def _play(one: Only, kind: str, level: Level, chance: Random) -> Any:
    if kind == "time":
        one.runtime.advance(chance.choice([1, 1_000, 60_000]))
        return None
    if kind == "fault":
        one.peer.disk.fail_at = {len(one.peer.disk.operations) + chance.randrange(1, 4): errno.ENOSPC}
    if kind == "checkpoint":
        job: Job[Any] = one.runtime.spawn(one.slots.checkpoint(0))
    elif kind == "expire":
        job = one.runtime.spawn(one.slots.expire())
    elif kind == "single":
        job = one.runtime.spawn(one.slots.execute(_operation(chance), level))
    else:
        reads = chance.random() < 0.3
        operations = [_operation(chance, reads=reads) for _ in range(chance.randrange(1, 30))]
        job = one.burst(*operations, level=level)
    one.carry()
    one.peer.disk.fail_at = {}
    try:
        found = job.result()
    except BrokerError as error:
        return error.reason
    return (
        [each.reason if isinstance(each, BrokerError) else each for each in found] if isinstance(found, list) else found
    )


def _operation(chance: Random, *, reads: bool = False) -> o.Operation[Any]:
    key = chance.choice(KEYS)
    if reads:
        return o.Get(key)
    kind = chance.choice([o.Set, o.Set, o.Increment, o.Delete])
    if kind is o.Set:
        return o.Set(key, chance.randbytes(chance.choice([0, 10, 500])), chance.choice([0, 0, 0, 30]))
    return o.Increment(key) if kind is o.Increment else o.Delete(key)


@pytest.mark.parametrize("flush", FLUSHES)
def test_an_only_replica_writes_as_a_step_writes(monkeypatch: pytest.MonkeyPatch, flush: Flush) -> None:
    lone = reads = 0
    for seed in range(SEEDS):
        with monkeypatch.context() as patched:
            chance, twins = Random(seed), Twins(patched, flush)
            for number in range(STEPS):
                first, second = twins.step(chance)
                assert first == second, f"seed {seed}, step {number}"
                one, other = (each.seen() for each in twins.both)
                assert one == other, f"seed {seed}, step {number}"
            lone, reads = lone + twins.lone, reads + twins.both[0].slots.reads - twins.both[1].slots.reads
    assert lone, "the short way was taken"
    assert reads, "reads took it, too: the other replica's, which take a step, go by themselves but at ONE"


def test_a_change_is_answered_when_it_is_on_the_disk() -> None:
    one = Only(Flush.ACK)
    with one.runtime.holding_syncs():
        change, read = one.burst(o.Set(b"a", b"1"), o.Set(b"b", b"2")), one.burst(o.Get(b"a"))
        single = one.runtime.spawn(one.slots.execute(o.Increment(b"c"), Level.QUORUM))
        old = one.burst(o.Get(b"a"), level=Level.ONE)
        one.runtime.settle()
        assert old.result() == [b"1"]
        one.runtime.advance(60_000)
        assert not change.is_done
        assert not read.is_done, "it may be taken back yet"
        assert not single.is_done
        assert one.partition.high_watermark == 0
    assert (change.result(), read.result(), single.result()) == ([True, True], [b"1"], 1)
    assert one.partition.high_watermark == one.partition.log.durable_offset == 3


@pytest.mark.parametrize("flush", FLUSHES)
def test_a_burst_whose_leader_gets_followers_waits_for_them(flush: Flush) -> None:
    one = Only(flush)
    with one.runtime.holding_syncs():
        change = one.burst(o.Set(b"a", b"1"))
        assert change.is_done is (flush is Flush.INTERVAL)
        one.peers.assign(one.peers.assignment.with_changes(replicas=(1, 2, 3), in_sync=(1, 2, 3)))
    one.peers.away = {2, 3}
    one.peers.carry()
    assert change.is_done is (flush is Flush.INTERVAL)
    one.peers.away = set()
    one.peers.tick()
    assert change.result() == [True]
    assert one.peers[2].partition.log.end_offset == 1


def test_a_burst_whose_leader_is_deposed_is_in_doubt() -> None:
    one = Only(Flush.ACK)
    with one.runtime.holding_syncs():
        change, read = one.burst(o.Set(b"a", b"1")), one.burst(o.Get(b"a"))
        one.peers.assign(one.peers.assignment.with_changes(replicas=(1, 2), in_sync=(1, 2)))
        one.peers.elect(2)
    one.carry()
    (refused,) = change.result()
    assert refused.reason is Reason.TIMED_OUT, "it may have been written"
    (refused,) = read.result()
    assert refused.reason is Reason.NOT_LEADER


def test_what_the_next_leader_commits_at_the_same_offset_acknowledges_nothing() -> None:
    one = Only(Flush.ACK)
    with one.runtime.holding_syncs(one.slots._written):
        change = one.burst(o.Set(b"a", b"1"))
        one.peers.away = {1}
        one.peers.assign(one.peers.assignment.with_changes(replicas=(1, 2), in_sync=(1, 2)))
        one.peers.elect(2)
        one.peers.assign(one.peers.assignment.with_changes(in_sync=(2,)))
        other = one.runtime.spawn(one.slots_of(2).execute(o.Set(b"b", b"2"), Level.ONE))
        one.peers.away = set()
        one.peers.assign()
        one.peers.tick()
        assert other.result() is True
        assert (one.partition.end_offset, one.partition.high_watermark) == (1, 1)
        assert not change.is_done
    one.carry()
    (refused,) = change.result()
    assert refused.reason is Reason.TIMED_OUT


def test_a_single_change_of_a_deposed_leader_is_in_doubt() -> None:
    one = Only(Flush.ACK)
    with one.runtime.holding_syncs():
        job: Job[Any] = one.runtime.spawn(one.slots.execute(o.Set(b"a", b"1"), Level.QUORUM))
        one.peers.assign(one.peers.assignment.with_changes(replicas=(1, 2), in_sync=(1, 2)))
        one.peers.elect(2)
    one.carry()
    assert reason_of(job.result) is Reason.TIMED_OUT


def test_a_disk_that_fails_answers_nobody_well() -> None:
    one = Only(Flush.ACK)
    with one.runtime.holding_syncs():
        change = one.burst(o.Set(b"a", b"1"))
        one.runtime.settle()
        one.peer.disk.fail_at = {len(one.peer.disk.operations) + 1: errno.EIO}
    one.carry()
    (refused,) = change.result()
    assert refused.reason is Reason.TIMED_OUT
    assert one.partition.high_watermark == 0


class _Log:
    """As much of a `PartitionLog` as is synced."""

    settings = TopicSettings()

    def __init__(self, *, fails: bool = False, meanwhile: Any = None) -> None:
        self.fails, self.meanwhile, self.syncs = fails, meanwhile, 0

    def sync(self) -> None:
        self.syncs += 1
        if self.meanwhile is not None:
            self.meanwhile()
        if self.fails:
            raise StorageFault("no")


def test_a_log_that_fails_does_not_hold_up_the_others() -> None:
    written, logs = WrittenLogs(SETTINGS), [_Log(fails=True), _Log(), _Log(fails=True), _Log()]
    for each in logs:
        written.add(each, 10)  # type: ignore[arg-type]
    burst = written.end_burst()
    assert (written.unsynced_bytes, written.sync(), written.durable_offset) == (40 + SEVERAL_BYTES, burst, burst)
    assert ([each.syncs for each in logs], written.unsynced_bytes) == ([1] * 4, 0)
    assert written.sync(burst) == burst
    assert [each.syncs for each in logs] == [1] * 4, "a sync serves all that came before it"


def test_what_is_written_during_a_sync_is_not_durable_by_it() -> None:
    written, late = WrittenLogs(SETTINGS), list[int]()

    def write() -> None:
        written.add(log, 5)  # type: ignore[arg-type]
        late.append(written.end_burst())
        log.meanwhile = None

    log = _Log(meanwhile=write)
    written.add(log, 10)  # type: ignore[arg-type]
    first = written.end_burst()
    assert written.sync() == first
    assert written.durable_offset < late[0]
    assert written.unsynced_bytes == 5
    before = log.syncs
    assert written.sync() == late[0]
    assert log.syncs > 1
    assert before >= 1


def test_a_burst_of_reads_waits_for_the_logs_that_are_not_committed_and_for_no_other() -> None:
    one = Only(Flush.ACK)
    beside = Peers(TopicSettings(flush=Flush.ACK), min_in_sync=1, first=(1,), beside=one.peers)
    other = beside[1].partition
    other.number = 1
    tails = TailFolder(one.peer.disk, "/tails")
    one.slots = SlotService(one.runtime, b"node %011d" % 1, SETTINGS, tails, one.peer.spawn, logs=lambda: 2)
    for partition in (one.partition, other):
        one.slots.attach(partition)
    first, second = (next(key for key in KEYS if one.slots.log_of(key) == log) for log in (0, 1))
    writing = one.burst(o.Set(first, b"1"), o.Set(second, b"2"))
    one.runtime.settle()
    assert writing.result() == [True, True]
    at_once = one.slots.reads
    assert one.burst(o.Get(second), o.Get(first), o.Get(second)).result() == [b"2", b"1", b"2"]
    assert one.slots.reads == at_once + 3
    with one.runtime.holding_syncs():
        one.burst(o.Set(first, b"3"))
        both, alone = one.burst(o.Get(first), o.Get(second)), one.burst(o.Get(second))
        assert (both.is_done, alone.result()) == (False, [b"2"])
    one.runtime.settle()
    assert both.result() == [b"3", b"2"]
    other.held_writes.hold()
    both = one.burst(o.Get(first), o.Get(second))
    assert not both.is_done
    assert one.burst(o.Get(first)).result() == [b"3"]
    other.held_writes.release()
    one.runtime.settle()
    assert both.result() == [b"3", b"2"]
    one.slots.local_logs()[0].fault = StorageFault("it cannot be read")
    refused, found = one.burst(o.Get(first), o.Get(second)).result()
    assert (refused.reason, found) == (Reason.UNAVAILABLE, b"2")
