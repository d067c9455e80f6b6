"""Committed offsets: atomic, durable, refused where they cannot be."""

import pytest
from tests.broker.node import Node, node_with

from braidlog.coordinator.offsets import Commit, Offsets
from braidlog.model.errors import BrokerError, Reason


@pytest.fixture
def node() -> Node:
    return node_with(a=4, b=1)


def offsets_of(offsets: Offsets, group: str) -> dict[tuple[str, int], int]:
    return {place: committed.offset for place, committed in offsets.group_offsets(group).items()}


def refused(node: Node, group: str, *commits: Commit, forward_only: bool = False) -> Reason:
    before = offsets_of(node.offsets, group)
    with pytest.raises(BrokerError) as caught:
        node.run(node.offsets.commit(group, list(commits), forward_only=forward_only))
    assert offsets_of(node.offsets, group) == before, "all or nothing"
    return caught.value.reason


def test_commit_and_look(node: Node) -> None:
    offsets = node.offsets
    node.run(offsets.commit("g", [Commit("a", 0, 5, "note", 3), Commit("b", 0, 7)]))
    node.run(offsets.commit("h", [Commit("a", 0, 9)]))
    for each in (node, node.restarted()):
        offsets = each.offsets
        assert offsets_of(offsets, "g") == {("a", 0): 5, ("b", 0): 7}
        assert offsets.groups() == {"g", "h"}
        found = offsets.committed("g", "a", 0)
        assert found is not None
        assert (found.metadata, found.leader_epoch, found.committed_ms) == ("note", 3, each.clock.now_ms())
        assert offsets.committed("g", "a", 1) is None
        assert offsets.committed("nobody", "a", 0) is None


def test_it_may_go_back_unless_it_must_not(node: Node) -> None:
    offsets = node.offsets
    node.run(offsets.commit("g", [Commit("a", 0, 5)]))
    node.run(offsets.commit("g", [Commit("a", 0, 3)]))
    assert refused(node, "g", Commit("a", 1, 9), Commit("a", 0, 2), forward_only=True) is Reason.OFFSET_REGRESSION
    node.run(offsets.commit("g", [Commit("a", 0, 3), Commit("a", 1, 1)], forward_only=True))
    assert offsets_of(offsets, "g") == {("a", 0): 3, ("a", 1): 1}


@pytest.mark.parametrize("offset", [-1, -(2**40), 2**63])
def test_impossible_offsets(node: Node, offset: int) -> None:
    assert refused(node, "g", Commit("a", 0, 1), Commit("a", 1, offset)) is Reason.OFFSET_OUT_OF_RANGE


def test_places_that_are_not_there(node: Node) -> None:
    """Else anyone could fill the journal with commits of made-up topics."""
    assert refused(node, "g", Commit("nope", 0, 1)) is Reason.TOPIC_NOT_FOUND
    assert refused(node, "g", Commit("a", 4, 1)) is Reason.PARTITION_NOT_FOUND
    assert refused(node, "g", Commit("a", -1, 1)) is Reason.PARTITION_NOT_FOUND


@pytest.mark.parametrize("group", ["", "x" * 250, "a b", "a\nb", "a\x00", "\ud800", "tab\t"])
def test_bad_group_names(node: Node, group: str) -> None:
    assert refused(node, group, Commit("a", 0, 1)) is Reason.INVALID_GROUP


@pytest.mark.parametrize("group", ["g", "x" * 249, "team/app:1", "ü", "a.b_c-d"])
def test_good_group_names(node: Node, group: str) -> None:
    node.run(node.offsets.commit(group, [Commit("a", 0, 1)]))
    assert offsets_of(node.restarted().offsets, group) == {("a", 0): 1}


@pytest.mark.parametrize(
    ("metadata", "reason"), [("x" * 4097, Reason.METADATA_TOO_LARGE), ("\udfff", Reason.INVALID_RECORD)]
)
def test_bad_metadata(node: Node, metadata: str, reason: Reason) -> None:
    assert refused(node, "g", Commit("a", 0, 1, metadata)) is reason


def test_it_is_not_acknowledged_before_it_is_durable(node: Node) -> None:
    with node.runtime.holding_syncs():
        job = node.spawn(node.offsets.commit("g", [Commit("a", 0, 5)]))
        node.runtime.advance(10_000)
        assert not job.is_done
    job.result()


def test_a_commit_of_several_partitions_is_never_cut_in_two(node: Node) -> None:
    with node.runtime.holding_syncs():
        node.spawn(node.offsets.commit("g", [Commit("a", number, 5) for number in range(4)]))
        seen = set()
        for label, disk in node.disk.crash_states():
            found = node.restarted(disk).offsets.group_offsets("g")
            assert len(found) in (0, 4), label
            seen.add(len(found))
        assert seen == {0, 4}


def test_forgetting(node: Node) -> None:
    offsets = node.offsets
    for group in ("g", "h"):
        node.run(offsets.commit(group, [Commit("a", 0, 5), Commit("a", 1, 5), Commit("b", 0, 7)]))
    node.run(offsets.forget("g", "a"))
    node.run(offsets.forget("nobody"))
    for each in (node, node.restarted()):
        assert offsets_of(each.offsets, "g") == {("b", 0): 7}
        assert len(offsets_of(each.offsets, "h")) == 3
    node.run(offsets.forget("g"))
    assert offsets.groups() == {"h"}
    assert node.restarted().offsets.groups() == {"h"}


def test_an_empty_commit_is_fine(node: Node) -> None:
    end = node.state_entries
    node.run(node.offsets.commit("g", []))
    assert node.state_entries == end
