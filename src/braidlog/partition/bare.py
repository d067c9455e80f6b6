"""A slice of the log without what its reader did not ask for: values and headers, or keys as well.

Knows: which batches are worth it, and how much is done in one turn. Refuses to know: who asked, how records are packed.
Invariants: the batches are those of the slice, in its order, with all their offsets; a batch is bare or whole, never in between,
and what is bare was whole when it was read. Where anything is odd the slice itself is the answer: whoever sends or reads it knows
what to say of it.
"""

from braidlog.codec.batch import BatchHeader, Buffer
from braidlog.codec.compression import Compression
from braidlog.codec.records import bare_batch
from braidlog.model.errors import ProtocolError, StorageFault
from braidlog.model.slices import breathe
from braidlog.partition.reading import batches_of
from braidlog.storage.partition import FileSlice

BATCH_BYTES_MIN = 2048
"""Of a smaller one there is less to leave out than opening it costs."""
BATCH_BYTES_MAX = 1024 * 1024
BATCH_RECORDS_MAX = 32 * 1024
"""A larger one would take too long a turn of the loop: about a millisecond."""
TURN_BYTES = 512 * 1024


async def bare_slice(found: FileSlice, *, keys: bool) -> bytes | FileSlice:
    """The batches of a slice, bare where they can be; the slice if its first part has none that can."""
    parts: list[Buffer] = []
    turn_bytes = seen_bytes = left_out_bytes = 0
    try:
        for data, position, header in batches_of(found):
            size = header.size_bytes
            if _is_worth_it(header):
                parts.append(bare_batch(data, position, header, keys=keys))
                left_out_bytes += size - len(parts[-1])
            else:
                parts.append(memoryview(data)[position : position + size])
            seen_bytes += size
            turn_bytes += size
            if turn_bytes >= TURN_BYTES:
                if left_out_bytes < seen_bytes >> 2:
                    return found  # the kernel sends it for less
                turn_bytes = 0
                await breathe()
    except (ProtocolError, StorageFault):
        return found
    return b"".join(parts) if left_out_bytes else found


def _is_worth_it(header: BatchHeader) -> bool:
    return (
        BATCH_BYTES_MIN <= header.size_bytes <= BATCH_BYTES_MAX
        and 0 < header.record_count <= BATCH_RECORDS_MAX
        and header.compression == Compression.NONE
        and not header.is_control
    )
