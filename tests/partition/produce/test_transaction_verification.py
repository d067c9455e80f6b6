"""A transaction's first batch in a partition of several nodes: its coordinator is asked, and what makes an answer void."""

from tests.broker.node import batch_of
from tests.model.manual_world import Job
from tests.partition.peers import TOPIC, Peers
from tests.refusals import reason_of, refused_with

from braidlog.codec.batch.records import EndMarker
from braidlog.coordinator.transactions.markers import mark
from braidlog.model.errors import BrokerError, Reason
from braidlog.partition.produce.append import Appended
from braidlog.partition.produce.transaction_verification import Verified

PRODUCER = 7


def send(peers: Peers, value: bytes, sequence: int, *, epoch: int = 0, node: int = 1) -> Job[Appended]:
    job = peers[node].append(value, producer=(PRODUCER, epoch, sequence), transaction="t")
    peers.carry()
    return job


def end(peers: Peers, number: int, *, commit: bool = True, coordinator_epoch: int = 1, node: int = 1) -> None:
    marker = EndMarker(commit, coordinator_epoch, number)
    mark(peers[node].partition, PRODUCER, 0, marker, 1)
    peers.carry()


def answer(peers: Peers, node: int = 1) -> None:
    """What the coordinator has said arrives."""
    answering = peers[node].answering
    assert answering is not None
    answering.wake()
    peers.carry()


def test_the_coordinator_is_asked_once_for_each_transaction() -> None:
    peers = Peers()
    for sequence in range(3):
        assert send(peers, b"x", sequence).result()
    assert peers[1].asked == [("t", PRODUCER, 0, TOPIC, 0)]
    end(peers, 1)
    peers[1].answer = Verified(1, 2)
    assert send(peers, b"y", 3).result()
    assert len(peers[1].asked) == 2


def test_what_the_coordinator_does_not_know_is_not_written() -> None:
    peers = Peers()
    peers[1].answer = BrokerError(Reason.INVALID_TRANSACTION_STATE, "not in the transaction")
    assert reason_of(send(peers, b"x", 0).result) is Reason.INVALID_TRANSACTION_STATE
    assert peers[1].partition.end_offset == 0
    peers[1].answer = Verified(1, 1)
    assert send(peers, b"x", 0).result()


def test_later_batches_wait_behind_the_one_that_asks() -> None:
    peers = Peers()
    peers[1].is_coordinator_slow = True
    jobs = [send(peers, b"%d" % sequence, sequence) for sequence in range(3)]
    assert peers[1].partition.end_offset == 0
    answer(peers)
    assert [job.result().base_offset for job in jobs] == [0, 1, 2]
    assert len(peers[1].asked) == 1


def test_an_answer_that_a_marker_has_overtaken_is_void() -> None:
    """Asked while the transaction was open, answered so, and ended by its timeout before the answer arrived."""
    peers = Peers()
    peers[1].is_coordinator_slow = True
    job = send(peers, b"late", 0)
    end(peers, 1, commit=False)
    peers[1].is_coordinator_slow = False
    answer(peers)
    assert reason_of(job.result) is Reason.CONCURRENT_TRANSACTIONS
    assert len(peers[1].asked) == 3
    assert peers[1].partition.end_offset == 1, "the marker alone"


def test_after_a_marker_it_is_asked_again_and_the_next_transaction_may_be_open() -> None:
    peers = Peers()
    peers[1].is_coordinator_slow = True
    job = send(peers, b"next", 0)
    end(peers, 1)
    peers[1].is_coordinator_slow = False
    peers[1].answers = [Verified(1, 1), Verified(1, 2)]
    answer(peers)
    assert job.result().base_offset == 1


def test_a_coordinator_that_has_a_successor_verifies_nothing() -> None:
    """It believes that it leads, and that transaction 2 is open: its successor has ended number 1 here, and knows of no other."""
    peers = Peers()
    end(peers, 1, coordinator_epoch=5)
    peers[1].answer = Verified(4, 2)
    assert reason_of(send(peers, b"x", 0).result) is Reason.CONCURRENT_TRANSACTIONS
    peers[1].answer = Verified(5, 2)
    assert send(peers, b"x", 0).result()


def test_nothing_is_verified_for_another_leader_epoch() -> None:
    peers = Peers()
    assert send(peers, b"x", 0).result()
    peers.elect(2)
    peers.elect(1)
    assert send(peers, b"y", 1).result()
    assert len(peers[1].asked) == 2, "what the first epoch knew is of the past"
    end(peers, 1)
    peers[1].answer = peers[2].answer = Verified(1, 2)
    peers[1].is_coordinator_slow = True
    job = send(peers, b"z", 2)
    peers.elect(2)
    peers[1].is_coordinator_slow = False
    answer(peers)
    assert reason_of(job.result) is Reason.NOT_LEADER
    assert send(peers, b"z", 2, node=2).result()
    assert len(peers[2].asked) == 1


def test_what_was_verified_is_of_one_epoch_of_its_producer() -> None:
    peers = Peers()
    assert send(peers, b"x", 0).result()
    peers[1].answer = BrokerError(Reason.STALE_PRODUCER_EPOCH, "fenced")
    assert reason_of(send(peers, b"y", 0, epoch=1).result) is Reason.STALE_PRODUCER_EPOCH


def test_a_batch_that_nobody_has_verified_is_not_written() -> None:
    peers = Peers()
    batch = batch_of(b"x", producer=(PRODUCER, 0, 0), transactional=True)
    with refused_with(Reason.INVALID_TRANSACTION_STATE):
        peers[1].append_service.write(TOPIC, 0, batch)


def test_what_was_verified_waits_while_its_leader_leaves() -> None:
    peers = Peers()
    peers[1].is_coordinator_slow = True
    job = send(peers, b"x", 0)
    peers[1].partition.held_writes.hold()
    peers[1].is_coordinator_slow = False
    answer(peers)
    assert (job.is_done, peers[1].partition.end_offset) == (False, 0)
    peers.elect(2)
    assert reason_of(job.result) is Reason.NOT_LEADER
