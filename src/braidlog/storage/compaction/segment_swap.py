"""Rewrite segments and replace the originals, for compaction and repair.

Invariants: a crash leaves the old files or the new one. The new file has exactly the offsets of the old ones,
without a gap: an empty batch covers removed offsets.

A rewrite is written as `<base>.cleaned`, its index as `<base>.idx.cleaned`. Once complete and durable it becomes
`<base>.swap`. Then the old files are removed, the last one first, and it becomes `<base>.log`. Recovery removes a
`.cleaned` file and completes a `.swap` file.
"""

from collections.abc import Sequence

from braidlog.codec.batch.header import BatchHeader, empty_batch, read_header
from braidlog.storage.files import Disk, File, join
from braidlog.storage.open_files import FilePool
from braidlog.storage.segment.batch_scan import BadBatch, walk
from braidlog.storage.segment.segment import Segment
from braidlog.storage.segment.segment_files import (
    CLEANED,
    DATA_START,
    LOG,
    NO_TIMESTAMP,
    Identity,
    Mark,
    SegmentHead,
    bases_of,
    index_name,
    log_name,
    read_head,
    state_name,
    swap_name,
)
from braidlog.storage.state.partition_state import EpochHistory

_SPAN_MAX = 2**31 - 1
_WRITE_BYTES = 1024 * 1024


class SegmentRewriter:
    """Collects the batches of one new segment."""

    def __init__(self, disk: Disk, folder: str, head: SegmentHead, pool: FilePool, interval_bytes: int) -> None:
        self._disk = disk
        self._folder = folder
        self._stem = f"{head.base_offset:020d}"
        for leftover in (join(folder, self._stem + CLEANED), cleaned_index_path(folder, head.base_offset)):
            if disk.exists(leftover):
                disk.remove(leftover)  # left by a rewrite that failed without a crash, on a full disk
        self._segment = Segment.create(disk, folder, head, pool, interval_bytes, name=self._stem + CLEANED)
        self._parts: list[bytes] = []
        self._headers: list[BatchHeader] = []
        self._gap_start = head.base_offset
        self._gap_epoch = 0
        self._gap_timestamp = NO_TIMESTAMP
        self._offset = head.base_offset

    @property
    def size(self) -> int:
        return self._segment.size + sum(map(len, self._parts))

    @property
    def next_offset(self) -> int:
        return self._offset

    def keep(self, batch: bytes) -> None:
        """Add the batch that follows the last kept or skipped offset."""
        header = read_header(batch)
        assert header.base_offset == self._offset, "a rewrite must not lose or repeat an offset"
        self._close_gap()
        self._write(batch, header)
        self._offset = self._gap_start = header.next_offset

    def skip(self, next_offset: int, leader_epoch: int, timestamp_ms: int) -> None:
        """Leave out the offsets up to `next_offset`. Consecutive gaps of one epoch become one empty batch."""
        if self._gap_start < self._offset and (
            self._gap_epoch != leader_epoch or next_offset - self._gap_start > _SPAN_MAX
        ):
            self._close_gap()
        self._gap_epoch = leader_epoch
        self._gap_timestamp = max(self._gap_timestamp, timestamp_ms)
        self._offset = next_offset

    def _close_gap(self) -> None:
        if self._gap_start < self._offset:
            filler = empty_batch(self._gap_start, self._offset, self._gap_epoch, self._gap_timestamp)
            self._write(filler, read_header(filler))
            self._gap_start = self._offset
            self._gap_timestamp = NO_TIMESTAMP

    def _write(self, batch: bytes, header: BatchHeader) -> None:
        self._parts.append(batch)
        self._headers.append(header)
        if sum(map(len, self._parts)) >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._parts:
            self._segment.append(self._parts, self._headers)
            self._parts, self._headers = [], []

    def write(self) -> Segment:
        """Complete the file and its index, and make both durable."""
        self._close_gap()
        self._flush()
        self._segment.sync(self._segment.reach())
        self._segment.sync_file()
        self._segment.save_index(sealed=True, path=cleaned_index_path(self._folder, self._segment.base_offset))
        return self._segment

    def abandon(self) -> None:
        self._segment.retire()
        self._disk.remove(join(self._folder, self._stem + CLEANED))


def cleaned_index_path(folder: str, base: int) -> str:
    return join(folder, index_name(base) + CLEANED)


def publish(disk: Disk, folder: str, base: int) -> None:
    """Rename a complete rewrite to `.swap`: from then on recovery completes it."""
    disk.rename(join(folder, f"{base:020d}{CLEANED}"), join(folder, swap_name(base)))
    disk.sync_folder(folder)


def check_swap(file: File, identity: Identity, base: int, epochs: EpochHistory | None) -> int:
    """Return the offset after the last one of a complete rewrite; raise `BadHead` or `BadBatch` if it is invalid."""
    _, mark = read_head(file.read_at(DATA_START, 0), identity, base)
    end, offset = DATA_START, base
    for found in walk(file, DATA_START, file.size(), base, epochs=epochs):
        end, offset = found.position + found.header.size_bytes, found.header.next_offset
    if mark != Mark(end, offset):
        raise BadBatch(end, offset, f"its durable mark is {mark}")
    return offset


def finish_swap(disk: Disk, folder: str, base: int, next_offset: int) -> None:
    """Replace every segment within [base, next_offset) by the complete file `<base>.swap`, durably."""
    _rename_swap(disk, folder, base, next_offset)
    disk.sync_folder(folder)


def _rename_swap(disk: Disk, folder: str, base: int, next_offset: int) -> None:
    names = disk.names(folder)
    for inner in reversed(bases_of(names, LOG)):
        if base < inner < next_offset:
            for part in (state_name(inner), index_name(inner), log_name(inner)):
                if part in names:
                    disk.remove(join(folder, part))
    disk.rename(join(folder, swap_name(base)), join(folder, log_name(base)))


def swap_in(disk: Disk, folder: str, pool: FilePool, old: Sequence[Segment], new: Segment) -> None:
    """Replace the files; the caller syncs the folder. The old index goes first: it does not match the new file."""
    for segment in old:
        pool.drop(segment.path)
    stale = join(folder, index_name(new.base_offset))
    if disk.exists(stale):
        disk.remove(stale)
    _rename_swap(disk, folder, new.base_offset, new.next_offset)
    disk.rename(cleaned_index_path(folder, new.base_offset), stale)
    new.retire()
