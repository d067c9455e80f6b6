"""Preallocate zeros after the active segment's end, so that fdatasync does not update the file size.

Without them each sync of a growing file also waits for the file system's journal; docs/performance-tried.md has the
measurements. An append that has used up the zeros writes the next ones behind itself; its sync makes them durable.
Invariant: only zeros lie between a segment's end and its file's end, and only the active segment of an open log has
any. Full, closed and copied segments end where their files end.
"""

from typing import Final

from braidlog.model.errors import StorageFault
from braidlog.storage.files import File

RESERVE_BYTES_MAX: Final = 1024 * 1024
SYNC_BYTES_MAX: Final = 64 * 1024
"""A larger sync mostly waits for its own bytes, and zeros would double them."""
SYNCS_MIN: Final = 4
"""After this number of small syncs in a row the next ones are expected to be small too."""
_BLOCK_BYTES: Final = 4096
_LOOK_BYTES: Final = 64 * 1024
_ZEROS: Final = memoryview(bytes(RESERVE_BYTES_MAX + _BLOCK_BYTES))


class SmallSyncs:
    """Count small syncs and compute the next reserve: at most the segment's size, so that no file doubles."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def note(self, synced_bytes: int, segment_bytes: int) -> int:
        """Record a sync; return the size of the segment's next reserve, 0 for none."""
        if synced_bytes > SYNC_BYTES_MAX:
            self._in_a_row = 0
            return 0
        self._in_a_row += 1
        return min(segment_bytes, RESERVE_BYTES_MAX) if self._in_a_row >= SYNCS_MIN else 0


def write_reserve(file: File, end: int, size: int) -> int:
    """Write about `size` zeros from `end` on, up to a block boundary; return their end. A full disk gets none."""
    stop = -(-(end + size) // _BLOCK_BYTES) * _BLOCK_BYTES
    try:
        file.write_at(_ZEROS[: stop - end], end)
    except StorageFault as fault:
        if not fault.is_full:
            raise
        file.truncate(end)  # leave the space to records
        return end
    return stop


def written_end(file: File, start: int, end: int) -> int:
    """Return where the trailing zeros of [start, end) begin; `start` if there is nothing else."""
    while end > start:
        at = max(start, end - _LOOK_BYTES)
        found = len(file.read_at(end - at, at).rstrip(b"\0"))
        if found:
            return at + found
        end = at
    return start
