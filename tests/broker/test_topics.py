"""Topics: made once, gone for good, grown and altered, and never the broker's own."""

import errno
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.broker.node import Node, batch_of
from tests.broker.three_nodes import three_nodes
from tests.refusals import reason_of, refused_with

from braidlog.broker.topics import Placed
from braidlog.cluster.metadata.events import DeleteTopic
from braidlog.coordinator.groups.assignors import Assignor
from braidlog.coordinator.offsets import Commit
from braidlog.coordinator.shards import STATE_TOPIC
from braidlog.coordinator.snapshot_store import Snapshot
from braidlog.coordinator.state_limits import StateLimits, StateUsage
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.partition.hosted_log import Role


@pytest.fixture
def node() -> Node:
    return Node()


def test_create_list_describe(node: Node) -> None:
    topics = node.services.hosting
    meta = node.run(node.services.topics.create("b", 3, settings={"retention_ms": 5}))
    node.create("a")
    assert topics.names() == ["a", "b"]
    assert topics.meta("b") == meta
    assert (meta.partitions, meta.settings.retention_ms) == (3, 5)
    assert len(topics.partitions("b")) == 3
    again = node.restarted()
    assert again.services.hosting.meta("b") == meta


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "a\x00", "ä", "x" * 250, "%2e%2e", "a\n"])
def test_bad_names(node: Node, name: str) -> None:
    assert reason_of(node.run, node.services.topics.create(name, 1, followers=["1"])) is Reason.INVALID_TOPIC_NAME
    assert node.services.hosting.names() == []


@pytest.mark.parametrize("partitions", [0, -1, 10_001])
def test_bad_partition_counts(node: Node, partitions: int) -> None:
    assert reason_of(node.run, node.services.topics.create("a", partitions)) is Reason.INVALID_PARTITION_COUNT


@pytest.mark.parametrize("settings", [{"no_such": 1}, {"retention_ms": -5}, {"flush": "sometimes"}])
def test_bad_settings(node: Node, settings: dict[str, Any]) -> None:
    assert reason_of(node.run, node.services.topics.create("a", 1, settings=settings)) is Reason.INVALID_SETTING
    node.create("a")
    assert reason_of(node.run, node.services.topics.alter("a", settings)) is Reason.INVALID_SETTING


INTERNAL: list[Callable[[Node], Any]] = [
    lambda node: node.services.topics.create(STATE_TOPIC, 1),
    lambda node: node.services.topics.create("__mine", 1),
    lambda node: node.services.topics.ensure(STATE_TOPIC, 1),
    lambda node: node.services.topics.delete(STATE_TOPIC),
    lambda node: node.services.topics.grow(STATE_TOPIC, 2),
    lambda node: node.services.topics.alter(STATE_TOPIC, {"retention_ms": 1}),
    lambda node: node.services.placement.set_role(STATE_TOPIC, 0, Role.FOLLOWER),
    lambda node: node.services.placement.set_followers(STATE_TOPIC, ["1"], 1),
    lambda node: node.services.append.append(STATE_TOPIC, 0, batch_of(b"x")),
    lambda node: node.services.fetch.records(STATE_TOPIC, 0, 0, bytes_max=1000),
    lambda node: node.services.streams.append(STATE_TOPIC, b"k", 0, b"v"),
    lambda node: node.offsets.commit("g", [Commit(STATE_TOPIC, 0, 0)]),
    lambda node: node.groups.join("g", "m", [STATE_TOPIC]),
]


@pytest.mark.parametrize("attempt", INTERNAL)
def test_the_brokers_own_topics_are_not_there_for_requests(node: Node, attempt: Callable[[Node], Any]) -> None:
    """A second log over the journal's files, or a stranger's record in it, would be the end of everything kept there."""
    end = node.state_entries
    assert reason_of(node.run, attempt(node)) in (Reason.INVALID_TOPIC_NAME, Reason.TOPIC_NOT_FOUND)
    assert node.state_entries == end
    assert STATE_TOPIC not in node.services.hosting.names()


# -- races ---------------------------------------------------------------------------------------------------


def test_one_of_many_creators_wins_and_ensure_always_does(node: Node) -> None:
    topics = node.services.topics
    creates = [node.spawn(topics.create("a", 1 + number)) for number in range(5)]
    ensures = [node.spawn(topics.ensure("a", 9)) for _ in range(5)]
    node.runtime.settle()
    errors = [job.error for job in creates]
    assert errors[0] is None
    assert all(isinstance(error, BrokerError) and error.reason is Reason.TOPIC_EXISTS for error in errors[1:])
    assert {job.result().topic_id for job in ensures} == {creates[0].result().topic_id}
    assert topics.hosting.meta("a").partitions == 1


@pytest.mark.parametrize("seed", range(20))
def test_topics_made_at_once_do_not_share_a_folder(seed: int) -> None:
    node = Node(rng=Random(seed))
    jobs = [node.spawn(node.services.topics.create(f"t{number}", 1)) for number in range(6)]
    node.runtime.settle()
    assert len({job.result().topic_id for job in jobs}) == 6
    for number in range(6):
        node.append(f"t{number}", b"%d" % number)
    again = node.restarted()
    assert [again.values(f"t{number}") for number in range(6)] == [[b"%d" % number] for number in range(6)]


@pytest.mark.parametrize("seed", range(30))
def test_changes_in_any_order_leave_memory_and_disk_alike(seed: int) -> None:
    rng = Random(seed)
    node = Node(rng=rng)
    topics = node.services.topics
    for _ in range(40):
        name = rng.choice("abc")
        kind = rng.randrange(5)
        if kind == 0:
            node.spawn(topics.create(name, 1))
        elif kind == 1:
            node.spawn(topics.delete(name))
        elif kind == 2:
            node.spawn(topics.grow(name, rng.randrange(1, 5)))
        elif kind == 3:
            node.spawn(topics.alter(name, {"retention_ms": rng.randrange(1000)}))
        else:
            node.spawn(topics.ensure(name, 1))
        if rng.random() < 0.3:
            node.runtime.settle()
    node.runtime.settle()
    again, hosting = node.restarted().services.hosting, node.services.hosting
    assert [again.meta(name) for name in again.names()] == [hosting.meta(name) for name in hosting.names()], (
        f"seed {seed}"
    )


def test_two_who_alter_different_settings_both_succeed(node: Node) -> None:
    node.create("a")
    jobs = [
        node.spawn(node.services.topics.alter("a", change)) for change in ({"retention_ms": 7}, {"retention_bytes": 8})
    ]
    node.runtime.settle()
    assert all(job.is_done for job in jobs)
    settings = node.services.hosting.meta("a").settings
    assert (settings.retention_ms, settings.retention_bytes) == (7, 8)
    assert node.services.hosting.partition("a", 0).log.settings == settings


def test_the_losers_placement_is_not_the_winners(node: Node) -> None:
    first = node.spawn(node.services.topics.create("a", 1, followers=["1"]))
    second = node.spawn(node.services.topics.create("a", 1, followers=["2", "3"]))
    node.runtime.settle()
    assert first.error is None
    assert second.error is not None
    for each in (node, node.restarted()):
        assert [r.node for r in each.services.hosting.partition("a", 0).replicas.followers] == ["1"]


def test_a_creation_that_failed_leaves_no_placement(node: Node) -> None:
    assert reason_of(node.run, node.services.topics.create("a", 0, followers=["1"])) is Reason.INVALID_PARTITION_COUNT
    node.create("a", 1)
    assert node.services.hosting.partition("a", 0).replicas.replication_factor == 1
    assert node.restarted().services.hosting.partition("a", 0).replicas.replication_factor == 1


def test_a_topic_that_is_deleted_while_it_is_created_is_not_found(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = node.services.topics
    change = topics._reconciler.change

    async def change_then_delete(name: str, decide: Any) -> None:
        monkeypatch.undo()
        await change(name, decide)
        await topics.delete(name)

    monkeypatch.setattr(topics._reconciler, "change", change_then_delete)
    assert reason_of(node.run, topics.create("brief", 1)) is Reason.TOPIC_NOT_FOUND


def test_a_line_that_does_not_move_is_left(node: Node) -> None:
    topics = node.services.topics
    with node.runtime.holding_syncs():
        stuck = node.spawn(topics.create("a", 1, followers=["1"]))
        waiting = node.spawn(topics.create("b", 1))
        node.runtime.advance(60_000)
        assert isinstance(waiting.error, BrokerError)
        assert waiting.error.reason is Reason.TIMED_OUT
    node.runtime.settle()
    stuck.result()
    node.create("b")


# -- deletion ------------------------------------------------------------------------------------------------


def test_what_was_deleted_is_gone_and_its_name_free(node: Node) -> None:
    node.create("a", 2, followers=["1"])
    node.append("a", b"old")
    node.run(node.services.placement.set_role("a", 1, Role.FOLLOWER))
    node.run(node.services.topics.delete("a"))
    assert not node.services.hosting.exists("a")
    assert reason_of(node.run, node.services.topics.delete("a")) is Reason.TOPIC_NOT_FOUND
    node = node.restarted()
    assert node.services.hosting.names() == []
    node.create("a", 2)
    assert node.values("a") == []
    hosted = node.services.hosting.partition("a", 1)
    assert (hosted.role, hosted.replicas.replication_factor) == (Role.LEADER, 1)


def test_everything_kept_of_a_topic_goes_with_it(node: Node) -> None:
    services = node.services
    node.create("a", 2)
    node.create("b", 1)
    node.run(node.offsets.commit("g", [Commit("a", 0, 5), Commit("b", 0, 6)]))
    node.run(node.groups.join("g", "m", ["a", "b"]))
    node.run(services.streams.append("a", b"k", 0, b"v"))
    node.run(services.streams.save_snapshot("a", b"k", Snapshot(1, b"state")))
    generation = node.groups.find("g").generation
    node.run(services.topics.delete("a"))
    node.create("a", 2)
    for each in (node, node.restarted()):
        services = each.services
        assert each.offsets.committed("g", "a", 0) is None
        assert each.offsets.group_offsets("g").keys() == {("b", 0)}
        assert each.run(services.streams.snapshot("a", b"k")) is None
        assert each.run(services.streams.version("a", b"k")) == 0
        assert each.groups.find("g").generation == generation + 1


def test_what_a_crash_left_of_a_deleted_topic_is_swept_when_opening(node: Node) -> None:
    services = node.services
    node.create("a", 1, followers=["1"])
    node.run(node.offsets.commit("g", [Commit("a", 0, 5)]))
    node.run(services.streams.append("a", b"k", 0, b"v"))
    node.run(services.streams.save_snapshot("a", b"k", Snapshot(1, b"s")))
    topic_id = node.services.hosting.meta("a").topic_id
    gone = node.restarted()  # as if the node died right after the event was durable
    event = DeleteTopic(topic="a", topic_id=topic_id, deleted_ms=node.clock.now_ms())
    assert gone.run(gone.services.metadata._store.propose([event], after=gone.services.metadata.seq))
    again = gone.restarted()
    assert again.folder.find("a") is None
    again.create("a")
    assert again.offsets.committed("g", "a", 0) is None
    assert again.run(again.services.streams.snapshot("a", b"k")) is None
    assert again.services.hosting.partition("a", 0).replicas.replication_factor == 1


def test_a_topic_that_cannot_be_read_does_not_lose_its_commits(node: Node) -> None:
    node.create("a")
    node.append("a", b"x")
    node.run(node.offsets.commit("g", [Commit("a", 0, 5)]))
    disk = node.disk.after_kill()
    folder = node.folder.partition_folder("a", 0).rpartition("/")[0]
    saved = {name: disk.content(f"{folder}/{name}") for name in ("topic.a", "topic.b")}
    for name in saved:
        disk.flip_bit(f"{folder}/{name}", 500)
    broken = node.restarted(disk)
    assert broken.services.hosting.names() == ["a"]
    with pytest.raises(StorageFault):
        broken.services.hosting.partition("a", 0)
    disk = broken.disk.after_kill()
    for name in saved:
        disk.flip_bit(f"{folder}/{name}", 500)
    mended = node.restarted(disk)
    committed = mended.offsets.committed("g", "a", 0)
    assert committed is not None
    assert committed.offset == 5
    assert mended.values("a") == [b"x"]


def test_after_a_deletion_the_disk_refused_only_a_restart_knows(node: Node) -> None:
    node.create("a")
    node.append("a", b"x")
    node.run(node.offsets.commit("g", [Commit("a", 0, 1)]))
    made = len(node.disk.operations)
    node.disk.fail_at = dict.fromkeys(range(made + 1, made + 100), errno.EIO)
    with pytest.raises(StorageFault):
        node.run(node.services.topics.delete("a"))
    node.disk.fail_at.clear()
    assert node.services.hosting.exists("a")
    with pytest.raises(StorageFault):
        node.run(node.services.topics.create("b", 1))
    again = node.restarted()
    assert again.values("a") == [b"x"]
    assert again.offsets.committed("g", "a", 0) is not None, "it did not end, so its commits did not either"


# -- how many ------------------------------------------------------------------------------------------------


def test_a_node_has_so_many_partitions_and_no_more() -> None:
    node = Node(holdings=StateUsage(StateLimits(partitions_max=5)))
    topics = node.services.topics
    node.create("a", 3)
    assert reason_of(node.run, topics.create("b", 3)) is Reason.QUOTA_EXCEEDED
    node.create("b", 2)
    assert reason_of(node.run, topics.grow("a", 4)) is Reason.QUOTA_EXCEEDED
    assert reason_of(node.run, topics.use("c", 1, by="alice")) is Reason.QUOTA_EXCEEDED
    for count in (0, 10_001):
        assert reason_of(node.run, topics.create("c", count)) is Reason.INVALID_PARTITION_COUNT
    node.run(topics.delete("b"))
    node.create("c", 2)


def test_partitions_are_their_makers_also_after_a_restart() -> None:
    holdings = StateUsage(StateLimits(partitions_max=8), is_shared=True)
    node = Node(holdings=holdings)
    node.create("a", 3, by="alice")
    again = Node(node.disk.after_kill(), node.clock, holdings=holdings)
    topics = again.services.topics
    assert reason_of(again.run, topics.create("b", 2, by="alice")) is Reason.QUOTA_EXCEEDED
    assert reason_of(again.run, topics.grow("a", 5)) is Reason.QUOTA_EXCEEDED
    again.create("b", 4, by="bob")
    again.create("c", 1, by="alice")


def test_topics_that_are_made_by_being_used_have_a_rate_for_each_principal() -> None:
    node = Node(holdings=StateUsage(StateLimits(topics_per_second=2.0, topics_burst=2)))
    topics = node.services.topics
    for name in ("a", "b", "a"):
        node.run(topics.use(name, 1, by="alice"))
    assert reason_of(node.run, topics.use("c", 1, by="alice")) is Reason.UNAVAILABLE
    together = [node.spawn(topics.use("d", 1, by="bob")) for _ in range(5)]
    node.runtime.settle()
    assert {job.result().name for job in together} == {"d"}, "one topic counts once, however many use it at once"
    node.run(topics.use("d2", 1, by="bob"))
    assert reason_of(node.run, topics.use("no name", 1, by="alice")) is Reason.INVALID_TOPIC_NAME
    node.runtime.advance(500)
    node.run(topics.use("c", 1, by="alice"))
    assert reason_of(node.run, topics.use("e", 1, by="alice")) is Reason.UNAVAILABLE
    node.run(topics.create("e", 1, by="alice"))


# -- growth --------------------------------------------------------------------------------------------------


def test_growth_reaches_the_groups(node: Node) -> None:
    node.create("a", 2)
    node.create("other", 1)
    groups = node.groups
    first = node.run(groups.join("g", "m", ["a"], assignor=Assignor.RANGE))
    beside = node.run(groups.join("h", "m", ["other"]))
    node.run(node.services.topics.grow("a", 5))
    with refused_with(Reason.STALE_GENERATION):
        groups.heartbeat("g", "m", first.generation)
    assert node.run(groups.join("g", "m", ["a"])).assignment == {"a": [0, 1, 2, 3, 4]}
    assert groups.heartbeat("h", "m", beside.generation).generation == beside.generation
    assert reason_of(node.run, node.services.topics.grow("a", 5)) is Reason.INVALID_PARTITION_COUNT
    assert node.append("a", b"x", partition=4).base_offset == 0
    assert node.restarted().services.hosting.meta("a").partitions == 5


def test_flush_can_be_changed_while_records_wait(node: Node) -> None:
    node.create("a", 1, settings={"flush": "ack"})
    with node.runtime.holding_syncs(node.services.hosting.partition("a", 0).log):
        node.spawn(node.services.append.append("a", 0, batch_of(b"x")))
        assert node.services.hosting.partition("a", 0).high_watermark == 0
        node.run(node.services.topics.alter("a", {"flush": "os"}))
        assert node.services.hosting.partition("a", 0).high_watermark == 1


def test_close_makes_all_durable(node: Node) -> None:
    node.create("a", 1, settings={"flush": "os"})
    node.append("a", b"x")
    node.services.hosting.close()
    for label, disk in node.disk.crash_states():
        assert node.restarted(disk).values("a") == [b"x"], label


def test_a_topic_is_found_by_its_id_as_long_as_it_is_there() -> None:
    node = Node()
    node.create("a")
    node.create("b")
    topics = node.services.topics
    first = topics.hosting.meta("a").topic_id
    assert topics.hosting.name_of(first) == "a"
    assert topics.hosting.name_of("00" * 16) is None
    node.run(topics.delete("a"))
    assert topics.hosting.name_of(first) is None
    node.create("a")
    assert topics.hosting.meta("a").topic_id != first
    assert topics.hosting.name_of(first) is None
    assert topics.hosting.name_of(topics.hosting.meta("a").topic_id) == "a"
    assert node.restarted().services.hosting.name_of(topics.hosting.meta("b").topic_id) == "b"


def test_in_a_cluster_a_topic_is_placed_on_nodes(caplog: pytest.LogCaptureFixture) -> None:
    node = three_nodes()
    topics = node.services.topics
    made = node.run(topics.create("a", 6))
    assert [sorted(each.replicas) for each in made.assignments] == [[1, 2, 3]] * 6
    assert sorted(each.leader for each in made.assignments if each.leader is not None) == [1, 1, 2, 2, 3, 3]
    assert (made.min_in_sync, made.holder) == (2, "")
    grown = node.run(topics.grow("a", 9))
    assert sorted(each.leader for each in grown.assignments if each.leader is not None) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    exact = node.run(topics.create("b", 2, min_in_sync=1, placed=Placed(nodes=((3,), (1, 2)))))
    assert ([each.replicas for each in exact.assignments], exact.min_in_sync) == ([(3,), (1, 2)], 1)
    assert node.run(topics.grow("b", 3, ((2, 3),))).assignments[2].replicas == (2, 3)
    assert not caplog.messages
    two = node.run(topics.create("c", 1, followers=["another"]))
    assert (len(two.assignments[0].replicas), two.min_in_sync) == (2, 2)
    assert "while one node is away, acks=all is refused" in caplog.text
    assert reason_of(node.run, topics.create("d", 1, placed=Placed(4))) is Reason.INVALID_SETTING
    assert reason_of(node.run, topics.create("d", 10**9)) is Reason.INVALID_PARTITION_COUNT
    assert node.services.placement.choose_followers(2) == ["1", "3"]


@pytest.mark.parametrize("replicas", [0, 2])
def test_a_lone_node_makes_as_many_replicas_as_are_asked_for_or_none(node: Node, replicas: int) -> None:
    topics = node.services.topics
    assert reason_of(node.run, topics.create("a", 1, placed=Placed(replicas))) is Reason.INVALID_SETTING
    assert not node.services.hosting.exists("a")
    named = node.run(topics.create("a", 1, followers=["n2"], placed=Placed(2)))
    assert (named.observers, node.run(topics.create("b", 1, placed=Placed(1))).observers) == (("n2",), ())
