"""Begin a log anew at another offset: for a replica whose leader's log begins where this one does not reach.

Knows: which files of a partition's folder are its segments'. Refuses to know: why, and which batches will follow.
Invariant: called only while the intent is in both checkpoints, so that whatever a crash leaves is done again from the beginning.
"""

from braidlog.storage.files import Disk, join
from braidlog.storage.head import (
    CLEANED,
    DATA_START,
    INDEX,
    LOG,
    STATE,
    SWAP,
    Mark,
    SegmentHead,
    bases_of,
)
from braidlog.storage.pool import FilePool
from braidlog.storage.segment import Segment
from braidlog.storage.state import StateImage

_SUFFIXES = (STATE, INDEX + CLEANED, INDEX, CLEANED, SWAP, LOG)


def begin_anew(
    disk: Disk, folder: str, head: SegmentHead, pool: FilePool, interval_bytes: int, *, read_only: bool
) -> Segment:
    """The only segment of a log that begins at the head's base offset, and is empty. All others are gone, or would be."""
    if read_only:
        segment = Segment(disk, folder, head, Mark(DATA_START, head.base_offset), DATA_START, pool)
        segment.use_index(interval_bytes, read_only=True)
        segment.load_index_below(None)  # none: a file of that name is of the log that is given up
        return segment
    names = disk.names(folder)
    for suffix in _SUFFIXES:
        for base in reversed(bases_of(names, suffix)):
            path = join(folder, f"{base:020d}{suffix}")
            pool.drop(path)
            disk.remove(path)
    segment = Segment.create(disk, folder, head, pool, interval_bytes)
    segment.use_index(interval_bytes, read_only=False)
    return segment


def begun_anew(base_offset: int, begun: int) -> StateImage:
    """The state of such a log. What the leader has deleted was committed, so that is the watermark; epochs, producers and
    transactions come with its batches."""
    return StateImage(
        start_offset=base_offset, end_offset=base_offset, cleaned_offset=base_offset, watermark=base_offset, begun=begun
    )
