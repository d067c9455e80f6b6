"""When a leader may answer who reads the latest: one leader by hand. Every order of events is in the model (`explore.py`)."""

import pytest
from tests.replication.test_replica import Driver, assigned, follower, leader

from braidlog.model.errors import Reason
from braidlog.replication.messages import (
    Append,
    Assigned,
    Await,
    EpochStarted,
    Fetch,
    Fetched,
    Reach,
    ReadIndex,
    Withdraw,
)
from braidlog.replication.ready import Done, Failed, Respond


def fetch(node: int, offset: int, round_: int = 0) -> Fetch:
    return Fetch(node, node * 10, 1, 1, offset, 1 if offset else -1, 0, round_)


def caught_up(records: int = 1, in_sync: tuple[int, ...] = (1, 2, 3)) -> Driver:
    """All have everything, and wait for more."""
    one = leader(records, in_sync)
    for _ in range(3):
        one.told(*(fetch(node, records) for node in in_sync if node != 1))
    assert one.replica.watermark == (records if len(in_sync) > 1 else 0)
    return one


def test_a_reader_is_answered_when_the_whole_set_has_answered_after_he_asked() -> None:
    one = caught_up()
    asked = one.told(ReadIndex(7))
    assert asked.apply == ()
    assert [(each.question.node, each.round) for each in asked.send if isinstance(each, Respond)] == [(2, 1), (3, 1)]
    assert one.told(fetch(2, 1, 1)).apply == ()
    assert one.told(fetch(3, 1, 1)).apply == (Done(7, 1),)


def test_a_question_that_was_under_way_says_nothing() -> None:
    one = caught_up()
    one.told(ReadIndex(7), fetch(2, 1, 1))
    assert one.told(fetch(3, 1, 0)).apply == ()
    assert one.told(fetch(3, 1, 1)).apply == (Done(7, 1),)


def test_readers_share_a_round_until_somebody_has_been_sent_it() -> None:
    one = leader(1)
    one.told(ReadIndex(7), ReadIndex(8))  # nobody has asked yet: nothing is sent
    assert [each.round for each in one.told(fetch(2, 0)).send if isinstance(each, Respond)] == [1]
    assert [each.round for each in one.told(ReadIndex(9), fetch(3, 0)).send if isinstance(each, Respond)] == [2]


def test_what_a_reader_is_shown_is_committed() -> None:
    one = caught_up()
    one.told(Append(1, 1))
    one.synced()
    one.told(ReadIndex(7), fetch(2, 1, 1), fetch(3, 1, 1))
    told = one.told(fetch(2, 2, 1), fetch(3, 2, 1)).apply
    assert [each for each in told if isinstance(each, Done)] == [Done(1, 2), Done(7, 2)]


def test_a_new_leader_tells_nothing_before_the_start_of_its_epoch_is_committed() -> None:
    one = leader(2)
    assert one.told(ReadIndex(7), fetch(2, 0), fetch(3, 0), fetch(2, 1, 1), fetch(3, 1, 1)).apply[-1:] != (Done(7, 2),)
    assert Done(7, 2) in one.told(fetch(2, 2, 1), fetch(3, 2, 1)).apply


@pytest.mark.parametrize("in_sync", [(1,), (1, 2)])
def test_too_small_a_set_tells_nobody(in_sync: tuple[int, ...]) -> None:
    one = caught_up(in_sync=in_sync)
    told = one.told(ReadIndex(7), fetch(2, 1, 1), fetch(3, 1, 1)).apply
    assert (Done(7, 1) in told) is (len(in_sync) > 1)


def test_a_reader_of_all_waits_until_every_replica_knows_it_to_be_committed() -> None:
    one = caught_up(in_sync=(1, 2))
    assert one.told(ReadIndex(7, Reach.EVERY), fetch(2, 1, 1)).apply == ()
    assert one.told(fetch(2, 1, 2)).apply == ()
    assert one.told(fetch(3, 1, 1)).apply == ()
    assert one.told(fetch(3, 1, 2)).apply == (Done(7, 1),)


def test_a_write_to_all_waits_for_who_is_not_in_sync() -> None:
    one = caught_up(in_sync=(1, 2))
    one.told(Append(1, 1, reach=Reach.EVERY), Append(2, 1, reach=Reach.MAJORITY))
    one.synced()
    assert Done(2, 3) in one.told(fetch(2, 3)).apply
    assert Done(1, 2) in one.told(fetch(3, 2)).apply


def test_a_majority_is_asked_for_before_anything_is_written() -> None:
    one = Driver(1)
    message = assigned(1, in_sync=(1,))
    one.told(Assigned(message.assignment, message.incarnations, min_in_sync=1), EpochStarted(1))
    assert one.told(Append(1, 1, reach=Reach.MAJORITY)).apply == (Failed(1, Reason.NOT_ENOUGH_REPLICAS),)
    assert one.replica.log.end == 0


def test_who_has_waited_long_enough_withdraws() -> None:
    one = caught_up(in_sync=(1, 2))
    one.told(ReadIndex(7), Append(8, 1, reach=Reach.EVERY), Await(9, 2), Withdraw(7), Withdraw(8))
    one.synced()
    told = one.told(fetch(2, 2, 1), fetch(3, 2, 1)).apply
    assert [each for each in told if isinstance(each, Done)] == [Done(9, 2)]


def test_readers_are_told_that_the_epoch_is_over() -> None:
    one = caught_up()
    one.told(ReadIndex(7))
    assert Failed(7, Reason.NOT_LEADER) in one.told(assigned(2, 2)).apply
    assert one.told(ReadIndex(8)).apply == (Failed(8, Reason.NOT_LEADER),)


def test_a_follower_names_the_round_of_its_last_answer() -> None:
    two, question = follower()
    (again,) = two.told(Fetched(question, (), 0, 0, round=4)).send
    assert isinstance(again, Fetch)
    assert again.round == 4
    (anew,) = two.told(assigned(3, 2)).send
    assert isinstance(anew, Fetch)
    assert anew.round == 0
