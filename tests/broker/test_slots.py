"""Slots over real partitions of three nodes in one process: what clients are told at each level, through changes of leaders."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.model.manual_world import Job
from tests.partition.peers import TOPIC, Peers

from braidlog.broker.slots import ANSWER_SECONDS_MAX, RECORDS_PER_TURN, Slots
from braidlog.kv import operations as o
from braidlog.kv.entries import Op
from braidlog.kv.hlc import Stamp
from braidlog.kv.levels import Level
from braidlog.kv.salvage import Verdict
from braidlog.kv.settings import KeyValueSettings
from braidlog.kv.slot_records import Origin, SlotRecord
from braidlog.kv.slots import slot_of
from braidlog.kv.tail_files import kept_tails
from braidlog.model.errors import BrokerError, NotLeaderError, Reason
from braidlog.partition.replicated_slot import TailFolder, keep_uncommitted
from braidlog.replication.replica_state import Leader

KEY = next(b"key-%d" % at for at in range(10_000) if slot_of(b"key-%d" % at) == 0)
SETTINGS = KeyValueSettings(memory_bytes_max=0, feed=False)
EVERY_LEVEL = tuple(Level)


class KeyPeers(Peers):
    """Each has slot 0."""

    def __init__(self, *, min_in_sync: int = 2) -> None:
        super().__init__(min_in_sync=min_in_sync)
        self.slots: dict[int, Slots] = {}
        for number in (1, 2, 3):
            peer = self[number]
            tails = TailFolder(peer.disk, "/tails")
            self.slots[number] = Slots(self.world, b"node %011d" % number, SETTINGS, tails, peer.spawn)
            self.slots[number].attach(peer.partition)

    def ask(self, node: int, operation: o.Operation[Any], level: Level = Level.QUORUM) -> Job[object]:
        job = self.world.spawn(self.slots[node].execute(operation, level))
        self.carry()
        return job

    def time_out(self) -> None:
        self.world.advance(int(ANSWER_SECONDS_MAX * 1000) + 1)
        self.carry()


def reason_of(job: Job[object]) -> Reason:
    with pytest.raises(BrokerError) as caught:
        job.result()
    return caught.value.reason


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
    assert [reason_of(job) for job in jobs] == [Reason.TIMED_OUT] * 3
    role = peers[1].partition.replicated.replica.role
    assert isinstance(role, Leader)
    assert role.reads == ()
    assert len(role.waiting) == 1, "what was appended for nobody; the one who waited for it has withdrawn"


def test_all_waits_for_every_replica_and_what_was_written_stays() -> None:
    peers = KeyPeers()
    peers.assign(peers.assignment.changed(in_sync=(1, 2)))
    peers.away = {3}
    quorum, every = peers.ask(1, o.Set(KEY, b"1")), peers.ask(1, o.Set(KEY, b"2"), Level.ALL)
    assert (quorum.is_done, every.is_done) == (True, False)
    peers.time_out()
    assert reason_of(every) is Reason.TIMED_OUT
    assert peers.ask(1, o.Get(KEY)).result() == b"2"


def test_too_small_a_set_is_refused_before_anything_is_written() -> None:
    peers = KeyPeers()
    peers.assign(peers.assignment.changed(in_sync=(1,), eligible=(2, 3)))
    assert reason_of(peers.ask(1, o.Set(KEY, b"1"))) is Reason.NOT_ENOUGH_REPLICAS
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
    peers.assign(peers.assignment.changed(in_sync=(2, 3)))
    peers.tick()
    assert peers.ask(2, o.Get(KEY)).result() == b"105"
    peers.away = set()
    peers.assign()
    peers.tick()
    assert reason_of(lost) is Reason.NOT_LEADER
    (tail,) = kept_tails(peers[1].disk, "/tails")
    assert [record.argument[-1] for record in tail.records] == [1], "and not what nobody was told of"
    for verdict in (Verdict.TAKEN, Verdict.KNOWN):
        job = peers.world.spawn(peers.slots[2].replicate(tail.slot, tail.records[0]))
        peers.carry()
        assert job.result() is verdict
    peers.tick()
    assert peers.ask(2, o.Get(KEY)).result() == b"106"
    assert [peers.ask(number, o.Get(KEY), Level.ONE).result() for number in (1, 3)] == [b"106"] * 2


def test_a_verdict_is_told_when_it_is_committed() -> None:
    peers = KeyPeers()
    peers.away = {2, 3}
    record = SlotRecord(
        Op.SET, KEY, b"1", 0, Level.ONE, Stamp(peers.world.now_ms(), 0, b"a third node ..."), Origin(7, 3)
    )
    job = peers.world.spawn(peers.slots[1].replicate(0, record))
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
    peers.assign(peers.assignment.changed(in_sync=(2, 3)))
    peers.away = set()
    peers.assign()
    peers.tick()

    def sent(send: Callable[[int, SlotRecord], Awaitable[Verdict]]) -> list[int]:
        job = peers.world.spawn(peers.slots[1].send_tails(send))
        for _ in range(4):
            peers.carry()
        return [tail.slot for tail in job.result()]

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
    peers.slots[1].here()[0].let_go()
    peers[1].partition.replicated.log.close()
    keep_uncommitted(peers[1].folder.open_partition(TOPIC, 0), 0, TailFolder(peers[1].disk, "/tails"))
    tails = kept_tails(peers[1].disk, "/tails")
    assert [[record.argument[-1] for record in tail.records] for tail in tails] == [[2], [2]]


def test_a_long_log_is_applied_in_turns() -> None:
    peers = KeyPeers()
    for _ in range(2 * RECORDS_PER_TURN):
        peers.ask(1, o.Increment(KEY), Level.ONE)
    peers.tick()
    late = Slots(peers.world, b"another node ...", SETTINGS, TailFolder(peers[3].disk, "/tails"), peers[3].spawn)
    late.attach(peers[3].partition)
    assert late.here()[0].slot.applied == RECORDS_PER_TURN
    with pytest.raises(NotLeaderError):
        peers.world.run(late.execute(o.Get(KEY), Level.ONE))
    peers.world.advance(0)
    assert peers.world.run(late.execute(o.Get(KEY), Level.ONE)) == b"%d" % (2 * RECORDS_PER_TURN)
    assert late.here()[0].slot.applied == 2 * RECORDS_PER_TURN


def test_keys_go_at_their_time_by_a_record_of_the_leader() -> None:
    peers = KeyPeers()
    peers.ask(1, o.Set(KEY, b"1", 1))
    peers.world.advance(1_001)
    jobs = [peers.world.spawn(peers.slots[number].expire()) for number in (2, 1)]
    peers.world.advance(0)
    assert [job.result() for job in jobs] == [0, 1]
    peers.tick()
    assert peers.ask(3, o.Exists(KEY), Level.ONE).result() is False
