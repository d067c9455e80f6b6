"""The state machine of a consumer group, step by step, and members that lose answers, stall and die against its promises."""

from random import Random
from typing import Any

import pytest
from tests.coordinator.consumer_groups.test_assignors import target_of
from tests.refusals import reason_of

from braidlog.coordinator.consumer_groups.group import ConsumerGroup
from braidlog.coordinator.consumer_groups.messages import JOIN, LEAVE, PAUSE, Change, Heartbeat, HeartbeatAnswer
from braidlog.coordinator.groups.messages import State
from braidlog.model.errors import BrokerError, Reason

SESSION_MS = 1_000
PATIENCE_MS = 300
T = "id-of-t"


class Drive:
    """A group, its time, and topics: `t` has the id T."""

    def __init__(self, partitions: int = 4, **more: Any) -> None:
        self.group = ConsumerGroup("g", **more)
        self.now = 0
        self.topics = {"t": (T, partitions)}

    def send(self, member: str, epoch: int = JOIN, owned: set[int] | None = None, **more: Any) -> HeartbeatAnswer:
        """One heartbeat; who joins wants `t` and owns nothing."""
        if epoch == JOIN:
            more = {"topics": ["t"], "rebalance_timeout_ms": PATIENCE_MS, **more}
            owned = set()
        asked = Heartbeat(member=member, epoch=epoch, owned=None if owned is None else {T: owned}, **more)
        if epoch in (LEAVE, PAUSE):
            self.apply(self.group.leave(asked))
            return HeartbeatAnswer(member, epoch, None)
        self.apply(self.group.join_or_update(asked))
        self.group.note_heartbeat(member, self.now)
        self.assign()
        change, told = self.group.reconcile(asked)
        self.apply(change)
        return told

    def apply(self, change: Change) -> None:
        self.group.apply(change, self.now)

    def assign(self) -> None:
        if not self.group.is_stale:
            return
        version = self.group.version
        members = self.group.members_with_new_target(target_of(self.group.compute_targets(self.topics.get))[0])
        self.apply(Change(members))
        if self.group.needs_epoch(is_changed=bool(members)):
            self.apply(Change({}, self.group.epoch + 1, self.group.chosen_assignor()))
        self.group.assigned_version = version

    def state(self) -> State:
        return self.group.state

    def expire(self, ms: int) -> list[str]:
        self.now += ms
        change = self.group.expire(self.now, SESSION_MS)
        self.apply(change)
        return sorted(change.members)

    def restored(self) -> "Drive":
        """The same after a restart."""
        other = Drive()
        other.topics, other.now = self.topics, self.now
        other.group.restore(self.group.image(), self.group.members, self.now)
        return other


def reads(told: HeartbeatAnswer) -> set[int]:
    assert told.assignment is not None
    return set(told.assignment.get(T, ()))


# -- moving partitions -------------------------------------------------------------------------------------------


def test_a_partition_is_given_up_before_another_has_it() -> None:
    drive = Drive()
    first = drive.send("a")
    assert (first.epoch, reads(first)) == (1, {0, 1, 2, 3})
    assert drive.state() is State.STABLE
    second = drive.send("b")
    assert (second.epoch, reads(second)) == (2, set()), "nothing is free yet"
    assert drive.state() is State.RECONCILING
    told = drive.send("a", 1)
    assert (told.epoch, reads(told)) == (1, {0, 1}), "it stays in its epoch until it has given up"
    again = drive.send("a", 1, {0, 1, 2})
    assert (again.epoch, again.assignment) == (1, None), "one of them it still reads"
    assert reads(drive.send("b", 2, set(), topics=["t"], rebalance_timeout_ms=PATIENCE_MS)) == set()
    assert drive.send("a", 1, {0, 1}).epoch == 2
    assert reads(drive.send("b", 2)) == {2, 3}
    assert drive.state() is State.STABLE
    assert drive.send("b", 2).assignment is None, "it knows"
    drive.send("a", LEAVE)
    assert reads(drive.send("b", 2)) == {0, 1, 2, 3}
    assert drive.group.epoch == 3


def test_a_member_gets_what_is_free_and_waits_for_the_rest() -> None:
    drive = Drive(6)
    for member in "ab":
        drive.send(member)
    drive.send("a", 1)
    drive.send("a", 1, {0, 1, 2})
    assert reads(drive.send("b", 2)) == {3, 4, 5}
    assert reads(drive.send("c")) == set()
    drive.send("a", 2)
    drive.send("a", 2, {0, 1})
    assert reads(drive.send("c", 3)) == {2}
    assert drive.state() is State.RECONCILING
    drive.send("b", 2)
    drive.send("b", 2, {3, 4})
    assert reads(drive.send("c", 3)) == {2, 5}


def test_a_member_that_says_nothing_of_what_it_owns_may_own_it_still() -> None:
    drive = Drive()
    drive.send("a")
    drive.send("b")
    drive.send("a", 1)
    assert drive.send("a", 1).epoch == 1
    assert reads(drive.send("b", 2, set(), topics=["t"], rebalance_timeout_ms=PATIENCE_MS)) == set()


def test_a_topic_that_grows_or_goes_and_one_that_comes() -> None:
    drive = Drive(2)
    drive.send("a", topics=["t", "late"])
    drive.topics["t"] = (T, 3)
    list(drive.group.topic_changed("t", exists=True, may_see=lambda _, __: True))
    assert reads(drive.send("a", 1)) == {0, 1, 2}
    list(drive.group.topic_changed("other", exists=True, may_see=lambda _, __: True))
    assert not drive.group.is_stale
    drive.topics["late"] = ("L", 1)
    list(drive.group.topic_changed("late", exists=True, may_see=lambda _, __: True))
    assert drive.send("a", 2).assignment == {T: [0, 1, 2], "L": [0]}
    del drive.topics["t"]
    list(drive.group.topic_changed("t", exists=False, may_see=lambda _, __: True))
    assert drive.send("a", 3).assignment == {"L": [0]}


# -- fences ------------------------------------------------------------------------------------------------------


def test_who_lost_an_answer_may_come_with_its_previous_epoch() -> None:
    drive = Drive()
    drive.send("a")
    drive.send("b")
    drive.send("a", 1)
    drive.send("a", 1, {0, 1})
    assert drive.send("a", 1, {0, 1}).epoch == 2
    for epoch, owned in ((1, {0, 2}), (1, None), (3, {0, 1})):
        assert reason_of(drive.send, "a", epoch, owned) is Reason.STALE_MEMBER_EPOCH
    assert reason_of(drive.send, "c", 2) is Reason.MEMBER_NOT_FOUND
    rejoined = drive.send("a")
    assert (rejoined.epoch, reads(rejoined)) == (2, {0, 1}), "who begins anew with 0 is told what it has"


def test_commits_are_of_the_present_epoch_or_of_what_was_its_own_since() -> None:
    drive = Drive()
    drive.send("a")
    drive.send("b")
    drive.send("a", 1)
    drive.send("a", 1, {0, 1})
    check = drive.group.check_commit
    check("a", 2, [(T, 3)])
    check("a", 1, [(T, 0), (T, 1)])
    assert reason_of(check, "a", 1, [(T, 0), (T, 2)]) is Reason.STALE_MEMBER_EPOCH
    assert reason_of(check, "a", 3, [(T, 0)]) is Reason.STALE_MEMBER_EPOCH
    assert reason_of(check, "a", 1, []) is Reason.STALE_MEMBER_EPOCH
    drive.send("b", 2)
    assert reason_of(check, "b", 1, [(T, 2)]) is Reason.STALE_MEMBER_EPOCH, "its own only since epoch 2"
    assert reason_of(check, "c", 2, []) is Reason.MEMBER_NOT_FOUND
    assert reason_of(check, "", -1, [(T, 0)]) is Reason.MEMBER_NOT_FOUND, "not past the members"
    ConsumerGroup("empty").check_commit("", -1, [(T, 0)])


def test_a_full_group_takes_nobody_but_those_it_has() -> None:
    drive = Drive(members_max=1)
    drive.send("a")
    assert reason_of(drive.send, "b") is Reason.GROUP_FULL
    drive.send("a")


# -- time --------------------------------------------------------------------------------------------------------


def test_who_is_silent_is_taken_out_and_its_partitions_are_free() -> None:
    drive = Drive()
    drive.send("a")
    drive.send("b")
    assert drive.expire(SESSION_MS) == []
    drive.group.note_heartbeat("b", drive.now)
    assert drive.expire(1) == ["a"]
    assert reads(drive.send("b", 2)) == {0, 1, 2, 3}
    assert reason_of(drive.send, "a", 1) is Reason.MEMBER_NOT_FOUND


def test_who_does_not_give_up_in_time_is_taken_out_though_it_reports() -> None:
    drive = Drive()
    drive.send("a")
    drive.send("b")
    drive.send("a", 1)
    drive.now += PATIENCE_MS
    drive.send("a", 1)
    assert drive.expire(0) == []
    assert drive.expire(1) == ["a"]
    assert reads(drive.send("b", 2)) == {0, 1, 2, 3}


def test_after_a_restart_epochs_and_assignments_go_on() -> None:
    drive = Drive()
    drive.send("a")
    drive.send("b")
    drive.send("a", 1)
    drive.now += 500
    again = drive.restored()
    assert again.state() is State.RECONCILING
    assert again.expire(PATIENCE_MS) == [], "everyone has its whole time again"
    assert again.send("a", 1).epoch == 1
    assert again.send("a", 1, {0, 1}).epoch == 2
    assert reads(again.send("b", 2)) == {2, 3}
    assert (again.group.epoch, again.group.state) == (2, State.STABLE)
    third = again.restored()
    third.topics["t"] = (T, 5)
    third.send("a", 2)
    third.send("b", 2)
    assert third.group.epoch == 3, "a topic that grew while the node was away is seen"


# -- static members ----------------------------------------------------------------------------------------------


def test_a_static_member_comes_back_to_what_it_had() -> None:
    drive = Drive()
    drive.send("a", instance="A")
    drive.send("b")
    drive.send("a", 1, instance="A")
    drive.send("a", 1, {0, 1}, instance="A")
    assert reason_of(drive.send, "c", instance="A") is Reason.UNRELEASED_INSTANCE
    drive.send("a", PAUSE, instance="A")
    assert reads(drive.send("b", 2)) == {2, 3}, "what it has stays its own"
    assert reason_of(drive.send, "a", 2, {0, 1}, instance="A") is Reason.STALE_MEMBER_EPOCH
    back = drive.send("c", instance="A")
    assert (back.epoch, reads(back)) == (2, {0, 1}), "no new epoch"
    assert reason_of(drive.send, "a", 2, {0, 1}, instance="A") is Reason.FENCED_INSTANCE
    assert reason_of(drive.send, "a", LEAVE, instance="A") is Reason.FENCED_INSTANCE
    drive.send("c", PAUSE, instance="A")
    drive.now += SESSION_MS
    drive.send("b", 2)
    assert drive.expire(1) == ["c"], "not for ever"


# -- what is chosen ----------------------------------------------------------------------------------------------


def test_the_assignor_that_most_ask_for_is_taken() -> None:
    drive = Drive()
    drive.send("a")
    assert drive.group.assignor == "uniform"
    drive.send("b", assignor="range")
    assert drive.group.assignor == "range"


def test_bytes_are_counted_and_given_back() -> None:
    drive = Drive()
    empty = drive.group.held_bytes
    drive.send("a")
    drive.send("b")
    assert drive.group.held_bytes > empty + 4 * 400
    drive.send("a", LEAVE)
    drive.send("b", LEAVE)
    assert drive.group.held_bytes == empty
    assert drive.state() is State.EMPTY


# -- thousands of rebalances -------------------------------------------------------------------------------------


class Client:
    """A member as clients are: it stops reading before it says so, and says everything after a lost answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.begin()

    def begin(self) -> None:
        self.epoch = JOIN
        self.reading: set[int] = set()
        self.assigned: set[int] = set()
        self._said: set[int] | None = None
        self._must_say_all = True

    def beat(self, drive: Drive, *, loses: bool = False, works: bool = True) -> None:
        if works:
            # Gives up first; takes what is new only when nothing is left to give up.
            extra = self.reading - self.assigned
            self.reading = self.reading - extra if extra else set(self.assigned)
        more: dict[str, Any] = {}
        owned: set[int] | None = set(self.reading)
        if self._must_say_all or self.epoch == JOIN:
            more = {"topics": ["t"], "rebalance_timeout_ms": PATIENCE_MS}
        elif owned == self._said:
            owned = None
        try:
            told = drive.send(self.name, self.epoch, owned, **more)
        except BrokerError as error:
            if error.reason not in (Reason.MEMBER_NOT_FOUND, Reason.STALE_MEMBER_EPOCH):
                raise
            self.begin()
            return
        self._must_say_all = loses
        if loses:
            return
        self._said = set(self.reading)
        self.epoch = told.epoch
        if told.assignment is not None:
            self.assigned = set(told.assignment.get(T, ()))


class Crowd:
    """Clients that come, go, die, stall and lose answers, of a group that is restarted now and then."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.drive = Drive(self.chance.randrange(1, 9))
        self.clients: dict[str, Client] = {}
        self._named = 0

    def step(self) -> None:
        self.drive.now += self.chance.randrange(20)
        dice = self.chance.random()
        if dice < 0.06:
            self.comes()
        elif dice < 0.09 and self.clients:
            self.goes(says_so=dice < 0.08)
        elif dice < 0.11:
            self.drive.topics["t"] = (T, self.drive.topics["t"][1] + 1)
            list(self.drive.group.topic_changed("t", exists=True, may_see=lambda _, __: True))
        elif dice < 0.14:
            self.drive = self.drive.restored()
        elif self.clients:
            client = self.clients[self.chance.choice(sorted(self.clients))]
            client.beat(self.drive, loses=self.chance.random() < 0.2, works=self.chance.random() < 0.7)
        self.expire()

    def comes(self) -> None:
        if len(self.clients) < 5:
            self._named += 1
            self.clients[f"m{self._named}"] = Client(f"m{self._named}")

    def goes(self, *, says_so: bool) -> None:
        client = self.clients.pop(self.chance.choice(sorted(self.clients)))
        if says_so and self.drive.group.has_member(client.name):
            self.drive.send(client.name, LEAVE)

    def expire(self) -> None:
        for name in self.drive.expire(0):
            if name in self.clients:
                self.clients[name].begin()  # its own time is over too: it stops reading by itself
        read = self.read()
        assert len(read) == len(set(read)), f"two read the same, seed {self.seed}"

    def read(self) -> list[int]:
        return sorted(number for client in self.clients.values() for number in client.reading)


@pytest.mark.parametrize("seed", range(40))
def test_no_partition_is_read_by_two_and_all_are_read_in_the_end(seed: int) -> None:
    crowd = Crowd(seed)
    for _ in range(150):
        crowd.step()
    crowd.comes()
    for _ in range(40):
        crowd.drive.now += SESSION_MS // 8
        for client in crowd.clients.values():
            client.beat(crowd.drive)
        crowd.expire()
    assert crowd.read() == list(range(crowd.drive.topics["t"][1])), seed
    assert crowd.drive.state() is State.STABLE
