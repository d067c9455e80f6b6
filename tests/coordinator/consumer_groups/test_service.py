"""Consumer groups of a node: settled before anyone hears of it, kept through restarts, patterns, kinds, limits."""

import itertools
from typing import Any

import pytest
from tests.broker.node import Node
from tests.refusals import reason_of, refused_with

from braidlog.coordinator.consumer_groups import service
from braidlog.coordinator.consumer_groups.messages import JOIN, LEAVE, Heartbeat, HeartbeatAnswer
from braidlog.coordinator.consumer_groups.service import MEMBERS_AT_ONCE
from braidlog.coordinator.consumer_groups.subscriptions import compile_pattern
from braidlog.coordinator.groups.messages import Joining, State
from braidlog.coordinator.groups.service import GroupKind
from braidlog.coordinator.offsets import Commit
from braidlog.coordinator.state_limits import StateLimits, StateUsage
from braidlog.model.errors import BrokerError, Reason, StorageFault


def asked(member: str, epoch: int = JOIN, owned: dict[str, set[int]] | None = None, **more: Any) -> Heartbeat:
    if epoch == JOIN:
        more = {"topics": ["a"], "rebalance_timeout_ms": 60_000, **more}
        owned = {}
    return Heartbeat(member=member, epoch=epoch, owned=owned, **more)


def send(
    node: Node, member: str, epoch: int = JOIN, owned: Any = None, group: str = "g", **more: Any
) -> HeartbeatAnswer:
    return node.run(node.groups.consumer.heartbeat(group, asked(member, epoch, owned, **more)))


def shares(node: Node, told: HeartbeatAnswer) -> dict[str, list[int]]:
    names = {node.services.hosting.meta(name).topic_id: name for name in node.services.hosting.names()}
    assert told.assignment is not None
    return {names[topic]: numbers for topic, numbers in told.assignment.items()}


def classic_join(node: Node, *, id_required: bool = False) -> Any:
    joining = Joining(
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[("range", b"")],
        id_required=id_required,
    )
    return node.groups.classic.join("g", joining)


# -- what is told is settled -------------------------------------------------------------------------------------


def test_what_a_member_is_told_is_durable(node: Node) -> None:
    heartbeat = node.groups.consumer.heartbeat
    with node.runtime.holding_syncs():
        joining = node.spawn(heartbeat("g", asked("m1")))
        node.runtime.settle()
        assert not joining.is_done
        again = node.spawn(heartbeat("g", asked("m1")))
        node.runtime.settle()
        assert not again.is_done, "coming again must not tell it either"
    assert joining.result().epoch == again.result().epoch == 1


def test_a_restart_goes_on_in_the_same_epoch_with_the_same_assignment(node: Node) -> None:
    assert shares(node, send(node, "m1")) == {"a": [0, 1, 2, 3]}
    send(node, "m2")
    told = send(node, "m1", 1)
    kept = dict(told.assignment or {})
    again = node.restarted()
    view = again.groups.describe("g")
    assert (view.kind, view.state, view.generation) == (GroupKind.CONSUMER, State.RECONCILING, 2)
    assert {each.member: (each.epoch, each.shares) for each in view.members} == {
        "m1": (1, {"a": [0, 1]}),
        "m2": (2, {}),
    }
    owned = {topic: set(numbers) for topic, numbers in kept.items()}
    assert send(again, "m1", 1, owned).epoch == 2
    assert shares(again, send(again, "m2", 2)) == {"a": [2, 3]}
    assert again.groups.describe("g").generation == 2
    third = again.restarted()
    before = third.state_entries
    assert send(third, "m1", 2).assignment is None
    assert third.state_entries == before, "a heartbeat that changes nothing writes nothing"


def test_what_cannot_be_kept_did_not_happen(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    send(node, "m1")
    journal = node.coordinator("g").journal

    def fail(_: object) -> None:
        raise StorageFault("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(journal, "write", fail)
        with pytest.raises(StorageFault):
            send(node, "m2")
        with pytest.raises(StorageFault):
            send(node, "m1", LEAVE)
    assert [each.member for each in node.groups.describe("g").members] == ["m1"]
    assert send(node, "m1", 1).epoch == 1


def test_a_new_group_that_cannot_be_kept_is_not_there(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise StorageFault("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(node.coordinator("g").journal, "write", fail)
        with pytest.raises(StorageFault):
            send(node, "m1")
    assert node.groups.names() == []
    assert node.services.holdings.bytes_held == 0


# -- topics ------------------------------------------------------------------------------------------------------


def test_topics_that_come_grow_and_go_are_seen_at_the_next_heartbeat(node: Node) -> None:
    assert shares(node, send(node, "m", topics=["a", "late"])) == {"a": [0, 1, 2, 3]}
    assert send(node, "m", 1).assignment is None
    node.create("late", 1)
    assert shares(node, send(node, "m", 1)) == {"a": [0, 1, 2, 3], "late": [0]}
    node.run(node.services.topics.grow("late", 2))
    assert shares(node, send(node, "m", 2))["late"] == [0, 1]
    node.run(node.services.topics.delete("a"))
    assert shares(node, send(node, "m", 3)) == {"late": [0, 1]}
    node.create("unrelated", 1)
    assert send(node, "m", 3).assignment is None


def test_a_pattern_finds_topics_now_and_later_and_is_kept(node: Node) -> None:
    node.create("ab", 1)
    told = send(node, "m", topics=[], pattern="a.?")
    assert shares(node, told) == {"a": [0, 1, 2, 3], "ab": [0]}
    node.create("xab", 1)
    assert send(node, "m", 1).assignment is None, "all of the name has to match"
    node.create("ac", 1)
    assert shares(node, send(node, "m", 1)).keys() == {"a", "ab", "ac"}
    again = node.restarted()
    assert send(again, "m", 2).epoch == 2
    again.create("ad", 1)
    assert shares(again, send(again, "m", 2)).keys() == {"a", "ab", "ac", "ad"}
    assert again.groups.describe("g").members[0].pattern == "a.?"


def test_a_pattern_finds_only_what_its_principal_may_see(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.create("ab", 1)
    for group in ("g", "other"):
        consumer = node.coordinator(group).groups.consumer
        monkeypatch.setattr(consumer, "_may_see", lambda by, topic: by == "root" or topic == "a")
    assert shares(node, send(node, "m", topics=[], pattern="a.*", by="guest")).keys() == {"a"}
    node.create("ac", 1)
    assert send(node, "m", 1, by="guest").assignment is None
    assert shares(node, send(node, "r", topics=[], pattern="a.*", by="root", group="other")).keys() == {"a", "ab", "ac"}


@pytest.mark.parametrize("pattern", ["(", "a{2000}", "((a{100}){100}){100}", r"\pL{200}", "x" * 1_001, r"(a)\1"])
def test_a_pattern_that_costs_too_much_or_is_none_is_refused(node: Node, pattern: str) -> None:
    heartbeat = node.groups.consumer.heartbeat
    assert reason_of(node.run, heartbeat("g", asked("m", topics=[], pattern=pattern))) is Reason.INVALID_PATTERN
    assert node.groups.names() == []


def test_others_go_on_while_patterns_are_matched(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as time says: what a name costs depends on the pattern."""
    for number in range(8):
        node.create(f"a{number}", 1)
    pauses: list[str] = []

    async def pause() -> None:
        pauses.append("")

    monkeypatch.setattr(service, "yield_to_loop", pause)
    ticks = itertools.count()
    monkeypatch.setattr(node.runtime, "monotonic", lambda: next(ticks) * service.TURN_SECONDS)
    send(node, "m", topics=[], pattern="a.*")
    assert len(pauses) >= 4
    before = len(pauses)
    node.run(node.groups.consumer.topic_changed("a1"))
    assert len(pauses) > before


def test_a_pattern_that_ruins_others_is_matched_in_linear_time() -> None:
    """Python's own engine would need 2^200 steps."""
    assert compile_pattern("(a|a|aa)*b").fullmatch("a" * 200) is None


# -- kinds -------------------------------------------------------------------------------------------------------


def test_an_empty_group_changes_its_kind_both_ways_and_its_numbers_go_on(node: Node) -> None:
    groups = node.groups
    told = send(node, "m")
    assert told.epoch == 1
    assert reason_of(node.run, classic_join(node)) is Reason.WRONG_GROUP_KIND
    node.run(groups.consumer.commit("g", "m", 1, [Commit("a", 0, 7)]))
    send(node, "m", LEAVE)
    joining = node.spawn(classic_join(node))
    node.runtime.advance(1_000)
    joined = joining.result()
    assert joined.generation == 2
    assert groups.describe("g").kind is GroupKind.CLASSIC
    refused = groups.consumer.heartbeat("g", asked("m"))
    assert reason_of(node.run, refused) is Reason.WRONG_GROUP_KIND
    node.run(groups.classic.leave("g", [(joined.member, None)]))
    again = node.restarted()
    assert send(again, "m").epoch >= 3
    committed = again.offsets.committed("g", "a", 0)
    assert committed is not None
    assert committed.offset == 7, "commits are the group's, whatever its kind"
    assert again.restarted().groups.describe("g").kind is GroupKind.CONSUMER


def test_a_classic_group_that_nobody_entered_gives_the_name_back(node: Node) -> None:
    send(node, "m")
    send(node, "m", LEAVE)
    groups = node.groups
    assert reason_of(node.run, classic_join(node, id_required=True)) is Reason.MEMBER_ID_REQUIRED
    assert groups.describe("g").kind is GroupKind.CLASSIC
    node.runtime.advance(60_000)
    node.run(groups.expire())
    assert (groups.describe("g").kind, groups.describe("g").generation) == (GroupKind.CONSUMER, 1)
    assert send(node, "m").epoch == 2


# -- time, limits, forgetting ------------------------------------------------------------------------------------


def test_a_silent_member_is_taken_out_by_the_node(node: Node) -> None:
    send(node, "m1")
    send(node, "m2")
    node.runtime.advance(44_000)
    send(node, "m2", 2)
    node.runtime.advance(2_000)
    assert node.run(node.groups.expire()) == {"g": ["m1"]}
    assert shares(node, send(node, "m2", 2)) == {"a": [0, 1, 2, 3]}
    assert node.restarted().groups.describe("g").members[0].member == "m2"


def test_limits_hold_for_groups_and_their_members() -> None:
    node = Node(holdings=StateUsage(StateLimits(groups_max=1, members_per_group_max=1)))
    node.create("a", 1)
    send(node, "m")
    heartbeat = node.groups.consumer.heartbeat
    assert reason_of(node.run, heartbeat("g", asked("m2"))) is Reason.GROUP_FULL
    assert reason_of(node.run, heartbeat("other", asked("m"))) is Reason.QUOTA_EXCEEDED
    held = node.services.holdings.bytes_held
    assert node.restarted().services.holdings.bytes_held == held
    send(node, "m", LEAVE)
    node.run(node.groups.delete("g"))
    assert node.services.holdings.bytes_held == 0
    assert node.restarted().groups.names() == []


def test_what_is_refused(node: Node) -> None:
    heartbeat = node.groups.consumer.heartbeat
    assert reason_of(node.run, heartbeat("a b", asked("m"))) is Reason.INVALID_GROUP
    assert reason_of(node.run, heartbeat("g", asked("m", assignor="sticky"))) is Reason.UNSUPPORTED_ASSIGNOR
    assert reason_of(node.run, heartbeat("g", asked("m", 5))) is Reason.MEMBER_NOT_FOUND
    assert reason_of(node.run, heartbeat("g", asked("m" * 300))) is Reason.INVALID_GROUP
    assert (
        reason_of(node.run, heartbeat("g", asked("m", topics=[f"t{n}" for n in range(1_001)]))) is Reason.INVALID_GROUP
    )
    assert node.groups.names() == []


def test_commits_and_fetches_are_fenced_by_the_epoch(node: Node) -> None:
    consumer = node.groups.consumer
    send(node, "m")
    node.run(consumer.commit("g", "m", 1, [Commit("a", 0, 5)]))
    assert reason_of(node.run, consumer.commit("g", "m", 2, [Commit("a", 0, 5)])) is Reason.STALE_MEMBER_EPOCH
    assert reason_of(node.run, consumer.commit("g", "x", 1, [Commit("a", 0, 5)])) is Reason.MEMBER_NOT_FOUND
    assert reason_of(node.run, consumer.commit("g", "", -1, [Commit("a", 0, 5)])) is Reason.MEMBER_NOT_FOUND
    consumer.check_fetch("g", "m", 1)
    consumer.check_fetch("g", None, -1)
    consumer.check_fetch("of no kind", "m", 7)
    with pytest.raises(BrokerError):
        consumer.check_fetch("g", "m", 7)
    with refused_with(Reason.STALE_GENERATION):
        consumer.check_transactional("g", "m", 7, None)
    consumer.check_transactional("g", "", -1, None)
    lags = {(each.topic, each.partition): (each.committed, each.member) for each in node.run(node.groups.lag("g"))}
    assert lags["a", 0] == (5, "m")
    assert node.run(node.groups.delete_commits("g", [("a", 0)])) == [("a", 0)], "it is read"


# -- many --------------------------------------------------------------------------------------------------------


def test_many_who_join_at_once_share_the_dividing(node: Node) -> None:
    """Who comes while the work is divided waits for the next time, all of them for the same one."""
    count = MEMBERS_AT_ONCE + 60
    node.create("wide", count)
    joining = [
        node.spawn(node.groups.consumer.heartbeat("g", asked(f"m{number:03}", topics=["wide"])))
        for number in range(count)
    ]
    node.runtime.settle()
    assert len({job.result().member for job in joining}) == count
    epoch = node.groups.describe("g").generation
    for number in range(count):
        told = send(node, f"m{number:03}", joining[number].result().epoch, {})
        assert told.epoch == epoch
    for number in range(count):
        send(node, f"m{number:03}", epoch, None)
    view = node.groups.describe("g")
    assert view.state is State.STABLE
    assert sorted(n for each in view.members for n in each.shares["wide"]) == list(range(count))
    again = node.restarted().groups.describe("g")
    assert (again.generation, again.members) == (view.generation, view.members)
