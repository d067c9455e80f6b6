"""Read and write a partition whose only producer is the node itself."""

from collections.abc import Iterable, Iterator, Mapping

from braidlog.cluster.metadata.events import CreateTopic
from braidlog.codec.batch.header import BatchHeader, read_headers
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.fetch.record_reader import batches_of
from braidlog.partition.partition import Partition
from braidlog.partition.replica_runner import Produced
from braidlog.storage.folder.data_folder import DataFolder

READ_BYTES = 1024 * 1024


def append_published(hosted: Partition, batch: bytes, runtime: Runtime) -> int:
    """Append a batch that this node sealed; return the offset after it.

    If the append is rejected or the disk is full, nothing is written, and the same batch may be retried.
    """
    produced = Produced(batch, list(read_headers(batch)), runtime.now_ms(), own=True)
    if hosted.is_sole:
        return hosted.append_alone(produced).next_offset
    return hosted.produce(produced, needs_all=True, is_awaited=False)[0].next_offset


def read_published(hosted: Partition, offset: int) -> Iterator[tuple[bytes, int, BatchHeader]]:
    """Yield every batch from the one that holds `offset` to the log end, committed or not."""
    while (found := hosted.log.slice_at(offset, READ_BYTES)) is not None:
        yield from batches_of(found)
        offset = found.next_offset


def write_topic(folder: DataFolder, topic: CreateTopic, batches: Mapping[int, Iterable[bytes]], now_ms: int) -> None:
    """Create a topic with these batches in its partitions, durably.

    Deletes a topic of that name left by an earlier attempt.
    """
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
