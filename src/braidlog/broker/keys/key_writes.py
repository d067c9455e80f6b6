"""Writes the changes of operations on keys to their logs, and waits for their commits in one step per burst.

Does not handle: the effect of operations, which logs this node has.
Invariants: a log whose only replica is here is appended to directly, without a replication step, as in
`Append.append_records`. The logs written by one burst share one sync and one entry in the flusher's schedule. A
change is reported as committed only if it was committed in the epoch in which it was written.
"""

import contextlib
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from braidlog.kv.engine.operations import Level
from braidlog.kv.replicated.log_records import RecordBatch
from braidlog.kv.replicated.slots import LOG_TOPIC
from braidlog.model.errors import BrokerError, NotLeaderError, Reason, StorageFault
from braidlog.model.runtime.runtime import FlushSettings, Runtime, Syncable
from braidlog.partition.key_log import NOT_DONE, REACHES
from braidlog.partition.partition import Acknowledgement, Partition, settled_together
from braidlog.partition.replica_runner import Produced, ReplicaRunner
from braidlog.replication.messages import ReadIndex

SEVERAL_BYTES: Final = 1024 * 1024
"""Added to the unsynced bytes of several logs: they take several syncs, which run on a thread."""


class WrittenLogs:
    """The single-replica logs that bursts have written: a `Syncable` whose offsets count the bursts.

    A log that cannot be synced does not delay the rest: its own durable offset shows the failure.
    """

    def __init__(self, settings: FlushSettings) -> None:
        self.settings = settings
        self.durable_offset = 0
        self.bursts = 0
        self._logs: set[Syncable] = set()
        self._written_bytes = self._synced_bytes = 0
        self._lock = threading.Lock()

    @property
    def unsynced_bytes(self) -> int:
        return self._written_bytes - self._synced_bytes + (SEVERAL_BYTES if len(self._logs) > 1 else 0)

    def add(self, log: Syncable, size: int) -> None:
        """Record that a burst has written `size` bytes to a log; the log's settings decide when it is synced."""
        self._logs.add(log)
        self._written_bytes += size
        self.settings = log.settings

    def end_burst(self) -> int:
        """Return the offset below which this burst is durable."""
        self.bursts += 1
        return self.bursts

    def sync(self, upto: int | None = None) -> int:
        """Sync what was written before the call; on any thread."""
        with self._lock:
            if upto is not None and self.durable_offset >= upto:
                return self.durable_offset
            reached, written_bytes = self.bursts, self._written_bytes
            while self._logs:  # a log written during the sync is in the set again, for the next one
                with contextlib.suppress(StorageFault):
                    self._logs.pop().sync()
            self.durable_offset, self._synced_bytes = reached, written_bytes
            return reached


class LogWriter:
    """A `SlotWriter` to a partition that is led here."""

    def __init__(self, partition: Partition, written: WrittenLogs, runtime: Runtime) -> None:
        self._partition = partition
        self._written = written
        self._runtime = runtime
        self._sole: ReplicaRunner | None = None
        self.asked = Acknowledgement()
        """The acknowledgement of the last write, if other replicas exist."""

    def check(self, level: Level) -> None:
        partition = self._partition
        self._sole = sole = partition.replicated if partition.is_sole else None
        if sole is None or not sole.counts_alone:
            partition.require_room(needs_all=level is not Level.ONE, reach=REACHES[level])

    def write(self, batch: RecordBatch, level: Level) -> None:
        """Append a batch. With a single replica, the caller then syncs and calls `advance`."""
        sole, section, wall_ms = self._sole, batch.section, batch.wall_ms
        if sole is None:
            _, self.asked = self._partition.produce(
                self._sealed(batch), needs_all=level is not Level.ONE, is_awaited=True, reach=REACHES[level]
            )
            return
        if sole.append_section_alone(section, batch.count, wall_ms, wall_ms) is None:
            sole.append_alone(self._sealed(batch))
        self._written.add(sole.log, len(section))

    def _sealed(self, batch: RecordBatch) -> Produced:
        sealed = batch.seal()
        return Produced(sealed.data, [sealed.header], self._runtime.now_ms(), own=True)


class _Awaited(NamedTuple):
    """The rows of a burst in one log, and the acknowledgement that they wait for."""

    partition: Partition
    asked: Acknowledgement
    rows: Sequence[int]
    wrote: bool


class Burst:
    """Operations that arrived together: their results, and the commits that they wait for."""

    def __init__(self, count: int) -> None:
        self.results: list[Any] = [None] * count
        self.refused: set[int] = set()
        self._awaited: list[_Awaited] = []
        self._uncommitted: list[tuple[Partition, int, int, Sequence[int], bool]] = []
        """Single-replica logs: end, epoch, the rows that wait until all below the end is committed, whether they
        wrote."""

    def refuse(self, rows: Iterable[int], error: BrokerError) -> None:
        self.refused.update(rows)
        for row in rows:
            self.results[row] = error

    def waits(self, row: int) -> bool:
        """Return whether the result of a row waits for a commit: not if the log refused the operation."""
        return row not in self.refused or self.results[row].reason not in NOT_DONE

    def found_nothing(self, row: int) -> bool:
        """Return whether a row changed nothing because of the value of its key."""
        return self.results[row] is None or row in self.refused

    def await_log(
        self,
        partition: Partition,
        writer: LogWriter,
        end: int,
        rows: Sequence[int],
        level: Level,
        *,
        wrote: bool,
        reads: bool,
    ) -> None:
        """Make rows wait until their changes below `end` are committed. With `reads`, they also wait for the proof
        that this node still leads."""
        if partition.is_sole:
            if (partition.advance() if wrote else partition.high_watermark) < end:
                self._uncommitted.append((partition, end, partition.leader_epoch, rows, wrote))
            return
        if reads:
            asked = partition.submit(lambda token: ReadIndex(token, REACHES[level]))
            self._awaited.append(_Awaited(partition, asked, rows, wrote))
        if wrote:
            self._awaited.append(_Awaited(partition, writer.asked, rows, wrote))

    async def settle(self, written: WrittenLogs, runtime: Runtime, seconds: float) -> None:
        """Wait for all acknowledgements; refuse the rows whose changes are not committed in time."""
        if self._uncommitted:
            await runtime.durable(written, written.end_burst())
            for partition, end, epoch, rows, wrote in self._uncommitted:
                is_committed = partition.advance() >= end and partition.leader_epoch == epoch and partition.is_sole
                if not is_committed:  # the partition has more replicas by now, or the disk has failed
                    self._awaited.append(_Awaited(partition, partition.committed_later(end, epoch), rows, wrote))
        elif written.unsynced_bytes:
            runtime.appended(written)
        if self._awaited:
            try:
                await settled_together([each.asked for each in self._awaited], runtime, seconds)
            finally:
                self._collect_results()

    def _collect_results(self) -> None:
        """Refuse the rows whose acknowledgement has failed or is missing; nothing waits after this."""
        for partition, asked, rows, wrote in self._awaited:
            try:
                partition.result_or_raise(asked)
            except BrokerError as error:
                unsure = [row for row in rows if self.waits(row)]
                self.refuse(unsure, not_committed(partition, error, wrote=wrote))


def not_committed(partition: Partition, error: BrokerError, *, wrote: bool) -> BrokerError:
    """Return the error for a change that is not known to be committed."""
    if wrote:
        # The change is in this log and may still be committed: a caller that retries may apply it twice.
        return BrokerError(Reason.TIMED_OUT, f"{error}; it may have been written")
    return led_elsewhere(partition.number) if error.reason is Reason.NOT_LEADER else error


def led_elsewhere(number: int) -> NotLeaderError:
    return NotLeaderError(
        LOG_TOPIC, number, f"this node does not lead log {number} of keys: ask the metadata for its leader"
    )
