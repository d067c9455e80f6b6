"""One group by hand: generations, shares, fencing, expiry."""

import pytest
from tests.refusals import reason_of

from braidlog.coordinator.groups import group as module
from braidlog.coordinator.groups.assignors import Assignor
from braidlog.coordinator.groups.group import Group, StaleGeneration
from braidlog.model.errors import Reason

COUNTS = {"a": 4, "b": 1}


@pytest.fixture
def group() -> Group:
    return Group("g", lambda topic: COUNTS.get(topic, 0))


def join(group: Group, member: str, *topics: str, now_ms: int = 0, timeout_ms: int = 1000) -> bool:
    return group.join(member, topics or ["a"], None, timeout_ms, now_ms)


def test_each_change_of_members_is_a_generation(group: Group) -> None:
    assert join(group, "m1")
    assert (group.generation, group.assignment) == (1, {"m1": {"a": [0, 1, 2, 3]}})
    assert join(group, "m2")
    assert (group.generation, group.assignment) == (2, {"m1": {"a": [0, 1]}, "m2": {"a": [2, 3]}})
    assert not join(group, "m1"), "coming again with the same wishes changes nothing"
    assert group.generation == 2
    assert join(group, "m1", "a", "b")
    assert group.generation == 3
    assert group.leave("m2", 3)
    assert group.generation == 4
    assert group.leave("m1", None)
    assert (group.generation, group.assignment) == (5, {})
    join(group, "m3")
    assert group.generation == 6, "empty meanwhile, and still it goes on from where it was"


def test_another_session_timeout_is_kept_without_a_new_generation(group: Group) -> None:
    join(group, "m1", timeout_ms=1000)
    assert join(group, "m1", timeout_ms=2000)
    assert group.generation == 1
    assert group.members[0].session_timeout_ms == 2000


def test_another_assignor_is_a_new_generation(group: Group) -> None:
    join(group, "m1")
    assert group.join("m1", ["a"], Assignor.ROUND_ROBIN, 1000, 0)
    assert (group.generation, group.assignor) == (2, Assignor.ROUND_ROBIN)


def test_who_speaks_for_another_generation_is_refused(group: Group) -> None:
    join(group, "m1")
    join(group, "m2")
    for generation in (1, 3, 0, -1):
        with pytest.raises(StaleGeneration) as caught:
            group.heartbeat("m1", generation, 0)
        assert (caught.value.current, caught.value.requested) == (2, generation)
        assert reason_of(group.leave, "m1", generation) is Reason.STALE_GENERATION
        assert reason_of(group.check_owner, "m1", generation, "a", 0) is Reason.STALE_GENERATION
    assert reason_of(group.heartbeat, "m9", 2, 0) is Reason.MEMBER_NOT_FOUND
    assert reason_of(group.leave, "m9", None) is Reason.MEMBER_NOT_FOUND
    assert reason_of(group.membership, "m9") is Reason.MEMBER_NOT_FOUND
    group.check_owner("m1", 2, "a", 1)
    for topic, partition in (("a", 2), ("a", 9), ("b", 0), ("nope", 0)):
        assert reason_of(group.check_owner, "m1", 2, topic, partition) is Reason.PARTITION_NOT_ASSIGNED


def test_who_is_not_heard_of_goes(group: Group) -> None:
    join(group, "m1", now_ms=0, timeout_ms=1000)
    join(group, "m2", now_ms=500, timeout_ms=1000)
    assert group.expire(1000) == []
    group.heartbeat("m1", 2, 900)
    assert group.expire(1501) == ["m2"]
    assert group.generation == 3
    assert group.assignment == {"m1": {"a": [0, 1, 2, 3]}}
    group.revive(10_000)
    assert group.expire(11_000) == []
    assert group.expire(11_001) == ["m1"]


def test_growth_is_noticed_when_someone_comes_again() -> None:
    counts = {"a": 2}
    group = Group("g", lambda topic: counts[topic])
    join(group, "m1")
    counts["a"] = 5
    assert join(group, "m1")
    assert group.membership("m1").assignment == {"a": [0, 1, 2, 3, 4]}


def test_an_image_is_the_group(group: Group) -> None:
    join(group, "m1")
    join(group, "m2", "a", "b")
    twin = Group("g", lambda topic: COUNTS.get(topic, 0), group.image())
    assert twin.image() == group.image()
    join(group, "m3")
    assert len(twin.members) == 2, "an image is not moved by what comes after it"
    kept = twin.image()
    twin.leave("m1", None)
    twin.restore(kept)
    assert twin.image() == kept


@pytest.mark.parametrize("name", ["", "x" * 250, "a b", "a\n", "\ud800"])
def test_bad_member_names(group: Group, name: str) -> None:
    assert reason_of(join, group, name) is Reason.INVALID_GROUP
    assert group.generation == 0


def test_a_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group("g", lambda topic: COUNTS.get(topic, 0), members_max=2)
    monkeypatch.setattr(module, "TOPICS_MAX", 3)
    join(group, "m1")
    join(group, "m2")
    assert reason_of(join, group, "m3") is Reason.GROUP_FULL
    assert join(group, "m1", "b"), "who is in may change"
    assert reason_of(join, group, "m1", "a", "b", "c", "d") is Reason.INVALID_GROUP
    assert len(group.members) == 2
