"""Write what operations on keys change, and wait for all that the operations of a burst wait for.

Knows: what an only replica has to make durable, and what is asked of the replicas of a log that has several. Does not know: what
operations change, and which logs are here.
Invariants: a log of an only replica is written without a step, as `Append.append_records` writes one; the logs that a burst has
written share one sync, and one place in the flusher's schedule; what is not committed in the epoch in which it was written is
never told to be.
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
"""What several logs count as un-synced beside their bytes: they take several syncs, which are made beside the loop."""


class WrittenLogs:
    """The logs of only replicas that bursts have written: a `Syncable` whose offsets count the bursts.

    A log that cannot be synced does not hold up the others: its own durable offset tells.
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
        """A burst has written so many bytes to a log, which says when they are to be synced."""
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
            while self._logs:  # one that is written meanwhile is in the set again, for the next sync
                with contextlib.suppress(StorageFault):
                    self._logs.pop().sync()
            self.durable_offset, self._synced_bytes = reached, written_bytes
            return reached


class LogWriter:
    """A `SlotWriter`: into a partition that is led here."""

    def __init__(self, partition: Partition, written: WrittenLogs, runtime: Runtime) -> None:
        self._partition = partition
        self._written = written
        self._runtime = runtime
        self._sole: ReplicaRunner | None = None
        self.asked = Acknowledgement()
        """By which what was written last is waited for, where there are other replicas."""

    def check(self, level: Level) -> None:
        partition = self._partition
        self._sole = sole = partition.replicated if partition.is_sole else None
        if sole is None or not sole.counts_alone:
            partition.require_room(needs_all=level is not Level.ONE, reach=REACHES[level])

    def write(self, batch: RecordBatch, level: Level) -> None:
        """Append a batch. To an only replica: `advance` and a sync come after it."""
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
    """What the rows of a burst wait for that are in one log."""

    partition: Partition
    asked: Acknowledgement
    rows: Sequence[int]
    wrote: bool


class Burst:
    """Operations that came together: what each gives, and what it waits for."""

    def __init__(self, count: int) -> None:
        self.results: list[Any] = [None] * count
        self.refused: set[int] = set()
        self._awaited: list[_Awaited] = []
        self._uncommitted: list[tuple[Partition, int, int, Sequence[int], bool]] = []
        """Logs of only replicas: end, epoch, the rows that wait for all below to be committed, whether they have written."""

    def refuse(self, rows: Iterable[int], error: BrokerError) -> None:
        self.refused.update(rows)
        for row in rows:
            self.results[row] = error

    def waits(self, row: int) -> bool:
        """Return whether the result of a row waits for anything: not if the log refused it."""
        return row not in self.refused or self.results[row].reason not in NOT_DONE

    def found_nothing(self, row: int) -> bool:
        """Return whether a row has changed nothing because of what its key holds."""
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
        """Let rows wait until what a log holds of them below `end` is committed, and for what tells a reader that it leads."""
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
        """Return when all that is waited for has come true; what has not come true in time is refused."""
        if self._uncommitted:
            await runtime.durable(written, written.end_burst())
            for partition, end, epoch, rows, wrote in self._uncommitted:
                is_committed = partition.advance() >= end and partition.leader_epoch == epoch and partition.is_sole
                if not is_committed:  # others replicate it by now, or the disk has failed
                    self._awaited.append(_Awaited(partition, partition.committed_later(end, epoch), rows, wrote))
        elif written.unsynced_bytes:
            runtime.appended(written)
        if self._awaited:
            try:
                await settled_together([each.asked for each in self._awaited], runtime, seconds)
            finally:
                self._collect_results()

    def _collect_results(self) -> None:
        """Nothing is waited for any longer: what has not come true is no result."""
        for partition, asked, rows, wrote in self._awaited:
            try:
                partition.result_or_raise(asked)
            except BrokerError as error:
                unsure = [row for row in rows if self.waits(row)]
                self.refuse(unsure, not_committed(partition, error, wrote=wrote))


def not_committed(partition: Partition, error: BrokerError, *, wrote: bool) -> BrokerError:
    """Return what is said of what has not come true."""
    if wrote:
        # It is in the log here, and may be committed yet: a caller that asks again may do it twice.
        return BrokerError(Reason.TIMED_OUT, f"{error}; it may have been written all the same")
    return led_elsewhere(partition.number) if error.reason is Reason.NOT_LEADER else error


def led_elsewhere(number: int) -> NotLeaderError:
    return NotLeaderError(
        LOG_TOPIC, number, f"this node does not lead log {number} of keys: ask the metadata for its leader"
    )
