"""The services' own durability: at every disk operation of a workload, what may be left of it is opened again.

After each crash: every acknowledged topic, commit, generation, record, transaction outcome, batch, event and snapshot is there;
what was under way is there entirely or not at all; nothing was invented. A plain run takes two workloads and two states of each
operation, `make crash` four and five.
"""

import time
from collections.abc import Callable
from random import Random

import pytest
from tests.broker.node import Node, batch_of
from tests.sampling import FULL

from braidlog.coordinator.groups.classic_group import INITIAL_DELAY_MS
from braidlog.coordinator.groups.group import Group
from braidlog.coordinator.groups.messages import Joining
from braidlog.coordinator.offsets import Commit
from braidlog.coordinator.snapshot_store import Snapshot
from braidlog.coordinator.transactions.transaction import ProducerIdentity
from braidlog.model.stage_ids import stage_name
from braidlog.testing.faults import Operation

Fact = tuple[str, ...]
Facts = dict[Fact, object]
GROUPS = ("g1", "g2")
MEMBERS = ("m1", "m2", "m3")
KEYS = (b"k1", b"k2")
SEEDS = range(4 if FULL else 2)
STATES_PER_OPERATION = 5 if FULL else 2
STATES_MIN = 500 if FULL else 250


def observe(node: Node) -> Facts:
    """Everything a client could find out, as facts."""
    services = node.services
    facts: Facts = {}
    for topic in services.hosting.names():
        count = services.hosting.meta(topic).partitions
        facts["topic", topic] = count
        for number in range(count):
            values = tuple(node.values(topic, number))
            if values:
                facts["values", topic, str(number)] = values
        for key in KEYS:
            version = node.run(services.streams.version(topic, key))
            if version:
                facts["stream", topic, key.hex()] = tuple(
                    (number, record.value) for number, record in node.run(services.streams.read(topic, key))
                )
            snapshot = node.run(services.streams.snapshot(topic, key))
            if snapshot is not None:
                facts["snapshot", topic, key.hex()] = (snapshot.version, snapshot.payload)
    for group in node.groups.names():
        for (topic, number), committed in node.offsets.group_offsets(group).items():
            facts["commit", group, topic, str(number)] = committed.offset
        view = node.groups.describe(group)
        if group in node.groups.known():
            facts["group", group] = (view.generation, repr(view.members))
    return facts | {("sink", sink): node.staging.last_batch(sink, owner="me") for sink in node.staging.names()}


class Campaign:
    """One workload. `before` is what was acknowledged; `after` is what the change under way would make of it."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.node = Node()
        self.before: Facts = {}
        self.after: Facts = {}
        self.states = self.operations = self.in_between = 0
        self._seen: set[int] = set()
        self._next = 0

    # -- the workload ----------------------------------------------------------------------------------------

    def run(self, changes: int) -> None:
        for name in ("a", "b"):
            self.change(lambda name=name: self.node.create(name, 2))  # type: ignore[misc]
        kinds = [
            (self.create, 2),
            (self.delete, 2),
            (self.grow, 1),
            (self.append, 3),
            (self.commit, 3),
            (self.join, 3),
            (self.leave, 2),
            (self.elect, 2),
            (self.transact, 4),
            (self.commit_batch, 3),
            (self.event, 3),
            (self.snapshot, 2),
        ]
        every_kind = [kind for kind, _ in kinds]  # once in this order: what a later one needs, an earlier one makes
        drawn = self.rng.choices(every_kind, [weight for _, weight in kinds], k=changes - len(kinds))
        for kind in [*every_kind, *drawn]:
            kind()

    def change(self, call: Callable[[], object]) -> None:
        """First on a twin, to learn what it will make of the facts; then for real, with a crash at every operation."""
        twin = self.node.restarted(self.node.disk.after_kill())
        node, self.node = self.node, twin
        rng_state = self.rng.getstate()
        call()
        self.after = observe(twin)
        self.node = node
        self.rng.setstate(rng_state)
        self.node.disk.on_operation = self.crash
        call()
        self.node.disk.on_operation = None
        self.before = observe(self.node)
        assert self.before == self.after
        self.check(self.node.restarted(), "killed after the acknowledgement")
        for label, disk in self.node.disk.crash_states(
            limit=STATES_PER_OPERATION, rng=self.rng_of_states(), seen=self._seen
        ):
            self.check(self.node.restarted(disk), f"power cut after the acknowledgement, {label}")
            self.states += 1

    def rng_of_states(self) -> Random:
        self._next += 1
        return Random(self._next)

    def crash(self, operation: Operation) -> None:
        self.operations += 1
        states = self.node.disk.crash_states(limit=STATES_PER_OPERATION, rng=self.rng_of_states(), seen=self._seen)
        for label, disk in states:
            again = self.node.restarted(disk)
            assert not again.run(again.transactions.resume())
            self.check(again, f"operation {operation.number} ({operation.kind} {operation.path}), {label}")
            self.states += 1

    def check(self, again: Node, where: str) -> None:
        found = observe(again)
        # A group's new generation follows the change of a topic; all else changes in one step.
        for kinds in (("group",), ("topic", "values", "stream", "snapshot", "commit", "sink")):
            mine, old, new = (
                {fact: value for fact, value in facts.items() if fact[0] in kinds}
                for facts in (found, self.before, self.after)
            )
            if mine not in (old, new):
                wrong = {fact for fact in {*mine, *old} if mine.get(fact) != old.get(fact)}
                told = [
                    f"{fact}: {old.get(fact)} -> {mine.get(fact)} (wanted {new.get(fact)})" for fact in sorted(wrong)
                ]
                raise AssertionError(f"{where}: {told}")
        self.in_between += found != self.before

    # -- changes ---------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        return self.node.services.hosting.names()

    def create(self) -> None:
        missing = [name for name in ("a", "b", "c") if name not in self.topics()]
        if missing:
            self.change(lambda: self.node.create(missing[0], 2, followers=self.rng.choice([None, ["9"]])))

    def delete(self) -> None:
        if len(self.topics()) > 1:
            name = self.rng.choice(self.topics())
            self.change(lambda: self.node.run(self.node.services.topics.delete(name)))

    def grow(self) -> None:
        name = self.rng.choice(self.topics())
        count = self.node.services.hosting.meta(name).partitions
        if count < 4:
            self.change(lambda: self.node.run(self.node.services.topics.grow(name, count + 1)))

    def append(self) -> None:
        name, value = self.rng.choice(self.topics()), b"v%d" % self.rng.randrange(10**6)
        self.change(lambda: self.node.append(name, value, value))

    def commit(self) -> None:
        group, offset = self.rng.choice(GROUPS), self.rng.randrange(100)
        commits = [Commit(name, number, offset) for name in self.topics() for number in range(2)]
        self.change(lambda: self.node.run(self.node.offsets.commit(group, commits)))

    def join(self) -> None:
        group, member = self.rng.choice(GROUPS), self.rng.choice(MEMBERS)
        wanted = self.rng.sample(self.topics(), 1)
        self.change(lambda: self.node.run(self.node.groups.join(group, member, wanted)))

    def leave(self) -> None:
        for group in GROUPS:
            found = self.node.coordinator(group).registry.get(group)
            if isinstance(found, Group) and found.members:
                member = self.rng.choice(found.members).member
                self.change(lambda: self.node.run(self.node.groups.leave(group, member)))  # noqa: B023
                return

    def elect(self) -> None:
        """A group that elects its leader: a generation, then its assignment, then nobody."""
        name, share = f"m{self.rng.randrange(10**6)}", b"share %d" % self.rng.randrange(10**6)
        asked = Joining(
            session_timeout_ms=60_000, rebalance_timeout_ms=60_000, protocol_type="t", protocols=[("p", b"wish")]
        )

        def join() -> None:
            self.node.coordinator("e").groups.classic._new_id = lambda _: name
            job = self.node.spawn(self.node.groups.classic.join("e", asked))
            self.node.runtime.advance(INITIAL_DELAY_MS)
            assert job.result().member == name

        def sync() -> None:
            elections = self.node.groups.classic
            generation = self.node.groups.describe("e").generation
            assert self.node.run(elections.sync("e", name, generation, [(name, share)])).assignment == share

        def leave() -> None:
            self.node.run(self.node.groups.classic.leave("e", [(name, None)]))

        for step in (join, sync, leave):
            self.change(step)

    def transact(self) -> None:
        name, offset = self.rng.choice(["t1", "t2"]), self.rng.randrange(100)
        value, commit = b"x%d" % self.rng.randrange(10**6), self.rng.random() < 0.7
        places = [(topic, number) for topic in self.topics() for number in range(2)]

        def call() -> None:
            node, transactions = self.node, self.node.transactions
            txn = node.run(transactions.begin_producer(name))
            node.run(transactions.add_partitions(name, txn.producer_id, txn.epoch, places))
            for topic, number in places[:3]:
                batch = batch_of(value, producer=(txn.producer_id, txn.epoch, 0), transactional=True)
                node.run(node.services.append.append(topic, number, batch, transactional_id=name))
            commits = [Commit(topic, number, offset) for topic, number in places]
            producing = ProducerIdentity(name, txn.producer_id, txn.epoch)
            node.run(node.pending_commits.stage("g1", producing, commits, guard=lambda: None))
            node.run(transactions.end_transaction(name, txn.producer_id, txn.epoch, commit=commit))

        self.change(call)

    def commit_batch(self) -> None:
        """Two stages over two partitions each, and a third one that loses; then the same batch once more."""
        sink, value = self.rng.choice(["s1", "s2"]), b"y%d" % self.rng.randrange(10**6)
        batch = self.node.staging.last_batch(sink, owner="me") + 1
        places = [(topic, number) for topic in self.topics() for number in range(2)][:2]

        def stage(task: int) -> ProducerIdentity:
            node, transactions = self.node, self.node.transactions
            name = stage_name(sink, batch, str(task))
            txn = node.run(transactions.begin_producer(name))
            node.run(transactions.add_partitions(name, txn.producer_id, txn.epoch, places))
            for topic, number in places:
                data = batch_of(value, producer=(txn.producer_id, txn.epoch, 0), transactional=True)
                node.run(node.services.append.append(topic, number, data, transactional_id=name))
            return ProducerIdentity(name, txn.producer_id, txn.epoch)

        def call() -> None:
            stages = [stage(task) for task in range(3)][:2]
            for already in (False, True):
                decided = self.node.run(self.node.staging.commit(sink, batch, stages, owner="me"))
                assert decided.already is already

        self.change(call)

    def event(self) -> None:
        name, key = self.rng.choice(self.topics()), self.rng.choice(KEYS)
        version = self.node.run(self.node.services.streams.version(name, key))
        self.change(lambda: self.node.run(self.node.services.streams.append(name, key, version, b"event")))

    def snapshot(self) -> None:
        for name in self.topics():
            for key in KEYS:
                version = self.node.run(self.node.services.streams.version(name, key))
                if version:
                    kept = Snapshot(version, b"state %d" % self.rng.randrange(10**6))
                    self.change(
                        lambda: self.node.run(self.node.services.streams.save_snapshot(name, key, kept))  # noqa: B023
                    )
                    return


@pytest.mark.parametrize("seed", SEEDS)
def test_every_operation_of_a_workload_may_be_the_last(seed: int) -> None:
    campaign = Campaign(seed)
    began = time.process_time()
    try:
        campaign.run(changes=30)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    print(
        f"seed {seed}: {campaign.operations} operations, {campaign.states} crash states, "
        f"{time.process_time() - began:.1f} s of CPU"
    )
    assert campaign.states > STATES_MIN
    assert campaign.in_between > 20, "changes under way must have been seen to survive"
