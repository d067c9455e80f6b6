"""A store on a simulated disk, a plain dictionary beside it, and the comparison of the two after a crash.

Knows: what was asked of the store, and what was promised in return. Refuses to know: how the store keeps its promises.
Invariant: after any crash the store shows the state after some mutation between the last promised and the last attempted one:
exactly that state, with its stamp, so that no counter counts twice and no expired or evicted key is back.
"""

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.kv.model import Model
from tests.kv.snapshots import write_snapshot

from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import Stamp
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.engine.store import Mutation
from braidlog.kv.engine.values import HashValue, ListValue
from braidlog.kv.feed.feed_records import MutationColumns
from braidlog.kv.wal.local_store import LocalStore
from braidlog.model.errors import BrokerError
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import Operation, SimulatedDisk

FOLDER = "/data/kv"
NODE = bytes(range(16))
SETTINGS = KeyValueSettings()
KEYS = [b"a", b"b", b"c", b"list", b"hash", b"count", b"k" * 200]

Shown = tuple[Any, ...]


def plain(store: LocalStore) -> dict[bytes, tuple[Any, int]]:
    """Every key of a store as plain values, due or not, with its deadline."""
    found = {}
    for key, value in store.keyspace.data.items():
        if isinstance(value, ListValue):
            kept: Any = list(value.items)
        elif isinstance(value, HashValue):
            kept = dict(value.fields)
        else:
            kept = b"%d" % value if isinstance(value, int) else value
        found[key] = (kept, store.keyspace.deadlines.get(key, 0))
    return found


def see(store: LocalStore) -> Shown:
    """All that a store shows, and that it must show again."""
    return (store.sequence, store.clock.stamp, tuple(sorted(plain(store).items())))


def new_disk() -> SimulatedDisk:
    """A disk with the node's data folder on it, which is not the store's to make."""
    disk = SimulatedDisk()
    disk.make_folder("/data")
    disk.sync_folder("/")
    return disk


def open_store(disk: SimulatedDisk, settings: KeyValueSettings = SETTINGS, now_ms: int = 0) -> LocalStore:
    return LocalStore(disk, FOLDER, NODE, settings, now_ms=now_ms)


class EachChange:
    """A `Watcher` that calls a function with one change after another."""

    def __init__(self, call: Callable[[Mutation], object]) -> None:
        self._call = call

    def changed(self, mutation: Mutation, node: bytes) -> None:
        self._call(mutation)

    def changed_together(self, told: MutationColumns, node: bytes) -> None:
        for each in told.mutations():
            self._call(each)

    def restarted(self) -> None:
        raise AssertionError


@dataclass
class Runtime:
    """A store and what is known of it. `shown[n]` is what it showed after mutation n."""

    settings: KeyValueSettings = SETTINGS
    disk: SimulatedDisk = field(default_factory=new_disk)
    clock: ManualClock = field(default_factory=ManualClock)
    model: Model = field(default_factory=Model)
    shown: dict[int, Shown] = field(default_factory=lambda: {0: (0, Stamp(0, 0, NODE), ())})
    durable: int = 0
    returned: int = 0
    _store: LocalStore | None = None
    _follows: bool = True

    @property
    def store(self) -> LocalStore:
        assert self._store is not None
        return self._store

    def open(self) -> None:
        self._store = None
        self._store = LocalStore(
            self.disk, FOLDER, NODE, self.settings, now_ms=self.clock.now_ms(), watcher=EachChange(self._changed)
        )
        assert see(self.store) == self.shown[self.store.sequence]

    def _changed(self, mutation: Mutation) -> None:
        if self._store is not None and self._follows:  # during a replay the store is not there yet, and shows nothing
            self.shown[mutation.sequence] = see(self.store)

    def close(self) -> None:
        self.store.close()
        self.durable = self.returned = self.store.sequence

    def do(self, operation: o.Operation[Any], *, sync: bool = True) -> Any:
        """Carry an operation out on both, compare what they say and hold, then make it durable (or only written)."""
        now_ms = self.clock.now_ms()
        wanted = self.model.execute(operation, now_ms)
        try:
            result = self.store.execute(operation, now_ms)
        except BrokerError as error:
            result = error.reason
        assert result == wanted, f"{operation}: {result!r}, not {wanted!r}"
        held = {key: kept for key, kept in plain(self.store).items() if not kept[1] or kept[1] > now_ms}
        assert held == self.model.data, f"after {operation}"
        self.finish(sync=sync)
        return result

    def do_all(self, columns: o.Columns, *, sync: bool = True) -> None:
        """The same for many at once; what a store that does them one by one shows after each is what a crash may leave."""
        now_ms = self.clock.now_ms()
        self.store.wal.write()
        copy = self.disk.after_kill()
        copy.on_operation = None
        other = open_store(copy, self.settings, now_ms)
        for row in range(len(columns.keys)):
            self.model.execute(columns.operation(row), now_ms)
            with contextlib.suppress(BrokerError):
                other.execute(columns.operation(row), now_ms)
            self.shown[other.sequence] = see(other)
        self._follows = False
        self.store.execute_columns(columns, now_ms)
        self._follows = True
        assert see(self.store) == see(other)
        self.finish(sync=sync)

    def finish(self, *, sync: bool) -> None:
        if sync:
            self.store.wal.sync(upto=self.store.sequence + 1)
            self.durable = self.store.sequence
        else:
            self.store.wal.write()
        self.returned = self.store.sequence

    def expire(self, *, sync: bool = True) -> None:
        self.store.expire(self.clock.now_ms(), 100)
        self.finish(sync=sync)

    def snapshot(self) -> None:
        write_snapshot(self.store, self.clock.now_ms())
        self.durable = self.returned = self.store.sequence

    def compare(self, store: LocalStore, *, killed: bool = False) -> Shown:
        seen = see(store)
        promised = self.returned if killed else self.durable
        assert seen[0] >= promised, f"mutation {seen[0]} is the last, {promised} was promised"
        assert seen[0] in self.shown, f"mutation {seen[0]} was never made"
        assert seen == self.shown[seen[0]], f"after mutation {seen[0]} it showed something else"
        check_figures(store)
        return seen


def check_figures(store: LocalStore) -> None:
    """What is accounted as it goes along is what a count from scratch gives."""
    keyspace = store.keyspace
    assert keyspace.used_bytes == sum(keyspace.cost(key) for key in keyspace.data)
    assert keyspace.lists == sum(isinstance(value, ListValue) for value in keyspace.data.values())
    assert keyspace.hashes == sum(isinstance(value, HashValue) for value in keyspace.data.values())
    for value in keyspace.data.values():
        if isinstance(value, ListValue | HashValue):
            assert value.size == len(value.write())
    assert set(keyspace.deadlines) <= set(keyspace.data)


def lost(disk: SimulatedDisk) -> SimulatedDisk:
    """The disk after a power cut that takes all that may be taken."""
    states = dict(itertools.islice(disk.crash_states(), 2))
    return states.get("lost") or states["kept"]


def go_on(store: LocalStore, disk: SimulatedDisk, settings: KeyValueSettings, now_ms: int) -> None:
    """A recovered store must be as good as any: change it, snapshot it, change it, lose the power, find it all."""
    for turn in range(2):
        store.execute(o.Increment(b"onward", 3), now_ms)
        store.execute(o.Set(b"on%d" % turn, b"x" * 700), now_ms)
        store.wal.sync()
        if turn == 0:
            # Before the snapshot, which makes everything anew: what was found after the crash must be fit to build on.
            assert see(open_store(lost(disk), settings, now_ms)) == see(store), "the first changes are lost"
            write_snapshot(store, now_ms)
    wanted = see(store)
    assert see(open_store(lost(disk), settings, now_ms)) == wanted, "changes after a recovery are lost"


@dataclass
class Campaign:
    """Runs a workload and, before each of its operations on the disk, everything a crash there may leave behind."""

    settings: KeyValueSettings = SETTINGS
    inside_every: int = 25
    onward_every: int = 5
    states: int = 0
    inside: int = 0
    seen: set[int] = field(default_factory=set)
    inner_seen: set[int] = field(default_factory=set)
    random: Random = field(default_factory=lambda: Random(7))

    def run(self, workload: Callable[[Runtime], None]) -> None:
        runtime = Runtime(self.settings)

        def before(operation: Operation) -> None:
            self.try_all(runtime, f"operation {operation.number} {operation.kind} {operation.path}")

        runtime.disk.on_operation = before
        workload(runtime)
        runtime.disk.on_operation = None
        self.try_all(runtime, "the end")

    def try_all(self, runtime: Runtime, where: str) -> None:
        for label, state in runtime.disk.crash_states(seen=self.seen, prefixes_max=24):
            self.states += 1
            try:
                self.try_one(runtime, state)
            except Exception as error:
                raise AssertionError(f"{where}, state {label!r}: {type(error).__name__}: {error}") from error

    def try_one(self, runtime: Runtime, state: SimulatedDisk) -> None:
        now_ms = runtime.clock.now_ms()
        if self.states % self.inside_every == 0:
            self.try_inside(runtime, state)
        store = open_store(state, self.settings, now_ms)
        seen = runtime.compare(store)
        assert see(open_store(lost(state), self.settings, now_ms)) == seen, "a second recovery shows something else"
        if self.states % self.onward_every == 0:
            go_on(store, state, self.settings, now_ms)

    def try_inside(self, runtime: Runtime, state: SimulatedDisk) -> None:
        """Crash the recovery itself, at each of its operations."""
        victim = state.copy()

        def before(operation: Operation) -> None:
            for label, inner in victim.crash_states(3, self.random, seen=self.inner_seen):
                self.inside += 1
                try:
                    runtime.compare(open_store(inner, self.settings, runtime.clock.now_ms()))
                except Exception as error:
                    where = f"inside recovery: {operation.number} {operation.kind} {operation.path}, {label!r}"
                    raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error

        victim.on_operation = before
        open_store(victim, self.settings, runtime.clock.now_ms())
        victim.on_operation = None
