"""The segments of one partition, in order; the last one is active.

Knows: which segment holds an offset, how a segment is added, replaced and removed. Refuses to know: locks, batches, when.
Invariant: bases ascend, there is always an active segment, and a refused roll leaves no names behind.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from braidlog.codec.batch import BatchHeader
from braidlog.storage.checkpoints import write_snapshot
from braidlog.storage.files import Disk, join
from braidlog.storage.head import DATA_START, SegmentHead, log_name, state_name
from braidlog.storage.pool import FilePool, Holder
from braidlog.storage.segment import Segment
from braidlog.storage.state import Shape, StateImage
from braidlog.storage.walk import Found, walk_past


def headers_from(segments: Iterable[Segment], offset: int) -> Iterator[BatchHeader]:
    """Of every batch that is whole, in the segments that begin at `offset` or later."""
    for segment in segments:
        if segment.base_offset >= offset:
            for found in walk_past(segment.file, DATA_START, segment.size, segment.base_offset):
                if isinstance(found, Found):
                    yield found.header


def dirty_ratio(sealed: Sequence[Segment], cleaned_offset: int) -> float:
    """The share of sealed bytes appended since the last compaction: what tells whether one is worth its writes."""
    total = sum(segment.data_bytes for segment in sealed)
    dirty = sum(segment.data_bytes for segment in sealed if segment.next_offset > cleaned_offset)
    return dirty / total if total else 0.0


class SegmentChain:
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
        """Full segments that were not synced since they were full."""
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
        """Begin a new active segment at the end of `image`. If the disk refuses, `undo_roll` must follow."""
        base = image.end_offset
        self.active.drop_reserve()  # first: whoever sees the new segment sees that the last one is full
        # The snapshot lets a later truncation or a lost checkpoint rebuild the state from here instead of from the start.
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
        """Take away what a refused roll left: the active segment may yet grow past it, and the next roll needs the names."""
        for name in (log_name(base_offset), state_name(base_offset)):
            path = join(self._folder, name)
            if self._disk.exists(path):
                self._disk.remove(path)
                self._names_changed = True

    def sync_names(self) -> None:
        """Make the names of new segments durable."""
        if self._names_changed:
            self._names_changed = False  # first: a roll during the sync is for the next one
            self._disk.sync_folder(self._folder)

    def remove_below(self, start_offset: int) -> None:
        """Remove the segments that lie below the log's start; if the disk refuses, the next opening finishes it."""
        while len(self._segments) > 1 and self._bases[1] <= start_offset:
            self._bases.pop(0)
            self._segments.pop(0).remove()
        self._disk.sync_folder(self._folder)

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Put a rewritten segment where `old` stood."""
        first = self._segments.index(old[0])
        assert self._segments[first : first + len(old)] == list(old), "segments changed under a rewrite"
        self._segments[first : first + len(old)] = [new]
        self._bases = [segment.base_offset for segment in self._segments]
        self.active = self._segments[-1]

    def close_active(self) -> None:
        """Close the file for writing; the next write opens it again."""
        self.active.retire()
        self._pool.dismiss(self._holder)

    def let_go(self) -> None:
        """Close the files."""
        for segment in self._segments:
            segment.retire()
            self._pool.drop(segment.path)
        self._pool.dismiss(self._holder)
