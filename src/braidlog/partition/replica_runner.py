"""One replica of a partition on this node: carries out, on its log, what the steps of `replication/` ask for.

Knows: the log, the replica's state, in which order things are done. Refuses to know: sockets, threads, who waits for an answer:
those are behind `ReplicaPort`. Invariants: the state's summary of the log and the log agree between two messages; what a step
persists is done before anything of that step is sent, and told to those who wait last; the log is told after each step what is
committed, and keeps it.
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
"""Why the log did not take what it was to take."""
Persist = Callable[[], Refused | None]
Apart = Callable[[Persist, Callable[[Refused | None], None]], None]
"""apart(persist, then): do something that takes a disk long, and then, on the loop, what follows from it. Nothing may be told to
the replica in between."""


def at_once(persist: Persist, then: Callable[[Refused | None], None]) -> None:
    """For whoever may wait."""
    then(persist())


ON_DISK = (Write, Truncate, Resync, ResetLogTo, Trim)
"""What is done to the log itself; all else is asked of others."""


class Produced(NamedTuple):
    """What a producer sent, with all that its log has to know of it."""

    data: Buffer
    headers: Sequence[BatchHeader]
    now_ms: int
    records_checked: bool = True
    own: bool = False
    """Whether this node has sealed it."""

    @property
    def records(self) -> int:
        return sum(header.last_offset_delta + 1 for header in self.headers)


class Marker(NamedTuple):
    """The end of a transaction."""

    data: bytes
    now_ms: int


class ReplicaPort(Protocol):
    """What is around a replica."""

    def now_ms(self) -> int:
        """By a clock that never goes back."""
        ...

    def wall_ms(self) -> int:
        """By the clock on the wall, for what is written."""
        ...

    def send(self, node: int, message: Fetch | Answer | Complaint) -> None: ...

    def propose(self, proposal: Proposal) -> None:
        """To the metadata; what becomes of it is told by `Assigned` or `ChangeRefused`."""
        ...

    def sync(self, end: int, cuts: int) -> None:
        """Make durable what is below `end`, then `tell` what `ReplicaRunner.synced` says. Several may be one."""
        ...

    def begin_epoch(self, epoch: int) -> None:
        """Let the log begin an epoch, durably, then `tell` what became of it. May be done for many logs together."""
        ...

    def beside(self, work: Callable[[], Message | None]) -> None:
        """Do something slow beside the loop, one after the other in the order asked for; then `tell` what it returns."""
        ...

    def outcome(self, outcome: Apply) -> None:
        """To whoever waits on this node."""
        ...


class ReplicaRunner:
    """A `Replica` over a real log that was just opened. Everything that happens to it comes in by `tell` and `append`."""

    def __init__(
        self, log: PartitionLog, node: int, port: ReplicaPort, *, flush_on_ack: bool, apart: Apart = at_once
    ) -> None:
        self.log = log
        self._apart = apart
        self._port = port
        self._is_behind = False
        """Whether the log has grown, or the watermark has moved, without a step."""
        self.replica = opened(node, UNREGISTERED, summary_of(log), log.replicate(), flush_on_ack=flush_on_ack)
        if log.damages:
            self.replica = self.replica.now(is_damaged=True)
        self.before_cut: Callable[[int, int], None] | None = None
        """Called before records go that may not be committed: from one offset up to another. A `StorageFault` keeps them."""
        self._told_common_end = 0

    @property
    def replica(self) -> Replica:
        """The state of the replica, with all that the short ways of an only replica have done."""
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

    # -- the short ways of an only replica: nothing is asked of a step, and no message is built -----------------

    def append_alone(self, produced: Produced) -> Appended:
        """Append what a producer sent; a retry returns the offsets it has. For an only replica that leads (`is_sole`)."""
        self._is_behind = True
        data, headers, now_ms, checked, own = produced
        return self.log.append(
            data, leader_epoch=self._replica.epoch, now_ms=now_ms, records_checked=checked, headers=headers, own=own
        )

    def append_section_alone(
        self, section: Buffer, count: int, base_timestamp: int, now_ms: int
    ) -> tuple[Appended, int] | None:
        """Append packed records as one batch that is sealed in the log; its size, too. None: nothing was done."""
        self._is_behind = True
        return self.log.append_section(section, count, base_timestamp, leader_epoch=self.epoch, now_ms=now_ms)

    def append_marker_alone(self, marker: bytes, now_ms: int) -> int:
        """Append the end of a transaction; returns the offset after it."""
        self._is_behind = True
        return self.log.append_marker(marker, leader_epoch=self._replica.epoch, now_ms=now_ms).next_offset

    def count_alone(self) -> bool:
        """Commit what the only replica has, durably if the topic says so. Return whether the watermark has moved."""
        log = self.log
        counted = log.durable_offset if self._replica.flush_on_ack else log.end_offset
        if counted <= self.watermark:
            return False
        self.watermark = counted
        self._is_behind = True
        return True

    def resume(self, assigned: Assigned, epoch: int) -> None:
        """Lead on in `epoch`, the last one of a log that was opened again: the only replica is here."""
        self.replica = sole.resumed(self._replica, assigned, epoch)
        self._keep_watermark()

    # -- all others: a step for each message ---------------------------------------------------------------------

    def step(self, message: Message) -> None:
        """Take one step, and carry out what follows from it.

        Raises what the log says to a producer's records: then nothing of them was written, and the step has not been taken.
        """
        if self.log.start_offset > self.replica.log.start:  # retention has let go of something
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
        """No batch is divided: a cut inside of one is made where it begins, and the step has to know that."""
        role, log = self.replica.role, self.log
        if not isinstance(role, Follower) or not follower.is_for_my_question(role, answer):
            return answer
        point = follower.truncation_point(self.replica, answer)
        if not log.start_offset <= point < log.end_offset:
            return answer
        try:
            return msgspec.structs.replace(answer, end=min(answer.end, log.batch_start(point)))
        except StorageFault:
            return answer  # the cut will say so itself

    def _is_slow(self, effect: Effect) -> bool:
        """Whether something is synced, and more than once. A leader writes nothing of the kind but what it is told to delete."""
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
        # Another life of the node has begun meanwhile, over what is in the log now. Nothing is said for the one before.
        self.replica = self.replica.now(log=self._summed_up(self.replica))
        for outcome in rest.apply:
            self._port.outcome(outcome)

    def _finish(self, before: Replica, message: Message, ready: Ready, error: Refused | None) -> None:
        if error is not None:
            # What was to be sent, and to be told, relies on what could not be written.
            self._not_written(before, message, error)
            return
        self._keep_watermark()
        for each in ready.send:
            self._send(each)
        for outcome in ready.apply:
            self._port.outcome(outcome)

    # -- the epochs of a leader's records ----------------------------------------------------------------------

    def up_to_next_epoch(self, answer: Fetched) -> Fetched:
        """The batches of one epoch: those of the next are asked for once more; its beginning is saved before, with others'."""
        new = [each for each in answer.batches if each.end > self.log.end_offset]
        if not new or new[-1].epoch == new[0].epoch:
            return answer
        return msgspec.structs.replace(answer, batches=tuple(each for each in new if each.epoch == new[0].epoch))

    def epoch_to_begin(self, answer: Fetched) -> int | None:
        """The epoch that begins at the end of the log with what a leader sent; None: no epoch does."""
        role, log = self.replica.role, self.log
        if not isinstance(role, Follower) or not follower.is_for_my_question(role, answer) or self.is_damaged:
            return None
        first = next((each for each in answer.batches if each.end > log.end_offset), None)
        is_new = first is not None and first.base == log.end_offset and first.epoch > log.state.epochs.latest
        return first.epoch if first is not None and is_new else None

    def has_epoch(self) -> None:
        """An epoch was begun in the log, for records that are to follow: its history is another from now on."""
        epochs = tuple(self.log.state.epochs.entries())
        self.replica = self.replica.now(log=msgspec.structs.replace(self.replica.log, epochs=epochs))

    @property
    def is_damaged(self) -> bool:
        """Whether the log takes no more writes."""
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
        """Take the step back, and say what is wrong with the log, or with what a leader sent."""
        if isinstance(message, Append):
            self.replica = before
        else:
            # Some of a leader's batches may have been written, and others not.
            self.replica = before.now(log=self._summed_up(before), flush_on_ack=self.replica.flush_on_ack)
        if self.is_damaged:
            self.step(Damaged())
        if isinstance(message, Append):
            raise error
        if isinstance(error, ProtocolError) and isinstance(message, Fetched):
            self.step(CorruptAnswer(message.question))
        elif not isinstance(error, StorageFault) and not self.log.is_closed:  # a closed one has nothing more to say
            raise error

    def append(self, token: int, data: bytes, *, needs_all: bool = True) -> None:
        """Write a producer's batches; a retry of what is in the log waits until that is committed. All else is an outcome."""
        try:
            produced = Produced(data, list(read_headers(data)), self._port.wall_ms())
            if not self.is_leader or self.repeated(token, produced) is None:
                self.step(Append(token, produced.records, produced, needs_all=needs_all))
        except BrokerError as error:
            self._port.outcome(Failed(token, error.reason))
        except StorageFault:
            self._port.outcome(Failed(token, Reason.UNAVAILABLE))

    def repeated(self, token: int, produced: Produced) -> Appended | None:
        """What is in the log already, if this is a retry of it: `token` is told once that is committed."""
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
        """Also if only the common end moved: it falls when a replica comes back with nothing."""
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
                # A log that ended where its leader's begins now was not compared with it: nobody has what is below any more.
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
            return None  # it is over before it has begun: another one is in force, whose records may follow already
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

    # -- to others ---------------------------------------------------------------------------------------------

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
    """What replication has to know of a log that was just opened."""
    return LogSummary(
        start=log.start_offset,
        end=log.end_offset,
        durable=log.durable_offset,
        epochs=tuple(log.state.epochs.entries()),
    )
