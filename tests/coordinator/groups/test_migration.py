"""A group changes its kind while it has members: those that elect a leader are served by the group to which others report."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.coordinator.consumer_groups.messages import JOIN, LEAVE, Heartbeat, HeartbeatAnswer
from braidlog.coordinator.groups.classic_members import ClassicMembers
from braidlog.coordinator.groups.messages import Joined, Joining, MemberIdRequired, State
from braidlog.coordinator.groups.service import GroupKind
from braidlog.coordinator.offsets import Commit
from braidlog.model.errors import BrokerError, Reason
from braidlog.wire.kafka.consumer import ConsumerMetadata, assignment

METADATA = ConsumerMetadata()
SESSION_MS = 10_000
ALL = [0, 1, 2, 3]


@pytest.fixture
def node() -> Node:
    node = Node()
    node.create("a", len(ALL))
    return node


def subscription(owned: Sequence[int] = ()) -> bytes:
    """Version 1, by hand: topic "a", no user data, owned partitions of it."""
    numbers = b"".join(number.to_bytes(4, "big") for number in owned)
    listed = b"\0\0\0\1\0\1a" + len(owned).to_bytes(4, "big") + numbers if owned else b"\0\0\0\0"
    return b"\0\1\0\0\0\1\0\1a\xff\xff\xff\xff" + listed


def asking(member: str = "", owned: Sequence[int] = (), **more: Any) -> Joining:
    fields = {"protocols": [("range", subscription(owned))], "protocol_type": "consumer", **more}
    return Joining(member=member, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=60_000, **fields)


def run_join(node: Node, asked: Joining, group: str = "g") -> Joined:
    job = node.spawn(node.groups.classic_service_for(group).join(group, asked))
    groups = node.coordinator(group).groups
    node.runtime.advance((groups.classic is groups.classic_service_for(group) and 3_000) or 0)
    return job.result()


def led(node: Node) -> Joined:
    """A classic group of one, which reads everything."""
    told = run_join(node, asking())
    node.run(node.groups.classic.sync("g", told.member, told.generation, [(told.member, assignment({"a": ALL}))]))
    return told


def report(node: Node, member: str = "new", epoch: int = JOIN, owned: Sequence[int] = ()) -> HeartbeatAnswer:
    topic_id = node.services.hosting.meta("a").topic_id
    whole: dict[str, Any] = {"topics": ["a"], "rebalance_timeout_ms": 60_000} if epoch == JOIN else {}
    beat = Heartbeat(member=member, epoch=epoch, owned={topic_id: set(owned)} if owned else {}, **whole)
    return node.run(node.groups.consumer.heartbeat("g", beat))


def shares(told: Mapping[str, Sequence[int]] | None) -> list[int]:
    assert told is not None
    return [number for numbers in told.values() for number in numbers]


def synced(node: Node, member: str, generation: int) -> list[int]:
    return shares(
        METADATA.shares(node.run(node.groups.classic_service_for("g").sync("g", member, generation, [])).assignment)
    )


def beat(node: Node, member: str, generation: int) -> Reason | None:
    try:
        waiting = node.groups.classic_service_for("g").heartbeat("g", member, generation)
        if waiting is not None:
            node.run(waiting)
    except BrokerError as error:
        return error.reason
    return None


def test_a_member_that_reports_joins_a_group_that_elects_a_leader_and_the_work_is_divided(node: Node) -> None:
    first = led(node)
    told = report(node)
    assert (told.epoch, told.assignment) == (first.generation + 1, {}), "all is still read by the other"
    for each in (node, node.restarted()):
        view = each.groups.describe("g")
        assert view.kind is GroupKind.CONSUMER
        assert {member.member: sorted(shares(member.shares)) for member in view.members} == {
            first.member: ALL,
            "new": [],
        }
    assert beat(node, first.member, first.generation) is Reason.REBALANCE_IN_PROGRESS
    again = run_join(node, asking(first.member, ALL))
    assert (again.generation, again.leader, again.protocol) == (first.generation, "", "range"), "it has to give up two"
    kept = synced(node, first.member, again.generation)
    assert len(kept) == 2
    assert report(node, epoch=told.epoch).assignment is None, "they were not given up yet"
    assert beat(node, first.member, again.generation) is Reason.REBALANCE_IN_PROGRESS
    again = run_join(node, asking(first.member, kept))
    assert again.generation == told.epoch
    assert synced(node, first.member, again.generation) == kept
    assert beat(node, first.member, again.generation) is None
    assert sorted(kept + shares(report(node, epoch=told.epoch).assignment)) == ALL


def test_an_eager_member_gives_up_everything_by_joining_and_gets_its_share_at_once(node: Node) -> None:
    first = led(node)
    told = report(node)
    again = run_join(node, asking(first.member))
    assert again.generation == told.epoch
    share = synced(node, first.member, again.generation)
    assert sorted(share + shares(report(node, epoch=told.epoch).assignment)) == ALL
    late = run_join(node, asking())
    assert late.generation == told.epoch + 1
    assert synced(node, late.member, late.generation) == [], "what it is to read is not free"
    assert beat(node, late.member, late.generation) is None, "to join again would give it nothing"
    again = run_join(node, asking(first.member))
    report(node, epoch=told.epoch)
    assert beat(node, late.member, late.generation) is Reason.REBALANCE_IN_PROGRESS
    assert len(synced(node, late.member, run_join(node, asking(late.member)).generation)) == 1


def test_when_nobody_reports_any_more_the_rest_elects_a_leader(node: Node) -> None:
    first = led(node)
    told = report(node)
    again = run_join(node, asking(first.member))
    share = synced(node, first.member, again.generation)
    report(node, epoch=LEAVE)
    node.run(node.groups.expire())
    for each in (node, node.restarted()):
        view = each.groups.describe("g")
        assert (view.kind, view.generation) == (GroupKind.CLASSIC, told.epoch)
        assert [METADATA.shares(member.assignment) for member in view.members] == [{"a": share}]
        assert len(each.services.coordinators.coordinator_for("g").tables["consumer-member"].values) == 0
    assert beat(node, first.member, again.generation) is Reason.REBALANCE_IN_PROGRESS
    led_by = run_join(node, asking(first.member))
    assert (led_by.generation, led_by.leader) == (told.epoch + 1, first.member)


@pytest.mark.parametrize("joins", [True, False])
def test_who_waits_while_the_group_becomes_one_that_elects_a_leader_joins_that_one(node: Node, joins: bool) -> None:
    first = led(node)
    told = report(node)
    again = run_join(node, asking(first.member))
    consumer, members, beats = node.coordinator("g").groups.consumer, node.groups.classic_service_for("g"), list[Any]()
    assert isinstance(members, ClassicMembers)

    async def gone(*_: object) -> None:
        """Instead of patterns, which are looked at before targets are made."""
        assert not beats, "targets are made for a group that is gone"
        beats.append(await consumer.heartbeat("g", Heartbeat(member="new", epoch=LEAVE)))
        await node.groups.expire()

    consumer._resolve = gone  # type: ignore[method-assign, assignment]
    node.run(consumer.topic_changed("a"))
    asks = members.join("g", asking(first.member)) if joins else members.heartbeat("g", first.member, again.generation)
    with refused_with(Reason.REBALANCE_IN_PROGRESS):
        node.run(asks)
    assert [each.epoch for each in beats] == [LEAVE]
    view = node.groups.describe("g")
    assert (view.kind, view.generation) == (GroupKind.CLASSIC, told.epoch)


def test_targets_of_a_group_whose_place_another_has_taken_are_not_kept(node: Node) -> None:
    groups, joining = node.groups, list[Any]()

    async def gone(*_: object) -> None:
        """Instead of patterns, which are looked at before targets are made."""
        await groups.consumer.heartbeat("g", Heartbeat(member="new", epoch=LEAVE))
        joining.append(node.spawn(groups.classic.join("g", asking())))

    node.coordinator("g").groups.consumer._resolve = gone  # type: ignore[method-assign, assignment]
    with refused_with(Reason.MEMBER_NOT_FOUND):
        report(node)
    assert groups.describe("g").kind is GroupKind.CLASSIC
    node.runtime.advance(3_000)
    assert joining[0].result().member


def test_one_that_reports_and_is_silent_is_taken_out_and_the_rest_elects_a_leader(node: Node) -> None:
    first = led(node)
    report(node)
    run_join(node, asking(first.member))
    for _ in range(10):
        node.runtime.advance(5_000)
        generation = node.groups.describe("g").generation
        beat(node, first.member, generation)
        node.run(node.groups.expire())
    assert node.groups.describe("g").kind is GroupKind.CLASSIC


def test_a_classic_member_is_taken_out_by_its_own_session_and_if_it_does_not_join_again(node: Node) -> None:
    first = led(node)
    told = report(node)

    def live(seconds: int, beats: bool) -> set[str]:
        for _ in range(seconds // 5):
            node.runtime.advance(5_000)
            if beats:
                beat(node, first.member, first.generation)
            report(node, epoch=told.epoch)
            node.run(node.groups.expire())
        return {member.member for member in node.groups.describe("g").members}

    assert live(55, beats=True) == {first.member, "new"}
    assert live(15, beats=True) == {"new"}, "it was told to join again"
    second = run_join(node, asking())
    assert live(10, beats=False) == {second.member, "new"}
    assert live(5, beats=False) == {"new"}


def test_what_is_waited_for_in_a_classic_group_is_to_be_asked_again(node: Node) -> None:
    first = led(node)
    waiting = node.spawn(node.groups.classic.join("g", asking()))
    told = report(node)
    with refused_with(Reason.REBALANCE_IN_PROGRESS):
        waiting.result()
    assert shares(told.assignment) == [], "the other may read on while it joins"
    assert first.member in {member.member for member in node.groups.describe("g").members}


def test_nobody_comes_between_a_leader_and_its_assignment(node: Node) -> None:
    told = run_join(node, asking())
    assert node.groups.describe("g").state is State.SYNCING
    with pytest.raises(BrokerError) as caught:
        report(node)
    assert caught.value.reason is Reason.COORDINATOR_LOADING, "a client reports again"
    node.run(node.groups.classic.sync("g", told.member, told.generation, []))
    assert len(shares(report(node).assignment)) == 2, "the leader gave nothing to anybody"


def test_a_group_of_other_words_is_not_migrated(node: Node) -> None:
    asked = asking(protocol_type="connect", protocols=[("x", b"")])
    job = node.spawn(node.groups.classic.join("g", asked))
    node.runtime.advance(3_000)
    job.result()
    with refused_with(Reason.WRONG_GROUP_KIND):
        report(node)
    unreadable = asking(protocols=[("x", b"")])
    job = node.spawn(node.groups.classic.join("h", unreadable))
    node.runtime.advance(3_000)
    told = job.result()
    node.run(node.groups.classic.sync("h", told.member, 1, []))
    with refused_with(Reason.WRONG_GROUP_KIND):
        node.run(node.groups.consumer.heartbeat("h", Heartbeat(member="m", epoch=JOIN, topics=["a"], owned={})))


def test_what_cannot_be_served_is_refused(node: Node) -> None:
    first = led(node)
    told = report(node)
    members = node.groups.classic_service_for("g")
    for asked, reason in (
        (asking(protocol_type="connect"), Reason.INCONSISTENT_PROTOCOLS),
        (asking(protocols=[("other", subscription())]), Reason.INCONSISTENT_PROTOCOLS),
        (asking(protocols=[("range", b"\xff")]), Reason.INCONSISTENT_PROTOCOLS),
        (asking(instance="i", member="nobody"), Reason.MEMBER_NOT_FOUND),
    ):
        with refused_with(reason):
            node.run(members.join("g", asked))
    with pytest.raises(MemberIdRequired) as required:
        node.run(members.join("g", asking(id_required=True)))
    assert node.run(members.join("g", asking(required.value.member))).member == required.value.member
    assert beat(node, "nobody", 1) is beat(node, "new", told.epoch) is Reason.MEMBER_NOT_FOUND, "that one reports"
    assert beat(node, first.member, first.generation + 7) is Reason.STALE_GENERATION
    with refused_with(Reason.REBALANCE_IN_PROGRESS):
        node.run(members.sync("g", first.member, first.generation, []))
    run_join(node, asking(first.member))
    with refused_with(Reason.INCONSISTENT_PROTOCOLS):
        node.run(
            members.sync("g", first.member, run_join(node, asking(first.member)).generation, [], spoken=(None, "x"))
        )
    left = node.run(members.leave("g", [(first.member, None), ("nobody", None)]))
    assert [error and error.reason for error in left] == [None, Reason.MEMBER_NOT_FOUND]


def test_commits_of_classic_members_are_fenced_by_generations(node: Node) -> None:
    first = led(node)
    report(node)
    commits = [Commit("a", 0, 1)]
    by_members = node.groups.commit_service_for("g")
    node.run(by_members.commit("g", first.member, first.generation, commits))
    run_join(node, asking(first.member))
    with refused_with(Reason.STALE_GENERATION):
        node.run(by_members.commit("g", first.member, first.generation - 1, commits))


def test_a_static_member_goes_on_by_the_other_protocol_where_it_was(node: Node) -> None:
    told = run_join(node, asking(instance="i"))
    node.run(node.groups.classic.sync("g", told.member, 1, [(told.member, assignment({"a": ALL}))]))
    report(node, "other")
    topic_id = node.services.hosting.meta("a").topic_id
    taken = Heartbeat(member="x", instance="i", epoch=JOIN, topics=["a"], rebalance_timeout_ms=60_000, owned={})
    assert len(shares(node.run(node.groups.consumer.heartbeat("g", taken)).assignment)) == 2
    view = {member.member: member.instance for member in node.groups.describe("g").members}
    assert view == {"other": None, "x": "i"}
    back = run_join(node, asking(instance="i"))
    assert len(synced(node, back.member, back.generation)) == 2
    assert back.member != told.member
    assert beat(node, told.member, 1) is Reason.MEMBER_NOT_FOUND
    left = node.run(node.groups.classic_service_for("g").leave("g", [("", "i")]))
    assert left == [None]
    assert topic_id
