"""The log of a partition on this node, which may be closed for a while.

Knows: what can be told of a closed log, whom to wake when it moves. Refuses to know: when a log is closed, and what is committed.
Invariant: a log is open at most once, and a caller that asks for it gets an open one.
"""

import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from braidlog.codec.records import EndMarker
from braidlog.model.errors import BrokerError, NotLeaderError, Reason, StorageFault
from braidlog.model.names import no_topic
from braidlog.model.settings import TopicSettings
from braidlog.model.world import Wakeup
from braidlog.partition.upkeep import is_due
from braidlog.storage.damage import Damage
from braidlog.storage.epochs import EpochHistory
from braidlog.storage.partition import FileSlice, PartitionLog
from braidlog.storage.rest import Rest

Opener = Callable[[str, int], PartitionLog]
"""Opens the log of a topic's partition."""


class Role(StrEnum):
    LEADER = "leader"
    FOLLOWER = "follower"


class ActiveProducer(NamedTuple):
    """A producer that the partition remembers. `open_since` is the offset where its open transaction began, if it has one."""

    producer_id: int
    epoch: int
    last_sequence: int | None
    timestamp_ms: int
    open_since: int | None


class HostedLog:
    """What a partition tells of its log, open or closed."""

    __slots__ = (
        "_derived",
        "_held",
        "_is_leaving",
        "_lock",
        "_open",
        "_waiting",
        "is_gone",
        "is_moved",
        "is_used",
        "leader_epoch",
        "number",
        "record_bytes",
        "role",
        "topic",
    )

    def __init__(self, topic: str, number: int, log: PartitionLog | Rest, opener: Opener) -> None:
        self.topic = topic
        self.number = number
        self._held = log
        """The log, or what is left of it while it is closed: always one of them, exchanged in one step, for all that look."""
        self._is_leaving = False
        """The log is about to be closed; who asks for it meanwhile gets it back."""
        self._open = opener
        self._lock = threading.Lock()
        """Held by the thread that opens or closes the log."""
        self.role = Role.FOLLOWER
        self.leader_epoch = 0
        self._waiting: set[Wakeup] = set()
        self._derived: list[Callable[[int], None]] = []
        self.is_gone = False
        self.is_moved = False
        """It is gone from here, and other nodes hold it."""
        self.is_used = isinstance(log, PartitionLog)
        """Whether somebody asked for the log since this was last set to False."""
        self.record_bytes = 0
        """What a record takes in the log, about, where rows were read last; 0: unknown. Who wants few of them asks the log
        for as much as they take: to find where megabytes end would cost more than to write a thousand."""

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"

    # -- opening and closing ---------------------------------------------------------------------------------

    @property
    def log(self) -> PartitionLog:
        """The open log. A closed one is opened here and now: who is on the loop waits for `opening.wake` before."""
        self.is_used = True
        held = self._held
        return held if isinstance(held, PartitionLog) and not self._is_leaving else self.reopen()

    @property
    def open_log(self) -> PartitionLog | None:
        """The log if it is open: who only looks does not use it."""
        held = self._held
        return held if isinstance(held, PartitionLog) else None

    @property
    def is_open(self) -> bool:
        return isinstance(self._held, PartitionLog) and not self._is_leaving

    def reopen(self) -> PartitionLog:
        """On a thread: the log, opened if it is closed."""
        with self._lock:
            self.is_used = True
            held, self._is_leaving = self._held, False
            if isinstance(held, Rest):
                self.require_there()
                held = self._open(self.topic, self.number)
                self._was_opened(held)
                self._held = held
            return held

    def begin_close(self) -> None:
        """On the loop: a caller that asks for the log from now on waits, or gets it back if no thread has begun to close it."""
        self._is_leaving = True

    def finish_close(self) -> bool:
        """On a thread: close the log, and keep what it says of itself. One that cannot be closed cleanly stays, and says why.

        Returns whether it was closed: not if somebody wanted it meanwhile, or is compacting it.
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
                        rest = log.rest()
                    finally:
                        log.upkeep.release()
            finally:
                if rest is not None:
                    self._was_closed()
                self._held = rest or log
                self._is_leaving = False
            return rest is not None

    def close(self) -> None:
        """On a thread: close the log for good, if it is open."""
        with self._lock:
            if (log := self.open_log) is not None:
                log.close()

    def _was_opened(self, log: PartitionLog) -> None:
        """On a thread, before anybody finds the log."""

    def _was_closed(self) -> None:
        """On a thread: nothing of the log is left but what it says of itself."""

    def renew(self, settings: TopicSettings) -> None:
        """Take changed settings into use; a log that is closed finds them when it is opened."""
        if (log := self.open_log) is not None:
            log.settings = settings

    def require_there(self) -> None:
        if self.is_moved:
            raise NotLeaderError(self.topic, self.number, f"this node holds no replica of {self} any more")
        if self.is_gone:
            raise no_topic(self.topic)

    # -- what can be told of it ------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._held.start_offset

    @property
    def end_offset(self) -> int:
        return self._held.end_offset

    @property
    def size_bytes(self) -> int:
        held = self._held
        return held.shape.size_bytes if isinstance(held, Rest) else held.size_bytes

    @property
    def segment_count(self) -> int:
        held = self._held
        return held.shape.segments if isinstance(held, Rest) else len(held.segments)

    @property
    def newest_timestamp_ms(self) -> int:
        """The largest time of all records; -1 without any."""
        held = self._held
        if isinstance(held, Rest):
            return held.shape.newest_ms
        return max((segment.max_timestamp_ms for segment in held.segments), default=-1)

    @property
    def damages(self) -> Sequence[Damage]:
        log = self.open_log
        return () if log is None else log.damages

    @property
    def fault(self) -> str:
        """Why the partition takes no writes; empty if it takes them."""
        if (log := self.open_log) is None:
            return ""
        try:
            log.check_writable()
        except (StorageFault, BrokerError) as error:
            return str(error)
        return ""

    def is_due(self, settings: TopicSettings, now_ms: int) -> bool:
        """Whether upkeep may find something to do: in an open log always, in a closed one by what it says of itself."""
        held = self._held
        return is_due(held.shape, settings, now_ms) if isinstance(held, Rest) else True

    def epoch_at(self, offset: int) -> int:
        """The epoch of the leader that wrote an offset."""
        held = self._held
        return (EpochHistory(list(held.epochs)) if isinstance(held, Rest) else held.state.epochs).at(offset)

    def epochs(self) -> list[tuple[int, int]]:
        """Each leader's epoch and where it began."""
        held = self._held
        return list(held.epochs) if isinstance(held, Rest) else held.image().epochs

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Where `epoch` (or the largest below it) ended."""
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
        """Whole batches from the one that holds `offset`, committed or not; None at the end."""
        return self.log.slice_at(offset, bytes_max)

    def has_ended(self, producer_id: int, marker: EndMarker) -> bool:
        """Whether the log has this end; raises if a coordinator says it that has a successor."""
        return self.log.state.producers.has_ended(producer_id, marker)

    # -- who may be served -----------------------------------------------------------------------------------

    def require_leader(self) -> None:
        self.require_there()
        if self.role is not Role.LEADER:
            raise NotLeaderError(self.topic, self.number, f"this node follows {self}, it does not lead it")

    def require_epoch(self, epoch: int) -> None:
        """Refuse a client whose leader's epoch is not ours: one of us has not heard of the other's yet."""
        if epoch < self.leader_epoch:
            raise BrokerError(
                Reason.STALE_LEADER_EPOCH, f"leader epoch {epoch} of {self} is over, {self.leader_epoch} is in force"
            )
        if epoch > self.leader_epoch:
            raise BrokerError(
                Reason.NOT_LEADER, f"this node knows of leader epoch {self.leader_epoch} of {self}, not yet of {epoch}"
            )

    # -- waiters for it to move ------------------------------------------------------------------------------

    def when_cut(self, drop_above: Callable[[int], None]) -> None:
        """Call it with an offset whenever the records from there on are taken back: what was made of them is void."""
        self._derived.append(drop_above)

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for wakeup in waiting:
            wakeup.wake()

    def watch(self, wakeup: Wakeup) -> None:
        """Wake it at the next change of the watermark, the role, the replicas or the log's ends."""
        self._waiting.add(wakeup)

    def unwatch(self, wakeup: Wakeup) -> None:
        self._waiting.discard(wakeup)

    def _drop_above(self, offset: int) -> None:
        is_new = self.start_offset == self.end_offset == offset
        for drop_above in self._derived:
            drop_above(0 if is_new else offset)
        self.wake()
