"""Actions that bring a node's data folder and partitions in line with the metadata image.

Pure: returns actions in an order that is safe.
Invariants: a topic's folder is removed only if the image says that the topic was deleted. A partition's folder is
removed only if the image places the partition on other nodes. A folder of an unknown topic is quarantined. A folder
that was created once is not created again, because that would hide lost records.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.topic_state import Topic
from braidlog.model.names import own_number
from braidlog.replication.assignment import Assignment
from braidlog.storage.folder.data_folder import TopicMeta


class Close(NamedTuple):
    """Stop serving the partitions of a topic."""

    topic: Topic


class Remove(NamedTuple):
    """Remove the folder of a deleted topic."""

    meta: TopicMeta


class Quarantined(NamedTuple):
    """Quarantine the folder of a topic that the image does not know."""

    meta: TopicMeta


class CreateFolder(NamedTuple):
    """Create the folder of a topic, without the partitions that other nodes hold."""

    topic: Topic
    absent: tuple[int, ...] = ()


class UpdateFolder(NamedTuple):
    """Create missing partitions, except the first `made`, and update the folder's description from the image."""

    topic: Topic
    meta: TopicMeta
    made: int
    absent: tuple[int, ...] = ()
    """Partitions on other nodes, which are not created."""


class AddReplicas(NamedTuple):
    """Create partitions of which this node has become a replica."""

    topic: Topic
    numbers: tuple[int, ...]


class RemoveReplicas(NamedTuple):
    """Close and remove partitions of which this node is no longer a replica, after it applied that event."""

    topic: Topic
    numbers: tuple[int, ...]


class RecordFolderCreated(NamedTuple):
    """Record durably that the folder was created, before any write in it is acknowledged."""

    topic: Topic


class Open(NamedTuple):
    """Serve a topic, or change its settings, replicas or partitions from `before`."""

    topic: Topic
    before: Topic | None


class Lead(NamedTuple):
    """Start to lead a partition in a new epoch."""

    topic: Topic
    number: int
    epoch: int


class Follow(NamedTuple):
    """Stop leading a partition."""

    topic: Topic
    number: int


Action = (
    Close
    | Remove
    | Quarantined
    | CreateFolder
    | UpdateFolder
    | AddReplicas
    | RemoveReplicas
    | RecordFolderCreated
    | Open
    | Lead
    | Follow
)


def reconcile(
    image: Image,
    found: Iterable[TopicMeta],
    hosted: Mapping[str, Topic],
    *,
    node: str,
    names: Collection[str] | None = None,
    remembered: Collection[str] = (),
) -> Iterator[Action]:
    """Yield the actions. `names` limits them to these topics, and `found` belongs to these; `remembered` are topics
    that the folder records as created.
    """
    metas = {meta.name: meta for meta in found}
    looked_at = list(dict.fromkeys([*image.topics, *hosted, *metas])) if names is None else sorted(names)
    for name in looked_at:
        if (before := hosted.get(name)) is not None and not _is(image.topics.get(name), before.topic_id):
            yield Close(before)
    for name in looked_at:
        if (meta := metas.get(name)) is not None and not _is(image.topics.get(name), meta.topic_id):
            yield Remove(meta) if may_remove(image, meta) else Quarantined(meta)
            del metas[name]
    for name in looked_at:
        if (topic := image.topics.get(name)) is not None:
            made = topic.partitions if name in remembered else image.made_by(node, topic)
            yield from _reconcile_topic(topic, metas.get(name), hosted.get(name), node, made)


def may_remove(image: Image, meta: TopicMeta) -> bool:
    """Whether the topic's deletion is in the image. A folder of a merely unknown topic may be the only copy."""
    return meta.topic_id in image.deleted


def _is(topic: Topic | None, topic_id: str) -> bool:
    return topic is not None and topic.topic_id == topic_id


def _reconcile_topic(
    topic: Topic, meta: TopicMeta | None, before: Topic | None, node: str, made: int
) -> Iterator[Action]:
    if (before is topic or before == topic) and (meta is not None or made):
        return
    absent = partitions_elsewhere(own_number(node), topic)
    if meta is not None and (meta.partitions, meta.settings) != (topic.partitions, topic.settings):
        yield UpdateFolder(topic, meta, made, absent)
    elif meta is None and not made:
        yield CreateFolder(topic, absent)
    if meta is not None and (joined := tuple(each for each in meta.absent if each not in absent)):
        yield AddReplicas(topic, joined)
    if made < topic.partitions and (meta is not None or not made):
        yield RecordFolderCreated(topic)
    is_new = before is None or before.topic_id != topic.topic_id
    yield Open(topic, None if is_new else before)
    if meta is not None and (left := tuple(each for each in absent if each in meta.held)):
        yield RemoveReplicas(topic, left)  # after the change is visible: clients are redirected to the other nodes
    if before is None or is_new:
        return
    for number, (was, now) in enumerate(zip(before.assignments, topic.assignments, strict=False)):
        yield from _reconcile_leader(topic, number, was, now, own_number(node))


def partitions_elsewhere(node: int, topic: Topic) -> tuple[int, ...]:
    """The partitions that a node does not hold. A node that holds a topic alone holds all of them."""
    if topic.holder:
        return ()
    return tuple(number for number, each in enumerate(topic.assignments) if node not in each.replicas)


def _reconcile_leader(topic: Topic, number: int, was: Assignment, now: Assignment, node: int) -> Iterator[Action]:
    if (was.leader, was.leader_epoch) == (now.leader, now.leader_epoch):
        return
    yield Lead(topic, number, now.leader_epoch) if now.leader == node else Follow(topic, number)
