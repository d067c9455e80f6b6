"""A partition as this node hosts it: its log, its role, its replicas, and who waits for it to move.

Knows: what is committed, whom to wake, and, while its log is closed, what can be told without it. Refuses to know: how records
came or go, and when a log is closed.
Invariants: a log is open at most once, and whoever asks for it gets an open one; only a leader appends for producers; a consumer
reads below the high watermark only; with `flush = ack` the leader counts what is durable, so nothing is committed that a crash
could take back; a deleted partition serves nobody.
"""

import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from braidlog.codec.records import EndMarker
from braidlog.model.errors import BrokerError, NotLeaderError, Reason, StorageFault
from braidlog.model.names import no_topic
from braidlog.model.settings import Flush, TopicSettings
from braidlog.model.world import Wakeup, World
from braidlog.partition.replicated import Produced
from braidlog.partition.upkeep import is_due
from braidlog.replication.replicas import LeaderLog, Message, Placed, Ready, ReplicaSet
from braidlog.storage.damage import Damage
from braidlog.storage.epochs import EpochHistory
from braidlog.storage.partition import Appended, FileSlice, PartitionLog
from braidlog.storage.rest import Rest

Opener = Callable[[str, int], PartitionLog]
"""Opens the log of a topic's partition."""


class Role(StrEnum):
    LEADER = "leader"
    FOLLOWER = "follower"


_LEADER: Final = Role.LEADER
_ACK: Final = Flush.ACK
"""For every append: Python 3.11 takes three times as long to find a member of an enumeration."""


class ActiveProducer(NamedTuple):
    """A producer that the partition remembers. `open_since` is the offset where its open transaction began, if it has one."""

    producer_id: int
    epoch: int
    last_sequence: int | None
    timestamp_ms: int
    open_since: int | None


def first_watermark(log: PartitionLog | Rest, replicas: ReplicaSet) -> int:
    """What counts as committed when a partition is opened: all of it without other replicas, else what was known to be."""
    return log.end_offset if replicas.replication_factor == 1 or isinstance(log, Rest) else log.watermark


class HostedPartition:
    """One partition on this node."""

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
        "replicas",
        "role",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        number: int,
        log: PartitionLog | Rest,
        replicas: ReplicaSet,
        opener: Opener,
        *,
        role: Role,
        epoch: int,
    ) -> None:
        self.topic = topic
        self.number = number
        self._held = log
        """The log, or what is left of it while it is closed: always one of them, exchanged at once, for whoever looks."""
        self._is_leaving = False
        """The log is about to be closed; who asks for it meanwhile gets it back."""
        self._open = opener
        self._lock = threading.Lock()
        """Held by whoever opens or closes the log, on a thread."""
        self.replicas = replicas
        self.role = role
        self.leader_epoch = epoch
        self.is_gone = False
        self.is_moved = False
        """It is gone from here, and other nodes hold it."""
        self.is_used = isinstance(log, PartitionLog)
        """Whether somebody asked for the log since this was last set to False."""
        self.record_bytes = 0
        """What a record takes in the log, about, where rows were read last; 0: nobody knows. Who wants few of them asks the log
        for as much as they take: to find where megabytes end would cost more than to write a thousand."""
        self._waiting: set[Wakeup] = set()
        self._derived: list[Callable[[int], None]] = []
        if isinstance(log, PartitionLog):
            self._count_replicas(log)
        replicas.restart(first_watermark(log, replicas))
        if role is Role.LEADER:
            self.advance()

    # -- the log, which may be closed ------------------------------------------------------------------------

    @property
    def log(self) -> PartitionLog:
        """The open log. A closed one is opened here and now: who is on the loop waits for `opening.wake` before."""
        self.is_used = True
        held = self._held
        return held if isinstance(held, PartitionLog) and not self._is_leaving else self.reopen()

    @property
    def plain_log(self) -> PartitionLog | None:
        """The log, if this node leads, has the only replica, and nothing is about to happen to it: what most appends find."""
        held = self._held
        if self.role is not _LEADER or self._is_leaving or self.is_gone or self.is_moved or isinstance(held, Rest):
            return None
        self.is_used = True
        return held if self.replicas.replication_factor == 1 else None

    @property
    def is_sole(self) -> bool:
        return self.replicas.replication_factor == 1

    def append_alone(self, produced: Produced) -> Appended:
        data, headers, now_ms, checked, own = produced
        return self.log.append(
            data, leader_epoch=self.leader_epoch, now_ms=now_ms, records_checked=checked, headers=headers, own=own
        )

    def append_records_alone(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, now_ms: int
    ) -> tuple[Appended, int] | None:
        return self.log.append_records(values, keys, leader_epoch=self.leader_epoch, now_ms=now_ms)

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
                self._count_replicas(held)
                self._held = held
            return held

    @property
    def may_close(self) -> bool:
        """Whether the log can be closed for a while: nobody follows it, nothing is under way in it or wrong with it."""
        log = self.open_log
        return (
            log is not None
            and self.replicas.replication_factor == 1
            and self.role is Role.LEADER
            and not self.is_gone
            and not self.fault
            and not log.report.is_unsaved
            and log.last_stable_offset == log.end_offset == self.high_watermark
        )

    def begin_close(self) -> None:
        """On the loop: whoever asks for the log from now on waits, or gets it back if nobody has begun to close it."""
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
                self._held = rest or log
                self._is_leaving = False
            return rest is not None

    def close(self) -> None:
        """On a thread: close the log for good, if it is open."""
        with self._lock:
            if (log := self.open_log) is not None:
                log.close()

    def renew(self, settings: TopicSettings) -> None:
        """Take changed settings into use; a log that is closed finds them when it is opened."""
        if (log := self.open_log) is not None:
            log.settings = settings

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"

    @property
    def start_offset(self) -> int:
        return self._held.start_offset

    @property
    def end_offset(self) -> int:
        return self._held.end_offset

    @property
    def high_watermark(self) -> int:
        """The next offset after the last committed record."""
        return self.replicas.high_watermark

    @property
    def last_stable_offset(self) -> int:
        held = self._held
        return self.high_watermark if isinstance(held, Rest) else held.stable_below(self.high_watermark)

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

    def append_marker(self, marker: bytes, now_ms: int) -> int:
        """Append the end of a transaction; returns the offset below which the log must be durable for it to be."""
        appended = self.log.append_marker(marker, leader_epoch=self.leader_epoch, now_ms=now_ms)
        self.appended()
        return appended.next_offset

    async def made_durable(self, next_offset: int, world: World) -> None:
        """Return when everything below is durable, and counted."""
        await world.durable(self.log, next_offset)
        self.advance()

    @property
    def is_settled(self) -> bool:
        """Whether all that earlier leaders have committed is known to be: until then a new one cannot say where readers end."""
        return True

    def require_settled(self) -> None:
        if not self.is_settled:
            raise BrokerError(
                Reason.OFFSET_NOT_AVAILABLE, f"the new leader of {self} does not know yet what is committed; ask again"
            )

    def require_there(self) -> None:
        if self.is_moved:
            raise NotLeaderError(self.topic, self.number, f"this node holds no replica of {self} any more")
        if self.is_gone:
            raise no_topic(self.topic)

    def require_leader(self) -> None:
        self.require_there()
        if self.role is not _LEADER:
            raise NotLeaderError(self.topic, self.number, f"this node follows {self}, it does not lead it")

    def require_in_sync(self) -> None:
        """Refuse a consumer that does not insist on the leader, unless this replica may serve it."""
        self.require_leader()

    def lag(self, offset: int) -> BrokerError | None:  # noqa: ARG002 - a leader has all there is
        """Why a consumer has to wait here for what is at `offset`, though others may have it; None if it has not."""
        return None

    def preferred_replica(self, nodes: Sequence[int], offset: int) -> int | None:  # noqa: ARG002 - there is no other
        """Which of `nodes` a consumer should ask instead for what is from `offset` on; None: this one."""
        return None

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

    def assume(self, role: Role, epoch: int) -> None:
        """Lead or follow from now on."""
        self.role = role
        self.leader_epoch = epoch
        self.wake()

    def appended(self) -> None:
        """The log has grown: followers wait for that, long before the high watermark can move."""
        if self.replicas.replication_factor > 1:
            self.wake()

    def advance(self) -> int:
        """Move the high watermark as far as the log and the replicas allow, and wake who waited for it."""
        before = self.replicas.high_watermark
        after = self.replicas.advance(self._counted_offset)
        if after != before:
            self._keep_watermark()
            if self._waiting:
                self.wake()
        return after

    def advance_alone(self, next_offset: int) -> None:
        """The same without other replicas, where what is written counts: just now, all below `next_offset`."""
        self.replicas.advance(next_offset)
        if self._waiting:
            self.wake()

    def _keep_watermark(self) -> None:
        replicas = self.replicas
        if replicas.replication_factor > 1:
            self.log.keep_watermark(replicas.high_watermark, common_end=replicas.common_end)

    def _count_replicas(self, log: PartitionLog) -> None:
        """The log is told whether there are others: if so, what is committed is not its own to say."""
        if self.replicas.replication_factor > 1:
            log.replicate()
        else:
            log.stand_alone()

    def step(self, message: Message, now_ms: int) -> Ready:
        """Something happened to the replicas: wake who waited for what follows from it."""
        ready = self.replicas.step(message, LeaderLog(self.end_offset, self._counted_offset), now_ms)
        if isinstance(message, Placed):
            self._count_replicas(self.log)
        self._keep_watermark()
        if ready.wakes:
            self.wake()
        return ready

    @property
    def _counted_offset(self) -> int:
        held = self._held
        if isinstance(held, Rest) or held.settings.flush is not _ACK:
            return held.end_offset
        return held.durable_offset

    def when_cut(self, drop_above: Callable[[int], None]) -> None:
        """Call it with an offset whenever the records from there on are taken back: what was made of them is void."""
        self._derived.append(drop_above)

    def truncate(self, offset: int) -> int:
        """Cut the log as its leader says (`PartitionLog.truncate`), and tell whoever has read what is gone; the new end."""
        return self._cut(self.log.truncate(offset))

    def restart_at(self, offset: int, now_ms: int) -> int:
        """Give up the log and begin anew (`PartitionLog.restart_at`): nothing that was made of it is true any more."""
        self.log.restart_at(offset, now_ms=now_ms)
        self.replicas.restart(offset)
        self._cut(0)
        return offset

    def _cut(self, end: int) -> int:
        self.replicas.restart(min(self.replicas.high_watermark, self.log.end_offset))
        for drop_above in self._derived:
            drop_above(end)
        self.wake()
        return end

    def retire(self) -> None:
        """The topic is being deleted: nobody appends any more, and who waits is told."""
        self.is_gone = True
        self.wake()

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for wakeup in waiting:
            wakeup.wake()

    def watch(self, wakeup: Wakeup) -> None:
        """Wake it at the next change of the watermark, the role, the replicas or the log's ends."""
        self._waiting.add(wakeup)

    def unwatch(self, wakeup: Wakeup) -> None:
        self._waiting.discard(wakeup)
