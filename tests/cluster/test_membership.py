"""Nodes of a cluster in the image: what is refused, and what a registration makes of the sets."""

import msgspec
import pytest
from tests.refusals import refused_with

from braidlog.cluster.controller_runner import Views
from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata.image import Image
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import Flush, TopicSettings
from braidlog.replication.assignment import Assignment, InSyncSetChange
from braidlog.replication.control.incarnation import Life


def registered(node: int, incarnation: int, **fields: object) -> e.RegisterNode:
    fields = {"boot_id": "b", "remembers": incarnation - 1, **fields}
    life = Life(folder_id=f"f{node}", **fields)  # type: ignore[arg-type]
    return e.RegisterNode(node=node, incarnation=incarnation, life=life)


def created(flush: Flush = Flush.ACK, **fields: object) -> e.CreateTopic:
    settings = TopicSettings(flush=flush)
    where = {"placement": ((1, 2, 3), (2, 3)), "partitions": 2, "replicas": ("1",), "min_in_sync": 2, **fields}
    return e.CreateTopic(topic="t", topic_id="01", settings=settings, created_ms=1, **where)  # type: ignore[arg-type]


def assigned(partition_epoch: int = 0) -> e.AssignPartition:
    after = Assignment(replicas=(1, 2, 3), in_sync=(1, 2), leader=1)
    return e.AssignPartition(topic="t", partition=0, leader_epoch=1, partition_epoch=partition_epoch, after=after)


def first() -> Image:
    image = Image()
    for event in (registered(1, 1), registered(2, 1), registered(3, 1), created(), assigned()):
        image.check(event)
        image.apply(event)
    return image


def change(node: int = 3, *, joins: bool = True, partition_epoch: int = 0) -> e.ChangeSet:
    return e.ChangeSet(topic="t", partition=0, change=InSyncSetChange(node, joins, 1, 1, partition_epoch))


@pytest.mark.parametrize(
    "event",
    [
        registered(1, 1),
        e.FenceNode(node=1, incarnation=2),
        e.FenceNode(node=4, incarnation=1),
        assigned(partition_epoch=7),
        change(partition_epoch=7),
        change(2),
        e.ChangeSet(topic="t", partition=1, change=change(1).change),
        e.ResignReplica(topic="t", partition=0, node=1, leader_epoch=2),
    ],
)
def test_what_does_not_fit_is_refused(event: e.Event) -> None:
    image = first()
    with refused_with(Reason.STALE_LEADER_EPOCH):
        image.check(event)


def test_a_change_of_the_set() -> None:
    image = first()
    image.check(change())
    image.apply(change())
    assert image.assignment("t", 0).in_sync == (1, 2, 3)


def test_a_node_that_starts_leads_nothing_any_more() -> None:
    image = first()
    image.apply(registered(1, 2))
    after = image.assignment("t", 0)
    assert (after.leader, after.leader_epoch, after.in_sync, after.eligible) == (2, 2, (2,), (1,))
    image.apply(registered(2, 3, remembers=0))
    torn = image.assignment("t", 0)
    assert (torn.leader, torn.in_sync, torn.torn) == (1, (1,), (2,)), "a copy counts for nothing"


def test_a_fence_and_a_resignation() -> None:
    image = first()
    fence = e.FenceNode(node=3, incarnation=1)
    image.check(fence)
    image.apply(fence)
    assert image.cluster.nodes()[3].is_fenced
    image.apply(e.ResignReplica(topic="t", partition=0, node=1, leader_epoch=1))
    after = image.assignment("t", 0)
    assert (after.leader, after.in_sync) == (2, (2,))


def test_it_is_part_of_the_image() -> None:
    image = first()
    assert msgspec.json.decode(msgspec.json.encode(image, order="sorted"), type=Image) == image
    twin = image.copy()
    twin.apply(change())
    assert twin != image
    view = Views().at(image, 7).view
    assert (view.seq, list(view.partitions), view.nodes[1].incarnation) == (7, [("t", 0), ("t", 1)], 1)
    assert view.partitions["t", 0].min_in_sync == 2


def test_a_partition_begins_with_all_who_are_there() -> None:
    image = Image()
    for event in (registered(1, 1), registered(2, 1), registered(3, 1), e.FenceNode(node=2, incarnation=1), created()):
        image.check(event)
        image.apply(event)
    first, second = image.topics["t"].assignments
    assert (first.replicas, first.in_sync, first.leader) == ((1, 2, 3), (1, 3), 1)
    assert (second.replicas, second.in_sync, second.leader) == ((2, 3), (3,), 3)
    grown = e.AddPartitions(topic="t", topic_id="01", partitions=3, placement=((3, 1),))
    image.check(grown)
    image.apply(grown)
    assert image.assignment("t", 2).in_sync == (3, 1)


@pytest.mark.parametrize("placement", [((1, 2),), ((1, 1), (2, 3)), ((1, 9), (2, 3)), ((1, 2), ()), ((4,), (4,))])
def test_a_place_that_is_none_is_refused(placement: tuple[tuple[int, ...], ...]) -> None:
    image = Image()
    for event in (*(registered(node, 1) for node in (1, 2, 3, 4)), e.FenceNode(node=4, incarnation=1)):
        image.apply(event)
    with pytest.raises(BrokerError) as caught:
        image.check(created(placement=placement))
    assert caught.value.reason in (Reason.INVALID_SETTING, Reason.NOT_ENOUGH_REPLICAS)


def test_what_was_written_before_each_ack_was_flushed_is_not_whole_after_a_power_cut() -> None:
    image = Image()
    for event in (registered(1, 1), registered(2, 1), registered(3, 1), created(Flush.OS)):
        image.apply(event)
    image.apply(e.AlterTopic(topic="t", topic_id="01", settings=TopicSettings(flush=Flush.ACK)))
    image.apply(registered(3, 2, boot_id="another"))
    assert image.assignment("t", 0).torn == (3,), "it was altered since 3 registered"
    assert image.topics["t"].unflushed == (1, 2)
    image.apply(registered(2, 3, remembers=1))
    image.apply(registered(2, 4, remembers=3, boot_id="another"))
    assert image.assignment("t", 0).torn == (3,), "2 had registered meanwhile"


def test_topics_of_a_single_node_are_the_clusters_once_it_registers() -> None:
    image = Image()
    image.apply(created(placement=(), replicas=("n1", "peer"), min_in_sync=1))
    assert (image.topics["t"].holder, image.topics["t"].observers, Views().at(image, 1).view.partitions) == (
        "n1",
        ("peer",),
        {},
    )
    image.apply(registered(0, 2))
    after = image.assignment("t", 1)
    assert (after.replicas, after.in_sync, after.leader, after.leader_epoch) == ((0,), (0,), None, 2)
    assert (image.topics["t"].holder, len(Views().at(image, 2).view.partitions)) == ("", 2)


def test_a_node_is_removed_once_it_is_fenced_and_holds_nothing() -> None:
    image = first()
    gone = e.RemoveNode(node_id="3")
    with pytest.raises(BrokerError, match="node 3 is running; stop it first"):
        image.check(gone)
    image.apply(e.FenceNode(node=3, incarnation=1))
    with pytest.raises(BrokerError, match="node 3 has replicas of 2 partitions; move them"):
        image.check(gone)
    image.apply(e.DeleteTopic(topic="t", topic_id="01", deleted_ms=1))
    image.check(gone)
    image.apply(gone)
    assert sorted(image.cluster.nodes()) == [1, 2]
    with pytest.raises(BrokerError, match="broker 3 is not registered"):
        image.check(gone)


def test_an_event_is_proposed_once_every_node_knows_it() -> None:
    """Node 3 is of an older version, and fenced: it counts until it is removed."""
    image = first()
    older = msgspec.structs.replace(registered(3, 2), versions=(1, 1))
    image.check_all([older])
    image.apply(older)
    image.apply(e.FenceNode(node=3, incarnation=2))
    wanted = [e.IdBlock(taken=5_000), e.SetGroup(group="g", settings={})]
    with pytest.raises(BrokerError, match=r"needs cluster version 2, which node 3 does not know: upgrade it") as caught:
        image.check_all(wanted)
    assert caught.value.reason is Reason.VERSION_CONFLICT
    image.check_all(wanted[:1])
    image.apply(e.RemoveNode(node_id="3"))
    image.check_all(wanted)
    for event in wanted:
        image.apply(event)
    assert image.copy().cluster.version == 2


def test_a_node_that_cannot_follow_is_not_registered() -> None:
    image = first()
    with pytest.raises(BrokerError, match="supports cluster versions 2 to 3, this cluster has 1"):
        image.check(msgspec.structs.replace(registered(4, 5), versions=(2, 3)))
    image.apply(e.SetGroup(group="g", settings={}))
    image.check(registered(4, 5))
    with pytest.raises(BrokerError, match="start it with a braidlog version that supports 2"):
        image.check(msgspec.structs.replace(registered(4, 5), versions=(1, 1)))


def test_the_answers_of_a_node_that_left_in_order_are_waited_for() -> None:
    image = first()
    left = e.DrainNode(node=2, incarnation=1, is_draining=True), e.FenceNode(node=2, incarnation=1)
    for event in (*left, e.FenceNode(node=3, incarnation=1)):
        image.check(event)
        image.apply(event)
    assert image.cluster.responding_nodes() == {1, 2}
