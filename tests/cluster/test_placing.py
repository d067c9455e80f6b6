"""Where new partitions are placed: evenly, on racks apart, by the nodes that are there."""

from collections import Counter
from itertools import pairwise

import msgspec
import pytest

from braidlog.cluster.membership import Member, Membership
from braidlog.cluster.placing import place
from braidlog.model.errors import BrokerError, Reason
from braidlog.replication.registration import Life, Registration


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


def test_who_is_away_or_drains_gets_nothing() -> None:
    known = without(without(nodes("a", "b", "c", "d"), 2, is_fenced=True), 3, is_draining=True)
    assert {node for each in place(known, "t", range(9)) for node in each} == {1, 4}
    with pytest.raises(BrokerError, match="3 replicas need as many nodes") as caught:
        place(known, "t", [0], replicas=3)
    assert caught.value.reason is Reason.NOT_ENOUGH_REPLICAS
    assert place(known, "t", [0], replicas=1)[0] in ((1,), (4,))
