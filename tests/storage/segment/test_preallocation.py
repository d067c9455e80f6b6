"""Zeros ahead of the end: when they are written, who never sees them, and what they are not taken for."""

import errno
from collections.abc import Callable

import pytest
from tests.storage.building import FOLDER, batch, make_partition, open_partition, small

from braidlog.model.errors import StorageFault
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.recovery.damage import ChangeKind
from braidlog.storage.segment.preallocation import RESERVE_BYTES_MAX, SYNC_BYTES_MAX, SYNCS_MIN, SmallSyncs, written_end
from braidlog.storage.segment.segment_files import log_name
from braidlog.testing.disk import SimulatedDisk

LOG = f"{FOLDER}/{log_name(0)}"
VALUE = b"v" * 40


def acknowledge(log: PartitionLog, count: int, value: bytes = VALUE) -> None:
    for _ in range(count):
        log.append(batch(value), now_ms=0)
        log.sync()


def with_reserve(disk: SimulatedDisk) -> PartitionLog:
    log = make_partition(disk)
    acknowledge(log, SYNCS_MIN + 2)
    assert len(disk.content(LOG)) > log.segments[0].size
    return log


def test_small_syncs_in_a_row_get_a_reserve_as_large_as_the_segment() -> None:
    syncs = SmallSyncs()
    assert [syncs.note(100, 5000) for _ in range(SYNCS_MIN)] == [0] * (SYNCS_MIN - 1) + [5000]
    assert syncs.note(SYNC_BYTES_MAX, 10**9) == RESERVE_BYTES_MAX
    assert syncs.note(SYNC_BYTES_MAX + 1, 10**9) == 0
    assert syncs.note(100, 10**9) == 0


def test_an_append_over_zeros_does_not_change_the_length_of_the_file() -> None:
    disk = SimulatedDisk()
    log = with_reserve(disk)
    size = len(disk.content(LOG))
    used = log.segments[0].size
    acknowledge(log, 3)
    assert log.segments[0].size > used
    assert len(disk.content(LOG)) == size
    assert not any(disk.content(LOG)[log.segments[0].size :])


def test_a_log_that_nobody_waits_for_has_none() -> None:
    disk = SimulatedDisk()
    log = make_partition(disk, small(flush="os"))
    acknowledge(log, 2 * SYNCS_MIN)
    assert len(disk.content(LOG)) == log.segments[0].size


def test_sizes_are_those_of_records() -> None:
    disk = SimulatedDisk()
    log = with_reserve(disk)
    assert log.size_bytes == sum(len(batch(VALUE)) for _ in range(log.end_offset))
    assert len(log.read(0, 1 << 20)) == log.size_bytes


def close(log: PartitionLog) -> None:
    log.close()


def roll(log: PartitionLog) -> None:
    log.roll(1)


def let_go(log: PartitionLog) -> None:
    assert log.maybe_close(settled_only=False)


def cut(log: PartitionLog) -> None:
    log.drop_reserve()


def refused(log: PartitionLog) -> None:
    with pytest.raises(StorageFault):
        log.append(batch(VALUE), now_ms=0)


@pytest.mark.parametrize("what", [close, roll, let_go, cut, refused], ids=lambda what: what.__name__)
def test_it_is_given_back(what: Callable[[PartitionLog], None]) -> None:
    disk = SimulatedDisk()
    log = with_reserve(disk)
    size = log.segments[0].size
    if what is refused:
        disk.fail_at = {len(disk.operations) + 1: errno.ENOSPC}
    what(log)
    assert len(disk.content(LOG)) == size


def test_it_comes_back_with_the_next_append() -> None:
    disk = SimulatedDisk()
    log = with_reserve(disk)
    let_go(log)
    acknowledge(log, 1)
    assert len(disk.content(LOG)) > log.segments[0].size


def test_a_killed_process_leaves_zeros_that_are_nothing() -> None:
    """Neither damage nor a torn tail: the next opening cuts them off, and a dry run does not see them."""
    disk = SimulatedDisk()
    end, size = (log := with_reserve(disk)).end_offset, log.segments[0].size
    killed = disk.after_kill()
    looked = open_partition(killed, read_only=True)
    assert (looked.end_offset, looked.segments[0].size, len(killed.content(LOG)) > size) == (end, size, True)
    opened = open_partition(killed)
    for each in (looked, opened):
        assert (each.report.damages, each.report.torn_bytes) == ([], 0)
        assert [change for change in each.report.changes if change.kind is not ChangeKind.DERIVED] == []
    assert (opened.end_offset, len(killed.content(LOG))) == (end, size)


def test_zeros_below_the_mark_are_damage() -> None:
    """The same bytes as a reserve has, but there a record was that somebody was told of."""
    disk = SimulatedDisk()
    log = with_reserve(disk)
    last = log.segments[0].size - len(batch(VALUE))
    killed = disk.after_kill()
    killed.zero(LOG, last, len(killed.content(LOG)))
    opened = open_partition(killed)
    (damage,) = opened.damages
    assert (damage.position, damage.end) == (last, log.segments[0].size)
    assert (damage.first_offset, damage.next_offset) == (log.end_offset - 1, log.end_offset)
    with pytest.raises(StorageFault):
        acknowledge(opened, 1)


def test_a_torn_batch_before_zeros_is_cut_off() -> None:
    disk = SimulatedDisk()
    log = with_reserve(disk)
    end, size = log.end_offset, log.segments[0].size
    log.append(batch(VALUE), now_ms=0)
    killed = disk.after_kill()
    killed.zero(LOG, size + 30, len(killed.content(LOG)))
    opened = open_partition(killed)
    (change,) = [change for change in opened.report.changes if change.kind is ChangeKind.CUT]
    assert (opened.damages, opened.end_offset, change.position) == ([], end, size)
    assert 0 < opened.report.torn_bytes <= 30
    assert len(killed.content(LOG)) == size


def test_a_later_batch_without_the_one_before_it_is_cut_off() -> None:
    """Blocks reach the disk in any order: zeros, and a whole batch behind them that nobody was told of."""
    disk = SimulatedDisk()
    log = with_reserve(disk)
    end, size = log.end_offset, log.segments[0].size
    for _ in range(2):
        log.append(batch(VALUE), now_ms=0)
    killed = disk.after_kill()
    killed.zero(LOG, size, size + len(batch(VALUE)))
    opened = open_partition(killed)
    assert (opened.damages, opened.end_offset) == ([], end)
    acknowledge(opened, 1)
    assert open_partition(disk_of(opened, killed)).end_offset == end + 1


def disk_of(log: PartitionLog, disk: SimulatedDisk) -> SimulatedDisk:
    """As a kill leaves it: the log is not closed."""
    assert not log.is_closed
    return disk.after_kill()


def test_a_full_disk_has_no_zeros_and_takes_the_record() -> None:
    disk = SimulatedDisk()
    log = make_partition(disk)
    acknowledge(log, SYNCS_MIN)
    disk.fail_at = {len(disk.operations) + 2: errno.ENOSPC}  # the append, then the zeros
    log.append(batch(VALUE), now_ms=0)
    assert not disk.fail_at or max(disk.fail_at) <= len(disk.operations)
    assert len(disk.content(LOG)) == log.segments[0].size
    assert log.sync() == SYNCS_MIN + 1


def test_zeros_that_the_disk_cannot_write_refuse_the_append() -> None:
    disk = SimulatedDisk()
    log = make_partition(disk)
    acknowledge(log, SYNCS_MIN)
    size = log.segments[0].size
    disk.fail_at = {len(disk.operations) + 2: errno.EIO}
    refused(log)
    assert len(disk.content(LOG)) == size
    acknowledge(log, 1)
    assert log.end_offset == SYNCS_MIN + 1


def test_where_zeros_begin() -> None:
    disk = SimulatedDisk()
    file = disk.create("/f")
    for data, start, end, found in (
        (b"", 0, 0, 0),
        (b"ab", 0, 2, 2),
        (b"ab\0\0", 0, 4, 2),
        (b"ab\0\0", 3, 4, 3),
        (b"a" + bytes(200_000), 0, 200_001, 1),
        (bytes(200_000), 7, 200_000, 7),
        (bytes(65_536) + b"x" + bytes(65_536), 0, 131_073, 65_537),
    ):
        file.truncate(0)
        file.write_at(data, 0)
        assert written_end(file, start, end) == found
