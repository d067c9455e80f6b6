"""A simulated cluster whose partition is a shard of the coordinators: the product's own journal, tables, groups and commits over
simulated replicas, with members that join, commit and read while nodes die.

Every commit is higher than all before it, so that what must not be lost, and what nobody may have seen yet, is told by numbers.
"""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec
from tests.simulation.fault_mix import Mix
from tests.simulation.promises import BrokenPromise
from tests.simulation.sent_records import SentRecords
from tests.simulation.simulated_clients import FIRST_CLIENT
from tests.simulation.simulated_node import SimulatedNode
from tests.simulation.simulated_replica import SimulatedReplica
from tests.simulation.universe import Universe
from tests.simulation.virtual_time import US_PER_MS

from braidlog.broker.coordination.coordinator import Coordinator, CoordinatorFactory, Members, TransactionDeps
from braidlog.broker.coordination.coordinators import Coordinators
from braidlog.coordinator.journal import JournalLog
from braidlog.coordinator.offsets import Commit
from braidlog.coordinator.shards import STATE_SETTINGS, STATE_TOPIC, shard_for_name
from braidlog.coordinator.state_limits import StateUsage
from braidlog.model.errors import BrokerError, NotCoordinatorError, NotLeaderError, Reason
from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import NOBODY, Acknowledgement, Partition
from braidlog.partition.replica_runner import Produced
from braidlog.replication.leader import write_refusal
from braidlog.replication.messages import Append, Await, Message
from braidlog.replication.ready import Apply, Done, Failed
from braidlog.replication.replica_state import Leader
from braidlog.storage.log.partition_log import Appended

GROUP, READ_TOPIC, PARTITIONS = "g0", "read", 3
assert shard_for_name(GROUP) == 0, "there is one shard here"
SESSION_MS = 800
MEMBERS = 3
TIMEOUT_US = 900 * US_PER_MS
FIRST_TOKEN = 1_000_000
"""Above those of clients that produce."""
IN_A_MOMENT = (Reason.NOT_COORDINATOR, Reason.COORDINATOR_LOADING, Reason.UNAVAILABLE, Reason.TIMED_OUT)


class Ask(NamedTuple):
    client: int
    number: int
    verb: str
    generation: int = 0
    partition: int = 0
    offset: int = 0


class Told(NamedTuple):
    """`reason` is None if it was done."""

    number: int
    reason: Reason | None = None
    generation: int = 0
    partitions: tuple[int, ...] = ()
    offset: int = 0


class _Hosting:
    """All that a coordinator asks of topics."""

    def exists(self, _: str) -> bool:
        return True

    def meta(self, _: str) -> None: ...

    def partition_count(self, _: str) -> int:
        return PARTITIONS

    def check_partition(self, *_: object) -> None: ...


class ShardReplica(SimulatedReplica):
    """As much of a `Partition` as a `CoordinatorLog` asks for."""

    number, is_gone, key = 0, False, (b"", 0)
    node: "ShardNode"

    def __init__(self, *parts: Any) -> None:
        self._waiting: dict[int, Acknowledgement] = {}
        self._shown = (False, 0)
        super().__init__(*parts)

    @property
    def role(self) -> Role:
        return Role.LEADER if self.is_leader else Role.FOLLOWER

    @property
    def leader_epoch(self) -> int:
        return self.replica.epoch

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    async def durable_alone(self, *_: object) -> bool:
        return False

    @property
    def high_watermark(self) -> int:
        return self.replica.watermark

    def step(self, message: Message) -> None:
        super().step(message)
        shown = self.is_leader, self.leader_epoch
        if self._is_here and shown != self._shown:
            self._shown = shown
            self.node.coordinators.on_leadership_change(cast("Partition", self))

    def produce(self, produced: Produced, *, needs_all: bool, is_awaited: bool) -> tuple[Appended, Acknowledgement]:
        assert not is_awaited
        role = self.replica.role
        if not self.is_leader or not isinstance(role, Leader):
            raise NotLeaderError(STATE_TOPIC, 0, "")
        if (reason := write_refusal(self.replica, role, needs_all=needs_all)) is not None:
            raise BrokerError(reason, "")
        base = self.log.end_offset
        self.step(Append(NOBODY, produced.records, produced, needs_all=needs_all))
        return Appended(base, base + produced.records - 1), Acknowledgement()

    def committed_later(self, next_offset: int) -> Acknowledgement:
        token = FIRST_TOKEN + len(self._waiting)
        waiting = self._waiting[token] = Acknowledgement()
        self.step(Await(token, next_offset))
        return waiting

    def outcome(self, outcome: Apply) -> None:
        if isinstance(outcome, Done | Failed) and (outcome.token == NOBODY or outcome.token in self._waiting):
            if outcome.token in self._waiting:
                self._waiting[outcome.token].settle(outcome)
            return
        super().outcome(outcome)


class WatchedCoordinators(Coordinators):
    universe: "ShardedUniverse"

    async def _load(self, number: int, led: JournalLog) -> Coordinator:
        try:
            return await super()._load(number, led)
        except NotCoordinatorError:
            self.universe.count("shard lost while it is read")
            raise


class ShardNode(SimulatedNode):
    replica_type: type[SimulatedReplica] = ShardReplica
    universe: "ShardedUniverse"

    def start(self) -> None:
        super().start()
        none = cast("Any", None)
        making = CoordinatorFactory(
            cast("Any", _Hosting()),
            lambda _: "id",
            cast("Any", self.runtime),
            StateUsage(),
            TransactionDeps(none, none, none),
            Members(rebalance_delay_ms=0),
        )
        routing = SimpleNamespace(own_number=self.number, coordinator_of=lambda _: None)
        topics = SimpleNamespace(hosting=SimpleNamespace(topics={STATE_TOPIC: none}, offline={}))
        self.coordinators = WatchedCoordinators(
            cast("Any", routing), cast("Any", topics), cast("Any", self.runtime), lambda work, _: self._spawn(work)
        )
        self.coordinators.begin(making)
        self.coordinators.universe = self.universe

    def receive(self, sender: int, message: object) -> None:
        if isinstance(message, Ask):
            self._spawn(self._serve(message))
        else:
            super().receive(sender, message)

    async def _serve(self, ask: Ask) -> None:
        is_created = False
        try:
            async with self.coordinators.settled_after(GROUP) as coordinator:
                is_created = True
                told = await self._served(coordinator, ask)
        except BrokerError as error:
            told = Told(ask.number, error.reason)
            if is_created and error.reason is Reason.NOT_COORDINATOR:
                self.universe.count("coordinator fenced")
        else:
            self.universe.tells(self, ask, told)
        self.universe.network.send(self.number, ask.client, told)
        self.universe.happened(self, "acknowledgement")

    async def _served(self, coordinator: Coordinator, ask: Ask) -> Told:
        member = f"m{ask.client}"
        match ask.verb:
            case "join":
                found = await coordinator.groups.join(GROUP, member, [READ_TOPIC], session_timeout_ms=SESSION_MS)
                return Told(ask.number, None, found.generation, tuple(found.assignment.get(READ_TOPIC, ())))
            case "commit":
                commits = [Commit(READ_TOPIC, ask.partition, ask.offset)]
                await coordinator.groups.commit(GROUP, member, ask.generation, commits)
                return Told(ask.number, None)
        found_offset = coordinator.offsets.committed(GROUP, READ_TOPIC, ask.partition)
        return Told(ask.number, None, offset=0 if found_offset is None else found_offset.offset)


class Member:
    """Joins, then commits what is its own, and looks what others have committed; asks again until it is answered."""

    def __init__(self, universe: "ShardedUniverse", number: int) -> None:
        self.universe = universe
        self.number = number
        self._draw = universe.stream(f"member {number}")
        self._asked: Ask | None = None
        self._attempts = self._generation = 0
        self._own: tuple[int, ...] = ()
        self.is_done = False

    def start(self) -> None:
        self.universe.time.after(self._draw.randrange(200 * US_PER_MS), self._next)

    def _next(self) -> None:
        if self.universe.is_healing:
            self.is_done = True
            return
        if not self._generation:
            self._ask("join")
        elif self._own and self._draw.random() < 0.7:
            self._ask("commit", self._draw.choice(self._own), self.universe.next_offset())
        else:
            self._ask("read", self._draw.randrange(PARTITIONS))

    def _ask(self, verb: str, partition: int = 0, offset: int = 0) -> None:
        self._attempts += 1
        self._asked = Ask(self.number, self._attempts, verb, self._generation, partition, offset)
        node = self.universe.leader_as_seen(self._draw, self.universe.names[0])
        self.universe.asks(self._asked)
        self.universe.network.send(self.number, node, self._asked)
        attempt = self._attempts
        self.universe.time.after(TIMEOUT_US, lambda: self._give_up(attempt))

    def _give_up(self, attempt: int) -> None:
        if attempt == self._attempts and self._asked is not None:
            self._asked = None
            self._next()

    def receive(self, _: int, message: object) -> None:
        if not isinstance(message, Told) or self._asked is None or message.number != self._attempts:
            return
        asked, self._asked = self._asked, None
        if message.reason is None and asked.verb == "join":
            self._generation, self._own = message.generation, message.partitions
        elif message.reason is not None and message.reason not in IN_A_MOMENT:
            self._generation = 0
        self.universe.time.after(int(self._draw.expovariate(1 / self.universe.mix.think_us)), self._next)


class _Unread(SentRecords):
    """What is written here is not told by its values."""

    def latest(self, held: object) -> dict[bytes, int]:
        del held
        return {}


class ShardedUniverse(Universe):
    """`run` raises `BrokenPromise`, as its base does."""

    node_type: type[SimulatedNode] = ShardNode

    def __init__(self, seed: int, *, skipped: frozenset[int] = frozenset(), tells: bool = False) -> None:
        self._offsets_made = 0
        self.generation = 0
        """The highest that anybody was told."""
        self.offsets = dict.fromkeys(range(PARTITIONS), 0)
        """Of each partition the highest that anybody was told: acknowledged, or read."""
        self._asked: dict[tuple[int, int], tuple[int, int]] = {}
        super().__init__(seed, mix=sharded(Universe(seed).mix), skipped=skipped, tells=tells)
        self.records = _Unread()

    def _clients(self) -> Any:
        return [Member(self, FIRST_CLIENT + at) for at in range(MEMBERS)]

    def next_offset(self) -> int:
        self._offsets_made += 1
        return self._offsets_made

    def deletable_end(self, name: str) -> int:
        del name
        return 0

    def asks(self, ask: Ask) -> None:
        self._asked[ask.client, ask.number] = self.generation, self.offsets[ask.partition]

    def tells(self, node: ShardNode, ask: Ask, told: Told) -> None:
        """A node answers: what it says must hold from now on."""
        generation, offset = self._asked[ask.client, ask.number]
        self.count(ask.verb)
        self.note(node.number, f"tells {ask.client} {ask} {told}")
        match ask.verb:
            case "join":
                self.generation = max(self.generation, told.generation)
            case "commit":
                if ask.generation < generation:
                    raise BrokenPromise(f"{ask} is acknowledged, and generation {generation} had begun before")
                self.offsets[ask.partition] = max(self.offsets[ask.partition], ask.offset)
            case _:
                name = self.names[0]
                is_latest = node.replicas[name].replica.epoch >= self.promises[name]._latest_epoch()
                if is_latest and told.offset < offset:
                    raise BrokenPromise(f"{ask} is answered {told.offset}, and {offset} was told before")
                self.offsets[ask.partition] = max(self.offsets[ask.partition], told.offset)

    def _missing(self) -> str:
        for client in self.clients.values():
            if isinstance(client, Member) and not client.is_done:
                return f"member {client.number} has no answer"
        for node in self.nodes.values():
            if node.metadata is None or not node.incarnation:
                return f"node {node.number} has not started"
        try:
            self._coordinator()
        except (StopIteration, NotCoordinatorError):
            return "nobody coordinates"
        return self._missing_of(self.names[0])

    def _coordinator(self) -> Coordinator:
        leader = self._leader_of(self.names[0])
        assert isinstance(leader.node, ShardNode)
        return leader.node.coordinators.coordinator_for(GROUP)

    def _check_whole(self) -> None:
        if missing := self._missing():
            raise BrokenPromise(f"after the last fault: {missing}")
        coordinator = self._coordinator()
        group = coordinator.registry.get(GROUP)
        found = 0 if group is None else group.generation
        if found < self.generation:
            raise BrokenPromise(f"generation {self.generation} was told, and {found} is what is kept")
        for number, told in self.offsets.items():
            kept = coordinator.offsets.committed(GROUP, READ_TOPIC, number)
            if told > (0 if kept is None else kept.offset):
                raise BrokenPromise(f"offset {told} of partition {number} was told, and {kept} is what is kept")


def sharded(mix: Mix) -> Mix:
    """The same faults over one shard."""
    settings = msgspec.structs.replace(
        STATE_SETTINGS, segment_bytes=mix.settings.segment_bytes, segment_ms=mix.settings.segment_ms
    )
    faults = {name: weight for name, weight in mix.faults.items() if name != "flip"}
    return msgspec.structs.replace(
        mix,
        settings=settings,
        flush_on_ack=True,
        faults=faults,
        partitions=1,
        weak_producers=0,
        delete_every_us=0,
    )


Loading = Callable[[Coordinators, int, JournalLog], Awaitable[Coordinator]]
