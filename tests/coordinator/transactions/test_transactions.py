"""Transactions: all or nothing after any crash, fencing, timeouts, retries."""

import errno
from collections.abc import Callable, Sequence
from random import Random
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from tests.broker.node import Node, batch_of, node_with
from tests.refusals import reason_of
from tests.sampling import FULL

from braidlog.codec.batch.header import read_header
from braidlog.coordinator.journal import Journal
from braidlog.coordinator.offsets import Commit
from braidlog.coordinator.state_limits import StateLimits
from braidlog.coordinator.transactions.markers import End, Failures
from braidlog.coordinator.transactions.transaction import ProducerIdentity, Transaction, TxnState, to_end
from braidlog.coordinator.transactions.transactions import EPOCH_MAX, RESUMED_AT_ONCE
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.partition.hosted_log import Role
from braidlog.testing.faults import Crash

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def node() -> Node:
    return node_with(a=2, b=1)


def begin(node: Node, name: str = "t", **more: Any) -> Transaction:
    return node.run(node.transactions.begin_producer(name, **more))


def add(node: Node, txn: Transaction, *partitions: tuple[str, int], name: str = "t") -> None:
    places = partitions or (("a", 0), ("b", 0))
    node.run(node.transactions.add_partitions(name, txn.producer_id, txn.epoch, places))


def write(
    node: Node, txn: Transaction, topic: str, value: bytes, *, sequence: int = 0, partition: int = 0, name: str = "t"
) -> None:
    batch = batch_of(value, producer=(txn.producer_id, txn.epoch, sequence), transactional=True)
    node.run(node.services.append.append(topic, partition, batch, transactional_id=name))


def stage(node: Node, txn: Transaction, *commits: Commit, name: str = "t") -> None:
    node.run(node.transactions.add_group(name, txn.producer_id, txn.epoch, "g"))
    producing = ProducerIdentity(name, txn.producer_id, txn.epoch)
    node.run(node.pending_commits.stage("g", producing, commits, guard=lambda: None))


def end(node: Node, txn: Transaction, *, commit: bool, name: str = "t") -> Transaction:
    return node.run(node.transactions.end_transaction(name, txn.producer_id, txn.epoch, commit=commit))


@pytest.mark.parametrize("commit", [True, False])
def test_records_and_offsets_count_together(node: Node, commit: bool) -> None:
    txn = begin(node)
    add(node, txn)
    write(node, txn, "a", b"x")
    write(node, txn, "b", b"y")
    stage(node, txn, Commit("a", 1, 7))
    assert node.values("a") == node.values("b") == []
    assert node.offsets.committed("g", "a", 1) is None
    assert end(node, txn, commit=commit).state is (TxnState.COMMITTED if commit else TxnState.ABORTED)
    for each in (node, node.restarted()):
        assert (each.values("a"), each.values("b")) == (([b"x"], [b"y"]) if commit else ([], []))
        committed = each.offsets.committed("g", "a", 1)
        assert (committed is not None and committed.offset == 7) is commit


def test_a_producer_goes_from_one_transaction_to_the_next(node: Node) -> None:
    txn = begin(node)
    for number in range(4):
        add(node, txn, ("a", 0))
        write(node, txn, "a", b"%d" % number, sequence=number)
        end(node, txn, commit=number % 2 == 0)
    assert node.values("a") == [b"0", b"2"]


def the_end(txn: Transaction, number: int, *, commit: bool = True, coordinator_epoch: int = 1) -> End:
    return End(txn.producer_id, txn.epoch, coordinator_epoch, number, commit, [("a", 0)])


@pytest.mark.parametrize("restart", [False, True])
def test_a_marker_that_is_repeated_ends_no_later_transaction(node: Node, restart: bool) -> None:
    txn = begin(node)
    for sequence in range(2):
        add(node, txn, ("a", 0))
        write(node, txn, "a", b"x", sequence=sequence)
        if not sequence:
            end(node, txn, commit=True)
    assert node.transactions.find("t").number == 2
    node = node.restarted() if restart else node
    before = node.services.hosting.partition("a", 0).end_offset
    assert node.run(node.services.markers.write([the_end(txn, 1)])) == {}, "it is written already"
    hosted = node.services.hosting.partition("a", 0)
    assert (hosted.end_offset, hosted.last_stable_offset) == (before, 2), "the second transaction is open"
    end(node, txn, commit=False)
    assert node.values("a") == [b"x"]


def test_a_coordinator_that_has_a_successor_ends_nothing(node: Node) -> None:
    txn = begin(node)
    add(node, txn, ("a", 0))
    write(node, txn, "a", b"x")
    successor, late = the_end(txn, 1, coordinator_epoch=3), the_end(txn, 2, coordinator_epoch=2, commit=False)
    assert node.run(node.services.markers.write([successor])) == {}
    failures = node.run(node.services.markers.write([late]))
    assert [(place, error.reason) for place, error in failures.items() if isinstance(error, BrokerError)] == [
        (("a", 0), Reason.NOT_COORDINATOR)
    ]
    assert node.values("a") == [b"x"]


def test_transactions_are_numbered_over_restarts_of_their_producer(node: Node) -> None:
    for number in range(1, 4):
        txn = begin(node)
        assert txn.number == number - 1
        add(node, txn, ("a", 0))
        assert node.transactions.find("t").number == number
        if number == 2:
            end(node, txn, commit=False)
        node = node.restarted()


def test_asking_again_for_the_same_end_is_fine_and_for_the_other_is_not(node: Node) -> None:
    txn = begin(node)
    add(node, txn)
    write(node, txn, "a", b"x")
    for _ in range(3):
        assert end(node, txn, commit=True).state is TxnState.COMMITTED
    markers = node.services.hosting.partition("a", 0).end_offset
    assert markers == 2, "one record, one marker"
    assert reason_of(end, node, txn, commit=False) is Reason.INVALID_TRANSACTION_STATE
    assert end(node.restarted(), txn, commit=True).state is TxnState.COMMITTED


def test_what_never_began_may_be_ended(node: Node) -> None:
    txn = begin(node)
    assert end(node, txn, commit=True).state is TxnState.COMMITTED
    txn = begin(node, "u")
    assert end(node, txn, commit=False, name="u").state is TxnState.ABORTED


def no_room() -> StorageFault:
    fault = StorageFault("no room")
    fault.__cause__ = OSError(errno.ENOSPC, "no room")
    return fault


def test_what_never_began_for_want_of_room_may_be_aborted(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not the transaction before it, which was committed, that its producer aborts."""
    txn = begin(node)
    add(node, txn)
    write(node, txn, "a", b"x")
    end(node, txn, commit=True)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "write", Mock(side_effect=no_room()))
        with pytest.raises(StorageFault):
            add(node, txn)
    for _ in range(2):
        assert end(node, txn, commit=False).state is TxnState.ABORTED
    add(node, txn)
    write(node, txn, "a", b"y", sequence=1)
    end(node, txn, commit=True)
    assert reason_of(end, node, txn, commit=False) is Reason.INVALID_TRANSACTION_STATE
    assert node.values("a") == [b"x", b"y"]


def test_a_decision_in_doubt_is_not_carried_out(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written and not known to be durable: no marker before it is, whoever asks again."""
    txn = begin(node)
    add(node, txn)
    write(node, txn, "a", b"x")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "wait_committed", Mock(side_effect=no_room()))
        for _ in range(2):
            with pytest.raises(StorageFault):
                end(node, txn, commit=True)
        assert node.run(node.transactions.resume()) == {"t": "no room"}
        assert node.services.hosting.partition("a", 0).end_offset == 1
    assert end(node, txn, commit=True).state is TxnState.COMMITTED
    assert node.values("a") == [b"x"]


def test_an_earlier_self_is_fenced(node: Node) -> None:
    old = begin(node)
    add(node, old)
    write(node, old, "a", b"old")
    new = begin(node)
    assert (new.producer_id, new.state) == (old.producer_id, TxnState.EMPTY)
    assert new.epoch > old.epoch
    assert reason_of(add, node, old) is Reason.STALE_PRODUCER_EPOCH
    assert reason_of(stage, node, old, Commit("a", 0, 1)) is Reason.STALE_PRODUCER_EPOCH
    assert reason_of(end, node, old, commit=True) is Reason.STALE_PRODUCER_EPOCH
    assert reason_of(write, node, old, "a", b"zombie", sequence=1) is Reason.STALE_PRODUCER_EPOCH
    assert reason_of(write, node, old, "a", b"zombie", partition=1) is Reason.STALE_PRODUCER_EPOCH
    add(node, new)
    write(node, new, "a", b"new")
    end(node, new, commit=True)
    assert node.values("a") == [b"new"]


def test_appends_only_where_and_when_the_transaction_writes(node: Node) -> None:
    txn = begin(node)
    assert reason_of(write, node, txn, "a", b"x") is Reason.INVALID_TRANSACTION_STATE
    add(node, txn, ("a", 0))
    assert reason_of(write, node, txn, "a", b"x", partition=1) is Reason.INVALID_TRANSACTION_STATE
    write(node, txn, "a", b"x")
    end(node, txn, commit=True)
    assert reason_of(write, node, txn, "a", b"late", sequence=1) is Reason.INVALID_TRANSACTION_STATE
    stranger = Transaction(999_999, 0, 1000)
    assert reason_of(write, node, stranger, "a", b"x") is Reason.PRODUCER_ID_MISMATCH


def test_no_record_before_its_partition_is_durably_in_the_journal(node: Node) -> None:
    """Else a crash could keep the record and lose the transaction: nothing would ever end it."""
    txn = begin(node)
    with node.runtime.holding_syncs():
        adding = node.spawn(node.transactions.add_partitions("t", txn.producer_id, txn.epoch, [("a", 0)]))
        batch = batch_of(b"x", producer=(txn.producer_id, txn.epoch, 0), transactional=True)
        early = node.spawn(node.services.append.append("a", 0, batch, transactional_id="t"))
    assert isinstance(early.error, BrokerError)
    assert early.error.reason is Reason.INVALID_TRANSACTION_STATE
    adding.result()
    write(node, txn, "a", b"x")


@pytest.mark.parametrize("restart", [False, True])
def test_what_is_added_later_refuses_no_write_to_what_was_added_before(node: Node, restart: bool) -> None:
    """Clients add a group, or another partition, while they write to the first."""
    txn = begin(node)
    add(node, txn, ("a", 0))
    if restart:
        node = node.restarted()
    transactions = node.transactions
    with node.runtime.holding_syncs():
        adding = [
            node.spawn(transactions.add_partitions("t", txn.producer_id, txn.epoch, [("a", 1)])),
            node.spawn(transactions.add_group("t", txn.producer_id, txn.epoch, "g")),
        ]
        batch = batch_of(b"x", producer=(txn.producer_id, txn.epoch, 0), transactional=True)
        writing = node.spawn(node.services.append.append("a", 0, batch, transactional_id="t"))
        early = node.spawn(node.services.append.append("a", 1, batch, transactional_id="t"))
        assert writing.error is None
    assert isinstance(early.error, BrokerError)
    for job in adding:
        job.result()
    writing.result()
    end(node, txn, commit=True)
    assert node.values("a") == [b"x"]
    with node.runtime.holding_syncs():
        node.spawn(transactions.add_partitions("t", txn.producer_id, txn.epoch, [("a", 0)]))
        late = batch_of(b"y", producer=(txn.producer_id, txn.epoch, 1), transactional=True)
        refused = node.spawn(node.services.append.append("a", 0, late, transactional_id="t"))
    assert isinstance(refused.error, BrokerError), "the next transaction has to say so anew, durably"


def test_what_cannot_be_committed_is_not_staged(node: Node) -> None:
    """It would be found out only when the end is decided, and then nothing could undo it."""
    txn = begin(node)
    assert reason_of(stage, node, txn, Commit("a", 0, -1)) is Reason.OFFSET_OUT_OF_RANGE
    assert reason_of(stage, node, txn, Commit("nope", 0, 1)) is Reason.TOPIC_NOT_FOUND
    assert reason_of(stage, node, txn, Commit("a", 9, 1)) is Reason.PARTITION_NOT_FOUND
    with pytest.raises(BrokerError):
        node.run(node.transactions.add_group("t", txn.producer_id, txn.epoch, "a b"))
    stage(node, txn, Commit("a", 0, 1), Commit("a", 0, 2))
    stage(node, txn, Commit("a", 0, 3))
    assert node.pending_commits.places("g") == {("a", 0)}
    end(node, txn, commit=True)
    found = node.offsets.committed("g", "a", 0)
    assert found is not None
    assert found.offset == 3


def test_bad_requests(node: Node) -> None:
    transactions = node.transactions
    with pytest.raises(BrokerError, match="unknown transactional id"):
        transactions.find("nope")
    for name in ("", "x" * 250, "a\nb", "\ud800"):
        assert reason_of(begin, node, name) is Reason.INVALID_TRANSACTION_STATE
    for timeout in (0, -1, 900_001):
        assert reason_of(begin, node, timeout_ms=timeout) is Reason.INVALID_TRANSACTION_TIMEOUT
    txn = begin(node)
    assert reason_of(add, node, txn, ("nope", 0)) is Reason.TOPIC_NOT_FOUND
    assert reason_of(add, node, txn, ("a", 2)) is Reason.PARTITION_NOT_FOUND


def test_epochs_end_and_a_new_producer_id_begins(node: Node) -> None:
    txn = begin(node)
    node.run(node.coordinator("t").transactions._keep("t", Transaction(txn.producer_id, EPOCH_MAX, 1000)))
    new = begin(node)
    assert new.epoch == 0
    assert new.producer_id != txn.producer_id
    add(node, new)
    write(node, new, "a", b"x")
    assert reason_of(write, node, txn, "a", b"zombie") is Reason.PRODUCER_ID_MISMATCH


def test_a_transaction_in_a_topic_that_goes_ends_all_the_same(node: Node) -> None:
    txn = begin(node)
    add(node, txn)
    write(node, txn, "b", b"x")
    stage(node, txn, Commit("a", 0, 1), Commit("b", 0, 1))
    node.run(node.services.topics.delete("a"))
    assert end(node, txn, commit=True).state is TxnState.COMMITTED
    assert node.values("b") == [b"x"]
    assert node.offsets.group_offsets("g").keys() == {("b", 0)}


# -- version 2: a new epoch with every end -------------------------------------------------------------------


def produce(node: Node, txn: Transaction, value: bytes, *, sequence: int = 0, topic: str = "a") -> None:
    """As a producer that adds no partitions."""
    batch = batch_of(value, producer=(txn.producer_id, txn.epoch, sequence), transactional=True)
    node.run(node.services.append.verify(topic, 0, read_header(batch), "t", adds=True))
    node.services.append.write(topic, 0, batch)


def commit_offset(node: Node, txn: Transaction, offset: int) -> None:
    producing = ProducerIdentity("t", txn.producer_id, txn.epoch)
    staged = node.pending_commits.stage("g", producing, [Commit("a", 1, offset)], guard=lambda: None, begins=True)
    node.run(staged)


def end_in_next_epoch(node: Node, txn: Transaction, *, commit: bool = True) -> Transaction:
    return node.run(node.transactions.end_transaction("t", txn.producer_id, txn.epoch, commit=commit, bump=True))


def test_every_end_gives_a_new_epoch_and_what_comes_late_of_the_one_before_counts_for_nothing(node: Node) -> None:
    first = begin(node)
    produce(node, first, b"one")
    produce(node, first, b"two", sequence=1)
    commit_offset(node, first, 7)
    second = end_in_next_epoch(node, first)
    assert (second.producer_id, second.epoch, second.state) == (first.producer_id, first.epoch + 1, TxnState.COMMITTED)
    assert end_in_next_epoch(node, first) == second, "a retry"
    assert reason_of(end_in_next_epoch, node, first, commit=False) is Reason.INVALID_TRANSACTION_STATE
    assert reason_of(produce, node, first, b"late", sequence=2) is Reason.STALE_PRODUCER_EPOCH
    assert reason_of(commit_offset, node, first, 8) is Reason.STALE_PRODUCER_EPOCH
    assert node.transactions.open_names() == [], "nothing late begins a transaction"
    assert reason_of(produce, node, second, b"gap", sequence=1) is Reason.OUT_OF_ORDER_SEQUENCE, "0 has not come yet"
    commit_offset(node, second, 9)
    produce(node, second, b"three")
    assert reason_of(end_in_next_epoch, node, first) is Reason.STALE_PRODUCER_EPOCH, "it uses the next one by now"
    third = end_in_next_epoch(node, second, commit=False)
    for each in (node, node.restarted()):
        assert each.values("a") == [b"one", b"two"]
        committed = each.offsets.committed("g", "a", 1)
        assert committed is not None
        assert committed.offset == 7
    produce(node.restarted(), third, b"four")


@pytest.mark.parametrize("way_back", ["asks for its next epoch", "aborts"])
def test_a_producer_whose_transaction_timed_out_is_refused_and_has_a_way_back(node: Node, way_back: str) -> None:
    """The epoch is the coordinator's, and no other producer has the id: what is late is refused, a new transaction is not."""
    transactions = node.transactions
    first = begin(node)
    produce(node, first, b"late")
    node.clock.advance(first.timeout_ms + 1)
    assert node.run(transactions.expire()) == ["t"]
    assert reason_of(produce, node, first, b"later", sequence=1) is Reason.STALE_PRODUCER_EPOCH
    assert reason_of(end_in_next_epoch, node, first) is Reason.STALE_PRODUCER_EPOCH, "it is not committed"
    node = node.restarted()
    if way_back == "aborts":
        second = end_in_next_epoch(node, first, commit=False)
        assert end_in_next_epoch(node, first, commit=False) == second, "a retry"
    else:
        second = begin(node, expected=(first.producer_id, first.epoch))
        assert begin(node, expected=(first.producer_id, first.epoch)) == second, "a retry"
    assert (second.producer_id, second.epoch > first.epoch) == (first.producer_id, True)
    produce(node, second, b"again")
    end_in_next_epoch(node, second)
    assert node.values("a") == [b"again"]


def test_a_producer_whose_transaction_timed_out_has_no_way_back_once_another_has_its_id(node: Node) -> None:
    first = begin(node)
    produce(node, first, b"late")
    node.clock.advance(first.timeout_ms + 1)
    node.run(node.transactions.expire())
    begin(node)
    assert reason_of(end_in_next_epoch, node, first, commit=False) is Reason.STALE_PRODUCER_EPOCH
    assert reason_of(begin, node, expected=(first.producer_id, first.epoch)) is Reason.STALE_PRODUCER_EPOCH


def test_batches_that_wait_for_their_partition_to_be_added_keep_their_order(node: Node) -> None:
    txn = begin(node)
    append = node.services.append

    async def one(sequence: int) -> None:
        batch = batch_of(b"%d" % sequence, producer=(txn.producer_id, txn.epoch, sequence), transactional=True)
        header = read_header(batch)
        if not append.is_verified("a", 0, header):
            await append.verify("a", 0, header, "t", adds=True)
        append.write("a", 0, batch)
        if sequence == 0:
            assert not append.is_verified("a", 0, header), "number 1 waits still: who comes now is behind it"

    with node.runtime.holding_syncs():
        early = [node.spawn(one(0)), node.spawn(one(1))]
    late = [node.spawn(one(sequence)) for sequence in (2, 3)]
    for job in (*early, *late):
        job.result()
    end_in_next_epoch(node, txn)
    assert node.values("a") == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_of_what_never_began_gives_a_new_epoch_too(node: Node, commit: bool) -> None:
    txn = begin(node)
    for _ in range(3):
        before, txn = txn, end_in_next_epoch(node, txn, commit=commit)
        assert txn.epoch == before.epoch + 1
        assert end_in_next_epoch(node, before, commit=commit) == txn


def test_an_end_that_cannot_be_carried_out_yet_is_the_same_when_it_is_asked_for_again(node: Node) -> None:
    first = begin(node)
    produce(node, first, b"x")
    node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))
    assert reason_of(end_in_next_epoch, node, first) is Reason.NOT_LEADER
    assert reason_of(end_in_next_epoch, node, first, commit=False) is Reason.INVALID_TRANSACTION_STATE
    node.run(node.services.placement.set_role("a", 0, Role.LEADER))
    assert end_in_next_epoch(node, first).epoch == first.epoch + 1
    assert node.values("a") == [b"x"]


def test_a_producer_whose_epochs_are_used_goes_on_with_another_id(node: Node) -> None:
    """Also if it does not hear of that, and asks again: for the end, or for its next epoch."""
    txn = begin(node)
    last = Transaction(txn.producer_id, EPOCH_MAX, 1000)
    node.run(node.coordinator("t").transactions._keep("t", last))
    produce(node, last, b"x")
    other = end_in_next_epoch(node, last)
    assert (other.producer_id != last.producer_id, other.epoch) == (True, 0)
    assert end_in_next_epoch(node, last) == other
    assert node.values("a") == [b"x"]
    assert reason_of(produce, node, last, b"late", sequence=1) is Reason.PRODUCER_ID_MISMATCH
    go_on = node.transactions.begin_producer
    expected = (last.producer_id, last.epoch)
    begun = node.run(go_on("t", expected=expected))
    assert (begun.producer_id, begun.epoch) == (other.producer_id, 1)
    assert node.run(go_on("t", expected=expected)) == begun
    produce(node, begun, b"y")


def test_a_producer_that_begins_anew_is_not_ended_by_what_it_asked_before(node: Node) -> None:
    first = begin(node)
    produce(node, first, b"x")
    begun = node.run(node.transactions.begin_producer("t", expected=(first.producer_id, first.epoch)))
    assert reason_of(end_in_next_epoch, node, first) is Reason.STALE_PRODUCER_EPOCH
    assert node.transactions.find("t").epoch == begun.epoch


# -- as producers with an id and an epoch of their own ask ---------------------------------------------------


def test_a_producer_goes_on_to_its_own_next_epoch(node: Node) -> None:
    def go_on(txn: Transaction) -> Transaction:
        expected = (txn.producer_id, txn.epoch)
        return node.run(node.transactions.begin_producer("t", expected=expected))

    first = begin(node)
    add(node, first)
    write(node, first, "a", b"left open")
    second = go_on(first)
    assert (second.producer_id, second.state) == (first.producer_id, TxnState.EMPTY)
    assert second.epoch > first.epoch
    assert node.services.hosting.partition("a", 0).last_stable_offset == 2, "what was open is aborted"
    again = go_on(first)
    assert (again.producer_id, again.epoch) == (second.producer_id, second.epoch), "a retry gets what it got"
    other = begin(node)
    assert reason_of(go_on, second) is Reason.STALE_PRODUCER_EPOCH, "another one has begun meanwhile"
    stranger = Transaction(other.producer_id + 1, other.epoch, 1000)
    assert reason_of(go_on, stranger) is Reason.PRODUCER_ID_MISMATCH


@pytest.mark.parametrize("restart", [False, True])
def test_a_producer_that_goes_on_is_not_fenced_by_its_own_first_try(node: Node, restart: bool) -> None:
    """Which aborts what it left open in an epoch that nobody is told, and cannot write a marker yet."""
    first = begin(node)
    add(node, first, ("a", 0))
    write(node, first, "a", b"left open")
    node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))

    def go_on(node: Node, txn: Transaction) -> Transaction:
        expected = (txn.producer_id, txn.epoch)
        return node.run(node.transactions.begin_producer("t", expected=expected))

    assert reason_of(go_on, node, first) is Reason.NOT_LEADER
    assert reason_of(go_on, node, first) is Reason.NOT_LEADER
    node = node.restarted() if restart else node
    node.run(node.services.placement.set_role("a", 0, Role.LEADER))
    node.run(node.transactions.resume())
    assert node.transactions.find("t").state is TxnState.ABORTED
    second = go_on(node, first)
    assert (second.state, go_on(node, first)) == (TxnState.EMPTY, second), "and a retry gets what it got"
    add(node, second, ("a", 0))
    assert reason_of(go_on, node, first) is Reason.STALE_PRODUCER_EPOCH, (
        "once it uses the next epoch the last one is over"
    )
    end(node, second, commit=False)
    assert reason_of(go_on, node, first) is Reason.STALE_PRODUCER_EPOCH


def test_a_producer_that_another_replaced_meanwhile_is_fenced_after_its_own_first_try(node: Node) -> None:
    first = begin(node)
    add(node, first, ("a", 0))
    node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))
    go_on = node.transactions.begin_producer
    expected = (first.producer_id, first.epoch)
    assert reason_of(lambda: node.run(go_on("t", expected=expected))) is Reason.NOT_LEADER
    node.run(node.services.placement.set_role("a", 0, Role.LEADER))
    other = begin(node)
    assert reason_of(lambda: node.run(go_on("t", expected=expected))) is Reason.STALE_PRODUCER_EPOCH
    assert node.transactions.find("t").epoch == other.epoch


def test_another_producer_id_is_told_apart_from_an_old_epoch(node: Node) -> None:
    txn = begin(node)
    other = Transaction(txn.producer_id + 1, txn.epoch, 1000)
    assert reason_of(add, node, other) is Reason.PRODUCER_ID_MISMATCH
    assert reason_of(end, node, other, commit=True) is Reason.PRODUCER_ID_MISMATCH


def test_offsets_of_a_group_member_are_guarded_in_the_step_that_stages_them(node: Node) -> None:
    transactions = node.transactions
    txn = begin(node)
    asked = []

    def stage_guarded(guard: Callable[[], None]) -> None:
        producing = ProducerIdentity("t", txn.producer_id, txn.epoch)
        node.run(node.pending_commits.stage("g", producing, [Commit("a", 0, 5)], guard=guard))

    assert reason_of(stage_guarded, lambda: None) is Reason.INVALID_TRANSACTION_STATE, "it has not begun"
    node.run(transactions.add_group("t", txn.producer_id, txn.epoch, "g"))
    assert transactions.find("t").state is TxnState.ONGOING

    def refuse() -> None:
        asked.append(transactions.find("t").groups)
        raise BrokerError(Reason.STALE_GENERATION, "not any more")

    assert reason_of(stage_guarded, refuse) is Reason.STALE_GENERATION
    assert asked == [["g"]], "the transaction knows of the group first"
    assert node.pending_commits.places("g") == set()
    stage_guarded(lambda: None)
    for each in (node, node.restarted()):
        assert each.pending_commits.places("g") == {("a", 0)}
        assert each.pending_commits.places("other") == set()
    end(node, txn, commit=True)
    assert node.pending_commits.places("g") == set()
    committed = node.offsets.committed("g", "a", 0)
    assert committed is not None
    assert committed.offset == 5


def test_a_group_added_and_nothing_staged_ends_well(node: Node) -> None:
    txn = begin(node)
    node.run(node.transactions.add_group("t", txn.producer_id, txn.epoch, "g"))
    assert end(node, txn, commit=True).state is TxnState.COMMITTED
    with pytest.raises(BrokerError):
        node.run(node.transactions.add_group("t", txn.producer_id, txn.epoch, ""))


# -- time ----------------------------------------------------------------------------------------------------


def test_what_is_open_for_too_long_is_aborted_and_its_producer_fenced(node: Node) -> None:
    transactions = node.transactions
    txn = begin(node, timeout_ms=1000)
    node.clock.advance(5000)
    assert node.run(transactions.expire()) == [], "it has not begun"
    add(node, txn)
    write(node, txn, "a", b"x")
    node.clock.advance(1000)
    assert node.run(transactions.expire()) == []
    node.append("a", b"behind")
    assert node.values("a") == []
    node.clock.advance(1)
    assert node.run(transactions.expire()) == ["t"]
    assert node.values("a") == [b"behind"]
    assert reason_of(write, node, txn, "a", b"late", sequence=1) is Reason.STALE_PRODUCER_EPOCH
    assert reason_of(end, node, txn, commit=True) is Reason.STALE_PRODUCER_EPOCH
    new = begin(node)
    add(node, new)
    write(node, new, "a", b"new")
    end(node, new, commit=True)
    assert node.values("a") == [b"behind", b"new"]


@pytest.mark.parametrize("step_ms", [-2 * DAY_MS, 2 * DAY_MS])
def test_a_clock_that_steps_neither_ends_a_transaction_nor_keeps_it_open(node: Node, step_ms: int) -> None:
    transactions = node.transactions
    txn = begin(node, timeout_ms=1000)
    add(node, txn)
    node.clock.step(step_ms)
    node.clock.advance(1000)
    assert node.run(transactions.expire()) == []
    node.clock.advance(1)
    assert node.run(transactions.expire()) == ["t"]


def test_a_transaction_of_a_run_whose_clock_was_ahead_has_its_time_from_the_start_of_this_one(node: Node) -> None:
    add(node, begin(node, timeout_ms=1000))
    node.clock.step(-2 * DAY_MS)
    again = node.restarted()
    again.clock.advance(1000)
    assert again.run(again.transactions.expire()) == []
    again.clock.advance(1)
    assert again.run(again.transactions.expire()) == ["t"]


def test_ids_nobody_uses_are_forgotten(node: Node) -> None:
    txn = begin(node)
    open_one = begin(node, "open", timeout_ms=900_000)
    node.clock.advance(StateLimits().transactional_id_expiration_ms)
    add(node, open_one, name="open")
    node.clock.advance(1)
    node.run(node.transactions.forget_unused())
    for each in (node, node.restarted()):
        assert each.transactions.names() == ["open"]
    assert begin(node).producer_id != txn.producer_id


# -- one at a time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_requests_of_one_id_at_once_are_as_if_one_after_the_other(seed: int) -> None:
    """Whatever races, in the end nothing is open and nothing hangs."""
    rng = Random(seed)
    node = Node(rng=rng)
    node.create("a", 1)
    transactions = node.transactions

    async def producer(number: int) -> None:
        for turn in range(3):
            try:
                txn = await transactions.begin_producer("t")
                await transactions.add_partitions("t", txn.producer_id, txn.epoch, [("a", 0)])
                value = b"%d/%d" % (number, turn)
                batch = batch_of(value, producer=(txn.producer_id, txn.epoch, 0), transactional=True)
                await node.services.append.append("a", 0, batch, transactional_id="t")
                await transactions.end_transaction("t", txn.producer_id, txn.epoch, commit=rng.random() < 0.7)
            except BrokerError as error:
                if error.reason not in (Reason.STALE_PRODUCER_EPOCH, Reason.INVALID_TRANSACTION_STATE):
                    raise

    jobs = [node.spawn(producer(number)) for number in range(4)]
    node.runtime.settle()
    for job in jobs:
        job.result()
    begin(node)
    hosted = node.services.hosting.partition("a", 0)
    assert hosted.last_stable_offset == hosted.end_offset, f"seed {seed}: something hangs"


def test_a_client_that_goes_away_does_not_hold_up_the_next(node: Node) -> None:
    txn = begin(node)
    with node.runtime.holding_syncs():
        first = node.spawn(node.transactions.add_partitions("t", txn.producer_id, txn.epoch, [("a", 0)]))
        second = node.spawn(node.transactions.add_partitions("t", txn.producer_id, txn.epoch, [("a", 1)]))
        second.cancel()
        third = node.spawn(node.transactions.add_partitions("t", txn.producer_id, txn.epoch, [("b", 0)]))
    first.result()
    assert third.result().partitions == [("a", 0), ("b", 0)]


# -- an end that cannot be carried out yet -------------------------------------------------------------------


def test_one_partition_that_takes_no_marker_holds_up_its_own_transactions_only(node: Node) -> None:
    transactions = node.transactions
    stuck, fine = begin(node), begin(node, "u")
    add(node, stuck, ("a", 0), ("b", 0))
    add(node, fine, ("a", 1), name="u")
    write(node, stuck, "b", b"x")
    write(node, fine, "a", b"y", partition=1, name="u")
    node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))
    assert reason_of(end, node, stuck, commit=True) is Reason.NOT_LEADER
    assert transactions.find("t").state is TxnState.COMMITTING
    assert reason_of(add, node, stuck, ("b", 0)) is Reason.CONCURRENT_TRANSACTIONS
    assert reason_of(end, node, stuck, commit=False) is Reason.INVALID_TRANSACTION_STATE
    end(node, fine, commit=True, name="u")
    again = node.restarted()
    assert list(again.run(again.transactions.resume())) == ["t"], "opening goes on without it"
    assert again.run(again.transactions.expire()) == []
    again.run(again.services.placement.set_role("a", 0, Role.LEADER))
    assert end(again, stuck, commit=True).state is TxnState.COMMITTED, "a retry of the end carries it out"
    assert again.values("b") == [b"x"]


def test_what_was_decided_is_ended_many_at_a_time(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one of them that cannot be ended yet holds up itself only."""
    transactions = node.coordinator("t").transactions
    names = [f"t{number:03}" for number in range(RESUMED_AT_ONCE + 1)]
    for name in names:
        txn = node.run(transactions.begin_producer(name))
        place = ("b", 0) if name == "t007" else ("a", 0)
        node.run(transactions.add_partitions(name, txn.producer_id, txn.epoch, [place]))
        node.run(transactions._keep(name, to_end(transactions.find(name), commit=True, bump=False)))
    node.run(node.services.placement.set_role("b", 0, Role.FOLLOWER))
    markers, asked = node.services.markers.write, list[int]()

    async def write(ends: Sequence[End], **more: Any) -> Failures:
        asked.append(len(ends))
        return await markers(ends, **more)

    monkeypatch.setattr(node.services.markers, "write", write)
    assert list(node.run(transactions.resume())) == ["t007"]
    assert asked == [RESUMED_AT_ONCE, 1]
    assert {transactions.find(name).state for name in names if name != "t007"} == {TxnState.COMMITTED}
    node.run(node.services.placement.set_role("b", 0, Role.LEADER))
    assert node.run(transactions.resume()) == {}
    assert transactions.find("t007").state is TxnState.COMMITTED


# -- crashes -------------------------------------------------------------------------------------------------


class Script:
    """Two transactions, one after the other; what was acknowledged is noted as it is acknowledged."""

    def __init__(self, *, commit: bool, bump: bool = False) -> None:
        self.commit = commit
        self.bump = bump
        self.node = Node()
        self.node.create("a", 1)
        self.node.create("b", 1)
        self.node.begin_shards()
        self.decided = False
        self.ended = False

    def run(self) -> None:
        node = self.node
        first = begin(node)
        add(node, first)
        write(node, first, "a", b"a0")
        write(node, first, "b", b"b0")
        stage(node, first, Commit("a", 0, 10))
        self.decided = True
        if self.bump:
            first = end_in_next_epoch(node, first, commit=self.commit)
        else:
            end(node, first, commit=self.commit)
        self.ended = True
        add(node, first)
        write(node, first, "a", b"left open", sequence=0 if self.bump else 1)
        stage(node, first, Commit("a", 0, 20))


def check(script: Script, again: Node, where: str) -> bool:
    """All or nothing, and what was acknowledged. Returns whether the transaction counts."""
    assert again.run(again.transactions.resume()) == {}, where
    if not {"a", "b"} <= set(again.services.hosting.names()):
        return False
    seen = (again.values("a"), again.values("b"))
    committed = again.offsets.committed("g", "a", 0)
    counts = seen == ([b"a0"], [b"b0"])
    assert counts or seen == ([], []), f"{where}: half of it counts: {seen}"
    assert (committed is not None) == counts, f"{where}: records and offsets part ways"
    assert committed is None or committed.offset == 10, where
    if script.ended:
        assert counts == script.commit, f"{where}: it was acknowledged and came out otherwise"
    if counts:
        assert script.decided, where
        assert script.commit, where
    # Whatever is still open is fenced and aborted by its next self, and then nobody waits for anything.
    begin(again)
    for topic in ("a", "b"):
        hosted = again.services.hosting.partition(topic, 0)
        assert hosted.last_stable_offset == hosted.end_offset, f"{where}: {topic} hangs"
    return counts


@pytest.mark.parametrize(("commit", "bump"), [(True, False), (False, False), (True, True)])
def test_every_crash_point_gives_all_or_nothing(commit: bool, bump: bool) -> None:
    rng = Random(5)
    states = outcomes = 0
    seen: set[int] = set()
    number = 0
    while True:
        number += 1
        script = Script(commit=commit, bump=bump)
        script.node.disk.stop_at = len(script.node.disk.operations) + number
        try:
            script.run()
        except Crash:
            pass
        else:
            break
        killed = script.node.restarted()
        outcomes |= 1 << check(script, killed, f"killed at operation {number}")
        for label, disk in script.node.disk.crash_states(limit=40 if FULL else 6, rng=rng, seen=seen):
            outcomes |= 1 << check(script, script.node.restarted(disk), f"operation {number}, {label}")
            states += 1
    print(f"commit={commit}: {number - 1} operations, {states} crash states")
    assert states > 60
    assert outcomes == (3 if commit else 1), "both outcomes must have been seen"


def test_a_crash_while_resuming_is_resumed() -> None:
    """The end was decided, no marker written: kill at every operation of the recovery, then recover again."""
    script = Script(commit=True)
    node = script.node
    txn = begin(node)
    add(node, txn)
    write(node, txn, "a", b"a0")
    write(node, txn, "b", b"b0")
    stage(node, txn, Commit("a", 0, 10))
    decided = node.transactions.find("t")
    decided = msgspec.structs.replace(decided, state=TxnState.COMMITTING)
    node.run(node.coordinator("t").transactions._keep("t", decided))
    script.decided = script.ended = True
    rng = Random(6)
    number, states = 0, 0
    while True:
        number += 1
        again = node.restarted()
        again.disk.stop_at = len(again.disk.operations) + number
        try:
            again.run(again.transactions.resume())
        except Crash:
            pass
        else:
            break
        for label, disk in again.disk.crash_states(limit=30, rng=rng):
            assert check(script, again.restarted(disk), f"recovery killed at {number}, {label}")
            states += 1
    assert states > 20
