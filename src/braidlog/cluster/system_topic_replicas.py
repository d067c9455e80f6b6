"""Adds missing replicas to topics once enough live nodes exist. Internal topics also lose replicas on removed nodes,
because operators do not see those topics.

Pure: returns events for the metadata. Every node would write the same events, so any node may do it.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from braidlog.cluster.metadata.events import AssignPartition, Event, PlaceTopic
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.local_store import INTERNAL_PREFIX
from braidlog.cluster.metadata.topic_state import Topic
from braidlog.cluster.replica_placement import MIN_IN_SYNC, RANKED_TOPICS, REPLICAS, complete, live
from braidlog.kv.replicated.slots import placements
from braidlog.replication.assignment import Assignment
from braidlog.replication.control.reassignment import finish, reassign

MOVES_PER_ENTRY_MAX: Final = 200
"""Maximum partitions of one topic per entry: entries have a maximum size, and each partition is copied."""


def missing_replicas(image: Image, name: str, node: str) -> list[Event]:
    """Events that give a topic its missing replicas, then raise an internal topic's `min_in_sync` to the default.

    Empty if nothing is missing, or while a move is in progress. `node` is the calling node's name.
    """
    topic = image.topics.get(name)
    if topic is None or topic.holder:
        return []
    if any(each.adding or each.removing for each in topic.assignments):
        return []
    moves = list(islice(_moves(image, topic), MOVES_PER_ENTRY_MAX))
    if moves or not name.startswith(INTERNAL_PREFIX):
        return moves
    min_in_sync = min(MIN_IN_SYNC, *(len(each.replicas) for each in topic.assignments))
    if min_in_sync <= topic.min_in_sync:
        return []
    replicas = (node, *topic.observers)
    return [PlaceTopic(topic=name, topic_id=topic.topic_id, replicas=replicas, min_in_sync=min_in_sync)]


def removals_of_node(image: Image, node: int) -> list[Event]:
    """Events that remove a node from the replicas of internal topics where the other replicas are sufficient."""
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
    if topic.name in RANKED_TOPICS:
        yield from _moves_by_rank(image, topic)
        return
    is_own = topic.name.startswith(INTERNAL_PREFIX)
    count = min(REPLICAS, len(live(image.cluster))) if is_own else topic.replication_factor
    for number, known in enumerate(topic.assignments):
        if len(known.replicas) < count:
            # Leaders of internal topics are spread over new nodes; replicas of user topics stay where they are.
            target = complete(image.cluster, topic.name, number, () if is_own else known.replicas, count)
            if target != known.replicas:
                yield _assigned(topic, number, reassign(known, target))


def _moves_by_rank(image: Image, topic: Topic) -> Iterator[Event]:
    """Moves by the ranking of all registered nodes. A node that is absent for a while is not replaced, and nothing
    moves to it.
    """
    there, nodes = live(image.cluster), sorted(map(int, image.cluster.members))
    targets = placements(topic.partitions, nodes, REPLICAS)
    for number, (known, target) in enumerate(zip(topic.assignments, targets, strict=True)):
        if target != known.replicas and {*target} - {*known.replicas} <= {*there}:
            yield _assigned(topic, number, reassign(known, target))
