"""Assignors: what must hold for every division."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.coordinator.groups.assignors import Assignment, Assignor, assign

MEMBERS = [f"m{number}" for number in range(8)]
TOPICS = ["a", "b", "c"]
Wishes = dict[str, frozenset[str]]
Counts = dict[str, int]

wishes_of = st.dictionaries(
    st.sampled_from(MEMBERS), st.frozensets(st.sampled_from(TOPICS), min_size=1), min_size=1, max_size=8
)
some_members = st.lists(st.sampled_from(MEMBERS), min_size=1, unique=True)
counts_of = st.fixed_dictionaries({topic: st.integers(0, 30) for topic in TOPICS})


def owned(assignment: Assignment, topic: str) -> list[int]:
    return [partition for shares in assignment.values() for partition in shares.get(topic, [])]


@given(st.sampled_from(Assignor), wishes_of, counts_of, wishes_of, counts_of)
@settings(max_examples=400)
def test_each_partition_has_exactly_one_owner_and_shares_are_even(
    assignor: Assignor, wishes: Wishes, counts: Counts, earlier: Wishes, fewer: Counts
) -> None:
    previous = assign(assignor, earlier, fewer, {})
    assignment = assign(assignor, wishes, counts, previous)
    assert set(assignment) == set(wishes)
    for topic in TOPICS:
        takers = [member for member, wish in wishes.items() if topic in wish]
        assert sorted(owned(assignment, topic)) == (list(range(counts[topic])) if takers else [])
        sizes = [len(assignment[member][topic]) for member in takers]
        assert not sizes or max(sizes) - min(sizes) <= 1
        for member in wishes:
            shares = assignment[member].get(topic, [])
            assert shares == sorted(shares)
            assert member in takers or topic not in assignment[member]


@given(st.sampled_from(Assignor), wishes_of, counts_of, st.randoms())
def test_the_order_of_the_input_does_not_matter(
    assignor: Assignor, wishes: Wishes, counts: Counts, rng: Random
) -> None:
    shuffled = list(wishes.items())
    rng.shuffle(shuffled)
    previous = assign(assignor, wishes, counts, {})
    backwards = dict(reversed(list(previous.items())))
    assert assign(assignor, wishes, counts, previous) == assign(assignor, dict(shuffled), counts, backwards)


@given(wishes_of, counts_of)
def test_sticky_without_a_change_changes_nothing(wishes: Wishes, counts: Counts) -> None:
    first = assign(Assignor.STICKY, wishes, counts, {})
    assert assign(Assignor.STICKY, wishes, counts, first) == first


def moves_at_least(before: dict[str, list[int]], members: list[str], count: int) -> int:
    """The fewest partitions that must change hands for even shares: those nobody keeps, over all ways to place the extras."""
    each, extra = divmod(count, len(members))
    held = sorted((len([p for p in before.get(member, []) if p < count]) for member in members), reverse=True)
    kept = sum(min(have, each + (place < extra)) for place, have in enumerate(held))
    return count - kept


@given(some_members, some_members, st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=400)
def test_sticky_moves_as_few_as_possible(
    before_members: list[str], members: list[str], before_count: int, count: int
) -> None:
    one = {member: frozenset({"a"}) for member in before_members}
    previous = assign(Assignor.STICKY, one, {"a": before_count}, {})
    held = {member: shares.get("a", []) for member, shares in previous.items()}
    assignment = assign(Assignor.STICKY, {m: frozenset({"a"}) for m in members}, {"a": count}, previous)
    kept = sum(len(set(assignment[m]["a"]) & set(held.get(m, []))) for m in members)
    assert count - kept == moves_at_least(held, members, count)


@pytest.mark.parametrize(
    ("assignor", "expected"),
    [
        (Assignor.RANGE, {"m0": [0, 1, 2], "m1": [3, 4], "m2": [5, 6]}),
        (Assignor.ROUND_ROBIN, {"m0": [0, 3, 6], "m1": [1, 4], "m2": [2, 5]}),
    ],
)
def test_by_hand(assignor: Assignor, expected: dict[str, list[int]]) -> None:
    wishes = {member: frozenset({"a"}) for member in ("m2", "m0", "m1")}
    assert assign(assignor, wishes, {"a": 7}, {}) == {member: {"a": shares} for member, shares in expected.items()}


def test_a_topic_that_is_gone_gives_nothing() -> None:
    assert assign(Assignor.STICKY, {"m": frozenset({"gone"})}, {}, {"m": {"gone": [0, 1]}}) == {"m": {"gone": []}}
