"""Run one partition on this node: its log, its replica, and the requests that wait for its high watermark.

Its replica may be the only one. Messages queue while an epoch begins or the log is truncated. Invariants:

- Only a leader appends for producers, and only once its epoch is durable.
- A consumer reads only below the high watermark.
- With `flush = ack` the leader counts durable records only, so a crash never loses committed records.
- A request that waits is answered in the leader epoch in which it began.
- State computed from truncated records is dropped before the next read.
"""

import logging
from collections.abc import Callable, Iterable

from braidlog.codec.batch.header import read_header
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.model.runtime.runtime import Runtime, Wakeup
from braidlog.model.settings import Flush, TopicSettings
from braidlog.partition.held_writes import HeldWrites
from braidlog.partition.hosted_log import HostedLog, Opener, Role
from braidlog.partition.partition_context import Key, PartitionContext
from braidlog.partition.replica_runner import Buffer, Marker, Persist, Produced, Refused, ReplicaRunner
from braidlog.replication import external, follower_reads
from braidlog.replication.leader import write_refusal
from braidlog.replication.messages import (
    Answer,
    Append,
    Assigned,
    Await,
    Complaint,
    Damaged,
    DeleteBelow,
    EpochStarted,
    ExternalFetched,
    Fetch,
    Fetched,
    Message,
    Reach,
    ReadIndex,
    SetExternalInSync,
    Synced,
    Tick,
    Withdraw,
)
from braidlog.replication.ready import (
    Apply,
    DiscardAbove,
    Done,
    Failed,
    LossPossible,
    Proposal,
    Stopped,
    UncleanLeader,
    Watermark,
)
from braidlog.replication.replica_state import Leader
from braidlog.storage.log.partition_log import Appended, PartitionLog
from braidlog.storage.recovery.clean_shutdown import ClosedPartition

NOBODY = -1
"""The token of a request without a waiting caller."""


class _Countdown:
    """Wakes a caller that waits for several outcomes once the last one is known."""

    __slots__ = ("_left", "_wakeup")

    def __init__(self, left: int, wakeup: Wakeup) -> None:
        self._left = left
        self._wakeup = wakeup

    def wake(self) -> None:
        self._left -= 1
        if not self._left:
            self._wakeup.wake()


class Acknowledgement:
    """The outcome of a request to a replica, once it is known."""

    __slots__ = ("_wakeup", "outcome", "token")

    def __init__(self, token: int = NOBODY) -> None:
        self.token = token
        """Identifies the request to its partition."""
        self.outcome: Done | Failed | None = None
        self._wakeup: Wakeup | _Countdown | None = None

    def settle(self, outcome: Done | Failed) -> None:
        self.outcome = outcome
        if self._wakeup is not None:
            self._wakeup.wake()

    def then_wake(self, wakeup: Wakeup | _Countdown) -> None:
        self._wakeup = wakeup

    async def wait(self, runtime: Runtime, seconds: float) -> Done | Failed | None:
        """Return the outcome; None on timeout: the outcome is then unknown."""
        if self.outcome is None and seconds > 0:
            self._wakeup = wakeup = runtime.wakeup(owed=True)
            await wakeup.wait(seconds)
        return self.outcome


async def settled_together(asked: Iterable[Acknowledgement], runtime: Runtime, seconds: float) -> None:
    """Return when all outcomes are known, or on timeout."""
    left = [each for each in asked if each.outcome is None]
    if left:
        wakeup = runtime.wakeup(owed=True)
        countdown = _Countdown(len(left), wakeup)
        for each in left:
            each.then_wake(countdown)
        await wakeup.wait(seconds)


log = logging.getLogger("braidlog.partition")

SETTLED_SECONDS_MAX = 60.0
"""How long a transaction marker or a DeleteRecords request may wait for the in-sync replicas."""


class Partition(HostedLog):
    """One partition on this node."""

    __slots__ = (
        "_is_syncing",
        "_pending",
        "_tokens",
        "followed",
        "held_writes",
        "topic_id",
        "verified",
    )

    def __init__(
        self,
        topic: str,
        topic_id: str,
        number: int,
        held: PartitionLog | ClosedPartition,
        node: PartitionContext,
        opener: Opener,
        *,
        resumes: Assigned | None = None,
    ) -> None:
        """`resumes`: the assignment in which this node, with the only replica, continues to lead."""
        super().__init__(topic, number, held, opener, node)
        self.topic_id = topic_id
        self._pending: dict[int, Acknowledgement] = {}
        self.held_writes = HeldWrites()
        """Holds writes during a leadership transfer: every producer then gets its answer before another node leads."""
        self._tokens = 0
        self._is_syncing = False
        self.followed: Callable[[], None] | None = None
        """Called after each step, for state that is derived from the records."""
        self.verified: dict[int, int] = {}
        """Producer id → epoch of the transactions verified to write here (`transaction_verification.py`).

        A marker removes its producer; a change of the leader removes all.
        """
        self._assigned = resumes
        if resumes is not None:
            latest = held.epochs[-1][0] if isinstance(held, ClosedPartition) and held.epochs else 0
            latest = held.state.epochs.latest if isinstance(held, PartitionLog) else latest
            self.role, self._refusal = Role.LEADER, None
            self.leader_epoch = max(resumes.assignment.leader_epoch, latest)
        if isinstance(held, PartitionLog):
            self._was_opened(held)
        if node.incarnation is not None and resumes is None:
            self.registered_as(node.incarnation)

    @property
    def key(self) -> Key:
        return bytes.fromhex(self.topic_id), self.number

    # -- opening and closing the log ---------------------------------------------------------------------------

    def _was_opened(self, log: PartitionLog) -> None:
        flush_on_ack = log.settings.flush is Flush.ACK
        replicated = ReplicaRunner(log, self.node.number, self, flush_on_ack=flush_on_ack, apart=self._apart)
        if self._assigned is not None:
            replicated.resume(self._assigned, self.leader_epoch)
        self._replicated = replicated

    def _was_closed(self) -> None:
        self._replicated = None

    @property
    def may_close(self) -> bool:
        """Whether an idle log can be closed: it has no followers, no fault and no work in progress."""
        log = self.open_log
        return (
            log is not None
            and self.node.may_close
            and self.is_sole
            and self.replicated.counts_alone
            and not self.fault
            and not log.report.is_unsaved
            and log.last_stable_offset == log.end_offset == self.high_watermark
        )

    # -- messages --------------------------------------------------------------------------------------------

    def step(self, message: Message) -> None:
        """Process a message; queue it if a thread is writing to the log."""
        if self._replicated is None and isinstance(message, Assigned):
            self._assigned = message  # used when the log opens; a change of the assignment opens it first
        elif self._replicated is None and isinstance(message, (ExternalFetched, SetExternalInSync)):
            raise external.unknown(message.node)  # a log with followers is never closed
        if self.is_gone or self._replicated is None:
            return
        if self._inbox is not None:
            if not isinstance(message, Tick):
                self._inbox.append(message)
            return
        replicated = self.replicated
        if isinstance(message, Fetched):
            message = replicated.up_to_next_epoch(message)
            if (epoch := replicated.epoch_to_begin(message)) is not None:
                self.begin_epoch(epoch)
                self._inbox = [message]
                return
        end = replicated.log.end_offset
        try:
            replicated.step(message)
        finally:
            self._show()
            if replicated.log.end_offset != end and not replicated.replica.flush_on_ack:
                self.node.runtime.appended(replicated.log)

    def _show(self) -> None:
        replica = self.replicated.replica
        role = Role.LEADER if self.replicated.is_leader else Role.FOLLOWER
        self._assigned = replica.assigned
        write_refusal = follower_reads.refusal(replica)
        if (role, replica.epoch, write_refusal) != (self.role, self.leader_epoch, self._refusal):
            is_led_anew = (role, replica.epoch) != (self.role, self.leader_epoch)
            self.role, self.leader_epoch, self._refusal = role, replica.epoch, write_refusal
            if role is Role.FOLLOWER:
                self.held_writes.release()
            self.verified.clear()
            self.wake()
            if is_led_anew:
                self.node.on_leadership_change(self)
        if self.followed is not None:
            self.followed()

    def registered_as(self, incarnation: int) -> None:
        """Continue as a new incarnation of the node; outstanding requests of the previous one fail."""
        self.replicated.replica = self.replicated.replica.registered_as(incarnation)
        if self._inbox is not None:  # a thread is still writing
            self._inbox = []
        self._fail_all()
        self._show()

    def _fail_all(self) -> None:
        pending, self._pending = self._pending, {}
        for token, each in pending.items():
            each.settle(Failed(token, Reason.NOT_LEADER))

    def retire(self) -> None:
        """Stop, because the topic is being deleted or the replica moved: reject appends and fail all waiters."""
        self.is_gone = True
        self.wake()
        self._fail_all()
        self.held_writes.release()
        self.node.on_leadership_change(self)

    def tick(self) -> None:
        """Process a tick. Detects a log that has stopped outside of a step (a failed sync, damage found by a read)."""
        if self._inbox is None:
            is_new = self.replicated.is_damaged and not self.replicated.replica.is_damaged
            self.step(Damaged() if is_new else Tick())

    # -- fast paths of an only replica --------------------------------------------------------------------------

    def append_alone(self, produced: Produced) -> Appended:
        """Append a producer's batches to an only replica. The caller must call `advance` next."""
        appended = self.replicated.append_alone(produced)
        self._tell_external()
        return appended

    def append_section_alone(
        self, section: Buffer, count: int, base_timestamp: int, now_ms: int
    ) -> tuple[Appended, int] | None:
        """Append packed records as one batch, sealed in the log of an only replica.

        None: seal and call `append_alone`.
        """
        self.is_used = True
        appended = self.replicated.append_section_alone(section, count, base_timestamp, now_ms)
        self._tell_external()
        return appended

    def _tell_external(self) -> None:
        """Wake external followers: they wait for the log to grow, long before the high watermark can advance."""
        if self._waiting and not self.replicated.counts_alone:
            self.wake()

    def advance(self) -> int:
        """Advance the high watermark after an append or a sync, and wake its waiters."""
        replicated = self._replicated
        if replicated is None or self.is_gone:
            return self.high_watermark
        if replicated.counts_alone and self._inbox is None:
            if replicated.count_alone():
                if self._waiting:
                    self.wake()
                if self.followed is not None:
                    self.followed()
        else:
            self.step(Synced(replicated.log.durable_offset, replicated.replica.log.cuts))
        return replicated.watermark

    # -- requests of clients ----------------------------------------------------------------------------------

    @property
    def is_awaited(self) -> bool:
        """Whether the outcome of an append or another request is outstanding."""
        return bool(self._pending) or (self.is_sole and self.high_watermark < self.end_offset)

    def produce(
        self, produced: Produced, *, needs_all: bool, is_awaited: bool, reach: Reach = Reach.IN_SYNC
    ) -> tuple[Appended, Acknowledgement]:
        """Append a producer's batches, or find them in the log; raise before writing if they could not be committed.

        With an only replica the acknowledgement stays open: `advance` and `durable_alone` report the commit.
        """
        self.require_room(needs_all=needs_all, reach=reach)
        if self.is_sole:
            return self._produce_alone(produced), Acknowledgement()
        acknowledgement = self._await() if is_awaited else Acknowledgement()
        token = acknowledgement.token
        try:
            appended = self.replicated.repeated(token, produced)
            if appended is None:
                base = self.end_offset
                self.step(Append(token, produced.records, produced, needs_all=needs_all, reach=reach))
                appended = Appended(base, base + produced.records - 1)
        except (BrokerError, ProtocolError, StorageFault):
            self._pending.pop(token, None)
            raise
        if isinstance(acknowledgement.outcome, Failed):
            raise self.failed(acknowledgement.outcome.reason)
        return appended, acknowledgement

    def _produce_alone(self, produced: Produced) -> Appended:
        replicated = self.replicated
        appended = replicated.append_alone(produced)
        self.advance()
        if replicated.log.settings.flush is Flush.ACK:
            self.sync(appended.next_offset, 0)
        else:
            self.node.runtime.appended(replicated.log)
        return appended

    def append_marker(self, marker: bytes, now_ms: int) -> int:
        """Append a transaction marker; return the offset below which the log must be durable for it to count."""
        self.require_room(needs_all=False)
        self.verified.pop(read_header(marker).producer_id, None)
        if self.is_sole:
            return self.replicated.append_marker_alone(marker, now_ms)
        self.step(Append(NOBODY, 1, Marker(marker, now_ms), needs_all=False))
        return self.end_offset

    async def wait_durable(self, next_offset: int, runtime: Runtime) -> None:
        """Return when everything below `next_offset` is committed in the current leader epoch."""
        epoch = self.leader_epoch
        if not await self.durable_alone(next_offset, epoch, runtime):
            await self._settled(self.committed_later(next_offset, epoch), runtime)

    async def durable_alone(self, next_offset: int, epoch: int, runtime: Runtime) -> bool:
        """Wait for the sync of an only replica's log; return whether it has committed `next_offset`."""
        if not self.is_sole:
            return False
        await runtime.durable(self.replicated.log, next_offset)
        self.advance()
        return self.leader_epoch == epoch and self.is_sole

    async def delete_below(self, offset: int, runtime: Runtime) -> int:
        """Delete records below `offset`; return the log start once every in-sync replica has it."""
        if self.is_sole:
            log = self.log
            start = await runtime.blocking(lambda: log.advance_start(offset))
            self.wake()
            return start
        acknowledgement = self._await()
        self.step(DeleteBelow(acknowledgement.token, offset))
        await self._settled(acknowledgement, runtime)
        return self.start_offset

    def submit(self, ask: Callable[[int], Await | ReadIndex]) -> Acknowledgement:
        """Submit a request to the replica; pass the result to `wait_committed`."""
        acknowledgement = self._await()
        self.step(ask(acknowledgement.token))
        return acknowledgement

    async def wait_committed(self, asked: Acknowledgement, runtime: Runtime, seconds: float) -> None:
        """Return when the request is committed in the leader epoch of its submission.

        Raise TIMED_OUT otherwise, and withdraw it.
        """
        try:
            await asked.wait(runtime, seconds)
        finally:
            self._withdraw(asked)
        self.result_or_raise(asked)

    def result_or_raise(self, asked: Acknowledgement) -> None:
        """Withdraw the request; raise unless it is committed by now."""
        self._withdraw(asked)
        outcome = asked.outcome
        if not isinstance(outcome, Done):
            raise self.failed(Reason.TIMED_OUT if outcome is None else outcome.reason)

    def _withdraw(self, asked: Acknowledgement) -> None:
        if self._pending.pop(asked.token, None) is not None:
            self.step(Withdraw(asked.token))

    def committed_later(self, next_offset: int, epoch: int | None = None, *, in_sync_min: int = 0) -> Acknowledgement:
        """Return an acknowledgement that settles once everything below `next_offset` is committed.

        It fails if the leader epoch is not or no longer `epoch`, if that is given. `in_sync_min` is the number of
        in-sync replicas that it also requires, external followers included.
        """
        acknowledgement = self._await()
        if epoch not in (None, self.leader_epoch):
            self._pending.pop(acknowledgement.token).settle(Failed(acknowledgement.token, Reason.NOT_LEADER))
            return acknowledgement
        self.step(Await(acknowledgement.token, next_offset, in_sync_min=in_sync_min))
        log = self.replicated.log
        if log.settings.flush is Flush.ACK and log.durable_offset < next_offset:
            self.sync(next_offset, 0)
        return acknowledgement

    async def _settled(self, acknowledgement: Acknowledgement, runtime: Runtime) -> None:
        outcome = await acknowledgement.wait(runtime, SETTLED_SECONDS_MAX)
        if not isinstance(outcome, Done):
            raise self.failed(Reason.TIMED_OUT if outcome is None else outcome.reason)

    def _await(self) -> Acknowledgement:
        self._tokens += 1
        acknowledgement = self._pending[self._tokens] = Acknowledgement(self._tokens)
        return acknowledgement

    def require_room(self, *, needs_all: bool, reach: Reach = Reach.IN_SYNC) -> None:
        """Raise if a write with this acknowledgement would be rejected now."""
        self.require_leader()
        replica = self.replicated.replica
        assert isinstance(replica.role, Leader)
        reason = write_refusal(replica, replica.role, needs_all=needs_all, reach=reach)
        if reason is not None:
            raise self.failed(reason)

    def failed(self, reason: Reason) -> BrokerError:
        """Build the error for a reason, with its text."""
        replicas = self.replicas
        texts = {
            Reason.NOT_LEADER: f"this node does not lead {self} any more: ask the metadata who does",
            Reason.NOT_ENOUGH_REPLICAS: (
                f"{len(replicas.in_sync)} of {replicas.replication_factor} replicas of {self} are in sync, "
                f"{replicas.min_in_sync} must be: nothing was written, try again"
            ),
            Reason.TIMED_OUT: f"the in-sync replicas of {self} have not followed in time",
            Reason.UNAVAILABLE: f"{self} takes no writes now: {self.fault or 'too many wait for its followers'}",
        }
        return BrokerError(reason, texts.get(reason, f"{self} cannot do this now: {reason.name}"))

    # -- callbacks of its replica (`ReplicaPort`) --------------------------------------------------------------

    def now_ms(self) -> int:
        return int(self.node.runtime.monotonic() * 1000)

    def wall_ms(self) -> int:
        return self.node.runtime.now_ms()

    def send(self, node: int, message: Fetch | Answer | Complaint) -> None:
        self.node.send(node, self.key, message)

    def propose(self, proposal: Proposal) -> None:
        self.node.propose(self, proposal)

    def sync(self, end: int, cuts: int) -> None:  # noqa: ARG002 - one sync serves all waiters
        if not self._is_syncing:
            self._is_syncing = True
            self.node.runtime.sync_soon(self.replicated.log, self._synced)

    def _synced(self) -> None:
        """Advance after a sync. A concurrent truncation syncs what it keeps, so the log's offsets are valid."""
        self._is_syncing = False
        self.advance()
        log, replica = self.replicated.log, self.replicated.replica
        if replica.flush_on_ack and log.durable_offset < log.end_offset:
            self.sync(log.end_offset, replica.log.cuts)

    def begin_epoch(self, epoch: int) -> None:
        self._inbox = []
        self.node.begin_epoch(self, epoch)

    def epoch_started(self, epoch: int, fault: StorageFault | None) -> None:
        """Continue after the epoch became durable, or with the fault."""
        replicated = self.replicated
        if isinstance(replicated.replica.role, Leader):
            self._go_on(EpochStarted(epoch) if fault is None else Damaged())
            return
        if fault is None:
            replicated.has_epoch()
        else:  # there may have been no disk space: the records are fetched again
            self._inbox = [each for each in self._inbox or () if not isinstance(each, Fetched)]
        self._go_on(*([Damaged()] if replicated.is_damaged and not replicated.replica.is_damaged else []))

    def _go_on(self, *first: Message) -> None:
        """Continue after the work on a thread: process the queued messages."""
        held, self._inbox = self._inbox or (), None
        for message in (*first, *held):
            self.step(message)
        self.wake()  # consumers of a follower wait until its log can be read again

    def _apart(self, persist: Persist, then: Callable[[Refused | None], None]) -> None:
        self._inbox = []

        async def do() -> None:
            error = await self.node.runtime.blocking(persist)
            if not self.is_gone:
                then(error)
                self._show()
                self.node.runtime.appended(self.replicated.log)
                self._go_on()

        self.node.spawn(do(), f"cut {self}")

    def beside(self, work: Callable[[], Message | None]) -> None:
        async def do() -> None:
            message = await self.node.runtime.blocking(work)
            if message is not None:
                self.step(message)

        self.node.spawn(do(), "replica-check")

    def outcome(self, outcome: Apply) -> None:
        match outcome:
            case Done(token) | Failed(token):
                if (waiting := self._pending.pop(token, None)) is not None:
                    waiting.settle(outcome)
            case Watermark():
                self.wake()
            case DiscardAbove(offset):
                self._drop_above(offset)
            case LossPossible(offset, until):
                log.error(
                    "%s: records from %d to %d were committed and are lost, by an unclean election", self, offset, until
                )
            case UncleanLeader(offset):
                log.error(
                    "%s: leads with the longest log that was left, up to %d: no copy survived whole, and what was acknowledged "
                    "last may be lost (it was not flushed: flush = ack would have kept it)",
                    self,
                    offset,
                )
            case Stopped():
                self.node.replaced()

    def renew(self, settings: TopicSettings) -> None:
        super().renew(settings)
        if self._replicated is not None:
            self._replicated.replica = self._replicated.replica.now(flush_on_ack=settings.flush is Flush.ACK)
