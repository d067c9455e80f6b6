"""The journal: what is durable is there after any crash, and compaction changes nothing of it."""

from random import Random

import msgspec
import pytest
from tests.model.manual_world import ManualRuntime

from braidlog.cluster.metadata.topic_state import Topic, held_alone
from braidlog.coordinator.journal import NOTHING, Journal, Key, Table, load_tables
from braidlog.model.errors import StorageFault
from braidlog.model.settings import Flush, TopicSettings
from braidlog.partition.internal.coordinator_log import CoordinatorLog
from braidlog.partition.partition_registry import PartitionRegistry
from braidlog.storage.compaction.compaction import Compaction
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk


class Value(msgspec.Struct, frozen=True):
    number: int
    text: str = ""


class Bench:
    """One journal with two tables over a simulated disk."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk()
        self.clock = ManualClock()
        self.runtime = ManualRuntime(self.clock)
        self.folder = DataFolder(self.disk, "/d", self.clock)
        settings = TopicSettings(flush=Flush.ACK, compact=True, segment_bytes=4096, delete_retention_ms=0)
        if self.folder.find("j") is None:
            self.folder.create_topic("j", 1, settings)
        meta, held = self.folder.topic("j"), held_alone("0", 1, 1)
        topic = Topic(
            name="j",
            topic_id=meta.topic_id,
            settings=settings,
            created_ms=0,
            min_in_sync=1,
            assignments=held,
            holder="0",
        )
        partition = PartitionRegistry(self.folder, "0", self.runtime).open_partition(topic, 0)
        self.log = partition.log
        self.journal = Journal(CoordinatorLog(partition, self.runtime), self.runtime)
        self.a = Table(self.journal, "a", Value)
        self.b = Table(self.journal, "b", Value)
        self.unknown: list[Key] = []
        self.runtime.run(load_tables(self.journal, [self.a, self.b], self.unknown.append))

    def all(self) -> dict[Key, Value]:
        return {**self.a.values, **self.b.values}


def change(bench: Bench, rng: Random) -> None:
    table = rng.choice([bench.a, bench.b])
    kind = rng.randrange(4)
    key = (rng.choice(["x", "y", "z"]), rng.randrange(3))
    value = Value(rng.randrange(1000), "t" * rng.randrange(50))
    if kind == 0:
        table.drop(*key)
    elif kind == 1:
        entries: list[tuple[Key, Value | None]] = [
            ((name, number), value if number else None) for name in ("x", "y") for number in range(2)
        ]
        table.put_many(entries)
    else:
        table.put(*key, value=value)


def test_values_come_back() -> None:
    bench = Bench()
    bench.a.put("x", 1, value=Value(1, "ü"))
    bench.a.put("x", 2, value=Value(2))
    bench.b.put("x", 1, value=Value(3))
    bench.a.put("x", 1, value=Value(4))
    bench.a.drop("x", 2)
    again = Bench(bench.disk.after_kill())
    assert again.all() == bench.all() == {("a", "x", 1): Value(4), ("b", "x", 1): Value(3)}
    assert again.a.get("x", 1) == Value(4)
    assert again.a.get("x", 2) is None
    assert dict(again.a.items()) == {("x", 1): Value(4)}


def test_entries_of_no_table_are_told() -> None:
    bench = Bench()
    Table(bench.journal, "later", Value).put("k", value=Value(1))
    assert Bench(bench.disk.after_kill()).unknown == [("later", "k")]


def test_a_value_that_does_not_decode_is_a_fault() -> None:
    class Other(msgspec.Struct, frozen=True):
        name: str

    bench = Bench()
    Table(bench.journal, "a", Other).put("k", value=Other("x"))
    with pytest.raises(StorageFault, match="does not decode"):
        Bench(bench.disk.after_kill())


def test_a_refused_write_changes_nothing_in_memory() -> None:
    bench = Bench()
    bench.a.put("x", 1, value=Value(1))
    before = bench.all()
    bench.disk.fail_at = {len(bench.disk.operations) + 1: 28}
    with pytest.raises(StorageFault):
        bench.a.put("x", 1, value=Value(2))
    bench.disk.fail_at = {len(bench.disk.operations) + 1: 28}
    with pytest.raises(StorageFault):
        bench.a.drop("x", 1)
    assert bench.all() == before
    bench.a.put("x", 1, value=Value(3))
    assert Bench(bench.disk.after_kill()).all() == {("a", "x", 1): Value(3)}


@pytest.mark.parametrize("seed", range(8))
def test_every_crash_leaves_the_durable_prefix_or_more(seed: int) -> None:
    """After each change all crash states: the table is one of those between the last synced and the last made."""
    rng = Random(seed)
    bench = Bench()
    history = [bench.all()]
    durable = 0
    states = 0
    seen: set[int] = set()
    for step in range(60):
        change(bench, rng)
        history.append(dict(bench.all()))
        if rng.random() < 0.3:
            bench.log.sync()
            durable = len(history) - 1
        for label, disk in bench.disk.crash_states(limit=12, rng=rng, seen=seen):
            found = Bench(disk).all()
            assert found in history[durable:], f"seed {seed} step {step}: {label}"
            states += 1
    assert states > 100


@pytest.mark.parametrize("seed", range(6))
def test_compaction_changes_nothing(seed: int) -> None:
    rng = Random(seed)
    bench = Bench()
    removed = 0
    for step in range(400):
        change(bench, rng)
        if step % 60 == 59:
            bench.clock.advance(10)
            done = Compaction(bench.disk, bench.folder.pool, bench.log, now_ms=bench.clock.now_ms()).run()
            removed += done.records_removed
            assert Bench(bench.disk.after_kill()).all() == bench.all(), f"seed {seed} step {step}"
    assert removed > 100
    bench.log.sync()
    for label, disk in bench.disk.crash_states(limit=20, rng=rng):
        assert Bench(disk).all() == bench.all(), label


def test_a_crash_at_every_operation_of_a_compaction() -> None:
    rng = Random(7)
    bench = Bench()
    for _ in range(150):
        change(bench, rng)
    bench.log.sync()
    expected = bench.all()
    states = 0
    seen: set[int] = set()

    def look(_: object) -> None:
        nonlocal states
        for label, disk in bench.disk.crash_states(limit=25, rng=rng, seen=seen):
            assert Bench(disk).all() == expected, label
            states += 1

    bench.disk.on_operation = look
    Compaction(bench.disk, bench.folder.pool, bench.log, now_ms=bench.clock.now_ms()).run()
    assert states > 30


def test_a_change_is_settled_once_it_is_durable_and_several_are_one_wait() -> None:
    bench = Bench()
    marks = [bench.a.put("x", 1, value=Value(1)), bench.b.put("y", 1, value=Value(2))]
    assert not any(map(bench.journal.is_settled, marks))
    bench.runtime.run(bench.journal.wait_committed(marks[0]))
    assert bench.journal.is_settled(marks[0])
    bench.runtime.run(bench.journal.wait_committed(*marks))
    assert all(map(bench.journal.is_settled, marks))
    assert Bench(bench.disk.after_kill()).all() == bench.all()


def test_no_change_has_nothing_to_wait_for() -> None:
    bench = Bench()
    assert bench.a.put_many([]) == NOTHING
    assert bench.journal.is_settled(NOTHING)
    bench.runtime.run(bench.journal.wait_committed())
    assert bench.runtime.syncs == 0
