"""Damage to every file of a store: what is served afterwards is right, or nothing is, and the fault says where.

Each byte of each file gets one flipped bit (which one is drawn from SEED); files are cut, zeroed, lost.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.kv import workloads
from tests.kv.crashing import SETTINGS, Runtime, Shown, check_figures, lost, open_store, plain, see
from tests.kv.snapshots import write_snapshot
from tests.sampling import FULL

from braidlog.kv.engine import operations as o
from braidlog.kv.wal.damage import mended_entry
from braidlog.kv.wal.local_store import LocalStore
from braidlog.kv.wal.wal import DATA_START, unpack_mark
from braidlog.kv.wal.wal_entries import Op, pack_entry, walk_entries
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.storage.folder.quarantine import find_quarantined
from braidlog.testing.disk import Operation, SimulatedDisk

SEED = 20240611


def built() -> tuple[SimulatedDisk, Shown]:
    """A store with a snapshot, a log after it and every kind of value, killed with everything synced."""
    runtime = Runtime()
    workloads.collections(runtime)
    for number in range(5):
        runtime.do(o.Set(b"key%d" % number, b"v" * 50, 100 * number))
        runtime.do(o.Increment(b"count", number))
        runtime.do(o.Push(b"list", o.End.LEFT, (b"x",)))
        runtime.do(o.HashSet(b"hash", ((b"f%d" % number, b"v"),)))
    runtime.snapshot()
    runtime.do(o.Increment(b"count", 7))
    runtime.do(o.Delete(b"key1"))
    runtime.do(o.Pop(b"list", o.End.RIGHT))
    return runtime.disk.after_kill(), see(runtime.store)


def wal_of(disk: SimulatedDisk) -> str:
    return [path for path in disk.files() if path.endswith(".wal")][-1]


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
    doubt = check_served(store, wanted, what)
    before = disk.after_kill()
    check_served(open_store(before, SETTINGS), wanted, f"{what}, opened twice")
    store.execute(o.Set(b"new", b"v"), 0)
    store.close()
    again = open_store(disk.after_kill(), SETTINGS)
    assert again.execute(o.Get(b"new"), 0) == b"v", what
    assert len(again.keyspace) == len(store.keyspace), what
    assert (again.doubt and str(again.doubt)) == doubt, what
    return True


def check_served(store: LocalStore, wanted: Shown, what: str) -> str | None:
    """Every key of the store is what it was, or in doubt; return the doubt."""
    held, kept = plain(store), dict(wanted[2])
    what = f"{what}: notes {store.notes}, damages {store.damages}"
    assert store.sequence == wanted[0], what
    assert held.items() <= kept.items(), f"{what}: something else is served"
    for key in {*kept, b"key1", b"never"} - set(held):
        if key in kept or store.doubt is not None:
            assert key not in kept or store.doubt is not None, f"{what}: {key!r} is missing"
            is_refused = False
            try:
                store.execute(o.Exists(key), 0)
            except BrokerError as error:
                is_refused = "braid kv repair" in str(error)
            assert is_refused or key not in kept, f"{what}: {key!r} is said not to be there"
    assert (store.doubt is None) == (not store.damages), what
    if store.doubt is None:
        assert see(store) == wanted, what
    check_figures(store)
    return None if store.doubt is None else str(store.doubt)


def test_a_flipped_bit_in_every_byte() -> None:
    """One in the log costs the key of its entry, at most; one in the snapshot costs the keys of its block."""
    disk, wanted = built()
    random = Random(SEED)
    flips = in_doubt = 0
    for path in disk.files():
        end = entries_end(disk, path)
        for at in range(len(disk.content(path))):
            if at >= end and at % 97:  # one zero is as good as another
                continue
            damaged = disk.copy()
            damaged.flip_bit(path, at * 8 + random.randrange(8))
            what = f"byte {at} of {path} flipped"
            assert outcome(damaged.copy(), wanted, what), what
            store = open_store(damaged, SETTINGS)
            if path.endswith(".wal"):
                assert len(wanted[2]) - len(store.keyspace) <= 1, what
                assert (store.doubt is not None) == (DATA_START <= at < end), what
            in_doubt += store.doubt is not None
            flips += at < end
    print(f"{flips} flips, after {in_doubt} of them keys are in doubt, seed {SEED}")
    assert flips > 1000
    assert in_doubt > flips / 2, "almost every byte of the log and the snapshot matters"


def test_damage_that_no_checksum_explains_costs_what_was_not_set_since() -> None:
    """Two bits of one entry: how far it reaches, and whose it is, nothing says. The durable mark says what follows."""
    disk, wanted = built()
    path = wal_of(disk)
    first = next(walk_entries(disk.open(path, writable=False), DATA_START, entries_end(disk, path), 0))
    for at in range(DATA_START + 1, first.end):
        damaged = disk.copy()
        damaged.flip_bit(path, 8 * DATA_START)
        damaged.flip_bit(path, 8 * at)
        assert outcome(damaged.copy(), wanted, f"bytes {DATA_START} and {at}")
        store = open_store(damaged, SETTINGS)
        assert (len(store.keyspace), store.sequence) == (0, wanted[0])
        store.execute(o.Set(b"key0", b"v"), 0)
        store.execute(o.Set(b"gone", b"v"), 0)
        store.execute(o.Delete(b"gone"), 0)
        store.close()
        again = open_store(damaged.after_kill(), SETTINGS)
        assert again.execute(o.Get(b"key0"), 0) == b"v"
        assert again.execute(o.Exists(b"gone"), 0) is False
        with pytest.raises(BrokerError, match="in doubt"):
            again.execute(o.Exists(b"count"), 0)


@pytest.mark.parametrize("value", [b"", b"v" * 50, bytes(range(256)) * 40])
def test_the_checksum_of_an_entry_finds_one_flipped_bit_and_no_two(value: bytes) -> None:
    whole = b"".join(pack_entry(2**40, Op.SET, b"user:1001", value, 60))
    behind = b"".join(pack_entry(2**40, Op.SET, b"user:1002", b"w", 0))
    random, bits = Random(SEED), len(whole) * 8

    def flipped(*positions: int) -> bytes:
        data = bytearray(whole + behind)
        for each in positions:
            data[each // 8] ^= 1 << each % 8
        return bytes(data)

    for bit in range(0, bits, 1 + bits // 500):
        found = mended_entry(flipped(bit), 2**40)
        assert found == (len(whole), 2**40, Op.SET, b"user:1001", value, 60), bit
    assert not any(mended_entry(flipped(*random.sample(range(bits), 2)), 2**40) for _ in range(300))
    assert mended_entry(flipped(), 2**40 + 1) is None, "its time is before the last entry's"


def test_an_entry_inside_a_value_is_never_taken_for_one() -> None:
    """A client may store bytes that look like entries; damage of the entry around them must not let them in."""
    runtime = Runtime()
    runtime.open()
    forged = b"".join(part for n in range(4) for part in pack_entry(2**40, Op.SET, b"forged%d" % n, b"x", 0))
    runtime.do(o.Set(b"a", b"1"))
    runtime.do(o.Set(b"around", forged))
    runtime.do(o.Set(b"b", b"2"))
    disk, random = runtime.disk.after_kill(), Random(SEED)
    path = wal_of(disk)
    for at in range(DATA_START, entries_end(disk, path)):
        for flips in (1, 2, 3):
            damaged = disk.copy()
            for each in (at, *random.sample(range(DATA_START, entries_end(disk, path)), flips - 1)):
                damaged.flip_bit(path, 8 * each + random.randrange(8))
            outcome(damaged, see(runtime.store), f"{flips} bits from byte {at} on")


def test_a_key_in_doubt_is_known_again_when_it_is_set() -> None:
    """Until then nothing that depends on what it holds is done, and no snapshot lets the damaged file go."""
    disk, _ = built()
    path = wal_of(disk)
    disk.flip_bit(path, 8 * (DATA_START + 20))
    store = open_store(disk)
    refused: list[o.Operation[Any]] = [o.Get(b"count"), o.Increment(b"count"), o.Delete(b"count")]
    for operation in (*refused, o.Set(b"count", b"", 0, o.Only.IF_ABSENT)):
        with pytest.raises(BrokerError, match="key 'count' is in doubt"):
            store.execute(operation, 0)
    with pytest.raises(BrokerError, match="no snapshot is taken while 1 keys are in doubt"):
        write_snapshot(store, 0)
    columns = o.Columns(False, bytes((o.Kind.GET, o.Kind.GET)), [b"count", b"key0"], [b"", b""])
    answer, held = store.execute_columns(columns, 0).found
    assert (isinstance(answer, BrokerError), held) == (True, b"v" * 50)
    store.execute(o.Set(b"count", b"1"), 0)
    assert store.doubt is None
    store.wal.sync()
    assert open_store(disk.after_kill()).execute(o.Get(b"count"), 0) == b"1"
    write_snapshot(store, 0)
    assert [each for each in disk.files() if each.endswith(".damaged")] == [f"{path}.damaged"]
    assert find_quarantined(disk, "/data").damaged == ["kv"]
    store.close()
    assert not open_store(disk.after_kill()).damages


@pytest.mark.parametrize("bits", [(20,), (20, 21)])
def test_an_opening_of_a_damaged_store_that_is_cut_off_anywhere(bits: tuple[int, ...]) -> None:
    disk, wanted = built()
    for bit in bits:
        disk.flip_bit(wal_of(disk), 8 * (DATA_START + bit))
    wanted_keys = plain(open_store(disk.copy()))
    content, states = {path: disk.content(path) for path in disk.files()}, 0
    seen: set[int] = set()

    def crash(operation: Operation) -> None:
        nonlocal states
        for label, state in [("killed", disk.after_kill()), *disk.crash_states(seen=seen)]:
            states += 1
            store = open_store(state)
            check_served(store, wanted, f"{operation}, {label}")
            assert plain(store) == wanted_keys
            assert all(
                state.content(path).startswith(data[: entries_end(disk, path)])
                for path, data in content.items()
                if path.endswith(".wal")
            ), "nothing damaged is written over"

    disk.on_operation = crash
    open_store(disk)
    print(f"{states} states")
    assert states > 5


def harmed(disk: SimulatedDisk, random: Random) -> SimulatedDisk:
    """A copy with up to three places of any files overwritten, or a file cut."""
    copy = disk.copy()
    for _ in range(random.choice((1, 1, 2, 3))):
        path = random.choice(disk.files())
        size, length = len(copy.content(path)), random.choice((1, 2, 8, 30, 200))
        at = random.randrange(size) if size else 0
        if not size or random.random() < 0.2:
            copy.cut(path, at)
            continue
        other = random.randrange(size)
        kinds = (random.randbytes(length), bytes(length), copy.content(path)[other : other + length])
        file = copy.open(path, writable=True)
        file.write_at(random.choice(kinds)[: size - at], at)
        file.sync()
    return copy.after_kill()


def test_damage_of_any_kind() -> None:
    disk, wanted = built()
    served = sum(outcome(harmed(disk, Random(seed)), wanted, f"seed {seed}") for seed in range(4_000 if FULL else 400))
    print(f"{served} served")
    assert served > 300


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
    assert {name for name, there in served.items() if there} == {
        "store.a",
        "store.b",
        "00000000000000000043.snapshot",
    }, served


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
    runtime = Runtime()
    runtime.open()
    runtime.do(o.Increment(b"count", 5))
    saved = runtime.disk.content("/data/kv/00000000000000000001.wal")
    runtime.snapshot()
    path = "/data/kv/00000000000000000001.wal"
    file = runtime.disk.create(path)
    file.write_at(saved, 0)
    runtime.disk.flip_bit("/data/kv/00000000000000000001.snapshot", 8 * 70)
    store = open_store(runtime.disk.after_kill())
    assert store.execute(o.Get(b"count"), 0) == b"5"
    assert any("damaged" in note for note in store.notes)


def test_without_a_mark_nothing_is_taken_for_a_torn_tail() -> None:
    disk, wanted = built()
    wal = next(path for path in disk.files() if path.endswith(".wal"))
    disk.cut(wal, entries_end(disk, wal))  # zeros are another matter: test_wal.py
    disk.zero(wal, 64, 84)
    assert outcome(disk.copy(), wanted, "the mark alone"), "every entry is whole, so nothing is in doubt"
    disk.flip_bit(wal, 8 * (len(disk.content(wal)) - 1))
    with pytest.raises(StorageFault, match="damaged"):
        open_store(disk)


def test_a_fault_in_a_file_that_was_followed_by_another_is_damage() -> None:
    """Its mark may be one sync old, but the next file's being there proves that it was durable to its end."""
    runtime = Runtime()
    runtime.open()
    for number in range(4):
        runtime.do(o.Increment(b"count", number))
    runtime.store.wal.request_roll(0)
    runtime.store.wal.sync()
    runtime.do(o.Increment(b"count"))
    disk = lost(runtime.disk)
    first, second = (path for path in disk.files() if path.endswith(".wal"))
    disk.flip_bit(first, 8 * (len(disk.content(first)) - 1))
    store = open_store(disk)
    assert second
    assert store.sequence == 5
    assert "mutation 4: key 'count' is in doubt" in store.damages[0]


def test_what_lies_behind_a_torn_entry_never_comes_back() -> None:
    """Entries of one size: a new one in the place of the torn one leads to the bytes that lay behind it."""
    runtime = Runtime()
    runtime.open()
    runtime.do(o.Increment(b"count"))
    start = len(runtime.disk.content("/data/kv/00000000000000000001.wal"))
    for _ in range(3):
        runtime.do(o.Increment(b"count"), sync=False)
    disk = runtime.disk.after_kill()
    disk.zero("/data/kv/00000000000000000001.wal", start, start + 36)
    store = open_store(disk)
    assert store.sequence == 1
    store.execute(o.Increment(b"count"), runtime.clock.now_ms())
    store.wal.sync()
    again = open_store(disk.after_kill())
    assert (again.sequence, again.execute(o.Get(b"count"), 0)) == (2, b"2")
