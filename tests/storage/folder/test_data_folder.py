"""A data folder: topics by number, names never as paths, one bad topic alone."""

import itertools

import pytest

from braidlog.codec.batch.records import encode_batch
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.settings import TopicSettings
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import Crash, SimulatedDisk


def folder_on(disk: SimulatedDisk, *, create: bool = True, read_only: bool = False) -> DataFolder:
    return DataFolder(disk, "/data", ManualClock(), create=create, read_only=read_only)


def reopened(disk: SimulatedDisk) -> DataFolder:
    return folder_on(disk.after_kill())


def reason(attempt: object) -> Reason:
    with pytest.raises(BrokerError) as caught:
        attempt()  # type: ignore[operator]
    return caught.value.reason


ODD_NAMES = ["../x", "..", ".", "", "a/b", "/etc/passwd", "a\0b", "a\n", "tорic", "ｔopic", "a b", "a" * 250, "-\u200b"]  # noqa: RUF001


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_that_is_not_one_is_refused(name: str) -> None:
    disk = SimulatedDisk()
    folder = folder_on(disk)
    before = disk.files()
    assert reason(lambda: folder.create_topic(name, 1, TopicSettings())) is Reason.INVALID_TOPIC_NAME
    assert reason(lambda: folder.topic(name)) is Reason.TOPIC_NOT_FOUND
    assert disk.files() == before


@pytest.mark.parametrize(
    "name", ["CON", "nul.txt", "LOCK", "topics", "00000001", "a" * 249, "-", "...", "x.new", "y.gone"]
)
def test_a_strange_but_legal_name_never_becomes_a_path(name: str) -> None:
    disk = SimulatedDisk()
    folder_on(disk).create_topic(name, 2, TopicSettings())
    assert all(path.startswith(("/data/topics/00000001/", "/data/folder.", "/data/LOCK")) for path in disk.files())
    again = reopened(disk)
    assert [meta.name for meta in again.topics()] == [name]
    assert again.partition_folder(name, 1) == "/data/topics/00000001/0001"


def test_a_folder_keeps_its_identity_and_its_topics() -> None:
    disk = SimulatedDisk()
    folder = folder_on(disk)
    meta = folder.create_topic("b", 3, TopicSettings(segment_bytes=4096))
    folder.create_topic("a", 1, TopicSettings())
    folder.alter_topic("b", TopicSettings(segment_bytes=8192))
    again = reopened(disk)
    assert again.identity == folder.identity
    assert [t.name for t in again.topics()] == ["a", "b"]
    assert again.topic("b").settings.segment_bytes == 8192
    assert again.topic("b").topic_id == meta.topic_id
    assert again.notes == []
    assert reason(lambda: again.create_topic("a", 1, TopicSettings())) is Reason.TOPIC_EXISTS


def test_there_must_be_a_folder_where_one_is_expected() -> None:
    disk = SimulatedDisk()
    for options in ({"create": False}, {"read_only": True}):
        assert reason(lambda options=options: folder_on(disk, **options)) is Reason.FOLDER_NOT_FOUND
    assert not disk.exists("/data")


def test_a_strangers_folder_is_refused_and_left_alone() -> None:
    disk = SimulatedDisk()
    disk.make_folder("/data")
    disk.create("/data/thesis.tex").close()
    with pytest.raises(BrokerError, match=r"holds other things \(thesis\.tex\)"):
        folder_on(disk)
    assert disk.files() == ["/data/thesis.tex"]


def test_a_folder_is_opened_by_one_at_a_time_and_read_by_any() -> None:
    disk = SimulatedDisk()
    folder = folder_on(disk)
    folder.create_topic("a", 1, TopicSettings())
    assert reason(lambda: folder_on(disk)) is Reason.FOLDER_IN_USE
    before = disk.fingerprint()
    looked = folder_on(disk, read_only=True)
    assert looked.open_partition("a", 0).end_offset == 0
    assert disk.fingerprint() == before
    folder.release()
    folder.release()
    folder_on(disk)


def test_leftovers_of_interrupted_changes_are_removed() -> None:
    disk = SimulatedDisk()
    folder = folder_on(disk)
    folder.create_topic("a", 1, TopicSettings())
    for name in ("00000005.new", "00000006.gone"):
        disk.make_folder(f"/data/topics/{name}")
        disk.make_folder(f"/data/topics/{name}/0000")
        disk.create(f"/data/topics/{name}/0000/x").close()
    looked = DataFolder(disk.after_kill(), "/data", ManualClock(), read_only=True)
    assert len(looked.notes) == 2
    again = reopened(disk)
    assert len(again.notes) == 2
    assert again._disk.names("/data/topics") == ["00000001"]
    assert [t.name for t in again.topics()] == ["a"]


def test_a_number_is_not_taken_twice_and_strange_names_do_not_matter() -> None:
    disk = SimulatedDisk()
    folder = folder_on(disk)
    folder.create_topic("a", 1, TopicSettings())
    disk.make_folder("/data/topics/lost+found")
    disk.make_folder("/data/topics/00000007")
    folder.create_topic("b", 1, TopicSettings())
    assert folder.partition_folder("b", 0) == "/data/topics/00000008/0000"


def test_a_topic_grows_and_never_shrinks() -> None:
    disk = SimulatedDisk()
    folder = folder_on(disk)
    folder.create_topic("a", 2, TopicSettings())
    disk.make_folder("/data/topics/00000001/0002.new")
    disk.create("/data/topics/00000001/0002.new/half").close()  # of a growth that was never finished
    assert folder.grow_topic("a", 4).partitions == 4
    assert reopened(disk).open_partition("a", 3).end_offset == 0
    assert [path for path in disk.files() if "half" in path] == []
    for count in (4, 3, 0, -1, 10_001):
        assert reason(lambda count=count: folder.grow_topic("a", count)) is Reason.INVALID_PARTITION_COUNT
    for count in (0, 10_001):
        assert (
            reason(lambda count=count: folder.create_topic("b", count, TopicSettings()))
            is Reason.INVALID_PARTITION_COUNT
        )
    assert reason(lambda: folder.open_partition("a", 4)) is Reason.PARTITION_NOT_FOUND
    assert reason(lambda: folder.open_partition("a", -1)) is Reason.PARTITION_NOT_FOUND


def test_a_deleted_topic_is_gone() -> None:
    disk = SimulatedDisk()
    folder = folder_on(disk)
    folder.create_topic("a", 2, TopicSettings())
    folder.delete_topic("a")
    assert disk.names("/data/topics") == []
    assert reason(lambda: folder.delete_topic("a")) is Reason.TOPIC_NOT_FOUND
    folder.create_topic("a", 1, TopicSettings())
    assert reopened(disk).topic("a").partitions == 1


def test_a_damaged_topic_does_not_take_the_others_down() -> None:
    disk = SimulatedDisk()
    folder = folder_on(disk)
    for name in ("a", "b", "c"):
        folder.create_topic(name, 1, TopicSettings())
    disk.flip_bit("/data/topics/00000001/topic.a", 400)
    for slot in ("a", "b"):
        disk.flip_bit(f"/data/topics/00000002/topic.{slot}", 400)
    again = reopened(disk)
    assert [t.name for t in again.topics()] == ["a", "c"]
    assert again.notes == ["topics/00000001/topic.a: checksum does not hold; the other one is used"]
    with pytest.raises(BrokerError, match="1 cannot be opened, it may be one of them: topics/00000002 cannot be read"):
        again.topic("b")
    assert reopened(again._disk).notes == []  # type: ignore[arg-type]


def test_a_partition_that_is_gone_is_a_fault_and_not_an_empty_one() -> None:
    disk = SimulatedDisk()
    folder = folder_on(disk)
    folder.create_topic("a", 1, TopicSettings())
    for name in disk.names("/data/topics/00000001/0000"):
        disk.drop(f"/data/topics/00000001/0000/{name}")
    disk.remove_folder("/data/topics/00000001/0000")
    with pytest.raises(StorageFault, match="partition 0 of topic 'a' was made and is lost"):
        reopened(disk).open_partition("a", 0)


def test_identity_is_mended_from_its_twin_and_never_made_up() -> None:
    disk = SimulatedDisk()
    identity = folder_on(disk).identity
    disk.flip_bit("/data/folder.a", 300)
    mended = reopened(disk)
    assert mended.identity == identity
    assert "folder.a" in mended.notes[0]
    assert reopened(mended._disk).notes == []  # type: ignore[arg-type]
    disk.flip_bit("/data/folder.b", 300)
    with pytest.raises(StorageFault, match=r"folder\.a: .*folder\.b: "):
        reopened(disk)


def test_a_folder_of_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    monkeypatch.setattr("braidlog.storage.folder.data_folder.FORMAT", 2)
    folder_on(disk)
    monkeypatch.undo()
    with pytest.raises(
        StorageFault, match=r"later version of braidlog has written to it \(folder format 2, this version reads 1\)"
    ):
        reopened(disk)


def test_a_hint_names_what_there_is() -> None:
    folder = folder_on(SimulatedDisk())
    with pytest.raises(BrokerError, match="topic 'x' does not exist; there are none yet"):
        folder.topic("x")
    folder.create_topic("clicks", 1, TopicSettings())
    with pytest.raises(BrokerError, match="there are: clicks"):
        folder.topic("click")


def test_a_crash_while_creating_leaves_the_topic_whole_or_absent() -> None:
    whole = SimulatedDisk()
    folder_on(whole)
    made = whole.after_kill()
    steps = len(made.operations)
    folder_on(made).create_topic("a", 2, TopicSettings())
    for stop in range(steps + 1, len(made.operations) + 1, 3):
        disk = whole.after_kill()
        disk.stop_at = stop
        with pytest.raises(BaseException, match="operation"):
            folder_on(disk).create_topic("a", 2, TopicSettings())
        for _, crashed in disk.crash_states(limit=3):
            again = DataFolder(crashed, "/data", ManualClock())
            assert again.broken_topics == {}
            for meta in again.topics():
                assert [again.open_partition("a", n).end_offset for n in range(meta.partitions)] == [0, 0]


def test_topics_whose_folder_lost_its_description_are_not_given_a_new_one() -> None:
    disk = SimulatedDisk()
    folder = DataFolder(disk, "/data", ManualClock())
    folder.create_topic("t", 1, TopicSettings())
    folder.release()
    disk.flip_bit("/data/folder.a", 100)
    disk.drop("/data/folder.b")
    with pytest.raises(StorageFault, match="does not say whose they are"):
        DataFolder(disk, "/data", ManualClock())


def appended(folder: DataFolder, number: int, value: bytes) -> None:
    log = folder.open_partition("a", number)
    log.append(encode_batch([value], base_timestamp=0), now_ms=0, leader_epoch=3)
    log.close()


def content(folder: DataFolder, number: int) -> bytes:
    log = folder.open_partition("a", number)
    found = log.read(0, 10_000)
    log.close()
    return found


def move(disk: SimulatedDisk) -> None:
    """Partition 1 leaves, 2 comes; 1 comes back, empty."""
    folder = folder_on(disk)
    folder.release_partitions("a", (1,))
    folder.hold_partitions("a", (2,))
    appended(folder, 2, b"two")
    folder.hold_partitions("a", (1,))


def test_partitions_come_and_go_whole_at_whatever_step_the_power_fails() -> None:
    made = SimulatedDisk()
    folder = folder_on(made)
    folder.create_topic("a", 3, TopicSettings(), absent=(2,))
    appended(folder, 0, b"zero")
    appended(folder, 1, b"one")
    assert reason(lambda: folder.open_partition("a", 2)) is Reason.NOT_LEADER
    shelf = folder.partition_folder("a", 0)[:-5]
    states: set[tuple[int, ...]] = set()
    for stop in itertools.count(1):
        disk = made.after_kill()
        disk.stop_at = stop
        try:
            move(disk)
        except Crash:
            pass
        else:
            break
        for label, crashed in disk.crash_states(limit=3):
            again = folder_on(crashed)
            held = again.topic("a").held
            assert sorted(name for name in crashed.names(shelf) if name[:4] in ("0001", "0002")) == [
                f"{each:04d}" for each in held[1:]
            ], f"{stop} {label}: nothing is left of what is not held"
            assert b"zero" in content(again, 0)
            if (1 in held, 2 in held) == (True, False):
                assert b"one" in content(again, 1), f"{stop} {label}"
            states.add(tuple(held))
            again.release()
            move(crashed)
            assert content(folder_on(crashed.after_kill()), 1) == b""
    assert states == {(0, 1), (0,), (0, 2), (0, 1, 2)}


def test_a_partition_that_comes_back_knows_no_epoch_of_the_one_before() -> None:
    disk = SimulatedDisk()
    folder = folder_on(disk)
    folder.create_topic("a", 1, TopicSettings())
    log = folder.open_partition("a", 0)
    folder.begin_epochs([(log, 7)])
    log.close()
    folder.release_partitions("a", (0,))
    folder.hold_partitions("a", (0,))
    assert folder.open_partition("a", 0).state.epochs.entries() == []


def test_a_partition_that_comes_back_after_a_start_knows_none_either() -> None:
    disk = SimulatedDisk()
    folder = folder_on(disk)
    folder.create_topic("a", 1, TopicSettings())
    folder.begin_epochs([(folder.open_partition("a", 0), 5)])
    folder.release_partitions("a", (0,))
    disk = disk.after_kill()
    folder = folder_on(disk)
    folder.hold_partitions("a", (0,))
    for each in (folder, reopened(disk)):
        assert each.open_partition("a", 0).state.epochs.entries() == []


def unopened(disk: SimulatedDisk) -> tuple[DataFolder, bytes]:
    """A folder whose partition 1 cannot be opened; and what is left in it."""
    folder = folder_on(disk)
    folder.create_topic("a", 2, TopicSettings(), topic_id="0" * 31 + "1", created_ms=1)
    appended(folder, 0, b"whole")
    appended(folder, 1, b"x")
    place = folder.partition_folder("a", 1)
    for path in [each for each in disk.files() if each.startswith(place) and not each.endswith("state.a")]:
        disk.drop(path)
    with pytest.raises(StorageFault):
        folder.open_partition("a", 1)
    return folder, disk.content(f"{place}/state.a")


def test_a_partition_that_cannot_be_opened_begins_anew_and_what_is_left_is_kept() -> None:
    disk = SimulatedDisk()
    folder, left = unopened(disk)
    folder.reset_log("a", 1)
    assert (content(folder, 0) != b"", content(folder, 1)) == (True, b"")
    (kept,) = [path for path in disk.files() if ".damaged/" in path]
    assert disk.content(kept) == left
    folder.release()
    folder = DataFolder(disk, "/data", ManualClock(1_800_000_000_000))
    folder.reset_log("a", 1)
    assert left not in [disk.content(path) for path in disk.files() if ".damaged/" in path], (
        "the newest is kept, and no other"
    )


def test_no_crash_loses_what_is_left_of_a_partition_that_begins_anew() -> None:
    states = 0
    for number in itertools.count(1):
        disk = SimulatedDisk()
        folder, left = unopened(disk)
        disk.stop_at = len(disk.operations) + number
        try:
            folder.reset_log("a", 1)
        except Crash:
            for label, state in disk.crash_states():
                states += 1
                again = folder_on(state)
                assert left in [state.content(path) for path in state.files()], f"{label}, operation {number}"
                assert content(again, 0) != b""
                try:
                    assert content(again, 1) == b""
                except StorageFault:
                    again.reset_log("a", 1)
                    assert content(again, 1) == b"", f"{label}, operation {number}"
        else:
            break
    assert states > 20
