"""Zeros behind the end of the segment that is written to, so that a sync has blocks to write and no length of a file.

Knows: when zeros are worth writing, how many, and how to tell them from batches. Refuses to know: batches.
Invariant: between the end of a segment and the end of its file there are zeros and nothing else; only the active segment of a log
that is open has any. What is full, closed or copied ends where its file ends.

A file that grows makes each sync wait for the file system's journal too. An append over zeros that are on the disk does not:
docs/performance-tried.md has what it saves. The zeros are written by the append that has used up the last ones,
right behind it, and become durable with its sync.
"""

from typing import Final

from braidlog.model.errors import StorageFault
from braidlog.storage.files import File

RESERVE_BYTES_MAX: Final = 1024 * 1024
SYNC_BYTES_MAX: Final = 64 * 1024
"""A sync of more waits for its own bytes, and zeros would be as many once more."""
SYNCS_MIN: Final = 4
"""So many small syncs in a row, and the next ones are believed to be small, too."""
_BLOCK_BYTES: Final = 4096
_LOOK_BYTES: Final = 64 * 1024
_ZEROS: Final = memoryview(bytes(RESERVE_BYTES_MAX + _BLOCK_BYTES))


class SmallSyncs:
    """Counts them, and says how much is to be reserved: as much as the segment holds, so that no file is twice as long."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def note(self, synced_bytes: int, segment_bytes: int) -> int:
        """After each sync: of how many bytes the next reserve of this segment is; 0: none."""
        if synced_bytes > SYNC_BYTES_MAX:
            self._in_a_row = 0
            return 0
        self._in_a_row += 1
        return min(segment_bytes, RESERVE_BYTES_MAX) if self._in_a_row >= SYNCS_MIN else 0


def write_reserve(file: File, end: int, size: int) -> int:
    """Write about `size` zeros from `end` on, to the end of a block; where they end. On a full disk there are none."""
    stop = -(-(end + size) // _BLOCK_BYTES) * _BLOCK_BYTES
    try:
        file.write_at(_ZEROS[: stop - end], end)
    except StorageFault as fault:
        if not fault.is_full:
            raise
        file.truncate(end)  # room that records may need
        return end
    return stop


def written_end(file: File, start: int, end: int) -> int:
    """Where the zeros begin that reach up to `end`; `start` if there is nothing else."""
    while end > start:
        at = max(start, end - _LOOK_BYTES)
        found = len(file.read_at(end - at, at).rstrip(b"\0"))
        if found:
            return at + found
        end = at
    return start
