"""The sparse index: hints that are checked, and never outlive what they describe."""

import pytest

from braidlog.storage.segment.segment_files import ENTRY_BYTES, HEAD_BYTES, NO_TIMESTAMP, Entry, SparseIndex
from braidlog.testing.disk import SimulatedDisk

PATH = "/x.idx"


def filled(count: int = 5, *, generation: int = 0) -> SparseIndex:
    """Entries at 100, 200, …: offsets 0, 10, …, timestamps rising by 1000."""
    index = SparseIndex(0, generation, 100)
    for number in range(count):
        index.note(number * 10, 100 + number * 100, NO_TIMESTAMP if number == 0 else number * 1000, verified=True)
    return index


def loaded(disk: SimulatedDisk, *, base: int = 0, generation: int = 0) -> tuple[SparseIndex, str | None]:
    index = SparseIndex(base, generation, 100)
    file = disk.open(PATH, writable=False)
    fault = index.load(file)
    file.close()
    return index, fault


def entries(index: SparseIndex) -> list[Entry]:
    return [index.entry(number) for number in range(len(index))]


def test_an_entry_is_kept_every_so_many_bytes() -> None:
    index = SparseIndex(0, 0, 100)
    for position in (128, 200, 227, 228, 300, 328, 500):
        index.note(position, position, 0, verified=False)
    assert [entry.position for entry in entries(index)] == [128, 228, 328, 500]


def test_lookups() -> None:
    index = filled()
    assert [index.floor_offset(offset) for offset in (0, 9, 10, 39, 40, 99)] == [0, 0, 1, 3, 4, 4]
    assert [index.floor_position(position) for position in (0, 100, 199, 200, 999)] == [0, 0, 0, 1, 4]
    assert [index.first_with_time(time) for time in (0, 1000, 1001, 4000, 9000)] == [0, 0, 1, 3, 4]
    assert [index.interval_end(number, 640) for number in (0, 4)] == [200, 640]


def test_saved_in_parts_it_loads_whole() -> None:
    disk = SimulatedDisk()
    index = filled(3)
    index.save(disk, PATH)
    size = len(disk.content(PATH))
    assert size == HEAD_BYTES + 3 * ENTRY_BYTES
    index.save(disk, PATH)
    assert len(disk.operations) == 4  # create, write, truncate, sync: a second save had nothing to do
    index.note(30, 400, 3000, verified=True)
    index.seal(Entry(40, 500, 4000))
    index.save(disk, PATH)
    again, fault = loaded(disk)
    assert fault is None
    assert entries(again) == entries(index)
    assert again.end == Entry(40, 500, 4000)
    assert not any(again.verified)


def test_what_was_cut_leaves_the_file_with_the_next_save() -> None:
    disk = SimulatedDisk()
    index = filled(5)
    index.seal(Entry(50, 640, 5000))
    index.save(disk, PATH)
    index.truncate(300)
    assert index.end is None
    index.save(disk, PATH)
    again, fault = loaded(disk)
    assert fault is None
    assert entries(again) == entries(filled(2))
    assert again.end is None


def test_another_generation_or_base_is_not_believed() -> None:
    disk = SimulatedDisk()
    filled().save(disk, PATH)
    for again, fault in (loaded(disk, generation=1), loaded(disk, base=5)):
        assert fault == "its head is not that of this segment"
        assert len(again) == 0


@pytest.mark.parametrize("size", range(HEAD_BYTES + 3 * ENTRY_BYTES))
def test_a_partial_file_gives_the_entries_that_hold(size: int) -> None:
    disk = SimulatedDisk()
    filled(3).save(disk, PATH)
    disk.cut(PATH, size)
    again, fault = loaded(disk)
    whole = max(size - HEAD_BYTES, 0) // ENTRY_BYTES
    assert entries(again) == entries(filled(3))[:whole]
    assert (fault is None) == (size >= HEAD_BYTES and (size - HEAD_BYTES) % ENTRY_BYTES == 0)


@pytest.mark.parametrize("bit", range(0, (HEAD_BYTES + 3 * ENTRY_BYTES) * 8, 5))
def test_damage_is_dropped_with_all_that_follows(bit: int) -> None:
    disk = SimulatedDisk()
    filled(3).save(disk, PATH)
    disk.flip_bit(PATH, bit)
    again, fault = loaded(disk)
    assert fault is not None
    assert entries(again) == entries(filled(3))[: max(bit // 8 - HEAD_BYTES, 0) // ENTRY_BYTES]


def test_entries_that_go_backwards_and_bytes_behind_the_seal_are_noticed() -> None:
    disk = SimulatedDisk()
    index = filled(3)
    index.seal(Entry(30, 400, 3000))
    index.save(disk, PATH)
    whole = disk.content(PATH)
    first = whole[HEAD_BYTES : HEAD_BYTES + ENTRY_BYTES]
    file = disk.open(PATH, writable=True)
    file.write_at(first, len(whole))
    assert loaded(disk)[1] == "bytes follow its seal"
    file.write_at(first, HEAD_BYTES + ENTRY_BYTES)
    assert loaded(disk)[1] == "entry 1 goes backwards"


def test_the_seal_is_read_without_the_rest() -> None:
    index = filled(3)
    open_end = index.unsaved(len(index))
    index.seal(Entry(30, 400, 3000))
    sealed = index.unsaved(len(index))
    probe = SparseIndex(0, 0, 100)
    assert probe.read_end(sealed[:HEAD_BYTES], sealed[-ENTRY_BYTES:]) == Entry(30, 400, 3000)
    assert probe.read_end(open_end[:HEAD_BYTES], open_end[-ENTRY_BYTES:]) is None
    assert SparseIndex(0, 1, 100).read_end(sealed[:HEAD_BYTES], sealed[-ENTRY_BYTES:]) is None


def test_an_entry_can_be_put_behind_damage() -> None:
    index = filled(3)
    index.saved = 3
    index.split(15, 250, 1500)
    index.split(15, 250, 1500)
    assert [entry.position for entry in entries(index)] == [100, 200, 250, 300]
    assert list(index.verified) == [1, 1, 0, 1]
    assert index.saved == 2
