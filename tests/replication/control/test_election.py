"""Who leads next, and what becomes of the sets: every event that changes an assignment, by hand."""

from braidlog.replication.assignment import (
    Assignment,
    InSyncSetChange,
    Node,
    Nodes,
    TornEnd,
    joined,
    left,
    may_change,
    with_change,
    with_min_in_sync,
)
from braidlog.replication.control.election import (
    LogEnd,
    elect,
    elect_torn,
    elect_unclean,
    fenced,
    moved,
    registered,
    resigned,
    with_torn_end,
)

ALL = {number: Node(incarnation=number * 10) for number in (1, 2, 3)}
MIN = 2


def assignment(in_sync: Nodes, leader: int | None = 1, **fields: object) -> Assignment:
    return Assignment(replicas=(1, 2, 3), in_sync=in_sync, leader=leader, **fields)  # type: ignore[arg-type]


def without(*numbers: int) -> dict[int, Node]:
    return {number: Node(incarnation=node.incarnation, is_fenced=number in numbers) for number, node in ALL.items()}


def test_a_dead_leader_is_followed_by_the_preferred_one_in_sync() -> None:
    after = fenced(assignment((1, 2, 3)), 1, without(1), MIN)
    assert (after.leader, after.in_sync, after.eligible, after.last_leader) == (2, (2, 3), (), 1)
    assert (after.leader_epoch, after.partition_epoch) == (2, 1), "one event, one epoch"


def test_who_leaves_a_set_that_becomes_too_small_is_eligible() -> None:
    after = fenced(assignment((1, 2)), 1, without(1), MIN)
    assert (after.leader, after.in_sync, after.eligible) == (2, (2,), (1,))
    last = fenced(after, 2, without(1, 2), MIN)
    assert (last.leader, last.in_sync, last.eligible) == (None, (2,), (1,)), "the last one never leaves"
    back = elect(last, without(2))
    assert (back.leader, back.in_sync, back.eligible) == (1, (1,), (2,)), "it has all that was committed, and so has 2"


def test_a_dead_follower_leaves_the_set_and_no_epoch_begins() -> None:
    after = fenced(assignment((1, 2, 3)), 3, without(3), MIN)
    assert (after.leader, after.in_sync, after.eligible, after.leader_epoch) == (1, (1, 2), (), 1)


def test_nobody_is_elected_who_is_neither_in_sync_nor_eligible() -> None:
    after = fenced(assignment((1,)), 1, without(1), MIN)
    assert (after.leader, after.in_sync, after.leader_epoch) == (None, (1,), 2)
    assert elect(after, without(1)) == after


def test_a_node_that_starts_leads_nothing_in_the_same_event() -> None:
    nodes = {**ALL, 1: Node(incarnation=40)}
    after = registered(assignment((1, 2, 3)), 1, nodes, MIN, is_whole=True)
    assert (after.leader, after.leader_epoch, after.in_sync, after.partition_epoch) == (2, 2, (2, 3), 1)
    alone = registered(assignment((1,)), 1, nodes, MIN, is_whole=True)
    assert (alone.leader, alone.leader_epoch, alone.in_sync) == (None, 2, (1,)), "elected later, in another epoch"
    assert elect(alone, nodes).leader == 1


def test_where_nobody_leads_a_whole_node_keeps_its_place() -> None:
    known = assignment((2,), None, eligible=(1,), leader_epoch=3)
    assert registered(known, 1, without(2), MIN, is_whole=True).eligible == (1,)
    assert registered(known, 2, ALL, MIN, is_whole=True).in_sync in ((2,), (1,))


def test_a_torn_node_loses_its_place_for_good() -> None:
    known = assignment((2,), None, eligible=(1,), leader_epoch=3)
    torn = registered(known, 1, without(2), MIN, is_whole=False)
    assert (torn.in_sync, torn.eligible, torn.torn) == ((2,), (), (1,))
    again = registered(torn, 1, without(2), MIN, is_whole=True)
    assert (again.in_sync, again.eligible, again.torn) == ((2,), (), (1,)), "a second start does not make it whole"
    both = registered(torn, 2, ALL, MIN, is_whole=False)
    assert (both.leader, both.in_sync, both.eligible, both.torn) == (None, (), (), (1, 2))
    loud = elect_unclean(both, {1: LogEnd(3, 5), 2: LogEnd(2, 9)})
    assert (loud.leader, loud.in_sync, loud.torn) == (1, (1,), (2,)), "the later epoch, not the longer log"
    assert loud.unclean_epoch == loud.leader_epoch == 4
    assert joined(loud, 2, MIN).torn == (), "it has fetched its way back"


def test_a_leader_with_a_damaged_copy_resigns_if_anybody_else_is_eligible() -> None:
    after = resigned(assignment((1, 2, 3)), 1, ALL)
    assert (after.leader, after.in_sync, after.eligible, after.torn) == (2, (2, 3), (), ())
    from_eligible = resigned(assignment((1,), eligible=(3,)), 1, ALL)
    assert (from_eligible.leader, from_eligible.in_sync) == (3, (3,))
    alone = assignment((1,))
    assert resigned(alone, 1, ALL) == alone


def test_a_draining_node_is_not_elected() -> None:
    nodes = {**ALL, 2: Node(incarnation=20, is_draining=True)}
    assert moved(assignment((1, 2, 3)), nodes, 1).leader == 3
    assert fenced(assignment((1, 2, 3)), 1, {**nodes, 1: without(1)[1]}, MIN).leader == 3
    assert moved(assignment((1, 2)), nodes, 1) == assignment((1, 2)), "nobody else may lead: it stays"


def test_the_set_is_changed_by_who_knows_it() -> None:
    known = assignment((1, 2), eligible=(), partition_epoch=7)
    joins = InSyncSetChange(3, joins=True, incarnation=30, leader_epoch=1, partition_epoch=7)
    assert may_change(known, joins, ALL)
    assert with_change(known, joins, MIN).in_sync == (1, 2, 3)
    assert not may_change(known, InSyncSetChange(3, True, 30, 1, 6), ALL)
    assert not may_change(known, InSyncSetChange(3, True, 30, 2, 7), ALL)
    assert not may_change(known, InSyncSetChange(3, True, 29, 1, 7), ALL), "another life of it"
    assert not may_change(known, joins, without(3))
    assert not may_change(known, InSyncSetChange(1, False, 10, 1, 7), ALL), "a leader is in sync with itself"


def test_enough_in_sync_and_nobody_else_is_eligible() -> None:
    known = assignment((1,), eligible=(2, 3))
    assert joined(known, 2, MIN).eligible == ()
    assert joined(known, 2, 3).eligible == (3,)
    assert with_min_in_sync(known, 1).eligible == ()
    assert left(assignment((1, 2, 3)), 3, MIN).eligible == ()
    assert left(assignment((1, 2)), 2, MIN).eligible == (2,)


def test_an_unclean_election_prefers_the_longest_log_to_that_of_the_last_leader() -> None:
    known = assignment((), None, last_leader=3, leader_epoch=5)
    assert elect_unclean(known, {2: LogEnd(4, 10), 3: LogEnd(4, 9)}).leader == 2


def test_a_follower_that_resigns_ends_the_epoch_in_which_it_asked() -> None:
    known = Assignment(replicas=(1, 2, 3), in_sync=(1, 2), leader=1, leader_epoch=4)
    for node, in_sync in ((2, (1,)), (3, (1, 2))):
        after = resigned(known, node, {number: Node(incarnation=number) for number in (1, 2, 3)})
        assert (after.leader, after.leader_epoch, after.in_sync) == (1, 5, in_sync)


TORN = assignment((), leader=None, torn=(1, 3), leader_epoch=5)


def test_the_longest_of_the_torn_leads_once_all_of_them_have_said_how_far_they_reach() -> None:
    assert elect(TORN, ALL) == TORN, "nobody is whole"
    one = with_torn_end(TORN, TornEnd(3, 30, 4, 7))
    assert elect_torn(one, ALL, waits=True) == one, "1 may have more"
    both = with_torn_end(one, TornEnd(1, 10, 4, 9))
    after = elect_torn(both, ALL, waits=True)
    assert (after.leader, after.in_sync, after.torn, after.torn_ends) == (1, (1,), (3,), ())
    assert after.unclean_epoch == after.leader_epoch == 6
    later_epoch = with_torn_end(one, TornEnd(1, 10, 3, 99))
    assert elect_torn(later_epoch, ALL, waits=True).leader == 3, "a later epoch counts for more than a longer log"


def test_torn_replicas_that_stay_away_are_not_waited_for_for_ever() -> None:
    one = with_torn_end(TORN, TornEnd(3, 30, 4, 7))
    assert elect_torn(one, ALL, waits=False).leader == 3
    assert elect_torn(TORN, ALL, waits=False) == TORN, "nobody has said anything"
    assert elect_torn(one, without(3), waits=False) == one, "it is dead"
    restarted = {**ALL, 3: Node(incarnation=31)}
    assert elect_torn(one, restarted, waits=False) == one, "its log may be shorter now: it will say so"


def test_ends_are_asked_for_only_where_nobody_is_whole() -> None:
    told = TornEnd(3, 30, 4, 7)
    for known in (
        assignment((2,), leader=None, torn=(1, 3)),
        assignment((), leader=None, eligible=(2,), torn=(1, 3)),
        assignment((), leader=None, torn=(1,)),
    ):
        assert with_torn_end(known, told) == known
        told_all_the_same = known.with_changes(torn_ends=(told,))
        assert elect_torn(told_all_the_same, ALL, waits=False) == told_all_the_same
    once = with_torn_end(TORN, told)
    assert with_torn_end(once, told) == once
    assert with_torn_end(once, TornEnd(3, 31, 4, 5)).torn_ends == (TornEnd(3, 31, 4, 5),), "one word of each"
