"""Read and write one segment, and keep the list of a partition's segments, of which the last is active.

A segment is a file of batches with consecutive offsets, and a sparse index. Invariants:

- Bytes below the mark were on the disk when the mark was written.
- Every returned slice was verified since the segment was opened, or since `forget_checks`.
- Base offsets ascend, there is always an active segment, and a failed roll leaves no files.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from braidlog.codec.batch.header import BatchHeader
from braidlog.model.errors import StorageFault
from braidlog.storage.files import Buffer, Disk, File, join
from braidlog.storage.open_files import FilePool, Holder
from braidlog.storage.recovery.damage import Damage
from braidlog.storage.segment.batch_scan import (
    HEADER_WINDOW_BYTES,
    BadBatch,
    ScannedBatch,
    resume,
    steps,
    walk,
    walk_past,
)
from braidlog.storage.segment.preallocation import write_reserve, written_end
from braidlog.storage.segment.segment_files import (
    DATA_START,
    ENTRY_BYTES,
    HEAD_BYTES,
    MARK_AT,
    NO_TIMESTAMP,
    Entry,
    Mark,
    SegmentHead,
    SparseIndex,
    index_name,
    log_name,
    mark_seed,
    pack_head,
    pack_mark,
    state_name,
)
from braidlog.storage.state.partition_state import EpochHistory, Shape, StateImage, write_snapshot


def remove_segment(disk: Disk, folder: str, pool: FilePool, base_offset: int) -> None:
    for name in (state_name(base_offset), index_name(base_offset), log_name(base_offset)):
        path = join(folder, name)
        pool.drop(path)
        if disk.exists(path):
            disk.remove(path)


BATCH_COST: Final = 4096
"""The fixed cost of a batch, in bytes."""
COST_MAX: Final = 32 * 1024 * 1024
"""About thirty milliseconds: 8,000 small batches, or 32 MiB of large ones."""


class CheckBudget:
    """The remaining budget of one request for verification. Later requests reuse what it has verified."""

    __slots__ = ("left",)

    def __init__(self, cost_max: int = COST_MAX) -> None:
        self.left = cost_max

    def spend(self, size: int, batches: int) -> None:
        self.left -= size + batches * BATCH_COST

    @property
    def is_spent(self) -> bool:
        return self.left <= 0


_HINTS_MAX = 64
_STEP_BYTES = 1024
"""Read size to find the end of a small batch."""
_COPY_BYTES = 1024 * 1024


class Extent(NamedTuple):
    """A run of complete batches: bytes [position, end) hold the offsets [offset, next_offset)."""

    position: int
    end: int
    offset: int
    next_offset: int


class Segment:
    """A segment in use. Only the last segment of a log is active, that is, written to.

    The file for writing opens on demand and closes when other partitions need open files (storage/open_files.py).
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        head: SegmentHead,
        mark: Mark,
        size: int,
        pool: FilePool,
        *,
        name: str | None = None,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._pool = pool
        self._index: SparseIndex | None = None
        self._interval_bytes = 0
        self._read_only = False
        self._hints: dict[int, tuple[int, int]] = {}
        self._writer: File | None = None
        self.holder: Holder | None = None
        """The partition, which closes the file for writing on request; without one the file stays open until
        `retire`.
        """
        self.is_settled = True
        """Whether all writes, including the mark, were synced. Only then may the file close: after it a disk error
        would be lost.
        """
        self.reserve_bytes = 0
        """How many zeros an append writes behind itself once the last ones are used up."""
        self._reserve_end = 0
        """The end of the file, if it has preallocated zeros."""
        self.path = join(folder, name or log_name(head.base_offset))
        self.head = head
        self.mark = mark
        self.size = size
        self.next_offset = head.base_offset
        self.max_timestamp_ms = NO_TIMESTAMP

    # -- opening and closing ---------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        disk: Disk,
        folder: str,
        head: SegmentHead,
        pool: FilePool,
        interval_bytes: int,
        *,
        name: str | None = None,
    ) -> "Segment":
        """Create the file with its header. Neither is durable until the segment and its folder are synced."""
        mark = Mark(DATA_START, head.base_offset)
        writer = disk.create(join(folder, name or log_name(head.base_offset)))
        seed = mark_seed(head.base_offset, head.generation)
        writer.write_at((pack_head(head) + pack_mark(mark, seed)).ljust(DATA_START, b"\0"), 0)
        segment = cls(disk, folder, head, mark, DATA_START, pool)
        segment._writer = writer
        segment.is_settled = False
        segment._index = SparseIndex(head.base_offset, head.generation, interval_bytes)
        return segment

    @property
    def base_offset(self) -> int:
        return self.head.base_offset

    @property
    def index_path(self) -> str:
        return join(self._folder, index_name(self.base_offset))

    @property
    def data_bytes(self) -> int:
        return self.size - DATA_START

    @property
    def file(self) -> File:
        """The file to read from; it stays open while the caller holds a reference."""
        return self._writer or self._pool.get(self.path)

    def activate(self) -> File:
        """Return the file to write to; opens it if necessary."""
        writer = self._writer
        if writer is None:
            if self.holder is not None:
                self._pool.enlist(self.holder)
            self._pool.drop(self.path)
            writer = self._writer = self._disk.open(self.path, writable=True)
        return writer

    def retire(self) -> None:
        """Close the file for writing; reads use the pool from now on."""
        self._writer = None

    # -- writing ---------------------------------------------------------------------------------------------

    def append(self, parts: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """Write batches at the end. After an error the caller must call `clear_tail` before the next write."""
        position = self.size
        end = self._write(parts, position)
        for header in headers:
            self.account_for(position, header, verified=True)
            position += header.size_bytes
        assert position == end, "headers and bytes of an append disagree"
        self.size = end

    def append_one(self, parts: Sequence[Buffer], base_offset: int, next_offset: int, timestamp_ms: int) -> None:
        """Write one batch at the end."""
        position = self.size
        end = self._write(parts, position)
        index = self.index if self._index is None else self._index
        index.note(base_offset, position, self.max_timestamp_ms, verified=True)
        if timestamp_ms > self.max_timestamp_ms:  # noqa: PLR1730 - as in `account_for`
            self.max_timestamp_ms = timestamp_ms
        self.next_offset, self.size = next_offset, end

    def _write(self, parts: Sequence[Buffer], position: int) -> int:
        writer = self._writer
        assert writer is not None, "append to a retired segment"
        self.is_settled = False
        end = position + writer.append(parts, position)
        if self.reserve_bytes and end > self._reserve_end:
            self._reserve_end = write_reserve(writer, end, self.reserve_bytes)
        return end

    def clear_tail(self) -> None:
        """Drop the remains of a failed append behind the end, durably.

        Behind the next, shorter append they would be in the way of recovery, since remains can be complete batches.
        """
        self.activate().truncate(self.size)
        self._reserve_end = 0
        self.is_settled = False
        self.sync_file()

    def drop_reserve(self) -> None:
        """Truncate the file to the segment's end; durable with the next sync."""
        if self._reserve_end > self.size:
            self.activate().truncate(self.size)
            self._reserve_end = 0
            self.is_settled = False

    def leave_reserve(self, position: int) -> int:
        """End the segment before the file's trailing zeros, but not below the mark; return the new end.

        No valid batch begins at `position` or later.

        Returns the new end.
        """
        self._reserve_end = self.size
        self.size = written_end(self.file, max(position, self.mark.position), self.size)
        return self.size

    def write_again(self) -> None:
        """Rewrite the header and everything above the mark, so that the next sync makes them durable.

        After a failed sync the page cache may have bytes that the disk lacks and that no later sync would write.
        """
        writer = self.activate()
        self.is_settled = False
        writer.write_at(writer.read_at(DATA_START, 0), 0)
        for position in range(self.mark.position, self.size, _COPY_BYTES):
            size = min(_COPY_BYTES, self.size - position)
            writer.write_at(writer.read_at(size, position), position)

    def account_for(self, position: int, header: BatchHeader, *, verified: bool) -> None:
        """Add a batch that is in the file to the index and the offsets."""
        index = self.index if self._index is None else self._index  # saves a property call per batch
        index.note(header.base_offset, position, self.max_timestamp_ms, verified=verified)
        if header.max_timestamp > self.max_timestamp_ms:  # noqa: PLR1730 - saves a call per batch
            self.max_timestamp_ms = header.max_timestamp
        self.next_offset = header.next_offset

    def reach(self) -> Mark:
        """Return the end of the segment: a sync that starts now makes everything below it durable."""
        return Mark(self.size, self.next_offset)

    def sync(self, reached: Mark) -> None:
        """Make the file durable and write the mark. The mark itself becomes durable with the next sync."""
        self.sync_file()
        self.set_mark(reached)

    def set_mark(self, mark: Mark) -> None:
        writer = self.activate()
        self.is_settled = False
        seed = mark_seed(self.base_offset, self.head.generation)
        try:
            writer.write_at(pack_mark(mark, seed), MARK_AT)
        except StorageFault:
            with contextlib.suppress(StorageFault):  # half a mark would count as damage; the old mark is valid too
                writer.write_at(pack_mark(self.mark, seed), MARK_AT)
            raise
        self.mark = mark

    def sync_file(self) -> None:
        """Sync the file even if it looks unchanged: its visible length may not be durable after a killed process."""
        writer = self.activate()
        self.is_settled = True  # first: an append during the sync belongs to the next one
        try:
            writer.sync()
        except StorageFault:
            self.is_settled = False
            raise

    def sync_to_end(self) -> None:
        """Make a full segment and its mark durable."""
        self.sync(self.reach())
        self.sync_file()

    def seal_index(self) -> None:
        """Make the index of a full segment durable, and close its file for writing."""
        self.save_index(sealed=True)
        self.retire()

    def forget(self, position: int, size: int) -> None:
        self.activate().forget(position, size)

    def save_index(self, *, sealed: bool, count: int | None = None, path: str | None = None) -> None:
        index = self.index
        if sealed:
            index.seal(Entry(self.next_offset, self.size, self.max_timestamp_ms))
        index.save(self._disk, path or self.index_path, count)

    def truncate(self, position: int, next_offset: int) -> None:
        """Drop everything from `position` on, durably.

        The mark is lowered first, or the truncation would look like damage.
        """
        writer = self.activate()
        if self.mark.position >= position:  # equal: the visible mark may be a lowered one whose sync failed
            self.set_mark(Mark(position, next_offset))
            self.sync_file()
        writer.truncate(position)
        self._reserve_end = 0
        self.sync_file()
        self.size = position
        self.next_offset = next_offset
        self._hints.clear()
        self.index.truncate(position)
        self.max_timestamp_ms = NO_TIMESTAMP
        if len(self.index):
            last = self.index.entry(len(self.index) - 1)
            self.max_timestamp_ms = last.timestamp_ms
            for found in self.walk_from(len(self.index) - 1, check=False):
                self.max_timestamp_ms = max(self.max_timestamp_ms, found.header.max_timestamp)

    # -- index -----------------------------------------------------------------------------------------------

    def use_index(self, interval_bytes: int, *, read_only: bool) -> None:
        """Set the density of a rebuilt index, and whether the index file may be written."""
        self._interval_bytes = interval_bytes
        self._read_only = read_only

    @property
    def index(self) -> SparseIndex:
        """The index, loaded on first use; rebuilt from the batches if its file is invalid."""
        if self._index is None:
            self._index = self._load_index()
            if self._index.end is None:
                self.rebuild_index()
        return self._index

    def _load_index(self) -> SparseIndex:
        index = SparseIndex(self.base_offset, self.head.generation, self._interval_bytes)
        if self._disk.exists(self.index_path):
            file = self._disk.open(self.index_path, writable=False)
            try:
                index.load(file)
            finally:
                file.close()
        return index

    def load_index_below(self, offset_max: int | None) -> Entry:
        """Load the index file's entries at or below `offset_max` (None: none); return the entry from which to scan.

        The caller must add the batches from that entry on again, with `account_for`.
        """
        made_anew = SparseIndex(self.base_offset, self.head.generation, self._interval_bytes)
        self._index = made_anew if offset_max is None else self._load_index()
        self._index.truncate(self.size)
        self.max_timestamp_ms = NO_TIMESTAMP
        self.next_offset = self.base_offset
        if offset_max is None or not len(self._index):
            return Entry(self.base_offset, DATA_START, NO_TIMESTAMP)
        entry = self._index.entry(self._index.floor_offset(offset_max))
        self._index.truncate(entry.position)
        self.max_timestamp_ms = entry.timestamp_ms
        self.next_offset = entry.offset
        return entry

    def read_seal(self) -> Entry | None:
        """Return the last entry of a sealed segment's index: the segment's end in offsets and bytes. None in doubt."""
        if not self._disk.exists(self.index_path):
            return None
        file = self._disk.open(self.index_path, writable=False)
        try:
            size = file.size()
            if size < HEAD_BYTES + ENTRY_BYTES or (size - HEAD_BYTES) % ENTRY_BYTES:
                return None
            probe = SparseIndex(self.base_offset, self.head.generation, self._interval_bytes)
            return probe.read_end(file.read_at(HEAD_BYTES, 0), file.read_at(ENTRY_BYTES, size - ENTRY_BYTES))
        finally:
            file.close()

    def rebuild_index(self) -> None:
        """Scan the whole segment and rewrite the index."""
        self._index = SparseIndex(self.base_offset, self.head.generation, self._interval_bytes)
        self.max_timestamp_ms = NO_TIMESTAMP
        self.next_offset = self.base_offset
        for found in walk(self.file, DATA_START, self.size, self.base_offset, check=False):
            self.account_for(found.position, found.header, verified=False)
        if self._read_only:
            self._index.seal(Entry(self.next_offset, self.size, self.max_timestamp_ms))
        else:
            self.save_index(sealed=True)

    @property
    def index_is_sealed(self) -> bool:
        """Whether the index file covers the whole segment; assumed until it is loaded."""
        return self._index is None or self._index.end is not None

    # -- reading ---------------------------------------------------------------------------------------------

    def walk_from(
        self, number: int, *, end: int | None = None, check: bool, epochs: EpochHistory | None = None
    ) -> Iterator[ScannedBatch]:
        """Scan from index entry `number` to `end` (default: the end of the segment)."""
        if not len(self.index):
            return iter(())
        entry = self.index.entry(number)
        stop = self.size if end is None else end
        return walk(self.file, entry.position, stop, entry.offset, epochs=epochs, check=check)

    def verify(self, position: int, end: int, epochs: EpochHistory, budget: CheckBudget) -> Entry | None:
        """Verify every unverified index interval that [position, end) touches.

        Damage behind `end` is ignored. If the budget is spent, return the first entry that is not verified.
        """
        index = self.index
        number = index.floor_position(position)
        while (number := index.first_unverified(number, end)) >= 0:
            entry = index.entry(number)
            if budget.is_spent:
                return entry
            stop, batches = index.interval_end(number, self.size), 0
            try:
                for _ in self.walk_from(number, end=stop, check=True, epochs=epochs):
                    batches += 1
            except BadBatch as bad:
                if bad.position >= end:
                    return None
                raise
            index.verified[number] = True
            budget.spend(stop - entry.position, batches)
        return None

    def forget_checks(self, offset: int | None = None) -> None:
        """Mark batches as unverified: all, or the interval that holds `offset`."""
        if offset is not None:
            self.index.verified[self.index.floor_offset(offset)] = False
        elif self._index is not None:
            self._index.forget_checks()

    def locate(self, offset: int, epochs: EpochHistory, *, check: bool = False) -> tuple[int, int]:
        """Return position and base offset of the batch that holds `offset`.

        With `check`, the batches before it are verified too.
        """
        if offset == self.next_offset:
            return self.size, offset
        hint = None if check else self._hints.get(offset)
        if hint is not None:
            return hint
        index = self.index
        entry = index.entry(index.floor_offset(offset))
        if not check:
            for place in steps(self.file, entry.position, self.size, entry.offset):
                if offset < place.next_offset:
                    return place.position, place.offset
        # Either `check` is set, or an unverified header led past the offset: the verification finds which one.
        for found in walk(self.file, entry.position, self.size, entry.offset, epochs=epochs):
            if offset < found.header.next_offset:
                return found.position, found.header.base_offset
        raise AssertionError(f"offset {offset} is not in the segment [{self.base_offset}, {self.next_offset})")

    def extent(
        self, offset: int, bytes_max: int, upto: int, epochs: EpochHistory, budget: CheckBudget | None = None
    ) -> Extent:
        """Return complete batches from the one that holds `offset`, below `upto`.

        At least one batch, and otherwise about `bytes_max` bytes.

        Fewer, down to none, if the verification budget is spent first.
        """
        position, base = self.locate(offset, epochs)
        if upto >= self.next_offset:
            limit, limit_offset = self.size, self.next_offset
        else:
            limit, limit_offset = self.locate(upto, epochs)
        end, next_offset = limit, limit_offset
        if position + bytes_max < limit:
            entry = self.index.entry(self.index.floor_position(position + bytes_max))
            if entry.position > position:
                end, next_offset = entry.position, entry.offset
            else:
                end, next_offset = self._step(position, base, bytes_max, limit)
        try:
            unchecked = self.verify(position, end, epochs, budget or CheckBudget())
        except BadBatch as bad:
            if bad.position <= position:
                raise
            end, next_offset = bad.position, bad.offset  # the batches before the damage are valid
        else:
            if unchecked is not None:
                end, next_offset = max((position, base), (unchecked.position, unchecked.offset))
        if end > position:  # only verified positions: others may not be the start of a batch
            if offset not in self._hints:
                self._remember(offset, position, base)
            self._remember(next_offset, end, next_offset)
        return Extent(position, end, base, next_offset)

    def _step(self, position: int, base: int, bytes_max: int, limit: int) -> tuple[int, int]:
        end, next_offset = position, base
        window_bytes = min(max(bytes_max, _STEP_BYTES), HEADER_WINDOW_BYTES)
        for place in steps(self.file, position, limit, base, window_bytes=window_bytes):
            if end > position and place.end - position > bytes_max:
                break
            end, next_offset = place.end, place.next_offset
            if end - position >= bytes_max:
                break
        return end, next_offset

    def _remember(self, offset: int, position: int, base: int) -> None:
        """Remember the position of the batch with base offset `base` that holds `offset`.

        A reader's next offset is usually the end of its last slice, or the same offset again.
        """
        if len(self._hints) >= _HINTS_MAX:
            del self._hints[next(iter(self._hints))]
        self._hints[offset] = position, base

    def step_over(
        self, bad: BadBatch, end_offset: int, following: int | None = None
    ) -> tuple[Damage, tuple[int, int] | None]:
        """Return the damage from `bad` to the next valid batch, and that batch as (position, offset), or None.

        `end_offset` is where the segment must end, `following` where the next segment begins. The batches behind the
        damage become reachable through the index.
        """
        found = resume(self.file, self.size, bad, following)
        end, next_offset = found or (self.size, end_offset)
        # Separate entries, unverified: the verification of earlier intervals must not cover them.
        self.index.split(bad.offset, bad.position, self.max_timestamp_ms)
        if found is not None:
            self.index.split(next_offset, end, self.max_timestamp_ms)
        return Damage(self.path, bad.position, end, bad.offset, next_offset, bad.why), found

    # -- removal ---------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Remove the files. Slices in use keep theirs open."""
        self.retire()
        remove_segment(self._disk, self._folder, self._pool, self.base_offset)


def headers_from(segments: Iterable[Segment], offset: int) -> Iterator[BatchHeader]:
    """Yield the headers of all valid batches in the segments that begin at `offset` or later."""
    for segment in segments:
        if segment.base_offset >= offset:
            for found in walk_past(segment.file, DATA_START, segment.size, segment.base_offset):
                if isinstance(found, ScannedBatch):
                    yield found.header


def dirty_ratio(sealed: Sequence[Segment], cleaned_offset: int) -> float:
    """Return the share of sealed bytes appended since the last compaction: it decides whether to compact."""
    total = sum(segment.data_bytes for segment in sealed)
    dirty = sum(segment.data_bytes for segment in sealed if segment.next_offset > cleaned_offset)
    return dirty / total if total else 0.0


class SegmentList:
    def __init__(self, disk: Disk, folder: str, pool: FilePool, segments: list[Segment], holder: Holder) -> None:
        self._disk = disk
        self._folder = folder
        self._pool = pool
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._holder = holder
        self.active = segments[-1]
        self.active.holder = holder
        self.pending: list[Segment] = []
        """Full segments that were not synced since they became full."""
        self._names_changed = False

    @property
    def segments(self) -> Sequence[Segment]:
        return self._segments

    @property
    def first_base(self) -> int:
        return self._bases[0]

    def shape(self, cleaned_offset: int) -> Shape:
        first = self._segments[0]
        return Shape(
            segments=len(self._segments),
            size_bytes=sum(segment.data_bytes for segment in self._segments),
            newest_ms=max(segment.max_timestamp_ms for segment in self._segments),
            dirty_ratio=dirty_ratio(self._segments[:-1], cleaned_offset),
            dirty_since_ms=next(
                (s.head.created_ms for s in self._segments if s.data_bytes and s.next_offset > cleaned_offset), -1
            ),
            first_base=first.base_offset,
            first_bytes=first.data_bytes,
            first_newest_ms=first.max_timestamp_ms,
            first_full_ms=self._segments[1].head.created_ms if len(self._segments) > 1 else -1,
        )

    def holding(self, offset: int) -> Segment:
        return self._segments[max(bisect_right(self._bases, offset) - 1, 0)]

    def roll(self, image: StateImage, interval_bytes: int, now_ms: int) -> None:
        """Create a new active segment at the end of `image`. After an error the caller must call `undo_roll`."""
        base = image.end_offset
        # First: a crash that leaves the new segment then finds the previous one without zeros
        self.active.drop_reserve()
        # With the snapshot a truncation or a lost checkpoint rebuilds the state from here instead of from the start.
        write_snapshot(self._disk, self._folder, image)
        head = SegmentHead(self.active.head.identity, base, now_ms, 0)
        self._pool.enlist(self._holder)
        segment = Segment.create(self._disk, self._folder, head, self._pool, interval_bytes)
        segment.holder = self._holder
        self.pending.append(self.active)
        self._segments.append(segment)
        self._bases.append(base)
        self.active = segment
        self._names_changed = True

    def undo_roll(self, base_offset: int) -> None:
        """Remove the files of a failed roll.

        The active segment may grow past their base, and the next roll needs the names.
        """
        for name in (log_name(base_offset), state_name(base_offset)):
            path = join(self._folder, name)
            if self._disk.exists(path):
                self._disk.remove(path)
                self._names_changed = True

    def sync_names(self) -> None:
        """Make the names of new segments durable."""
        if self._names_changed:
            self._names_changed = False  # first: a roll during the sync belongs to the next one
            self._disk.sync_folder(self._folder)

    def remove_below(self, start_offset: int) -> None:
        """Remove the segments below the log's start; after a disk error the next opening completes it."""
        while len(self._segments) > 1 and self._bases[1] <= start_offset:
            self._bases.pop(0)
            self._segments.pop(0).remove()
        self._disk.sync_folder(self._folder)

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace `old` in the list by a rewritten segment."""
        first = self._segments.index(old[0])
        assert self._segments[first : first + len(old)] == list(old), "segments changed under a rewrite"
        self._segments[first : first + len(old)] = [new]
        self._bases = [segment.base_offset for segment in self._segments]
        self.active = self._segments[-1]

    def close_active(self) -> None:
        """Close the file for writing; the next write opens it again."""
        self.active.retire()
        self._pool.dismiss(self._holder)

    def close_files(self) -> None:
        """Close the files of all segments."""
        for segment in self._segments:
            segment.retire()
            self._pool.drop(segment.path)
        self._pool.dismiss(self._holder)
