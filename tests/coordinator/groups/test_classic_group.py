"""The state machine of a group that elects its leader, step by step, without a clock or a journal."""

from typing import Any

import pytest
from tests.refusals import reason_of

from braidlog.coordinator.groups.classic_group import ClassicGroup
from braidlog.coordinator.groups.group import StaleGeneration
from braidlog.coordinator.groups.messages import Joined, Joining, MemberIdRequired, State, Synced, Ticket
from braidlog.model.errors import BrokerError, Reason

DELAY_MS = 100
SESSION_MS = 1_000
PATIENCE_MS = 3_000


def asking(member: str = "", **more: Any) -> Joining:
    return Joining(
        **{
            "member": member,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": PATIENCE_MS,
            "protocol_type": "consumer",
            "protocols": [("range", b"r"), ("sticky", b"s")],
            **more,
        }
    )


class Drive:
    """A group and its time."""

    def __init__(self, delay_ms: int = 0) -> None:
        self.group = ClassicGroup("g", initial_delay_ms=delay_ms)
        self.now = 10_000
        self._ids = 0

    def join(self, member: str = "", **more: Any) -> Ticket:
        self._ids += 1
        return self.group.join(asking(member, **more), f"id{self._ids}", self.now)

    def sync(self, ticket: Ticket, shares: dict[str, bytes] | None = None, **more: Any) -> Ticket:
        told = joined(ticket)
        return self.group.sync(
            told.member, told.generation, more.get("instance"), (None, None), list((shares or {}).items()), self.now
        )

    def state(self) -> State:
        return self.group.state

    def tick(self, ms: int) -> list[str]:
        self.now += ms
        return self.group.tick(self.now)

    def stable(self, count: int) -> list[Ticket]:
        """A group of so many members, its work divided: the first leads."""
        tickets = [self.join()]
        for _ in range(count - 1):
            tickets.append(self.join())
            tickets = [*(self.join(joined(t).member) for t in tickets[:-1]), tickets[-1]]
        leader = next(t for t in tickets if joined(t).leader == joined(t).member)
        self.sync(leader, {joined(t).member: b"share of " + joined(t).member.encode() for t in tickets})
        assert self.group.state is State.STABLE
        self.group.take_ready()
        return tickets


def joined(ticket: Ticket) -> Joined:
    assert ticket.error is None
    assert isinstance(ticket.answer, Joined)
    return ticket.answer


def share(ticket: Ticket) -> bytes:
    assert isinstance(ticket.answer, Synced)
    return ticket.answer.assignment


def refused(ticket: Ticket) -> Reason:
    assert isinstance(ticket.error, BrokerError)
    return ticket.error.reason


def test_the_first_round_waits_a_little_for_others_and_no_longer_than_a_rebalance() -> None:
    drive = Drive(DELAY_MS)
    one = drive.join()
    drive.tick(DELAY_MS - 1)
    two = drive.join()
    drive.tick(1)
    assert not one.is_settled, "somebody came: wait once more"
    drive.tick(DELAY_MS)
    assert joined(one).generation == joined(two).generation == 1
    assert {member for member, _, _ in joined(one).members} == {"id1", "id2"}
    assert joined(two).members == []
    drive = Drive(DELAY_MS)
    first = drive.join()
    for _ in range(1000):
        if first.is_settled:
            break
        drive.tick(DELAY_MS - 1)
        drive.join()
        drive.tick(1)
    assert drive.now - 10_000 == PATIENCE_MS


def test_the_leader_divides_the_work_and_everyone_gets_its_share() -> None:
    drive = Drive(DELAY_MS)
    tickets = [drive.join() for _ in range(3)]
    drive.tick(DELAY_MS)
    drive.tick(DELAY_MS)
    assert [joined(t).leader for t in tickets] == ["id1"] * 3
    assert joined(tickets[0]).protocol == "range"
    assert joined(tickets[0]).members[0] == ("id1", None, b"r")
    follower = drive.sync(tickets[1])
    assert not follower.is_settled
    assert drive.state() is State.SYNCING
    leader = drive.sync(tickets[0], {"id1": b"a", "id2": b"b", "stranger": b"x"})
    late = drive.sync(tickets[2])
    assert [share(t) for t in (leader, follower, late)] == [b"a", b"b", b""]
    assert drive.group.state is State.STABLE
    again = drive.sync(tickets[0], {"id1": b"other"})
    assert share(again) == b"a", "a generation has one assignment"


def test_who_comes_makes_the_others_come_again() -> None:
    drive = Drive()
    (one,) = drive.stable(1)
    two = drive.join()
    assert not two.is_settled
    assert reason_of(drive.group.heartbeat, "id1", 1, None, drive.now) is Reason.REBALANCE_IN_PROGRESS
    assert reason_of(drive.sync, one) is Reason.REBALANCE_IN_PROGRESS
    one = drive.join("id1")
    assert joined(one).generation == joined(two).generation == 2
    assert joined(two).leader == "id1"


def test_who_does_not_come_again_in_time_is_out() -> None:
    drive = Drive()
    drive.stable(2)
    three = drive.join()
    for _ in range(3):
        drive.tick(SESSION_MS - 1)
        for member in ("id1", "id2"):
            assert reason_of(drive.group.heartbeat, member, 2, None, drive.now) is Reason.REBALANCE_IN_PROGRESS
    assert not three.is_settled
    drive.join("id2")
    drive.tick(3)
    assert {member for member, _, _ in joined(three).members} | {joined(three).leader} >= {"id2"}
    assert [m.member for m in drive.group.members] == ["id2", "id4"]
    assert reason_of(drive.group.heartbeat, "id1", 3, None, drive.now) is Reason.MEMBER_NOT_FOUND


def test_a_leader_that_brings_nothing_is_replaced() -> None:
    drive = Drive(DELAY_MS)
    leader, follower = drive.join(), drive.join()
    drive.tick(DELAY_MS)
    drive.tick(DELAY_MS)
    waiting = drive.sync(follower)
    while drive.group.state is State.SYNCING:
        drive.tick(SESSION_MS - 1)
        if drive.group.state is State.SYNCING:
            drive.group.heartbeat(joined(leader).member, 1, None, drive.now)
    assert refused(waiting) is Reason.REBALANCE_IN_PROGRESS
    again = drive.join(joined(follower).member)
    assert joined(again).leader == joined(follower).member
    assert joined(again).generation == 2


def test_a_member_id_is_handed_out_first() -> None:
    drive = Drive()
    with pytest.raises(MemberIdRequired) as caught:
        drive.join(id_required=True)
    assert caught.value.member == "id1"
    assert drive.group.has_members
    assert drive.group.members == []
    assert reason_of(drive.group.heartbeat, "id1", 0, None, drive.now) is Reason.MEMBER_NOT_FOUND
    assert joined(drive.join("id1", id_required=True)).member == "id1"
    assert reason_of(drive.join, "stranger") is Reason.MEMBER_NOT_FOUND


def test_a_round_waits_for_who_was_given_an_id_but_not_for_ever() -> None:
    drive = Drive()
    drive.stable(1)
    with pytest.raises(MemberIdRequired):
        drive.join(id_required=True)
    drive.group.leave("id1", None, drive.now)
    two = drive.join()
    assert not two.is_settled, "the one with the id is still to come"
    drive.tick(SESSION_MS + 1)
    assert joined(two).generation > 1


def test_an_answer_that_was_lost_is_given_again() -> None:
    drive = Drive(DELAY_MS)
    one, two = drive.join(), drive.join()
    drive.tick(DELAY_MS)
    drive.tick(DELAY_MS)
    for ticket in (one, two):
        again = drive.join(joined(ticket).member)
        assert joined(again) == joined(ticket), "the same protocols in the same generation: nothing changes"
    drive.sync(one, {"id1": b"a"})
    assert joined(drive.join("id2")).generation == 1, "a follower with nothing new changes nothing"
    assert drive.state() is State.STABLE
    drive.join("id1")
    assert drive.group.state is State.JOINING, "the leader wants to divide anew"


def test_a_member_with_new_wishes_begins_a_round() -> None:
    drive = Drive()
    drive.stable(2)
    changed = drive.join("id2", protocols=[("range", b"other topics")])
    assert not changed.is_settled
    one = drive.join("id1")
    told = joined(one) if joined(one).members else joined(changed)
    assert ("id2", None, b"other topics") in told.members


def test_protocols_must_have_something_in_common() -> None:
    drive = Drive()
    drive.stable(1)
    assert reason_of(drive.join, protocols=[("other", b"")]) is Reason.INCONSISTENT_PROTOCOLS
    assert reason_of(drive.join, protocol_type="connect") is Reason.INCONSISTENT_PROTOCOLS
    assert reason_of(drive.join, protocols=[]) is Reason.INCONSISTENT_PROTOCOLS
    assert reason_of(drive.join, protocol_type="") is Reason.INCONSISTENT_PROTOCOLS
    assert drive.group.state is State.STABLE, "who cannot speak with the others does not disturb them"
    two = drive.join(protocols=[("sticky", b"2"), ("other", b"")])
    one = drive.join("id1")
    assert joined(one).protocol == joined(two).protocol == "sticky"
    assert (
        reason_of(drive.group.sync, "id1", joined(one).generation, None, ("consumer", "range"), [], drive.now)
        is Reason.INCONSISTENT_PROTOCOLS
    )


def test_bounds() -> None:
    drive = Drive()
    assert reason_of(drive.join, protocols=[("range", b"x" * (1024 * 1024 + 1))]) is Reason.INVALID_GROUP
    assert reason_of(drive.join, protocols=[(f"p{n}", b"") for n in range(101)]) is Reason.INCONSISTENT_PROTOCOLS
    assert reason_of(drive.join, instance="x" * 250) is Reason.INVALID_GROUP
    one = drive.join()
    assert reason_of(drive.sync, one, {"id1": b"x" * (1024 * 1024 + 1)}) is Reason.INVALID_GROUP
    assert drive.group.state is State.SYNCING


def test_generations_are_fenced() -> None:
    drive = Drive()
    drive.stable(2)
    for generation in (1, 3, -1):
        with pytest.raises(StaleGeneration):
            drive.group.heartbeat("id1", generation, None, drive.now)
        with pytest.raises(StaleGeneration):
            drive.group.check_commit("id1", generation, None, drive.now)
    drive.group.check_commit("id1", 2, None, drive.now)
    assert reason_of(drive.group.check_commit, "", -1, None, drive.now) is Reason.MEMBER_NOT_FOUND
    drive.group.check_transactional("", -1, None)
    assert reason_of(drive.group.check_transactional, "id9", 2, None) is Reason.MEMBER_NOT_FOUND
    three = drive.join()
    drive.group.check_commit("id1", 2, None, drive.now)  # what was read before the round may be committed in it
    drive.join("id1")
    drive.join("id2")
    assert reason_of(drive.group.check_commit, "id1", 3, None, drive.now) is Reason.REBALANCE_IN_PROGRESS
    assert joined(three).generation == 3


def test_an_empty_group_takes_commits_of_nobody_and_its_generation_goes_on() -> None:
    drive = Drive()
    drive.group.check_commit("", -1, None, drive.now)
    drive.stable(1)
    drive.group.leave("id1", None, drive.now)
    assert (drive.group.state, drive.group.generation) == (State.EMPTY, 2)
    assert drive.group.take_ready().must_keep
    drive.group.check_commit("", -1, None, drive.now)
    assert joined(drive.join()).generation == 3


def test_leaving_begins_a_round_and_unknown_members_are_told() -> None:
    drive = Drive()
    drive.stable(2)
    drive.group.leave("id1", None, drive.now)
    assert drive.group.state is State.JOINING
    assert reason_of(drive.group.leave, "id1", None, drive.now) is Reason.MEMBER_NOT_FOUND
    two = drive.join("id2")
    assert joined(two).leader == "id2"


def test_who_waits_owes_no_sign_of_life_and_who_stopped_waiting_does() -> None:
    drive = Drive()
    drive.stable(2)
    one = drive.join("id1")  # the leader asks for a round; the other one says nothing
    assert drive.tick(SESSION_MS + 1) == ["id2"]
    assert joined(one).generation == 3
    drive = Drive()
    drive.stable(2)
    one = drive.join("id1")
    drive.group.cancel_wait(one, drive.now)
    assert drive.tick(SESSION_MS + 1) == ["id1", "id2"]
    assert drive.group.state is State.EMPTY


def test_a_member_whose_id_no_client_knows_goes_with_the_connection_that_asked_for_it() -> None:
    """Its client joins again as another; the others must not wait for the first one's session."""
    drive = Drive()
    drive.stable(2)
    unknown = drive.join()
    drive.group.cancel_wait(unknown, drive.now)
    one, two = drive.join("id1"), drive.join("id2")
    assert one.answer is None
    assert drive.tick(0) == [unknown.member]
    assert joined(one).generation == joined(two).generation == 3


# -- static members ------------------------------------------------------------------------------------------


def static_pair() -> Drive:
    drive = Drive(DELAY_MS)
    one, two = drive.join(instance="A"), drive.join(instance="B")
    drive.tick(DELAY_MS)
    drive.tick(DELAY_MS)
    drive.sync(one, {"id1": b"a", "id2": b"b"}, instance="A")
    drive.sync(two, instance="B")
    drive.group.take_ready()
    return drive


def test_a_static_member_takes_its_seat_again_without_a_round() -> None:
    drive = static_pair()
    back = drive.join(instance="B")
    assert drive.group.state is State.STABLE
    assert (joined(back).generation, joined(back).leader, joined(back).member) == (1, "id1", "id3")
    ready = drive.group.take_ready()
    assert ready.must_keep, "the new id must be known after a crash"
    assert share(drive.sync(back, instance="B")) == b"b"
    assert reason_of(drive.group.heartbeat, "id2", 1, "B", drive.now) is Reason.FENCED_INSTANCE
    assert reason_of(drive.join, "id2", instance="B") is Reason.FENCED_INSTANCE
    assert reason_of(drive.group.check_commit, "id2", 1, "B", drive.now) is Reason.FENCED_INSTANCE
    assert reason_of(drive.group.heartbeat, "id2", 1, None, drive.now) is Reason.MEMBER_NOT_FOUND
    assert reason_of(drive.group.heartbeat, "id3", 1, "never heard of", drive.now) is Reason.MEMBER_NOT_FOUND
    drive.group.heartbeat("id3", 1, "B", drive.now)


@pytest.mark.parametrize("knows_skipping", [True, False])
def test_a_static_leader_that_comes_back_does_not_divide_anew(knows_skipping: bool) -> None:
    drive = static_pair()
    back = joined(drive.join(instance="A", knows_skipping=knows_skipping))
    assert drive.group.state is State.STABLE
    assert back.skip_assignment is knows_skipping
    assert (back.leader == back.member) is knows_skipping
    assert len(back.members) == (2 if knows_skipping else 0)
    assert drive.group.leader == "id3"


def test_a_static_member_that_speaks_otherwise_by_now_begins_a_round() -> None:
    drive = static_pair()
    back = drive.join(instance="B", protocols=[("sticky", b"new")])
    assert not back.is_settled
    assert joined(drive.join("id1", instance="A")).protocol == "sticky"


def test_a_waiting_earlier_self_is_told_that_it_is_fenced() -> None:
    drive = static_pair()
    old = drive.join("id1", instance="A")  # the leader: a round begins, and it waits for the other
    new = drive.join(instance="A")
    assert refused(old) is Reason.FENCED_INSTANCE
    drive.join("id2", instance="B")
    assert joined(new).generation == 2


def test_a_static_member_keeps_its_seat_through_a_round_it_misses() -> None:
    drive = static_pair()
    three = drive.join()
    for _ in range(2):
        drive.tick(SESSION_MS)
        for member, instance in (("id1", "A"), ("id2", "B")):
            assert reason_of(drive.group.heartbeat, member, 1, instance, drive.now) is Reason.REBALANCE_IN_PROGRESS
    drive.tick(SESSION_MS)
    assert {member for member, _, _ in joined(three).members} == {"id1", "id2", "id3"}
    assert joined(three).leader == "id3", "who is not back cannot lead"


def test_a_static_member_can_be_sent_away_by_its_instance() -> None:
    drive = static_pair()
    drive.group.leave("", "B", drive.now)
    assert [m.instance for m in drive.group.members] == ["A"]
    assert reason_of(drive.group.leave, "", "B", drive.now) is Reason.MEMBER_NOT_FOUND
    assert reason_of(drive.group.leave, "id9", "A", drive.now) is Reason.FENCED_INSTANCE


def test_a_static_member_is_not_waited_for_by_an_empty_round() -> None:
    """Nobody is back when the round is due: the seats stay while the sessions do, then the group is empty."""
    drive = static_pair()
    drive.group.cancel_wait(drive.join("id1", instance="A"), drive.now)
    for _ in range(4):
        drive.tick(SESSION_MS - 1)
        for member, instance in (("id1", "A"), ("id2", "B")):
            assert reason_of(drive.group.heartbeat, member, 1, instance, drive.now) is Reason.REBALANCE_IN_PROGRESS
    assert drive.group.generation == 1
    drive.tick(SESSION_MS + 1)
    assert (drive.group.state, drive.group.generation) == (State.EMPTY, 2)


# -- what is kept --------------------------------------------------------------------------------------------


def test_a_group_comes_back_as_it_was_kept_and_members_have_their_session_again() -> None:
    drive = static_pair()
    image = drive.group.image()
    drive.join()
    again = ClassicGroup("g")
    again.restore(image, 99_000)
    assert again.image() == image
    assert again.state is State.STABLE
    assert again.tick(99_000 + SESSION_MS) == []
    again.heartbeat("id1", 1, "A", 99_000 + SESSION_MS)
    assert again.tick(99_001 + SESSION_MS) == ["id2"]


def test_a_generation_without_assignment_can_still_get_one_after_a_restart() -> None:
    drive = Drive()
    one = drive.join()
    image = drive.group.image()
    again = ClassicGroup("g")
    again.restore(image, drive.now)
    assert again.state is State.SYNCING
    got = again.sync("id1", joined(one).generation, None, (None, None), [("id1", b"a")], drive.now)
    assert share(got) == b"a"


def test_restoring_tells_everyone_who_waits() -> None:
    drive = Drive()
    drive.stable(2)
    image = drive.group.image()
    waiting = drive.join("id1")
    drive.group.restore(image, drive.now)
    assert refused(waiting) is Reason.REBALANCE_IN_PROGRESS
    assert waiting in drive.group.take_ready().settled
