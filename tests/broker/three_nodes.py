"""A node that is one of three in its metadata: node 2, beside nodes 1 and 3."""

import uuid
from collections.abc import Callable

import msgspec
from tests.broker.node import Node
from tests.cluster.topics import placed

from braidlog.broker.replica_moves import Removed
from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata.topic_state import Topic
from braidlog.coordinator.shards import SHARDS, STATE_SETTINGS, STATE_TOPIC
from braidlog.replication.assignment import Assignment
from braidlog.replication.control.incarnation import Life
from braidlog.replication.messages import Assigned

TOPIC = "orders"
DOORS = ("kafka", "cursus", "mlog", "rustlog", "flux", "mayfly")
OWN = ("dialled.example", 4002)
"""Where a client of node 2 has reached it."""


def addresses(number: int) -> dict[str, tuple[str, int]]:
    """Of node 3 by IPv6, which some dialects write with brackets."""
    host = "fd00::3" if number == 3 else f"10.0.0.{number}"
    return {door: (host, 9000 + 10 * at + number) for at, door in enumerate(DOORS)}


def folder_id(number: int) -> str:
    return (bytes([number]) * 16).hex()


def registered(number: int, incarnation: int = 1, *, doors: dict[str, tuple[str, int]] | None = None) -> e.RegisterNode:
    life = Life(boot_id="b", folder_id=folder_id(number), remembers=incarnation - 1)
    found = addresses(number) if doors is None else doors
    return e.RegisterNode(node=number, incarnation=incarnation, life=life, addresses=found, rack=f"r{number}")


def three_nodes(
    leader: int | None = 3,
    *,
    partitions: int = 1,
    name: str = "2",
    stop_node: Callable[[], None] | None = None,
    member_removed: Removed | None = None,
) -> Node:
    """Each partition of `orders` is held by 3, 1 and 2, in sync are 3 and 2; this node follows it, unless it is the leader.
    Node 1 coordinates all there is to coordinate."""
    node = Node(name=name, stop_node=stop_node, member_removed=member_removed)
    commits_alone(node)
    node.create(TOPIC, partitions)
    node.services.metadata.change_exclusively([registered(number) for number in (1, 2, 3)])
    coordinate(node)
    for number in range(partitions):
        assign(node, leader, number)
    return node


def commits_alone(node: Node) -> None:
    """What this node leads is committed at once, and what it follows it does not serve: the other two are in its metadata, and
    nowhere else."""
    hosting = node.services.hosting
    told, own = hosting.assigned, (hosting.number,)

    def assigned(topic: Topic, number: int, epoch: int = 0) -> Assigned:
        found = told(topic, number, epoch)
        if found.assignment.leader != hosting.number:
            others = tuple(each for each in found.assignment.in_sync if each != hosting.number)
            return msgspec.structs.replace(found, assignment=msgspec.structs.replace(found.assignment, in_sync=others))
        alone = msgspec.structs.replace(found.assignment, replicas=own, in_sync=own)
        return msgspec.structs.replace(found, assignment=alone, min_in_sync=1)

    hosting.assigned = assigned  # type: ignore[method-assign]


def coordinate(node: Node) -> None:
    topic_id = uuid.UUID(int=7).hex
    created = placed(*((1, 2, 3),) * SHARDS, topic=STATE_TOPIC, topic_id=topic_id, settings=STATE_SETTINGS)
    node.services.metadata.change_exclusively([created])
    assert not node.run(node.services.reconciler.apply_metadata())
    node.runtime.settle()


def assign(node: Node, leader: int | None, number: int = 0) -> None:
    known = node.services.routing.assignment(TOPIC, number)
    assert known is not None
    partition_epoch, epoch = known.partition_epoch + 1, max(7, known.leader_epoch + 1)
    after = Assignment(
        replicas=(3, 1, 2), in_sync=(3, 2), leader=leader, leader_epoch=epoch, partition_epoch=partition_epoch
    )
    epochs = {"leader_epoch": known.leader_epoch, "partition_epoch": known.partition_epoch}
    node.services.metadata.change_exclusively([e.AssignPartition(topic=TOPIC, partition=number, after=after, **epochs)])
    assert not node.run(node.services.reconciler.apply_metadata())
