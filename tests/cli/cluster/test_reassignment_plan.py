"""Plans of moves: evenly, racks apart, and as few as that takes."""

import itertools
import random
from collections import Counter

import pytest

from braidlog.cli.cluster.reassignment_plan import Plan, PlannedPartition, make_plan
from braidlog.client.drivers.cluster import ClusterPartition

APART = {number: f"rack-{number}" for number in range(1, 7)}


def placed(*places: tuple[int, ...]) -> list[ClusterPartition]:
    return [ClusterPartition("t", at, nodes[0], 1, nodes, nodes, ()) for at, nodes in enumerate(places)]


def racks(*numbers: int) -> dict[int, str]:
    return {number: APART[number] for number in numbers}


def after(before: list[ClusterPartition], plan: Plan) -> dict[int, tuple[int, ...]]:
    changed = {each.partition: each.replicas for each in plan.partitions}
    return {each.partition: changed.get(each.partition, each.replicas) for each in before}


def copies(before: list[ClusterPartition], plan: Plan) -> int:
    then = after(before, plan)
    return sum(len(set(then[each.partition]) - set(each.replicas)) for each in before)


def test_what_is_even_stays() -> None:
    assert make_plan(placed((1, 2, 3), (2, 3, 1), (3, 1, 2)), racks(1, 2, 3)) == Plan(())
    assert make_plan([], racks(1, 2)) == Plan(())


def test_a_node_takes_the_place_of_the_one_that_leaves() -> None:
    before = placed((1, 2, 3), (2, 3, 1), (3, 1, 2))
    plan = make_plan(before, racks(1, 2, 4))
    assert after(before, plan) == {0: (1, 2, 4), 1: (2, 4, 1), 2: (4, 1, 2)}


def test_a_node_that_is_new_gets_its_share_and_no_more_is_copied() -> None:
    before = placed(*itertools.islice(itertools.cycle([(1, 2, 3), (2, 3, 1), (3, 1, 2)]), 12))
    plan = make_plan(before, racks(1, 2, 3, 4))
    then = after(before, plan)
    assert Counter(node for nodes in then.values() for node in nodes) == dict.fromkeys((1, 2, 3, 4), 9)
    assert copies(before, plan) == 9
    assert Counter(nodes[0] for nodes in then.values()) == dict.fromkeys((1, 2, 3, 4), 3)


def test_racks_come_before_fewest_moves() -> None:
    shared = {1: "a", 2: "a", 3: "b"}
    (found,) = make_plan(placed((1, 2)), shared).partitions
    assert found == PlannedPartition("t", 0, (1, 3))
    assert make_plan(placed((1, 2, 3)), shared) == Plan(()), "as far as there are racks"


def test_racks_come_before_evenness() -> None:
    before = placed((1, 3), (1, 3), (1, 3), (1, 3))
    then = after(before, make_plan(before, {1: "a", 3: "b", 4: "b"}))
    assert all(1 in nodes for nodes in then.values())
    assert Counter(node for nodes in then.values() for node in nodes) == {1: 4, 3: 2, 4: 2}


def test_replicas_are_added_and_removed() -> None:
    before = placed((1,), (1,), (1,))
    then = after(before, make_plan(before, racks(1, 2, 3), 3))
    assert [sorted(nodes) for nodes in then.values()] == [[1, 2, 3]] * 3
    assert sorted(nodes[0] for nodes in then.values()) == [1, 2, 3]
    before = placed((1, 2, 3), (2, 3, 1), (3, 1, 2))
    plan = make_plan(before, racks(1, 2, 3), 1)
    assert (copies(before, plan), sorted(after(before, plan).values())) == (0, [(1,), (2,), (3,)])


def test_too_few_nodes_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="t/0 needs 3 replicas, but only 2 nodes are named; name more nodes"):
        make_plan(placed((1, 2, 3)), racks(1, 2))


@pytest.mark.parametrize("seed", range(30))
def test_any_cluster_becomes_even_and_apart(seed: int) -> None:
    chance = random.Random(seed)
    nodes = chance.sample(range(1, 7), chance.randint(3, 6))
    before = placed(*(tuple(chance.sample(range(1, 7), chance.randint(1, 3))) for _ in range(chance.randint(1, 20))))
    plan = make_plan(before, racks(*nodes))
    then = after(before, plan)
    loads = Counter(dict.fromkeys(nodes, 0))
    for each in before:
        found = then[each.partition]
        assert len(set(found)) == len(found) == len(each.replicas)
        loads.update(found)
    assert set(loads) == set(nodes)
    assert max(loads.values()) - min(loads.values()) <= 1
    assert make_plan(
        [ClusterPartition("t", at, None, 1, found, (), ()) for at, found in then.items()], racks(*nodes)
    ) == Plan(())
