"""A partition that several nodes hold, as this node hosts it: what it is follows from the steps of its replica.

Knows: who waits for an outcome of a step, and that messages wait while an epoch begins or the log is cut. Refuses to know:
sockets, the metadata.
Invariants: it is shown as led only once its epoch is durable; whoever waits began in one epoch, and no other answers him; what
was computed from records that are cut is dropped before anybody reads again.
"""

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from braidlog.codec.batch import read_header
from braidlog.model.errors import BrokerError, NotLeaderError, ProtocolError, Reason, StorageFault
from braidlog.model.settings import Flush, TopicSettings
from braidlog.model.world import World
from braidlog.partition.acknowledgements import NOBODY, Acknowledgement
from braidlog.partition.held_writes import HeldWrites
from braidlog.partition.hosted import HostedPartition, Opener, Role
from braidlog.partition.replicas_shown import ReplicasShown
from braidlog.partition.replicated import Marker, Persist, Produced, Refused, ReplicatedPartition
from braidlog.replication import follower_reads
from braidlog.replication import replicas as observers
from braidlog.replication.leader import refusal
from braidlog.replication.messages import (
    Answer,
    Append,
    Await,
    Complaint,
    Damaged,
    DeleteBelow,
    EpochBegun,
    Fetch,
    Fetched,
    Message,
    Reach,
    ReadIndex,
    Synced,
    Tick,
    Withdraw,
)
from braidlog.replication.ready import (
    Apply,
    Done,
    DropAbove,
    Failed,
    LossPossible,
    Proposal,
    Stopped,
    UncleanLeader,
    Watermark,
)
from braidlog.replication.replica_state import Leader
from braidlog.storage.partition import Appended, PartitionLog

log = logging.getLogger("braidlog.partition")

SETTLED_SECONDS_MAX = 60.0
"""How long a marker, or a deletion, may wait for the in-sync set."""

Key = tuple[bytes, int]
"""A topic's id and a partition's number: what nodes call a partition among themselves."""


class ClusterNode(Protocol):
    """The node around its partitions."""

    @property
    def number(self) -> int: ...

    @property
    def incarnation(self) -> int | None:
        """As which the node is registered; None before it is."""
        ...

    @property
    def world(self) -> World: ...

    def send(self, node: int, key: Key, message: Fetch | Answer | Complaint) -> None: ...

    def propose(self, partition: "ClusterPartition", proposal: Proposal) -> None: ...

    def begin_epoch(self, partition: "ClusterPartition", epoch: int) -> None:
        """Durably, with those of others; then `partition.epoch_begun`."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> object: ...

    def follow(self) -> None:
        """Partitions were opened: tell them what the metadata says of them."""
        ...

    def led_anew(self, partition: "ClusterPartition") -> None:
        """A partition is led by this node from now on, or not any more, or in another epoch."""
        ...

    def replaced(self) -> None:
        """This node's number is registered by another process: it must stop."""
        ...


class ClusterPartition(HostedPartition):
    """A `HostedPartition` that is led, or follows, as the steps of its replica say; its log is never at rest."""

    __slots__ = (
        "_inbox",
        "_is_syncing",
        "_node",
        "_pending",
        "_refusal",
        "_shown",
        "_tokens",
        "followed",
        "held_writes",
        "key",
        "replicated",
        "topic_id",
        "verified",
    )

    def __init__(
        self, topic: str, topic_id: str, number: int, opened: PartitionLog, node: ClusterNode, opener: Opener
    ) -> None:
        self.key: Key = (bytes.fromhex(topic_id), number)
        self.topic_id = topic_id
        self._node = node
        self._pending: dict[int, Acknowledgement] = {}
        self.held_writes = HeldWrites()
        """While it is handed over: so that none is in the log here whose producer is not answered when another node leads."""
        self._tokens = 0
        self._inbox: list[Message] | None = None
        """What came while an epoch begins, or the log is cut, on a thread: nothing may be written meanwhile."""
        self._is_syncing = False
        self.followed: Callable[[], None] | None = None
        """Called after each step: what is made from the records follows them."""
        self.verified: dict[int, int] = {}
        """Whose transaction is known to write here: producer id → epoch (`verification.py`). A marker ends it, and so does
        every change of the leader."""
        self._refusal: Reason | None = Reason.NOT_LEADER
        """Why consumers are not served here."""
        self.replicated = ReplicatedPartition(
            opened, node.number, self, flush_on_ack=opened.settings.flush is Flush.ACK, apart=self._apart
        )
        self._shown = ReplicasShown(self.replicated)
        super().__init__(topic, number, opened, self._shown, opener, role=Role.FOLLOWER, epoch=0)
        if node.incarnation is not None:
            self.registered_as(node.incarnation)

    # -- what happens to it ------------------------------------------------------------------------------------

    def tell(self, message: Message) -> None:
        """Take a message in; one that comes while something is written beside the loop waits until it is."""
        if self.is_gone:
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
            replicated.tell(message)
        finally:
            self._show()
            if replicated.log.end_offset != end and not replicated.replica.flush_on_ack:
                self._node.world.appended(replicated.log)

    def _show(self) -> None:
        replica = self.replicated.replica
        role = Role.LEADER if self.replicated.is_leader else Role.FOLLOWER
        self._shown.follow(replica)
        refusal = follower_reads.refusal(replica)
        if (role, replica.epoch, refusal) != (self.role, self.leader_epoch, self._refusal):
            is_led_anew = (role, replica.epoch) != (self.role, self.leader_epoch)
            self.role, self.leader_epoch, self._refusal = role, replica.epoch, refusal
            if role is Role.FOLLOWER:
                self.held_writes.release()
            self.verified.clear()
            self.wake()
            if is_led_anew:
                self._node.led_anew(self)
        if self.followed is not None:
            self.followed()

    def registered_as(self, incarnation: int) -> None:
        """The node is another one for its cluster from now on: what was asked of the one before is not answered by it."""
        self.replicated.replica = self.replicated.replica.registered_as(incarnation)
        if self._inbox is not None:  # something is still being written, on a thread
            self._inbox = []
        self._fail_all()
        self._show()

    def _fail_all(self) -> None:
        pending, self._pending = self._pending, {}
        for token, each in pending.items():
            each.settle(Failed(token, Reason.NOT_LEADER))

    def retire(self) -> None:
        super().retire()
        self._fail_all()
        self.held_writes.release()
        self._node.led_anew(self)

    def tick(self) -> None:
        """Time has passed. A log that has stopped by itself (a failed sync, damage that was found) is noticed here."""
        if self._inbox is None:
            is_new = self.replicated.is_damaged and not self.replicated.replica.is_damaged
            self.tell(Damaged() if is_new else Tick())

    # -- the short ways of an only replica ---------------------------------------------------------------------

    @property
    def is_sole(self) -> bool:
        """Whether this node leads and has the only replica: what it has is committed then, and no step has to say so."""
        return self.replicated.is_sole and self._inbox is None and not self.is_gone

    @property
    def plain_log(self) -> PartitionLog | None:
        return self.replicated.log if self.is_sole else None

    def append_alone(self, produced: Produced) -> Appended:
        return self.replicated.append_alone(produced)

    def append_records_alone(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, now_ms: int
    ) -> tuple[Appended, int] | None:
        return self.replicated.append_records_alone(values, keys, now_ms)

    def advance(self) -> int:
        """Count what the log has, after an append or a sync; wake those that wait for it."""
        replicated = self.replicated
        if self.is_sole and not replicated.has_waiters:
            if replicated.count_alone():
                if self._waiting:
                    self.wake()
                if self.followed is not None:
                    self.followed()
        elif not self.is_gone:
            self.tell(Synced(replicated.log.durable_offset, replicated.replica.log.cuts))
        return replicated.watermark

    def advance_alone(self, next_offset: int) -> None:  # noqa: ARG002 - the log says it
        self.advance()

    # -- what its clients ask for ------------------------------------------------------------------------------

    @property
    def is_awaited(self) -> bool:
        """Whether something was asked for, or appended, of which nobody knows yet what became of it."""
        return bool(self._pending) or (self.is_sole and self.high_watermark < self.end_offset)

    def produce(
        self, produced: Produced, *, needs_all: bool, is_awaited: bool, reach: Reach = Reach.IN_SYNC
    ) -> tuple[Appended, Acknowledgement]:
        """Write what a producer sent, or find it written before; refused before anything is written if it could not be kept."""
        self.require_room(needs_all=needs_all, reach=reach)
        if self.is_sole:
            return self._produce_alone(produced, is_awaited=is_awaited)
        acknowledgement = self._await() if is_awaited else Acknowledgement()
        token = acknowledgement.token
        try:
            appended = self.replicated.repeated(token, produced)
            if appended is None:
                base = self.end_offset
                self.tell(Append(token, produced.records, produced, needs_all=needs_all, reach=reach))
                appended = Appended(base, base + produced.records - 1)
        except (BrokerError, ProtocolError, StorageFault):
            self._pending.pop(token, None)
            raise
        if isinstance(acknowledgement.outcome, Failed):
            raise self.failed(acknowledgement.outcome.reason)
        return appended, acknowledgement

    def _produce_alone(self, produced: Produced, *, is_awaited: bool) -> tuple[Appended, Acknowledgement]:
        replicated = self.replicated
        appended = replicated.append_alone(produced)
        acknowledgement = self._await() if is_awaited else Acknowledgement()
        if is_awaited:
            self.tell(Await(acknowledgement.token, appended.next_offset))
        else:
            self.advance()
        if replicated.log.settings.flush is Flush.ACK:
            self.sync(appended.next_offset, 0)
        else:
            self._node.world.appended(replicated.log)
        return appended, acknowledgement

    def append_marker(self, marker: bytes, now_ms: int) -> int:
        self.require_room(needs_all=False)
        self.verified.pop(read_header(marker).producer_id, None)
        self.tell(Append(NOBODY, 1, Marker(marker, now_ms), needs_all=False))
        return self.end_offset

    async def made_durable(self, next_offset: int, world: World) -> None:
        """Return when everything below is committed, in the epoch in which this was asked."""
        acknowledgement = self._await()
        self.tell(Await(acknowledgement.token, next_offset))
        await self._settled(acknowledgement, world)

    async def delete_below(self, offset: int, world: World) -> int:
        """Let the log begin at `offset`; return where it begins when every in-sync replica does."""
        acknowledgement = self._await()
        self.tell(DeleteBelow(acknowledgement.token, offset))
        await self._settled(acknowledgement, world)
        return self.start_offset

    def ask_for(self, ask: Callable[[int], Await | ReadIndex]) -> Acknowledgement:
        """Ask for something to come true; whoever asks waits for it by `come_true`."""
        acknowledgement = self._await()
        self.tell(ask(acknowledgement.token))
        return acknowledgement

    async def come_true(self, asked: Acknowledgement, world: World, seconds: float) -> None:
        """Return when what was asked for has come true, in the epoch in which it was; TIMED_OUT: nobody waits for it any more."""
        try:
            await asked.wait(world, seconds)
        finally:
            self._withdraw(asked)
        self.conclude(asked)

    def conclude(self, asked: Acknowledgement) -> None:
        """Nobody waits any longer: raise unless it has come true by now."""
        self._withdraw(asked)
        outcome = asked.outcome
        if not isinstance(outcome, Done):
            raise self.failed(Reason.TIMED_OUT if outcome is None else outcome.reason)

    def _withdraw(self, asked: Acknowledgement) -> None:
        if self._pending.pop(asked.token, None) is not None:
            self.tell(Withdraw(asked.token))

    def committed_later(self, next_offset: int, epoch: int | None = None) -> Acknowledgement:
        """Told once everything below is committed; in `epoch`, if that is given, and no later one."""
        acknowledgement = self._await()
        if epoch not in (None, self.leader_epoch):
            self._pending.pop(acknowledgement.token).settle(Failed(acknowledgement.token, Reason.NOT_LEADER))
            return acknowledgement
        self.tell(Await(acknowledgement.token, next_offset))
        return acknowledgement

    async def _settled(self, acknowledgement: Acknowledgement, world: World) -> None:
        outcome = await acknowledgement.wait(world, SETTLED_SECONDS_MAX)
        if not isinstance(outcome, Done):
            raise self.failed(Reason.TIMED_OUT if outcome is None else outcome.reason)

    def _await(self) -> Acknowledgement:
        self._tokens += 1
        acknowledgement = self._pending[self._tokens] = Acknowledgement(self._tokens)
        return acknowledgement

    def require_room(self, *, needs_all: bool, reach: Reach = Reach.IN_SYNC) -> None:
        """Raise if what is to be kept so would not be written now."""
        self.require_leader()
        replica = self.replicated.replica
        assert isinstance(replica.role, Leader)
        reason = refusal(replica, replica.role, needs_all=needs_all, reach=reach)
        if reason is not None:
            raise self.failed(reason)

    # -- what its consumers ask for ----------------------------------------------------------------------------

    def require_in_sync(self) -> None:
        self.require_there()
        if self._refusal is Reason.NOT_LEADER:
            raise NotLeaderError(
                self.topic, self.number, f"this node neither leads {self} nor follows it in sync: read from its leader"
            )

    def lag(self, offset: int) -> BrokerError | None:
        """A follower has what its leader has told it to be committed, and is not read while its log may be cut."""
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

    def failed(self, reason: Reason) -> BrokerError:
        """In words."""
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

    @property
    def is_cutting(self) -> bool:
        """Something is done to the log beside the loop: it is not read meanwhile."""
        return self._inbox is not None

    @property
    def is_settled(self) -> bool:
        role = self.replicated.replica.role
        return not isinstance(role, Leader) or self.replicated.replica.watermark >= role.start

    # -- what its replica asks for (`ReplicaPort`) -------------------------------------------------------------

    def now_ms(self) -> int:
        return int(self._node.world.monotonic() * 1000)

    def wall_ms(self) -> int:
        return self._node.world.now_ms()

    def send(self, node: int, message: Fetch | Answer | Complaint) -> None:
        self._node.send(node, self.key, message)

    def propose(self, proposal: Proposal) -> None:
        self._node.propose(self, proposal)

    def sync(self, end: int, cuts: int) -> None:  # noqa: ARG002 - one sync serves all who wait for one
        if not self._is_syncing:
            self._is_syncing = True
            self._node.world.sync_soon(self.replicated.log, self._synced)

    def _synced(self) -> None:
        """A cut that is under way has made durable what it leaves: what the log says now is true of that, too."""
        self._is_syncing = False
        self.advance()
        log, replica = self.replicated.log, self.replicated.replica
        if replica.flush_on_ack and log.durable_offset < log.end_offset:
            self.sync(log.end_offset, replica.log.cuts)

    def begin_epoch(self, epoch: int) -> None:
        self._inbox = []
        self._node.begin_epoch(self, epoch)

    def epoch_begun(self, epoch: int, fault: StorageFault | None) -> None:
        """The epoch is durable, or cannot be."""
        replicated = self.replicated
        if isinstance(replicated.replica.role, Leader):
            self._go_on(EpochBegun(epoch) if fault is None else Damaged())
            return
        if fault is None:
            replicated.epoch_is_there()
        else:  # there may have been no room: the records are asked for again
            self._inbox = [each for each in self._inbox or () if not isinstance(each, Fetched)]
        self._go_on(*([Damaged()] if replicated.is_damaged and not replicated.replica.is_damaged else []))

    def _go_on(self, *first: Message) -> None:
        """Nothing is written beside the loop any more: take in what came meanwhile."""
        held, self._inbox = self._inbox or (), None
        for message in (*first, *held):
            self.tell(message)
        self.wake()  # consumers of a follower wait until its log may be read again

    def _apart(self, persist: Persist, then: Callable[[Refused | None], None]) -> None:
        self._inbox = []

        async def do() -> None:
            error = await self._node.world.blocking(persist)
            if not self.is_gone:
                then(error)
                self._show()
                self._node.world.appended(self.replicated.log)
                self._go_on()

        self._node.spawn(do(), f"cut {self}")

    def beside(self, work: Callable[[], Message | None]) -> None:
        async def do() -> None:
            message = await self._node.world.blocking(work)
            if message is not None:
                self.tell(message)

        self._node.spawn(do(), "replica-check")

    def outcome(self, outcome: Apply) -> None:
        match outcome:
            case Done(token) | Failed(token):
                if (waiting := self._pending.pop(token, None)) is not None:
                    waiting.settle(outcome)
            case Watermark():
                self.wake()
            case DropAbove(offset):
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
                self._node.replaced()

    def _drop_above(self, offset: int) -> None:
        is_new = self.start_offset == self.end_offset == offset
        for drop_above in self._derived:
            drop_above(0 if is_new else offset)
        self.wake()

    # -- where a single node would decide by itself ------------------------------------------------------------

    @property
    def may_close(self) -> bool:
        return False

    def renew(self, settings: TopicSettings) -> None:
        super().renew(settings)
        self.replicated.replica = self.replicated.replica.now(flush_on_ack=settings.flush is Flush.ACK)

    def assume(self, role: Role, epoch: int) -> None:
        """The metadata tells the replica itself."""

    def appended(self) -> None:
        """Followers are told by the steps."""

    def step(self, message: observers.Message, now_ms: int) -> observers.Ready:  # noqa: ARG002 - observers do not count
        match message:
            case observers.ReplicaFetched(node, offset):
                self._shown.observed(node, offset, self.end_offset)
            case observers.SetInSync(node, in_sync):
                self._shown.told_in_sync(node, in_sync=in_sync)
        return observers.Ready((), self.high_watermark, wakes=False)

    def _count_replicas(self, log: PartitionLog) -> None:
        """Its replica has told the log that there are others, before anything else."""
