"""Topics of the cluster's own: more replicas as nodes come, fewer when one is gone for good."""

from collections import Counter
from collections.abc import Sequence

import pytest
from tests.cluster.test_membership import registered
from tests.cluster.topics import placed

from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.replica_placement import place
from braidlog.cluster.system_topic_replicas import MOVES_PER_ENTRY_MAX, missing_replicas, removals_of_node
from braidlog.kv.replicated.slots import KEY_LOGS, LOG_TOPIC, placements
from braidlog.replication.assignment import Assignment, InSyncSetChange
from braidlog.replication.control.reassignment import finish, reassign

NAME, PARTITIONS = "__own", 4


def cluster(
    nodes: int, replicas: tuple[int, ...] = (1,), name: str = NAME, partitions: int = PARTITIONS, factor: int = 0
) -> Image:
    image = Image()
    min_in_sync = min(2, len(replicas))
    created = placed(*(replicas,) * partitions, topic=name, min_in_sync=min_in_sync, replication_factor=factor)
    write(image, [*(registered(node, 1) for node in range(1, nodes + 1)), created])
    return image


def write(image: Image, events: Sequence[e.Event]) -> None:
    image.check_all(events)
    for event in events:
        image.apply(event)


def epochs(known: Assignment) -> dict[str, int]:
    return {"leader_epoch": known.leader_epoch, "partition_epoch": known.partition_epoch}


def catch_up(image: Image, name: str = NAME, incarnation: int = 1) -> None:
    """Who was added is in sync, and the controller ends the moves."""
    topic = image.topics[name]
    for number, known in enumerate(topic.assignments):
        for node in known.adding:
            now = image.assignment(name, number)
            change = InSyncSetChange(node, True, incarnation, now.leader_epoch, now.partition_epoch)
            write(image, [e.ChangeSet(topic=name, partition=number, change=change)])
        now = image.assignment(name, number)
        after = finish(now, image.cluster.nodes(), topic.min_in_sync)
        write(image, [e.AssignPartition(topic=name, partition=number, after=after, **epochs(now))])


def test_a_topic_gets_the_replicas_that_it_lacked_and_then_needs_two_in_sync() -> None:
    image = cluster(nodes=3)
    write(image, missing_replicas(image, NAME, "1"))
    assert missing_replicas(image, NAME, "1") == [], "they are on their way"
    catch_up(image)
    topic = image.topics[NAME]
    assert [sorted(each.replicas) for each in topic.assignments] == [[1, 2, 3]] * PARTITIONS
    assert {each.replicas[0] for each in topic.assignments} == {1, 2, 3}, "each is to lead some of it"
    assert topic.min_in_sync == 1
    write(image, missing_replicas(image, NAME, "1"))
    assert image.topics[NAME].min_in_sync == 2
    assert missing_replicas(image, NAME, "1") == []


def test_nothing_is_lacking_where_there_is_nobody_else() -> None:
    image = cluster(nodes=1)
    assert missing_replicas(image, NAME, "1") == []
    assert missing_replicas(image, "__other", "1") == []
    image = cluster(nodes=4, replicas=(1, 2, 3))
    assert missing_replicas(image, NAME, "1") == [], "three are enough"


def test_a_node_that_is_gone_leaves_them_with_its_removal() -> None:
    image = cluster(nodes=3, replicas=(1, 2, 3))
    write(image, [e.FenceNode(node=3, incarnation=1)])
    for number in range(PARTITIONS):
        known = image.assignment(NAME, number)
        change = InSyncSetChange(3, False, 1, known.leader_epoch, known.partition_epoch)
        write(image, [e.ChangeSet(topic=NAME, partition=number, change=change)])
    write(image, [*removals_of_node(image, 3), e.RemoveNode(node_id="3")])
    assert [each.replicas for each in image.topics[NAME].assignments] == [(1, 2)] * PARTITIONS


def test_the_only_copy_is_not_left_behind() -> None:
    image = cluster(nodes=3, replicas=(3,))
    write(image, [e.FenceNode(node=3, incarnation=1)])
    assert removals_of_node(image, 3) == []


def key_logs(image: Image) -> list[tuple[int, ...]]:
    return [each.replicas for each in image.topics[LOG_TOPIC].assignments]


def settle(image: Image) -> None:
    while events := missing_replicas(image, LOG_TOPIC, "1"):
        write(image, events)
        catch_up(image, LOG_TOPIC)


@pytest.mark.parametrize("nodes", [3, 4, 5, 8])
def test_a_node_that_is_added_leads_its_share_of_the_logs(nodes: int) -> None:
    image = cluster(nodes, (1, 2, 3), LOG_TOPIC, KEY_LOGS)
    settle(image)
    before = key_logs(image)
    assert before == [*place(image.cluster, LOG_TOPIC, range(KEY_LOGS))]
    write(image, [registered(nodes + 1, 1)])
    settle(image)
    assert key_logs(image) == placements(KEY_LOGS, range(1, nodes + 2), 3)
    led = sum(now[0] == nodes + 1 for now in key_logs(image))
    assert led in {KEY_LOGS // (nodes + 1), -(-KEY_LOGS // (nodes + 1))}


def test_logs_of_a_node_that_is_away_stay_and_go_when_it_is_removed() -> None:
    image = cluster(4, (1, 2, 3), LOG_TOPIC, KEY_LOGS)
    settle(image)
    before = key_logs(image)
    write(image, [e.FenceNode(node=4, incarnation=1)])
    for number, replicas in enumerate(before):
        known = image.assignment(LOG_TOPIC, number)
        change = InSyncSetChange(4, False, 1, known.leader_epoch, known.partition_epoch)
        if known.leader == 4:
            after = known.with_leader(replicas[1])
            write(image, [e.AssignPartition(topic=LOG_TOPIC, partition=number, after=after, **epochs(known))])
            change = InSyncSetChange(
                4, False, 1, after.leader_epoch, image.assignment(LOG_TOPIC, number).partition_epoch
            )
        if 4 in replicas:
            write(image, [e.ChangeSet(topic=LOG_TOPIC, partition=number, change=change)])
    assert missing_replicas(image, LOG_TOPIC, "1") == []
    write(image, [*removals_of_node(image, 4), e.RemoveNode(node_id="4")])
    settle(image)
    assert key_logs(image) == placements(KEY_LOGS, (1, 2, 3), 3)
    assert before != key_logs(image)


USERS = "orders"


def replicas_of(image: Image, name: str = USERS) -> list[tuple[int, ...]]:
    return [each.replicas for each in image.topics[name].assignments]


def test_a_topic_of_users_is_completed_to_its_factor_when_a_node_is_back() -> None:
    image = cluster(3, (2, 1), USERS, factor=3)
    topic = image.topics[USERS]
    assert all(map(topic.lacks_replicas, topic.assignments))
    write(image, [e.FenceNode(node=3, incarnation=1)])
    assert missing_replicas(image, USERS, "1") == [], "no live node is left for it"
    write(image, [registered(3, 2)])
    write(image, missing_replicas(image, USERS, "1"))
    topic = image.topics[USERS]
    assert [(each.replicas, each.adding) for each in topic.assignments] == [((2, 1, 3), (3,))] * PARTITIONS
    assert all(map(topic.lacks_replicas, topic.assignments)), "what is being added is not there yet"
    assert missing_replicas(image, USERS, "1") == []
    catch_up(image, USERS, incarnation=2)
    topic = image.topics[USERS]
    assert replicas_of(image) == [(2, 1, 3)] * PARTITIONS
    assert not any(map(topic.lacks_replicas, topic.assignments))
    assert (topic.replication_factor, topic.min_in_sync) == (3, 2)
    assert missing_replicas(image, USERS, "1") == []


def test_a_topic_without_a_factor_keeps_the_replicas_that_it_has() -> None:
    image = cluster(3, (1, 2), USERS)
    assert missing_replicas(image, USERS, "1") == []
    assert not any(map(image.topics[USERS].lacks_replicas, image.topics[USERS].assignments))


def move(image: Image, number: int, target: tuple[int, ...]) -> int:
    """An administrator's; returns the factor after it."""
    known = image.assignment(USERS, number)
    after = reassign(known, target)
    write(image, [e.AssignPartition(topic=USERS, partition=number, after=after, **epochs(known))])
    return image.topics[USERS].replication_factor


def test_the_factor_follows_an_administrators_moves() -> None:
    image = cluster(4, (1, 2, 3), USERS, partitions=2, factor=3)
    assert move(image, 0, (2, 3, 4)) == 3
    assert move(image, 0, (1, 2)) == 2, "what was taken away is not added again"
    assert move(image, 0, (1, 2, 3, 4)) == 3, "partition 1 has three"
    assert move(image, 1, (1, 2, 3, 4)) == 4
    image = cluster(4, (1,), USERS, partitions=2, factor=3)
    assert move(image, 0, (1, 2)) == 3, "a partition on its way to three nodes"


def test_many_partitions_are_completed_in_portions() -> None:
    image = cluster(3, (1, 2), USERS, partitions=MOVES_PER_ENTRY_MAX + 1, factor=3)
    write(image, missing_replicas(image, USERS, "1"))
    catch_up(image, USERS)
    assert Counter(map(len, replicas_of(image))) == {3: MOVES_PER_ENTRY_MAX, 2: 1}
    write(image, missing_replicas(image, USERS, "1"))
    assert Counter(map(len, replicas_of(image))) == {3: MOVES_PER_ENTRY_MAX + 1}
