"""Read the summary of a cleanly closed partition without opening its log.

Invariants: the summary is valid only if the folder is exactly as a clean stop left it. Both checkpoints are valid,
the newest is of a clean stop, the segments have the recorded number and size, and the last mark is at the end.
Otherwise the result is None, and the partition must be opened (`recovery.py`). Nothing is written.
"""

from typing import NamedTuple

from braidlog.storage.files import Disk, join
from braidlog.storage.segment.segment_files import (
    CLEANED,
    DATA_START,
    LOG,
    SWAP,
    BadHead,
    Identity,
    Mark,
    bases_of,
    log_name,
    read_head,
)
from braidlog.storage.state.leader_epoch_file import EpochStart, with_epoch_start
from braidlog.storage.state.partition_state import STATE_MAGIC, EpochHistory, Shape, StateImage, decode_image
from braidlog.storage.two_copy_file import TwoCopyFile

_SLOTS = 2


class ClosedPartition(NamedTuple):
    """A closed partition: all of it is durable, and no transaction is open in it."""

    start_offset: int
    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    shape: Shape

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """See `PartitionLog.end_offset_for_epoch`."""
        return EpochHistory(list(self.epochs)).end_offset_for(epoch, self.end_offset, self.start_offset)


def closed_partition_of(image: StateImage) -> ClosedPartition | None:
    """Convert the checkpoint of a clean stop; None if there is work left for an opening."""
    if image.shape is None or image.open_transactions or image.is_intent:
        return None
    epochs = EpochHistory(image.epochs)
    epochs.cut_start(min(image.shape.first_base, image.start_offset))  # as recovery does
    return ClosedPartition(image.start_offset, image.end_offset, tuple(epochs.entries()), image.shape)


def read_closed(disk: Disk, folder: str, identity: Identity, begun: EpochStart | None = None) -> ClosedPartition | None:
    """Return the summary of a partition's folder with the epochs begun since; None if it was not closed cleanly."""
    slots = TwoCopyFile(disk, folder, "state", STATE_MAGIC)
    found = slots.load()
    rest = (
        closed_partition_of(with_epoch_start(decode_image(found[0].payload), begun)) if len(found) == _SLOTS else None
    )
    return rest if rest is not None and _is_as_left(disk, folder, identity, rest) else None


def _is_as_left(disk: Disk, folder: str, identity: Identity, rest: ClosedPartition) -> bool:
    names, shape = disk.names(folder), rest.shape
    bases = bases_of(names, LOG)
    if len(bases) != shape.segments or bases[0] != shape.first_base or any(n.endswith((CLEANED, SWAP)) for n in names):
        return False
    left = shape.size_bytes
    for base in reversed(bases):
        file = disk.open(join(folder, log_name(base)), writable=False)
        try:
            size = file.size()
            data = file.read_at(DATA_START, 0) if base == bases[-1] else b""
        finally:
            file.close()
        left -= size - DATA_START
        if data and not _ends_at(data, identity, base, Mark(size, rest.end_offset)):
            return False
    return left == 0


def _ends_at(data: bytes, identity: Identity, base: int, end: Mark) -> bool:
    try:
        _, mark = read_head(data, identity, base)
    except BadHead:
        return False
    return mark == end
