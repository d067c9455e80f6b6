"""Topics of the cluster's own: more replicas as nodes come, fewer when one is gone for good."""

from collections.abc import Sequence

from tests.cluster.test_membership import registered

from braidlog.cluster import events as e
from braidlog.cluster.image import Image
from braidlog.cluster.sharing import lacking, left_by
from braidlog.model.settings import TopicSettings
from braidlog.replication.assignment import SetChange
from braidlog.replication.reassignment import finish

NAME, PARTITIONS = "__own", 4


def cluster(nodes: int, replicas: tuple[int, ...] = (1,)) -> Image:
    image = Image()
    created = e.CreateTopic(
        topic=NAME,
        topic_id="01",
        partitions=PARTITIONS,
        settings=TopicSettings(),
        created_ms=1,
        replicas=("1",),
        min_in_sync=min(2, len(replicas)),
        placement=(replicas,) * PARTITIONS,
    )
    write(image, [*(registered(node, 1) for node in range(1, nodes + 1)), created])
    return image


def write(image: Image, events: Sequence[e.Event]) -> None:
    image.check_all(events)
    for event in events:
        image.apply(event)


def catch_up(image: Image) -> None:
    """Who was added is in sync, and the controller ends the moves."""
    topic = image.topics[NAME]
    for number, known in enumerate(topic.assignments):
        for node in known.adding:
            now = image.assignment(NAME, number)
            change = SetChange(node, True, 1, now.leader_epoch, now.partition_epoch)
            write(image, [e.ChangeSet(topic=NAME, partition=number, change=change)])
        now = image.assignment(NAME, number)
        after = finish(now, image.cluster.nodes(), topic.min_in_sync)
        epochs = {"leader_epoch": now.leader_epoch, "partition_epoch": now.partition_epoch}
        write(image, [e.AssignPartition(topic=NAME, partition=number, after=after, **epochs)])


def test_a_topic_gets_the_replicas_that_it_lacked_and_then_needs_two_in_sync() -> None:
    image = cluster(nodes=3)
    write(image, lacking(image, NAME, "1"))
    assert lacking(image, NAME, "1") == [], "they are on their way"
    catch_up(image)
    topic = image.topics[NAME]
    assert [sorted(each.replicas) for each in topic.assignments] == [[1, 2, 3]] * PARTITIONS
    assert {each.replicas[0] for each in topic.assignments} == {1, 2, 3}, "each is to lead some of it"
    assert topic.min_in_sync == 1
    write(image, lacking(image, NAME, "1"))
    assert image.topics[NAME].min_in_sync == 2
    assert lacking(image, NAME, "1") == []


def test_nothing_is_lacking_where_there_is_nobody_else() -> None:
    image = cluster(nodes=1)
    assert lacking(image, NAME, "1") == []
    assert lacking(image, "__other", "1") == []
    image = cluster(nodes=4, replicas=(1, 2, 3))
    assert lacking(image, NAME, "1") == [], "three are enough"


def test_a_node_that_is_gone_leaves_them_with_its_removal() -> None:
    image = cluster(nodes=3, replicas=(1, 2, 3))
    write(image, [e.FenceNode(node=3, incarnation=1)])
    for number in range(PARTITIONS):
        known = image.assignment(NAME, number)
        change = SetChange(3, False, 1, known.leader_epoch, known.partition_epoch)
        write(image, [e.ChangeSet(topic=NAME, partition=number, change=change)])
    write(image, [*left_by(image, 3), e.RemoveNode(node_id="3")])
    assert [each.replicas for each in image.topics[NAME].assignments] == [(1, 2)] * PARTITIONS


def test_the_only_copy_is_not_left_behind() -> None:
    image = cluster(nodes=3, replicas=(3,))
    write(image, [e.FenceNode(node=3, incarnation=1)])
    assert left_by(image, 3) == []
