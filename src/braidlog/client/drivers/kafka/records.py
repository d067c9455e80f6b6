"""Converts records to batches, and batches to the records that a reader sees.

Does not handle: requests, sockets. A batch depends on its records only, so rebuilding it gives the same bytes. A
reader never sees control records, or records before the requested offset. With `read_committed` it never sees records
of aborted transactions. The next offset is past all of these.
"""

from collections.abc import Iterable, Iterator, Sequence

from braidlog.client.drivers.contract import ConsumedRecord, Fetched
from braidlog.codec.batch.header import LENGTH_PREFIX_BYTES, BatchHeader, Buffer, check_crc, read_header
from braidlog.codec.batch.read_committed import AbortedRange, visible
from braidlog.codec.batch.records import decode_batch, encode_batch
from braidlog.codec.compression import Compression
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.model.record import NewRecord

SEQUENCES = 2**31
"""Sequence numbers wrap to 0 after this one."""
RECORD_BYTES = 72
"""The longest lengths and deltas of a record, and enough of a batch header that one large record fits a batch of its
weight: Kafka's default batch limit is 1 MiB plus twelve bytes."""
HEADER_LENGTH_BYTES = 10


def weigh(record: NewRecord) -> int:
    size = RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
    if not record.headers:
        return size
    return size + sum(HEADER_LENGTH_BYTES + len(name.encode()) + len(value or b"") for name, value in record.headers)


def batch_of(
    records: Sequence[NewRecord],
    compression: Compression,
    producer: tuple[int, int],
    first_sequence: int,
    *,
    transactional: bool = False,
) -> bytes:
    """Build one batch; `producer` is its id and epoch, or (-1, -1) with `first_sequence` -1 without idempotence."""
    times = [record.timestamp_ms or 0 for record in records]
    keys = [record.key for record in records]
    headers = [record.headers for record in records]
    producer_id, producer_epoch = producer
    return encode_batch(
        [record.value for record in records],
        keys=keys if any(key is not None for key in keys) else None,
        timestamps=times,
        headers=headers if any(headers) else None,
        base_timestamp=times[0],
        leader_epoch=-1,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=first_sequence,
        transactional=transactional,
    )


def fetched(
    place: tuple[str, int],
    offset: int,
    data: Buffer,
    *,
    high_watermark: int,
    aborted: Iterable[AbortedRange] = (),
) -> Fetched:
    """Decode a fetch from `offset`, without the records of `aborted` transactions."""
    topic, partition = place
    batches = [(data, position, header) for position, header in whole_batches(data)]
    following = max(offset, batches[-1][2].next_offset) if batches else offset
    records = [
        ConsumedRecord(topic, partition, at, key, value, headers, time)
        for _, position, _ in visible(batches, aborted)
        for at, time, key, value, headers in decode_batch(data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
        if at >= offset
    ]
    return Fetched(records, following, high_watermark)


def whole_batches(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each complete batch, with its checksum checked. The last batch may be truncated:
    skip it."""
    position, end = 0, len(data)
    while end - position >= LENGTH_PREFIX_BYTES:
        length = int.from_bytes(data[position + 8 : position + LENGTH_PREFIX_BYTES], "big", signed=True)
        if length > end - position - LENGTH_PREFIX_BYTES:
            return
        header = read_header(data, position)
        check_crc(data, position, header)
        yield position, header
        position += header.size_bytes
