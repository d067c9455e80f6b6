"""Keep the keys of one log of the key-value store, by applying the records of its partition.

A leader's state has its whole log, a follower's only what is committed. Invariants: a state with records that were
not committed when its leader was deposed is discarded. Before a tail is truncated, its mutations of level ONE are
durable in a separate file.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from braidlog.codec.batch.header import BatchHeader, iter_batches
from braidlog.codec.batch.records import decode_batch
from braidlog.kv.engine.hybrid_clock import HybridClock
from braidlog.kv.engine.operations import Level, Operation
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.replicated import salvage
from braidlog.kv.replicated.checkpoints import Checkpoint, Part, read_record
from braidlog.kv.replicated.log_columns import BATCH_BYTES_MAX, RECORD_BYTES_MAX, apply_batch
from braidlog.kv.replicated.log_keyspace import DELETE_RETENTION_MS, LogKeyspace
from braidlog.kv.replicated.log_records import Origin, RecordBatch, SlotRecord
from braidlog.kv.replicated.salvage import Verdict
from braidlog.kv.replicated.salvage_files import keep_tail
from braidlog.kv.replicated.slots import KEY_LOGS
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.partition.replica_runner import ReplicaRunner
from braidlog.replication.messages import Await, Reach, ReadIndex
from braidlog.storage.files import Disk
from braidlog.storage.log.partition_log import PartitionLog

R = TypeVar("R")
READ_BYTES: Final = 256 * 1024
LOG_SHARE: Final = KEY_LOGS
"""The part of `snapshot_wal_bytes` to which one log may grow. That setting covers all logs: a node reads all of them
at its start.
"""
REACHES: Final = {Level.ONE: Reach.IN_SYNC, Level.QUORUM: Reach.MAJORITY, Level.ALL: Reach.EVERY}
NOT_DONE: Final = frozenset({Reason.NOT_LEADER, Reason.NOT_ENOUGH_REPLICAS, Reason.UNAVAILABLE})
"""The log rejected the operation: the result does not depend on any key, so there is nothing to confirm."""


class Performed(NamedTuple):
    """The result of an operation, valid once what it waits for is committed."""

    result: Any
    """The result, or the `BrokerError` with which the operation is rejected."""
    end: int | None
    """The end of its records; None if it wrote none: it then counts as a read, even if it was a write."""
    is_certain: bool = False
    """It waits for nothing."""

    def waits_for(self, token: int, level: Level) -> Await | ReadIndex | None:
        """Build the request that the replica must confirm before the result is returned; None if there is none."""
        if self.end is not None:
            return Await(token, self.end, needs_all=level is not Level.ONE, reach=REACHES[level])
        return None if self.is_certain or level is Level.ONE else ReadIndex(token, REACHES[level])


class TailFolder(NamedTuple):
    """The folder for truncated tails."""

    disk: Disk
    path: str


class SlotWriter(Protocol):
    """Writes a leader's records into its log. Both methods raise `BrokerError`, and then nothing is written.

    `check` precedes each `write`, and nothing else changes the log between them.
    """

    def check(self, level: Level) -> None:
        """Raise if a write of that level would be rejected now."""
        ...

    def write(self, batch: RecordBatch, level: Level) -> None: ...


class KeyLog:
    """Applies a partition's log to the keys of its slots. Call `apply_committed` after each step of the replica.

    It is the `SlotLog` of its keyspace.
    """

    def __init__(
        self,
        number: int,
        clock: HybridClock,
        partition: ReplicaRunner,
        writer: SlotWriter,
        tails: TailFolder,
        settings: KeyValueSettings,
        *,
        delete_retention_ms: int = DELETE_RETENTION_MS,
    ) -> None:
        self.number = number
        self._clock = clock
        self._partition = partition
        self._writer = writer
        self._tails = tails
        self._settings = settings
        self._delete_retention_ms = delete_retention_ms
        self._led_epoch: int | None = None
        self.is_whole = False
        """Whether the state has had everything that was committed since it was built: before that keys are missing."""
        self._bytes_trimmed = 0
        self._gathers: Level | None = None
        """The level of records that are applied but not written yet; None: each record is written before it is
        applied.
        """
        self._batch: RecordBatch | None = None
        self._not_written: Exception | None = None
        """Why some of the gathered records are not in the log."""
        self.fault: StorageFault | None = None
        """Why the state cannot be built from the log."""
        self.kept = 0
        """The number of tails kept since the opening: they wait to be sent."""
        self.slot = self._rebuilt()
        self.made_anew = 0
        """How often the state was discarded and rebuilt."""
        self.hold_at: int | None = None
        """A follower applies nothing from this offset on, while it is compared with its leader."""
        partition.before_cut = self._keep_tail
        # A follower answers only reads of level ONE, which may be stale: a watermark needs no message of its own.
        partition.replica = partition.replica.now(is_watermark_urgent=False)

    def _rebuilt(self) -> LogKeyspace:
        start, retention_ms = self._partition.log.start_offset, self._delete_retention_ms
        return LogKeyspace(self._clock, self, self._settings, begins_at=start, delete_retention_ms=retention_ms)

    def _restart(self) -> None:
        watcher = self.slot.watcher
        self.slot = self._rebuilt()
        self.slot.watcher = watcher
        if watcher is not None:
            watcher.restarted()
        self.is_whole = False
        self.made_anew += 1

    @property
    def epoch(self) -> int:
        """The leader epoch, as far as this node knows."""
        return self._partition.epoch

    @property
    def is_leader(self) -> bool:
        """Whether the state has all of this log, in an epoch in which this node leads."""
        partition = self._partition
        return self.fault is None and self._led_epoch == partition.epoch and partition.is_leader

    def apply_committed(self, records_max: int = sys.maxsize) -> bool:
        """Apply the records that the last step allows, at most `records_max`; return whether more are left."""
        replica, log = self._partition.replica, self._partition.log
        if self.slot.applied < log.start_offset:  # it was far behind: what it lacks is in the checkpoint
            self._restart()
        if not self._partition.is_leader:
            self._led_epoch = self.slot.checkpoint = None
            if self.slot.applied > replica.watermark:
                self._restart()  # it was deposed: its last records may be truncated
            end = replica.watermark if self.hold_at is None else min(replica.watermark, self.hold_at)
            return self._apply(log, end, records_max)
        if self._led_epoch == replica.epoch:
            return False
        self.slot.checkpoint = None  # of another epoch: other leaders have written since
        is_behind = self._apply(log, log.end_offset, records_max)
        self._led_epoch = replica.epoch if self.is_whole and not is_behind else None
        return is_behind

    def _apply(self, log: PartitionLog, end: int, records_max: int) -> bool:
        slot = self.slot
        while slot.applied < end and records_max > 0:
            for data, position, header in _batches_in(log, slot.applied, end):
                records_max -= apply_batch(slot, data, position, header, end, records_max)
                if records_max <= 0:
                    break
        is_behind = slot.applied < end
        self.is_whole = self.slot.is_complete and (self.is_whole or not is_behind)
        return is_behind

    # -- checkpoints -------------------------------------------------------------------------------------------

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the log is much larger than its content: a node reads the whole log at its start."""
        grown = self._partition.log.size_bytes - self._bytes_trimmed
        return grown >= self._settings.snapshot_wal_bytes // LOG_SHARE and grown >= 2 * self.slot.keyspace.used_bytes

    @property
    def log_bytes(self) -> int:
        return self._partition.log.size_bytes

    @property
    def committed(self) -> int:
        """The offset below which the log is committed."""
        return self._partition.replica.watermark

    def begin_checkpoint(self) -> Checkpoint:
        """Start a checkpoint of the leader's state.

        The caller writes it, and trims the log once its end is committed.
        """
        return Checkpoint(self.slot)

    def end_checkpoint(self, *, is_trimmed: bool) -> None:
        """Finish a checkpoint.

        `is_trimmed`: the log begins with it. Whole segments are removed, so some older records remain.
        """
        self.slot.checkpoint = None
        if is_trimmed:
            self._bytes_trimmed = self._partition.log.size_bytes

    def append_parts(self, parts: Sequence[tuple[bytes | None, bytes]]) -> int:
        if self._gathers is not None:
            for part in parts:
                self.batch(self.slot.latest_ms).append(*part)
            return self.slot.applied + len(parts)
        return self._append(RecordBatch.of(parts, self.slot.latest_ms), Level.QUORUM)

    def shadow(self) -> LogKeyspace:
        """Create a separate state, to read the log once more from its start."""
        return self._rebuilt()

    def rows(self, start: int, end: int) -> Iterator[tuple[Origin, SlotRecord | Part]]:
        return rows_in(self._partition.log, start, end)

    # -- on the leader -----------------------------------------------------------------------------------------

    def perform(self, operation: Operation[R], level: Level, now_ms: int) -> Performed:
        """Execute an operation on the current state; the result is valid once what it `waits_for` is confirmed."""
        before = self.slot.applied
        try:
            result: Any = self.slot.execute(operation, level, now_ms)
        except BrokerError as error:
            result = error
        is_certain = isinstance(result, BrokerError) and result.reason in NOT_DONE
        return Performed(result, self.slot.applied if self.slot.applied != before else None, is_certain)

    def read(self, operation: Operation[R], now_ms: int) -> R | BrokerError:
        """Read from a follower's state; return the result or the error."""
        try:
            return self.slot.read(operation, now_ms)
        except BrokerError as error:
            return error

    def salvage(self, record: SlotRecord, now_ms: int) -> tuple[Verdict, int]:
        """Decide what to do with a salvaged mutation.

        The decision is valid if everything below the returned offset is committed in this epoch.
        """
        return salvage.salvage(self.slot, record, now_ms), self._partition.log.end_offset

    def gather(self, level: Level) -> None:
        """Collect the records of later operations of this level, until `write_gathered` appends them in one batch.

        Until then nothing else may happen to the replica, and no caller gets a result.
        """
        self._gathers = level

    def batch(self, wall_ms: int) -> RecordBatch:
        """Return the current batch, with space for a record.

        Raises before its first record: then nothing is written.
        """
        assert self._gathers is not None, "records are gathered"
        if self._batch is not None and len(self._batch.section) >= BATCH_BYTES_MAX:
            self._flush_gathered()
        # Nothing else happens until all are written, so the check for the first record holds for all
        if self._batch is None:
            self._writer.check(self._gathers)
            self._batch = RecordBatch(wall_ms)
        return self._batch

    def write_gathered(self) -> BrokerError | None:
        """Append the gathered records; return the error if the log rejected any.

        After an error all results since `gather` are void, and the state, which is ahead of the log, is discarded.
        """
        self._flush_gathered()
        self._gathers = None
        error, self._not_written = self._not_written, None
        if error is None:
            assert self._partition.log.end_offset == self.slot.applied, "what is applied is in the log"
            return None
        self._led_epoch = None
        self._restart()
        return BrokerError(Reason.TIMED_OUT, f"log {self.number} of keys: {error}; some changes may have been written")

    def _flush_gathered(self) -> None:
        batch, self._batch = self._batch, None
        if batch is None or not batch.count or self._not_written is not None:
            return
        assert self._gathers is not None
        try:
            self._writer.write(batch, self._gathers)
        except (BrokerError, ProtocolError, StorageFault) as error:
            self._not_written = error

    def append(self, record: SlotRecord) -> int:
        if self._gathers is None:
            return self._append(RecordBatch.of([(record.key, record.pack())], record.stamp.wall_ms), record.level)
        self.batch(record.stamp.wall_ms).append(record.key, record.pack())
        return self.slot.applied + 1

    def _append(self, batch: RecordBatch, level: Level) -> int:
        self._writer.check(level)
        end = self._partition.log.end_offset + batch.count
        self._writer.write(batch, level)
        assert self._partition.log.end_offset == end, "a record is in the log before it is applied"
        return end

    def holds(self, origin: Origin) -> bool | None:
        log = self._partition.replica.log
        if origin.offset < log.start:
            before = [epoch for epoch, first in self.slot.epochs if first <= origin.offset]
            return before[-1] == origin.epoch if before else None
        return origin.offset < log.end and log.epoch_at(origin.offset) == origin.epoch

    def epochs(self) -> Sequence[tuple[int, int]]:
        return self._partition.replica.log.epochs

    # -- before a truncation -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Keep uncommitted mutations before the log is removed from this node; runs on a thread."""
        keep_uncommitted(self._partition.log, self.number, self._tails)

    def _keep_tail(self, start: int, end: int) -> None:
        """Keep the mutations of the log in [start, end); runs on a thread."""
        self.kept += keep_between(self._partition.log, self.number, self._tails, start, end)


def keep_between(log: PartitionLog, number: int, tails: TailFolder, start: int, end: int) -> bool:
    """Keep the mutations in [start, end) that may be applied on another node; return whether there are any."""
    kept = salvage.worth_keeping(records_in(log, max(start, log.start_offset), end))
    if kept:
        keep_tail(tails.disk, tails.path, number, kept)
    return bool(kept)


def keep_uncommitted(log: PartitionLog, number: int, tails: TailFolder) -> bool:
    """Keep the mutations that may not be committed, before a log is removed from a node that no longer holds it.

    Also for a log that moved away while the node was down. A leader recognises mutations that were committed anyway
    by their origin.
    """
    return keep_between(log, number, tails, log.replicate(), log.end_offset)


def records_in(log: PartitionLog, start: int, end: int) -> Iterator[tuple[Origin, SlotRecord]]:
    """Yield the mutations of a log in [start, end), with the origin of each."""
    return ((origin, record) for origin, record in rows_in(log, start, end) if not isinstance(record, Part))


def rows_in(log: PartitionLog, start: int, end: int) -> Iterator[tuple[Origin, SlotRecord | Part]]:
    """Yield the mutations and checkpoint records of a log in [start, end), with the origin of each."""
    for data, position, header in _batches_in(log, start, end):
        for offset, _, key, value, *_ in decode_batch(data, position, decompressed_bytes_max=RECORD_BYTES_MAX):
            if start <= offset < end:
                yield Origin(header.leader_epoch, offset), read_record(key, value)


def _batches_in(log: PartitionLog, start: int, end: int) -> Iterator[tuple[bytes, int, BatchHeader]]:
    """Yield the batches of a log with records in [start, end): bytes, position of the batch in them, header."""
    at = start
    while at < end:
        data = log.read(at, READ_BYTES, upto=end)
        if not data:
            raise StorageFault(f"a log of keys has nothing at {at}, and its end is {end}", log.folder)
        for position, header in iter_batches(data):
            yield data, position, header
            at = header.next_offset
