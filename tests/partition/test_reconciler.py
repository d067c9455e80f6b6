"""The folder follows the metadata: also when it cannot at once, and never so far that something unknown is lost."""

import pytest
from tests.broker.node import Node

from braidlog.coordinator.offsets import Commit
from braidlog.model.errors import StorageFault
from braidlog.model.settings import TopicSettings
from braidlog.partition.hosted import Role
from braidlog.storage.log import Log
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
    node.run(node.services.offsets.commit("g", [Commit("a", 0, 1)]))
    refuse_folders(node)
    with pytest.raises(StorageFault):
        node.run(node.services.topics.delete("a"))
    assert node.services.hosting.names() == ["b"]
    assert node.services.offsets.committed("g", "a", 0) is None
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


def test_a_topic_whose_folder_is_lost_is_told_of(node: Node) -> None:
    node.create("a")
    node.append("a", b"one")
    node.folder.delete_topic("a")
    again = node.restarted()
    assert again.values("a") == []
    assert "topic 'a' had no folder and gets an empty one" in again.folder.notes[-1]


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
    node.services.journal.close()
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
