"""What a node has to do so that its data folder and its partitions are as the image says.

Pure: image, folder and hosted topics in, actions out, in the order in which they are safe. The image is the truth and the folder
follows it. Invariants: a folder is removed only if the image says that its topic was deleted, that of a partition only if the
image says that other nodes hold it; a topic that the image does not know is set aside and kept; one that was made is not made
again, for its records would be gone without a word.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from braidlog.cluster.image import Image
from braidlog.cluster.topic import Topic
from braidlog.model.names import own_number
from braidlog.replication.assignment import Assignment
from braidlog.storage.folder import TopicMeta


class Close(NamedTuple):
    """Serve the partitions of a topic no more."""

    topic: Topic


class Remove(NamedTuple):
    """Remove the folder of a deleted topic."""

    meta: TopicMeta


class SetAside(NamedTuple):
    """Keep the folder of a topic that the image does not know, out of the way."""

    meta: TopicMeta


class Make(NamedTuple):
    """Make the folder of a topic, without the partitions that other nodes hold."""

    topic: Topic
    absent: tuple[int, ...] = ()


class Describe(NamedTuple):
    """Make the partitions that the folder lacks, but for the first `made`, and let it describe itself as the image does."""

    topic: Topic
    meta: TopicMeta
    made: int
    absent: tuple[int, ...] = ()
    """What other nodes hold is not made."""


class Hold(NamedTuple):
    """Make partitions of which this node has become a replica."""

    topic: Topic
    numbers: tuple[int, ...]


class Release(NamedTuple):
    """Close and remove partitions of which this node is a replica no more, by an event that it has applied."""

    topic: Topic
    numbers: tuple[int, ...]


class Remember(NamedTuple):
    """Note durably that the folder was made: before anything is acknowledged that is in it."""

    topic: Topic


class Open(NamedTuple):
    """Serve a topic, or serve it with other settings, replicas or partitions than `before`."""

    topic: Topic
    before: Topic | None


class Lead(NamedTuple):
    """Begin to lead a partition in a new epoch."""

    topic: Topic
    number: int
    epoch: int


class Follow(NamedTuple):
    """Lead a partition no more."""

    topic: Topic
    number: int


Action = Close | Remove | SetAside | Make | Describe | Hold | Release | Remember | Open | Lead | Follow


def reconcile(
    image: Image,
    found: Iterable[TopicMeta],
    hosted: Mapping[str, Topic],
    *,
    node: str,
    names: Collection[str] | None = None,
    remembered: Collection[str] = (),
) -> Iterator[Action]:
    """`names`: look at these topics only, and `found` is theirs. `remembered`: topics that the folder says were made."""
    metas = {meta.name: meta for meta in found}
    looked_at = list(dict.fromkeys([*image.topics, *hosted, *metas])) if names is None else sorted(names)
    for name in looked_at:
        if (before := hosted.get(name)) is not None and not _is(image.topics.get(name), before.topic_id):
            yield Close(before)
    for name in looked_at:
        if (meta := metas.get(name)) is not None and not _is(image.topics.get(name), meta.topic_id):
            yield Remove(meta) if may_remove(image, meta) else SetAside(meta)
            del metas[name]
    for name in looked_at:
        if (topic := image.topics.get(name)) is not None:
            made = topic.partitions if name in remembered else image.made_by(node, topic)
            yield from _reconcile_topic(topic, metas.get(name), hosted.get(name), node, made)


def may_remove(image: Image, meta: TopicMeta) -> bool:
    """Only if its end was agreed on: one that is merely unknown may be somebody's only copy."""
    return meta.topic_id in image.deleted


def _is(topic: Topic | None, topic_id: str) -> bool:
    return topic is not None and topic.topic_id == topic_id


def _reconcile_topic(
    topic: Topic, meta: TopicMeta | None, before: Topic | None, node: str, made: int
) -> Iterator[Action]:
    if (before is topic or before == topic) and (meta is not None or made):
        return
    absent = absent_from(own_number(node), topic)
    if meta is not None and (meta.partitions, meta.settings) != (topic.partitions, topic.settings):
        yield Describe(topic, meta, made, absent)
    elif meta is None and not made:
        yield Make(topic, absent)
    if meta is not None and (joined := tuple(each for each in meta.absent if each not in absent)):
        yield Hold(topic, joined)
    if made < topic.partitions and (meta is not None or not made):
        yield Remember(topic)
    is_new = before is None or before.topic_id != topic.topic_id
    yield Open(topic, None if is_new else before)
    if meta is not None and (left := tuple(each for each in absent if each in meta.held)):
        yield Release(topic, left)  # after it is told: whoever asks is sent to those who hold it
    if before is None or is_new:
        return
    for number, (was, now) in enumerate(zip(before.assignments, topic.assignments, strict=False)):
        yield from _reconcile_leader(topic, number, was, now, own_number(node))


def absent_from(node: int, topic: Topic) -> tuple[int, ...]:
    """The partitions that a node does not hold; one that has a topic alone holds all of it."""
    if topic.holder:
        return ()
    return tuple(number for number, each in enumerate(topic.assignments) if node not in each.replicas)


def _reconcile_leader(topic: Topic, number: int, was: Assignment, now: Assignment, node: int) -> Iterator[Action]:
    if (was.leader, was.leader_epoch) == (now.leader, now.leader_epoch):
        return
    yield Lead(topic, number, now.leader_epoch) if now.leader == node else Follow(topic, number)
