"""A node that is alone leads all shards of the coordinators: made at the first use, read before anything is served from them."""

import itertools

import pytest
from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.coordinator.offsets import Commit
from braidlog.coordinator.shards import SHARDS, STATE_TOPIC, shard_for_name
from braidlog.model.errors import Reason
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import Crash, SimulatedDisk

OTHER = next(name for name in ("h", "i", "j") if shard_for_name(name) != shard_for_name("g"))


def commit(node: Node, group: str, offset: int = 1) -> None:
    async def ask() -> None:
        async with node.services.coordinators.settled_after(group) as coordinator:
            await coordinator.offsets.commit(group, [Commit("a", 0, offset)])

    node.run(ask())


def filled() -> Node:
    node = Node()
    node.create("a")
    for group in ("g", OTHER):
        commit(node, group)
    return node


def test_no_shard_is_there_before_the_first_use() -> None:
    node = Node()
    node.create("a")
    assert node.services.coordinators.local_coordinators() == []
    assert STATE_TOPIC not in node.restarted().services.hosting.topics


def test_the_first_requests_wait_for_the_shards_and_none_is_refused() -> None:
    node = Node()
    node.create("a")
    reached = [node.spawn(node.services.coordinators.reach(name)) for name in ("g", OTHER, "g")]
    listed = node.spawn(node.services.coordinators.all_led())
    node.runtime.settle()
    numbers = [job.result().number for job in reached]
    assert numbers == [shard_for_name("g"), shard_for_name(OTHER), shard_for_name("g")]
    assert len(listed.result()) in (0, SHARDS), "none, or all of them: never one that is being read"
    assert len(node.services.coordinators.local_coordinators()) == SHARDS
    assert node.services.hosting.names() == ["a"], "no request sees the topic"


@pytest.mark.filterwarnings("ignore:coroutine 'ManualRuntime.blocking' was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_first_use_may_end_anywhere() -> None:
    """Whatever is left of it, the next start has the shards, or the next use makes them."""
    states = 0
    for number in itertools.count(1, 7):
        node = Node()
        node.create("a")
        node.disk.stop_at = len(node.disk.operations) + number
        try:
            commit(node, "g")
        except Crash:
            for label, disk in node.disk.crash_states(limit=3):
                again = Node(disk)
                commit(again, "g", 2)
                assert again.offsets.committed("g", "a", 0) is not None, label
                states += 1
        else:
            break
    assert states > 50


def test_one_whose_log_is_damaged_is_refused_and_the_others_are_served() -> None:
    node = filled()
    path = node.shard_log("g").segments[0].path
    disk = node.disk.after_kill()
    disk.flip_bit(path, 8 * 180)
    again = Node(disk)
    refused(again, "g")
    found = again.offsets.committed(OTHER, "a", 0)
    assert found is not None
    commit(again, OTHER, 2)


def test_shards_whose_folder_is_lost_are_missed_until_the_loss_is_accepted() -> None:
    disk = filled().disk.after_kill()
    with_folder(disk, lambda folder: folder.delete_topic(STATE_TOPIC))
    again = Node(disk)
    assert {number for name, number in again.services.hosting.offline if name == STATE_TOPIC} == {*range(SHARDS)}
    assert "accept-loss" in str(again.services.hosting.offline[STATE_TOPIC, 0])
    refused(again, "g")
    assert again.values("a") == []
    disk = again.disk.after_kill()
    with_folder(disk, lambda folder: folder.forget_internal(STATE_TOPIC))
    anew = Node(disk)
    assert anew.offsets.committed("g", "a", 0) is None
    commit(anew, "g")


def with_folder(disk: SimulatedDisk, work: object) -> None:
    folder = DataFolder(disk, "/data", ManualClock())
    assert callable(work)
    work(folder)
    folder.release()


def refused(node: Node, group: str) -> None:
    with refused_with(Reason.UNAVAILABLE, match="cannot be read; see the log of this node") as caught:
        commit(node, group)
    assert "/data" not in str(caught.value), "clients see it"
