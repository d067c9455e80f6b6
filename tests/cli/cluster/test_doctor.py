"""What `braid cluster doctor` finds in clusters that are not well, and in one that is."""

from typing import Any

import msgspec
import pytest
from tests.cli.braid import Braid

from braidlog.cli.cluster.doctor import examine
from braidlog.cli.cluster.inspect import rows_of, status_of
from braidlog.client.drivers.cluster import ClusterInfo, ClusterNode, ClusterPartition, LackingTopic
from braidlog.testing.server import ServerProcess

NODES = tuple(ClusterNode(number, f"10.0.0.{number}", 9092, "", alive=True) for number in (1, 2, 3))
PLACES = tuple(ClusterPartition("t", number, number + 1, 4, (1, 2, 3), (1, 2, 3), ()) for number in range(3))
LACKING = (LackingTopic("t", 3, 4), LackingTopic("u", 2, 1))
WELL = ClusterInfo("id", 1, NODES, PLACES)


def changed(
    info: ClusterInfo = WELL, *, node: dict[str, Any] | None = None, place: dict[str, Any] | None = None
) -> ClusterInfo:
    """Node 1 or partition 0 is otherwise."""
    nodes = (msgspec.structs.replace(info.nodes[0], **(node or {})), *info.nodes[1:])
    places = (msgspec.structs.replace(info.partitions[0], **(place or {})), *info.partitions[1:])
    return msgspec.structs.replace(info, nodes=nodes, partitions=places)


def with_slots(*, leader: int | None, in_sync: tuple[int, ...], alive: bool = True) -> ClusterInfo:
    """Slot 7 of 128 is weak; not `alive`: one of its nodes is none of the cluster any more."""
    weak = ClusterPartition("__kv_log", 7, leader, 4, (1, 2, 3 if alive else 4), in_sync, ())
    return msgspec.structs.replace(WELL, slots=128, weak_slots=(weak,))


def test_nothing_is_wrong() -> None:
    assert examine(WELL) == []
    assert status_of(WELL).under_replicated == 0
    assert [(row.leads, row.holds, row.in_sync) for row in rows_of(WELL)] == [(1, 3, 3)] * 3


@pytest.mark.parametrize(
    ("info", "what", "advice"),
    [
        (changed(node={"alive": False}), "node 1 (10.0.0.1:9092) is fenced", "start it again"),
        (changed(node={"alive": False}, place={"in_sync": (2, 3)}), "node 1 (10.0.0.1:9092) is fenced", "its log"),
        (changed(node={"draining": True}), "node 1 is draining: it leads no partition", "braid cluster drain 1 --undo"),
        (changed(place={"leader": None, "in_sync": ()}), "without a leader: t/0", "start their nodes"),
        (changed(place={"in_sync": (1, 2)}), "replicas are behind: t/0", "catch up"),
        (changed(node={"host": "127.0.0.1"}), "to clients: 127.0.0.1", "advertised_host"),
        (changed(place={"replicas": (1,), "in_sync": (1,)}), "no other replica: t/0", "lost if their node"),
        (
            with_slots(leader=None, in_sync=()),
            "no node serves the keys of slots 7",
            "start the nodes that hold them: 1, 2, 3",
        ),
        (
            msgspec.structs.replace(WELL, lacking=LACKING),
            "replication factor: t (replication factor 3), u (replication factor 2)",
            "start the offline",
        ),
        (with_slots(leader=1, in_sync=(1, 2)), "replicas of keys are behind: slots 7", "catch up"),
        (with_slots(leader=1, in_sync=(1,), alive=False), "no majority is in sync: slots 7", "only consistency ONE"),
        (
            ClusterInfo("id", 1, NODES, tuple(msgspec.structs.replace(PLACES[0], partition=at) for at in range(4))),
            "node 1 leads 4 partitions",
            "elected automatically",
        ),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(info: ClusterInfo, what: str, advice: str) -> None:
    (found,) = examine(info)
    assert what in found.what
    assert advice in found.advice


def test_weak_slots_are_counted() -> None:
    found = status_of(with_slots(leader=None, in_sync=()))
    assert (found.slots, found.slots_under_replicated, found.slots_leaderless) == (128, 1, 1)
    assert status_of(WELL).slots == 0


def test_partitions_below_their_factor_are_counted() -> None:
    assert status_of(msgspec.structs.replace(WELL, lacking=LACKING)).below_replication_factor == 5
    assert status_of(WELL).below_replication_factor == 0


def test_many_partitions_are_counted_and_few_named() -> None:
    places = tuple(ClusterPartition("t", number, None, 1, (1, 2, 3), (), ()) for number in range(9))
    found = examine(msgspec.structs.replace(WELL, partitions=places))[0].what
    assert found == "without a leader: t/0, t/1, t/2, t/3, t/4 and 4 more"
    assert status_of(msgspec.structs.replace(WELL, partitions=places)).leaderless == 9


def test_a_node_that_is_alone_is_well(braid_server_shared: ServerProcess) -> None:
    braid = Braid(braid_server_shared)
    assert braid.ok("cluster", "doctor") == "No problems found.\n"
    assert braid.json("cluster", "doctor", schema="cluster-doctor") == []
