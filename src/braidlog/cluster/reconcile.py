"""What a node has to do so that its data folder and its partitions are as the image says.

Pure: image, folder and hosted topics in, actions out, in the order in which they are safe. The image is the truth and the folder
follows it. Invariant: a folder is removed only if the image says that its topic was deleted; one that the image does not know is
set aside and kept.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from braidlog.cluster.image import Assignment, Image, Topic
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
    """Make the partitions that the folder lacks, and let it describe itself as the image does."""

    topic: Topic
    meta: TopicMeta


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


Action = Close | Remove | SetAside | Make | Describe | Open | Lead | Follow


def reconcile(
    image: Image, found: Iterable[TopicMeta], hosted: Mapping[str, Topic], *, node: str, may_make: bool = True
) -> Iterator[Action]:
    """`may_make` off: some folders could not be read, so a topic without a folder may have one of those and gets no new one."""
    metas = {meta.topic_id: meta for meta in found}
    ids = {topic.topic_id for topic in image.topics.values()}
    for topic in hosted.values():
        if topic.topic_id not in ids:
            yield Close(topic)
    for topic_id, meta in metas.items():
        if topic_id in image.deleted:
            yield Remove(meta)
        elif topic_id not in ids:
            yield SetAside(meta)
    for topic in image.topics.values():
        yield from _reconcile_topic(topic, metas.get(topic.topic_id), hosted.get(topic.name), node, may_make=may_make)


def _reconcile_topic(
    topic: Topic, meta: TopicMeta | None, before: Topic | None, node: str, *, may_make: bool
) -> Iterator[Action]:
    if before is topic or before == topic:  # the first for speed: at each change nearly all are the same
        return
    if meta is None:
        if may_make:
            yield Make(topic)
    elif (meta.partitions, meta.settings) != (topic.partitions, topic.settings):
        yield Describe(topic, meta)
    if before is None or before.topic_id != topic.topic_id:
        yield Open(topic, None)
        return
    yield Open(topic, before)
    for number, (was, now) in enumerate(zip(before.assignments, topic.assignments, strict=False)):
        yield from _reconcile_leader(topic, number, was, now, node)


def _reconcile_leader(topic: Topic, number: int, was: Assignment, now: Assignment, node: str) -> Iterator[Action]:
    if (was.leader, was.leader_epoch) == (now.leader, now.leader_epoch):
        return
    yield Lead(topic, number, now.leader_epoch) if now.leader == node else Follow(topic, number)
