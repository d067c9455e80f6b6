"""Keep the last record of each key, let the earlier ones go.

Knows: keys, tombstones, aborted records. Refuses to know: how files are exchanged (rewrite does), when to run.
Invariant: after a compaction a reader from the start sees, for each key, its last value below the compacted offset, and every
offset still reads as before or is stepped over. Records without a key, markers, and what is newer are kept as they are.

Two passes over the sealed, durable, decided part of the log: one learns the last offset of each key in what was appended since
the last compaction; one rewrites the segments, as many as fit into one file together. Memory is bounded by `keys_max`: when the
map is full the compaction covers only the part it has seen, and the next one goes on from there.
"""

from collections.abc import Sequence

import msgspec

from braidlog.codec.kernel import scan_keys
from braidlog.codec.records import read_section, select_batch
from braidlog.model.errors import StorageFault
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.storage.files import Disk
from braidlog.storage.partition import PartitionLog
from braidlog.storage.pool import FilePool
from braidlog.storage.rewrite import SegmentRewriter, swap_in
from braidlog.storage.segment import Segment
from braidlog.storage.transactions import Aborted
from braidlog.storage.walk import Found

KEYS_MAX = 2_000_000


class Compacted(msgspec.Struct):
    """What a compaction did."""

    upto: int
    bytes_before: int = 0
    bytes_after: int = 0
    records_removed: int = 0


class Compaction:
    """One compaction of one partition."""

    def __init__(
        self, disk: Disk, pool: FilePool, partition: PartitionLog, *, now_ms: int, keys_max: int = KEYS_MAX
    ) -> None:
        self._disk = disk
        self._pool = pool
        self._partition = partition
        self._now_ms = now_ms
        self._keys_max = keys_max
        self._cleaned_before = partition.state.cleaned_offset
        self._latest: dict[bytes, int] = {}
        self._aborted: dict[int, list[Aborted]] = {}
        self._pinned: set[int] = set()

    def run(self) -> Compacted:
        with self._partition.upkeep:
            return self._run()

    def _run(self) -> Compacted:
        partition = self._partition
        partition.check_writable()
        partition.sync()
        with partition.lock:
            limit = min(partition.durable_offset, partition.last_stable_offset)
            sealed = [s for s in partition.segments[:-1] if s.next_offset <= limit]
            self._pinned = partition.state.producers.last_batches()
            for txn in partition.aborted_in(0, limit):
                self._aborted.setdefault(txn.producer_id, []).append(txn)
        sealed = sealed[: self._learn(sealed)]
        if not sealed:
            return Compacted(partition.state.cleaned_offset)
        result = Compacted(sealed[-1].next_offset, bytes_before=sum(s.data_bytes for s in sealed))
        self._rewrite_all(sealed, result)
        with partition.lock:
            partition.state.cleaned_offset = result.upto
        partition.checkpoint(copies=2)
        return result

    def _learn(self, sealed: Sequence[Segment]) -> int:
        """Fill the map from what is new; return how many segments it covers, 0 if nothing is new."""
        learned = 0
        for number, segment in enumerate(sealed):
            if segment.next_offset <= self._cleaned_before:
                continue
            for found in self._partition.batches_of(segment):
                if found.header.record_count and not found.header.is_control and not self._is_aborted(found):
                    self._latest.update((key, offset) for offset, key, _ in _keys(found) if key is not None)
            learned = number + 1
            if len(self._latest) >= self._keys_max:
                break
        return learned

    def _is_aborted(self, found: Found) -> bool:
        header = found.header
        if not header.is_transactional:
            return False
        return any(txn.covers(header) for txn in self._aborted.get(header.producer_id, ()))

    def _rewrite_all(self, sealed: Sequence[Segment], result: Compacted) -> None:
        """Rewrite the segments, joining neighbours while they fit into one."""
        group: list[Segment] = []
        rewriter: SegmentRewriter | None = None
        for segment in sealed:
            if rewriter is not None and rewriter.size + segment.data_bytes > self._partition.settings.segment_bytes:
                self._exchange(group, rewriter, result)
                group, rewriter = [], None
            if rewriter is None:
                rewriter = self._begin(segment)
            try:
                for found in self._partition.batches_of(segment):
                    result.records_removed += self._copy(found, rewriter)
            except BaseException:
                rewriter.abandon()
                raise
            group.append(segment)
        if rewriter is not None:
            self._exchange(group, rewriter, result)

    def _begin(self, segment: Segment) -> SegmentRewriter:
        head = segment.head._replace(generation=segment.head.generation + 1)
        interval_bytes = self._partition.settings.index_interval_bytes
        return SegmentRewriter(self._disk, self._partition.folder, head, self._pool, interval_bytes)

    def _copy(self, found: Found, rewriter: SegmentRewriter) -> int:
        """Carry over what stays of one batch; return how many records do not."""
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

    def _choose(self, found: Found) -> list[bool]:
        if self._is_aborted(found):
            return [False] * found.header.record_count
        expired = self._now_ms - found.header.max_timestamp > self._partition.settings.delete_retention_ms
        drop_tombstones = expired and found.header.next_offset <= self._cleaned_before
        return [
            key is None or (self._latest.get(key, -1) <= offset and not (is_tombstone and drop_tombstones))
            for offset, key, is_tombstone in _keys(found)
        ]

    def _exchange(self, group: Sequence[Segment], rewriter: SegmentRewriter, result: Compacted) -> None:
        new = rewriter.write()
        with self._partition.lock:
            try:
                rewriter.publish()
                swap_in(self._disk, self._partition.folder, self._pool, group, new)
            except StorageFault as fault:
                self._partition.stop(fault)
                raise
            self._partition.replace_segments(group, new)
        result.bytes_after += new.data_bytes


def _keys(found: Found) -> list[tuple[int, bytes | None, bool]]:
    """(offset, key, is a tombstone) of each record."""
    header = found.header
    section = read_section(found.window, found.at, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    scanned = scan_keys(section, header.record_count, header.last_offset_delta)
    return [(header.base_offset + delta, key, is_null) for delta, key, is_null in scanned]


def dirty_ratio(partition: PartitionLog) -> float:
    """The share of sealed bytes appended since the last compaction: what tells whether one is worth its writes."""
    sealed = partition.segments[:-1]
    total = sum(segment.data_bytes for segment in sealed)
    dirty = sum(segment.data_bytes for segment in sealed if segment.next_offset > partition.state.cleaned_offset)
    return dirty / total if total else 0.0
