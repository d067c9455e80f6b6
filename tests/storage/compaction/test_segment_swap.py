"""A new segment in the place of old ones: the same offsets, whatever is left of them."""

import pytest
from tests.storage.building import IDENTITY, NOW, batch

from braidlog.codec.batch.header import iter_batches
from braidlog.storage.compaction import segment_swap
from braidlog.storage.compaction.segment_swap import SegmentRewriter
from braidlog.storage.open_files import FilePool
from braidlog.storage.segment.segment_files import DATA_START, SegmentHeader
from braidlog.testing.disk import SimulatedDisk

STEM = "/00000000000000000005"


def rewriter(disk: SimulatedDisk) -> SegmentRewriter:
    return SegmentRewriter(disk, "/", SegmentHeader(IDENTITY, 5, NOW, 1), FilePool(disk), 4096)


def spans(disk: SimulatedDisk) -> list[tuple[int, int, int, int, int]]:
    data = disk.content(STEM + ".swap")[DATA_START:]
    return [
        (h.base_offset, h.next_offset, h.leader_epoch, h.record_count, h.max_timestamp) for _, h in iter_batches(data)
    ]


def test_runs_of_one_epoch_become_one_empty_batch() -> None:
    disk = SimulatedDisk()
    new = rewriter(disk)
    new.skip(7, 0, NOW + 9)
    new.skip(8, 0, NOW)
    new.skip(9, 1, NOW + 1)
    new.keep(batch(b"a", b"b", base_offset=9, leader_epoch=1))
    new.skip(20, 1, NOW + 2)
    segment = new.write()
    segment_swap.publish(disk, "/", 5)
    assert spans(disk) == [
        (5, 8, 0, 0, NOW + 9),
        (8, 9, 1, 0, NOW + 1),
        (9, 11, 1, 2, NOW),
        (11, 20, 1, 0, NOW + 2),
    ]
    assert (segment.next_offset, segment.mark.next_offset) == (20, 20)


def test_a_gap_too_long_for_one_batch_becomes_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_swap, "_SPAN_MAX", 10)
    disk = SimulatedDisk()
    new = rewriter(disk)
    for end in (9, 13, 18, 25):
        new.skip(end, 0, NOW)
    new.write()
    segment_swap.publish(disk, "/", 5)
    assert [span[:2] for span in spans(disk)] == [(5, 13), (13, 18), (18, 25)]


def test_an_offset_lost_or_repeated_is_our_own_mistake() -> None:
    new = rewriter(SimulatedDisk())
    with pytest.raises(AssertionError, match="lose or repeat"):
        new.keep(batch(b"a", base_offset=6))


def test_it_is_written_in_parts_and_counts_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_swap, "_WRITE_BYTES", 300)
    disk = SimulatedDisk()
    new = rewriter(disk)
    data = [batch(b"x" * 50, base_offset=5 + n) for n in range(10)]
    for number, one in enumerate(data):
        new.keep(one)
        assert new.size == DATA_START + len(b"".join(data[: number + 1]))
    assert len([o for o in disk.operations if o.kind == "append"]) == 3
    new.write()
    segment_swap.publish(disk, "/", 5)
    assert disk.content(STEM + ".swap")[DATA_START:] == b"".join(data)


def test_what_a_failed_rewrite_left_is_removed() -> None:
    disk = SimulatedDisk()
    rewriter(disk).skip(9, 0, NOW)
    again = rewriter(disk)
    assert disk.files() == [STEM + ".cleaned"]
    again.abandon()
    assert disk.files() == []
