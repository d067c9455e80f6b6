"""Transactions of several producers over partitions and groups whose leaders and coordinators move, in one thread, by a seed.

The partitions, markers, verification, transactions, pending commits and journals are the real ones. The network is made of
pauses: what travels may be overtaken, and the end of a transaction may arrive once more, late. A coordinator that was replaced
does not know it until it waits for its log.
"""

import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

from tests.broker.node import batch_of
from tests.model.manual_world import ManualRuntime

from braidlog.cluster.metadata.topic_state import Topic
from braidlog.codec.batch.header import read_header
from braidlog.codec.batch.records import decode_batch
from braidlog.codec.batch.records_section import Row
from braidlog.coordinator.journal import Journal, Table, load_tables
from braidlog.coordinator.offsets import Commit, Committed, Offsets
from braidlog.coordinator.state_limits import StateUsage
from braidlog.coordinator.transactions.markers import End, Failures, LocalMarkers
from braidlog.coordinator.transactions.pending_commits import PendingCommit, PendingCommits
from braidlog.coordinator.transactions.transaction import ProducerIdentity, Transaction, TxnState
from braidlog.coordinator.transactions.transactions import Transactions
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import TopicSettings
from braidlog.partition.fetch.fetch import Fetch
from braidlog.partition.partition import Partition
from braidlog.partition.partition_registry import PartitionRegistry
from braidlog.partition.produce.append import Acks, Append, ProducerLimit
from braidlog.partition.produce.transaction_verification import Question, Verified
from braidlog.replication import messages as m
from braidlog.replication.assignment import Assignment
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk
from braidlog.worker.inline_worker import Here

T = TypeVar("T")

TOPIC, TOPIC_ID = "a", "00000000000000000000000000000001"
PARTITIONS = 3
PRODUCERS = 3
TRANSACTIONS = 4
EVENTS = 12
TIMEOUT_MS = 10_000
AGAIN = {
    Reason.NOT_COORDINATOR,
    Reason.NOT_LEADER,
    Reason.CONCURRENT_TRANSACTIONS,
    Reason.TIMED_OUT,
    Reason.UNAVAILABLE,
    Reason.ACKS_TIMED_OUT,
}


class Shard:
    """A shard's log: what is committed in it, and in which epoch it is led."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.epoch = 1


class ShardLog:
    """The log as one leader has it (`JournalLog`): what it appends is committed by a wait, if it still leads then."""

    is_led, is_sole = True, False

    def __init__(self, shard: Shard, pause: Callable[[], Awaitable[None]]) -> None:
        self._shard = shard
        self._pause = pause
        self.epoch = shard.epoch
        self._batches = list(shard.batches)
        self._committed = len(self._batches)

    @property
    def tail(self) -> list[bytes]:
        """Not committed yet."""
        return self._batches[self._committed :]

    def append(self, batch: bytes) -> int:
        self._batches.append(batch)
        return len(self._batches)

    def is_durable(self, next_offset: int) -> bool:
        return next_offset <= self._committed

    async def durable(self, next_offset: int) -> None:
        if self.is_durable(next_offset):
            return
        await self._pause()
        if self._shard.epoch != self.epoch:
            raise BrokerError(Reason.NOT_COORDINATOR, "this coordinator has a successor")
        if not self.is_durable(next_offset):
            self._shard.batches += self._batches[self._committed : next_offset]
            self._committed = next_offset

    def rows(self) -> Iterator[Row]:
        for batch in self._batches:
            yield from decode_batch(batch, decompressed_bytes_max=1 << 20)

    @property
    def end_offset(self) -> int:
        return len(self._batches)


class Coordinator:
    """Transactions and a group's commits over one shard, in one epoch."""

    def __init__(self, universe: "Universe", shard: Shard) -> None:
        self.log = ShardLog(shard, universe.pause)
        journal = Journal(self.log, universe.runtime)
        kinds = {"transaction": Transaction, "pending-commit": PendingCommit, "offset": Committed}
        tables = {kind: Table(journal, kind, value_type) for kind, value_type in kinds.items()}
        loading = load_tables(journal, list(tables.values()), lambda key: None)
        with contextlib.suppress(StopIteration):
            while True:
                loading.send(None)
        holdings = StateUsage()
        self.offsets = Offsets(tables["offset"], universe.hosting, universe.runtime, holdings, lambda _: TOPIC_ID)
        self.pending = PendingCommits(tables["pending-commit"], self.offsets, universe.ask, holdings)
        self.transactions = Transactions(
            tables["transaction"], universe.ids, universe.hosting, self.offsets, universe.runtime, holdings, universe
        )


class Ids:
    """Producer ids, without blocks of them."""

    def __init__(self) -> None:
        self._next = 1000

    async def allocate(self) -> int:
        self._next += 1
        return self._next


class Sent:
    """What a producer knows of one of its transactions."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.key = b"%s-%d" % (name.encode(), number)
        self.values: list[tuple[int, bytes]] = []
        """Acknowledged: partition and value."""
        self.offset: int | None = None
        """What it commits for its producer's group, if that was acknowledged."""
        self.outcome: bool | None = None
        """Whether it was committed, if its producer was told."""


class Universe:
    """One run. It is a `PartitionContext` to its partitions, and a `MarkerWriter` to its coordinators."""

    number = 1
    incarnation = 1

    def __init__(self, seed: int, version: int = 1) -> None:
        """`version`: of the producers' transactions (KIP-890)."""
        self.rng = Random(seed)
        self._is_v2 = version > 1
        self.clock = ManualClock()
        self.runtime = ManualRuntime(self.clock, rng=Random(seed + 1))
        self.ids: Any = Ids()
        folder = self._folder = DataFolder(SimulatedDisk(), "/data", self.clock)
        folder.create_topic(TOPIC, PARTITIONS, TopicSettings(), topic_id=TOPIC_ID, created_ms=1)
        self.name, self.may_close, self.listeners = "1", False, dict[str, Any]()
        self.hosting = PartitionRegistry(folder, "1", self.runtime, self)
        opener = folder.open_partition
        self.partitions = [
            Partition(TOPIC, TOPIC_ID, number, opener(TOPIC, number), self, opener) for number in range(PARTITIONS)
        ]
        self._assigned = [Assignment(replicas=(1,), in_sync=(1,), leader=1)] * PARTITIONS
        self.hosting.put(
            Topic(
                name=TOPIC,
                topic_id=TOPIC_ID,
                settings=TopicSettings(),
                created_ms=1,
                min_in_sync=1,
                assignments=tuple(self._assigned),
            )
        )
        self.hosting.host(self.partitions)
        producers = ProducerLimit(self.hosting, self.runtime, 1000)
        self.append = Append(self.hosting, self.runtime, producers, self.ask)
        self.fetch = Fetch(self.hosting, self.runtime, Here())
        self._markers = LocalMarkers(self.hosting, self.runtime, self._end_commits)
        self._shards = {"transactions": Shard(), "groups": Shard()}
        self._serving = {role: [Coordinator(self, shard)] for role, shard in self._shards.items()}
        """Each one that ever served, the last one last."""
        self.is_healed = False
        self.sent: list[Sent] = []
        self.unsure: set[str] = set()
        """Groups of which nobody knows whether the last commit counts."""
        for number in range(PARTITIONS):
            self.move_leader(number)
        self.runtime.settle()

    # -- what partitions ask for (`PartitionContext`) ---------------------------------------------------------------

    def send(self, *_: object) -> None:
        raise AssertionError("there are no followers")

    def propose(self, *_: object) -> None: ...
    def opened(self, *_: object) -> None: ...
    def on_leadership_change(self, *_: object) -> None: ...
    def replaced(self) -> None: ...

    def begin_epoch(self, partition: Partition, epoch: int) -> None:
        async def begin() -> None:
            await self.runtime.pause()
            self._folder.begin_epochs([(partition.replicated.log, epoch)])
            partition.epoch_started(epoch, None)

        self.runtime.spawn(begin())

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> object:
        assert name
        return self.runtime.spawn(work)

    # -- the network -------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        for _ in range(0 if self.is_healed else self.rng.choice((0, 1, 1, 3, 10, 40))):
            await self.runtime.pause()

    def coordinator(self, role: str) -> Coordinator:
        """The one that serves or, for who has not heard yet, one before it."""
        serving = self._serving[role]
        is_late = not self.is_healed and self.rng.random() < 0.2
        return serving[max(len(serving) - 2, 0)] if is_late else serving[-1]

    async def ask(self, question: Question) -> Verified:
        await self.pause()
        transactions = self.coordinator("transactions").transactions
        producer = question.name, question.producer_id, question.epoch
        if question.adds or isinstance(question.of, str):
            word = await transactions.verify_added(*producer, question.of, begins=question.begins)
        else:
            word = transactions.verify(*producer, *question.of)
        await self.pause()
        return word

    async def _end_commits(self, _: str, ends: Sequence[End]) -> None:
        await self.coordinator("groups").pending.complete(ends)

    async def write(self, ends: Sequence[End], *, patient: bool = True) -> Failures:
        """Markers on their way (`MarkerWriter`): sometimes they arrive once more, when all is over."""
        assert patient in (True, False)
        await self.pause()
        if not self.is_healed and self.rng.random() < 0.3:
            self.runtime.spawn(self._write_late(ends))
        return await self._markers.write(ends)

    async def _write_late(self, ends: Sequence[End]) -> None:
        for _ in range(self.rng.choice((1, 5, 50))):
            await self.pause()
        await self._markers.write(ends)

    # -- faults ------------------------------------------------------------------------------------------------

    def move_leader(self, number: int) -> None:
        self._assigned[number] = assignment = self._assigned[number].with_leader(1)
        self.partitions[number].step(m.Assigned(assignment, ((1, 1),), 1))

    def move_coordinator(self, role: str) -> None:
        """Another one takes over, with what was committed and perhaps more of what the last one had written."""
        shard, serving = self._shards[role], self._serving[role]
        tail = serving[-1].log.tail
        shard.batches += tail[: self.rng.randrange(len(tail) + 1)]
        shard.epoch += 1
        made = Coordinator(self, shard)
        serving.append(made)
        if role == "transactions":
            self.runtime.spawn(made.transactions.resume())

    async def nemesis(self) -> None:
        for _ in range(EVENTS):
            for _ in range(self.rng.choice((1, 5, 20))):
                await self.pause()
            fault = self.rng.randrange(4)
            if fault == 0:
                self.move_leader(self.rng.randrange(PARTITIONS))
            elif fault < 3:
                self.move_coordinator("transactions")
            else:
                self.move_coordinator("groups")

    # -- producers ---------------------------------------------------------------------------------------------

    async def again(self, work: Callable[[], Awaitable[T]], times: int = 60) -> T:
        """Ask until the answer is one that a client does not repeat."""
        for _ in range(times):
            try:
                return await work()
            except BrokerError as error:
                if error.reason not in AGAIN:
                    raise
            await self.runtime.pause()
        raise BrokerError(Reason.TIMED_OUT, "given up")

    async def produce(self, name: str) -> None:
        begun: Transaction | None = None
        goes_on: tuple[int, int] | None = None
        sequences = [0] * PARTITIONS
        for number in range(1, TRANSACTIONS + 1):
            if begun is None:
                try:
                    begun = await self.again(
                        lambda last=goes_on: self.coordinator("transactions").transactions.begin_producer(  # type: ignore[misc]
                            name, TIMEOUT_MS, expected=last
                        )
                    )
                except BrokerError:
                    continue
                sequences = [0] * PARTITIONS
            assert begun is not None
            sent = Sent(name, number)
            self.sent.append(sent)
            goes_on = (begun.producer_id, begun.epoch) if self._is_v2 else None
            try:
                begun = await self._transact(
                    ProducerIdentity(name, begun.producer_id, begun.epoch), sent, number, sequences
                )
            except BrokerError:
                begun = None  # it begins again: whatever it left is aborted, or ends as it was decided
            if self._is_v2:
                sequences = [0] * PARTITIONS
            if self.rng.random() < 0.2:
                begun = None
                goes_on = None

    async def _transact(
        self, producing: ProducerIdentity, sent: Sent, number: int, sequences: list[int]
    ) -> Transaction:
        name, producer_id, epoch = producing
        chosen = self.rng.sample(range(PARTITIONS), self.rng.randrange(1, PARTITIONS + 1))
        places = [(TOPIC, each) for each in chosen]
        if not self._is_v2:
            await self.again(lambda: self.coordinator("transactions").transactions.add_partitions(*producing, places))
        for partition in chosen:
            value = b"%s/%d" % (sent.key, partition)
            batch = batch_of(value, producer=(producer_id, epoch, sequences[partition]), transactional=True)
            await self.again(lambda at=partition, data=batch: self._append(at, data, name))  # type: ignore[misc]
            sequences[partition] += 1
            sent.values.append((partition, value))
        if self.rng.random() < 0.7:
            if not self._is_v2:
                await self.again(lambda: self.coordinator("transactions").transactions.add_group(*producing, name))
            commits = [Commit(TOPIC, 0, number)]
            await self.again(
                lambda: self.coordinator("groups").pending.stage(
                    name, producing, commits, guard=lambda: None, begins=self._is_v2
                )
            )
            sent.offset = number
        commit = self.rng.random() < 0.7
        ended = await self.again(
            lambda: self.coordinator("transactions").transactions.end_transaction(
                *producing, commit=commit, bump=self._is_v2
            ),
            times=self.rng.choice((2, 60)),
        )
        assert ended.state is (TxnState.COMMITTED if commit else TxnState.ABORTED)
        sent.outcome = commit
        if sent.offset is not None and self.rng.random() < 0.5:
            await self._commit(name, 100 + number)
        return ended

    async def _append(self, partition: int, batch: bytes, name: str) -> None:
        if self._is_v2:
            await self.append.ready(TOPIC, partition)
            await self.append.verify(TOPIC, partition, read_header(batch), name, adds=True)
            await self.append.acknowledge(self.append.write(TOPIC, partition, batch), acks=Acks.ALL)
        else:
            await self.append.append(TOPIC, partition, batch, acks=Acks.ALL, transactional_id=name)

    async def _commit(self, name: str, offset: int) -> None:
        """Without a transaction."""
        sent = Sent(name, offset)
        self.sent.append(sent)
        self.unsure.add(name)
        commits = [Commit(TOPIC, 0, offset)]
        await self.again(lambda: self.coordinator("groups").offsets.commit(name, commits))
        self.unsure.discard(name)
        sent.offset = offset

    # -- the run -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        jobs = [self.runtime.spawn(self.produce(f"t{number}")) for number in range(PRODUCERS)]
        jobs.append(self.runtime.spawn(self.nemesis()))
        for _ in range(2000):
            if all(job.is_done for job in jobs):
                break
            self.runtime.advance(20)
        for job in jobs:
            job.result()
        self.runtime.advance(100)
        self.is_healed = True
        serving = self._serving["transactions"][-1].transactions
        for _ in range(3):
            self.runtime.advance(TIMEOUT_MS + 1)
            self.runtime.run(serving.expire())

    def check(self) -> str:
        """What is wrong; empty if nothing is."""
        for hosted in self.partitions:
            if hosted.last_stable_offset != hosted.end_offset:
                return f"{hosted} has a transaction open that nobody ends"
        pending = self._serving["groups"][-1].pending._by_group
        if pending:
            return f"commits are pending for ever: {pending}"
        visible = [self._visible(number) for number in range(PARTITIONS)]
        for values in visible:
            if len(values) != len(set(values)):
                return f"seen twice: {values}"
        return next((why for sent in self.sent if (why := _check_one(sent, visible))), "") or self._check_groups(
            visible
        )

    def _check_groups(self, visible: list[list[bytes | None]]) -> str:
        last: dict[str, int] = {}
        for sent in self.sent:
            if sent.offset is not None and all(value in visible[partition] for partition, value in sent.values):
                last[sent.name] = sent.offset
        for name, offset in last.items():
            if name in self.unsure:
                continue
            found = self._serving["groups"][-1].offsets.committed(name, TOPIC, 0)
            if found is None or found.offset != offset:
                return f"group {name!r} is at {found}, its last transaction committed {offset}"
        return ""

    def _visible(self, number: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        offset = 0
        while True:
            got = self.runtime.run(self.fetch.records(TOPIC, number, offset, bytes_max=1 << 20, committed_only=True))
            if not got.records:
                return found
            found += [record.value for record in got.records]
            offset = got.next_offset


def _check_one(sent: Sent, visible: list[list[bytes | None]]) -> str:
    there = [value in visible[partition] for partition, value in sent.values]
    if there and any(there) != all(there):
        return f"{sent.key!r} is seen in part: {there}"
    is_wrong = sent.outcome is not None and there and all(there) is not sent.outcome
    return f"{sent.key!r} was told as {sent.outcome}" if is_wrong else ""


def failure(seed: int, version: int = 1) -> str:
    universe = Universe(seed, version)
    universe.run()
    return universe.check()
