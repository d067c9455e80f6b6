"""Run all replicas of a node: pass messages of peers, metadata, ticks and disk events to each of them.

Batches the work of many partitions (beginning epochs, proposals). Invariants: nothing happens before the node is
registered. A peer speaks only for itself. Lost proposals are repeated by the partition's own ticks, never by this
class.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from braidlog.cluster.metadata import proposals
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.names import own_number
from braidlog.model.runtime.cooperative import YieldCounter, yield_to_loop
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.partition import Partition
from braidlog.partition.partition_context import Key, Listeners
from braidlog.partition.partition_registry import PartitionRegistry
from braidlog.replication.assignment import InSyncSetChange
from braidlog.replication.messages import (
    Answer,
    Assigned,
    ChangeRefused,
    Complaint,
    CorruptAnswer,
    Fetch,
    Refusal,
    Refused,
)
from braidlog.replication.ready import Proposal, ProposeChange, ReportLogEnd, Resign
from braidlog.storage.folder.data_folder import DataFolder

TICK_SECONDS: Final = 0.3
GATHER_SECONDS: Final = 0.02
"""Changes of in-sync sets within this time become one entry of the metadata."""
SLICE_SECONDS: Final = 0.005
TOLD_AT_ONCE: Final = 20
PROPOSED_MAX: Final = 1_000
"""The most changes in one entry of the metadata, whose size is limited."""

Between = Fetch | Answer | Complaint
"""The messages between replicas."""
Received = Callable[[int, Key, Between | CorruptAnswer], None]
"""received(node, key, message): a peer sends a message about a partition."""
Spawn = Callable[[Coroutine[Any, Any, None], str], object]
Begun = list[tuple[Partition, int]]
P = TypeVar("P")
Wanted = tuple[Partition, P]
"""A proposal of a partition for the metadata."""


class Transport(Protocol):
    """The transport to other nodes."""

    def send(self, node: int, key: Key, message: Between) -> None:
        """Deliver the message or lose it; the order is kept. Makes no callback before it returns."""
        ...


T = TypeVar("T", bound=Transport)


class ReplicaManager(Generic[T]):
    """A `PartitionContext` with its `hosting`. Call `registered`, then `run` in a task.

    `received` takes messages of peers; call `apply_metadata` when the metadata changes.
    """

    may_close = False

    def __init__(
        self,
        name: str,
        metadata: Metadata,
        folder: DataFolder,
        runtime: Runtime,
        spawn: Spawn,
        replaced: Callable[[], None],
        connect: Callable[[Received], T],
    ) -> None:
        """`connect` creates the transport, which delivers messages of peers."""
        self.number = own_number(name)
        self.name = name
        self.incarnation: int | None = None
        """None also while the node registers again: nothing happens during this."""
        self.runtime = runtime
        self.spawn = spawn
        self.replaced = replaced
        self.hosting = PartitionRegistry(folder, name, runtime, self)
        self.transport = connect(self.received)
        self._metadata = metadata
        self._folder = folder
        self._changes: dict[Key, Wanted[InSyncSetChange]] = {}
        self._said: dict[Key, Wanted[Resign | ReportLogEnd]] = {}
        self._is_proposing = False
        self._behind: dict[Partition, None] = {}
        """Partitions that have not received their current assignment yet."""
        self._is_following = False
        self._beginning: Begun = []
        self._is_beginning = False
        self.listeners: Listeners = {}

    @property
    def partitions(self) -> Iterator[Partition]:
        return (each for each in self.hosting.opened() if each.node is self)

    def damaged(self) -> list[tuple[str, int]]:
        """Return the damaged or offline partitions: topic and number."""
        broken = [(each.topic, each.number) for each in self.partitions if each.replicated.is_damaged]
        return sorted({*broken, *self.hosting.offline})

    # -- incoming ----------------------------------------------------------------------------------------------

    def registered(self, incarnation: int) -> None:
        """Start a new incarnation after the node has registered, at its start or again."""
        self.incarnation = incarnation
        for each in self.partitions:
            each.registered_as(incarnation)
        self.apply_metadata()

    def opened(self, partitions: Iterable[Partition]) -> None:  # noqa: ARG002 - partitions without news are skipped
        self.apply_metadata()

    def apply_metadata(self) -> None:
        """Give every partition its current assignment, first those that this node is to lead.

        The rest follow later in slices of the event loop's time, if there are many.
        """
        if self.incarnation is None:
            return
        news = sorted(self._news(self.partitions), key=lambda each: each[1].assignment.leader != self.number)
        self._behind = dict.fromkeys(partition for partition, _ in news)
        self._follow_some()
        if self._behind and not self._is_following:
            self._is_following = True
            self.spawn(self._follow_rest(), "follow")

    async def _follow_rest(self) -> None:
        while self._behind:
            await yield_to_loop()
            self._follow_some()
        self._is_following = False

    def _follow_some(self) -> None:
        until = self.runtime.monotonic() + SLICE_SECONDS
        while self._behind and self.runtime.monotonic() < until:
            self._catch_up(list(islice(self._behind, TOLD_AT_ONCE)))

    def _catch_up(self, partitions: Sequence[Partition]) -> None:
        """Apply the current metadata, which may be newer than the change that made these partitions late."""
        for each in partitions:
            self._behind.pop(each, None)
        if self.incarnation is not None:
            for each, told in self._news(partitions):
                if each.replicated.replica.incarnation != self.incarnation:  # opened during the registration
                    each.registered_as(self.incarnation)
                each.step(told)

    def _news(self, partitions: Iterable[Partition]) -> Iterator[tuple[Partition, Assigned]]:
        image = self._metadata.image
        incarnations = image.cluster.incarnations()
        for each in partitions:
            topic = image.topics.get(each.topic)
            if topic is None or topic.topic_id != each.topic_id:
                continue
            told = Assigned(topic.assignments[each.number], incarnations, topic.min_in_sync)
            if told != each.replicated.replica.assigned:
                yield each, told

    def received(self, node: int, key: Key, message: Between | CorruptAnswer) -> None:
        """Deliver a peer's message to its partition."""
        if isinstance(message, (Fetch, Complaint)) and message.node != node:
            return  # a peer speaks only for itself
        name = self.hosting.name_of(key[0].hex())
        found = None if name is None else self.hosting.hosted(name, key[1])
        if found is not None and found.node is self:
            if found in self._behind:  # the peer knows an epoch that this partition must learn first
                self._catch_up([found])
            found.step(message)
        elif isinstance(message, Fetch):  # unknown here yet, or removed: without an answer the peer would wait
            self.send(node, key, Refused(message, Refusal.UNKNOWN_REPLICA, 0))

    async def run(self) -> None:
        """Tick all partitions until the task is cancelled."""
        while True:
            await self.runtime.wakeup().wait(TICK_SECONDS)
            pace = YieldCounter()
            for each in self.partitions:
                each.tick()
                await pace.step()

    def on_leadership_change(self, partition: Partition) -> None:
        if (listener := self.listeners.get(partition.topic)) is not None:
            listener(partition)

    # -- outgoing ----------------------------------------------------------------------------------------------

    def send(self, node: int, key: Key, message: Between) -> None:
        self.transport.send(node, key, message)

    def begin_epoch(self, partition: Partition, epoch: int) -> None:
        self._beginning.append((partition, epoch))
        if not self._is_beginning:
            self._is_beginning = True
            self.spawn(self._begin_epochs(), "begin-epochs")

    async def _begin_epochs(self) -> None:
        await yield_to_loop()  # epochs of one change of the metadata begin together
        while begun := self._beginning:
            self._beginning = []
            faults = await self.runtime.blocking(partial(self._begin_together, begun))
            pace = YieldCounter()
            for each, epoch in begun:
                each.epoch_started(epoch, faults.get(each))
                await pace.step()
        self._is_beginning = False

    def _begin_together(self, begun: Begun) -> dict[Partition, StorageFault]:
        """Begin epochs on a thread with one save for all; if one log rejects its epoch, begin each separately."""
        faults: dict[Partition, StorageFault] = {}
        try:
            self._folder.begin_epochs([(each.replicated.log, epoch) for each, epoch in begun])
        except (StorageFault, BrokerError):
            for each, epoch in begun:
                try:
                    each.replicated.log.begin_epoch(epoch)
                except StorageFault as fault:
                    faults[each] = fault
                except BrokerError as error:
                    faults[each] = StorageFault(str(error))
        return faults

    def propose(self, partition: Partition, proposal: Proposal) -> None:
        if isinstance(proposal, ProposeChange):
            self._changes[partition.key] = (partition, proposal.change)
        else:
            self._said[partition.key] = (partition, proposal)
        if not self._is_proposing:
            self._is_proposing = True
            self.spawn(self._propose(), "propose")

    async def _propose(self) -> None:
        while self._changes or self._said:
            await self.runtime.wakeup().wait(GATHER_SECONDS)
            changes = [self._changes.pop(key) for key in list(self._changes)[:PROPOSED_MAX]]
            said = [self._said.pop(key) for key in list(self._said)[:PROPOSED_MAX]]
            try:
                await self._write(changes, said)
            except BrokerError:
                # The outcome is unknown. Partitions repeat their changes, but not a resignation.
                self._said = {each.key: (each, proposal) for each, proposal in said} | self._said
                await self.runtime.wakeup().wait(TICK_SECONDS)
            self.apply_metadata()
        self._is_proposing = False

    async def _write(
        self, changes: Sequence[Wanted[InSyncSetChange]], said: Sequence[Wanted[Resign | ReportLogEnd]]
    ) -> None:
        if said:
            await proposals.propose_reports(self._metadata, [(_name(each), proposal) for each, proposal in said])
        asked = {(_name(each), change): each for each, change in changes}
        for key, change in await proposals.change_sets(self._metadata, list(asked)):
            asked[key, change].step(ChangeRefused(change))


def _name(partition: Partition) -> tuple[str, int]:
    return partition.topic, partition.number
