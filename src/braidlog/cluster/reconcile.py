"""What a node has to do so that its data folder and its partitions are as the image says.

Pure: image, folder and hosted topics in, actions out, in the order in which they are safe. The image is the truth and the folder
follows it. Invariants: a folder is removed only if the image says that its topic was deleted; one that the image does not know is
set aside and kept; one that was made is not made again, for its records would be gone without a word.
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
    """Make the folder of a topic."""

    topic: Topic


class Describe(NamedTuple):
    """Make the partitions that the folder lacks, but for the first `made`, and let it describe itself as the image does."""

    topic: Topic
    meta: TopicMeta
    made: int


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


Action = Close | Remove | SetAside | Make | Describe | Remember | Open | Lead | Follow


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
    if before is topic or before == topic:
        return
    if meta is not None and (meta.partitions, meta.settings) != (topic.partitions, topic.settings):
        yield Describe(topic, meta, made)
    elif meta is None and not made:
        yield Make(topic)
    if made < topic.partitions and (meta is not None or not made):
        yield Remember(topic)
    if before is None or before.topic_id != topic.topic_id:
        yield Open(topic, None)
        return
    yield Open(topic, before)
    for number, (was, now) in enumerate(zip(before.assignments, topic.assignments, strict=False)):
        yield from _reconcile_leader(topic, number, was, now, own_number(node))


def _reconcile_leader(topic: Topic, number: int, was: Assignment, now: Assignment, node: int) -> Iterator[Action]:
    if (was.leader, was.leader_epoch) == (now.leader, now.leader_epoch):
        return
    yield Lead(topic, number, now.leader_epoch) if now.leader == node else Follow(topic, number)
