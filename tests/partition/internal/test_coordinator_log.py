"""A replicated partition as a coordinator's log: what counts, and what whoever waits is told when another node leads."""

import pytest
from tests.broker.node import batch_of
from tests.partition.peers import Peers
from tests.refusals import refused_with

from braidlog.model.errors import BrokerError, NotCoordinatorError, Reason
from braidlog.model.settings import Flush, TopicSettings
from braidlog.partition.internal.coordinator_log import CoordinatorLog

SETTINGS = TopicSettings(flush=Flush.ACK, compact=True)


def led(peers: Peers, number: int = 1) -> CoordinatorLog:
    return CoordinatorLog(peers[number].partition, peers.runtime)


def test_what_all_of_the_set_have_is_durable() -> None:
    peers = Peers(SETTINGS)
    log = led(peers)
    peers.away = {2, 3}
    end = log.append(batch_of(b"a", b"b"))
    job = peers.runtime.spawn(log.durable(end))
    peers.carry()
    assert not job.is_done
    assert not log.is_durable(end)
    peers.away = set()
    peers.tick()
    job.result()
    assert log.is_durable(end)
    assert [row[3] for row in log.rows()] == [b"a", b"b"]


def test_whoever_waits_is_told_when_another_node_leads() -> None:
    peers = Peers(SETTINGS)
    log = led(peers)
    peers.away = {2, 3}
    job = peers.runtime.spawn(log.durable(log.append(batch_of(b"a"))))
    peers.carry()
    peers.away = set()
    peers.elect(2)
    assert isinstance(job.error, NotCoordinatorError)
    assert not log.is_led
    with pytest.raises(NotCoordinatorError):
        log.append(batch_of(b"b"))


def test_what_is_committed_by_a_later_leader_is_not_told_by_an_earlier_one() -> None:
    """Also if both are the same node: what was read in its earlier epoch may be another history."""
    peers = Peers(SETTINGS)
    log = led(peers)
    end = log.append(batch_of(b"a"))
    peers.carry()
    assert log.is_durable(end)
    peers.elect(2)
    peers.elect(1)
    assert led(peers).is_led
    assert not log.is_durable(end)
    with pytest.raises(NotCoordinatorError):
        peers.runtime.run(log.durable(end))


def test_nothing_is_taken_that_too_few_replicas_would_have() -> None:
    peers = Peers(SETTINGS)
    log = led(peers)
    peers.assign(peers.assignment.with_changes(in_sync=(1,)))
    with refused_with(Reason.UNAVAILABLE):
        log.append(batch_of(b"a"))
    assert log.is_led


def test_a_wait_for_the_in_sync_set_has_an_end() -> None:
    peers = Peers(SETTINGS)
    log = led(peers)
    peers.away = {2, 3}
    job = peers.runtime.spawn(log.durable(log.append(batch_of(b"a"))))
    peers.runtime.advance(60_000)
    assert isinstance(job.error, BrokerError)
    assert job.error.reason is Reason.TIMED_OUT
