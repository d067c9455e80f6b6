"""Run one replica of a partition on this node: apply the effects of `replication/` steps to its log.

Sockets, threads and waiting callers are behind `ReplicaPort`. Invariants: the state's summary of the log and the log
agree between two messages. The effects of a step run in order: persist, send, then outcomes for waiting callers.
After each step the log gets the current high watermark, and keeps it.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from braidlog.codec.batch.header import BatchHeader, iter_batches, read_headers
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.replication import follower, leader, sole
from braidlog.replication.log_summary import LogSummary
from braidlog.replication.messages import (
    Answer,
    Append,
    Assigned,
    Await,
    Batch,
    Complaint,
    CorruptAnswer,
    Damaged,
    Diverging,
    EpochStarted,
    Fetch,
    Fetched,
    Message,
    Synced,
)
from braidlog.replication.ready import (
    Apply,
    BeginEpoch,
    CheckFile,
    Effect,
    Failed,
    Proposal,
    ProposeChange,
    Ready,
    ReportLogEnd,
    ResetLogTo,
    Resign,
    Respond,
    Resync,
    Send,
    Sync,
    Trim,
    Truncate,
    Write,
)
from braidlog.replication.replica import step
from braidlog.replication.replica_state import UNREGISTERED, Follower, Leader, Replica, opened
from braidlog.storage.log.partition_log import Appended, PartitionLog

ANSWER_BYTES_MAX = 1024 * 1024
Buffer = bytes | bytearray | memoryview
Refused = BrokerError | ProtocolError | StorageFault
"""Why the log rejected a write."""
Persist = Callable[[], Refused | None]
Apart = Callable[[Persist, Callable[[Refused | None], None]], None]
"""apart(persist, then): run a slow disk operation, then call `then` on the event loop. The replica gets no message
in between.
"""


def at_once(persist: Persist, then: Callable[[Refused | None], None]) -> None:
    """Run both immediately, for a caller that may block."""
    then(persist())


ON_DISK = (Write, Truncate, Resync, ResetLogTo, Trim)
"""The effects on the log itself; all others concern other components."""


class Produced(NamedTuple):
    """A producer's batches, with what the log needs to know about them."""

    data: Buffer
    headers: Sequence[BatchHeader]
    now_ms: int
    records_checked: bool = True
    own: bool = False
    """Whether this node has sealed the batches."""

    @property
    def records(self) -> int:
        return sum(header.last_offset_delta + 1 for header in self.headers)


class Marker(NamedTuple):
    """A transaction marker."""

    data: bytes
    now_ms: int


class ReplicaPort(Protocol):
    """The interface through which a replica uses its node."""

    def now_ms(self) -> int:
        """Return the time of a monotonic clock."""
        ...

    def wall_ms(self) -> int:
        """Return the wall-clock time, for timestamps."""
        ...

    def send(self, node: int, message: Fetch | Answer | Complaint) -> None: ...

    def propose(self, proposal: Proposal) -> None:
        """Propose a change to the metadata; the outcome arrives as `Assigned` or `ChangeRefused`."""
        ...

    def sync(self, end: int, cuts: int) -> None:
        """Make everything below `end` durable, then `step` with the result of `ReplicaRunner.synced`.

        May merge several calls.
        """
        ...

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch in the log durably, then `step` with the outcome. May be done for many logs together."""
        ...

    def beside(self, work: Callable[[], Message | None]) -> None:
        """Run slow work on a thread, one call after the other; then `step` with the message that it returns."""
        ...

    def outcome(self, outcome: Apply) -> None:
        """Report an outcome to a waiting caller on this node."""
        ...


class ReplicaRunner:
    """A `Replica` on a log that was just opened. All events reach it through `step` and `append`."""

    def __init__(
        self, log: PartitionLog, node: int, port: ReplicaPort, *, flush_on_ack: bool, apart: Apart = at_once
    ) -> None:
        self.log = log
        self._apart = apart
        self._port = port
        self._is_behind = False
        """Whether the log has grown, or the high watermark has advanced, without a step."""
        self.replica = opened(node, UNREGISTERED, summary_of(log), log.replicate(), flush_on_ack=flush_on_ack)
        if log.damages:
            self.replica = self.replica.now(is_damaged=True)
        self.before_cut: Callable[[int, int], None] | None = None
        """Called before records that may not be committed are removed: from one offset up to another. A
        `StorageFault` keeps them.
        """
        self._told_common_end = 0

    @property
    def replica(self) -> Replica:
        """The replica's state, including what the fast paths of an only replica have done."""
        if self._is_behind:
            self._is_behind = False
            before, log = self._replica, self.log
            summary = (
                before.log if log.end_offset == before.log.end else before.log.appended(log.end_offset, before.epoch)
            )
            self.replica = before.now(log=summary.synced(log.durable_offset), watermark=self.watermark)
        return self._replica

    @replica.setter
    def replica(self, replica: Replica) -> None:
        self._replica = replica
        role = replica.role
        self.is_leader = isinstance(role, Leader) and role.has_begun
        self.epoch = replica.epoch
        self.watermark = replica.watermark
        self.is_sole = sole.is_sole(replica)
        self.counts_alone = sole.commits_without_step(replica)
        self.acknowledges_alone = self.counts_alone and replica.min_in_sync <= 1

    # -- fast paths of an only replica: no step and no message -------------------------------------------------

    def append_alone(self, produced: Produced) -> Appended:
        """Append a producer's batches on the only replica (`is_sole`).

        A retry returns the offsets of the first attempt.
        """
        self._is_behind = True
        data, headers, now_ms, checked, own = produced
        return self.log.append(
            data, leader_epoch=self._replica.epoch, now_ms=now_ms, records_checked=checked, headers=headers, own=own
        )

    def append_section_alone(
        self, section: Buffer, count: int, base_timestamp: int, now_ms: int
    ) -> tuple[Appended, int] | None:
        """Append packed records as one batch sealed in the log; return its offsets and size.

        None: nothing was written.
        """
        self._is_behind = True
        return self.log.append_section(section, count, base_timestamp, leader_epoch=self.epoch, now_ms=now_ms)

    def append_marker_alone(self, marker: bytes, now_ms: int) -> int:
        """Append a transaction marker; return the offset after it."""
        self._is_behind = True
        return self.log.append_marker(marker, leader_epoch=self._replica.epoch, now_ms=now_ms).next_offset

    def count_alone(self) -> bool:
        """Commit what the only replica has, with `flush = ack` what is durable.

        Return whether the high watermark has advanced.
        """
        log = self.log
        counted = log.durable_offset if self._replica.flush_on_ack else log.end_offset
        if counted <= self.watermark:
            return False
        self.watermark = counted
        self._is_behind = True
        return True

    def resume(self, assigned: Assigned, epoch: int) -> None:
        """Continue to lead in `epoch`, the last one of a reopened log with the only replica."""
        self.replica = sole.resumed(self._replica, assigned, epoch)
        self._keep_watermark()

    # -- all other events: a step for each message -------------------------------------------------------------

    def step(self, message: Message) -> None:
        """Take one step, and carry out its effects.

        Raises the log's error for a producer's records: then nothing was written, and the step is undone.
        """
        if self.log.start_offset > self.replica.log.start:  # retention has deleted records
            self.replica = self.replica.now(log=self.replica.log.trimmed(self.log.start_offset))
        self._take_common_end(message)
        if isinstance(message, Diverging):
            message = self._between_batches(message)
        before = self.replica
        self.replica, ready = step(before, message, self._port.now_ms())
        if isinstance(self.replica.role, Leader) or not any(map(self._is_slow, ready.persist)):
            self._finish(before, message, ready, self._persisted(ready.persist))
            return
        on_disk = [each for each in ready.persist if isinstance(each, ON_DISK)]
        rest = msgspec.structs.replace(
            ready, persist=tuple(each for each in ready.persist if not isinstance(each, ON_DISK))
        )
        self._apart(partial(self._persisted, on_disk), partial(self._finish_rest, before, message, rest))

    def _between_batches(self, answer: Diverging) -> Diverging:
        """Move a truncation point inside a batch to its start: the step must know that no batch is divided."""
        role, log = self.replica.role, self.log
        if not isinstance(role, Follower) or not follower.is_for_my_question(role, answer):
            return answer
        point = follower.truncation_point(self.replica, answer)
        if not log.start_offset <= point < log.end_offset:
            return answer
        try:
            return msgspec.structs.replace(answer, end=min(answer.end, log.batch_start(point)))
        except StorageFault:
            return answer  # the truncation itself will raise it

    def _is_slow(self, effect: Effect) -> bool:
        """Return whether the effect needs more than one sync. On a leader only a deletion of records does."""
        match effect:
            case Write(batch):
                is_inside = batch.base < self.log.end_offset and not batch.is_empty
                return is_inside or batch.epoch != self.log.state.epochs.latest
            case Truncate() | Resync() | ResetLogTo() | Trim():
                return True
        return False

    def _persisted(self, effects: Iterable[Effect]) -> Refused | None:
        try:
            for effect in effects:
                self._persist(effect)
        except (BrokerError, ProtocolError, StorageFault) as error:
            return error
        return None

    def _finish_rest(self, before: Replica, message: Message, rest: Ready, error: Refused | None) -> None:
        if self.replica.incarnation == before.incarnation:
            self._finish(before, message, rest, error or self._persisted(rest.persist))
            return
        # The node has registered again during the work, with the current log. Send nothing for its previous
        # incarnation.
        self.replica = self.replica.now(log=self._summed_up(self.replica))
        for outcome in rest.apply:
            self._port.outcome(outcome)

    def _finish(self, before: Replica, message: Message, ready: Ready, error: Refused | None) -> None:
        if error is not None:
            # The messages and outcomes depend on the write that failed.
            self._not_written(before, message, error)
            return
        self._keep_watermark()
        for each in ready.send:
            self._send(each)
        for outcome in ready.apply:
            self._port.outcome(outcome)

    # -- the epochs of a leader's records ----------------------------------------------------------------------

    def up_to_next_epoch(self, answer: Fetched) -> Fetched:
        """Limit a response to the batches of one epoch.

        The next fetch gets the batches of the next epoch, after the start of that epoch is saved.
        """
        new = [each for each in answer.batches if each.end > self.log.end_offset]
        if not new or new[-1].epoch == new[0].epoch:
            return answer
        return msgspec.structs.replace(answer, batches=tuple(each for each in new if each.epoch == new[0].epoch))

    def epoch_to_begin(self, answer: Fetched) -> int | None:
        """Return the epoch that the leader's batches begin at the log end; None if they begin none."""
        role, log = self.replica.role, self.log
        if not isinstance(role, Follower) or not follower.is_for_my_question(role, answer) or self.is_damaged:
            return None
        first = next((each for each in answer.batches if each.end > log.end_offset), None)
        is_new = first is not None and first.base == log.end_offset and first.epoch > log.state.epochs.latest
        return first.epoch if first is not None and is_new else None

    def has_epoch(self) -> None:
        """Update the summary after an epoch was begun in the log for the records that follow."""
        epochs = tuple(self.log.state.epochs.entries())
        self.replica = self.replica.now(log=msgspec.structs.replace(self.replica.log, epochs=epochs))

    @property
    def is_damaged(self) -> bool:
        """Whether the log accepts no more writes."""
        try:
            self.log.check_writable()
        except StorageFault:
            return True
        except BrokerError:
            pass  # it is being closed
        return False

    def _summed_up(self, replica: Replica) -> LogSummary:
        return msgspec.structs.replace(summary_of(self.log), cuts=replica.log.cuts + 1)

    def _not_written(self, before: Replica, message: Message, error: Exception) -> None:
        """Undo the step, and report damage of the log or of the leader's batches."""
        if isinstance(message, Append):
            self.replica = before
        else:
            # Only some of the leader's batches may have been written.
            self.replica = before.now(log=self._summed_up(before), flush_on_ack=self.replica.flush_on_ack)
        if self.is_damaged:
            self.step(Damaged())
        if isinstance(message, Append):
            raise error
        if isinstance(error, ProtocolError) and isinstance(message, Fetched):
            self.step(CorruptAnswer(message.question))
        elif not isinstance(error, StorageFault) and not self.log.is_closed:  # a closed log has nothing more to report
            raise error

    def append(self, token: int, data: bytes, *, needs_all: bool = True) -> None:
        """Append a producer's batches; a retry waits until the earlier batches are committed.

        Errors are reported as outcomes.
        """
        try:
            produced = Produced(data, list(read_headers(data)), self._port.wall_ms())
            if not self.is_leader or self.repeated(token, produced) is None:
                self.step(Append(token, produced.records, produced, needs_all=needs_all))
        except BrokerError as error:
            self._port.outcome(Failed(token, error.reason))
        except StorageFault:
            self._port.outcome(Failed(token, Reason.UNAVAILABLE))

    def repeated(self, token: int, produced: Produced) -> Appended | None:
        """Return the offsets of a retried batch; `token` settles once they are committed. None if the batch is new."""
        for header in produced.headers:
            duplicate = self.log.state.producers.check(header)
            if duplicate is not None:
                self.step(Await(token, duplicate.last_offset + 1))
                return Appended(duplicate.base_offset, duplicate.last_offset, duplicate=True)
        return None

    # -- on the log --------------------------------------------------------------------------------------------

    def _take_common_end(self, message: Message) -> None:
        role = self.replica.role
        if isinstance(message, Fetched) and isinstance(role, Follower) and follower.is_for_my_question(role, message):
            self._told_common_end = message.common_end

    def _keep_watermark(self) -> None:
        """Save the high watermark and the common end.

        The common end may change alone: it falls when a replica comes back empty.
        """
        is_alone = self.log.state.is_alone
        if self.is_sole and not sole.has_external(self.replica):
            if not is_alone:
                self.log.become_sole_replica()
            return
        if is_alone:
            self.log.replicate()
        role = self.replica.role
        if isinstance(role, Leader):
            self._told_common_end = leader.common_end(self.replica, role)
        self.log.keep_watermark(self.replica.watermark, common_end=self._told_common_end)

    def _persist(self, effect: Effect) -> None:
        match effect:
            case Write(batch):
                self._write(batch)
            case Truncate(end):
                self._about_to_lose(end, self.log.end_offset)
                self.log.truncate(end)
            case Resync():
                self.log.restart_at(0, now_ms=self._port.wall_ms(), sets_aside=True)
            case ResetLogTo(offset):
                self._about_to_lose(self.log.watermark, self.log.end_offset)
                self.log.restart_at(offset, now_ms=self._port.wall_ms())
            case Trim(start):
                # A log that ended where its leader's begins now was not compared with it: no replica has the records
                # below any longer.
                self._about_to_lose(self.log.watermark, start)
                self.log.advance_start(start)
            case Sync(end, cuts):
                self._port.sync(end, cuts)
            case BeginEpoch(epoch):
                self._port.begin_epoch(epoch)
            case CheckFile(offset):
                self._port.beside(lambda: self._checked(offset))

    def _about_to_lose(self, start: int, end: int) -> None:
        if self.before_cut is not None and start < end:
            self.before_cut(start, end)

    def _write(self, batch: Batch) -> None:
        match batch.records:
            case Produced(data, headers, now_ms, checked, own):
                appended = self.log.append(
                    data, leader_epoch=batch.epoch, now_ms=now_ms, records_checked=checked, headers=headers, own=own
                )
            case Marker(data, now_ms):
                appended = self.log.append_marker(data, leader_epoch=batch.epoch, now_ms=now_ms)
            case bytes() | bytearray() | memoryview() as data:
                appended = self.log.append_replicated(data, now_ms=self._port.wall_ms())
            case _:
                raise AssertionError(batch.records)
        assert (appended.next_offset, appended.duplicate) == (batch.end, False)

    def synced(self, end: int, cuts: int) -> Message:
        try:
            self.log.sync(end if cuts == self.replica.log.cuts else None)
        except StorageFault:
            return Damaged()
        return Synced(end, cuts)

    def epoch_started(self, epoch: int) -> Message | None:
        if self.replica.epoch != epoch or not isinstance(self.replica.role, Leader):
            return None  # another epoch is current, and its records may follow already
        try:
            self.log.begin_epoch(epoch)
        except StorageFault:
            return Damaged()
        return EpochStarted(epoch)

    def _checked(self, offset: int) -> Message | None:
        try:
            self.log.check_again(offset)
        except StorageFault:
            return Damaged()
        return None

    # -- to other nodes ----------------------------------------------------------------------------------------

    def _send(self, message: Send) -> None:
        match message:
            case Respond():
                self._respond(message)
            case ProposeChange() | Resign() | ReportLogEnd():
                self._port.propose(message)
            case Fetch():
                self._port.send(message.leader, message)
            case Complaint():
                if isinstance(self.replica.role, Follower):
                    self._port.send(self.replica.role.leader, message)
            case _:
                self._port.send(message.question.node, message)

    def _respond(self, asked: Respond) -> None:
        try:
            data = self.log.read(asked.question.offset, ANSWER_BYTES_MAX, upto=asked.end)
            batches = tuple(
                Batch(
                    header.base_offset,
                    header.next_offset,
                    header.leader_epoch,
                    data[at : at + header.size_bytes],
                    is_empty=header.record_count == 0,
                )
                for at, header in iter_batches(data)
            )
        except (StorageFault, ProtocolError):
            self.step(Damaged())
            return
        answer = Fetched(asked.question, batches, asked.watermark, asked.start, asked.common_end, asked.round)
        self._port.send(asked.question.node, answer)


def summary_of(log: PartitionLog) -> LogSummary:
    """Summarize a log that was just opened, for replication."""
    return LogSummary(
        start=log.start_offset,
        end=log.end_offset,
        durable=log.durable_offset,
        epochs=tuple(log.state.epochs.entries()),
    )
