"""The logs that a node keeps for itself: never made a second time, wherever the first start ends."""

import itertools

import pytest
from tests.broker.node import Node
from tests.cluster.node import MetadataNode

from braidlog.cluster.metadata.local_store import METADATA_TOPIC
from braidlog.model.errors import StorageFault
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import Crash, SimulatedDisk
from braidlog.tools.repair.folder import Repair


def without(node: Node, topic: str) -> SimulatedDisk:
    """The disk of a node that was stopped, and whose folder of a topic somebody removed."""
    disk = node.disk.after_kill()
    folder = DataFolder(disk, "/data", ManualClock())
    folder.delete_topic(topic)
    folder.release()
    return disk


def accept_loss(disk: SimulatedDisk, topic: str) -> None:
    folder = DataFolder(disk, "/data", ManualClock())
    folder.forget_internal(topic)
    folder.release()


def test_metadata_that_are_gone_are_missed_until_their_loss_is_accepted() -> None:
    topic, node = METADATA_TOPIC, Node()
    node.create("a", 2, followers=["1"])
    node.append("a", b"one", partition=1)
    disk = without(node, topic)
    with pytest.raises(StorageFault, match=f"'{topic}' was made in this folder and is lost.*accept-loss /data {topic}"):
        Node(disk.after_kill())
    accept_loss(disk, topic)
    again = Node(disk.after_kill())
    assert again.values("a", 1) == [b"one"]
    assert again.restarted().values("a", 1) == [b"one"]
    assert not [note for note in again.folder.notes if "stray" in note]


def test_metadata_whose_description_is_damaged_are_not_made_again() -> None:
    topic, node = METADATA_TOPIC, Node()
    place = node.folder.partition_folder(topic, 0).rpartition("/")[0]
    disk = node.disk.after_kill()
    for name in ("topic.a", "topic.b"):
        disk.flip_bit(f"{place}/{name}", 500)
    with pytest.raises(StorageFault, match=f"'{topic}' was made in this folder and is lost: topics/0000000"):
        node.restarted(disk)


def test_metadata_that_are_damaged_are_refused_if_their_copy_is_too() -> None:
    topic, node = METADATA_TOPIC, Node()
    node.create("a")
    place = place_of(node, topic).removesuffix("0000")
    log, copy = (path for path in node.disk.files() if path.endswith(".log") and path.startswith(place))
    disk = node.disk.after_kill()
    disk.flip_bit(log, 8 * 200)
    assert node.restarted(disk.after_kill()).services.hosting.names() == ["a"]
    disk.flip_bit(copy, 8 * 200)
    with pytest.raises(StorageFault, match=f"internal topic '{topic}' is damaged.*braid log repair"):
        node.restarted(disk)


def test_a_repaired_folder_still_misses_what_was_lost() -> None:
    """The folder's own description is lost, and with it what it remembered."""
    node = Node()
    node.create("a")
    node.append("a", b"one")
    disk = without(node, METADATA_TOPIC)
    for name in ("folder.a", "folder.b"):
        disk.drop(f"/data/{name}")
    Repair(disk, "/data", ManualClock(), new_id=lambda: "ab" * 16).run()
    with pytest.raises(StorageFault, match="'__metadata' was made in this folder and is lost"):
        Node(disk.after_kill())
    accept_loss(disk, METADATA_TOPIC)
    assert Node(disk.after_kill()).values("a") == [b"one"]


def place_of(node: Node, topic: str) -> str:
    return node.folder.partition_folder(topic, 0)


def test_the_first_start_may_end_anywhere() -> None:
    """Whatever is left of it, the next start makes what is missing and remembers it."""
    states = 0
    for number in itertools.count(1):
        disk = SimulatedDisk()
        disk.stop_at = number
        try:
            Node(disk)
        except Crash:
            for label, left in disk.crash_states():
                again = Node(left)
                assert list(again.folder.identity.internal_topics) == [METADATA_TOPIC], label
                again.create("a")
                assert again.restarted().services.hosting.names() == ["a"], label
                states += 1
        else:
            break
    assert states > 50


def test_an_accepted_loss_may_end_anywhere() -> None:
    """The new log is empty until the topics in the folder are taken into it: no crash between the two sets them aside."""
    node = Node()
    node.create("a")
    node.append("a", b"one")
    lost = without(node, METADATA_TOPIC)
    accept_loss(lost, METADATA_TOPIC)
    states = 0
    for number in itertools.count(1):
        disk = lost.after_kill()
        disk.stop_at = number
        try:
            MetadataNode(disk)
        except Crash:
            for label, left in disk.crash_states():
                assert Node(left).values("a") == [b"one"], label
                states += 1
        else:
            break
    assert states > 20
