"""Zeros behind the last entry of the keys' log: when they are written, who never sees them, and what they are not taken for."""

import errno
from collections.abc import Callable

import pytest
from tests.kv.crashing import NODE, Runtime, lost, new_disk, open_store, see

from braidlog.kv.engine import operations as o
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.wal.wal import DATA_START, MARK_AT, unpack_mark
from braidlog.kv.wal.wal_entries import ENTRY_BYTES_MIN, is_entry
from braidlog.model.errors import StorageFault
from braidlog.model.settings import Flush
from braidlog.storage.segment.preallocation import SYNC_BYTES_MAX, SYNCS_MIN
from braidlog.testing.disk import SimulatedDisk
from braidlog.tools.keyvalue.remains import Remains

FOLDER = "/data/kv"
WAL = f"{FOLDER}/00000000000000000001.wal"


def acknowledge(runtime: Runtime, count: int = 1) -> None:
    for _ in range(count):
        runtime.do(o.Increment(b"count"))


def with_reserve() -> Runtime:
    runtime = Runtime()
    runtime.open()
    acknowledge(runtime, SYNCS_MIN + 2)
    assert len(runtime.disk.content(WAL)) > runtime.store.wal.size_bytes
    return runtime


def killed(runtime: Runtime) -> SimulatedDisk:
    return runtime.disk.after_kill()


def test_zeros_are_no_entry() -> None:
    assert not any(is_entry(bytes(size), 0) for size in range(ENTRY_BYTES_MIN, 4 * ENTRY_BYTES_MIN))


def test_entries_over_zeros_do_not_change_the_length_of_the_file() -> None:
    runtime = with_reserve()
    size, used = len(runtime.disk.content(WAL)), runtime.store.wal.size_bytes
    acknowledge(runtime, 3)
    assert runtime.store.wal.size_bytes > used, "it counts entries, not zeros"
    assert len(runtime.disk.content(WAL)) == size
    assert not any(runtime.disk.content(WAL)[runtime.store.wal.size_bytes :])


def test_the_write_that_goes_over_their_end_leaves_new_ones_as_long_as_the_file() -> None:
    runtime = with_reserve()
    for length in (10_000, 3_000, 20_000):
        held = runtime.store.wal.size_bytes
        runtime.do(o.Set(b"key", b"v" * length))
        reserve = len(runtime.disk.content(WAL)) - runtime.store.wal.size_bytes
        assert held <= reserve <= held + 4096
        assert len(runtime.disk.content(WAL)) % 4096 == 0
    for _ in range(2):  # the zeros of the first were decided on before it
        for _ in range(4):
            runtime.store.execute(o.Set(b"key", b"v" * (SYNC_BYTES_MAX // 2)), runtime.clock.now_ms())
        runtime.finish(sync=True)
    assert len(runtime.disk.content(WAL)) == runtime.store.wal.size_bytes, "large syncs wait for their own bytes"


def test_a_sync_that_writes_zeros_counts_them() -> None:
    """Whoever may choose does it beside the loop, as any other large one."""
    runtime = with_reserve()
    wal = runtime.store.wal
    entry_bytes = len(runtime.disk.content(WAL).rstrip(b"\0")) - DATA_START
    runtime.store.execute(o.Increment(b"count"), runtime.clock.now_ms())
    assert wal.unsynced_bytes < entry_bytes, "over zeros that are there"
    runtime.store.execute(o.Set(b"key", b"v" * 5000), runtime.clock.now_ms())
    assert wal.unsynced_bytes >= 5000 + entry_bytes


@pytest.mark.parametrize("flush", [Flush.INTERVAL, Flush.OS])
def test_a_log_that_nobody_waits_for_has_none(flush: Flush) -> None:
    runtime = Runtime(KeyValueSettings(flush=flush))
    runtime.open()
    acknowledge(runtime, 2 * SYNCS_MIN)
    assert len(runtime.disk.content(WAL)) == runtime.store.wal.size_bytes


def close(runtime: Runtime) -> None:
    runtime.close()


def roll(runtime: Runtime) -> None:
    runtime.store.wal.sync(upto=runtime.store.wal.request_roll(0))


def hold_still(runtime: Runtime) -> None:
    with runtime.store.wal.held_still():
        assert len(runtime.disk.content(WAL)) == runtime.store.wal.size_bytes


@pytest.mark.parametrize("what", [close, roll, hold_still], ids=lambda what: what.__name__)
def test_it_is_given_back(what: Callable[[Runtime], None]) -> None:
    runtime = with_reserve()
    size = runtime.store.wal.size_bytes
    what(runtime)
    assert len(runtime.disk.content(WAL)) == size


@pytest.mark.parametrize("what", [close, roll], ids=lambda what: what.__name__)
def test_that_it_was_given_back_is_durable(what: Callable[[Runtime], None]) -> None:
    runtime = with_reserve()
    size = runtime.store.wal.size_bytes
    what(runtime)
    assert len(lost(runtime.disk).content(WAL)) == size


def test_what_is_written_after_a_back_up_was_begun_is_not_within_the_length_of_then() -> None:
    runtime = with_reserve()
    with runtime.store.wal.held_still():
        before = runtime.disk.content(WAL)
    acknowledge(runtime)
    assert runtime.disk.content(WAL)[DATA_START : len(before)] == before[DATA_START:]
    assert len(runtime.disk.content(WAL)) > runtime.store.wal.size_bytes, "and zeros are back"


def test_a_killed_process_leaves_zeros_that_are_nothing() -> None:
    """Neither damage nor a torn tail: the next opening cuts them off without a word."""
    runtime = with_reserve()
    disk, wanted, size = killed(runtime), see(runtime.store), runtime.store.wal.size_bytes
    assert Remains(disk, FOLDER, NODE).findings == []
    store = open_store(disk)
    assert (see(store), store.notes, len(disk.content(WAL))) == (wanted, [], size)


def test_zeros_below_the_mark_are_damage() -> None:
    """The same bytes as a reserve has, but there a mutation was that somebody was told of."""
    runtime = with_reserve()
    disk = killed(runtime)
    mark = unpack_mark(disk.content(WAL))
    assert mark is not None
    assert mark.position == runtime.store.wal.size_bytes
    disk.zero(WAL, mark.position - 42 + 4, len(disk.content(WAL)))  # the last entry, but for its checksum
    (damage,) = open_store(disk).damages
    assert "all keys not set since are in doubt" in damage
    assert any(finding.mutations_lost for finding in Remains(disk, FOLDER, NODE).findings)


def test_without_a_mark_zeros_are_in_doubt() -> None:
    """A sync that a lying disk lost, over zeros, leaves the same bytes."""
    disk = killed(with_reserve())
    disk.zero(WAL, MARK_AT, MARK_AT + 20)
    with pytest.raises(StorageFault, match="damaged"):
        open_store(disk)


def test_a_torn_entry_before_zeros_is_cut_off_and_told_without_them() -> None:
    runtime = with_reserve()
    wanted, size = see(runtime.store), runtime.store.wal.size_bytes
    runtime.do(o.Increment(b"count"), sync=False)
    entry_bytes = runtime.store.wal.size_bytes - size
    for kept in range(1, entry_bytes):
        disk = killed(runtime)
        disk.zero(WAL, size + kept, len(disk.content(WAL)))
        torn = len(disk.content(WAL)[size:].rstrip(b"\0"))
        if kept >= entry_bytes - 4:  # what is missing are zeros, too: it is whole
            assert open_store(disk).sequence == runtime.store.sequence
            continue
        store = open_store(disk)
        assert (see(store), len(disk.content(WAL))) == (wanted, size)
        assert [f"a torn tail of {torn} bytes" in note for note in store.notes] == [True]


def test_an_entry_torn_at_the_end_of_the_zeros() -> None:
    """What lay over zeros is there, what made the file longer is not; and the other way round."""
    runtime = with_reserve()
    wanted, size, end = see(runtime.store), runtime.store.wal.size_bytes, len(runtime.disk.content(WAL))
    runtime.do(o.Set(b"key", b"v" * (end - size + 700)), sync=False)
    first, second = killed(runtime), killed(runtime)
    first.cut(WAL, end)
    second.zero(WAL, size, end)
    for disk in (first, second):
        store = open_store(disk)
        assert (see(store), len(store.notes), len(disk.content(WAL))) == (wanted, 1, size)


def test_a_later_entry_without_the_one_before_it_never_comes_back() -> None:
    """Blocks reach the disk in any order: zeros, and a whole entry behind them that nobody was told of."""
    runtime = with_reserve()
    sequence, size = runtime.store.sequence, runtime.store.wal.size_bytes
    for _ in range(3):
        runtime.do(o.Increment(b"count"), sync=False)
    disk = killed(runtime)
    disk.zero(WAL, size, size + (runtime.store.wal.size_bytes - size) // 3)
    store = open_store(disk)
    assert store.sequence == sequence
    store.execute(o.Increment(b"count"), runtime.clock.now_ms())
    store.wal.sync()
    assert open_store(disk.after_kill()).sequence == sequence + 1


def about_to_reserve() -> Runtime:
    runtime = Runtime(disk=new_disk())
    runtime.open()
    acknowledge(runtime, SYNCS_MIN)
    return runtime


def test_a_full_disk_has_no_zeros_and_takes_the_mutation() -> None:
    runtime = about_to_reserve()
    runtime.disk.fail_at = {len(runtime.disk.operations) + 2: errno.ENOSPC}  # the entry, then the zeros
    runtime.disk.short = 100
    acknowledge(runtime)
    assert max(runtime.disk.fail_at) <= len(runtime.disk.operations)
    assert len(runtime.disk.content(WAL)) == runtime.store.wal.size_bytes
    assert open_store(lost(runtime.disk)).sequence == SYNCS_MIN + 1


def test_zeros_that_the_disk_cannot_write_stop_the_store() -> None:
    runtime = about_to_reserve()
    runtime.disk.fail_at = {len(runtime.disk.operations) + 2: errno.EIO}
    with pytest.raises(StorageFault):
        acknowledge(runtime)
    with pytest.raises(StorageFault, match="must be reopened"):
        runtime.store.execute(o.Increment(b"count"), runtime.clock.now_ms())
    runtime.compare(open_store(lost(runtime.disk)))


def test_a_file_whose_zeros_stay_is_not_followed_by_another() -> None:
    """A file system may need room to cut a file. Everything is durable all the same, and the next roll asks again."""
    runtime = with_reserve()
    runtime.disk.fail_at = {len(runtime.disk.operations) + 1: errno.ENOSPC}
    acknowledged = runtime.store.sequence
    roll(runtime)
    assert max(runtime.disk.fail_at) <= len(runtime.disk.operations)
    assert (runtime.store.wal.files, runtime.store.wal.durable_sequence) == (1, acknowledged)
    runtime.compare(open_store(lost(runtime.disk)))
    acknowledge(runtime)
    roll(runtime)
    assert runtime.store.wal.files == 2
    runtime.compare(open_store(lost(runtime.disk)))


def test_half_a_mark_is_put_right() -> None:
    runtime = with_reserve()
    runtime.store.execute(o.Increment(b"count"), runtime.clock.now_ms())
    runtime.disk.fail_at = {len(runtime.disk.operations) + 3: errno.EIO}  # the entry, its sync, the mark
    runtime.disk.short = 9
    with pytest.raises(StorageFault):
        runtime.store.wal.sync()
    assert unpack_mark(runtime.disk.content(WAL)) is not None
    runtime.compare(open_store(killed(runtime)))
