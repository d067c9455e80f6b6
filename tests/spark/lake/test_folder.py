"""A plain folder as a table: every crash at every operation, and what is refused."""

import errno
from collections import Counter
from random import Random

import pyarrow as pa
import pytest
from tests.spark.lake.crashing import SCHEMA, SINK, TABLE, World, Writer, all_rows_of, visible

from braidlog.model.errors import StorageFault
from braidlog.spark.lake import journal
from braidlog.spark.lake.folder import FolderTable
from braidlog.spark.lake.schemas import SchemaError
from braidlog.spark.lake.written import Change, staged_path
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk


def one_of_everything(world: World) -> None:
    world.batch(0)
    world.batch(1)
    world.replay(1)
    world.compact()
    world.batch(2)
    world.replay(0)
    world.vacuum()
    world.overwrite(7)
    world.batch(3)


def random_work(world: World) -> None:
    number = 0
    for _ in range(9):
        action = world.random.choice(["batch", "batch", "replay", "compact", "vacuum"])
        if action == "batch" or number == 0:
            world.batch(number)
            number += 1
        elif action == "replay":
            world.replay(world.random.randrange(number))
        else:
            getattr(world, action)()


def test_every_crash_of_one_of_everything() -> None:
    world = World(seed=1)
    one_of_everything(world)
    print(f"{world.states} crash states, {world.inside} of them crashed again")
    assert world.states > 60


@pytest.mark.parametrize("seed", range(4))
def test_every_crash_while_entries_are_folded(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "ENTRIES_MAX", 2)
    world = World(seed)
    random_work(world)
    print(f"seed {seed}: {world.states} crash states, {world.inside} of them crashed again")
    assert world.states > 60
    assert any(path.endswith(".state") for path in world.disk.files())


def writer(disk: SimulatedDisk | None = None) -> Writer:
    disk = disk or SimulatedDisk()
    disk.make_folder("/lake")
    return Writer(disk, ManualClock(), Random(1))


def test_an_abort_after_the_commit_undoes_nothing() -> None:
    w = writer()
    files = (w.stage(["a", "b"], "1"),)
    change = Change(files, SCHEMA, SINK, 0, partition_by=("p",))
    # The entry is written and then the disk refuses the rename: Spark hears of a failure, and aborts.
    probe = Writer(w.disk.copy(), ManualClock(), Random(1))
    probe.table.commit(change)
    rename = next(op for op in probe.disk.operations if op.kind == "rename" and op.path.endswith(".staged"))
    w.disk.fail_at = {rename.number: errno.EIO}
    with pytest.raises(StorageFault):
        w.table.commit(change)
    assert visible(w.disk) == Counter()
    w.table.discard(files)
    assert visible(w.disk) == Counter(["a", "b"]), "the abort finishes what is decided, and removes nothing"
    w.table.discard(files)
    assert w.table.commit(change) is False
    assert visible(w.disk) == Counter(["a", "b"])


def test_an_abort_before_the_commit_leaves_nothing() -> None:
    w = writer()
    w.batch(0)
    file = w.stage(["x"], "1")
    w.table.discard([file])
    assert not any(path.endswith(".staged") for path in w.disk.files())
    assert visible(w.disk) == all_rows_of(0)


def test_vacuum_leaves_what_is_young() -> None:
    w = writer()
    w.batch(0)
    old = w.stage(["old"], "1")
    w.clock.advance(3_600_000)
    young = w.stage(["young"], "1")
    assert w.table.vacuum(1800) == [staged_path(old.path)]
    w.table.commit(Change((young,), SCHEMA, SINK, 1, partition_by=("p",)))
    assert visible(w.disk) == all_rows_of(0) + Counter(["young"])


def test_a_staged_file_that_is_gone_fails_the_batch_and_changes_nothing() -> None:
    w = writer()
    w.table.prepare(SCHEMA, ("p",), merge_schema=False)
    file = w.stage(["x"], "1")
    w.table.vacuum(0)
    with pytest.raises(StorageFault, match="one folder for all machines"):
        w.table.commit(Change((file,), SCHEMA, SINK, 0, partition_by=("p",)))
    assert w.table.last_batch(SINK) is None


def test_compaction_gives_way_to_whoever_was_first() -> None:
    w = writer()
    w.batch(1)
    first, second = (file.path for file in w.table.files())
    w.table.replace([first], [w.stage(["b1p0r0", "b1p0r1", "b1p0r2"], "0")])
    late = w.stage(["late"], "0")
    assert w.table.replace([first, second], [late]) is False
    assert visible(w.disk) == all_rows_of(1)


def test_damage_is_told_and_nothing_is_added_to_it() -> None:
    w = writer()
    w.batch(0)
    w.batch(1)
    entry = next(path for path in w.disk.files() if path.endswith("01.entry"))
    w.disk.flip_bit(entry, 8 * 60)
    with pytest.raises(StorageFault, match="does not fit"):
        w.batch(2)
    w.disk.drop(entry)
    with pytest.raises(StorageFault, match="entry 1 of the journal is not there"):
        w.batch(2)


def test_what_does_not_fit_the_table_is_refused() -> None:
    w = writer()
    w.batch(0)
    wider = SCHEMA.append(pa.field("extra", pa.int64()))
    with pytest.raises(SchemaError, match="no column 'extra'; option mergeSchema"):
        w.table.prepare(wider, ("p",), merge_schema=False)
    w.table.prepare(wider, ("p",), merge_schema=True)
    other = pa.schema([("row", pa.int32()), ("p", pa.string())])
    with pytest.raises(SchemaError, match="'row' is string in the table and int32"):
        w.table.prepare(other, ("p",), merge_schema=True)
    with pytest.raises(SchemaError, match="partitioned by"):
        w.table.prepare(SCHEMA, (), merge_schema=False)


def test_a_table_begins_in_an_empty_folder() -> None:
    disk = SimulatedDisk()
    for folder in ("/lake", TABLE):
        disk.make_folder(folder)
    disk.create(f"{TABLE}/part-of-somebody-else.parquet").close()
    with pytest.raises(StorageFault, match="begins in an empty folder"):
        FolderTable(TABLE, disk=disk).prepare(SCHEMA, ("p",), merge_schema=False)
