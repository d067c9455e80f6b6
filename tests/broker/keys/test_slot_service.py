"""Slots over real partitions of three nodes in one process: what clients are told at each level, through changes of leaders."""

import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.model.manual_world import Job
from tests.partition.peers import TOPIC, Peers
from tests.refusals import reason_of, refused_with

from braidlog.broker.keys.slot_service import ANSWER_SECONDS_MAX, RECORDS_PER_TURN, SlotService
from braidlog.broker.keys.slot_stats import memory_of
from braidlog.codec.batch.header import iter_batches
from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import Stamp
from braidlog.kv.engine.key_scan import Scan
from braidlog.kv.engine.operations import Level
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.replicated.log_records import Origin, SlotRecord
from braidlog.kv.replicated.salvage import Verdict
from braidlog.kv.replicated.salvage_files import kept_tails
from braidlog.kv.replicated.slots import KEY_LOGS, log_of, slot_of
from braidlog.kv.wal.wal_entries import Op
from braidlog.model.errors import BrokerError, NotLeaderError, Reason
from braidlog.partition.key_log import TailFolder, keep_uncommitted
from braidlog.replication.replica_state import Leader

KEY = next(b"key-%d" % at for at in range(10_000) if log_of(slot_of(b"key-%d" % at), KEY_LOGS) == 0)
OTHER_KEY = next(key for at in range(10_000) if log_of(slot_of(key := b"other-%d" % at), KEY_LOGS) == 0)
SETTINGS = KeyValueSettings(memory_bytes_max=0, feed=False)
EVERY_LEVEL = tuple(Level)


class KeyPeers(Peers):
    """Each has slot 0."""

    def __init__(self, *, min_in_sync: int = 2) -> None:
        super().__init__(min_in_sync=min_in_sync)
        self.slots: dict[int, SlotService] = {}
        for number in (1, 2, 3):
            peer = self[number]
            tails = TailFolder(peer.disk, "/tails")
            self.slots[number] = SlotService(self.runtime, b"node %011d" % number, SETTINGS, tails, peer.spawn)
            self.slots[number].attach(peer.partition)

    def ask(self, node: int, operation: o.Operation[Any], level: Level = Level.QUORUM) -> Job[object]:
        job = self.runtime.spawn(self.slots[node].execute(operation, level))
        self.carry()
        return job

    def time_out(self) -> None:
        self.runtime.advance(int(ANSWER_SECONDS_MAX * 1000) + 1)
        self.carry()


def columns_of(*operations: o.Operation[Any]) -> o.Columns:
    kinds = {o.Get: o.Kind.GET, o.Set: o.Kind.SET, o.Delete: o.Kind.DELETE, o.Increment: o.Kind.INCREMENT}
    return o.Columns(
        mutates=type(operations[0]) is not o.Get,
        kinds=bytes(kinds[type(each)] for each in operations),
        keys=[each.key for each in operations],
        values=[each.value if isinstance(each, o.Set) else b"" for each in operations],
        ttls=[each.ttl_seconds if isinstance(each, o.Set) else 0 for each in operations],
    )


def burst(peers: KeyPeers, *operations: o.Operation[Any], level: Level = Level.QUORUM) -> Job[list[Any]]:
    async def found() -> list[Any]:
        return (await peers.slots[1].execute_columns(columns_of(*operations), level)).found

    job = peers.runtime.spawn(found())
    peers.carry()
    return job


@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_what_is_written_is_read_at_every_level(level: Level) -> None:
    peers = KeyPeers()
    assert peers.ask(1, o.Set(KEY, b"1"), level).result() is True
    assert peers.ask(1, o.Get(KEY), level).result() == b"1"
    peers.tick()
    assert [peers.ask(number, o.Get(KEY), Level.ONE).result() for number in (1, 2, 3)] == [b"1"] * 3


def test_other_nodes_say_that_they_do_not_lead() -> None:
    peers = KeyPeers()
    for operation, level in ((o.Get(KEY), Level.QUORUM), (o.Set(KEY, b"1"), Level.ONE)):
        job = peers.ask(2, operation, level)
        with pytest.raises(NotLeaderError):
            job.result()


def test_a_leader_that_nobody_follows_answers_one_and_no_more() -> None:
    peers = KeyPeers()
    peers.away = {2, 3}
    assert peers.ask(1, o.Set(KEY, b"1"), Level.ONE).result() is True
    jobs = [
        peers.ask(1, operation) for operation in (o.Get(KEY), o.Set(KEY, b"2"), o.Set(KEY, b"3", 0, o.Only.IF_ABSENT))
    ]
    assert [job.is_done for job in jobs] == [False] * 3
    assert peers.ask(1, o.Get(KEY), Level.ONE).result() == b"2"
    peers.time_out()
    assert [reason_of(job.result) for job in jobs] == [Reason.TIMED_OUT] * 3
    role = peers[1].partition.replicated.replica.role
    assert isinstance(role, Leader)
    assert role.reads == ()
    assert role.waiting == (), "the one who waited for what was appended has withdrawn"


def test_all_waits_for_every_replica_and_what_was_written_stays() -> None:
    peers = KeyPeers()
    peers.assign(peers.assignment.with_changes(in_sync=(1, 2)))
    peers.away = {3}
    quorum, every = peers.ask(1, o.Set(KEY, b"1")), peers.ask(1, o.Set(KEY, b"2"), Level.ALL)
    assert (quorum.is_done, every.is_done) == (True, False)
    peers.time_out()
    assert reason_of(every.result) is Reason.TIMED_OUT
    assert peers.ask(1, o.Get(KEY)).result() == b"2"


def test_too_small_a_set_is_refused_before_anything_is_written() -> None:
    peers = KeyPeers()
    peers.assign(peers.assignment.with_changes(in_sync=(1,), eligible=(2, 3)))
    assert reason_of(peers.ask(1, o.Set(KEY, b"1")).result) is Reason.NOT_ENOUGH_REPLICAS
    assert peers[1].partition.end_offset == 0
    assert peers.ask(1, o.Exists(KEY), Level.ONE).result() is False


def test_what_a_deposed_leader_acknowledged_at_one_is_kept_and_taken_by_the_next() -> None:
    peers = KeyPeers()
    peers.ask(1, o.Set(KEY, b"5"))
    peers.away = {1}
    peers.elect(2)
    peers.ask(1, o.Increment(KEY, 1), Level.ONE)  # it does not know yet
    lost = peers.ask(1, o.Increment(KEY, 10))
    assert peers.ask(2, o.Increment(KEY, 100)).is_done is False
    peers.assign(peers.assignment.with_changes(in_sync=(2, 3)))
    peers.tick()
    assert peers.ask(2, o.Get(KEY)).result() == b"105"
    peers.away = set()
    peers.assign()
    peers.tick()
    assert reason_of(lost.result) is Reason.TIMED_OUT, "it may be committed, for all that this node knows"
    (tail,) = kept_tails(peers[1].disk, "/tails")
    assert [record.argument[-1] for record in tail.records] == [1], "and not what nobody was told of"
    for verdict in (Verdict.TAKEN, Verdict.KNOWN):
        job = peers.runtime.spawn(peers.slots[2].replicate(tail.log, tail.records[0]))
        peers.carry()
        assert job.result() is verdict
    peers.tick()
    assert peers.ask(2, o.Get(KEY)).result() == b"106"
    assert [peers.ask(number, o.Get(KEY), Level.ONE).result() for number in (1, 3)] == [b"106"] * 2


def test_a_verdict_is_told_when_it_is_committed() -> None:
    peers = KeyPeers()
    peers.away = {2, 3}
    record = SlotRecord(
        Op.SET, KEY, b"1", 0, Level.ONE, Stamp(peers.runtime.now_ms(), 0, b"a third node ..."), Origin(7, 3)
    )
    job = peers.runtime.spawn(peers.slots[1].replicate(0, record))
    peers.carry()
    assert not job.is_done
    peers.away = set()
    peers.tick()
    assert job.result() is Verdict.TAKEN


def test_a_tail_is_sent_until_it_is_committed_and_goes_then() -> None:
    peers = KeyPeers()
    peers.away = {1}
    peers.elect(2)
    for amount in (1, 2, 3):
        peers.ask(1, o.Increment(KEY, amount), Level.ONE)
    peers.assign(peers.assignment.with_changes(in_sync=(2, 3)))
    peers.away = set()
    peers.assign()
    peers.tick()

    def sent(send: Callable[[int, SlotRecord], Awaitable[Verdict]]) -> list[int]:
        job = peers.runtime.spawn(peers.slots[1].send_tails(send))
        for _ in range(4):
            peers.carry()
        return [tail.log for tail in job.result()]

    async def unreachable(number: int, record: SlotRecord) -> Verdict:
        raise BrokerError(Reason.UNAVAILABLE, f"slot {number} is led by nobody who could take {record.op}")

    async def too_old(number: int, record: SlotRecord) -> Verdict:
        return await peers.slots[2].replicate(number, record._replace(origin=Origin(7, -1)))

    assert sent(unreachable) == []
    assert sent(too_old) == [0], "a person decides"
    assert peers.ask(2, o.Exists(KEY)).result() is False
    assert sent(peers.slots[2].replicate) == []
    assert peers.ask(2, o.Get(KEY)).result() == b"6"
    assert kept_tails(peers[1].disk, "/tails") == []


def test_what_may_not_be_committed_is_kept_before_a_log_is_removed() -> None:
    """On a node that holds the slot no more; also if it was down when the slot moved away."""
    peers = KeyPeers()
    peers.ask(1, o.Increment(KEY, 1), Level.ONE)
    peers.tick()
    peers.away = {2, 3}
    peers.ask(1, o.Increment(KEY, 2), Level.ONE)
    peers.slots[1].local_logs()[0].close()
    peers[1].partition.replicated.log.close()
    keep_uncommitted(peers[1].folder.open_partition(TOPIC, 0), 0, TailFolder(peers[1].disk, "/tails"))
    tails = kept_tails(peers[1].disk, "/tails")
    assert [[record.argument[-1] for record in tail.records] for tail in tails] == [[2], [2]]


def test_a_long_log_is_applied_in_turns() -> None:
    peers = KeyPeers()
    for _ in range(2 * RECORDS_PER_TURN):
        peers.ask(1, o.Increment(KEY), Level.ONE)
    peers.tick()
    late = SlotService(
        peers.runtime, b"another node ...", SETTINGS, TailFolder(peers[3].disk, "/tails"), peers[3].spawn
    )
    late.attach(peers[3].partition)
    assert late.local_logs()[0].slot.applied == RECORDS_PER_TURN
    with pytest.raises(NotLeaderError):
        peers.runtime.run(late.execute(o.Get(KEY), Level.ONE))
    peers.runtime.advance(0)
    assert peers.runtime.run(late.execute(o.Get(KEY), Level.ONE)) == b"%d" % (2 * RECORDS_PER_TURN)
    assert late.local_logs()[0].slot.applied == 2 * RECORDS_PER_TURN


def test_keys_go_at_their_time_by_a_record_of_the_leader() -> None:
    peers = KeyPeers()
    peers.ask(1, o.Set(KEY, b"1", 1))
    peers.runtime.advance(1_001)
    jobs = [peers.runtime.spawn(peers.slots[number].expire()) for number in (2, 1)]
    peers.runtime.advance(0)
    assert [job.result() for job in jobs] == [0, 1]
    for _ in range(2):  # the record, then that it is committed
        peers.tick()
    assert peers.ask(3, o.Exists(KEY), Level.ONE).result() is False


def checkpoint(peers: KeyPeers, node: int = 1) -> Job[bool]:
    job = peers.runtime.spawn(peers.slots[node].checkpoint(0))
    for _ in range(8):
        peers.carry()
        peers.tick()
    return job


def test_a_checkpoint_lets_the_log_before_it_go_on_all_replicas() -> None:
    peers = KeyPeers()
    for _ in range(5):
        peers.ask(1, o.Increment(KEY))
    assert checkpoint(peers).result()
    assert [peers[number].partition.start_offset for number in (1, 2, 3)] == [5] * 3
    assert peers.ask(1, o.Increment(KEY)).result() == 6
    peers.tick()
    for number in (1, 2, 3):
        anew = SlotService(
            peers.runtime, b"another node ...", SETTINGS, TailFolder(peers[1].disk, "/tails"), peers[1].spawn
        )
        anew.attach(peers[number].partition)
        assert anew.local_logs()[0].slot.keyspace.data == {KEY: 6}
        assert anew.local_logs()[0].is_whole


def test_a_replica_that_was_away_too_long_begins_with_the_checkpoint() -> None:
    peers = KeyPeers()
    peers.ask(1, o.Increment(KEY))
    peers.tick()
    peers.away = {3}
    peers.assign(peers.assignment.with_changes(in_sync=(1, 2)))
    for _ in range(4):
        peers.ask(1, o.Increment(KEY))
    assert checkpoint(peers).result()
    peers.away = set()
    peers.assign()
    for _ in range(4):
        peers.tick()
    assert peers[3].partition.start_offset == 5
    assert peers.slots[3].local_logs()[0].made_anew == 1
    assert peers.ask(3, o.Get(KEY), Level.ONE).result() == b"5"


def test_what_ends_where_the_next_leaders_log_begins_is_kept_before_it_goes() -> None:
    """Its leader cannot tell any more whether they are the same records, and lets the replica go on from there."""
    peers = KeyPeers()
    peers.ask(1, o.Increment(KEY))
    peers.tick()
    peers.away = {1}
    peers.elect(2)
    for _ in range(3):
        peers.ask(1, o.Increment(KEY, 10), Level.ONE)  # at 1, 2 and 3: it does not know yet
    peers.assign(peers.assignment.with_changes(in_sync=(2, 3)))
    for _ in range(3):
        peers.ask(2, o.Increment(KEY, 100))
    assert checkpoint(peers, 2).result()
    ended, begins = peers[1].partition.end_offset, peers[2].partition.start_offset
    assert ended == begins
    peers.away = set()
    peers.assign()
    for _ in range(4):
        peers.tick()
    assert peers[1].partition.start_offset == begins
    (tail,) = kept_tails(peers[1].disk, "/tails")
    assert [record.origin for record in tail.records] == [Origin(1, 1), Origin(1, 2), Origin(1, 3)]
    for record in tail.records:
        job = peers.runtime.spawn(peers.slots[2].replicate(tail.log, record))
        peers.carry()
        assert job.result() is Verdict.TAKEN
    assert peers.ask(2, o.Get(KEY)).result() == b"331"


def test_a_checkpoint_ends_with_its_leaders_epoch() -> None:
    """What another leader writes meanwhile is in no checkpoint of this one."""
    peers = KeyPeers()
    peers.ask(1, o.Increment(KEY))
    peers.away = {2, 3}
    job = peers.runtime.spawn(peers.slots[1].checkpoint(0))
    peers.carry()
    assert not job.is_done
    peers.away = {1}
    peers.elect(2)
    peers.away = set()
    peers.elect(1)
    peers.tick()
    assert job.result() is False
    assert peers.slots[1].local_logs()[0].slot.checkpoint is None
    assert peers[1].partition.start_offset == 0


def test_a_checkpoint_is_written_when_the_log_has_outgrown_the_keys() -> None:
    peers = KeyPeers()
    peers.slots[1].local_logs()[0]._settings = KeyValueSettings(
        memory_bytes_max=0, feed=False, snapshot_wal_bytes=8 * 1024
    )
    written = []
    for _ in range(12):
        peers.ask(1, o.Set(KEY, b"." * 200))
        job = peers.runtime.spawn(peers.slots[1].write_checkpoints())
        for _ in range(8):
            peers.carry()
            peers.tick()
        written.append(job.result())
    assert sum(written) == 3
    assert written[0] == 0
    assert peers[3].partition.start_offset > 0


def test_what_is_asked_while_a_slot_is_handed_over_waits_for_the_next_leader() -> None:
    peers = KeyPeers()
    peers[1].partition.held_writes.hold()
    one, many = (
        peers.ask(1, o.Increment(KEY)),
        peers.runtime.spawn(peers.slots[1].execute_columns(columns_of(o.Get(KEY)), Level.QUORUM)),
    )
    assert (one.is_done, many.is_done) == (False, False)
    assert peers[1].partition.end_offset == 0
    peers.elect(2)
    with pytest.raises(NotLeaderError):
        one.result()
    (refused,), rows = many.result()
    assert isinstance(refused, NotLeaderError)
    assert rows == [0]


def test_several_operations_are_waited_for_together_and_each_has_its_answer() -> None:
    peers = KeyPeers()
    elsewhere = next(key for at in range(1_000) if log_of(slot_of(key := b"%d" % at), KEY_LOGS) == 1)
    peers.ask(1, o.Push(OTHER_KEY, o.End.LEFT, (b"x",)))
    columns = columns_of(o.Increment(KEY), o.Increment(OTHER_KEY), o.Set(elsewhere, b"1"), o.Increment(KEY))
    job = peers.runtime.spawn(peers.slots[1].execute_columns(columns, Level.QUORUM))
    assert not job.is_done
    peers.carry()
    (first, wrong, moved, second), refused = job.result()
    assert (first, second, refused) == (1, 2, [1, 2])
    assert wrong.reason is Reason.WRONG_TYPE
    assert isinstance(moved, NotLeaderError)
    assert moved.number == 1
    assert burst(peers, o.Get(KEY), o.Get(b"none")).result()[0] == b"2"


@pytest.mark.parametrize(("level", "reads"), [(Level.ONE, 0), (Level.QUORUM, 0), (Level.ALL, 1)])
def test_a_burst_of_changes_waits_for_its_last_write_and_at_all_for_what_found_nothing(
    level: Level, reads: int
) -> None:
    """At ALL a read tells what every replica knows to be committed, and a write does not wait for that."""
    peers = KeyPeers()
    peers.away = {2, 3}
    job = burst(peers, o.Increment(KEY), o.Delete(OTHER_KEY), level=level)
    role = peers[1].partition.replicated.replica.role
    assert isinstance(role, Leader)
    assert (job.is_done, len(role.reads)) == (level is Level.ONE, reads)
    peers.away = set()
    for _ in range(3):
        peers.tick()
    assert job.result() == [1, None]


def test_a_follower_reads_columns_at_level_one() -> None:
    peers = KeyPeers()
    burst(peers, o.Set(KEY, b"1", 1), o.Set(OTHER_KEY, b"2"))
    peers.tick()
    for level, wanted in ((Level.ONE, [b"1", b"2"]), (Level.QUORUM, [NotLeaderError] * 2)):
        job = peers.runtime.spawn(peers.slots[2].execute_columns(columns_of(o.Get(KEY), o.Get(OTHER_KEY)), level))
        found = job.result().found
        assert [type(each) if isinstance(each, BrokerError) else each for each in found] == wanted
    peers.runtime.advance(2_000)
    job = peers.runtime.spawn(peers.slots[2].execute_columns(columns_of(o.Get(KEY)), Level.ONE))
    assert job.result().found == [b"1"], "its leader has not removed it"
    assert burst(peers, o.Get(KEY), o.Get(OTHER_KEY)).result() == [None, b"2"], "and does so before it reads"
    assert peers.slots[1].local_logs()[0].slot.keyspace.deadlines == {}


def test_names_are_told_by_the_leader_when_it_is_known_to_lead() -> None:
    peers = KeyPeers()
    peers.ask(1, o.Set(KEY, b"1"))
    asked = Scan(0, 0, b"", b"key-", 9)
    elsewhere = peers.runtime.spawn(peers.slots[2].scan(asked, Level.QUORUM))
    with pytest.raises(NotLeaderError):
        elsewhere.result()
    told = peers.runtime.spawn(peers.slots[1].scan(asked, Level.QUORUM))
    assert not told.is_done
    peers.carry()
    assert told.result() == ([KEY], 0, KEY, KEY_LOGS)
    peers.away = {2, 3}
    late = peers.runtime.spawn(peers.slots[1].scan(asked, Level.QUORUM))
    at_once = peers.runtime.spawn(peers.slots[1].scan(asked, Level.ONE))
    assert at_once.result().names == [KEY]
    peers.time_out()
    with refused_with(Reason.TIMED_OUT):
        late.result()


def test_the_limit_of_memory_is_of_all_slots_of_a_node() -> None:
    peers = KeyPeers()
    slots = peers.slots[1]
    slots._settings = KeyValueSettings(memory_bytes_max=10_000, feed=False)
    assert peers.ask(1, o.Set(KEY, b"." * 5_000)).result() is True
    slots._used_bytes += 5_000  # of another slot
    assert reason_of(peers.ask(1, o.Set(KEY, b"." * 6_000)).result) is Reason.OUT_OF_MEMORY
    job = peers.runtime.spawn(slots.expire())  # counts anew
    peers.tick()
    assert job.result() == 0
    assert peers.ask(1, o.Set(KEY, b"." * 6_000)).result() is True


def test_the_peak_of_memory_is_not_below_its_use_on_any_replica() -> None:
    """A follower applies what its leader wrote, and no request to it grows its slots."""
    peers = KeyPeers()
    peers.ask(1, o.Set(KEY, b"x" * 1000)).result()
    peers.tick()
    for slots in peers.slots.values():
        memory = memory_of(slots, SETTINGS, 0)
        assert 1000 < memory.used_bytes <= memory.peak_bytes
    peers.ask(1, o.Delete(KEY)).result()
    peers.tick()
    for slots in peers.slots.values():
        memory = memory_of(slots, SETTINGS, 0)
        assert memory.used_bytes < 1000 < memory.peak_bytes


def test_columns_are_answered_as_operations_are() -> None:
    peers = KeyPeers()
    elsewhere = next(key for at in range(1_000) if log_of(slot_of(key := b"%d" % at), KEY_LOGS) == 1)
    kinds = bytes([o.Kind.SET, o.Kind.INCREMENT, o.Kind.DELETE, o.Kind.DELETE, o.Kind.SET])
    columns = o.Columns(True, kinds, [KEY, KEY, KEY, KEY, elsewhere], [b"6", b"", b"", b"", b"1"])
    job = peers.runtime.spawn(peers.slots[1].execute_columns(columns, Level.QUORUM))
    peers.carry()
    found, refused = job.result()
    assert found[:4] == [True, 7, True, None]
    assert (refused, type(found[4])) == ([4], NotLeaderError)


def test_a_log_that_cannot_be_read_is_offline_on_one_node() -> None:
    peers = KeyPeers()
    peers.ask(1, o.Set(KEY, b"1"))
    peers.ask(1, o.Set(KEY, b"2"))
    job = peers.runtime.spawn(peers[1].partition.delete_below(1, peers.runtime))
    peers.tick()
    assert job.result() == 1, "and no checkpoint begins there"
    broken = SlotService(
        peers.runtime, b"another node ...", SETTINGS, TailFolder(peers[1].disk, "/tails"), peers[1].spawn
    )
    broken.attach(peers[1].partition)
    assert peers.runtime.run(broken.checkpoint(0)) is False
    for operation in (o.Get(KEY), o.Set(KEY, b"3")):
        with pytest.raises(BrokerError, match=r"log 0 of keys is offline on this node: .*no checkpoint"):
            peers.runtime.run(broken.execute(operation, Level.ONE))
    peers[1].partition.followed = None
    peers.tick()
    assert peers.ask(2, o.Get(KEY), Level.ONE).result() == b"2"


def test_of_several_operations_that_are_not_committed_none_is_answered() -> None:
    peers = KeyPeers()
    peers.ask(1, o.Set(KEY, b"0"))
    peers.away = {2, 3}
    jobs = [burst(peers, o.Get(KEY), o.Get(KEY)), burst(peers, o.Increment(KEY), o.Delete(OTHER_KEY))]
    assert [job.is_done for job in jobs] == [False] * 2
    peers.time_out()
    assert [[each.reason for each in job.result()] for job in jobs] == [[Reason.TIMED_OUT] * 2] * 2
    role = peers[1].partition.replicated.replica.role
    assert isinstance(role, Leader)
    assert role.reads == ()


def batches(peers: KeyPeers, number: int = 1) -> list[int]:
    """How many records each batch of the slot's log has."""
    log = peers[number].partition.replicated.log
    return [header.record_count for _, header in iter_batches(log.read(0, 1 << 20))]


@pytest.mark.parametrize("level", EVERY_LEVEL)
def test_what_comes_together_is_one_batch_of_its_log(level: Level) -> None:
    peers = KeyPeers()
    job = burst(
        peers,
        *(
            o.Set(KEY, b"5"),
            o.Increment(KEY),
            o.Delete(OTHER_KEY),
            o.Delete(KEY),
            o.Set(KEY, b"7", 60),
            o.Increment(KEY),
        ),
        level=level,
    )
    assert job.result() == [True, 6, None, True, True, 8]
    peers.tick()
    assert [batches(peers, number) for number in (1, 2, 3)] == [[5]] * 3
    for number in (1, 2, 3):
        keyspace = peers.slots[number].local_logs()[0].slot.keyspace
        assert (keyspace.data, [*keyspace.deadlines]) == ({KEY: 8}, [KEY])
    stamps = {tuple(peers.slots[number].local_logs()[0].slot.stamps.items()) for number in (1, 2, 3)}
    assert len(stamps) == 1


def test_a_batch_of_large_values_is_divided() -> None:
    peers = KeyPeers()
    job = burst(peers, *(o.Set(KEY, b"." * 60_000) for _ in range(12)))
    assert job.result() == [True] * 12
    assert batches(peers) == [5, 5, 2]


def test_what_too_few_replicas_would_keep_is_refused_one_by_one_and_reads_are_not() -> None:
    peers = KeyPeers()
    peers.ask(1, o.Set(KEY, b"1"))
    peers.assign(peers.assignment.with_changes(in_sync=(1,), eligible=(2, 3)))
    job, read = burst(peers, o.Set(KEY, b"2"), o.Increment(KEY)), burst(peers, o.Get(KEY))
    assert [each.reason for each in job.result()] == [Reason.NOT_ENOUGH_REPLICAS] * 2
    peers.time_out()
    assert [each.reason for each in read.result()] == [Reason.TIMED_OUT]
    assert peers.ask(1, o.Get(KEY), Level.ONE).result() == b"1"
    assert batches(peers) == [1]


def test_a_burst_that_the_log_does_not_take_leaves_nothing_behind() -> None:
    """Its state has what the log does not have: it is made anew from that."""
    peers = KeyPeers()
    peers.ask(1, o.Set(KEY, b"1"))
    disk = peers[1].disk
    disk.fail_at = {len(disk.operations) + 1: errno.ENOSPC}
    job = burst(peers, o.Set(KEY, b"2"), o.Delete(OTHER_KEY), o.Set(KEY, b"3", 60))
    assert [each.reason for each in job.result()] == [Reason.TIMED_OUT] * 3
    assert peers.ask(1, o.Get(KEY)).result() == b"1"
    assert peers.ask(1, o.Set(KEY, b"4")).result() is True
    peers.tick()
    assert [peers.ask(number, o.Get(KEY), Level.ONE).result() for number in (1, 2, 3)] == [b"4"] * 3
    assert batches(peers) == [1, 1]


@pytest.mark.parametrize("ttl_seconds", [0, 60])
def test_a_burst_writes_keys_into_a_checkpoint_before_it_changes_them(ttl_seconds: int) -> None:
    peers = KeyPeers()
    burst(peers, o.Set(KEY, b"1"), o.Set(OTHER_KEY, b"1", ttl_seconds))
    slot = peers.slots[1].local_logs()[0]
    writing = slot.begin_checkpoint()
    assert burst(peers, o.Increment(KEY), o.Increment(KEY), o.Increment(OTHER_KEY)).result() == [2, 3, 2]
    assert batches(peers) == [2, 1, 5], "the keys as they were stand before their first change"
    assert not writing.write_some()
    end = writing.end()
    peers.tick()
    job = peers.runtime.spawn(peers[1].partition.delete_below(writing.begin, peers.runtime))
    for _ in range(2):
        peers.tick()
    assert job.result() == writing.begin
    anew = SlotService(
        peers.runtime, b"another node ...", SETTINGS, TailFolder(peers[2].disk, "/tails"), peers[2].spawn
    )
    anew.attach(peers[2].partition)
    for _ in range(4):
        peers.runtime.advance(0)
    made = anew.local_logs()[0].slot
    assert (made.applied, made.is_complete) == (end, True)
    assert made.keyspace.data == slot.slot.keyspace.data == {KEY: 3, OTHER_KEY: 2}
    assert (made.stamps, made.keyspace.deadlines) == (slot.slot.stamps, slot.slot.keyspace.deadlines)
