"""Convert a slice of the log to columns with only the requested parts: values and headers, optionally keys.

Invariants: blocks and batches are those of the slice, in order and with all offsets, and were valid when they were
read. In any unusual case the result is the slice itself, and its reader reports the error.
"""

from sys import byteorder

from braidlog.codec.batch.header import HEADER_BYTES, read_header
from braidlog.codec.columns.column_blocks import new_room, write_block
from braidlog.model.errors import ProtocolError, StorageFault
from braidlog.model.runtime.cooperative import yield_to_loop
from braidlog.storage.log.partition_log import FileSlice

BATCH_BYTES_MAX = 1024 * 1024
BATCH_RECORDS_MAX = 32 * 1024
"""A larger batch would block the event loop for too long: more than about a millisecond."""
TURN_BYTES = 512 * 1024
"""Bytes read and converted in one turn of the event loop."""


async def columns_of(found: FileSlice, *, keys: bool) -> bytearray | FileSlice:
    """Return the slice's batches as blocks of columns where possible.

    Return the slice itself if that saves less than a quarter.
    """
    if byteorder != "little":
        return found
    start, end = found.position, found.position + found.size
    size, at = TURN_BYTES, 0
    out = new_room(min(2 * found.size, (found.size >> 2) + TURN_BYTES))
    try:
        while start < end:
            data = found.file.read_at(min(size, end - start), start)
            done, at = _write_blocks(data, out, at, keys=keys)
            if not done:  # a batch that is larger than the read is read alone
                needed = read_header(data).size_bytes
                if needed <= size or needed > end - start:
                    return found  # the file ends within it
                size = needed + (needed >> 6)
                continue
            start += done
            size = _next_size(size, len(data) - done)
            if at > (start - found.position) * 3 >> 2:
                return found  # the kernel sends it for less
            if start < end:
                await yield_to_loop()
    except (ProtocolError, StorageFault):
        return found
    del out[at:]
    return out


def _write_blocks(data: bytes, out: bytearray, at: int, *, keys: bool) -> tuple[int, int]:
    """Convert the data; return how many bytes of it are done, and the end of the output."""
    position = 0
    while position < len(data):
        following, at = write_block(
            data, position, out, at, keys=keys, batch_bytes_max=BATCH_BYTES_MAX, batch_records_max=BATCH_RECORDS_MAX
        )
        if following == position:
            if len(data) - position < HEADER_BYTES:
                break
            following += read_header(data, position).size_bytes
            if following > len(data):
                break
            stop = at + following - position
            out[at:stop] = memoryview(data)[position:following]
            at = stop
        position = following
    return position, at


def _next_size(size: int, left: int) -> int:
    """Return the next read size, given that the last one left `left` bytes of an incomplete batch.

    Usually the same number of batches again, without most of one more, which would be read twice.
    """
    if size > 2 * TURN_BYTES:
        return TURN_BYTES
    if left < size >> 5:
        return size
    return size - left + (size >> 6) if size - left >= TURN_BYTES >> 1 else TURN_BYTES
