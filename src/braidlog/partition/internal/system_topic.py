"""A partition that the node itself writes and others read: no producer, no acknowledgement but that it is durable."""

from collections.abc import Iterator

from braidlog.codec.batch.header import BatchHeader, read_headers
from braidlog.model.runtime.runtime import World
from braidlog.partition.fetch.record_reader import batches_of
from braidlog.partition.partition import Partition
from braidlog.partition.replica_runner import Produced

READ_BYTES = 1024 * 1024


def append_published(hosted: Partition, batch: bytes, world: World) -> int:
    """Append a batch that was sealed here; return the offset after it. Refused, or on a full disk, nothing of it is written: the
    same batch may be tried again."""
    produced = Produced(batch, list(read_headers(batch)), world.now_ms(), own=True)
    if hosted.is_sole:
        return hosted.append_alone(produced).next_offset
    return hosted.produce(produced, needs_all=True, is_awaited=False)[0].next_offset


def read_published(hosted: Partition, offset: int) -> Iterator[tuple[bytes, int, BatchHeader]]:
    """Every batch from the one that holds `offset` to the end of the log, committed or not."""
    while (found := hosted.log.slice_at(offset, READ_BYTES)) is not None:
        yield from batches_of(found)
        offset = found.next_offset
