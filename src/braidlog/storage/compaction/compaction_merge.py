"""Rewrite sealed segments with the last record of each key: the computation of a compaction.

It works on the files of a plan and has no access to the log in use. Invariants: records without a key, markers, and
records newer than the key map are kept. A batch with an invalid checksum is never copied. Only `.cleaned` files are
written.

Two passes over the files. The first collects the last offset of each key appended since the last compaction. The
second writes new segments, each from as many old ones as fit. `keys_max` bounds the memory: when the map is full,
only the scanned part is rewritten, and the next compaction continues from there.
"""

from collections.abc import Iterator

import msgspec

from braidlog.codec.batch.kernel import scan_keys
from braidlog.codec.batch.records import read_section, select_batch
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.storage.compaction.segment_swap import SegmentRewriter
from braidlog.storage.files import Disk
from braidlog.storage.open_files import FilePool
from braidlog.storage.segment.batch_scan import BadBatch, ScannedBatch, walk
from braidlog.storage.segment.segment_files import DATA_START, Identity, SegmentHead
from braidlog.storage.state.partition_state import EpochHistory
from braidlog.storage.state.transaction_index import Aborted


class Source(msgspec.Struct, frozen=True):
    """A segment to rewrite."""

    path: str
    base_offset: int
    next_offset: int
    end: int
    generation: int
    created_ms: int

    @property
    def size_bytes(self) -> int:
        return self.end - DATA_START


class Plan(msgspec.Struct, frozen=True):
    """What the rewriting of a partition's segments needs; can be sent to another process."""

    folder: str
    topic_id: bytes
    partition: int
    sources: list[Source]
    epochs: list[tuple[int, int]]
    pinned: list[int]
    """Batches that stay, if necessary empty: they identify a producer's retries."""
    aborted: list[Aborted]
    cleaned_before: int
    now_ms: int
    keys_max: int
    segment_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    tombstone_limit: int
    """Tombstones above this offset stay: a replica without them would keep the deleted records."""


class Rewritten(msgspec.Struct, frozen=True):
    """A new segment that is complete and durable beside the old ones; none if `segments` is 0."""

    segments: int = 0
    """How many segments it replaces."""
    size_bytes: int = 0
    max_timestamp_ms: int = 0
    records_removed: int = 0
    damaged: int | None = None
    """Nothing was written: there is no valid batch at this offset."""


class KeyRewriting:
    """Rewrites the segments of one plan."""

    def __init__(self, disk: Disk, plan: Plan) -> None:
        self._disk = disk
        self._plan = plan
        self._epochs = EpochHistory(plan.epochs)
        self._pinned = set(plan.pinned)
        self._latest: dict[bytes, int] = {}
        self._learned: int | None = None
        self._aborted: dict[int, list[Aborted]] = {}
        for txn in plan.aborted:
            self._aborted.setdefault(txn.producer_id, []).append(txn)

    def write(self, first: int) -> Rewritten:
        """Write one new segment for as many segments from number `first` on as fit; for none where nothing is new."""
        try:
            if self._learned is None:
                self._learned = self._learn()
            return self._write(first, self._learned)
        except BadBatch as bad:
            return Rewritten(damaged=bad.offset)

    def _batches(self, source: Source) -> Iterator[ScannedBatch]:
        file = self._disk.open(source.path, writable=False)
        try:
            yield from walk(file, DATA_START, source.end, source.base_offset, epochs=self._epochs)
        finally:
            file.close()

    def _learn(self) -> int:
        """Fill the key map from new records; return how many segments it covers, 0 if nothing is new."""
        learned = 0
        for number, source in enumerate(self._plan.sources):
            if source.next_offset <= self._plan.cleaned_before:
                continue
            for found in self._batches(source):
                if found.header.record_count and not found.header.is_control and not self._is_aborted(found):
                    self._latest.update((key, offset) for offset, key, _ in _keys(found) if key is not None)
            learned = number + 1
            if len(self._latest) >= self._plan.keys_max:
                break
        return learned

    def _is_aborted(self, found: ScannedBatch) -> bool:
        header = found.header
        if not header.is_transactional:
            return False
        return any(txn.covers(header) for txn in self._aborted.get(header.producer_id, ()))

    def _write(self, first: int, end: int) -> Rewritten:
        if first >= end:
            return Rewritten()
        rewriter = self._begin(self._plan.sources[first])
        taken = removed = 0
        try:
            for source in self._plan.sources[first:end]:
                if taken and rewriter.size + source.size_bytes > self._plan.segment_bytes:
                    break
                for found in self._batches(source):
                    removed += self._copy(found, rewriter)
                taken += 1
        except BaseException:
            rewriter.abandon()
            raise
        new = rewriter.write()
        new.retire()
        return Rewritten(taken, new.data_bytes, new.max_timestamp_ms, removed)

    def _begin(self, source: Source) -> SegmentRewriter:
        identity = Identity(self._plan.topic_id, self._plan.partition)
        head = SegmentHead(identity, source.base_offset, source.created_ms, source.generation + 1)
        return SegmentRewriter(
            self._disk, self._plan.folder, head, FilePool(self._disk), self._plan.index_interval_bytes
        )

    def _copy(self, found: ScannedBatch, rewriter: SegmentRewriter) -> int:
        """Copy what remains of one batch; return how many records are dropped."""
        header = found.header
        batch = found.window[found.at : found.at + header.size_bytes]
        if header.is_control:
            rewriter.keep(batch)
            return 0
        keep = self._choose(found) if header.record_count else []
        kept = sum(keep)
        if kept and kept == header.record_count:
            rewriter.keep(batch)
        elif kept or header.base_offset in self._pinned:
            rewriter.keep(select_batch(batch, 0, header, keep, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX))
        else:
            rewriter.skip(header.next_offset, header.leader_epoch, header.max_timestamp)
        return header.record_count - kept

    def _choose(self, found: ScannedBatch) -> list[bool]:
        if self._is_aborted(found):
            return [False] * found.header.record_count
        expired = self._plan.now_ms - found.header.max_timestamp > self._plan.delete_retention_ms
        drop_tombstones = expired and found.header.next_offset <= droppable_end(self._plan)
        return [
            key is None or (self._latest.get(key, -1) <= offset and not (is_tombstone and drop_tombstones))
            for offset, key, is_tombstone in _keys(found)
        ]


def droppable_end(plan: Plan) -> int:
    """Return the offset below which a tombstone is no longer needed, on this replica or another."""
    return min(plan.cleaned_before, plan.tombstone_limit)


def _keys(found: ScannedBatch) -> list[tuple[int, bytes | None, bool]]:
    """Return (offset, key, is a tombstone) of each record."""
    header = found.header
    section = read_section(found.window, found.at, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    scanned = scan_keys(section, header.record_count, header.last_offset_delta)
    return [(header.base_offset + delta, key, is_null) for delta, key, is_null in scanned]
