"""A log with a copy: one of them may rot anywhere, and nothing is lost; both, and nothing is served."""

import itertools
from collections.abc import Callable

import pytest
from tests.broker.node import batch_of
from tests.model.manual_world import ManualRuntime
from tests.sampling import one_in

from braidlog.model.errors import StorageFault
from braidlog.model.settings import TopicSettings
from braidlog.partition.internal.internal_topic import InternalTopic, open_internal_topic
from braidlog.partition.internal.mirrored_log import MirroredLog
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import Crash, SimulatedDisk

SETTINGS = TopicSettings(segment_bytes=4096, index_interval_bytes=256, compact=True)
PLACE = "/data/topics/00000001"


class Journal:
    """An internal topic, opened on a disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        clock = ManualClock()
        self.disk = disk
        self.folder = DataFolder(disk, "/data", clock)
        self.topic: InternalTopic = open_internal_topic(self.folder, "__x", SETTINGS, ManualRuntime(clock))

    @property
    def notes(self) -> list[str]:
        return [note for note in self.folder.notes if "internal topic" in note]

    def write(self, *numbers: int) -> None:
        for number in numbers:
            self.topic.append(batch_of(b"%d" % number + b"." * 100, keys=[b"%d" % (number % 4)]))
        self.topic._log.sync()

    def values(self) -> list[bytes]:
        return [(row[3] or b"").rstrip(b".") for row in self.topic.rows()]


def wanted(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.fixture(scope="module")
def written() -> SimulatedDisk:
    """Two closed segments and an open one, in both copies; the node was killed."""
    journal = Journal(SimulatedDisk())
    journal.write(*range(50))
    assert len(journal.topic._log.segments) == 3
    journal.topic.sync()
    return journal.disk.after_kill()


def places(disk: SimulatedDisk) -> list[tuple[str, int]]:
    """Every byte of every file of the log and of its copy."""
    files = [path for path in disk.files() if path.startswith((f"{PLACE}/0000/", f"{PLACE}/copy/"))]
    assert {path.rpartition(".")[2] for path in files} == {"log", "idx", "a", "b", "state"}
    return [(path, byte) for path in files for byte in range(len(disk.content(path)))]


def test_a_bit_that_flips_anywhere_loses_nothing(written: SimulatedDisk) -> None:
    for path, byte in one_in(61, places(written)):
        disk = written.after_kill()
        disk.flip_bit(path, byte * 8 + byte % 8)
        journal = Journal(disk)
        assert journal.values() == wanted(50), (path, byte)
        journal.write(50)
        again = Journal(disk.after_kill())
        assert (again.values(), again.notes) == (wanted(51), []), (path, byte)


@pytest.mark.parametrize("place", ["0000", "copy"])
def test_what_was_made_again_is_said(written: SimulatedDisk, place: str) -> None:
    disk = written.after_kill()
    disk.flip_bit(f"{PLACE}/{place}/{0:020d}.log", 300 * 8)
    (note,) = Journal(disk).notes
    assert "was made again from the other" in note
    assert ("copy of the log" in note) == (place == "copy")
    assert Journal(disk.after_kill()).notes == []


def test_a_folder_without_a_copy_gets_one(written: SimulatedDisk) -> None:
    disk = written.after_kill()
    for path in disk.files():
        if path.startswith(f"{PLACE}/copy/"):
            disk.remove(path)
    disk.remove_folder(f"{PLACE}/copy")
    assert Journal(disk).values() == wanted(50)
    disk = disk.after_kill()
    disk.flip_bit(f"{PLACE}/0000/{0:020d}.log", 300 * 8)
    assert Journal(disk).values() == wanted(50)


def test_both_damaged_is_refused_and_left_as_it_is(written: SimulatedDisk) -> None:
    disk = written.after_kill()
    for place in ("0000", "copy"):
        disk.flip_bit(f"{PLACE}/{place}/{0:020d}.log", 300 * 8)
    closed = [f"{PLACE}/{place}/{0:020d}.log" for place in ("0000", "copy")]
    before = [disk.content(path) for path in closed]
    with pytest.raises(StorageFault, match=r"is damaged, and so is its copy.*braid log repair"):
        Journal(disk)
    assert [disk.content(path) for path in closed] == before


def test_a_copy_that_lags_has_what_it_has_and_the_log_the_rest(written: SimulatedDisk) -> None:
    """A power cut took the last second of the copy; a byte of what both have is damaged in the log."""
    disk = written.after_kill()
    journal = Journal(disk)
    journal.topic._copy = None  # from now on it is not written
    journal.write(50, 51)
    disk = disk.after_kill()
    disk.flip_bit(f"{PLACE}/0000/{0:020d}.log", 300 * 8)
    assert Journal(disk).values() == wanted(52)


def test_what_only_the_log_had_and_lost_is_damage(written: SimulatedDisk) -> None:
    disk = written.after_kill()
    journal = Journal(disk)
    journal.topic._copy = None
    journal.write(50)
    journal.write(51)
    last = journal.topic._log.segments[-1]
    disk = disk.after_kill()
    disk.flip_bit(last.path, (last.size - 200) * 8)
    with pytest.raises(StorageFault, match="is damaged"):
        Journal(disk)


def test_a_copy_that_cannot_be_written_does_not_hold_up_the_log(
    written: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = written.after_kill()
    journal = Journal(disk)

    def refuse(*_: object, **__: object) -> None:
        raise StorageFault("no room")

    monkeypatch.setattr(journal.topic._copy, "append", refuse)
    journal.write(50, 51)
    assert Journal(disk.after_kill()).values() == wanted(52)


def test_without_room_for_a_copy_the_log_is_opened_all_the_same(written: SimulatedDisk) -> None:
    disk = written.after_kill()
    disk.flip_bit(f"{PLACE}/copy/{0:020d}.log", 300 * 8)
    with pytest.MonkeyPatch.context() as patch:
        make = disk.make_folder

        def full(path: str) -> None:
            if path.endswith(".new"):
                raise StorageFault("cannot create: No space left on device", path)
            make(path)

        patch.setattr(disk, "make_folder", full)
        journal = Journal(disk)
        assert (journal.values(), journal.topic._copy) == (wanted(50), None)
        assert "has no copy" in journal.notes[0]
        journal.write(50)
        journal.topic.close()
    assert Journal(disk.after_kill()).values() == wanted(51)


def test_a_snapshot_reaches_both() -> None:
    journal = Journal(SimulatedDisk())
    journal.write(*range(60))
    journal.topic.replace(batch_of(b"all of it", keys=[b"s"]))
    for log in (journal.topic._log, journal.topic._copy):
        assert log is not None
        assert log.end_offset - log.start_offset == 1
    disk = journal.disk.after_kill()
    disk.flip_bit(journal.topic._log.segments[-1].path, 8 * 200)
    assert Journal(disk).values() == [b"all of it"]


@pytest.mark.parametrize("place", ["0000", "copy"])
def test_making_one_again_may_end_anywhere(written: SimulatedDisk, place: str) -> None:
    def damaged() -> SimulatedDisk:
        disk = written.after_kill()
        disk.flip_bit(f"{PLACE}/{place}/{0:020d}.log", 300 * 8)
        return disk

    states = crashed(damaged, lambda disk: MirroredLog(DataFolder(disk, "/data", ManualClock()), "__x"))
    for label, left in one_in(23, states):
        assert Journal(left).values() == wanted(50), label
    assert len(states) > 30


def crashed(
    start: Callable[[], SimulatedDisk], work: Callable[[SimulatedDisk], object]
) -> list[tuple[str, SimulatedDisk]]:
    """Every disk that a power cut in the middle of some work may leave."""
    states: list[tuple[str, SimulatedDisk]] = []
    for number in itertools.count(1):
        disk = start()
        disk.stop_at = number
        try:
            work(disk)
        except Crash:
            states += [(f"{number} {label}", left) for label, left in disk.crash_states()]
        else:
            return states
    raise AssertionError
