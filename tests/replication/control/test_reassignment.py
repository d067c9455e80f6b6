"""A partition moves from node to node."""

from braidlog.replication.assignment import Assignment, Node, joined
from braidlog.replication.control.reassignment import cancel, finish, reassign

ALL = {number: Node(incarnation=number) for number in range(1, 7)}
THREE = Assignment(replicas=(1, 2, 3), in_sync=(1, 2, 3), leader=1, leader_epoch=4)


def test_the_added_fetch_their_way_in_before_anybody_goes() -> None:
    moving = reassign(THREE, (4, 2, 5))
    assert (moving.replicas, moving.adding, moving.removing) == ((4, 2, 5, 1, 3), (4, 5), (1, 3))
    half = joined(moving, 4, 2)
    assert finish(half, ALL, 2) == half, "5 is not in sync yet"
    after = finish(joined(half, 5, 2), ALL, 2)
    assert (after.replicas, after.in_sync, after.adding, after.removing) == ((4, 2, 5), (4, 2, 5), (), ())
    assert (after.leader, after.leader_epoch) == (4, 5), "the leader went: another epoch"


def test_a_leader_that_stays_begins_an_epoch_in_which_the_removed_said_nothing() -> None:
    """It removes its copy: what it asked for before must not count once it holds the partition again."""
    after = finish(joined(reassign(THREE, (1, 2, 4)), 4, 2), ALL, 2)
    assert (after.replicas, after.leader, after.leader_epoch) == ((1, 2, 4), 1, 5)


def test_an_eligible_replica_does_not_go_while_too_few_are_in_sync() -> None:
    alone = Assignment(replicas=(1, 2, 3), in_sync=(3,), leader=3, eligible=(2,))
    moving = reassign(alone, (3, 1))
    assert finish(moving, ALL, 2) == moving, "2 has all that is committed, and 1 may not"
    assert finish(joined(moving, 1, 2), ALL, 2).replicas == (3, 1)


def test_replicas_are_not_cut_below_the_minimum() -> None:
    moving = reassign(Assignment(replicas=(1, 2, 3), in_sync=(1, 3), leader=1, torn=(2,)), (1, 2))
    assert finish(moving, ALL, 2) == moving, "2 is not in sync: 1 would be alone"
    after = finish(moving, ALL, 1)
    assert (after.replicas, after.in_sync, after.torn) == ((1, 2), (1,), (2,))


def test_a_cancel_goes_back_in_one_entry() -> None:
    moving = joined(reassign(THREE, (4, 5, 6)), 4, 2)
    after = cancel(moving, ALL, 2)
    assert (after.replicas, after.in_sync, after.leader, after.leader_epoch) == ((1, 2, 3), (1, 2, 3), 1, 5)
    assert cancel(THREE, ALL, 2) == THREE


def test_another_move_from_the_middle_of_one_forgets_nobody() -> None:
    moving = joined(reassign(THREE, (4, 2, 3)), 4, 2)
    again = reassign(moving, (1, 2, 5))
    assert (again.replicas, again.adding, again.removing) == ((1, 2, 5, 4, 3), (5,), (4, 3))
    assert 4 in again.in_sync, "it is waited for until it is out"


def test_nobody_is_left_to_lead_so_nothing_is_cut() -> None:
    moving = joined(reassign(THREE, (4,)), 4, 1)
    away = {**ALL, 4: Node(incarnation=4, is_fenced=True)}
    assert finish(moving, away, 1) == moving
