"""Consumers that read from followers: what they see there, when they are sent there, and when back to the leader."""

import pytest
from tests.model.manual_world import Job
from tests.partition.fetching import fetch_all
from tests.partition.peers import TOPIC, Peers
from tests.partition.test_partition import slow_disk
from tests.refusals import refused_with

from braidlog.codec.batch.records import EndMarker
from braidlog.coordinator.transactions.markers import mark
from braidlog.model.errors import BrokerError, Reason
from braidlog.partition.fetch.fetch import Outcome, Wanted
from braidlog.partition.fetch.record_reader import Fetched, batches_of
from braidlog.replication.messages import Damaged


def ask(
    peers: Peers, node: int, offset: int = 0, *, wait_ms: int = 0, committed_only: bool = False, **more: object
) -> Job[list[Outcome]]:
    wanted = Wanted(TOPIC, 0, offset, 1 << 20, in_sync=True, **more)  # type: ignore[arg-type]
    fetch = peers[node].fetch
    return peers.runtime.spawn(
        fetch.fetch_each([wanted], bytes_max=1 << 20, wait_ms=wait_ms, committed_only=committed_only, leader_only=True)
    )


def seen(job: Job[list[Outcome]]) -> list[int] | Reason:
    """The offsets that a reader was given, or why it was given none."""
    (outcome,) = job.result()
    if isinstance(outcome, BrokerError):
        return outcome.reason
    assert isinstance(outcome, Fetched)
    batches = [] if outcome.slice is None else batches_of(outcome.slice)
    return [offset for *_, header in batches for offset in range(header.base_offset, header.next_offset)]


def sent_to(job: Job[list[Outcome]]) -> int | None:
    (outcome,) = job.result()
    assert isinstance(outcome, Fetched)
    assert outcome.slice is None or outcome.preferred_replica is None
    return outcome.preferred_replica


def written(*values: bytes) -> Peers:
    peers = Peers()
    for value in values:
        peers[1].append(value)
        peers.carry()
    return peers


def test_a_follower_serves_what_it_knows_to_be_committed_and_nothing_above() -> None:
    peers = written(b"x")
    assert seen(ask(peers, 2)) == [0]
    peers.away = {3}
    peers[1].append(b"y")
    peers.carry()
    assert (peers[2].partition.end_offset, peers[2].partition.high_watermark) == (2, 1)
    assert seen(ask(peers, 2)) == [0]
    assert seen(ask(peers, 2, 1)) == []
    for offset in (2, 3):
        assert seen(ask(peers, 2, offset)) is Reason.OFFSET_NOT_AVAILABLE, "the leader may have it, or not"
    assert seen(ask(peers, 1, 3)) is Reason.OFFSET_OUT_OF_RANGE
    assert seen(ask(peers, 2, -1)) is Reason.OFFSET_OUT_OF_RANGE


def test_what_a_follower_does_not_have_yet_is_waited_for() -> None:
    peers = written(b"x")
    early, late = ask(peers, 2, 2, wait_ms=60_000), ask(peers, 3, 9, wait_ms=1_000)
    peers[1].append(b"y")
    peers[1].append(b"z")
    peers.carry()
    assert seen(early) == [2]
    assert not late.is_done
    peers.runtime.advance(1_000)
    assert seen(late) is Reason.OFFSET_NOT_AVAILABLE


def test_who_asks_for_the_leader_alone_is_refused_by_a_follower() -> None:
    peers = written(b"x")
    fetch = fetch_all(peers[2].fetch, [Wanted(TOPIC, 0, 0, 1000)], bytes_max=1000, leader_only=True)
    with refused_with(Reason.NOT_LEADER):
        peers.runtime.run(fetch)


def test_a_follower_compares_epochs_as_a_leader_does() -> None:
    peers = written(b"x")
    for node in (1, 2):
        assert seen(ask(peers, node, leader_epoch=1)) == [0]
        assert seen(ask(peers, node, leader_epoch=0)) is Reason.STALE_LEADER_EPOCH
        assert seen(ask(peers, node, leader_epoch=2)) is Reason.NOT_LEADER


def test_a_follower_serves_nobody_before_its_leader_has_found_that_their_logs_agree() -> None:
    peers = written(b"x")
    peers.away = {2}
    peers.elect(2)
    waiting = ask(peers, 3, wait_ms=60_000)
    assert seen(ask(peers, 3)) is Reason.OFFSET_NOT_AVAILABLE
    assert not waiting.is_done
    peers.away = set()
    peers.assign()
    peers.tick()
    assert seen(waiting) == seen(ask(peers, 3)) == [0]


def test_a_follower_is_not_read_while_its_log_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = written(b"x", b"y")
    with slow_disk(peers, monkeypatch):
        peers.runtime.spawn(peers[1].partition.delete_below(1, peers.runtime))
        peers.carry()
        peers.tick()
        waiting = ask(peers, 2, 1, wait_ms=60_000)
        assert seen(ask(peers, 2, 1)) is Reason.OFFSET_NOT_AVAILABLE
        assert not waiting.is_done
    assert seen(waiting) == [1]
    assert seen(ask(peers, 2, 0)) is Reason.OFFSET_OUT_OF_RANGE, "its leader is asked then"


def test_a_follower_that_leaves_the_set_sends_its_readers_back() -> None:
    peers = written(b"x")
    waiting = ask(peers, 3, 1, wait_ms=60_000)
    peers.assign(peers.assignment.with_changes(in_sync=(1, 2)))
    assert seen(waiting) is seen(ask(peers, 3)) is Reason.NOT_LEADER
    peers.assign(peers.assignment.with_changes(in_sync=(1, 2, 3)))
    assert seen(ask(peers, 3)) == [0]


def test_a_follower_that_is_damaged_or_has_no_leader_sends_its_readers_back() -> None:
    peers = written(b"x")
    peers[3].partition.step(Damaged())
    assert seen(ask(peers, 3)) is Reason.NOT_LEADER
    assert seen(ask(peers, 2)) == [0]
    peers.assign(peers.assignment.with_leader(None))
    assert seen(ask(peers, 2)) is Reason.NOT_LEADER


def test_committed_readers_of_a_follower_stop_at_its_own_last_stable_offset() -> None:
    peers = written(b"x")
    peers[1].append(b"y", producer=(7, 0, 0), transaction="t")
    peers.carry()
    assert seen(ask(peers, 2)) == [0, 1]
    assert seen(ask(peers, 2, committed_only=True)) == [0]
    mark(peers[1].partition, 7, 0, EndMarker(commit=False), now_ms=1)
    peers.carry()
    (outcome,) = ask(peers, 2, committed_only=True).result()
    assert isinstance(outcome, Fetched)
    assert [each.first_offset for each in outcome.aborted] == [1]
    assert outcome.last_stable_offset == 3


def test_a_leader_sends_readers_to_a_nearer_follower_at_once() -> None:
    peers = written(b"x")
    for offset in (0, 1):
        assert sent_to(ask(peers, 1, offset, nearer=(3,), wait_ms=60_000)) == 3
    assert sent_to(ask(peers, 1, nearer=(9,))) is None, "it holds no replica"
    assert seen(ask(peers, 1, nearer=(9,))) == [0]
    assert seen(ask(peers, 1, 2, nearer=(3,))) is Reason.OFFSET_OUT_OF_RANGE
    assert seen(ask(peers, 3, nearer=(2,))) == [0], "who was sent to a follower stays there"


def test_a_leader_sends_readers_to_the_follower_that_has_most() -> None:
    peers = written(b"x")
    assert sent_to(ask(peers, 1, nearer=(2, 3))) == 2
    peers.away = {2}
    peers[1].append(b"y")
    peers.carry()
    assert sent_to(ask(peers, 1, nearer=(2, 3))) == 3


def test_a_leader_sends_nobody_where_the_records_are_deleted() -> None:
    peers = written(b"x", b"y")
    peers[3].partition.log.advance_start(1)
    peers.tick()
    peers[1].append(b"z")
    peers.carry()
    assert sent_to(ask(peers, 1, 0, nearer=(3,))) is None
    assert sent_to(ask(peers, 1, 1, nearer=(3,))) == 3


def test_a_leader_sends_nobody_where_it_would_wait() -> None:
    """To who is not in sync, or does not know yet that the offset is committed."""
    peers = written(b"x")
    peers.assign(peers.assignment.with_changes(in_sync=(1, 2)))
    assert sent_to(ask(peers, 1, nearer=(3,))) is None
    peers.away = {3}
    peers[1].append(b"y", b"z")
    peers.carry()
    assert peers[1].partition.high_watermark == 3
    peers.assign(peers.assignment.with_changes(in_sync=(1, 2, 3)))
    assert sent_to(ask(peers, 1, 3, nearer=(3,))) is None
    assert sent_to(ask(peers, 1, 1, nearer=(3,))) == 3
    peers.away = set()
    peers.assign()
    peers.tick()
    assert sent_to(ask(peers, 1, 3, nearer=(3,))) == 3
    peers.elect(2)
    assert seen(ask(peers, 1, 3, nearer=(3,))) == [], "it follows now, and sends nobody anywhere"
