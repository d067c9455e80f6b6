"""The groups of a node: durable before anyone hears of it, fenced, and thousands of rebalances against a model."""

import contextlib
from collections.abc import Callable
from random import Random
from typing import TypeVar

import pytest
from tests.broker.node import Node
from tests.refusals import reason_of, refused_with
from tests.sampling import FULL

from braidlog.coordinator.groups.assignors import Assignor
from braidlog.coordinator.groups.group import Membership
from braidlog.coordinator.groups.service import NEVER_COMMITTED_MS
from braidlog.coordinator.offsets import Commit
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.cooperative import SLICE
from braidlog.testing.disk import SimulatedDisk
from braidlog.testing.faults import Crash

T = TypeVar("T")


def join(node: Node, member: str, *topics: str, group: str = "g") -> Membership:
    return node.run(node.groups.join(group, member, topics or ("a",)))


def test_join_sync_heartbeat_leave(node: Node) -> None:
    groups = node.groups
    one = join(node, "m1")
    two = join(node, "m2")
    assert (one.generation, two.generation) == (1, 2)
    assert two.assignment == {"a": [2, 3]}
    assert groups.sync("g", "m1", 2).assignment == {"a": [0, 1]}
    assert groups.heartbeat("g", "m1", 2).generation == 2
    node.run(groups.leave("g", "m1", 2))
    assert join(node, "m2").assignment == {"a": [0, 1, 2, 3]}
    assert groups.names() == ["g"]


def test_what_is_not_there(node: Node) -> None:
    groups = node.groups
    with refused_with(Reason.GROUP_NOT_FOUND):
        groups.heartbeat("nope", "m", 1)
    assert reason_of(node.run, groups.leave("nope", "m")) is Reason.GROUP_NOT_FOUND
    assert reason_of(node.run, groups.delete("nope")) is Reason.GROUP_NOT_FOUND
    assert reason_of(node.run, groups.join("g", "m", ["nope"])) is Reason.TOPIC_NOT_FOUND
    assert reason_of(node.run, groups.join("a b", "m", ["a"])) is Reason.INVALID_GROUP
    for timeout in (0, 99, 1_800_001):
        refused = groups.join("g", "m", ["a"], session_timeout_ms=timeout)
        assert reason_of(node.run, refused) is Reason.INVALID_GROUP
    assert groups.names() == []


def test_a_generation_is_durable_before_anyone_hears_of_it(node: Node) -> None:
    groups = node.groups
    first = join(node, "m1")
    with node.runtime.holding_syncs():
        joining = node.spawn(groups.join("g", "m2", ["a"]))
        again = node.spawn(groups.join("g", "m1", ["a"]))
        node.runtime.settle()
        assert not joining.is_done
        assert not again.is_done, "coming again must not tell the new generation either"
        for generation in (1, 2):
            with refused_with(Reason.REBALANCE_IN_PROGRESS):
                groups.sync("g", "m1", generation)
        assert reason_of(node.run, groups.commit("g", "m1", first.generation, [Commit("a", 0, 1)])) is (
            Reason.STALE_GENERATION
        )
    assert joining.result().generation == again.result().generation == 2
    assert groups.sync("g", "m1", 2).assignment == {"a": [0, 1]}


def test_who_joins_is_told_a_durable_generation_also_if_a_later_one_has_begun(node: Node) -> None:
    groups = node.groups
    with node.runtime.holding_syncs():
        one = node.spawn(groups.join("g", "m1", ["a"]))
        node.runtime._sync_one(node.shard_log("g"))  # m1's generation is durable, m2's will not be
        two = node.spawn(groups.join("g", "m2", ["a"]))
        held, node.runtime._held = node.runtime._held[:1], node.runtime._held[1:]
        node.runtime.open(held[0][1])
        node.runtime.settle()
        assert one.result().generation == 1
        assert not two.is_done
    assert two.result().generation == 2


def test_a_change_that_cannot_be_kept_was_not_made(node: Node) -> None:
    groups = node.groups
    join(node, "m1")
    for change in (
        lambda: groups.join("g", "m2", ["a"]),
        lambda: groups.leave("g", "m1"),
        lambda: groups.join("new", "m", ["a"]),
    ):
        node.disk.fail_at = {len(node.disk.operations) + 1: 28}
        with pytest.raises(StorageFault):
            node.run(change())
        assert groups.names() == ["g"]
        assert groups.heartbeat("g", "m1", 1).assignment == {"a": [0, 1, 2, 3]}
    assert join(node, "m2").generation == 2
    assert node.restarted().groups.find("g").image() == groups.find("g").image()


def test_members_have_their_session_again_after_a_restart(node: Node) -> None:
    join(node, "m1")
    node.clock.advance(3_600_000)
    again = node.restarted()
    assert again.run(again.groups.expire()) == {}
    assert again.groups.heartbeat("g", "m1", 1).generation == 1
    again.clock.advance(10_001)
    assert again.run(again.groups.expire()) == {"g": ["m1"]}


def test_expiry_of_many_groups_while_one_of_them_is_deleted(node: Node) -> None:
    """The sweep waits for the disk; meanwhile an administrator deletes what has just become empty."""
    groups = node.coordinator("g").groups
    for name in ("g1", "g2", "g3"):
        node.run(groups.join(name, "m", ["a"]))
    node.clock.advance(10_001)
    with node.runtime.holding_syncs():
        expiring = node.spawn(groups.expire())
        deleting = node.spawn(groups.delete("g3"))
        node.runtime.settle()
    assert expiring.result() == {"g1": ["m"], "g2": ["m"], "g3": ["m"]}
    deleting.result()
    assert node.restarted().coordinator("g").groups.names() == groups.names() == ["g1", "g2"]


def test_a_group_that_is_joined_while_it_is_deleted_lives(node: Node) -> None:
    groups = node.groups
    join(node, "m1")
    node.run(node.offsets.commit("g", [Commit("a", 0, 5)]))
    assert reason_of(node.run, groups.delete("g")) is Reason.GROUP_NOT_EMPTY
    node.run(groups.leave("g", "m1"))
    with node.runtime.holding_syncs():
        deleting = node.spawn(groups.delete("g"))
        joining = node.spawn(groups.join("g", "m2", ["a"]))
        node.runtime.settle()
    deleting.result()
    for each in (node, node.restarted()):
        found = each.groups
        assert found.heartbeat("g", "m2", joining.result().generation).member == "m2"
        assert each.offsets.group_offsets("g") == {}


def test_commits_of_members_are_fenced(node: Node) -> None:
    groups = node.groups
    join(node, "m1")
    now = join(node, "m2").generation
    node.run(groups.commit("g", "m1", now, [Commit("a", 0, 5), Commit("a", 1, 6)]))
    assert reason_of(node.run, groups.commit("g", "m1", now, [Commit("a", 0, 9), Commit("a", 2, 9)])) is (
        Reason.PARTITION_NOT_ASSIGNED
    )
    assert reason_of(node.run, groups.commit("g", "m1", now - 1, [Commit("a", 0, 9)])) is Reason.STALE_GENERATION
    assert reason_of(node.run, groups.commit("g", "m9", now, [Commit("a", 0, 9)])) is Reason.MEMBER_NOT_FOUND
    backwards = groups.commit("g", "m1", now, [Commit("a", 0, 4)], forward_only=True)
    assert reason_of(node.run, backwards) is Reason.OFFSET_REGRESSION
    assert {p: c.offset for (_, p), c in node.offsets.group_offsets("g").items()} == {0: 5, 1: 6}


def test_a_commit_is_a_sign_of_life(node: Node) -> None:
    join(node, "m1")
    node.clock.advance(9_000)
    node.run(node.groups.commit("g", "m1", 1, [Commit("a", 0, 1)]))
    node.clock.advance(9_000)
    assert node.run(node.groups.expire()) == {}


def test_lag(node: Node) -> None:
    groups = node.groups
    node.append("a", b"1", b"2", b"3")
    node.append("a", b"1", partition=1)
    join(node, "m1")
    node.run(groups.commit("g", "m1", 1, [Commit("a", 0, 1), Commit("a", 1, 99)]))
    rows = {row.partition: (row.committed, row.end_offset, row.lag, row.member) for row in node.run(groups.lag("g"))}
    assert rows == {0: (1, 3, 2, "m1"), 1: (99, 1, 0, "m1"), 2: (None, 0, 0, "m1"), 3: (None, 0, 0, "m1")}
    node.run(node.offsets.commit("only-commits", [Commit("a", 0, 0)]))
    assert [row.lag for row in node.run(groups.lag("only-commits"))] == [3]
    with pytest.raises(BrokerError):
        node.run(groups.lag("nope"))
    node.run(node.services.topics.delete("a"))
    assert node.run(groups.lag("g")) == []


def test_the_lag_of_many_partitions_is_looked_at_in_slices(node: Node) -> None:
    """20,000 commits of one group were one turn of the loop."""
    groups, many = node.groups, 5 * SLICE
    node.create("wide", many)
    node.run(node.offsets.commit("g", [Commit("wide", number, 0) for number in range(many)]))
    looking = groups.lag("g")
    for _ in range(many // SLICE):
        looking.send(None)  # each time it lets others have a turn
    with pytest.raises(StopIteration) as end:
        looking.send(None)
    assert len(end.value.value) == many


# -- the model -----------------------------------------------------------------------------------------------


class Consumer:
    """A client that believes what it was last told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: Membership | None = None


class Rebalances:
    """Random members, growth, expiry, zombies, kills and power cuts; checked at every step.

    Promise 14: no partition with two owners in a generation, no commit of a zombie, no generation and no committed offset
    that goes back.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.node = Node(rng=self.rng)
        self.node.begin_shards()
        self.partitions = {"a": 3, "b": 2}
        for topic, count in self.partitions.items():
            self.node.create(topic, count)
        self.consumers = [Consumer(f"m{number}") for number in range(6)]
        self.generation = 0
        self.owners: dict[tuple[int, str, int], str] = {}
        self.committed: dict[tuple[str, int], int] = {}
        self.rebalances = self.zombies = self.restarts = self.refused = 0

    def step(self) -> None:
        rng, groups = self.rng, self.node.groups
        consumer = rng.choice(self.consumers)
        kind = rng.randrange(100)
        if kind < 30:
            self.join(consumer)
        elif kind < 45:
            self.attempt(lambda: self.node.run(groups.leave("g", consumer.name)))
        elif kind < 60:
            self.heartbeat(consumer)
        elif kind < 85:
            self.commit(consumer)
        elif kind < 93:
            self.node.runtime.advance(rng.choice([100, 900, 2_500]))
            self.node.run(groups.expire())
        elif kind < 94 and sum(self.partitions.values()) < 40:
            topic = rng.choice(["a", "b"])
            self.partitions[topic] += 1
            self.node.run(self.node.services.topics.grow(topic, self.partitions[topic]))
        elif kind < 96:
            self.restart()
        else:
            self.several_at_once()
        self.check()

    def join(self, consumer: Consumer) -> None:
        topics = self.rng.choice([["a"], ["b"], ["a", "b"]])
        assignor = self.rng.choice([None, None, *Assignor])
        consumer.told = self.node.run(
            self.node.groups.join("g", consumer.name, topics, assignor=assignor, session_timeout_ms=2_000)
        )
        self.note(consumer.told)

    def heartbeat(self, consumer: Consumer) -> None:
        if consumer.told is not None:
            told = consumer.told
            found = self.attempt(lambda: self.node.groups.sync("g", consumer.name, told.generation))
            if found is not None:
                self.note(found)

    def note(self, membership: Membership) -> None:
        """What was told is true for ever: that generation's owner of each partition."""
        for topic, shares in membership.assignment.items():
            for partition in shares:
                place = (membership.generation, topic, partition)
                owner = self.owners.setdefault(place, membership.member)
                assert owner == membership.member, f"{place} has two owners: {owner} and {membership.member}"

    def commit(self, consumer: Consumer) -> None:
        told = consumer.told
        if told is None or not any(told.assignment.values()):
            return
        topic = self.rng.choice([topic for topic, shares in told.assignment.items() if shares])
        partition = self.rng.choice(told.assignment[topic])
        offset = self.committed.get((topic, partition), 0) + self.rng.randrange(3)
        is_current = told.generation == self.node.groups.find("g").generation
        commits = [Commit(topic, partition, offset)]

        def call() -> bool:
            groups = self.node.groups
            self.node.run(groups.commit("g", consumer.name, told.generation, commits, forward_only=True))
            return True

        accepted = self.attempt(call)
        if accepted:
            assert is_current, "a zombie committed"
            self.committed[topic, partition] = offset
        elif not is_current:
            self.zombies += 1

    def attempt(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except BrokerError as error:
            if error.reason not in (
                Reason.STALE_GENERATION,
                Reason.MEMBER_NOT_FOUND,
                Reason.GROUP_NOT_FOUND,
                Reason.PARTITION_NOT_ASSIGNED,
            ):
                raise
            self.refused += 1
            return None

    def several_at_once(self) -> None:
        """Joins and leaves overlap while the disk is busy; then the power goes, or the sync comes."""
        groups = self.node.groups
        cut = self.rng.random() < 0.5
        with self.node.runtime.holding_syncs():
            jobs = []
            for consumer in self.rng.sample(self.consumers, 3):
                if self.rng.random() < 0.7:
                    jobs.append((consumer, self.node.spawn(groups.join("g", consumer.name, ["a", "b"]))))
                else:
                    self.node.spawn(groups.leave("g", consumer.name))
            if cut:
                states = list(self.node.disk.crash_states(limit=6, rng=self.rng))
                self.begin_again(self.rng.choice(states)[1])
                return
        for consumer, job in jobs:
            consumer.told = job.result()
            self.note(job.result())

    def restart(self) -> None:
        disk = self.node.disk.after_kill()
        if self.rng.random() < 0.5:
            disk = self.rng.choice(list(self.node.disk.crash_states(limit=6, rng=self.rng)))[1]
        self.begin_again(disk)

    def begin_again(self, disk: SimulatedDisk) -> None:
        self.restarts += 1
        self.node = Node(disk, self.node.clock, rng=self.rng)

    def check(self) -> None:
        told = max((place[0] for place in self.owners), default=0)
        groups = self.node.groups
        if "g" in groups.names():
            group = groups.find("g")
            assert group.generation >= told, "a generation went back behind what was told"
            self.rebalances += group.generation > self.generation
            self.generation = group.generation
            owned = [
                (topic, partition)
                for topics in group.assignment.values()
                for topic, shares in topics.items()
                for partition in shares
            ]
            assert len(set(owned)) == len(owned)
            wished = {topic for member in group.members for topic in member.topics}
            assert set(owned) == {(topic, p) for topic in wished for p in range(self.partitions[topic])}
        for (topic, partition), offset in self.committed.items():
            found = self.node.offsets.committed("g", topic, partition)
            assert found is not None
            assert found.offset == offset, "an acknowledged commit is gone or another came in its place"


@pytest.mark.parametrize("seed", range(8))
def test_rebalances_against_the_model(seed: int) -> None:
    model = Rebalances(seed)
    steps = 0
    while model.rebalances < 300:
        try:
            model.step()
        except AssertionError as error:
            raise AssertionError(f"seed {seed} step {steps}: {error}") from error
        steps += 1
    print(
        f"seed {seed}: {steps} steps, {model.rebalances} rebalances, {model.restarts} restarts, "
        f"{model.zombies} zombie commits refused"
    )
    assert model.zombies > 10
    assert model.restarts > 5
    assert len(model.committed) > 3


# -- forgetting --------------------------------------------------------------------------------------------------

WEEK_MS = 7 * 24 * 3600 * 1000


def test_a_group_that_never_committed_is_not_kept_for_long() -> None:
    node = Node()
    node.create("a")
    groups = node.groups
    node.run(groups.register("registered"))
    node.run(groups.join("left", "m", ["a"]))
    node.run(groups.leave("left", "m"))
    node.run(groups.join("there", "m", ["a"]))
    node.run(node.offsets.commit("committed", [Commit("a", 0, 1)]))
    node.clock.advance(NEVER_COMMITTED_MS)
    assert node.run(groups.forget_unused(WEEK_MS)) == []
    node.clock.advance(1)
    assert node.run(groups.forget_unused(WEEK_MS)) == ["left", "registered"]
    assert node.restarted().groups.names() == groups.names() == ["committed", "there"]


def test_a_crash_while_groups_are_forgotten_leaves_none_of_them_by_half() -> None:
    states = 0
    for number in range(1, 100):
        node = Node()
        node.create("a", 3)
        for name in ("g", "h"):
            node.run(node.groups.register(name))
            node.run(node.offsets.commit(name, [Commit("a", partition, 1) for partition in range(3)]))
        node.run(node.transactions.begin_producer("t"))
        node.begin_shards()
        node.clock.advance(WEEK_MS + 1)
        node.disk.stop_at = len(node.disk.operations) + number
        try:
            node.run(node.groups.forget_unused(WEEK_MS))
            node.run(node.transactions.forget_unused())
        except Crash:
            pass
        else:
            break
        for label, disk in node.disk.crash_states(limit=None if FULL else 12, rng=Random(number)):
            again = node.restarted(disk)
            states += 1
            for name in ("g", "h"):
                assert len(again.offsets.group_offsets(name)) in (0, 3), f"{name}: {label}"
            again.run(again.groups.forget_unused(WEEK_MS))
            again.run(again.transactions.forget_unused())
            assert again.groups.names() == again.transactions.names() == [], label
            assert again.services.holdings.bytes_held == 0, label
    assert states > 3


def test_many_groups_are_looked_at_in_slices() -> None:
    node = Node()
    node.create("a")
    groups = node.coordinator("g").groups
    for number in range(3 * SLICE):
        node.spawn(groups.register(f"g{number}"))
    node.runtime.settle()
    node.clock.advance(WEEK_MS + 1)
    for work in (groups.expire(), groups.forget_unused(WEEK_MS)):
        turns = 0
        with contextlib.suppress(StopIteration):
            while work.send(None) is None:
                turns += 1
        work.close()
        assert turns == 3, "a pause after each slice, and then nothing to wait for but the disk"
