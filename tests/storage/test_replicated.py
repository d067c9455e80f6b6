"""A log that is one replica of several: what it is told is committed, and how it follows a leader whose log is another."""

import itertools
from typing import Any

import pytest
from tests.storage.building import FOLDER, NOW, batch, make_partition, marker, open_partition, small
from tests.storage.compaction.test_compaction import Setting, rows

from braidlog.codec.batch.header import empty_batch, iter_batches, read_header
from braidlog.codec.batch.records import select_batch
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.storage.compaction.retention import retain
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.segment.segment_files import DATA_START
from braidlog.testing.disk import Crash, SimulatedDisk


def replica(disk: SimulatedDisk, watermark: int = 0, **settings: object) -> PartitionLog:
    partition = make_partition(disk, small(**settings))
    partition.replicate()
    partition.keep_watermark(watermark)
    return partition


def leaders(base: int, *values: bytes, epoch: int = 1, **fields: Any) -> bytes:
    return batch(*values, base_offset=base, leader_epoch=epoch, **fields)


def follow(partition: PartitionLog, *batches: bytes) -> None:
    for each in batches:
        partition.append_replicated(each, now_ms=NOW)


# -- the watermark -----------------------------------------------------------------------------------------------


def test_an_opening_takes_nothing_for_committed_that_it_was_not_told() -> None:
    disk = SimulatedDisk()
    partition = replica(disk)
    follow(partition, leaders(0, b"a", b"b"), leaders(2, b"c"))
    partition.sync()
    assert open_partition(disk.after_kill()).replicate() == 0
    partition.keep_watermark(2)
    assert partition.watermark == 2
    partition.close()
    again = open_partition(disk)
    assert (again.replicate(), again.watermark, again.end_offset) == (2, 2, 3)


def test_a_log_without_other_replicas_commits_what_is_durable() -> None:
    disk = SimulatedDisk()
    partition = make_partition(disk)
    partition.append(batch(b"a"), now_ms=NOW)
    assert partition.watermark == 0
    partition.sync()
    assert partition.watermark == 1
    assert open_partition(disk.after_kill()).watermark == 1
    assert partition.replicate() == 1, "what was committed stays so when others follow"
    assert open_partition(disk.after_kill()).replicate() <= 1
    partition.append(batch(b"b"), now_ms=NOW)
    partition.sync()
    assert partition.watermark == 1
    partition.become_sole_replica()
    assert partition.watermark == 2


def test_the_watermark_never_goes_back_and_never_passes_the_end() -> None:
    partition = replica(SimulatedDisk())
    follow(partition, leaders(0, b"a", b"b"))
    for told, kept in ((1, 1), (0, 1), (9, 2)):
        partition.keep_watermark(told)
        assert partition.watermark == kept


def test_keeping_the_watermark_asks_nothing_of_the_disk() -> None:
    disk = SimulatedDisk()
    partition = replica(disk)
    follow(partition, leaders(0, b"a"))
    before = len(disk.operations)
    partition.keep_watermark(1)
    assert len(disk.operations) == before


def test_without_a_checkpoint_nothing_is_known_to_be_committed() -> None:
    disk = SimulatedDisk()
    partition = replica(disk, watermark=0)
    follow(partition, leaders(0, b"a", b"b"))
    partition.keep_watermark(2)
    partition.close()
    for slot in ("state.a", "state.b"):
        disk.cut(f"{FOLDER}/{slot}", 10)
    assert open_partition(disk).replicate() == 0


def test_a_truncation_below_the_watermark_takes_it_along() -> None:
    """Replication asks for it after an unclean election only, and says so."""
    disk = SimulatedDisk()
    partition = replica(disk)
    follow(partition, leaders(0, b"a"), leaders(1, b"b"), leaders(2, b"c"))
    partition.keep_watermark(3)
    assert partition.truncate(1) == 1
    assert partition.watermark == 1
    follow(partition, leaders(1, b"x", epoch=2), leaders(2, b"y", epoch=2))
    assert open_partition(disk.after_kill()).replicate() == 1


def test_ends_of_transactions_are_remembered_until_they_are_committed() -> None:
    disk = SimulatedDisk()
    partition = replica(disk)
    sent: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    follow(partition, leaders(0, b"a", base_sequence=0, **sent))
    partition.append_marker(marker(7, commit=True), leader_epoch=1, now_ms=NOW)
    assert (partition.stable_below(1), partition.stable_below(2)) == (0, 2)
    partition.sync()
    again = open_partition(disk.after_kill())
    again.replicate()
    assert again.stable_below(1) == 0, "an opening knows it, too"
    partition.keep_watermark(2)
    follow(partition, leaders(2, b"b", base_sequence=1, **sent))
    assert partition.image().ended_transactions == []


# -- beginning anew ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [90, 4, 0])
def test_a_log_begins_anew_where_its_leaders_does(offset: int) -> None:
    disk = SimulatedDisk()
    partition = replica(disk)
    sent: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    follow(partition, *(leaders(n, bytes(1500), base_sequence=n, **sent) for n in range(6)))
    partition.restart_at(offset, now_ms=NOW)
    for each in (partition, open_partition(disk.after_kill())):
        assert (each.start_offset, each.end_offset, each.durable_offset, each.replicate()) == (offset,) * 4
        assert (each.image().epochs, each.image().producers, len(each.segments)) == ([], [], 1)
    follow(partition, leaders(offset, b"a", epoch=3))
    partition.sync()
    again = open_partition(disk.after_kill())
    assert (again.end_offset, again.image().epochs) == (offset + 1, [(3, offset)])


def test_a_log_that_is_being_begun_anew_can_be_looked_at() -> None:
    for number in itertools.count(1):
        disk = SimulatedDisk()
        partition = replica(disk)
        follow(partition, leaders(0, bytes(3000)), leaders(1, bytes(3000)))
        partition.sync()
        disk.stop_at = len(disk.operations) + number
        try:
            partition.restart_at(50, now_ms=NOW)
        except Crash:
            killed = disk.after_kill()
            looked = open_partition(killed, read_only=True)
            opened = open_partition(killed)
            assert looked.damages == opened.damages == []
            assert (looked.start_offset, looked.end_offset) == (opened.start_offset, opened.end_offset)
            assert looked.read(looked.start_offset, 9999) == opened.read(opened.start_offset, 9999)
        else:
            break
    assert number > 10


def test_a_damaged_log_is_given_up_whole_and_takes_records_again() -> None:
    disk = SimulatedDisk()
    partition = replica(disk)
    follow(partition, leaders(0, bytes(300)), leaders(1, bytes(300)))
    partition.sync()
    disk.flip_bit(partition.segments[0].path, (partition.segments[0].size - 9) * 8)
    with pytest.raises(StorageFault):
        partition.check_again(1)
    with pytest.raises(StorageFault):
        partition.restart_at(0, now_ms=NOW)
    partition.restart_at(0, now_ms=NOW, sets_aside=True)
    follow(partition, leaders(0, b"a", epoch=2))
    partition.sync()
    for each in (partition, open_partition(disk.after_kill())):
        assert (each.start_offset, each.end_offset, each.damages) == (0, 1, [])


def damaged_copy(disk: SimulatedDisk) -> tuple[PartitionLog, set[bytes]]:
    """A log of two segments, one of them damaged; and what is in its files."""
    partition = replica(disk)
    follow(partition, leaders(0, bytes(3000)), leaders(1, bytes(3000)))
    partition.sync()
    files = [segment.path for segment in partition.segments]
    disk.flip_bit(files[0], 500 * 8)
    with pytest.raises(StorageFault):
        partition.check_again(0)
    return partition, {records(disk, path) for path in files}


def records(disk: SimulatedDisk, path: str) -> bytes:
    """All of a segment but its head, where the mark of the last sync may not be durable."""
    return disk.content(path)[DATA_START:]


def kept(disk: SimulatedDisk) -> set[bytes]:
    return {records(disk, path) for path in disk.files() if path.endswith(".damaged")}


def test_of_damaged_copies_that_are_given_up_the_last_is_kept() -> None:
    disk = SimulatedDisk()
    partition, before = damaged_copy(disk)
    assert len(before) == 2
    partition.restart_at(0, now_ms=NOW, sets_aside=True)
    assert kept(disk) == before
    follow(partition, leaders(0, b"other"))
    partition.sync()
    (segment,) = partition.segments
    second = records(disk, segment.path)
    partition.restart_at(0, now_ms=NOW + 1, sets_aside=True)
    assert kept(disk) == {second}
    assert disk.content(f"{FOLDER}/{0:020d}.log.{NOW + 1}.damaged")
    partition.restart_at(7, now_ms=NOW + 2)
    assert kept(disk) == {second}, "a whole copy that is given up takes nothing with it, and is not kept"


def test_no_crash_loses_a_damaged_copy_that_is_being_set_aside() -> None:
    states = 0
    for number in itertools.count(1):
        disk = SimulatedDisk()
        partition, before = damaged_copy(disk)
        disk.stop_at = len(disk.operations) + number
        try:
            partition.restart_at(0, now_ms=NOW, sets_aside=True)
        except Crash:
            for label, left in disk.crash_states():
                states += 1
                open_partition(left)
                found = {records(left, path) for path in left.files()}
                assert before <= found, f"{label}, operation {number}"
                assert kept(left) in (before, set())
        else:
            break
    assert states > 50


def test_a_log_begins_with_the_batch_that_holds_its_start() -> None:
    disk = SimulatedDisk()
    partition = replica(disk)
    follow(partition, leaders(0, b"old"))
    partition.restart_at(12, now_ms=NOW)
    follow(partition, leaders(10, b"10", b"11", b"12", b"13", epoch=2), leaders(14, b"14", epoch=3))
    partition.sync()
    for each in (partition, open_partition(disk.after_kill())):
        assert (each.start_offset, each.end_offset, each.replicate()) == (12, 15, 12)
        assert [header.base_offset for _, header in iter_batches(each.read(12, 9999))] == [10, 14]
        assert each.image().epochs == [(2, 10), (3, 14)]


# -- batches and epochs ------------------------------------------------------------------------------------------


def test_an_empty_batch_across_our_end_is_cut_to_it() -> None:
    """The leader has compacted while we were away: where it has one empty batch, we have records."""
    disk = SimulatedDisk()
    partition = replica(disk)
    follow(partition, leaders(0, b"a", b"b", b"c"))
    follow(partition, empty_batch(1, 8, 1, NOW) + leaders(8, b"i"))
    partition.sync()
    for each in (partition, open_partition(disk.after_kill())):
        assert [(h.base_offset, h.next_offset) for _, h in iter_batches(each.read(0, 9999))] == [(0, 3), (3, 8), (8, 9)]


def test_a_batch_with_records_on_both_sides_of_our_end_is_refused() -> None:
    partition = replica(SimulatedDisk())
    follow(partition, leaders(0, b"a", b"b", b"c"))
    sent = leaders(2, b"x", b"y", producer_id=3, producer_epoch=0, base_sequence=0)
    emptied = select_batch(sent, 0, read_header(sent), [False, False], decompressed_bytes_max=99)
    for wrong in (leaders(2, b"x", b"y"), emptied, empty_batch(5, 8, 1, NOW), empty_batch(0, 3, 1, NOW)):
        with pytest.raises(BrokerError) as caught:
            partition.append_replicated(wrong, now_ms=NOW)
        assert caught.value.reason is Reason.OFFSET_OUT_OF_RANGE
    assert partition.end_offset == 3


def test_truncation_at_the_end_forgets_epochs_that_wrote_nothing() -> None:
    disk = SimulatedDisk()
    partition = replica(disk)
    follow(partition, leaders(0, b"a", epoch=1))
    partition.begin_epoch(4)
    assert partition.truncate(1) == 1
    for each in (partition, open_partition(disk.after_kill())):
        assert each.image().epochs == [(1, 0)]
        follow(each, leaders(1, b"b", epoch=3))


def test_producers_are_those_of_the_records_that_are_left() -> None:
    partition = replica(SimulatedDisk())
    sent: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    follow(partition, leaders(0, b"a", base_sequence=0, **sent), leaders(1, b"b", base_sequence=1, **sent))
    partition.truncate(1)
    assert [each.batches[-1].last_sequence for each in partition.image().producers] == [0]
    again = batch(b"b", base_sequence=1, **sent)
    assert partition.append(again, leader_epoch=2, now_ms=NOW) == (1, 1, False), "it is not in the log, so not a retry"


# -- what may go -------------------------------------------------------------------------------------------------


def test_compaction_stays_below_the_watermark() -> None:
    """What is above may be truncated: its keys must still have the values that they had before."""
    log = Setting(compact=True)
    log.partition.replicate()
    for value in (b"1", b"2", b"3"):
        log.put((b"k", value))
    log.partition.keep_watermark(2)
    log.compact()
    log.partition.truncate(2)
    assert rows(log.partition) == [(1, b"k", b"2")]


def test_a_tombstone_stays_until_every_replica_has_it() -> None:
    log = Setting(compact=True, delete_retention_ms=0)
    log.partition.replicate()
    for value in (b"1", None, b"other"):
        log.put((b"k" if value != b"other" else b"o", value))
    for common_end, left in ((0, [1, 2]), (1, [1, 2]), (2, [2])):
        log.partition.keep_watermark(3, common_end=common_end)
        log.put((b"p", b"%d" % common_end))
        log.partition.keep_watermark(99, common_end=common_end)
        log.compact(now=NOW + 10)
        log.compact(now=NOW + 10)
        assert [offset for offset, key, _ in rows(log.partition) if key != b"p"] == left


def test_retention_stays_below_the_watermark() -> None:
    partition = replica(SimulatedDisk(), retention_bytes=0)
    follow(partition, *(leaders(n, bytes(3000)) for n in range(5)))
    partition.keep_watermark(2)
    assert retain(partition, NOW) == 2
    partition.keep_watermark(5)
    assert retain(partition, NOW) == 4
