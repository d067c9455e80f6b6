"""Old records go by age and by size, whole segments from the front."""

import pytest
from tests.storage.building import NOW, batch, make_partition, open_partition, small

from braidlog.model.settings import TopicSettings
from braidlog.storage.compaction.retention import retain
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.testing.disk import SimulatedDisk


def filled(disk: SimulatedDisk, settings: TopicSettings) -> PartitionLog:
    """Four segments of one batch each, one second apart, the last one active."""
    partition = make_partition(disk, settings)
    for number in range(4):
        if number:
            partition.roll(NOW + 1000 * number)
        partition.append(batch(bytes(1000), at=NOW + 1000 * number), now_ms=NOW + 1000 * number)
    return partition


def test_without_a_limit_nothing_goes() -> None:
    assert retain(filled(SimulatedDisk(), small()), NOW + 10**12) == 0


def test_by_age_and_the_idle_active_segment_goes_too() -> None:
    disk = SimulatedDisk()
    partition = filled(disk, small(retention_ms=500))
    assert retain(partition, NOW + 500) == 0
    assert retain(partition, NOW + 501) == 1
    assert retain(partition, NOW + 2501) == 3
    assert retain(partition, NOW + 3501) == 4
    assert (partition.start_offset, partition.end_offset) == (4, 4)
    assert partition.append(batch(b"x"), now_ms=NOW).base_offset == 4
    assert [s.base_offset for s in partition.segments] == [4]
    assert open_partition(disk.after_kill()).start_offset == 4


def test_by_size_what_is_left_is_not_less_than_asked_for() -> None:
    one = len(batch(bytes(1000)))
    for keep, start in ((4 * one, 0), (4 * one - 1, 0), (3 * one, 1), (3 * one - 1, 1), (one, 3), (0, 3)):
        partition = filled(SimulatedDisk(), small(retention_bytes=keep))
        assert retain(partition, NOW) == start
        assert partition.size_bytes >= keep


def test_nothing_beyond_the_limit_goes() -> None:
    partition = filled(SimulatedDisk(), small(retention_ms=0))
    assert retain(partition, NOW + 10**6, upto=2) == 2
    assert retain(partition, NOW + 10**6, upto=1) == 2


def test_an_old_segment_behind_a_young_one_stays() -> None:
    partition = make_partition(SimulatedDisk(), small(retention_ms=500))
    for at in (NOW + 5000, NOW, NOW):
        partition.append(batch(bytes(1000), at=at), now_ms=NOW)
        partition.roll(NOW)
    assert retain(partition, NOW + 5400) == 0


@pytest.mark.parametrize("claimed", [-1, NOW + 10**9], ids=["no time", "the future"])
def test_records_without_a_time_or_of_the_future_are_as_old_as_their_segment(claimed: int) -> None:
    disk = SimulatedDisk()
    partition = make_partition(disk, small(retention_ms=500))
    partition.append(batch(b"x", at=claimed), now_ms=NOW)
    assert retain(partition, NOW + 10**6) == 0, "the segment is still written to"
    partition.roll(NOW + 100)
    assert retain(partition, NOW + 600) == 0
    assert retain(partition, NOW + 601) == 1


def test_a_clock_that_was_wrong_when_a_segment_was_full_costs_no_record_its_time() -> None:
    partition = make_partition(SimulatedDisk(), small(retention_ms=500))
    partition.append(batch(b"x", at=NOW), now_ms=NOW)
    partition.roll(1000)  # a machine that woke up in 1970
    partition.append(batch(b"y", at=NOW), now_ms=1000)
    assert retain(partition, 1400) == 0
    assert retain(partition, NOW + 500) == 0
    assert retain(partition, NOW + 501) == 2


def test_a_topic_that_deletes_nothing_keeps_all_whatever_its_limits_say() -> None:
    partition = filled(SimulatedDisk(), small(retention_ms=500, retention_bytes=0, delete=False))
    assert retain(partition, NOW + 10**12) == 0


def test_of_a_table_nothing_goes_by_age_before_it_is_a_row() -> None:
    partition = filled(SimulatedDisk(), small(retention_ms=0, table="raw"))
    assert retain(partition, NOW + 10**6) == 0
    partition.turned_offset = 2
    assert retain(partition, NOW + 10**6) == 2
    partition.turned_offset = 4
    assert retain(partition, NOW + 10**6) == 4


def test_of_a_table_that_is_not_written_the_limit_of_bytes_holds() -> None:
    partition = filled(
        SimulatedDisk(), small(retention_ms=0, retention_bytes=2 * len(batch(bytes(1000))), table="json")
    )
    assert retain(partition, NOW + 10**6) == 2
