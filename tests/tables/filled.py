"""Records of all kinds in a topic of a log in a folder."""

from tests.storage.building import marker
from tests.tables.turned import NOW

from braidlog.codec.batch.records import encode_batch
from braidlog.codec.compression import Compression
from braidlog.model.record import NewRecord
from braidlog.storage.embedded_log import Topic


def fill(topic: Topic, count: int) -> None:
    """Plain and compressed batches, one of a transaction that was aborted, and a record without a value."""
    for number in range(count):
        records = [NewRecord(b"%d-%d" % (number, n) * 20, b"k%d" % n, (("h", b"x"),), NOW + number) for n in range(5)]
        topic.append_many(
            records, partition=number % 2, compression=Compression.NONE if number % 3 else Compression.GZIP
        )
    producer = topic.end_offset(0)
    aborted = encode_batch(
        [b"never"] * 3, base_timestamp=NOW, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
    )
    topic.partition(0).append(aborted, now_ms=NOW)
    topic.partition(0).append_marker(marker(producer, commit=False), now_ms=NOW)
    topic.append(None, key=b"gone", partition=0)
