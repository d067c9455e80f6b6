"""Records to batches, and batches to records as a reader wants them.

Knows: batches, and which of them a reader does not see. Refuses to know: requests, sockets.
Invariants: a batch is made of its records alone, so that one that is made again is the very same. A reader is given no control
record, nothing before the offset it asked for, and with `read_committed` nothing of a transaction that was aborted; the next
offset is past all of that.
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
"""Numbers of records go on at 0 after the last one."""
RECORD_BYTES = 72
"""Seven lengths and deltas of a record at their longest, and so much of a batch's header that one large record, alone in its
batch, fits what it weighs: Kafka's default for a batch is 1 MiB and twelve bytes."""
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
    """One batch; `producer` is its id and epoch, (-1, -1) with `first_sequence` -1 for nobody in particular."""
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
    """What a fetch from `offset` brought, without the transactions that were `aborted`."""
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
    """Position and header of each, its checksum checked. A server may stop in the middle of one: that is for the next fetch."""
    position, end = 0, len(data)
    while end - position >= LENGTH_PREFIX_BYTES:
        length = int.from_bytes(data[position + 8 : position + LENGTH_PREFIX_BYTES], "big", signed=True)
        if length > end - position - LENGTH_PREFIX_BYTES:
            return
        header = read_header(data, position)
        check_crc(data, position, header)
        yield position, header
        position += header.size_bytes
