"""A node that was alone is moved into a cluster: whatever it kept is answered by the shards' coordinators, also if the power goes
at any step of the move."""

import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest
from tests.broker.node import Node, batch_of
from tests.model.manual_world import Job, ManualWorld
from tests.sampling import FULL
from tests.simulation.etcd import ModelClient, ModelEtcd

from braidlog.broker.access.authorize import Authorize
from braidlog.broker.access.rule import Kind, Operation
from braidlog.broker.coordinator import KINDS, Coordinator
from braidlog.broker.forwarding import Forwarding
from braidlog.broker.journal_to_shards import NAME_AT, read_shards
from braidlog.broker.replication_rate import ReplicationRate
from braidlog.broker.routing import Routing
from braidlog.broker.services import NodeParts, Services, open_services
from braidlog.cluster.etcd.entries import Keys
from braidlog.cluster.etcd.moving import is_moving, move_into_etcd
from braidlog.cluster.etcd.port import Put, Range
from braidlog.cluster.etcd.position import Position, PositionFile
from braidlog.cluster.etcd.store import EtcdStore
from braidlog.cluster.store import Metadata
from braidlog.codec.section import Row
from braidlog.coordinator.consumer_groups.messages import JOIN, Heartbeat
from braidlog.coordinator.groups.messages import Joining
from braidlog.coordinator.markers import Failures
from braidlog.coordinator.offsets import Commit
from braidlog.coordinator.shards import SHARDS, STATE_TOPIC, place_of
from braidlog.coordinator.snapshots import Snapshot
from braidlog.coordinator.transaction import Producing, Transaction, TxnState
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.settings import TopicSettings
from braidlog.model.stages import stage_name
from braidlog.partition.hosting import Hosting
from braidlog.partition.internal_topic import open_metadata
from braidlog.storage.folder import DataFolder
from braidlog.storage.partition import PartitionLog
from braidlog.storage.scan import rows_of
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import Crash, SimulatedDisk

KEYS = Keys("p")
GROUPS = ("classic", "consumer", "assigned", "commits")
SINK = "sunk"
NAMES = (*GROUPS, SINK, "named", "open", "decided", "old")
Facts = dict[str, object]


async def refuse(*_: object, **__: object) -> Failures:
    """Instead of markers."""
    raise BrokerError(Reason.UNAVAILABLE, "killed")


def filled() -> Node:
    """One that was killed between a decision and its markers."""
    node = Node()
    node.create("a", 2)
    run, services = node.run, node.services
    services.owners.note_use("ann", Operation.READ, "classic", Kind.GROUP)
    joining = Joining(
        session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer", protocols=[("range", b"")]
    )
    job = node.spawn(services.groups.classic.join("classic", joining))
    node.world.advance(10_000)
    member = job.result().member
    run(services.groups.classic.sync("classic", member, 1, [(member, b"all")]))
    beat = Heartbeat(member="m", epoch=JOIN, owned={}, topics=["a"], rebalance_timeout_ms=60_000)
    run(services.groups.consumer.heartbeat("consumer", beat))
    run(services.groups.join("assigned", "m", ["a"]))
    for offset, group in enumerate(GROUPS):
        run(services.offsets.commit(group, [Commit("a", 0, offset), Commit("a", 1, 10 + offset, "said")]))
    run(services.offsets.commit("gone", [Commit("a", 0, 1)]))
    run(services.offsets.forget("gone"))
    run(services.named_producers.resolve("named", 3))
    stage = transaction(node, stage_name(SINK, 4, "0-0"))
    run(services.staging.commit(SINK, 4, [stage], owner="me"))
    run(services.streams.save_snapshot("a", b"k", Snapshot(0, b"kept")))
    pending(node, transaction(node, "open"), "classic", 20)
    old = transaction(node, "old")
    table = services.transactions._table
    known: Transaction = table.get("old")
    run(
        table.journal.settled(
            table.put("old", value=msgspec.structs.replace(known, offsets=[("commits", Commit("a", 1, 40))]))
        )
    )
    decided = transaction(node, "decided")
    pending(node, decided, "consumer", 30)
    services.markers.write = refuse  # type: ignore[method-assign]
    for each in (decided, old):
        with pytest.raises(BrokerError, match="killed"):
            run(services.transactions.end(*each, commit=True))
    return node


def transaction(node: Node, name: str) -> Producing:
    transactions = node.services.transactions
    txn = node.run(transactions.begin_producer(name, 900_000))
    node.run(transactions.add_partitions(name, txn.producer_id, txn.epoch, [("a", 0)]))
    data = batch_of(name.encode(), producer=(txn.producer_id, txn.epoch, 0), transactional=True)
    node.run(node.services.append.append("a", 0, data, transactional_id=name))
    return Producing(name, txn.producer_id, txn.epoch)


def pending(node: Node, producing: Producing, group: str, offset: int) -> None:
    node.run(node.services.transactions.add_group(*producing, group))
    commits = [Commit("a", 0, offset)]
    node.run(node.services.pending_commits.stage(group, producing, commits, guard=lambda: None))


class Stopped:
    """The folder of a node that does not run."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.clock = ManualClock()
        self.world = ManualWorld(self.clock)
        self.folder = DataFolder(disk, "/data", self.clock)

    @property
    def position(self) -> Position | None:
        return PositionFile(self.disk, "/data", "0").load()

    def move(self, etcd: ModelEtcd) -> Position:
        store = open_metadata(self.folder, self.world, node="0")
        image, _ = store.load()
        bring = read_shards(self.folder, self.world, "0")
        client = ModelClient(etcd)
        work = move_into_etcd(client, KEYS, self.folder, image, node="0", new_cluster="c1", bring=bring)
        job: Job[Position] = self.world.spawn(work)
        self.world.advance(10_000)
        return job.result()

    def started(self, etcd: ModelEtcd) -> Services:
        """As a node of its cluster that leads all shards."""
        world, known = self.world, self.position
        assert known is not None
        store = EtcdStore(ModelClient(etcd), world, prefix="p", node="0", new_nonce=lambda: "n")
        job: Job[None] = world.spawn(store.open(known))
        world.advance(1_000)
        job.result()
        metadata = Metadata(store, world)
        routing, hosting = Routing(metadata, "0"), Hosting(self.folder, "0", world)
        parts = NodeParts(metadata, hosting, routing, Forwarding(routing, world), ReplicationRate())
        services = open_services(self.folder, world, parts, defaults=TopicSettings(), authorize=Authorize({}, []))
        assert not services.groups.names(), "nobody is told what is in the journal"
        services.coordinators.take_part(lambda work, _: world.spawn(work))
        shards = services.coordinators._shards
        assert shards is not None
        if STATE_TOPIC in services.hosting.topics:
            for number in range(SHARDS):
                shards.lead(number, Led(self.folder.open_partition(STATE_TOPIC, number), world))
        world.settle()
        return services


class Led:
    """A `ShardLog` of the only replica."""

    epoch, is_led, identity = 2, True, b""

    def __init__(self, log: PartitionLog, world: ManualWorld) -> None:
        self._log = log
        self._world = world
        log.begin_epoch(self.epoch)

    def append(self, batch: bytes) -> int:
        return self._log.append(batch, leader_epoch=self.epoch, now_ms=self._world.now_ms()).next_offset

    def is_durable(self, next_offset: int) -> bool:
        return self._log.durable_offset >= next_offset

    def durable(self, next_offset: int) -> Any:
        return self._world.durable(self._log, next_offset)

    def rows(self) -> Iterator[Row]:
        return rows_of(self._log)

    def sync(self) -> None: ...

    def replace(self, batch: bytes) -> None: ...

    def trim(self) -> None: ...

    def close(self) -> None: ...


def facts_of(of: dict[str, Coordinator]) -> Facts:
    """What those who ask for a name are told."""
    facts: Facts = {}
    for group in GROUPS:
        kept = of[group]
        view = kept.groups.describe(group)
        facts[f"members of {group}"] = (view.generation, repr(view.members))
        facts[f"commits of {group}"] = kept.offsets.of_group(group)
        facts[f"pending of {group}"] = kept.pending_commits.places(group)
    facts["sink"] = of[SINK].staging.last_batch(SINK, owner="me")
    facts["named"] = of["named"].tables["named-producer"].get("named")
    facts["owner"] = of["classic"].tables["owner"].get("group", "classic")
    facts["open"] = of["open"].transactions.find("open")
    return facts


def ended(facts: Facts) -> Facts:
    """The same, once all that was decided has been carried out."""
    of_consumer: Any = facts["commits of consumer"]
    of_commits: Any = facts["commits of commits"]
    offsets = {
        "commits of consumer": {place: each.offset for place, each in of_consumer.items()} | {("a", 0): 30},
        "commits of commits": {place: each.offset for place, each in of_commits.items()} | {("a", 1): 40},
    }
    return {**facts, **offsets, "pending of consumer": set()}


def check(world: ManualWorld, services: Services, before: Facts, label: str = "") -> None:
    """That everything is as it was on the node that was alone, and what was decided is done."""
    coordinators = {name: services.coordinators.of(name) for name in NAMES}
    assert {each.number for each in coordinators.values()} == set(map(place_of, NAMES)), label
    found = facts_of(coordinators)
    for group in ("consumer", "commits"):
        of_group: Any = found[f"commits of {group}"]
        found[f"commits of {group}"] = {place: each.offset for place, each in of_group.items()}
    assert found == ended(before), label
    for name in ("decided", "old"):
        assert coordinators[name].transactions.find(name).state is TxnState.COMMITTED, label
    assert not any(each.offsets.has_group("gone") for each in services.coordinators.here()), label
    snapshot = world.run(services.streams.snapshot("a", b"k"))
    assert snapshot is not None, label
    assert snapshot.payload == b"kept", label


def facts_before(node: Node) -> Facts:
    own = node.services.coordinators._own
    facts = facts_of(dict.fromkeys(NAMES, own))
    assert facts["sink"] == 4
    assert facts["pending of classic"] == facts["pending of consumer"] == {("a", 0)}
    return facts


def test_every_kind_of_entry_has_its_place() -> None:
    assert {*NAME_AT, "snapshot"} == KINDS.keys()


def test_everything_is_answered_as_before() -> None:
    node = filled()
    moved = Stopped(node.disk.after_kill())
    etcd = ModelEtcd(moved.world)
    moved.move(etcd)
    services = moved.started(etcd)
    check(moved.world, services, facts_before(node))
    topic = services.hosting.topics[STATE_TOPIC]
    assert (topic.holder, topic.partitions) == ("0", SHARDS)
    values = moved.world.run(services.fetch.records("a", 0, 0, bytes_max=1 << 20, committed_only=False)).records
    assert [each.value for each in values] == [stage_name(SINK, 4, "0-0").encode(), b"open", b"old", b"decided"]


def test_a_shard_that_was_led_goes_on_from_there() -> None:
    """What it kept of the journal is no newer than what was written to it since."""
    node = filled()
    moved = Stopped(node.disk.after_kill())
    etcd = ModelEtcd(moved.world)
    moved.move(etcd)
    services = moved.started(etcd)
    moved.world.run(services.coordinators.of("classic").offsets.commit("classic", [Commit("a", 0, 99)]))
    with pytest.raises(BrokerError, match="is part of cluster c1 already"):
        moved.move(etcd)
    again = Stopped(moved.disk.after_kill())
    etcd.world = again.world
    committed = again.started(etcd).coordinators.of("classic").offsets.committed("classic", "a", 0)
    assert committed is not None
    assert committed.offset == 99


def test_a_node_that_kept_nothing_brings_no_shards() -> None:
    node = Node()
    node.create("a", 1)
    moved = Stopped(node.disk.after_kill())
    etcd = ModelEtcd(moved.world)
    moved.move(etcd)
    assert STATE_TOPIC not in moved.started(etcd).hosting.topics, "it is made when all nodes are there"


def test_an_entry_that_is_not_known_is_refused_before_anything_changes() -> None:
    node = filled()
    node.services.journal.write([(("later",), Snapshot(1, b""))])
    node.journal_log.sync()
    moved = Stopped(node.disk.after_kill())
    with pytest.raises(StorageFault, match="an entry of an unknown kind"):
        moved.move(ModelEtcd(moved.world))
    assert (moved.position, moved.folder.identity.cluster) == (None, "")


def test_whatever_the_disk_kept_the_next_try_brings_everything() -> None:
    """The power goes in the first try, and after half of those again in the next one: with shards there that are thrown away."""
    node = filled()
    before, rng, tried = facts_before(node), Random(7), 0
    whole = Stopped(node.disk.after_kill())
    begun = len(whole.disk.operations)
    whole.move(ModelEtcd(whole.world))
    operations = len(whole.disk.operations) - begun
    ends = {*range(1, 12), *range(operations - 6, operations + 1)}
    assert operations > 100
    for operation in range(1, operations + 1) if FULL else sorted({*ends, *rng.sample(range(operations), 12)}):
        stopped, etcd, label = Stopped(node.disk.after_kill()), ModelEtcd(ManualWorld(ManualClock())), ""
        for stop_at in (operation, rng.randrange(1, operations)) if operation % 2 else (operation,):
            stopped, etcd, kept = _crashed(stopped, etcd, stop_at, rng)
            label += f"{stop_at} {kept}; "
        if stopped.position is None or is_moving(stopped.position):
            stopped.move(etcd)
        check(stopped.world, stopped.started(etcd), before, label)
        tried += 1
    assert tried > 20


def _crashed(stopped: Stopped, etcd: ModelEtcd, stop_at: int, rng: Random) -> tuple[Stopped, ModelEtcd, str]:
    """After a try whose disk stopped at that operation, unless there was nothing to be done."""
    etcd.world = stopped.world
    if stopped.position is None or is_moving(stopped.position):
        stopped.disk.stop_at = len(stopped.disk.operations) + stop_at
        with contextlib.suppress(Crash):
            stopped.move(etcd)
    label, disk = next(iter(stopped.disk.crash_states(limit=1, rng=rng)))
    again = Stopped(disk)
    assert again.position is not None or again.folder.find(STATE_TOPIC) is None, "it may go on alone"
    return again, _copy(etcd, again.world), label


def _copy(etcd: ModelEtcd, world: ManualWorld) -> ModelEtcd:
    copy = ModelEtcd(world)
    items = etcd.read(Range(b"/", b"0"), 0, 0, keys_only=False).items
    copy.write([Put(item.key, item.value) for item in items], [], [])
    return copy
