"""A topic that is written into the folder of a stopped node.

Knows: how its partitions get their batches. Does not know: what is in them, what the metadata says of the topic.
"""

from collections.abc import Iterable, Mapping

from braidlog.cluster.metadata.events import CreateTopic
from braidlog.storage.folder.data_folder import DataFolder


def write_topic(folder: DataFolder, topic: CreateTopic, batches: Mapping[int, Iterable[bytes]], now_ms: int) -> None:
    """Make a topic with these batches in its partitions; durable when this returns. One of that name, which an earlier try has
    left, is deleted first."""
    if folder.find(topic.topic) is not None:
        folder.delete_topic(topic.topic)
    folder.create_topic(
        topic.topic, topic.partitions, topic.settings, topic_id=topic.topic_id, created_ms=topic.created_ms
    )
    for number, found in batches.items():
        log = folder.open_partition(topic.topic, number)
        log.begin_epoch(topic.leader_epoch)
        for batch in found:
            log.append(batch, leader_epoch=topic.leader_epoch, now_ms=now_ms)
        log.close()
