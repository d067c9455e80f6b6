"""Damage to every file of a store: what is served afterwards is right, or nothing is, and the fault says where.

Each byte of each file gets one flipped bit (which one is drawn from SEED); files are cut, zeroed, lost.
"""

from collections.abc import Callable
from random import Random

import pytest
from tests.kv import workloads
from tests.kv.crashing import SETTINGS, Shown, World, lost, open_store, see

from braidlog.kv import operations as o
from braidlog.kv.local import LocalStore
from braidlog.kv.wal import unpack_mark
from braidlog.model.errors import StorageFault
from braidlog.testing.disk import SimulatedDisk

SEED = 20240611


def built() -> tuple[SimulatedDisk, Shown]:
    """A store with a snapshot, a log after it and every kind of value, killed with everything synced."""
    world = World()
    workloads.collections(world)
    for number in range(5):
        world.do(o.Set(b"key%d" % number, b"v" * 50, 100 * number))
        world.do(o.Increment(b"count", number))
        world.do(o.Push(b"list", o.End.LEFT, (b"x",)))
        world.do(o.HashSet(b"hash", ((b"f%d" % number, b"v"),)))
    world.snapshot()
    world.do(o.Increment(b"count", 7))
    world.do(o.Delete(b"key1"))
    world.do(o.Pop(b"list", o.End.RIGHT))
    return world.disk.after_kill(), see(world.store)


def entries_end(disk: SimulatedDisk, path: str) -> int:
    """Where the zeros behind the entries of a log begin; of every other file its length."""
    data = disk.content(path)
    mark = unpack_mark(data) if path.endswith(".wal") else None
    return len(data) if mark is None else mark.position


def outcome(disk: SimulatedDisk, wanted: Shown, what: str) -> bool:
    """Whether the store was served; then it must be the right one, and stay so."""
    try:
        store = open_store(disk, SETTINGS)
    except StorageFault as fault:
        assert "/data/kv" in str(fault), f"{what}: a fault that does not say where: {fault}"  # noqa: PT017
        return False
    assert see(store) == wanted, f"{what}: something else is served, notes {store.notes}"
    store.execute(o.Set(b"new", b"v"), 0)
    store.close()
    assert len(see(open_store(disk.after_kill(), SETTINGS))[2]) == len(wanted[2]) + 1, what
    return True


def test_a_flipped_bit_in_every_byte() -> None:
    disk, wanted = built()
    random = Random(SEED)
    flips = served = 0
    for path in disk.files():
        end = entries_end(disk, path)
        for at in range(len(disk.content(path))):
            if at >= end and at % 97:  # one zero is as good as another
                continue
            damaged = disk.copy()
            damaged.flip_bit(path, at * 8 + random.randrange(8))
            is_served = outcome(damaged, wanted, f"byte {at} of {path} flipped")
            assert is_served or at < end, "a zero behind the last entry"
            served += is_served and at < end
            flips += at < end
    print(f"{flips} flips, {served} of them harmless, seed {SEED}")
    assert flips > 1000
    assert served < flips / 2, "almost every byte of the log and the snapshot matters"


@pytest.mark.parametrize("how", ["cut", "zero"])
def test_cut_and_zeroed_files(how: str) -> None:
    disk, wanted = built()
    harm: dict[str, Callable[[SimulatedDisk, str, int, int], None]] = {
        "cut": lambda damaged, path, at, _: damaged.cut(path, at),
        "zero": lambda damaged, path, at, size: damaged.zero(path, at, min(at + 32, size)),
    }
    tried = 0
    for path in disk.files():
        size = len(disk.content(path))
        for at in range(0, size, 7):
            damaged = disk.copy()
            harm[how](damaged, path, at, size)
            if damaged.content(path) != disk.content(path):
                outcome(damaged, wanted, f"{path} {how} at {at}")
                tried += 1
    print(f"{tried} times {how}")
    assert tried > 150


def test_lost_files() -> None:
    disk, wanted = built()
    served = {}
    for path in disk.files():
        damaged = disk.copy()
        damaged.drop(path)
        served[path.rsplit("/", 1)[1]] = outcome(damaged, wanted, f"{path} lost")
    assert {name for name, there in served.items() if there} == {"store.a", "store.b"}, served


def test_both_manifests_lost() -> None:
    disk, _ = built()
    disk.drop("/data/kv/store.a")
    disk.drop("/data/kv/store.b")
    with pytest.raises(StorageFault, match="manifest is lost"):
        open_store(disk)


def test_a_store_of_another_node() -> None:
    disk, _ = built()
    with pytest.raises(StorageFault, match="belongs to node"):
        LocalStore(disk, "/data/kv", bytes(16), SETTINGS, now_ms=0)


def test_a_damaged_snapshot_is_replaced_by_the_log_where_that_is_whole() -> None:
    """Between the naming of a snapshot and the removal of the log before it, the log alone is enough."""
    world = World()
    world.open()
    world.do(o.Increment(b"count", 5))
    saved = world.disk.content("/data/kv/00000000000000000001.wal")
    world.snapshot()
    path = "/data/kv/00000000000000000001.wal"
    file = world.disk.create(path)
    file.write_at(saved, 0)
    world.disk.flip_bit("/data/kv/00000000000000000001.snapshot", 8 * 70)
    store = open_store(world.disk.after_kill())
    assert store.execute(o.Get(b"count"), 0) == b"5"
    assert any("damaged" in note for note in store.notes)


def test_without_a_mark_nothing_is_taken_for_a_torn_tail() -> None:
    disk, wanted = built()
    wal = next(path for path in disk.files() if path.endswith(".wal"))
    disk.cut(wal, entries_end(disk, wal))  # zeros are another matter: test_wal.py
    disk.flip_bit(wal, 8 * 70)
    assert outcome(disk.copy(), wanted, "the mark alone"), "every entry is whole, so nothing is in doubt"
    disk.flip_bit(wal, 8 * (len(disk.content(wal)) - 1))
    with pytest.raises(StorageFault, match="damaged"):
        open_store(disk)


def test_a_fault_in_a_file_that_was_followed_by_another_is_damage() -> None:
    """Its mark may be one sync old, but the next file's being there proves that it was durable to its end."""
    world = World()
    world.open()
    for number in range(4):
        world.do(o.Increment(b"count", number))
    world.store.wal.request_roll(0)
    world.store.wal.sync()
    world.do(o.Increment(b"count"))
    disk = lost(world.disk)
    first, second = (path for path in disk.files() if path.endswith(".wal"))
    disk.flip_bit(first, 8 * (len(disk.content(first)) - 1))
    with pytest.raises(StorageFault, match="damaged after mutation 3"):
        open_store(disk)
    assert second


def test_what_lies_behind_a_torn_entry_never_comes_back() -> None:
    """Entries of one size: a new one in the place of the torn one leads to the bytes that lay behind it."""
    world = World()
    world.open()
    world.do(o.Increment(b"count"))
    start = len(world.disk.content("/data/kv/00000000000000000001.wal"))
    for _ in range(3):
        world.do(o.Increment(b"count"), sync=False)
    disk = world.disk.after_kill()
    disk.zero("/data/kv/00000000000000000001.wal", start, start + 36)
    store = open_store(disk)
    assert store.sequence == 1
    store.execute(o.Increment(b"count"), world.clock.now_ms())
    store.wal.sync()
    again = open_store(disk.after_kill())
    assert (again.sequence, again.execute(o.Get(b"count"), 0)) == (2, b"2")
