"""Nodes and replicated partitions in the image: what is refused, and what a registration makes of the sets."""

import msgspec
import pytest

from braidlog.cluster import events as e
from braidlog.cluster.image import Image
from braidlog.model.errors import BrokerError, Reason
from braidlog.replication.assignment import Assignment, SetChange
from braidlog.replication.registration import Life

NAME = "t/0"


def registered(node: int, incarnation: int, **fields: object) -> e.RegisterNode:
    life = Life(boot_id="b", folder_id=f"f{node}", **{"remembers": incarnation - 1, **fields})  # type: ignore[arg-type]
    return e.RegisterNode(node=node, incarnation=incarnation, life=life)


def assigned(leader: int | None = 1) -> e.AssignPartition:
    after = Assignment(replicas=(1, 2, 3), in_sync=(1, 2), leader=leader)
    return e.AssignPartition(name=NAME, leader_epoch=0, partition_epoch=0, after=after, min_in_sync=2)


def first() -> Image:
    image = Image()
    for event in (registered(1, 1), registered(2, 1), registered(3, 1), assigned()):
        image.check(event)
        image.apply(event)
    return image


def change(node: int = 3, *, joins: bool = True, partition_epoch: int = 0) -> e.ChangeSet:
    return e.ChangeSet(name=NAME, change=SetChange(node, joins, 1, 1, partition_epoch))


@pytest.mark.parametrize(
    "event",
    [
        registered(1, 1),
        e.FenceNode(node=1, incarnation=2),
        e.FenceNode(node=4, incarnation=1),
        e.AssignPartition(name=NAME, leader_epoch=1, partition_epoch=7, after=assigned().after),
        change(partition_epoch=7),
        change(2),
        e.ChangeSet(name="other/0", change=change().change),
        e.ResignReplica(name=NAME, node=1, leader_epoch=2),
    ],
)
def test_what_does_not_fit_is_refused(event: e.Event) -> None:
    image = first()
    with pytest.raises(BrokerError) as caught:
        image.check(event)
    assert caught.value.reason is Reason.STALE_LEADER_EPOCH


def test_a_change_of_the_set() -> None:
    image = first()
    image.check(change())
    image.apply(change())
    assert image.cluster.partitions[NAME].assignment.in_sync == (1, 2, 3)


def test_a_node_that_starts_leads_nothing_any_more() -> None:
    image = first()
    image.apply(registered(1, 2))
    after = image.cluster.partitions[NAME].assignment
    assert (after.leader, after.leader_epoch, after.in_sync, after.eligible) == (2, 2, (2,), (1,))
    image.apply(registered(2, 3, remembers=0))
    torn = image.cluster.partitions[NAME].assignment
    assert (torn.leader, torn.in_sync, torn.torn) == (1, (1,), (2,)), "a copy counts for nothing"


def test_a_fence_and_a_resignation() -> None:
    image = first()
    fence = e.FenceNode(node=3, incarnation=1)
    image.check(fence)
    image.apply(fence)
    assert image.cluster.nodes()[3].is_fenced
    image.apply(e.ResignReplica(name=NAME, node=1, leader_epoch=1))
    after = image.cluster.partitions[NAME].assignment
    assert (after.leader, after.in_sync) == (2, (2,))


def test_it_is_part_of_the_image() -> None:
    image = first()
    assert msgspec.json.decode(msgspec.json.encode(image, order="sorted"), type=Image) == image
    twin = image.copy()
    twin.apply(change())
    assert twin != image
    view = image.cluster.view(7)
    assert (view.seq, list(view.partitions), view.nodes[1].incarnation) == (7, [("t", 0)], 1)
