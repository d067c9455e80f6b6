"""A leader and a follower of one slot on virtual time: late, lost and doubled messages, writes all the while, keys gone bad."""

import contextlib
import heapq
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.kv.replicated.test_log_keyspace import NODES, SETTINGS, ListLog, One, plain

from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import HybridClock, Stamp
from braidlog.kv.engine.keyspace import Keyspace
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.engine.store import Store
from braidlog.kv.engine.values import HashValue, ListValue
from braidlog.kv.replicated import anti_entropy
from braidlog.kv.replicated.anti_entropy import Comparison, LeafState, Repaired, Reply, SlotTree
from braidlog.kv.replicated.log_keyspace import LogKeyspace
from braidlog.model.errors import BrokerError, ProtocolError, StorageFault
from braidlog.model.settings import Flush

NODE = bytes(range(16))
ROUND_SECONDS = 60.0
Record = tuple[int, bytes, bytes, int, tuple[int, int]]


class Log:
    """A slot's log, which is the leader's as it is written and the follower's as it is committed."""

    fault: StorageFault | None = None

    def __init__(self) -> None:
        self.records: list[Record] = []

    def append(self, op: int, key: bytes, argument: bytes, ttl_seconds: int, stamp: tuple[int, int]) -> int:
        self.records.append((op, key, argument, ttl_seconds, stamp))
        return len(self.records)

    async def durable(self, sequence: int, flush: Flush = Flush.ACK) -> None:
        raise AssertionError


class Replica:
    """A `SlotState`: keys made by a log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.keyspace = Keyspace()
        self.applied = 0
        self.stamps: dict[bytes, Stamp] = {}
        self.tree = SlotTree(self)

    def stamp_of(self, key: bytes) -> Stamp | None:
        return self.stamps.get(key)

    def restamp(self, key: bytes, stamp: Stamp | None) -> None:
        if stamp is None:
            self.stamps.pop(key, None)
        else:
            self.stamps[key] = stamp

    def note(self, offset: int) -> None:
        _, key, _, _, stamp = self.log.records[offset]
        self.applied = offset + 1
        self.stamps[key] = Stamp(*stamp, NODE)
        self.tree.changed((key,))

    def apply_next(self) -> None:
        op, key, argument, ttl_seconds, stamp = self.log.records[self.applied]
        self.keyspace.apply(op, key, argument, ttl_seconds, stamp[0])
        self.note(self.applied)

    def seen(self) -> Any:
        def one(value: Any) -> Any:
            return (
                list(value.items)
                if isinstance(value, ListValue)
                else value.fields
                if isinstance(value, HashValue)
                else value
            )

        deadlines = self.keyspace.deadlines
        return {key: (one(value), deadlines.get(key), self.stamps[key]) for key, value in self.keyspace.data.items()}


class Pair:
    """Both of them, and the network between."""

    def __init__(self, seed: int, *, writes_per_second: float = 20.0) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.log = Log()
        self.leader, self.follower = Replica(self.log), Replica(self.log)
        self.store = Store(
            self.log, self.leader.keyspace, HybridClock(NODE), KeyValueSettings(), sequence=0,
            listener=lambda mutation: self.leader.note(mutation.sequence - 1),
        )  # fmt: skip
        self.comparison = Comparison(self.follower.tree, 1)
        self.repairs: list[Repaired] = []
        self.is_faulty = True
        self.rounds = self.committed = 0
        self.held_since: float | None = None
        self.writes_per_second = writes_per_second
        self.after(0.01, self.write)
        self.after(ROUND_SECONDS, self.compare)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now + seconds, self._number, action))

    def run(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = until

    def write(self) -> None:
        key = b"%d" % self.random.randrange(300)
        operation: o.Operation[Any] = self.random.choice([
            o.Set(b"s" + key, b"%d" % self.random.randrange(99), self.random.choice([0, 0, 30])),
            o.Increment(b"c" + key, 1),
            o.Push(b"l" + key, o.End.LEFT, (b"x",)),
            o.Pop(b"l" + key, o.End.RIGHT),
            o.HashSet(b"h" + key, ((b"f", key),)),
            o.Delete(self.random.choice([b"s", b"h"]) + key),
        ])  # fmt: skip
        now_ms = int(self.now * 1000)
        with contextlib.suppress(BrokerError):
            self.store.execute(operation, now_ms)
        self.store.expire(now_ms, 10)
        reached = len(self.log.records)
        self.after(self.random.uniform(0.001, 0.2), lambda: self.commit(reached))
        if self.writes_per_second:
            self.after(self.random.expovariate(self.writes_per_second), self.write)

    def commit(self, upto: int) -> None:
        """The follower applies what is committed, but holds where it waits for what it lacks, for five seconds."""
        self.committed = max(self.committed, upto)
        while self.follower.applied < self.committed:
            holds_at = self.comparison.holds_at
            if holds_at is not None and self.follower.applied >= holds_at:
                if self.held_since is None:
                    self.held_since = self.now
                elif self.now > self.held_since + 5.0:
                    self.comparison.give_up()
                    continue
                break
            self.held_since = None
            self.follower.apply_next()
            self.repairs += self.comparison.due()

    def compare(self) -> None:
        self.rounds += 1
        self.ask(self.comparison.restart())
        self.after(ROUND_SECONDS, self.compare)

    def ask(self, asks: list[anti_entropy.Ask]) -> None:
        for each in asks:
            self.send(lambda each=each: self.send(lambda: self.told(self.leader.tree.respond(each))))  # type: ignore[misc]

    def send(self, action: Callable[[], None]) -> None:
        copies = self.random.choice([0, 1, 1, 1, 2]) if self.is_faulty else 1
        for _ in range(copies):
            self.after(self.random.uniform(0.001, 0.5), action)

    def told(self, reply: Reply) -> None:
        # An answer is made when the question comes, and may be on its way for long.
        self.after(self.random.uniform(0.001, 0.3), lambda: self.take(reply))

    def take(self, reply: Reply) -> None:
        self.ask(self.comparison.handle_reply(reply))
        self.repairs += self.comparison.due()
        self.commit(0)

    def corrupt(self) -> None:
        """The follower's disk or memory goes bad: a value, a key, a deadline, a key too many."""
        keys = sorted(self.follower.keyspace.data)
        key = self.random.choice(keys)
        data, deadlines = self.follower.keyspace.data, self.follower.keyspace.deadlines
        match self.random.randrange(4):
            case 0 if isinstance(data[key], bytes):
                data[key] = b"rotten"
            case 1 if isinstance(data[key], bytes):
                self.follower.keyspace.put(key, data[key], 12_345)
            case 2 if isinstance(data[key], bytes) and key not in deadlines:
                self.follower.keyspace.put(b"stray" + key, b"x", 0)
                self.follower.stamps[b"stray" + key] = Stamp(1, 1, NODE)
                self.follower.tree.tree.note((b"stray" + key,))
            case _:
                value = data[key]
                if isinstance(value, int):
                    data[key] = value + 7
        self.follower.tree.tree.note((key,))

    def settle(self) -> None:
        """No more writes; everything arrives."""
        self.writes_per_second = 0
        self.run(self.now + 10.0)
        self.commit(len(self.log.records))


@pytest.mark.parametrize("writes_per_second", [0.5, 10.0, 30.0])
def test_a_follower_that_is_right_is_never_changed(writes_per_second: float) -> None:
    pair = Pair(int(writes_per_second), writes_per_second=writes_per_second)
    pair.run(3 * ROUND_SECONDS)
    pair.is_faulty = False
    pair.run(5 * ROUND_SECONDS)
    assert (pair.repairs, pair.comparison.differed) == ([], 0)
    assert pair.comparison.compared > 0, "and it was compared all the same"
    pair.settle()
    assert pair.follower.seen() == pair.leader.seen()


@pytest.mark.parametrize("seed", range(9))
def test_keys_gone_bad_are_put_right_within_three_rounds(seed: int) -> None:
    """Whatever went bad, under loss and writes; three comparisons after the network has healed the two are alike."""
    pair = Pair(seed, writes_per_second=[0.5, 5.0, 20.0][seed % 3])
    for turn in range(6):
        pair.after(10.0 + 30.0 * turn, pair.corrupt)
    pair.run(4 * ROUND_SECONDS)
    pair.is_faulty = False
    healed_at, pair.rounds = pair.now, 0
    pair.run(healed_at + 3 * ROUND_SECONDS + 5.0)
    assert pair.rounds == 3
    pair.settle()
    assert pair.follower.seen() == pair.leader.seen(), f"seed {seed}: {pair.repairs}"
    assert pair.follower.tree.tree.leaves() == pair.leader.tree.tree.leaves()


def test_what_was_put_right_is_told() -> None:
    pair = Pair(1, writes_per_second=0.5)
    pair.is_faulty = False
    pair.run(50.0)
    key = next(key for key, value in pair.follower.keyspace.data.items() if isinstance(value, int))
    right = pair.leader.keyspace.data[key]
    pair.follower.keyspace.data[key] = -1
    pair.follower.keyspace.put(b"stray", b"1", 0)
    for each in (key, b"stray"):
        pair.follower.tree.tree.note((each,))
    pair.run(70.0)
    assert sorted((each.put, each.removed) for each in pair.repairs) == sorted([([key], []), ([], [b"stray"])])
    assert pair.follower.keyspace.data[key] == right


def test_what_came_too_late_is_dropped() -> None:
    """The leaf is of an offset that the follower has passed: it would take back what came since."""
    pair = Pair(2, writes_per_second=0)
    for number in range(5):
        pair.store.execute(o.Set(b"a", b"%d" % number), number)
    pair.commit(5)
    pair.follower.keyspace.data[b"a"] = b"rotten"
    pair.follower.tree.tree.note((b"a",))
    asks = pair.comparison.restart()
    while not isinstance(reply := pair.leader.tree.respond(asks[0]), LeafState):
        asks = [
            each
            for each in pair.comparison.handle_reply(reply)
            if not isinstance(pair.leader.tree.respond(each), anti_entropy.Same)
        ]
    assert pair.comparison.holds_at == 5
    pair.store.execute(o.Set(b"a", b"newer"), 10)
    pair.follower.apply_next()
    assert pair.comparison.handle_reply(reply) == []
    assert pair.comparison.due() == []
    assert pair.follower.keyspace.data[b"a"] == b"newer"
    assert pair.comparison.handle_reply(reply) == [], "nor twice"


def test_what_is_told_of_later_waits_until_as_much_is_applied() -> None:
    """Put in place at once, what follows in the log would count twice."""
    pair = Pair(5, writes_per_second=0)
    pair.store.execute(o.Increment(b"c", 1), 0)
    pair.commit(1)
    pair.follower.keyspace.data[b"c"] = 50
    pair.follower.tree.tree.note((b"c",))
    asks = pair.comparison.restart()
    while asks[0].among[1] - asks[0].among[0] > 1:
        replies = [pair.leader.tree.respond(each) for each in asks]
        asks = [each for reply in replies for each in pair.comparison.handle_reply(reply)]
        asks.sort(key=lambda each: isinstance(pair.leader.tree.respond(each), anti_entropy.Same))
    pair.store.execute(o.Increment(b"c", 1), 1)
    told = LeafState(asks[0], 2, tuple(map(pair.leader.tree._describe, [b"c"])))
    pair.comparison.handle_reply(told)
    assert pair.comparison.due() == []
    assert (pair.follower.keyspace.data[b"c"], pair.comparison.holds_at) == (50, 1)
    for each in asks[1:]:
        pair.comparison.handle_reply(anti_entropy.Same(each))
    assert pair.comparison.holds_at == 2
    pair.commit(2)
    assert pair.follower.keyspace.data[b"c"] == pair.leader.keyspace.data[b"c"] == 2


def test_slots_keep_their_trees_up_and_are_put_right() -> None:
    """The slots of a cluster, by their own listeners: one log, one tree; a bad value, a lost key and a stray one are found."""
    leader = One()
    follower = LogKeyspace(HybridClock(NODES[1]), ListLog(), SETTINGS)
    trees = SlotTree(leader.slot), SlotTree(follower)
    for slot, tree in zip((leader.slot, follower), trees, strict=True):
        slot.listeners.append(tree)
    for number in range(40):
        leader.do(o.Set(b"s%d" % number, b"v", 100 * (number % 2)))
        leader.do(o.Increment(b"c%d" % (number % 5)))
        leader.do(o.Push(b"l", o.End.LEFT, (b"x", b"y")))
        leader.do(o.Pop(b"l", o.End.RIGHT))
        leader.do(o.HashSet(b"h", ((b"f%d" % number, b"v"),)))
        if number % 3 == 0:
            leader.do(o.Delete(b"s%d" % number))
    for origin, record in leader.log.tail():
        follower.apply(origin.offset, record)
    assert trees[0].tree.leaves() == trees[1].tree.leaves()
    follower.keyspace.data[b"c1"] = 99
    follower.keyspace.remove(b"s1")
    del follower.stamps[b"s1"]
    follower.keyspace.put(b"stray", b"1", 0)
    trees[1].changed((b"c1", b"s1", b"stray"))
    comparison = Comparison(trees[1], 1)
    asks = comparison.restart()
    while asks:
        asks = [each for ask in asks for each in comparison.handle_reply(trees[0].respond(ask))]
    repaired = comparison.due()
    assert sorted(key for each in repaired for key in each.put + each.removed) == [b"c1", b"s1", b"stray"]
    assert (plain(follower), follower.keyspace.deadlines) == (plain(leader.slot), leader.slot.keyspace.deadlines)
    assert {key: follower.stamp_of(key) for key in follower.stamps} == {
        key: leader.slot.stamp_of(key) for key in leader.slot.stamps
    }
    assert trees[0].tree.leaves() == trees[1].tree.leaves()


def test_a_leader_that_tells_keys_of_another_leaf_is_not_believed() -> None:
    pair = Pair(3, writes_per_second=0)
    pair.store.execute(o.Set(b"a", b"1"), 0)
    pair.commit(1)
    asks = pair.comparison.restart()
    told = anti_entropy.KeyState(b"a", 1, b"2", 0, bytes(28))
    ask = asks[0]._replace(among=(0, 1))
    pair.comparison._asked.add(ask)
    pair.comparison.handle_reply(LeafState(ask, 1, (told,)))
    with pytest.raises(ProtocolError, match="not of leaf 0"):
        pair.comparison.due()


def test_a_follower_that_has_nothing_right_is_put_right_at_once() -> None:
    pair = Pair(4, writes_per_second=0)
    for number in range(400):
        pair.store.execute(o.Set(b"%d" % number, b"v"), number)
    pair.commit(400)
    for key in list(pair.follower.keyspace.data):
        pair.follower.keyspace.data[key] = b"rotten"
        pair.follower.tree.tree.note((key,))
    asks = pair.comparison.restart()
    while asks:
        asks = [each for ask in asks for each in pair.comparison.handle_reply(pair.leader.tree.respond(ask))]
    assert sum(len(each.put) for each in pair.comparison.due()) == 400
    assert pair.follower.seen() == pair.leader.seen()
