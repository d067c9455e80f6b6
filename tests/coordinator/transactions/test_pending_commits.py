"""Commits that a transaction carries: pending with their group, counted once, and what makes a late one void."""

from collections.abc import Callable

import pytest
from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.coordinator.offsets import Commit
from braidlog.coordinator.transactions.markers import End
from braidlog.coordinator.transactions.pending_commits import PendingCommits
from braidlog.coordinator.transactions.transaction import ProducerIdentity
from braidlog.model.errors import Reason
from braidlog.partition.produce.transaction_verification import Verified

PRODUCER = 7


class Group:
    """A group's commits on one node; the coordinator of transactions is the test."""

    def __init__(self, node: Node | None = None) -> None:
        if node is None:
            node = Node()
            node.create("a", 2)
        self.node = node
        self.word = Verified(1, 1)
        self.meanwhile: Callable[[], None] = lambda: None
        kept = node.coordinator("g")
        self.pending = PendingCommits(kept.pending_commits._table, kept.offsets, self._ask, node.services.holdings)

    async def _ask(self, *_: object) -> Verified:
        word = self.word
        self.meanwhile()
        return word

    def stage(self, offset: int, partition: int = 0) -> int:
        commits = [Commit("a", partition, offset)]
        return self.node.run(self.pending.stage("g", ProducerIdentity("t", PRODUCER, 0), commits, guard=lambda: None))

    def end(self, number: int, *, commit: bool = True, epoch: int = 1) -> None:
        self.node.run(self.pending.complete([End(PRODUCER, 0, epoch, number, commit, [], ["g"])]))

    def committed(self, partition: int = 0) -> int | None:
        found = self.node.offsets.committed("g", "a", partition)
        return None if found is None else found.offset

    def restarted(self) -> "Group":
        return Group(self.node.restarted())


@pytest.mark.parametrize("restart", [False, True])
def test_a_topic_that_was_made_anew_does_not_get_what_is_pending_of_the_one_before(restart: bool) -> None:
    group = Group()
    group.node.create("b", 1)
    group.stage(5)
    staged = group.pending.stage("g", ProducerIdentity("t", PRODUCER, 0), [Commit("b", 0, 9)], guard=lambda: None)
    assert group.node.run(staged) == 2
    group.node.run(group.node.services.topics.delete("a"))
    group.node.create("a", 2)
    group = group.restarted() if restart else group
    group.end(1)
    assert group.committed() is None
    kept = group.node.offsets.committed("g", "b", 0)
    assert kept is not None
    assert kept.offset == 9


@pytest.mark.parametrize("commit", [True, False])
def test_what_is_pending_counts_or_goes_with_the_end(commit: bool) -> None:
    group = Group()
    assert (group.stage(5), group.stage(6, 1), group.stage(7)) == (1, 2, 2)
    group = group.restarted()
    assert group.pending.places("g") == {("a", 0), ("a", 1)}
    assert group.committed() is None
    group.end(1, commit=commit)
    for each in (group, group.restarted()):
        assert each.pending.places("g") == set()
        assert (each.committed(0), each.committed(1)) == ((7, 6) if commit else (None, None))


@pytest.mark.parametrize("restart", [False, True])
def test_an_end_that_is_repeated_after_a_newer_commit_changes_nothing(restart: bool) -> None:
    group = Group()
    group.stage(5)
    group.end(1)
    group.node.run(group.node.offsets.commit("g", [Commit("a", 0, 9)]))
    group = group.restarted() if restart else group
    group.end(1)
    assert group.committed() == 9


def test_an_end_that_is_repeated_into_the_next_transaction_leaves_it_alone() -> None:
    group = Group()
    group.stage(5)
    group.end(1)
    group.word = Verified(1, 2)
    group.stage(8)
    group.end(1, commit=False)
    group.end(1)
    assert (group.committed(), group.pending.places("g")) == (5, {("a", 0)})
    group.end(2)
    assert group.committed() == 8


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_word_that_the_end_has_overtaken_is_void(epoch: int) -> None:
    """Or that of a coordinator which has a successor, and does not know of it."""
    group = Group()

    def ends() -> None:
        group.node.spawn(group.pending.complete([End(PRODUCER, 0, epoch, epoch, False, [], ["g"])]))

    group.meanwhile = ends
    group.word = Verified(1, 2 * epoch - 1)
    with refused_with(Reason.CONCURRENT_TRANSACTIONS):
        group.stage(5)
    assert group.pending.places("g") == set()


def test_what_a_transaction_left_pending_does_not_count_for_the_next() -> None:
    group = Group()
    group.stage(5, 1)
    group.word = Verified(1, 2)
    group.stage(6)
    group.end(2)
    assert (group.committed(0), group.committed(1)) == (6, None)
