"""All replicas of a node, run: messages of peers, metadata, time and the disk reach each of them.

Knows: which work of many partitions is done together (epochs that begin, proposals). Refuses to know: how messages travel, who is
dead, who leads. Invariants: nothing is acted on before the node is registered; a peer speaks for itself alone; what is proposed
and not heard of is asked for again by the partition's own ticks, never by this.
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
"""Changes of in-sync sets that come within this time are one entry of the metadata."""
SLICE_SECONDS: Final = 0.005
TOLD_AT_ONCE: Final = 20
PROPOSED_MAX: Final = 1_000
"""Changes in one entry, which has a largest size."""

Between = Fetch | Answer | Complaint
"""What replicas say to each other."""
Received = Callable[[int, Key, Between | CorruptAnswer], None]
"""received(node, key, message): a peer says something about a partition."""
Spawn = Callable[[Coroutine[Any, Any, None], str], object]
Begun = list[tuple[Partition, int]]
P = TypeVar("P")
Wanted = tuple[Partition, P]
"""What a partition wants to have written to the metadata."""


class Transport(Protocol):
    """The way to other nodes."""

    def send(self, node: int, key: Key, message: Between) -> None:
        """Carry it there, or lose it; the order is kept. Calls nobody back before it returns."""
        ...


T = TypeVar("T", bound=Transport)


class ReplicaManager(Generic[T]):
    """A `PartitionContext` with its `hosting`: `registered`, then `run` in a task; `received` for
    what peers send, `follow` when the metadata moves."""

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
        """`connect` makes the transport, which hands over what peers send."""
        self.number = own_number(name)
        self.name = name
        self.incarnation: int | None = None
        """None also while the node registers again: nothing is acted on meanwhile."""
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
        """Partitions that have not been told yet what the metadata says."""
        self._is_following = False
        self._beginning: Begun = []
        self._is_beginning = False
        self.listeners: Listeners = {}

    @property
    def partitions(self) -> Iterator[Partition]:
        return (each for each in self.hosting.opened() if each.node is self)

    def damaged(self) -> list[tuple[str, int]]:
        """The partitions whose copy here did not open whole: topic and number."""
        broken = [(each.topic, each.number) for each in self.partitions if each.replicated.is_damaged]
        return sorted({*broken, *self.hosting.offline})

    # -- what comes in -----------------------------------------------------------------------------------------

    def registered(self, incarnation: int) -> None:
        """The node is registered, at its start or once more: it is another one for its cluster from now on."""
        self.incarnation = incarnation
        for each in self.partitions:
            each.registered_as(incarnation)
        self.apply_metadata()

    def opened(self, partitions: Iterable[Partition]) -> None:  # noqa: ARG002 - those that have no news are passed over
        self.apply_metadata()

    def apply_metadata(self) -> None:
        """Tell every partition what the metadata says of it now, if it does not know: those first that this node is to lead, and
        of many the others later, in slices of the loop's time."""
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
        """By the metadata as it is now, which may be newer than what made them late."""
        for each in partitions:
            self._behind.pop(each, None)
        if self.incarnation is not None:
            for each, told in self._news(partitions):
                if each.replicated.replica.incarnation != self.incarnation:  # opened while the node registered
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
        """A peer says something about a partition."""
        if isinstance(message, (Fetch, Complaint)) and message.node != node:
            return  # nobody speaks for another
        name = self.hosting.name_of(key[0].hex())
        found = None if name is None else self.hosting.hosted(name, key[1])
        if found is not None and found.node is self:
            if found in self._behind:  # others know of an epoch that it has to hear of first
                self._catch_up([found])
            found.step(message)
        elif isinstance(message, Fetch):  # we have not heard of it yet, or it is gone: silence would be waited for
            self.send(node, key, Refused(message, Refusal.UNKNOWN_REPLICA, 0))

    async def run(self) -> None:
        """Time, until it is cancelled."""
        while True:
            await self.runtime.wakeup().wait(TICK_SECONDS)
            pace = YieldCounter()
            for each in self.partitions:
                each.tick()
                await pace.step()

    def on_leadership_change(self, partition: Partition) -> None:
        if (listener := self.listeners.get(partition.topic)) is not None:
            listener(partition)

    # -- what goes out -----------------------------------------------------------------------------------------

    def send(self, node: int, key: Key, message: Between) -> None:
        self.transport.send(node, key, message)

    def begin_epoch(self, partition: Partition, epoch: int) -> None:
        self._beginning.append((partition, epoch))
        if not self._is_beginning:
            self._is_beginning = True
            self.spawn(self._begin_epochs(), "begin-epochs")

    async def _begin_epochs(self) -> None:
        await yield_to_loop()  # what one change of the metadata begins is begun together
        while begun := self._beginning:
            self._beginning = []
            faults = await self.runtime.blocking(partial(self._begin_together, begun))
            pace = YieldCounter()
            for each, epoch in begun:
                each.epoch_started(epoch, faults.get(each))
                await pace.step()
        self._is_beginning = False

    def _begin_together(self, begun: Begun) -> dict[Partition, StorageFault]:
        """On a thread: one save for all; if that is refused for one of them, each by itself."""
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
                # What became of it is not known. Changes are asked for again by the partitions, a resignation is not.
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
