"""Decode every record of a partition in order, for logs that are read completely when they are opened."""

from collections.abc import Iterator

from braidlog.codec.batch.records import decode_batch
from braidlog.codec.batch.records_section import Row
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.storage.log.partition_log import PartitionLog

READ_BYTES = 1024 * 1024


def rows_of(log: PartitionLog) -> Iterator[Row]:
    """Yield rows (offset, timestamp, key, value, headers) from the log's start to its end."""
    offset = log.start_offset
    while (found := log.slice_at(offset, READ_BYTES)) is not None:
        data = found.read()
        position = 0
        while position < len(data):
            size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
            for row in decode_batch(data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
                if row[0] >= log.start_offset:
                    yield row
            position += size
        offset = found.next_offset
