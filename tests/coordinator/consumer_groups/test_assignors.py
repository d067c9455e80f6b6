"""Every partition has one reader that wants it, members are even, and what need not move does not."""

from random import Random

import pytest

from braidlog.coordinator.consumer_groups.assignors import (
    ASSIGNORS,
    RANGE,
    STEPS_PER_SLICE,
    UNIFORM,
    Target,
    Work,
    assign,
)


def target_of(work: Work) -> tuple[Target, int]:
    """The target, and how many pauses were made."""
    pauses = 0
    while True:
        try:
            next(work)
        except StopIteration as ended:
            return ended.value, pauses
        pauses += 1


def divided(
    assignor: str, wishes: dict[str, set[str]], counts: dict[str, int], previous: Target | None = None
) -> Target:
    frozen = {member: frozenset(wish) for member, wish in wishes.items()}
    return target_of(assign(assignor, frozen, counts, previous or {}))[0]


def places(target: Target, member: str) -> set[tuple[str, int]]:
    return {(topic, number) for topic, numbers in target[member].items() for number in numbers}


def sizes(target: Target) -> list[int]:
    return sorted(len(places(target, member)) for member in target)


@pytest.mark.parametrize("assignor", ASSIGNORS)
@pytest.mark.parametrize("seed", range(60))
def test_every_partition_has_one_reader_that_wants_it_and_nothing_moves_without_need(assignor: str, seed: int) -> None:
    chance = Random(seed)
    topics = {f"t{number}": chance.randrange(9) for number in range(chance.randrange(1, 8))}
    alike = chance.random() < 0.5
    everything = set(topics) | {"absent"}
    previous: Target = {}
    members = [f"m{number}" for number in range(chance.randrange(1, 7))]
    for _ in range(6):
        wishes = {
            member: everything if alike else set(chance.sample(sorted(everything), chance.randrange(len(everything))))
            for member in members
        }
        target = divided(assignor, wishes, topics, previous)
        assert divided(assignor, wishes, topics, target) == target, "the same wishes give the same again"
        owners: dict[tuple[str, int], str] = {}
        for member in members:
            for place in places(target, member):
                assert place not in owners
                assert place[0] in wishes[member]
                owners[place] = member
            assert all(numbers == sorted(numbers) and numbers for numbers in target[member].values())
        wanted = {topic for wish in wishes.values() for topic in wish}
        assert owners.keys() == {(topic, n) for topic in wanted & topics.keys() for n in range(topics[topic])}
        if alike and assignor == UNIFORM:
            assert sizes(target)[-1] - sizes(target)[0] <= 1
        previous = target
        members = [m for m in members if chance.random() < 0.8] + [f"n{chance.random()}"]


def test_uniform_counts_all_topics_together() -> None:
    """Of many topics with one partition each, no member has them all."""
    topics = {f"t{number:02}": 1 for number in range(10)}
    assert sizes(divided(UNIFORM, {member: set(topics) for member in "abc"}, topics)) == [3, 3, 4]


def test_uniform_moves_only_what_it_must() -> None:
    wishes = {member: {"t", "u"} for member in "abcd"}
    topics = {"t": 7, "u": 6}
    before = divided(UNIFORM, wishes, topics)
    after = divided(UNIFORM, {**wishes, "e": {"t", "u"}}, topics, before)
    moved = sum(len(places(before, member) - places(after, member)) for member in before)
    assert moved == len(places(after, "e")) == 2
    had: Target = {"a": {"t": [0]}, "b": {"t": [1, 2]}}
    assert divided(UNIFORM, {"a": {"t"}, "b": {"t"}}, {"t": 3}, had) == had, "who had more keeps it"
    left = divided(UNIFORM, {member: wishes[member] for member in "abc"}, topics, before)
    assert all(places(before, member) <= places(left, member) for member in "abc")


def test_uniform_fills_up_those_who_want_more() -> None:
    """Who alone reads a topic gets less of what all read."""
    target = divided(UNIFORM, {"a": {"own", "all"}, "b": {"all"}, "c": {"all"}}, {"own": 3, "all": 6})
    assert sizes(target) == [3, 3, 3]
    assert target["a"] == {"own": [0, 1, 2]}


def test_range_divides_topics_that_are_alike_alike() -> None:
    target = divided(RANGE, {member: {"t", "u"} for member in "ab"}, {"t": 5, "u": 5})
    assert target == {"a": {"t": [0, 1, 2], "u": [0, 1, 2]}, "b": {"t": [3, 4], "u": [3, 4]}}


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_a_large_group_is_divided_in_slices(assignor: str) -> None:
    topics = {f"t{number}": 1 for number in range(200)}
    wishes = {f"m{number}": frozenset(list(topics)[number % 150 :]) for number in range(300)}
    _, pauses = target_of(assign(assignor, wishes, topics, {}))
    assert pauses >= 150 * 125 // STEPS_PER_SLICE + 1
    few = {"m": frozenset(topics)}
    assert target_of(assign(assignor, few, topics, {}))[1] == 0, "a small one is divided at once"
