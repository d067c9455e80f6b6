"""A partition as this node hosts it: its log, its role, its replicas, and who waits for it to move.

Knows: what is committed, and whom to wake. Refuses to know: how records came or go.
Invariants: only a leader appends for producers; a consumer reads below the high watermark only; with `flush = ack` the leader
counts what is durable, so nothing is committed that a crash could take back; a deleted partition serves nobody.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.names import no_topic
from braidlog.model.settings import Flush
from braidlog.model.world import Wakeup, World
from braidlog.replication.replicas import LeaderLog, Message, Placed, Ready, ReplicaSet
from braidlog.storage.damage import Damage
from braidlog.storage.partition import FileSlice, PartitionLog


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


def first_watermark(log: PartitionLog, replicas: ReplicaSet) -> int:
    """What counts as committed when a partition is opened: all of it without other replicas, else what was known to be."""
    return log.end_offset if replicas.replication_factor == 1 else log.watermark


class HostedPartition:
    """One partition on this node."""

    def __init__(
        self, topic: str, number: int, log: PartitionLog, replicas: ReplicaSet, *, role: Role, epoch: int
    ) -> None:
        self.topic = topic
        self.number = number
        self.log = log
        self.replicas = replicas
        self.role = role
        self.leader_epoch = epoch
        self.is_gone = False
        self._waiting: set[Wakeup] = set()
        self._derived: list[Callable[[int], None]] = []
        self._count_replicas()
        replicas.restart(first_watermark(log, replicas))
        if role is Role.LEADER:
            self.advance()

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    @property
    def high_watermark(self) -> int:
        """The next offset after the last committed record."""
        return self.replicas.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return min(self.log.last_stable_offset, self.high_watermark)

    @property
    def size_bytes(self) -> int:
        return self.log.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self.log.segments)

    @property
    def newest_timestamp_ms(self) -> int:
        """The largest time of all records; -1 without any."""
        return max((segment.max_timestamp_ms for segment in self.log.segments), default=-1)

    @property
    def damages(self) -> Sequence[Damage]:
        return self.log.damages

    @property
    def fault(self) -> str:
        """Why the partition takes no writes; empty if it takes them."""
        try:
            self.log.check_writable()
        except (StorageFault, BrokerError) as error:
            return str(error)
        return ""

    def epoch_at(self, offset: int) -> int:
        """The epoch of the leader that wrote an offset."""
        return self.log.state.epochs.at(offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Where `epoch` (or the largest below it) ended."""
        return self.log.end_offset_for_epoch(epoch)

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

    def append_marker(self, marker: bytes, now_ms: int) -> int:
        """Append the end of a transaction; returns the offset below which the log must be durable for it to be."""
        appended = self.log.append_marker(marker, leader_epoch=self.leader_epoch, now_ms=now_ms)
        self.appended()
        return appended.next_offset

    async def made_durable(self, next_offset: int, world: World) -> None:
        """Return when everything below is durable, and counted."""
        await world.durable(self.log, next_offset)
        self.advance()

    def require_there(self) -> None:
        if self.is_gone:
            raise no_topic(self.topic)

    def require_leader(self) -> None:
        self.require_there()
        if self.role is not Role.LEADER:
            raise BrokerError(Reason.NOT_LEADER, f"this node follows {self}, it does not lead it")

    def require_epoch(self, epoch: int) -> None:
        """Refuse a client whose leader's epoch is not ours: one of us has not heard of the other's yet."""
        if epoch < self.leader_epoch:
            raise BrokerError(
                Reason.STALE_LEADER_EPOCH, f"leader epoch {epoch} of {self} is over, {self.leader_epoch} is in force"
            )
        if epoch > self.leader_epoch:
            raise BrokerError(Reason.NOT_LEADER, f"this node leads {self} in epoch {self.leader_epoch}, not {epoch}")

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
            self.wake()
        return after

    def _keep_watermark(self) -> None:
        replicas = self.replicas
        if replicas.replication_factor > 1:
            self.log.keep_watermark(replicas.high_watermark, common_end=replicas.common_end)

    def _count_replicas(self) -> None:
        """The log is told whether there are others: if so, what is committed is not its own to say."""
        if self.replicas.replication_factor > 1:
            self.log.replicate()
        else:
            self.log.stand_alone()

    def step(self, message: Message, now_ms: int) -> Ready:
        """Something happened to the replicas: wake who waited for what follows from it."""
        ready = self.replicas.step(message, LeaderLog(self.log.end_offset, self._counted_offset), now_ms)
        if isinstance(message, Placed):
            self._count_replicas()
        self._keep_watermark()
        if ready.wakes:
            self.wake()
        return ready

    @property
    def _counted_offset(self) -> int:
        return self.log.durable_offset if self.log.settings.flush is Flush.ACK else self.log.end_offset

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
