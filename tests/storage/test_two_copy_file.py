"""A value in two files: the newest whole one counts, a torn save harms nothing."""

import errno

import pytest
from tests.storage.crashing import lost

from braidlog.model.errors import StorageFault
from braidlog.storage.two_copy_file import PAYLOAD_AT, TwoCopyFile, load_newest, pack_copy, unpack_copy
from braidlog.testing.disk import SimulatedDisk

MAGIC = b"TESTSLOT"


def pair(disk: SimulatedDisk) -> TwoCopyFile:
    slots = TwoCopyFile(disk, "/", "value", MAGIC)
    slots.load()
    return slots


def test_saves_take_turns_and_the_newest_is_loaded_first() -> None:
    disk = SimulatedDisk()
    slots = pair(disk)
    for value in (b"one", b"two", b"three, longer"):
        slots.save(value)
    loaded = pair(disk).load()
    assert [(slot.name, slot.payload) for slot in loaded] == [("value.a", b"three, longer"), ("value.b", b"two")]


def test_a_reopened_pair_overwrites_the_older_file() -> None:
    disk = SimulatedDisk()
    pair(disk).save(b"one", copies=2)
    pair(disk).save(b"two")
    assert [slot.payload for slot in pair(disk).load()] == [b"two", b"one"]


def test_a_file_whose_first_save_failed_has_a_durable_name_after_the_next() -> None:
    disk = SimulatedDisk()
    slots = pair(disk)
    disk.fail_at = {2: errno.ENOSPC}  # it is made, and there is no room to write it
    with pytest.raises(StorageFault):
        slots.save(b"value")
    slots.save(b"value")
    assert [operation.kind for operation in disk.operations[:2]] == ["create", "write_at"]
    assert load_newest(pair(lost(disk)), "it", read_only=True) == b"value"


def test_a_shorter_value_leaves_nothing_of_the_longer_one() -> None:
    disk = SimulatedDisk()
    slots = pair(disk)
    slots.save(b"x" * 500, copies=2)
    slots.save(b"y", copies=2)
    assert len(disk.content("/value.a")) == len(disk.content("/value.b")) == PAYLOAD_AT + 1


@pytest.mark.parametrize("name", ["/value.a", "/value.b"])
def test_either_file_may_be_lost_when_saved_twice(name: str) -> None:
    disk = SimulatedDisk()
    pair(disk).save(b"kept", copies=2)
    disk.drop(name)
    assert load_newest(pair(disk), "it", read_only=True) == b"kept"


@pytest.mark.parametrize("bit", range(0, (PAYLOAD_AT + 5) * 8, 7))
def test_every_damaged_bit_is_noticed(bit: int) -> None:
    disk = SimulatedDisk()
    pair(disk).save(b"value")
    disk.flip_bit("/value.a", bit)
    slots = TwoCopyFile(disk, "/", "value", MAGIC)
    assert slots.load() == []
    assert list(slots.faults) == ["value.a"]


@pytest.mark.parametrize("size", range(PAYLOAD_AT + 5))
def test_every_cut_is_noticed(size: int) -> None:
    data = pack_copy(MAGIC, 1, b"value")
    with pytest.raises(ValueError, match=r"bytes|payload"):
        unpack_copy(MAGIC, "value.a", data[:size])


def test_another_version_and_another_magic_are_refused() -> None:
    data = bytearray(pack_copy(MAGIC, 1, b""))
    data[9] = 9
    with pytest.raises(ValueError, match="version 9 is not known"):
        unpack_copy(MAGIC, "value.a", bytes(data))
    with pytest.raises(ValueError, match="does not begin with"):
        unpack_copy(b"OTHERONE", "value.a", pack_copy(MAGIC, 1, b""))


def test_the_fault_says_what_is_wrong_with_both_files() -> None:
    disk = SimulatedDisk()
    with pytest.raises(StorageFault, match="it cannot be read: both files are missing"):
        load_newest(TwoCopyFile(disk, "/", "value", MAGIC), "it", read_only=True)
    pair(disk).save(b"value", copies=2)
    disk.flip_bit("/value.a", 230)
    disk.cut("/value.b", 3)
    with pytest.raises(StorageFault, match=r"value\.a: checksum does not hold; value\.b: 3 bytes"):
        load_newest(TwoCopyFile(disk, "/", "value", MAGIC), "it", read_only=True)


def test_a_save_mends_a_damaged_file() -> None:
    disk = SimulatedDisk()
    pair(disk).save(b"one", copies=2)
    disk.flip_bit("/value.a", 230)
    slots = TwoCopyFile(disk, "/", "value", MAGIC)
    slots.load()
    assert slots.faults == {"value.a": "checksum does not hold"}
    slots.save(b"two")
    assert [slot.payload for slot in pair(disk).load()] == [b"two", b"one"]


def test_what_is_loaded_to_be_used_is_mended_and_still_told() -> None:
    disk = SimulatedDisk()
    pair(disk).save(b"one", copies=2)
    disk.flip_bit("/value.b", 230)
    slots = TwoCopyFile(disk, "/", "value", MAGIC)
    assert load_newest(slots, "it", read_only=False) == b"one"
    assert list(slots.faults) == ["value.b"]
    assert len(pair(disk).load()) == 2


def test_a_crash_at_any_call_leaves_the_old_or_the_new_value() -> None:
    disk = SimulatedDisk()
    slots = pair(disk)
    slots.save(b"old", copies=2)
    slots.save(b"new")
    for _, crashed in disk.crash_states():
        assert load_newest(TwoCopyFile(crashed, "/", "value", MAGIC), "it", read_only=True) in (b"old", b"new")
