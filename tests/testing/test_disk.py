"""Each rule of the simulated disk by a small example that fails without it."""

import contextlib
import errno
from random import Random
from typing import Literal

import pytest
from tests.refusals import refused_with

from braidlog.model.errors import Reason, StorageFault
from braidlog.storage.files import Disk, File
from braidlog.testing.disk import Crash, SimulatedDisk

Tree = dict[str, bytes]


def tree(disk: SimulatedDisk) -> Tree:
    return {path: disk.content(path) for path in disk.files()}


def states(disk: SimulatedDisk, family: str = "") -> list[Tree]:
    return [tree(state) for label, state in disk.crash_states() if label.startswith(family)]


def state(disk: SimulatedDisk, label: str) -> Tree:
    [found] = [tree(state) for name, state in disk.crash_states() if name == label]
    return found


def durable_file(disk: SimulatedDisk, path: str, content: bytes = b"") -> File:
    file = disk.create(path)
    if content:
        file.append([content], 0)
    file.sync()
    disk.sync_folder("/")
    return file


def test_the_live_view_shows_what_is_not_synced() -> None:
    disk = SimulatedDisk()
    as_disk: Disk = disk
    as_disk.make_folder("/d")
    file = as_disk.create("/d/a")
    assert file.append([b"one", bytearray(b"two"), memoryview(b"three")], 0) == 11
    file.write_at(b"TWO", 3)
    assert as_disk.open("/d/a", writable=False).read_at(100, 3) == b"TWOthree"
    file.truncate(6)
    file.write_at(b"!", 8)
    assert (file.size(), disk.content("/d/a"), as_disk.names("/d")) == (9, b"oneTWO\0\0!", ["a"])
    assert disk.files() == ["/d/a"]


def test_everything_unsynced_is_kept_or_lost() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a", b"old")
    file.append([b"new"], 3)
    assert state(disk, "kept") == {"/a": b"oldnew"}
    assert state(disk, "lost") == {"/a": b"old"}


def test_a_synced_file_whose_name_was_not_synced_can_be_lost_entirely() -> None:
    disk = SimulatedDisk()
    file = disk.create("/a")
    file.append([b"precious"], 0)
    file.sync()
    assert {} in states(disk)
    disk.sync_folder("/")
    assert states(disk) == [{"/a": b"precious"}]


def test_a_synced_name_does_not_save_the_content() -> None:
    disk = SimulatedDisk()
    disk.create("/a").append([b"hope"], 0)
    disk.sync_folder("/")
    assert {"/a": b""} in states(disk)


def test_a_folder_is_lost_with_its_name_in_the_parent() -> None:
    disk = SimulatedDisk()
    disk.make_folder("/d")
    file = disk.create("/d/a")
    file.sync()
    disk.sync_folder("/d")
    assert state(disk, "lost") == {}
    disk.sync_folder("/")
    assert states(disk) == [{"/d/a": b""}]


def test_an_unsynced_removal_can_come_undone() -> None:
    disk = SimulatedDisk()
    durable_file(disk, "/a", b"x")
    disk.remove("/a")
    assert sorted(states(disk), key=len) == [{}, {"/a": b"x"}]
    disk.sync_folder("/")
    assert states(disk) == [{}]


def test_a_removed_folder_can_come_back() -> None:
    disk = SimulatedDisk()
    disk.make_folder("/d")
    disk.sync_folder("/")
    disk.remove_folder("/d")
    assert [after.exists("/d") for _, after in disk.crash_states()] == [False, True]


def test_a_rename_is_atomic_and_replaces_atomically() -> None:
    disk = SimulatedDisk()
    durable_file(disk, "/checkpoint", b"old")
    durable_file(disk, "/checkpoint.new", b"new")
    disk.rename("/checkpoint.new", "/checkpoint")
    before = {"/checkpoint": b"old", "/checkpoint.new": b"new"}
    assert states(disk) == [{"/checkpoint": b"new"}, before]
    disk.sync_folder("/")
    assert states(disk) == [{"/checkpoint": b"new"}]


def test_a_rename_can_be_durable_while_the_content_is_lost() -> None:
    disk = SimulatedDisk()
    durable_file(disk, "/checkpoint", b"old")
    disk.create("/checkpoint.new").append([b"new"], 0)
    disk.rename("/checkpoint.new", "/checkpoint")
    found = states(disk)
    assert {"/checkpoint": b""} in found
    assert {"/checkpoint": b"\0\0\0"} in found
    assert all("/checkpoint" in after for after in found)


def test_a_rename_across_folders_is_two_changes() -> None:
    disk = SimulatedDisk()
    for folder in ("/d", "/e"):
        disk.make_folder(folder)
    durable_file(disk, "/d/a", b"x")
    disk.sync_folder("/d")
    disk.rename("/d/a", "/e/a")
    found = states(disk)
    assert {frozenset(after) for after in found} == {
        frozenset(names) for names in ((), ("/d/a",), ("/e/a",), ("/d/a", "/e/a"))
    }


def test_renaming_onto_another_name_of_the_same_file_does_nothing() -> None:
    disk = SimulatedDisk()
    disk.make_folder("/d")
    durable_file(disk, "/a", b"x")
    disk.rename("/a", "/d/a")
    [twice] = [after for _, after in disk.crash_states() if after.files() == ["/a", "/d/a"]]
    twice.rename("/a", "/d/a")
    assert twice.files() == ["/a", "/d/a"]
    twice.remove("/a")
    assert tree(twice) == {"/d/a": b"x"}


def test_names_of_different_folders_are_reordered() -> None:
    disk = SimulatedDisk()
    for folder in ("/d", "/e"):
        disk.make_folder(folder)
    disk.sync_folder("/")
    disk.create("/d/first")
    disk.create("/e/second")
    assert {frozenset(after) for after in states(disk)} == {
        frozenset(names) for names in ((), ("/d/first",), ("/e/second",), ("/d/first", "/e/second"))
    }


def test_names_of_one_folder_keep_their_order() -> None:
    disk = SimulatedDisk()
    disk.create("/first")
    disk.create("/second")
    assert [frozenset(after) for after in states(disk)] == [
        frozenset({"/first", "/second"}),
        frozenset(),
        frozenset({"/first"}),
    ]


def test_every_prefix_of_the_global_order() -> None:
    disk = SimulatedDisk()
    one, two = durable_file(disk, "/1"), durable_file(disk, "/2")
    one.append([b"a"], 0)
    two.append([b"b"], 0)
    one.append([b"c"], 1)
    assert state(disk, "prefix 1 of 3") == {"/1": b"a", "/2": b""}
    assert state(disk, "prefix 2 of 3") == {"/1": b"a", "/2": b"b"}


def test_prefixes_are_capped_evenly_or_at_random() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a")
    for number in range(100):
        file.append([b"x"], number)

    def prefixes(rng: Random | None) -> list[int]:
        found = disk.crash_states(rng=rng, prefixes_max=5)
        return sorted(len(after.content("/a")) for label, after in found if label.startswith("prefix"))

    assert prefixes(None) == [24, 49, 74, 99]  # and 0, which is `lost`
    assert len(prefixes(Random(1))) in (4, 5)
    assert prefixes(Random(1)) == prefixes(Random(1)) != prefixes(Random(2))


def test_a_write_is_torn_at_sector_boundaries_of_the_file() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a", b"o" * 2000)
    file.write_at(b"n" * 1000, 500)
    before = {after["/a"] for after in states(disk, "torn") if after["/a"].startswith(b"o" * 500 + b"n")}
    assert before == {b"o" * 500 + b"n" * (cut - 500) + b"o" * (2000 - cut) for cut in (512, 1024)}
    after_cut = {after["/a"] for after in states(disk, "torn")} - before
    assert after_cut == {b"o" * cut + b"n" * (1500 - cut) + b"o" * 500 for cut in (512, 1024)}


def test_a_torn_append_may_or_may_not_have_its_length() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a")
    file.append([b"n" * 600], 0)
    assert {after["/a"] for after in states(disk, "torn")} == {
        b"n" * 512,
        b"n" * 512 + bytes(88),
        bytes(512) + b"n" * 88,
    }


def test_a_write_within_one_sector_is_atomic() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a", b"o" * 1024)
    file.write_at(b"n" * 512, 512)
    assert {after["/a"] for after in states(disk)} == {b"o" * 1024, b"o" * 512 + b"n" * 512}


def test_a_large_write_is_torn_at_the_first_middle_and_last_boundary() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a")
    file.append([b"n" * 51_200], 0)
    cuts = {len(after["/a"]) for after in states(disk, "torn")}
    assert cuts == {512, 50 * 512, 99 * 512, 51_200}


def test_an_earlier_write_is_lost_under_a_later_one() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a", b"0123")
    file.write_at(b"AB", 0)
    file.append([b"CD"], 4)
    file.append([b"EF"], 6)
    found = {after["/a"] for after in states(disk, "reordered")}
    assert {b"0123CDEF", b"0123CD", b"AB23\0\0EF"} <= found


def test_a_truncate_is_lost_under_a_later_write() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a", b"0123456789")
    file.truncate(2)
    file.append([b"NEW"], 2)
    assert {"/a": b"01NEW56789"} in states(disk, "reordered")


def test_one_file_is_kept_while_another_is_lost() -> None:
    disk = SimulatedDisk()
    for path in ("/1", "/2", "/3"):
        durable_file(disk, path).append([b"x"], 0)
    found = states(disk)
    assert {"/1": b"x", "/2": b"", "/3": b"x"} in found
    assert {"/1": b"", "/2": b"x", "/3": b""} in found


def test_the_length_is_kept_while_the_bytes_are_lost() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a", b"old")
    file.append([b"abc"], 3)
    file.append([b"def"], 6)
    found = {after["/a"] for after in states(disk, "sized")}
    assert found == {b"old" + bytes(3), b"oldabc" + bytes(3), b"old" + bytes(6)}


def test_identical_states_come_once() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a", b"x" * 1500)
    file.write_at(b"x" * 1500, 0)
    file.write_at(b"x" * 700, 100)
    assert states(disk) == [{"/a": b"x" * 1500}]
    seen: set[int] = set()
    assert len(list(disk.crash_states(seen=seen))) == 1
    assert list(disk.crash_states(seen=seen)) == []
    assert seen == {disk.fingerprint()}


def test_empty_folders_tell_states_apart() -> None:
    disk = SimulatedDisk()
    disk.make_folder("/d")
    assert [after.names("/") for _, after in disk.crash_states()] == [["d"], []]


def test_a_limit_takes_that_many_states_and_a_seed_repeats_them() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a")
    for number in range(20):
        file.append([b"x" * 100], number * 100)

    def labels(seed: int) -> list[str]:
        return [label for label, _ in disk.crash_states(limit=7, rng=Random(seed))]

    assert len(labels(1)) == 7
    assert labels(1) == labels(1) != labels(2)
    assert [label for label, _ in disk.crash_states(limit=2)] == ["kept", "lost"]


def test_mixed_states_keep_a_prefix_of_each_file_by_itself() -> None:
    disk = SimulatedDisk()
    files = [durable_file(disk, f"/{name}") for name in "abc"]
    for number in range(4):
        for file in files:
            file.append([b"%d" % number], number)
    found = [tree(after) for label, after in disk.crash_states(rng=Random(3)) if label.startswith("mixed")]
    assert any(len({len(content) for content in after.values()}) == 3 for after in found)
    assert all(b"0123".startswith(content) for after in found for content in after.values())


def test_a_crash_state_is_durable_and_apart_from_its_origin() -> None:
    disk = SimulatedDisk()
    durable_file(disk, "/a", b"old").append([b"new"], 3)
    [(_, kept)] = [item for item in disk.crash_states() if item[0] == "kept"]
    assert states(kept) == [{"/a": b"oldnew"}]
    kept.open("/a", writable=True).truncate(0)
    kept.create("/b")
    assert tree(disk) == {"/a": b"oldnew"}
    assert len(kept.operations) == 2


def test_kill_keeps_everything_and_leaves_it_unsynced() -> None:
    disk = SimulatedDisk()
    disk.create("/a").append([b"x"], 0)
    disk.lock("/lock")
    after = disk.after_kill()
    assert tree(after) == {"/a": b"x", "/lock": b""}
    assert {} in states(after)
    after.lock("/lock")
    after.open("/a", writable=True).sync()
    after.sync_folder("/")
    assert states(after) == [{"/a": b"x", "/lock": b""}]


def test_a_change_after_a_kill_comes_after_those_before_it() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a")
    file.append([b"1"], 0)
    after = disk.after_kill()
    after.open("/a", writable=True).append([b"2"], 1)
    assert {"/a": b"1"} in states(after, "prefix")


@pytest.mark.parametrize(("when", "content"), [("before", b""), ("after", b"x")])
def test_the_process_dies_at_the_nth_call(when: Literal["before", "after"], content: bytes) -> None:
    disk = SimulatedDisk()
    disk.stop_at, disk.stop_when = 2, when
    file = disk.create("/a")
    with pytest.raises(Crash, match=f"{when} operation 2: append /a"):
        file.append([b"x"], 0)
    assert disk.content("/a") == content
    for call in (
        lambda: disk.create("/b"),
        lambda: disk.open("/a", writable=False),
        lambda: disk.rename("/a", "/b"),
        lambda: disk.remove("/a"),
        lambda: disk.make_folder("/d"),
        lambda: disk.remove_folder("/d"),
        lambda: disk.sync_folder("/"),
        lambda: disk.names("/"),
        lambda: disk.exists("/a"),
        lambda: disk.lock("/lock"),
        lambda: file.append([b"y"], 1),
        lambda: file.write_at(b"y", 1),
        lambda: file.truncate(0),
        file.sync,
        file.size,
        lambda: file.read_at(1, 0),
    ):
        with pytest.raises(Crash):
            call()
    file.close()
    assert disk.content("/a") == content
    assert {"/a": content} in states(disk)
    assert len(disk.operations) == 2


def test_a_sync_that_dies_after_taking_effect_is_durable() -> None:
    cases: list[tuple[Literal["before", "after"], list[bytes]]] = [
        ("before", [b"x", b"", b"\0"]),
        ("after", [b"x"]),
    ]
    for when, expected in cases:
        disk = SimulatedDisk()
        file = durable_file(disk, "/a")
        file.append([b"x"], 0)
        disk.stop_at, disk.stop_when = len(disk.operations) + 1, when
        with pytest.raises(Crash):
            file.sync()
        assert [after["/a"] for after in states(disk)] == expected


def test_no_handler_swallows_a_crash() -> None:
    disk = SimulatedDisk()
    disk.stop_at = 1

    def careless() -> None:
        with contextlib.suppress(Exception):
            disk.create("/a")

    with pytest.raises(Crash):
        careless()


def test_a_refused_call_also_reaches_its_stop_point() -> None:
    disk = SimulatedDisk()
    disk.create("/a")
    disk.stop_at, disk.stop_when = 2, "after"
    with pytest.raises(Crash):
        disk.create("/a")


def test_operations_are_numbered_and_logged() -> None:
    disk = SimulatedDisk()
    seen = []
    disk.on_operation = lambda operation: seen.append((operation, disk.files()))
    disk.make_folder("/d")
    file = disk.create("/d/a")
    file.append([b"abc", b"d"], 0)
    file.write_at(b"xy", 1)
    file.truncate(3)
    file.sync()
    file.read_at(1, 0)
    disk.rename("/d/a", "/d/b")
    disk.remove("/d/b")
    disk.sync_folder("/d")
    disk.remove_folder("/d")
    assert disk.operations == [
        (1, "make_folder", "/d", 0),
        (2, "create", "/d/a", 0),
        (3, "append", "/d/a", 4),
        (4, "write_at", "/d/a", 2),
        (5, "truncate", "/d/a", 3),
        (6, "sync", "/d/a", 0),
        (7, "rename", "/d/a", 0),
        (8, "remove", "/d/b", 0),
        (9, "sync_folder", "/d", 0),
        (10, "remove_folder", "/d", 0),
    ]
    assert [operation for operation, _ in seen] == disk.operations
    assert seen[1][1] == []


def test_a_failed_sync_loses_the_bytes_although_later_syncs_succeed() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a", b"old")
    file.append([b"lost"], 3)
    disk.fail_at = {len(disk.operations) + 1: errno.EIO}
    with pytest.raises(StorageFault, match="cannot sync: Input/output error") as caught:
        file.sync()
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EIO
    assert disk.content("/a") == b"oldlost"
    assert b"oldlost" not in {after["/a"] for after in states(disk)}
    file.append([b"kept"], 7)
    file.sync()
    assert states(disk) == [{"/a": b"old" + bytes(4) + b"kept"}]
    assert disk.content("/a") == disk.after_kill().content("/a") == b"oldlostkept"


def test_a_full_disk_takes_a_prefix_and_refuses_the_rest() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a", b"old")
    assert len(disk.operations) == 4
    disk.fail_at = {5: errno.ENOSPC, 6: errno.ENOSPC}
    disk.short = 2
    with pytest.raises(StorageFault, match="No space left"):
        file.append([b"a", b"bcd"], 3)
    assert disk.content("/a") == b"oldab"
    disk.short = 0
    with pytest.raises(StorageFault, match="No space left"):
        file.write_at(b"zz", 0)
    assert disk.content("/a") == b"oldab"
    file.append([b"cd"], 5)
    assert disk.content("/a") == b"oldabcd"


def test_an_injected_failure_of_a_name_has_no_effect() -> None:
    disk = SimulatedDisk()
    durable_file(disk, "/a", b"x")
    count = len(disk.operations)
    disk.fail_at = dict.fromkeys(range(count + 1, count + 6), errno.EIO)
    for call in (
        lambda: disk.create("/b"),
        lambda: disk.rename("/a", "/b"),
        lambda: disk.remove("/a"),
        lambda: disk.make_folder("/d"),
        lambda: disk.sync_folder("/"),
    ):
        with pytest.raises(StorageFault, match="Input/output error"):
            call()
    assert states(disk) == [{"/a": b"x"}]
    disk.make_folder("/d")


def test_one_lock_at_a_time() -> None:
    disk = SimulatedDisk()
    disk.make_folder("/d")
    lock = disk.lock("/d/lock")
    with refused_with(Reason.FOLDER_IN_USE):
        disk.lock("/d/lock")
    lock.release()
    disk.lock("/d/lock")
    for _, after in disk.crash_states():
        if after.exists("/d"):
            after.lock("/d/lock")
    with pytest.raises(StorageFault):
        disk.lock("/absent/lock")


def test_closed_and_read_only_files_refuse() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a", b"x")
    reader = disk.open("/a", writable=False)
    with pytest.raises(StorageFault):
        reader.append([b"y"], 1)
    file.close()
    with pytest.raises(StorageFault):
        file.read_at(1, 0)
    with pytest.raises(StorageFault):
        reader.fileno()
    reader.forget(0, 1)
    assert reader.read_at(1, 0) == b"x"


def test_an_open_file_outlives_its_name() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a", b"x")
    disk.remove("/a")
    file.append([b"y"], 1)
    assert file.read_at(2, 0) == b"xy"
    assert {"/a": b"xy"} in states(disk)


def test_damage_is_live_and_durable() -> None:
    disk = SimulatedDisk()
    durable_file(disk, "/a", bytes(8)).append([b"tail"], 8)
    disk.flip_bit("/a", 9)
    assert states(disk) == [{"/a": b"\0\2" + bytes(6) + b"tail"}]
    disk.cut("/a", 10)
    assert disk.content("/a") == b"\0\2" + bytes(6) + b"ta"
    disk.zero("/a", 1, 9)
    assert disk.content("/a") == bytes(9) + b"a"
    disk.zero("/a", 8, 100)
    assert states(disk) == [{"/a": bytes(10)}]
    disk.drop("/a")
    assert states(disk) == [{}]


def test_a_copy_is_independent() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a", b"x")
    file.append([b"y"], 1)
    disk.make_folder("/d")
    disk.stop_at = 99
    twin = disk.copy()
    assert (twin.stop_at, twin.operations, tree(twin)) == (99, disk.operations, tree(disk))
    assert states(twin) == states(disk)
    file.append([b"z"], 2)
    disk.create("/d/b")
    assert tree(twin) == {"/a": b"xy"}
    twin.remove("/a")
    assert tree(disk) == {"/a": b"xyz", "/d/b": b""}


def test_synced_writes_are_durable_however_many() -> None:
    disk = SimulatedDisk()
    file = durable_file(disk, "/a")
    for number in range(300):
        file.append([bytes([number % 256]) * 1000], number * 1000)
        file.sync()
    assert states(disk) == [{"/a": disk.content("/a")}]
    assert file.size() == 300_000
