"""A damaged store, made whole: what was whole is kept, what is lost is told, no file is deleted, wherever it is cut off."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from tests.kv.crashing import NODE, SETTINGS, check_figures, new_disk, open_store, plain
from tests.kv.snapshots import write_snapshot
from tests.kv.wal.test_damage import built
from tests.tools.schemas import check

from braidlog.kv.engine import operations as o
from braidlog.kv.wal.local_store import LocalStore
from braidlog.kv.wal.wal import DATA_START, unpack_mark
from braidlog.kv.wal.wal_entries import walk_entries
from braidlog.model.errors import StorageFault
from braidlog.testing.disk import Operation, SimulatedDisk
from braidlog.tools.findings import Severity
from braidlog.tools.keyvalue.inspect import verify_store
from braidlog.tools.keyvalue.repair import StoreRepair, StoreRepairReport

DATA = "/data"
SEED = 16
STEP = 11
"""Bytes between two that are tried."""
Keys = dict[bytes, tuple[Any, int]]


def opened(disk: SimulatedDisk) -> LocalStore | None:
    """The store as its node opens it; None if it is refused, or not all of it is served."""
    try:
        store = open_store(disk, SETTINGS)
    except StorageFault:
        return None
    return None if store.damages else store


def repaired(disk: SimulatedDisk) -> StoreRepairReport:
    report = StoreRepair(disk, DATA, NODE).run(1_000)
    assert report.verified.sound, report
    return report


def kept(disk: SimulatedDisk) -> Keys:
    store = open_store(disk.after_kill(), SETTINGS)
    check_figures(store)
    return plain(store)


def wal_of(disk: SimulatedDisk) -> str:
    return [path for path in disk.files() if path.endswith(".wal")][-1]


def entries_of(disk: SimulatedDisk, path: str) -> list[tuple[int, int]]:
    """Where each entry of a log file begins and ends."""
    file = disk.open(path, writable=False)
    mark = unpack_mark(disk.content(path))
    assert mark is not None
    ends = [entry.end for entry in walk_entries(file, DATA_START, mark.position, 0)]
    return list(zip([DATA_START, *ends], ends, strict=False))


def test_a_sound_store_is_left_alone() -> None:
    disk, _ = built()
    before = {path: disk.content(path) for path in disk.files()}
    report = verify_store(disk, DATA, NODE)
    check("kv-verify", json.loads(msgspec.json.encode(report)))
    assert (report.sound, report.refused, report.findings, report.next_command) == (True, None, [], None)
    assert not StoreRepair(disk, DATA, NODE).plan().needed
    nothing = repaired(disk)
    check("kv-repair", json.loads(msgspec.json.encode(nothing)))
    assert not nothing.needed
    disk.drop("/data/LOCK")
    assert {path: disk.content(path) for path in disk.files()} == before


def test_verify_says_what_an_opening_says_and_a_repair_keeps_all_but_what_was_hit() -> None:
    """One bit of a byte, in all files: heads, marks, entries, blocks, manifests."""
    disk, wanted = built()
    before, random = dict(wanted[2]), Random(SEED)
    wal = wal_of(disk)
    entries = entries_of(disk, wal)
    without = [_without(disk, wal, entry, entries[-1][1]) for entry in entries]
    refused = lossless = 0
    for path in disk.files():
        for at in range(random.randrange(STEP), len(disk.content(path)), STEP):
            damaged = disk.copy()
            damaged.flip_bit(path, at * 8 + random.randrange(8))
            report = verify_store(damaged, DATA, NODE)
            assert report.sound == (opened(damaged.copy()) is not None), (path, at, report)
            if report.sound:
                continue
            refused += 1
            assert report.findings, (path, at)
            told = repaired(damaged)
            found = kept(damaged)
            if all(finding.severity is not Severity.DAMAGE for finding in told.findings):
                lossless += 1
                assert found == before, (path, at)
            elif path == wal and at < DATA_START:  # without head or mark the zeros behind the last entry are in doubt
                harms = [finding for finding in told.findings if finding.severity is Severity.DAMAGE]
                assert [(harm.position, "zeros" in harm.why) for harm in harms] == [(entries[-1][1], True)]
                assert found == before, (path, at)
            elif path == wal:
                hit = [number for number, (start, end) in enumerate(entries) if start <= at < end]
                assert [found] == [without[number] for number in hit], (path, at, told.findings)
    print(f"{refused} refused, {lossless} of them without loss, seed {SEED}")
    assert refused > 20
    assert lossless > 3


def _without(disk: SimulatedDisk, wal: str, entry: tuple[int, int], entries_end: int) -> Keys:
    """What the store would hold had this entry never been."""
    twin = disk.copy()
    data = twin.content(wal)
    file = twin.create(wal + ".twin")
    file.write_at(data[: entry[0]] + data[entry[1] : entries_end], 0)
    twin.rename(wal + ".twin", wal)
    twin.zero(wal, 64, 84)  # the mark would miss it
    return plain(open_store(twin, SETTINGS))


def test_what_is_lost_is_told_by_key_and_bytes() -> None:
    disk, _ = built()
    wal = wal_of(disk)
    start, end = entries_of(disk, wal)[1]
    disk.flip_bit(wal, 8 * start)
    report = verify_store(disk, DATA, NODE)
    (finding,) = report.findings
    assert (finding.file, finding.position, finding.end) == (wal.rsplit("/", 1)[1], start, end)
    assert (finding.mutations_lost, finding.keys) == (1, ["'key1'"])
    assert report.next_command == "braid kv repair --dry-run /data"


def test_a_lost_file() -> None:
    disk, wanted = built()
    before = dict(wanted[2])
    for path in [path for path in disk.files() if not path.endswith((".a", ".b"))]:
        damaged = disk.copy()
        damaged.drop(path)
        report = verify_store(damaged, DATA, NODE)
        assert not report.sound
        assert any(finding.severity is Severity.DAMAGE for finding in report.findings)
        repaired(damaged)
        found = kept(damaged)
        if path.endswith(".wal"):
            assert set(found) == set(before) | {b"key1"}, "all that the snapshot has"
        else:
            assert not set(found) - set(before)


def test_the_manifests_are_made_again() -> None:
    disk, wanted = built()
    for name in ("store.a", "store.b"):
        disk.drop(f"/data/kv/{name}")
    report = repaired(disk)
    assert [finding.severity for finding in report.findings] == [Severity.FAULT]
    assert kept(disk) == dict(wanted[2])


def test_blocks_behind_a_damaged_one_are_read() -> None:
    disk = new_disk()
    store = open_store(disk)
    for number in range(2_000):
        store.execute(o.Set(b"key%04d" % number, b"%d" % (number % 7) * 400), 1_000)
    write_snapshot(store, 1_000)
    store.close()
    path = next(path for path in disk.files() if path.endswith(".snapshot"))
    before = plain(store)
    for at in (64, 68, 1000):  # the length, the checksum, a value
        damaged = disk.copy()
        damaged.flip_bit(path, 8 * at)
        (finding,) = verify_store(damaged, DATA, NODE).findings
        assert finding.position == 64
        assert "'key0000'" in finding.keys
        repaired(damaged)
        found = kept(damaged)
        assert 1_000 < len(found) < 1_500
        assert all(held == before[key] for key, held in found.items())


def test_a_mutation_that_leans_on_a_lost_one_is_left_out() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.execute(o.Push(b"list", o.End.LEFT, (b"only",)), 0)
    store.execute(o.Set(b"a", b"1"), 0)
    store.execute(o.Pop(b"list", o.End.LEFT), 0)
    store.execute(o.Set(b"b", b"2"), 0)
    store.close()
    disk.flip_bit(wal_of(disk), 8 * (entries_of(disk, wal_of(disk))[0][0] + 20))
    lost, leaning = repaired(disk).findings
    assert (lost.keys, leaning.keys) == (["'list'"], ["'list'"])
    assert kept(disk) == {b"a": (b"1", 0), b"b": (b"2", 0)}


def test_nothing_is_deleted() -> None:
    disk, _ = built()
    disk.flip_bit(wal_of(disk), 8 * (DATA_START + 5))
    before = {path: disk.content(path) for path in disk.files() if not path.endswith((".a", ".b"))}
    report = repaired(disk)
    for path, content in before.items():
        assert disk.content(f"{report.quarantine}/{path.rsplit('/', 1)[1]}") == content
    assert "mutations_lost" in disk.content(f"{report.quarantine}/report.json").decode()


def test_numbers_of_lost_mutations_are_not_given_out_again() -> None:
    """The change feed may have told of them, and refuses a store that ends before it."""
    disk, wanted = built()
    disk.drop(wal_of(disk))
    repaired(disk)
    store = open_store(disk.after_kill(), SETTINGS)
    assert store.sequence > wanted[0] + 2**31
    assert store.snapshot is not None
    assert store.snapshot.sequence == store.sequence, "so that the feed tells every key anew"
    assert store.clock.stamp > wanted[1]


def flip_entry(disk: SimulatedDisk) -> None:
    disk.flip_bit(wal_of(disk), 8 * (DATA_START + 5))


def flip_block(disk: SimulatedDisk) -> None:
    disk.flip_bit(next(path for path in disk.files() if path.endswith(".snapshot")), 8 * 90)


def lose_manifests(disk: SimulatedDisk) -> None:
    for name in ("store.a", "store.b"):
        disk.drop(f"/data/kv/{name}")


def lose_last_log(disk: SimulatedDisk) -> None:
    disk.drop(wal_of(disk))


@pytest.mark.parametrize(
    "harm", [flip_entry, flip_block, lose_manifests, lose_last_log], ids=lambda harm: harm.__name__
)
def test_a_repair_that_is_cut_off_anywhere_is_run_again(harm: Callable[[SimulatedDisk], None]) -> None:
    damaged, _ = built()
    harm(damaged)
    whole = damaged.copy()
    repaired(whole)
    wanted = kept(whole)
    disk, states = damaged.copy(), 0
    seen: set[int] = set()

    def before(operation: Operation) -> None:
        nonlocal states
        for label, state in disk.crash_states(seen=seen, prefixes_max=1):
            states += 1
            where = f"{operation.number} {operation.kind} {operation.path}, {label}"
            store = opened(state.copy())
            assert store is None or plain(store) == wanted, where
            repaired(state)
            assert kept(state) == wanted, where
            files = {path.rsplit("/", 1)[1] for path in state.files()}
            assert {path.rsplit("/", 1)[1] for path in damaged.files()} <= files | {"store.a", "store.b"}, where

    disk.on_operation = before
    repaired(disk)
    print(f"{states} crash states")
    assert states > 20


def test_the_store_of_another_node_is_not_touched() -> None:
    disk, _ = built()
    with pytest.raises(StorageFault, match="belongs to node"):
        verify_store(disk, DATA, bytes(16))
