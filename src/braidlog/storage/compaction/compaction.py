"""Compact a partition to the last record of each key: decide when, and replace segments under a running log.

`compaction_merge.py` reads and writes the records, in this process or in another one. Invariants: after a compaction
a reader from the start sees the last value of each key below the compacted offset. Every offset still reads as
before or is skipped. Nothing in use changes until a rewritten segment is complete and durable, so the rewriting
process may die at any time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Protocol

import msgspec

from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.settings import UNLIMITED, TopicSettings
from braidlog.storage.compaction.compaction_merge import KeyRewriting, Plan, Rewritten, Source
from braidlog.storage.compaction.segment_swap import publish, swap_in
from braidlog.storage.files import Disk
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.open_files import FilePool
from braidlog.storage.segment.segment import Segment, dirty_ratio
from braidlog.storage.segment.segment_files import DATA_START, Mark

KEYS_MAX = 2_000_000
HELD_FILES_MAX = 16


class Compacted(msgspec.Struct):
    """The result of a compaction."""

    upto: int
    bytes_before: int = 0
    bytes_after: int = 0
    records_removed: int = 0


class Rewriting(Protocol):
    """Writes the new segments of a plan."""

    def write(self, first: int) -> Rewritten:
        """Write one new segment in place of those from number `first` on."""
        ...


Rewriter = Callable[[Disk, Plan], Rewriting]


class Compaction:
    """One compaction of one partition."""

    def __init__(
        self,
        disk: Disk,
        pool: FilePool,
        partition: PartitionLog,
        *,
        now_ms: int,
        keys_max: int = KEYS_MAX,
        rewriter: Rewriter = KeyRewriting,
    ) -> None:
        self._disk = disk
        self._pool = pool
        self._partition = partition
        self._now_ms = now_ms
        self._keys_max = keys_max
        self._rewriter = rewriter

    def run(self) -> Compacted:
        # Held to the end: no retention, truncation or close runs during a rewrite, in whichever process.
        with self._partition.upkeep:
            return self._run()

    def _run(self) -> Compacted:
        partition = self._partition
        partition.check_writable()
        partition.sync()
        with partition.lock:
            limit = compaction_limit(partition)
            sealed = [s for s in compactable(partition, self._now_ms) if s.next_offset <= limit]
            plan = self._plan(sealed, limit)
        result = Compacted(partition.state.cleaned_offset)
        if not sealed or sealed[-1].next_offset <= plan.cleaned_before:
            return result
        rewriting = self._rewriter(self._disk, plan)
        done = 0
        while done < len(sealed):
            written = rewriting.write(done)
            if written.damaged is not None:
                partition.check_again(written.damaged)
                raise BrokerError(Reason.TIMED_OUT, "a compaction read what the log does not hold; it is tried again")
            if not written.segments:
                break
            group = sealed[done : done + written.segments]
            self._exchange(group, written)
            done += written.segments
            result.upto = group[-1].next_offset
            result.bytes_before += sum(source.size_bytes for source in plan.sources[done - len(group) : done])
            result.bytes_after += written.size_bytes
            result.records_removed += written.records_removed
        if done:
            with partition.lock:
                partition.state.cleaned_offset = result.upto
            partition.save_state(copies=2)
        return result

    def _plan(self, sealed: Sequence[Segment], limit: int) -> Plan:
        partition, settings = self._partition, self._partition.settings
        return Plan(
            folder=partition.folder,
            topic_id=partition.identity.topic_id,
            partition=partition.identity.partition,
            sources=[
                Source(s.path, s.base_offset, s.next_offset, s.size, s.head.generation, s.head.created_ms)
                for s in sealed
            ],
            epochs=partition.state.epochs.entries(),
            pinned=sorted(partition.state.producers.last_batches()),
            aborted=partition.aborted_in(0, limit),
            cleaned_before=partition.state.cleaned_offset,
            now_ms=self._now_ms,
            keys_max=self._keys_max,
            segment_bytes=settings.segment_bytes,
            index_interval_bytes=settings.index_interval_bytes,
            delete_retention_ms=settings.delete_retention_ms,
            tombstone_limit=partition.tombstone_limit,
        )

    def _exchange(self, group: Sequence[Segment], written: Rewritten) -> None:
        partition = self._partition
        head = group[0].head._replace(generation=group[0].head.generation + 1)
        end = DATA_START + written.size_bytes
        mark = Mark(end, group[-1].next_offset)
        new = Segment(self._disk, partition.folder, head, mark, end, self._pool)
        new.use_index(partition.settings.index_interval_bytes, read_only=False)
        new.next_offset, new.max_timestamp_ms = mark.next_offset, written.max_timestamp_ms
        # Kept open until the lock is released: otherwise the rename would also free the file's blocks, under the lock.
        largest = [segment.file for segment in sorted(group, key=lambda each: each.size)[-HELD_FILES_MAX:]]
        with _or_stop(partition):
            publish(self._disk, partition.folder, head.base_offset)
        # The event loop appends and reads under this lock: do not sync while it is held.
        with partition.lock, _or_stop(partition):
            swap_in(self._disk, partition.folder, self._pool, group, new)
            partition.replace_segments(group, new)
        with _or_stop(partition):
            self._disk.sync_folder(partition.folder)
        del largest


@contextmanager
def _or_stop(partition: PartitionLog) -> Iterator[None]:
    """Stop the partition if the replacement of files fails half-way; only the next opening completes it."""
    try:
        yield
    except StorageFault as fault:
        partition.stop(fault)
        raise


def compaction_limit(partition: PartitionLog) -> int:
    """Return the last stable offset: uncommitted records may be truncated, and must not replace committed ones."""
    return partition.stable_below(min(partition.durable_offset, partition.watermark))


def compactable(partition: PartitionLog, now_ms: int) -> list[Segment]:
    """Return the sealed segments before the first that has a record younger than the minimum lag."""
    lag_ms = partition.settings.compaction_lag_min_ms
    sealed = partition.segments[:-1]
    return list(takewhile(lambda s: now_ms - s.max_timestamp_ms >= lag_ms, sealed)) if lag_ms else list(sealed)


def is_compaction_due(partition: PartitionLog, now_ms: int) -> bool:
    """Return whether the dirty ratio or the maximum lag requires a compaction."""
    settings, cleaned_offset = partition.settings, partition.state.cleaned_offset
    sealed = compactable(partition, now_ms)
    dirty = next((segment for segment in sealed if segment.next_offset > cleaned_offset), None)
    if dirty is not None and _has_waited(dirty, settings, now_ms):
        return True
    return dirty_ratio(sealed, cleaned_offset) > settings.compaction_dirty_ratio


def seal_what_waits(partition: PartitionLog, now_ms: int) -> None:
    """Roll the active segment, which is not compacted, if a record in it has reached the maximum lag."""
    with partition.lock:
        active = partition.segments[-1]
        if active.data_bytes and _has_waited(active, partition.settings, now_ms):
            partition.roll(now_ms)


def _has_waited(segment: Segment, settings: TopicSettings, now_ms: int) -> bool:
    """Return whether the segment's creation is longer ago than the maximum lag: no record in it is older."""
    limit_ms = settings.compaction_lag_max_ms
    return limit_ms != UNLIMITED and now_ms - segment.head.created_ms > limit_ms
