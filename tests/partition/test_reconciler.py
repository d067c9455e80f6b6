"""The folder follows the metadata: also when it cannot at once, and never so far that something unknown is lost."""

import msgspec
import pytest
from tests.broker.node import Node

from braidlog.coordinator.offsets import Commit
from braidlog.model.errors import StorageFault
from braidlog.model.settings import TopicSettings
from braidlog.partition.hosted_log import Role
from braidlog.storage.embedded_log import Log
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk
from braidlog.testing.faults import Operation


@pytest.fixture
def node() -> Node:
    return Node()


def refuse_folders(node: Node) -> None:
    """From now on the disk refuses to rename a folder: metadata becomes durable, and the folder cannot follow."""

    def refuse(operation: Operation) -> None:
        if operation.kind == "rename":
            raise StorageFault("no", operation.path)

    node.disk.on_operation = refuse


def test_a_deletion_that_the_folder_cannot_follow_is_finished_at_the_next_start(node: Node) -> None:
    node.create("a")
    node.create("b")
    node.run(node.offsets.commit("g", [Commit("a", 0, 1)]))
    refuse_folders(node)
    with pytest.raises(StorageFault):
        node.run(node.services.topics.delete("a"))
    assert node.services.hosting.names() == ["b"]
    assert node.offsets.committed("g", "a", 0) is None
    node.run(node.services.topics.alter("b", {"retention_ms": 7}))  # another topic does not suffer from it
    again = node.restarted()
    assert (again.services.hosting.names(), again.folder.find("a")) == (["b"], None)
    again.create("a")
    assert again.values("a") == []


def test_a_creation_that_the_folder_cannot_follow_is_taken_back(node: Node) -> None:
    refuse_folders(node)
    with pytest.raises(StorageFault):
        node.create("a")
    assert node.services.hosting.names() == []
    node.disk.on_operation = None
    again = node.restarted()
    assert (again.services.hosting.names(), again.folder.find("a")) == ([], None)
    again.create("a")


def test_a_topic_whose_folder_is_lost_is_refused_until_the_loss_is_accepted(node: Node) -> None:
    node.create("a")
    node.create("b")
    node.append("a", b"one")
    node.append("b", b"two")
    node.folder.delete_topic("a")
    for again in (node.restarted(), node.restarted().restarted()):
        assert again.services.hosting.names() == ["a", "b"]
        assert again.values("b") == [b"two"]
        with pytest.raises(StorageFault, match=r"topic 'a' was made and is lost.*restore.*`braid topic delete a`"):
            again.append("a", b"x")
        again.run(again.services.topics.alter("b", {"retention_ms": 7}))
        assert again.folder.find("a") is None, "no change of another topic makes it"
        again.run(again.services.topics.grow("a", 2))
        with pytest.raises(StorageFault, match="was made and is lost"):
            again.append("a", b"x", partition=1)
    again.run(again.services.topics.delete("a"))
    again.create("a")
    again.append("a", b"three")
    assert again.restarted().values("a") == [b"three"]


def test_a_partition_whose_folder_is_lost_is_not_made_again_by_a_growth(node: Node) -> None:
    """As after a restore from a copy that is older than the second partition."""
    node.create("a", 1)
    node.run(node.services.topics.grow("a", 2))
    place = node.folder.partition_folder("a", 1)
    node.folder._remove_tree(place)
    node.folder._replace_meta("a", place[:-5], msgspec.structs.replace(node.folder.topic("a"), partitions=1))
    again = node.restarted()
    again.append("a", b"x", partition=0)
    again.run(again.services.topics.grow("a", 3))
    again.append("a", b"x", partition=2)
    with pytest.raises(StorageFault, match="partition 1 of topic 'a' was made and is lost"):
        again.append("a", b"x", partition=1)


def test_a_change_that_was_left_half_way_is_finished_by_the_next(node: Node) -> None:
    node.create("a")
    node.create("b")

    async def leaves(_: str) -> None:
        raise KeyboardInterrupt

    node.services.topics._reconciler.when_changed(leaves)
    with pytest.raises(KeyboardInterrupt):
        node.run(node.services.topics.delete("a"))
    node.services.topics._reconciler._listeners.remove(leaves)
    assert node.folder.find("a") is not None
    node.run(node.services.topics.alter("b", {"retention_ms": 7}))
    assert node.folder.find("a") is None


def test_a_folder_that_the_metadata_does_not_know_is_set_aside_and_kept(node: Node) -> None:
    node.create("a")
    node.folder.create_topic("unknown", 1, TopicSettings(), topic_id="ab" * 16)  # as a node does
    again = node.restarted()
    assert again.services.hosting.names() == ["a"]
    assert "topic 'unknown' is not in the metadata" in again.folder.notes[-1]
    kept = [path for path in again.disk.files() if ".stray/" in path]
    assert any(path.endswith(".log") for path in kept)
    again.create("unknown")
    last = again.restarted()
    assert last.services.hosting.names() == ["a", "unknown"]
    assert [path for path in last.disk.files() if ".stray/" in path] == kept


def test_topics_that_were_made_without_a_node_are_adopted() -> None:
    disk = SimulatedDisk()
    with Log("/data", disk=disk, clock=ManualClock()) as log:
        log.create_topic("mine", partitions=2).append(b"x", partition=1)
    node = Node(disk)
    assert node.services.hosting.names() == ["mine"]
    assert node.values("mine", 1) == [b"x"]
    assert node.restarted().services.hosting.meta("mine") == node.services.hosting.meta("mine")
    node.services.hosting.close()
    node.services.metadata.close()
    node.folder.release()
    with Log("/data", disk=disk, clock=ManualClock()) as log:
        log.create_topic("later").append(b"y")
    again = Node(disk)
    assert again.services.hosting.names() == ["later", "mine"]
    assert again.values("later") == [b"y"]
    again.run(again.services.topics.delete("mine"))
    assert again.restarted().services.hosting.names() == ["later"], "what was deleted is not adopted again"


def test_a_node_that_is_named_otherwise_still_leads_what_it_led(node: Node) -> None:
    node.create("a", 2, followers=["1"])
    node.run(node.services.placement.set_role("a", 1, Role.FOLLOWER))
    again = Node(node.disk.after_kill(), node.clock, name="other")
    led, followed = again.services.hosting.partitions("a")
    assert (led.role, followed.role) == (Role.LEADER, Role.FOLLOWER)
    assert [replica.node for replica in led.replicas.followers] == ["1"]
    again.append("a", b"x")
