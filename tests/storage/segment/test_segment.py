"""One segment: its head, its mark, and which bytes answer which question."""

import pytest
from tests.storage.building import IDENTITY, NOW, batch

from braidlog.codec.batch.header import iter_batches, read_header
from braidlog.codec.crc import crc32c
from braidlog.storage.open_files import FilePool
from braidlog.storage.segment import segment as segments
from braidlog.storage.segment.batch_scan import BadBatch
from braidlog.storage.segment.segment import CheckBudget, Extent, Segment
from braidlog.storage.segment.segment_files import (
    DATA_START,
    MARK_AT,
    BadHeader,
    Identity,
    Mark,
    SegmentHeader,
    index_name,
    log_name,
    pack_head,
    read_head,
    read_mark,
    state_name,
)
from braidlog.storage.state.partition_state import EpochHistory
from braidlog.testing.disk import SimulatedDisk

EPOCHS = EpochHistory([(0, 0)])
HEAD = SegmentHeader(IDENTITY, 10, NOW, 3)


def segment_of(disk: SimulatedDisk, *counts: int, interval: int = 256, size: int = 40) -> Segment:
    """Batches of so many records each, from offset 10 on."""
    segment = Segment.create(disk, "/", HEAD, FilePool(disk), interval)
    offset = 10
    for count in counts:
        data = batch(*[b"v" * size] * count, base_offset=offset, at=NOW + offset)
        segment.append([data], [read_header(data)])
        offset += count
    return segment


def reopened(disk: SimulatedDisk, interval: int = 256) -> Segment:
    data = disk.content("/" + log_name(10))
    head, mark = read_head(data, IDENTITY, 10)
    assert mark is not None
    segment = Segment(disk, "/", head, mark, len(data), FilePool(disk))
    segment.use_index(interval, read_only=False)
    return segment


def test_names_sort_like_offsets() -> None:
    assert log_name(7) == "00000000000000000007.log"
    assert (index_name(7)[-4:], state_name(7)[-6:]) == (".idx", ".state")
    assert log_name(9) < log_name(10) < log_name(2**63 - 1)


def test_a_new_segment_has_its_head_and_an_empty_mark() -> None:
    disk = SimulatedDisk()
    segment_of(disk)
    data = disk.content("/" + log_name(10))
    assert len(data) == DATA_START
    assert read_head(data, IDENTITY, 10) == (HEAD, Mark(DATA_START, 10))


@pytest.mark.parametrize("bit", range(0, MARK_AT * 8, 3))
def test_every_bit_of_the_head_counts_and_the_mark_stands_apart(bit: int) -> None:
    disk = SimulatedDisk()
    segment_of(disk)
    disk.flip_bit("/" + log_name(10), bit)
    with pytest.raises(BadHeader) as caught:
        read_head(disk.content("/" + log_name(10)), IDENTITY, 10)
    # Also where the generation is hit, by which the mark is known: it is found by trying.
    assert caught.value.mark == Mark(DATA_START, 10)


@pytest.mark.parametrize("bit", range(MARK_AT * 8, DATA_START * 8, 3))
def test_every_bit_of_the_mark_counts(bit: int) -> None:
    disk = SimulatedDisk()
    segment_of(disk)
    disk.flip_bit("/" + log_name(10), bit)
    data = disk.content("/" + log_name(10))
    if bit // 8 < 84:
        assert read_head(data, IDENTITY, 10) == (HEAD, None)
    else:
        with pytest.raises(BadHeader, match="must be zero"):
            read_head(data, IDENTITY, 10)


def test_a_segment_in_a_wrong_place_is_noticed() -> None:
    data = pack_head(HEAD).ljust(DATA_START, b"\0")
    for identity, base in ((Identity(bytes(16), 0), 10), (Identity(IDENTITY.topic_id, 1), 10), (IDENTITY, 11)):
        with pytest.raises(BadHeader, match="in a wrong place"):
            read_head(data, identity, base)
    with pytest.raises(BadHeader, match="the file has 127 bytes"):
        read_head(data[:127], IDENTITY, 10)


def test_another_version_is_refused_even_if_its_checksum_holds() -> None:
    other = "its head has version 2; this version of braidlog reads 1"
    no_head = "it is not the head of a segment"
    for at, byte, why in ((9, 2, other), (11, 1, no_head), (39, 1, no_head), (59, 1, no_head), (0, 65, no_head)):
        body = bytearray(pack_head(HEAD)[:60])
        body[at] = byte
        data = (bytes(body) + crc32c(bytes(body)).to_bytes(4, "big")).ljust(DATA_START, b"\0")
        with pytest.raises(BadHeader, match=why):
            read_head(data, IDENTITY, 10)


def test_a_mark_of_another_base_or_generation_does_not_hold() -> None:
    disk = SimulatedDisk()
    segment_of(disk)
    data = disk.content("/" + log_name(10))
    assert read_mark(data, 10, 3) == Mark(DATA_START, 10)
    assert read_mark(data, 11, 3) is None
    assert read_mark(data, 10, 4) is None
    assert read_mark(data[:80], 10, 3) is None


def test_the_mark_follows_the_sync() -> None:
    disk = SimulatedDisk()
    segment = segment_of(disk, 2, 3)
    reached = segment.reach()
    segment.sync(reached)
    assert reopened(disk).mark == reached == Mark(segment.size, 15)
    assert [(o.kind, o.bytes) for o in disk.operations[-2:]] == [("sync", 0), ("write_at", 20)]


def ends(segment: Segment) -> list[int]:
    return [
        DATA_START,
        *(DATA_START + p + h.size_bytes for p, h in iter_batches(segment.file.read_at(99999, DATA_START))),
    ]


def test_extents_are_whole_batches() -> None:
    segment = segment_of(SimulatedDisk(), 1, 1, 3, 1, 1, interval=100_000)
    at = ends(segment)
    bases = [10, 11, 12, 15, 16, 17]

    def extent(offset: int, size: int, upto: int = 99) -> tuple[int, int]:
        found = segment.extent(offset, size, upto, EPOCHS)
        first, last = at.index(found.position), at.index(found.end)
        assert found == Extent(at[first], at[last], bases[first], bases[last])
        return first, last

    assert extent(10, 100_000) == (0, 5)
    assert extent(13, 1) == (2, 3)  # inside a batch: that batch, however large
    assert extent(10, at[2] - at[0]) == (0, 2)
    assert extent(10, at[2] - at[0] - 1) == (0, 1)
    assert extent(10, at[2] - at[0] + 1) == (0, 2)
    assert extent(10, 100_000, upto=15) == (0, 3)
    assert extent(10, 100_000, upto=14) == (0, 2)  # a batch that is not wholly below `upto` stays out
    assert extent(13, 100_000, upto=14) == (2, 2)
    assert extent(16, 1) == (4, 5)


def test_with_a_fine_index_an_extent_never_exceeds_its_limit() -> None:
    segment = segment_of(SimulatedDisk(), *[1] * 30, interval=256)
    at = ends(segment)
    for size in range(1, 1500, 41):
        for offset in (10, 17, 30, 39):
            found = segment.extent(offset, size, 99, EPOCHS)
            assert found.position == at[offset - 10]
            assert found.end in at
            assert found.end - found.position <= size or found.next_offset == offset + 1
            assert found.next_offset > offset


def test_damage_is_met_by_who_reads_it_and_not_before() -> None:
    disk = SimulatedDisk()
    segment = segment_of(disk, *[1] * 6, interval=256)
    at = ends(segment)
    segment.sync(segment.reach())
    segment.save_index(sealed=True)
    disk.flip_bit(segment.path, (at[4] + 90) * 8)
    again = reopened(disk)
    again.next_offset = 16
    assert again.extent(10, 10_000, 99, EPOCHS).next_offset == 14
    with pytest.raises(BadBatch) as caught:
        again.extent(14, 10_000, 99, EPOCHS)
    assert (caught.value.position, caught.value.offset) == (at[4], 14)


@pytest.mark.parametrize("spoil", ["keep", "remove", "cut", "garbage"])
def test_the_index_is_loaded_or_built_again(spoil: str) -> None:
    disk = SimulatedDisk()
    segment = segment_of(disk, *[1] * 20)
    segment.sync(segment.reach())
    segment.save_index(sealed=True)
    whole = disk.content(segment.index_path)
    if spoil == "remove":
        disk.drop(segment.index_path)
    elif spoil == "cut":
        disk.cut(segment.index_path, 77)
    elif spoil == "garbage":
        disk.zero(segment.index_path, 30, 60)
    again = reopened(disk)
    again.next_offset = 30
    assert (again.read_seal() is not None) == (spoil in ("keep", "garbage"))
    assert again.index_is_sealed
    assert again.locate(25, EPOCHS) == segment.locate(25, EPOCHS)
    assert disk.content(segment.index_path) == whole
    assert again.max_timestamp_ms == (segment.max_timestamp_ms if spoil != "keep" else -1)


def test_a_cut_lowers_the_mark_first_and_the_time_with_it() -> None:
    disk = SimulatedDisk()
    segment = segment_of(disk, *[1] * 20)
    at = ends(segment)
    segment.sync(segment.reach())
    before = len(disk.operations)
    segment.truncate(at[5], 15)
    assert [o.kind for o in disk.operations[before:]] == ["write_at", "sync", "truncate", "sync"]
    assert (segment.mark, segment.size, segment.next_offset) == (Mark(at[5], 15), at[5], 15)
    assert segment.max_timestamp_ms == NOW + 14
    segment.truncate(DATA_START, 10)
    assert segment.max_timestamp_ms == -1
    assert len(segment.index) == 0


def test_a_retired_segment_takes_no_writes_and_can_be_activated_again() -> None:
    disk = SimulatedDisk()
    segment = segment_of(disk, 1)
    segment.retire()
    data = batch(b"x", base_offset=11)
    with pytest.raises(AssertionError, match="retired"):
        segment.append([data], [read_header(data)])
    segment.activate()
    segment.append([data], [read_header(data)])
    assert segment.next_offset == 12


def test_hints_are_few_and_true() -> None:
    segment = segment_of(SimulatedDisk(), *[1] * 100, interval=100_000)
    at = ends(segment)
    for offset in range(10, 110):
        assert segment.extent(offset, 1, 999, EPOCHS)[:3] == (at[offset - 10], at[offset - 9], offset)
    assert len(segment._hints) == 64
    assert segment.locate(110, EPOCHS) == (segment.size, 110)
    with pytest.raises(AssertionError, match="not in the segment"):
        segment.locate(111, EPOCHS)


def test_what_was_found_once_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same place, a place within a batch, and the end of what is committed: as readers ask again and again."""
    segment = segment_of(SimulatedDisk(), 1, 1, 3, 1, 1, interval=100_000)
    asked = [(11, 99), (13, 99), (10, 15), (14, 16)]
    before = [segment.extent(offset, 100_000, upto, EPOCHS) for offset, upto in asked]
    monkeypatch.setattr(segments, "steps", None)
    assert [segment.extent(offset, 100_000, upto, EPOCHS) for offset, upto in asked] == before


def test_after_a_cut_places_are_searched_anew() -> None:
    disk = SimulatedDisk()
    segment = segment_of(disk, *[1] * 6, interval=100_000)
    at = ends(segment)
    for offset in (12, 14, 15):
        segment.extent(offset, 1, 99, EPOCHS)
    segment.truncate(at[2], 12)
    for offset in range(12, 16):
        data = batch(b"longer" * 50, base_offset=offset)
        segment.append([data], [read_header(data)])
    at = ends(segment)
    assert [segment.extent(offset, 1, 99, EPOCHS).position for offset in range(15, 9, -1)] == at[5::-1]


def test_no_place_is_remembered_that_was_not_checked() -> None:
    disk = SimulatedDisk()
    segment = segment_of(disk, *[1] * 6, interval=100_000)
    segment.forget_checks()
    spent = CheckBudget()
    spent.spend(2**40, 2**40)
    found = segment.extent(13, 1, 99, EPOCHS, spent)
    assert found.position == found.end
    assert not segment._hints


def test_an_empty_segment_has_nothing_to_walk() -> None:
    assert list(segment_of(SimulatedDisk()).walk_from(0, check=True)) == []


def test_a_cut_behind_the_mark_leaves_the_mark() -> None:
    disk = SimulatedDisk()
    segment = segment_of(disk, 1)
    segment.sync(segment.reach())
    for offset in (11, 12):
        data = batch(b"x", base_offset=offset)
        segment.append([data], [read_header(data)])
    mark, before = segment.mark, len(disk.operations)
    segment.truncate(ends(segment)[2], 12)
    assert segment.mark == mark
    assert [o.kind for o in disk.operations[before:]] == ["truncate", "sync"]


def test_what_is_handed_out_outlives_the_removal() -> None:
    disk = SimulatedDisk()
    segment = segment_of(disk, 1)
    segment.save_index(sealed=True)
    file = segment.file
    segment.remove()
    assert disk.files() == []
    assert file.read_at(8, 0) == b"BRAIDSEG"
