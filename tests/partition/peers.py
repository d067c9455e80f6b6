"""Nodes of a cluster in one process: real partitions and services, one world, a network that the test carries."""

from collections import deque
from collections.abc import Coroutine
from typing import Any

from tests.broker.node import batch_of
from tests.model.manual_world import Job, ManualRuntime

from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.runtime.runtime import Wakeup
from braidlog.model.settings import TopicSettings
from braidlog.partition.fetch.fetch import Fetch
from braidlog.partition.maintenance.delete_records import Trim
from braidlog.partition.partition import Partition
from braidlog.partition.partition_context import Key, Listeners
from braidlog.partition.partition_registry import PartitionRegistry
from braidlog.partition.produce.append import Acks, Append, ProducerLimit
from braidlog.partition.produce.transaction_verification import Question, Verified
from braidlog.replication import messages as m
from braidlog.replication.assignment import Assignment
from braidlog.replication.ready import Proposal
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.log.partition_log import Appended
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk
from braidlog.worker.inline_worker import Here

TOPIC, TOPIC_ID = "a", "00000000000000000000000000000001"
Between = m.Fetch | m.Answer | m.Complaint


class Peer:
    """One node with one partition of one topic; a `PartitionContext`."""

    may_close = False

    def __init__(self, cluster: "Peers", number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.name = str(number)
        self.incarnation = number
        self.runtime = cluster.runtime
        self.listeners: Listeners = {}
        self.disk = SimulatedDisk()
        self.folder = DataFolder(self.disk, "/data", cluster.clock)
        self.folder.create_topic(TOPIC, 1, cluster.settings, topic_id=TOPIC_ID, created_ms=1)
        self.hosting = PartitionRegistry(self.folder, str(number), self.runtime, self)
        opener = self.folder.open_partition
        self.partition = Partition(TOPIC, TOPIC_ID, 0, opener(TOPIC, 0), self, opener)
        self.hosting.host([self.partition])
        producers = ProducerLimit(self.hosting, self.runtime, 100)
        self.append_service = Append(self.hosting, self.runtime, producers, self.ask)
        self.fetch = Fetch(self.hosting, self.runtime, Here())
        self.trim = Trim(self.hosting, self.runtime)
        self.proposed: list[Proposal] = []
        self.beginning: list[int] = []
        self.is_slow_to_begin = False
        self.is_replaced = False
        self.asked: list[tuple[object, ...]] = []
        self.answer: Verified | BrokerError = Verified(1, 1)
        self.answers: list[Verified] = []
        """What is answered before that, one after the other."""
        self.is_coordinator_slow = False
        self.answering: Wakeup | None = None

    async def ask(self, question: Question) -> Verified:
        """The coordinator of every transaction: the test answers for it, at once or when it wakes `answering`."""
        self.asked.append((question.name, question.producer_id, question.epoch, *question.of))
        if self.is_coordinator_slow:
            self.answering = self.runtime.wakeup()
            await self.answering.wait(60)
        answer = self.answers.pop(0) if self.answers else self.answer
        if isinstance(answer, BrokerError):
            raise answer
        return answer

    # -- what its partition asks for ---------------------------------------------------------------------------

    def send(self, node: int, key: Key, message: Between) -> None:
        assert key == (bytes.fromhex(TOPIC_ID), 0)
        self.cluster.under_way.append((self.number, node, message))

    def propose(self, partition: Partition, proposal: Proposal) -> None:
        assert partition is self.partition
        self.proposed.append(proposal)

    def begin_epoch(self, partition: Partition, epoch: int) -> None:
        assert partition is self.partition
        self.beginning.append(epoch)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> object:
        assert name
        return self.runtime.spawn(work)

    def opened(self, partitions: object) -> None: ...

    def on_leadership_change(self, partition: Partition) -> None: ...

    def replaced(self) -> None:
        self.is_replaced = True

    # -- what a test asks for ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let the epochs begin that are to."""
        while self.beginning:
            epoch, fault = self.beginning.pop(0), None
            try:
                self.folder.begin_epochs([(self.partition.replicated.log, epoch)])
            except StorageFault as error:
                fault = error
            self.partition.epoch_started(epoch, fault)

    def append(
        self, *values: bytes, acks: Acks = Acks.ALL, producer: tuple[int, int, int] | None = None, transaction: str = ""
    ) -> Job[Appended]:
        batch = batch_of(*values, producer=producer, transactional=bool(transaction))
        return self.runtime.spawn(
            self.append_service.append(TOPIC, 0, batch, acks=acks, timeout_ms=5_000, transactional_id=transaction)
        )

    def values(self) -> list[bytes | None]:
        """All that a reader sees."""
        start = self.partition.start_offset
        return [each.value for each in self.runtime.run(self.fetch.records(TOPIC, 0, start, bytes_max=1 << 20)).records]


class Peers:
    """`peers[1]` leads at first; all three are in sync."""

    def __init__(
        self,
        settings: TopicSettings | None = None,
        *,
        min_in_sync: int = 2,
        first: tuple[int, ...] = (1, 2, 3),
        beside: "Peers | None" = None,
    ) -> None:
        """`first`: who has a replica at first. `beside`: in the same world, of another topic."""
        self.clock: ManualClock = ManualClock() if beside is None else beside.clock
        self.runtime: ManualRuntime = ManualRuntime(self.clock) if beside is None else beside.runtime
        self.settings: TopicSettings = settings or TopicSettings()
        self.min_in_sync = min_in_sync
        self.under_way: deque[tuple[int, int, Between]] = deque()
        self.away: set[int] = set()
        self._peers = {number: Peer(self, number) for number in (1, 2, 3)}
        self.assignment = Assignment(replicas=first, in_sync=first, leader=1, leader_epoch=1)
        self.assign()

    def __getitem__(self, number: int) -> Peer:
        return self._peers[number]

    def assign(self, assignment: Assignment | None = None) -> None:
        """The metadata says so to everyone who is there."""
        self.assignment = assignment or self.assignment
        for number, peer in self._peers.items():
            if number not in self.away:
                peer.partition.step(self.assigned(self.assignment))
        self.carry()

    def assigned(self, assignment: Assignment) -> m.Assigned:
        incarnations = tuple((number, peer.incarnation) for number, peer in self._peers.items())
        return m.Assigned(assignment, incarnations, self.min_in_sync)

    def elect(self, leader: int) -> None:
        self.assign(self.assignment.with_leader(leader))

    def carry(self) -> None:
        """Let everyone work, and every message arrive, until nobody has anything to say."""
        is_quiet = False
        while not is_quiet:
            self.runtime.settle()
            for peer in self._peers.values():
                if not peer.is_slow_to_begin:
                    peer.begin()
            self.runtime.settle()
            is_quiet = not self.under_way
            while self.under_way:
                sender, to, message = self.under_way.popleft()
                if not self.away & {sender, to}:
                    self._peers[to].partition.step(message)

    def tick(self) -> None:
        self.runtime.advance(300)
        for number, peer in self._peers.items():
            if number not in self.away:
                peer.partition.tick()
        self.carry()
