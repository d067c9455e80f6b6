"""Topics get the replicas that they lacked when they were made, once nodes are live that can have them. Internal topics also lose
replicas on nodes that were removed: no administrator has to move what he does not see.

Pure: what is to be written to the metadata, by whoever looks. Everyone would write the same, so it does not matter who does.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from braidlog.cluster.events import AssignPartition, Event, PlaceTopic
from braidlog.cluster.image import Image
from braidlog.cluster.local import INTERNAL_PREFIX
from braidlog.cluster.placing import BY_RANK, MIN_IN_SYNC, REPLICAS, complete, live
from braidlog.cluster.topic import Topic
from braidlog.kv.slots import placements
from braidlog.replication.assignment import Assignment
from braidlog.replication.reassignment import finish, reassign

MOVED_AT_ONCE: Final = 200
"""Partitions of one topic: an entry of the metadata has a largest size, and each of them is copied."""


def lacking(image: Image, name: str, node: str) -> list[Event]:
    """What gives a topic the replicas that it should have: an internal one as many as there are nodes for, then as many in sync
    as usual. Nothing if it has them, or while a move is under way. `node` is the name of who asks."""
    topic = image.topics.get(name)
    if topic is None or topic.holder:
        return []
    if any(each.adding or each.removing for each in topic.assignments):
        return []
    moves = list(islice(_moves(image, topic), MOVED_AT_ONCE))
    if moves or not name.startswith(INTERNAL_PREFIX):
        return moves
    min_in_sync = min(MIN_IN_SYNC, *(len(each.replicas) for each in topic.assignments))
    if min_in_sync <= topic.min_in_sync:
        return []
    replicas = (node, *topic.observers)
    return [PlaceTopic(topic=name, topic_id=topic.topic_id, replicas=replicas, min_in_sync=min_in_sync)]


def left_by(image: Image, node: int) -> list[Event]:
    """What takes a node out of the replicas of these topics, where enough others have all there is."""
    nodes, events = image.cluster.nodes(), list[Event]()
    for topic in image.topics.values():
        for number, known in enumerate(topic.assignments if topic.name.startswith(INTERNAL_PREFIX) else ()):
            others = tuple(each for each in known.replicas if each != node)
            if node in known.replicas and others:
                after = finish(reassign(known, others), nodes, topic.min_in_sync)
                if node not in after.replicas:
                    events.append(_assigned(topic, number, after))
    return events


def _assigned(topic: Topic, number: int, after: Assignment) -> Event:
    known = topic.assignments[number]
    epochs = {"leader_epoch": known.leader_epoch, "partition_epoch": known.partition_epoch}
    return AssignPartition(topic=topic.name, partition=number, after=after, **epochs)


def _moves(image: Image, topic: Topic) -> Iterator[Event]:
    if topic.name in BY_RANK:
        yield from _moves_by_rank(image, topic)
        return
    is_own = topic.name.startswith(INTERNAL_PREFIX)
    count = min(REPLICAS, len(live(image.cluster))) if is_own else topic.replication_factor
    for number, known in enumerate(topic.assignments):
        if len(known.replicas) < count:
            # Leaders of internal topics are spread over the nodes that have come; a user's replicas stay as they are.
            target = complete(image.cluster, topic.name, number, () if is_own else known.replicas, count)
            if target != known.replicas:
                yield _assigned(topic, number, reassign(known, target))


def _moves_by_rank(image: Image, topic: Topic) -> Iterator[Event]:
    """By all nodes that are registered: one that is away for a while is not replaced. Nothing moves to one that is."""
    there, nodes = live(image.cluster), sorted(map(int, image.cluster.members))
    targets = placements(topic.partitions, nodes, REPLICAS)
    for number, (known, target) in enumerate(zip(topic.assignments, targets, strict=True)):
        if target != known.replicas and {*target} - {*known.replicas} <= {*there}:
            yield _assigned(topic, number, reassign(known, target))
