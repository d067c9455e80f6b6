"""Where new partitions are placed: evenly, on racks apart, by the nodes that are there."""

from collections import Counter
from itertools import pairwise

import msgspec
import pytest
from tests.refusals import refused_with

from braidlog.cluster.membership import Member, Membership
from braidlog.cluster.replica_placement import complete, place
from braidlog.kv.replicated.slots import LOG_TOPIC
from braidlog.model.errors import Reason
from braidlog.replication.control.incarnation import Life, Registration


def nodes(*racks: str) -> Membership:
    life = Life(boot_id="b", folder_id="f")
    members = [Member(Registration(number, life), rack=rack) for number, rack in enumerate(racks, 1)]
    return Membership({str(number): member for number, member in enumerate(members, 1)})


def without(known: Membership, number: int, **fields: bool) -> Membership:
    members = dict(known.members)
    members[str(number)] = msgspec.structs.replace(members[str(number)], **fields)
    return Membership(members)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_leaders_and_copies_are_spread_evenly(count: int) -> None:
    found = place(nodes(*"abcdefgh"[:count]), "orders", range(8 * count))
    assert {len(set(each)) for each in found} == {min(3, count)}
    leaders = Counter(each[0] for each in found)
    copies = Counter(node for each in found for node in each)
    assert max(leaders.values()) == min(leaders.values()) == 8
    assert max(copies.values()) - min(copies.values()) <= 2
    if count > 3:
        assert len(set(found)) > count, "not always the same who share a partition"


@pytest.mark.parametrize("racks", ["aabbcc", "aaabbc", "aaaab"])
def test_copies_are_on_as_many_racks_as_there_are(racks: str) -> None:
    known = nodes(*racks)
    wanted = min(3, len(set(racks)))
    for each in place(known, "orders", range(30)):
        assert len({known.members[str(node)].rack for node in each}) == wanted


def test_topics_of_one_partition_begin_everywhere() -> None:
    leaders = {place(nodes("a", "b", "c"), f"topic-{number}", [0])[0][0] for number in range(30)}
    assert leaders == {1, 2, 3}


def test_more_partitions_go_on_where_the_others_ended() -> None:
    known = nodes("a", "b", "c")
    assert place(known, "t", range(2)) + place(known, "t", range(2, 6)) == place(known, "t", range(6))
    assert all(one[0] != other[0] for one, other in pairwise(place(known, "t", range(6))))


def test_a_fenced_node_gets_replicas_and_leads_none_of_them() -> None:
    known = without(nodes("a", "b", "c"), 2, is_fenced=True)
    found = place(known, "t", range(9))
    assert {frozenset(each) for each in found} == {frozenset({1, 2, 3})}
    assert Counter(each[0] for each in found) in ({1: 5, 3: 4}, {1: 4, 3: 5})
    stopped = without(without(nodes("a", "b", "c"), 2, is_draining=True), 2, is_draining=True, is_fenced=True)
    assert place(stopped, "t", range(9)) == found, "one that left in order is expected back"


def test_live_nodes_are_preferred_to_fenced_ones_of_no_further_rack() -> None:
    known = without(nodes("a", "b", "c", "d"), 2, is_fenced=True)
    assert {node for each in place(known, "t", range(9)) for node in each} == {1, 3, 4}
    known = without(nodes("a", "a", "a", "b"), 4, is_fenced=True)
    assert all(4 in each[1:] for each in place(known, "t", range(9), 2)), "racks count for more"


def test_a_draining_node_gets_no_replica_and_the_partition_has_fewer() -> None:
    known = without(nodes("a", "b", "c"), 3, is_draining=True)
    assert {frozenset(each) for each in place(known, "t", range(9), 3)} == {frozenset({1, 2})}
    assert place(known, "t", [0], replicas=1)[0] in ((1,), (2,))


def test_more_replicas_than_registered_nodes_are_refused_and_so_is_a_topic_that_no_node_can_lead() -> None:
    known = without(nodes("a", "b"), 2, is_fenced=True)
    with refused_with(Reason.INVALID_SETTING, match="3 replicas need 3 nodes, but 2 are registered"):
        place(known, "t", [0], replicas=3)
    with refused_with(Reason.NOT_ENOUGH_REPLICAS, match="every registered node is fenced or draining"):
        place(without(known, 1, is_draining=True), "t", [0])


def test_internal_topics_are_placed_on_live_nodes_only() -> None:
    known = without(nodes("a", "b", "c"), 2, is_fenced=True)
    for name in ("__own", LOG_TOPIC):
        assert {frozenset(each) for each in place(known, name, range(9))} == {frozenset({1, 3})}


def test_a_partition_is_completed_by_live_nodes_on_other_racks_and_keeps_what_it_has() -> None:
    known = nodes("a", "a", "b", "b", "c")
    for number in range(9):
        assert complete(known, "t", number, (4, 1), 3) == (4, 1, 5)
        assert complete(without(known, 5, is_fenced=True), "t", number, (4, 1), 3)[2] in (2, 3)
    assert complete(without(nodes("a", "b"), 2, is_fenced=True), "t", 0, (1,), 2) == (1,)
