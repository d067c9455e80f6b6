"""What a closed partition says without being opened, and when it is not believed."""

import errno
from collections.abc import Callable

import pytest
from tests.storage.building import FOLDER, IDENTITY, NOW, batch, make_partition, open_partition, small

from braidlog.model.errors import StorageFault
from braidlog.storage.files import join
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.open_files import FilePool
from braidlog.storage.recovery.clean_shutdown import ClosedPartition, read_closed
from braidlog.storage.segment.segment_files import log_name
from braidlog.storage.state.leader_epoch_file import EpochStart
from braidlog.testing.disk import SimulatedDisk


def told(disk: SimulatedDisk) -> ClosedPartition | None:
    return read_closed(disk, FOLDER, IDENTITY)


@pytest.fixture
def disk() -> SimulatedDisk:
    """A partition of two segments that was closed cleanly."""
    disk = SimulatedDisk()
    partition = make_partition(disk, small())
    partition.append(batch(b"a"), leader_epoch=3, now_ms=NOW)
    partition.roll(NOW)
    partition.append(batch(b"b"), leader_epoch=4, now_ms=NOW)
    partition.close()
    assert told(disk) == partition.closed_summary()
    return disk


def refuse_writes(disk: SimulatedDisk) -> None:
    now = len(disk.operations)
    disk.fail_at = dict.fromkeys(range(now + 1, now + 1000), errno.ENOSPC)


def test_a_full_disk_can_be_read(disk: SimulatedDisk) -> None:
    before = told(disk)
    refuse_writes(disk)
    partition = open_partition(disk)
    assert partition.read(0, 1)
    with pytest.raises(StorageFault, match="No space left"):
        partition.append(batch(b"c"), now_ms=NOW, leader_epoch=4)
    partition.close()
    disk.fail_at = {}
    assert told(disk) in (before, None)  # the append that was refused may have torn one of the two checkpoints
    assert open_partition(disk).end_offset == 2


def test_after_a_full_disk_the_first_write_ends_the_rest(disk: SimulatedDisk) -> None:
    refuse_writes(disk)
    partition = open_partition(disk)
    disk.fail_at = {}
    partition.append(batch(b"c"), now_ms=NOW, leader_epoch=4)
    for _, crashed in disk.crash_states():
        again = open_partition(crashed)
        assert not again.report.clean_stop
    partition.sync()
    assert told(disk) is None
    assert open_partition(disk).end_offset == 3


def test_what_was_no_clean_stop_is_not_read_from_a_full_disk() -> None:
    disk = SimulatedDisk()
    partition = make_partition(disk)
    partition.append(batch(b"a"), now_ms=NOW)
    partition.sync()
    refuse_writes(disk)
    with pytest.raises(StorageFault, match="No space left"):
        open_partition(disk)


def grow(disk: SimulatedDisk, name: str) -> None:
    file = disk.open(join(FOLDER, name), writable=True)
    file.write_at(bytes(8), file.size())


def cut(disk: SimulatedDisk, name: str) -> None:
    file = disk.open(join(FOLDER, name), writable=True)
    file.truncate(file.size() - 1)


def flip(disk: SimulatedDisk, name: str, position: int) -> None:
    file = disk.open(join(FOLDER, name), writable=True)
    file.write_at(bytes([file.read_at(1, position)[0] ^ 1]), position)


FIRST, LAST = log_name(0), log_name(1)
CHANGES: dict[str, Callable[[SimulatedDisk], object]] = {
    "the last segment grew": lambda disk: grow(disk, LAST),
    "the first segment grew": lambda disk: grow(disk, FIRST),
    "a segment was cut": lambda disk: cut(disk, FIRST),
    "a segment is missing": lambda disk: disk.remove(join(FOLDER, FIRST)),
    "there is one more": lambda disk: disk.create(join(FOLDER, log_name(2))),
    "a rewrite waits": lambda disk: disk.create(join(FOLDER, FIRST + ".swap")),
    "the head is another's": lambda disk: flip(disk, LAST, 20),
    "the mark is another": lambda disk: flip(disk, LAST, 70),
    "one checkpoint is damaged": lambda disk: flip(disk, "state.a", 30),
    "the other is damaged": lambda disk: flip(disk, "state.b", 30),
    "one checkpoint is missing": lambda disk: disk.remove(join(FOLDER, "state.a")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_as_it_was_left_has_to_be_opened(disk: SimulatedDisk, change: str) -> None:
    CHANGES[change](disk)
    assert told(disk) is None


def test_while_it_is_open_nothing_is_told(disk: SimulatedDisk) -> None:
    """A crash right after the opening leaves what has to be opened again."""
    partition = open_partition(disk)
    assert told(disk) is None
    partition.append(batch(b"c"), now_ms=NOW, leader_epoch=4)
    for _, crashed in disk.crash_states():
        assert told(crashed) is None


def test_it_says_what_the_open_log_says(disk: SimulatedDisk) -> None:
    rest = told(disk)
    partition = open_partition(disk)
    assert rest is not None
    assert (rest.start_offset, rest.end_offset) == (partition.start_offset, partition.end_offset)
    for epoch in range(-1, 6):
        assert rest.end_offset_for_epoch(epoch) == partition.end_offset_for_epoch(epoch)


def test_it_knows_of_epochs_that_were_begun_since(disk: SimulatedDisk) -> None:
    begun = EpochStart(IDENTITY.topic_id, IDENTITY.partition, 1, [(3, 0), (4, 1), (7, 2)])
    rest = read_closed(disk, FOLDER, IDENTITY, begun)
    assert rest is not None
    assert rest.epochs[-1] == (7, 2)
    partition = PartitionLog(disk, FOLDER, IDENTITY, small(), FilePool(disk), begun=begun)
    for epoch in range(-1, 9):
        assert rest.end_offset_for_epoch(epoch) == partition.end_offset_for_epoch(epoch)
