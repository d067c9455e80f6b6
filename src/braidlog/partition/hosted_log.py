"""Describe a partition on this node: its log, which may be closed while idle, and its replica.

Invariants: a log is open at most once, and a caller that requests it gets an open one. A consumer reads below the
high watermark only; on a follower, below the watermark that its leader has reported.
"""

import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from braidlog.codec.batch.records import EndMarker
from braidlog.model.errors import BrokerError, NotLeaderError, Reason, StorageFault
from braidlog.model.names import no_topic
from braidlog.model.runtime.runtime import Wakeup
from braidlog.model.settings import TopicSettings
from braidlog.partition.maintenance.log_maintenance import is_due
from braidlog.partition.partition_context import PartitionContext
from braidlog.partition.replica_runner import ReplicaRunner
from braidlog.replication import follower_reads
from braidlog.replication.messages import Assigned, Message
from braidlog.replication.replica_state import Leader
from braidlog.replication.replicas import Replicas, described
from braidlog.storage.log.partition_log import FileSlice, PartitionLog
from braidlog.storage.recovery.clean_shutdown import ClosedPartition
from braidlog.storage.recovery.damage import Damage
from braidlog.storage.state.partition_state import EpochHistory

Opener = Callable[[str, int], PartitionLog]
"""Opens the log of a topic's partition."""


class Role(StrEnum):
    LEADER = "leader"
    FOLLOWER = "follower"


class ActiveProducer(NamedTuple):
    """A producer that the partition remembers.

    `open_since`: the first offset of its open transaction, if it has one.
    """

    producer_id: int
    epoch: int
    last_sequence: int | None
    timestamp_ms: int
    open_since: int | None


class HostedLog:
    """A log, open or closed, and its replica."""

    __slots__ = (
        "_assigned",
        "_derived",
        "_held",
        "_inbox",
        "_is_leaving",
        "_lock",
        "_open",
        "_refusal",
        "_replicated",
        "_waiting",
        "is_gone",
        "is_moved",
        "is_used",
        "leader_epoch",
        "node",
        "number",
        "record_bytes",
        "role",
        "topic",
    )

    def __init__(
        self, topic: str, number: int, log: PartitionLog | ClosedPartition, opener: Opener, node: PartitionContext
    ) -> None:
        self.topic = topic
        self.number = number
        self._held = log
        """The open log, or the summary of the closed one: replaced in one step, so every thread sees one of them."""
        self._is_leaving = False
        """The log is about to be closed; a request for it during this keeps it open."""
        self._open = opener
        self._lock = threading.Lock()
        """Held by the thread that opens or closes the log."""
        self.role = Role.FOLLOWER
        self.leader_epoch = 0
        self.node = node
        self._assigned: Assigned | None = None
        self._inbox: list[Message] | None = None
        """Messages that arrive while a thread begins an epoch or truncates the log: nothing may be written during
        this.
        """
        self._refusal: Reason | None = Reason.NOT_LEADER
        """Why consumers are not served here."""
        self._replicated: ReplicaRunner | None = None
        """None while the log is closed: this node then leads with the only replica."""
        self._waiting: set[Wakeup] = set()
        self._derived: list[Callable[[int], None]] = []
        self.is_gone = False
        self.is_moved = False
        """The replica was moved to other nodes."""
        self.is_used = isinstance(log, PartitionLog)
        """Whether the log was requested since this was last set to False."""
        self.record_bytes = 0
        """The approximate size of a record in the log, as of the last read of rows; 0: unknown.

        A request for few records reads only about as much from the log: finding where megabytes end would cost more
        than encoding a thousand rows.
        """

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"

    # -- opening and closing ---------------------------------------------------------------------------------

    @property
    def log(self) -> PartitionLog:
        """The open log. Opens a closed one on the calling thread: on the event loop, await `opening.wake` first."""
        self.is_used = True
        held = self._held
        return held if isinstance(held, PartitionLog) and not self._is_leaving else self.reopen()

    @property
    def open_log(self) -> PartitionLog | None:
        """The log if it is open. Does not count as use."""
        held = self._held
        return held if isinstance(held, PartitionLog) else None

    @property
    def is_open(self) -> bool:
        return isinstance(self._held, PartitionLog) and not self._is_leaving

    def reopen(self) -> PartitionLog:
        """Return the log, opened if it is closed; runs on a thread."""
        with self._lock:
            self.is_used = True
            held, self._is_leaving = self._held, False
            if isinstance(held, ClosedPartition):
                self.require_hosted()
                held = self._open(self.topic, self.number)
                self._was_opened(held)
                self._held = held
            return held

    def begin_close(self) -> None:
        """Announce a close, on the event loop.

        Then a later request for the log waits, or cancels the close if it has not begun.
        """
        self._is_leaving = True

    def finish_close(self) -> bool:
        """Close the log and keep its summary; runs on a thread.

        A log that does not close cleanly stays, and its fault is raised.

        Returns whether it was closed: False if it was requested since, or if a compaction runs.
        """
        with self._lock:
            log = self.open_log
            if log is None or not self._is_leaving:
                return False
            rest = None
            try:
                if log.upkeep.acquire(blocking=False):
                    try:
                        log.close()
                        rest = log.closed_summary()
                    finally:
                        log.upkeep.release()
            finally:
                if rest is not None:
                    self._was_closed()
                self._held = rest or log
                self._is_leaving = False
            return rest is not None

    def close(self) -> None:
        """Close the log for good if it is open; runs on a thread."""
        with self._lock:
            if (log := self.open_log) is not None:
                log.close()

    def _was_opened(self, log: PartitionLog) -> None:
        """Called on a thread after the opening, before other callers see the log."""

    def _was_closed(self) -> None:
        """Called on a thread after the close: only the summary is left."""

    def renew(self, settings: TopicSettings) -> None:
        """Apply changed settings; a closed log gets them when it is opened."""
        if (log := self.open_log) is not None:
            log.settings = settings

    def require_hosted(self) -> None:
        if self.is_moved:
            raise NotLeaderError(self.topic, self.number, f"this node holds no replica of {self} any more")
        if self.is_gone:
            raise no_topic(self.topic)

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._held.start_offset

    @property
    def end_offset(self) -> int:
        return self._held.end_offset

    @property
    def size_bytes(self) -> int:
        held = self._held
        return held.shape.size_bytes if isinstance(held, ClosedPartition) else held.size_bytes

    @property
    def segment_count(self) -> int:
        held = self._held
        return held.shape.segments if isinstance(held, ClosedPartition) else len(held.segments)

    @property
    def newest_timestamp_ms(self) -> int:
        """The latest timestamp of all records; -1 without any."""
        held = self._held
        if isinstance(held, ClosedPartition):
            return held.shape.newest_ms
        return max((segment.max_timestamp_ms for segment in held.segments), default=-1)

    @property
    def damages(self) -> Sequence[Damage]:
        log = self.open_log
        return () if log is None else log.damages

    @property
    def fault(self) -> str:
        """Why the partition accepts no writes; empty if it does."""
        if (log := self.open_log) is None:
            return ""
        try:
            log.check_writable()
        except (StorageFault, BrokerError) as error:
            return str(error)
        return ""

    def is_due(self, settings: TopicSettings, now_ms: int) -> bool:
        """Return whether maintenance may have work: always for an open log, by its summary for a closed one."""
        held = self._held
        return is_due(held.shape, settings, now_ms) if isinstance(held, ClosedPartition) else True

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of an offset."""
        held = self._held
        return (EpochHistory(list(held.epochs)) if isinstance(held, ClosedPartition) else held.state.epochs).at(offset)

    def epochs(self) -> list[tuple[int, int]]:
        """Return each leader epoch and its start offset."""
        held = self._held
        return list(held.epochs) if isinstance(held, ClosedPartition) else held.image().epochs

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the end offset of `epoch`, or of the largest epoch below it."""
        return self._held.end_offset_for_epoch(epoch)

    def producers(self) -> list[ActiveProducer]:
        image = self.log.image()
        opened = dict(image.open_transactions)
        return [
            ActiveProducer(
                each.producer_id,
                each.epoch,
                each.batches[-1].last_sequence if each.batches else None,
                each.timestamp_ms,
                opened.get(each.producer_id),
            )
            for each in image.producers
        ]

    def slice_at(self, offset: int, bytes_max: int) -> FileSlice | None:
        """Return complete batches from the one that holds `offset`, committed or not; None at the log end."""
        return self.log.slice_at(offset, bytes_max)

    def has_ended(self, producer_id: int, marker: EndMarker) -> bool:
        """Return whether the log has this marker; raise if its coordinator has been replaced."""
        return self.log.state.producers.has_ended(producer_id, marker)

    # -- its replica -------------------------------------------------------------------------------------------

    @property
    def replicated(self) -> ReplicaRunner:
        """The replica; only while the log is open."""
        assert self._replicated is not None, f"the log of {self} is closed"
        return self._replicated

    @property
    def high_watermark(self) -> int:
        """The offset after the last committed record."""
        replicated = self._replicated
        return self._held.end_offset if replicated is None else replicated.watermark

    @property
    def last_stable_offset(self) -> int:
        held = self._held
        return self.high_watermark if isinstance(held, ClosedPartition) else held.stable_below(self.high_watermark)

    @property
    def replicas(self) -> Replicas:
        """The replicas as this node knows them now."""
        replica = None if self._replicated is None else self._replicated.replica
        return described(self._assigned if replica is None else replica.assigned, replica, self.node.name)

    @property
    def is_sole(self) -> bool:
        """Whether this node leads with the only replica: appends then need no message and no step."""
        replicated = self._replicated
        return (
            replicated is not None
            and replicated.is_sole
            and self._inbox is None
            and not (self.is_gone or self._is_leaving)
        )

    @property
    def is_cutting(self) -> bool:
        """Whether a thread is changing the log: it must not be read during this."""
        return self._inbox is not None

    @property
    def is_settled(self) -> bool:
        """Whether everything that earlier leaders committed is known to be committed.

        Until then a new leader does not know the end for consumers.
        """
        replicated = self._replicated
        role = None if replicated is None else replicated.replica.role
        return not isinstance(role, Leader) or self.high_watermark >= role.start

    # -- checks before a request is served ---------------------------------------------------------------------

    def require_leader(self) -> None:
        self.require_hosted()
        if self.role is not Role.LEADER:
            raise NotLeaderError(self.topic, self.number, f"this node follows {self}, it does not lead it")

    def require_epoch(self, epoch: int) -> None:
        """Reject a request with another leader epoch: the client or this node has not heard of the newer one yet."""
        if epoch < self.leader_epoch:
            raise BrokerError(
                Reason.STALE_LEADER_EPOCH, f"leader epoch {epoch} of {self} is over, {self.leader_epoch} is in force"
            )
        if epoch > self.leader_epoch:
            raise BrokerError(
                Reason.NOT_LEADER, f"this node knows of leader epoch {self.leader_epoch} of {self}, not yet of {epoch}"
            )

    def require_decided(self) -> None:
        if not self.is_settled:
            raise BrokerError(
                Reason.OFFSET_NOT_AVAILABLE, f"the new leader of {self} does not know yet what is committed; ask again"
            )

    def require_in_sync(self) -> None:
        """Reject a consumer's request, from the leader or a follower, unless this replica may serve it."""
        self.require_hosted()
        if self._refusal is Reason.NOT_LEADER:
            raise NotLeaderError(
                self.topic, self.number, f"this node neither leads {self} nor follows it in sync: read from its leader"
            )

    def lag(self, offset: int) -> BrokerError | None:
        """Return the error if a follower does not have `offset` yet, or its log may be about to be truncated.

        Otherwise return None.
        """
        if self.role is Role.LEADER or (
            self._refusal is None and self._inbox is None and offset <= self.high_watermark
        ):
            return None
        return BrokerError(
            Reason.OFFSET_NOT_AVAILABLE,
            f"this node follows {self} and has records below {self.high_watermark} now, not yet at {offset}; ask again",
        )

    def preferred_replica(self, nodes: Sequence[int], offset: int) -> int | None:
        return follower_reads.preferred(self.replicated.replica, nodes, offset)

    # -- waiters -----------------------------------------------------------------------------------------------

    def on_truncate(self, drop_above: Callable[[int], None]) -> None:
        """Register a callback for truncations.

        It gets an offset: whatever was derived from records at or above it is void.
        """
        self._derived.append(drop_above)

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for wakeup in waiting:
            wakeup.wake()

    def watch(self, wakeup: Wakeup) -> None:
        """Wake `wakeup` at the next change of the high watermark, the role, the replicas or the log's ends."""
        self._waiting.add(wakeup)

    def unwatch(self, wakeup: Wakeup) -> None:
        self._waiting.discard(wakeup)

    def _drop_above(self, offset: int) -> None:
        is_new = self.start_offset == self.end_offset == offset
        for drop_above in self._derived:
            drop_above(0 if is_new else offset)
        self.wake()
