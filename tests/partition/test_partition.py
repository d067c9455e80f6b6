"""A partition that several nodes hold: what producers and readers are told, through changes of leaders, sets and disks."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import pytest
from tests.broker.node import batch_of
from tests.partition.fetching import fetch_all
from tests.partition.peers import TOPIC, Peers
from tests.refusals import reason_of, refused_with

from braidlog.codec.batch.records import EndMarker
from braidlog.coordinator.transactions.markers import mark
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.model.settings import Flush, TopicSettings
from braidlog.partition.fetch.fetch import Wanted
from braidlog.partition.hosted_log import Role
from braidlog.partition.maintenance.delete_records import TO_THE_END
from braidlog.partition.produce.append import Acks
from braidlog.replication.messages import Complaint, ExternalFetched, Fetch, Fetched, SetExternalInSync
from braidlog.replication.ready import Resign
from braidlog.replication.replicas import ReplicaInfo

T = TypeVar("T")


@contextmanager
def slow_disk(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that is done beside the loop is done before the end of this."""
    held = []
    blocking = peers.runtime.blocking

    async def slow(work: Callable[[], T]) -> T:
        wakeup = peers.runtime.wakeup()
        held.append(wakeup)
        await wakeup.wait(3_600)
        return await blocking(work)

    with monkeypatch.context() as patched:
        patched.setattr(peers.runtime, "blocking", slow)
        yield
    for each in held:
        each.wake()
    peers.carry()


def test_all_is_acknowledged_when_every_member_of_the_set_has_it() -> None:
    peers = Peers()
    peers.away = {3}
    job = peers[1].append(b"x")
    peers.carry()
    assert not job.is_done
    assert peers[1].values() == []
    peers.away = set()
    peers.tick()
    assert job.result().base_offset == 0
    assert [peers[number].values() for number in (1, 2, 3)] == [[b"x"]] * 3


def test_leader_is_acknowledged_when_the_leader_has_it_durably_and_none_at_once() -> None:
    peers = Peers()
    peers.away = {2, 3}
    with peers.runtime.holding_syncs():
        job, none = peers[1].append(b"x", acks=Acks.LEADER), peers[1].append(b"y", acks=Acks.NONE)
        assert (job.is_done, none.is_done) == (False, True)
    peers.carry()
    assert job.result().base_offset == 0
    assert peers[1].values() == [], "it is acknowledged by its leader, not committed"


def test_without_flush_the_page_cache_of_all_counts() -> None:
    peers = Peers(TopicSettings(flush=Flush.OS))
    job = peers[1].append(b"x")
    peers.carry()
    assert job.result().base_offset == 0
    assert peers[1].partition.log.durable_offset == 0


def test_too_few_in_sync_refuse_all_before_it_is_written() -> None:
    peers = Peers()
    peers.away = {2, 3}
    peers.assign(peers.assignment.with_changes(in_sync=(1,), eligible=(2, 3)))
    assert reason_of(peers[1].append(b"x").result) is Reason.NOT_ENOUGH_REPLICAS
    assert peers[1].partition.end_offset == 0
    alone = peers[1].append(b"y", acks=Acks.LEADER)
    peers.carry()
    assert alone.result().base_offset == 0


def test_who_waits_for_an_old_leader_is_told_that_it_is_one() -> None:
    peers = Peers()
    peers.away = {2, 3}
    job = peers[1].append(b"lost")
    peers.carry()
    peers.away = set()
    peers.under_way.clear()
    peers.elect(2)
    assert reason_of(job.result) is Reason.NOT_LEADER
    assert reason_of(peers[1].append(b"x").result) is Reason.NOT_LEADER
    kept = peers[2].append(b"kept")
    peers.carry()
    assert kept.result().base_offset == 0
    assert peers[1].values() == [b"kept"], "what nobody else had is cut"


def test_who_waits_is_told_when_the_node_is_registered_anew() -> None:
    peers = Peers()
    peers.away = {2, 3}
    job = peers[1].append(b"x")
    peers[1].partition.registered_as(9)
    peers.runtime.settle()
    assert reason_of(job.result) is Reason.NOT_LEADER
    assert peers[1].partition.role is Role.FOLLOWER


def test_a_retry_is_acknowledged_once_what_it_repeats_is_committed() -> None:
    peers = Peers()
    peers.away = {2, 3}
    peers[1].append(b"x", producer=(7, 0, 0), acks=Acks.LEADER)
    retry = peers[1].append(b"x", producer=(7, 0, 0), acks=Acks.LEADER)
    peers.carry()
    assert not retry.is_done
    peers.away = set()
    peers.tick()
    assert (retry.result().base_offset, retry.result().duplicate) == (0, True)
    assert peers[1].partition.end_offset == 1


def test_an_acknowledgement_that_does_not_come_in_time_is_said_to_be_unknown() -> None:
    peers = Peers()
    peers.away = {2, 3}
    job = peers[1].append(b"x")
    peers.runtime.advance(5_000)
    assert reason_of(job.result) is Reason.ACKS_TIMED_OUT


def test_records_that_the_log_refuses_leave_no_trace() -> None:
    peers = Peers()
    broken = bytearray(batch_of(b"x"))
    broken[-1] ^= 1
    job = peers.runtime.spawn(peers[1].append_service.append(TOPIC, 0, bytes(broken)))
    with pytest.raises(ProtocolError):
        job.result()
    kept = peers[1].append(b"y")
    peers.carry()
    assert kept.result().base_offset == 0
    assert peers[3].values() == [b"y"]


def test_a_full_disk_fails_one_append_and_the_leader_leads_on() -> None:
    peers = Peers(TopicSettings(flush=Flush.OS), min_in_sync=1)
    disk = peers[1].disk
    disk.fail_at = {len(disk.operations) + 1: errno.ENOSPC}
    job = peers[1].append(b"lost", acks=Acks.LEADER)
    with pytest.raises(StorageFault):
        job.result()
    assert peers[1].append(b"y", acks=Acks.LEADER).result().base_offset == 0
    assert not peers[1].proposed


def test_a_follower_whose_disk_was_full_goes_on_where_it_was() -> None:
    peers = Peers()
    disk = peers[3].disk
    disk.fail_at = {len(disk.operations) + 1: errno.ENOSPC}
    job = peers[1].append(b"x")
    peers.carry()
    assert not job.is_done
    peers.tick()
    assert job.is_done
    assert peers[3].values() == [b"x"]


def test_a_batch_that_was_bent_on_the_way_is_asked_for_again_and_complained_about() -> None:
    peers = Peers()
    peers.away = {2}
    job = peers[1].append(b"x")
    for _ in range(2):
        (answer,) = [message for _, to, message in peers.under_way if to == 3 and isinstance(message, Fetched)]
        records = answer.batches[0].records
        assert isinstance(records, bytes)
        bent = msgspec.structs.replace(answer.batches[0], records=records[:-1] + bytes([records[-1] ^ 1]))
        peers.under_way.clear()
        peers[3].partition.step(msgspec.structs.replace(answer, batches=(bent,)))
        peers[3].begin()
        (again,) = peers.under_way
        assert peers[3].partition.end_offset == 0
        if isinstance(again[2], Fetch):
            peers.under_way.clear()
            peers[1].partition.step(again[2])
    assert peers.under_way[-1][2] == Complaint(3, 1, 0)
    peers.away = set()
    peers.tick()
    assert job.is_done, "the leader's file is whole, and the next answer was too"


def test_a_leader_whose_sync_fails_resigns_and_acknowledges_nothing() -> None:
    peers = Peers()
    disk = peers[1].disk
    disk.fail_at = {len(disk.operations) + 2: errno.EIO}
    job = peers[1].append(b"x")
    peers.carry()
    peers.tick()
    assert peers[1].proposed == [Resign(1, 1)]
    assert not job.is_done


def test_nobody_writes_before_an_epoch_is_durable_and_questions_wait_for_it() -> None:
    peers = Peers()
    peers[2].is_slow_to_begin = True
    peers.elect(2)
    assert peers[2].partition.role is Role.FOLLOWER
    assert reason_of(peers[2].append(b"x").result) is Reason.NOT_LEADER
    peers[2].is_slow_to_begin = False
    peers.carry()
    job = peers[2].append(b"x")
    peers.carry()
    assert job.result().base_offset == 0, "the others had asked before it had begun, and need not ask again"


def test_a_new_leader_cannot_say_where_readers_end_before_it_knows_what_is_committed() -> None:
    peers = Peers()
    peers.away = {3}
    peers[1].append(b"x")
    peers.carry()
    assert (peers[2].partition.end_offset, peers[2].partition.high_watermark) == (1, 0)
    peers.away = {1, 3}
    peers.under_way.clear()
    peers.elect(2)
    with refused_with(Reason.OFFSET_NOT_AVAILABLE):
        peers[2].partition.require_decided()
    fetch = peers.runtime.spawn(fetch_all(peers[2].fetch, [Wanted(TOPIC, 0, 1, 1000)], bytes_max=1000, wait_ms=60_000))
    peers.away = set()
    peers.assign()
    peers.tick()
    peers[2].partition.require_decided()
    assert peers[2].partition.high_watermark == 1
    job = peers[2].append(b"y")
    peers.carry()
    assert job.result().base_offset == 1
    assert fetch.result()[0].high_watermark == 2, "an offset between the watermark and the end is waited for"


def test_readers_that_wait_for_the_leader_are_told_when_it_is_another() -> None:
    peers = Peers()
    want = [Wanted(TOPIC, 0, 0, 1000)]
    job = peers.runtime.spawn(fetch_all(peers[1].fetch, want, bytes_max=1000, wait_ms=60_000, leader_only=True))
    assert not job.is_done
    peers.elect(2)
    assert reason_of(job.result) is Reason.NOT_LEADER


def test_what_was_made_of_records_that_are_cut_is_dropped() -> None:
    peers = Peers()
    cuts: list[int] = []
    peers[1].partition.on_truncate(cuts.append)
    kept = peers[1].append(b"kept")
    peers.carry()
    assert kept.is_done
    peers.away = {2, 3}
    peers[1].append(b"lost")
    peers.carry()
    peers.away = set()
    peers.under_way.clear()
    peers.elect(2)
    assert cuts == [1, 1], "above the watermark when it begins to follow, and where the logs part"
    peers[2].append(b"new")
    peers.carry()
    assert peers[1].values() == [b"kept", b"new"]


def test_a_deletion_is_acknowledged_when_the_whole_set_has_followed_it() -> None:
    peers = Peers()
    peers[1].append(b"x", b"y")
    peers.carry()
    peers.away = {3}
    job = peers.runtime.spawn(peers[1].trim.delete_before(TOPIC, 0, TO_THE_END))
    peers.carry()
    assert not job.is_done
    peers.away = set()
    for _ in range(4):  # a question that has no answer is answered after half a second
        peers.tick()
    assert job.result() == 2
    assert peers[3].partition.start_offset == 2


def test_observers_are_served_and_never_counted() -> None:
    peers = Peers()
    partition = peers[1].partition
    peers[1].append(b"one")
    peers.carry()

    def refused(message: ExternalFetched | SetExternalInSync) -> Reason:
        with pytest.raises(BrokerError) as caught:
            partition.step(message)
        return caught.value.reason

    assert refused(SetExternalInSync("mlog-7", in_sync=True)) is Reason.REPLICA_NOT_FOUND
    partition.step(ExternalFetched("mlog-7", 0))
    assert refused(SetExternalInSync("mlog-7", in_sync=True)) is Reason.REPLICA_NOT_FOUND, "it has not caught up"
    assert refused(ExternalFetched("mlog-7", 2)) is Reason.OFFSET_OUT_OF_RANGE
    partition.step(ExternalFetched("mlog-7", 1))
    partition.step(SetExternalInSync("mlog-7", in_sync=True))
    assert (partition.replicas.in_sync, partition.replicas.replication_factor) == (["1", "2", "3"], 3)
    assert [each.node for each in partition.replicas.followers] == ["2", "3"]
    assert partition.replicas.observers == (ReplicaInfo("mlog-7", 1, in_sync=True),)
    for number in range(40):
        partition.step(ExternalFetched(f"more-{number}", 0))
    assert [each.node for each in partition.replicas.observers] == [f"more-{number}" for number in range(8, 40)]
    partition.step(SetExternalInSync("more-39", in_sync=False))
    assert len(partition.replicas.observers) == 31
    partition.step(SetExternalInSync("2", in_sync=True))
    assert refused(SetExternalInSync("2", in_sync=False)) is Reason.REPLICA_NOT_FOUND, (
        "the cluster's nodes leave by themselves"
    )
    partition.step(ExternalFetched("2", 0))
    assert len(partition.replicas.observers) == 31
    peers.elect(2)
    assert not peers[1].partition.replicas.observers


def test_a_marker_settles_when_it_is_committed() -> None:
    peers = Peers()
    partition = peers[1].partition
    peers[1].append(b"x", producer=(7, 0, 0), transaction="t")
    peers.carry()
    assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
    peers.away = {3}
    job = peers.runtime.spawn(partition.wait_durable(mark(partition, 7, 0, EndMarker(commit=True), 1), peers.runtime))
    peers.carry()
    assert not job.is_done
    assert partition.last_stable_offset == 0, "a new leader may take the marker back"
    peers.away = set()
    peers.tick()
    assert job.is_done
    assert (partition.last_stable_offset, peers[3].partition.last_stable_offset) == (2, 2)


def test_a_deleted_topic_answers_who_waits() -> None:
    peers = Peers()
    peers.away = {2, 3}
    job = peers[1].append(b"x")
    peers[1].partition.retire()
    peers.runtime.settle()
    assert reason_of(job.result) is Reason.TOPIC_NOT_FOUND


def test_a_node_whose_number_was_taken_is_told() -> None:
    peers = Peers()
    peers[1].incarnation = 10
    peers.assign(peers.assignment.with_changes())
    assert peers[1].is_replaced


def parted() -> Peers:
    """Node 1 has led, and has a record that nobody else has."""
    peers = Peers()
    peers.away = {2, 3}
    peers[1].append(b"lost")
    peers.carry()
    peers.under_way.clear()
    peers.away = set()
    return peers


def test_a_follower_cuts_its_log_beside_the_loop_and_what_comes_meanwhile_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = parted()
    before = len(peers[1].disk.operations)
    with slow_disk(peers, monkeypatch):
        peers.elect(2)
        kept = peers[2].append(b"kept")
        peers.carry()
        assert (len(peers[1].disk.operations), peers[1].partition.end_offset) == (before, 1)
        peers.elect(3)
        peers.tick()
        assert peers[1].partition.replicated.replica.epoch == 2, "the third epoch waits for the cut"
    assert peers[1].partition.leader_epoch == 3
    peers.tick()
    assert reason_of(kept.result) is Reason.NOT_LEADER
    last = peers[3].append(b"last")
    peers.carry()
    assert last.is_done
    assert peers[1].values() == peers[3].values()
    assert peers[1].values()[-1] == b"last"


def test_a_node_that_registers_anew_while_its_log_is_cut_goes_on_with_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = parted()
    with slow_disk(peers, monkeypatch):
        peers.elect(2)
        peers[1].incarnation = 9
        peers[1].partition.registered_as(9)
        peers.carry()
        assert peers[1].partition.end_offset == 1
        said: list[object] = []
        monkeypatch.setattr(peers[1], "send", lambda *message: said.append(message))
    assert not said, "nothing for the life before"
    monkeypatch.undo()
    replica = peers[1].partition.replicated.replica
    assert (replica.log.end, replica.log.durable, peers[1].partition.end_offset) == (0, 0, 0)
    peers.assign(peers.assignment.with_changes())
    kept = peers[2].append(b"kept")
    peers.carry()
    assert kept.is_done
    assert peers[1].values() == [b"kept"]


def test_an_epoch_that_was_begun_for_records_that_never_came_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = Peers()
    monkeypatch.setattr(peers[3], "is_slow_to_begin", True)
    peers[1].append(b"x")
    peers.carry()
    peers[3].partition.registered_as(9)
    peers[3].begin()
    log, replica = peers[3].partition.log, peers[3].partition.replicated.replica
    assert (log.end_offset, log.state.epochs.entries()) == (0, [(1, 0)])
    assert replica.log.epochs == ((1, 0),)


def test_what_comes_for_a_log_that_was_closed_meanwhile_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that stops closes its logs beside the loop."""
    peers = Peers()
    monkeypatch.setattr(peers[3], "is_slow_to_begin", True)
    peers[1].append(b"x")
    peers.carry()
    log = peers[3].partition.log
    peers[3].folder.begin_epochs([(log, 1)])
    log.close()
    peers[3].partition.epoch_started(1, None)
    assert log.end_offset == 0
    assert peers[3].partition.replicated.replica.log.end == 0


def test_records_of_several_epochs_are_taken_epoch_by_epoch() -> None:
    peers = Peers()
    peers.away = {3}
    peers.assign(peers.assignment.with_changes(in_sync=(1, 2)))
    for leader, value in ((1, b"one"), (2, b"two"), (1, b"three")):
        peers.elect(leader)
        peers[leader].append(value)
        peers.carry()
    peers.away = set()
    peers.assign(peers.assignment)
    peers.tick()
    logs = [peers[each].partition.log for each in (1, 2, 3)]
    assert [each.end_offset for each in logs] == [3, 3, 3]
    assert logs[2].read(0, 1_000) == logs[0].read(0, 1_000)
    assert logs[2].state.epochs.entries() == logs[0].state.epochs.entries() == [(2, 0), (3, 1), (4, 2)]
    assert peers[3].partition.replicated.replica.log.epochs == ((2, 0), (3, 1), (4, 2))
