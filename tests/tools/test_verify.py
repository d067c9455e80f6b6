"""What a check sees: nothing in a sound folder, each kind of damage by its name, notes where a crash left something."""

import msgspec
import pytest
from tests.tools.folders import DATA, FOLDER, TOPIC, build, segments, tree

from braidlog import BrokerError, Log, StorageFault
from braidlog.codec.batch.header import HEADER_BYTES, read_header, seal
from braidlog.storage.state.partition_state import STATE_MAGIC, decode_image, encode_image
from braidlog.storage.two_copy_file import TwoCopyFile
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk
from braidlog.tools.findings import Finding, Kind, Severity
from braidlog.tools.verify import verify


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    build(made)
    return made


def findings(disk: SimulatedDisk) -> list[Finding]:
    before = tree(disk)
    found = verify(disk, DATA).all_findings()
    assert tree(disk) == before, "a check changes nothing"
    return found


def only(disk: SimulatedDisk) -> Finding:
    [found] = findings(disk)
    return found


def test_sound_folder_has_no_findings(disk: SimulatedDisk) -> None:
    report = verify(disk, DATA)
    assert report.sound
    assert report.all_findings() == []
    assert report.next_command is None
    assert len(segments(disk)) >= 3, "the example is too small to mean anything"
    assert report.bytes_read == sum(len(disk.content(path)) for path in segments(disk))
    assert report.partitions[0].records == len(build(SimulatedDisk()))


def test_open_folder_is_sound() -> None:
    disk = SimulatedDisk()
    build(disk, clean=False)
    assert verify(disk, DATA).sound


def test_progress_adds_up_to_the_bytes_read(disk: SimulatedDisk) -> None:
    steps: list[int] = []
    disk.flip_bit(segments(disk)[1], 8 * 1000)
    report = verify(disk, DATA, progress=steps.append)
    assert sum(steps) == report.bytes_read == sum(len(disk.content(path)) for path in segments(disk))


def test_flipped_data_names_file_bytes_and_offsets(disk: SimulatedDisk) -> None:
    path = segments(disk)[1]
    disk.flip_bit(path, 8 * (128 + HEADER_BYTES + 5))
    header = read_header(disk.content(path), 128)
    found = only(disk)
    assert (found.severity, found.kind) == (Severity.DAMAGE, Kind.BATCH)
    assert f"{DATA}/{found.file}" == path
    assert (found.position, found.end) == (128, 128 + header.size_bytes)
    assert (found.first_offset, found.next_offset) == (header.base_offset, header.next_offset)
    assert "CRC" in found.why
    assert verify(disk, DATA).next_command == f"braid log repair --dry-run {DATA}"


@pytest.mark.parametrize(("bit", "what"), [(7 * 8, "base offset"), (13 * 8, "leader epoch"), (16 * 8, "magic")])
def test_one_flipped_bit_outside_the_checksum_loses_nothing(disk: SimulatedDisk, bit: int, what: str) -> None:
    disk.flip_bit(segments(disk)[1], 8 * 128 + bit)
    found = only(disk)
    assert what in found.why
    assert found.offsets_lost == 0


def test_head_and_mark_are_told_apart(disk: SimulatedDisk) -> None:
    first, second, *_ = segments(disk)
    disk.flip_bit(first, 8 * 50)
    disk.flip_bit(second, 8 * 70)
    assert [found.kind for found in findings(disk)] == [Kind.HEAD, Kind.MARK]


def test_cut_segment_below_its_mark(disk: SimulatedDisk) -> None:
    path = segments(disk)[-1]
    size = len(disk.content(path))
    disk.cut(path, 128)
    found = only(disk)
    assert found.kind is Kind.CUT
    assert (found.position, found.end) == (128, size)
    assert found.offsets_lost > 0


def test_missing_segments_are_named_with_their_offsets(disk: SimulatedDisk) -> None:
    paths = segments(disk)
    bases = [int(path.rsplit("/")[-1].split(".")[0]) for path in paths]
    for path in (paths[0], paths[2]):
        disk.drop(path)
    missing = [found for found in findings(disk) if found.kind is Kind.MISSING]
    assert [(found.first_offset, found.next_offset) for found in missing] == [(0, bases[1]), (bases[2], bases[3])]


def test_missing_last_segment_is_noticed(disk: SimulatedDisk) -> None:
    disk.drop(segments(disk)[-1])
    assert Kind.MISSING in {found.kind for found in findings(disk)}


def test_foreign_segment_is_not_believed(disk: SimulatedDisk) -> None:
    with Log(DATA, disk=disk, clock=ManualClock()) as log:
        log.create_topic("other").append(b"theirs")
    [theirs] = [path for path in disk.files() if "/00000002/" in path and path.endswith(".log")]
    ours = segments(disk)[0]
    file = disk.open(ours, writable=True)
    file.write_at(disk.content(theirs), 0)
    file.truncate(len(disk.content(theirs)))
    kinds = {found.kind for found in findings(disk)}
    assert Kind.FOREIGN in kinds


@pytest.mark.parametrize("name", ["state.a", "state.b"])
@pytest.mark.parametrize("how", ["flip", "drop", "cut"])
def test_one_lost_checkpoint_is_a_fault(disk: SimulatedDisk, name: str, how: str) -> None:
    _hurt(disk, f"{FOLDER}/{name}", how)
    found = only(disk)
    assert (found.severity, found.kind) == (Severity.FAULT, Kind.CHECKPOINT)
    assert found.file.endswith(name)


@pytest.mark.parametrize("how", ["flip", "drop", "cut"])
@pytest.mark.parametrize("which", [0, -1])
def test_a_lost_index_is_a_fault(disk: SimulatedDisk, how: str, which: int) -> None:
    _hurt(disk, segments(disk, ".idx")[which], how)
    found = only(disk)
    is_left_out = how == "drop" and which == -1
    assert (found.severity, found.kind) == (Severity.NOTE if is_left_out else Severity.FAULT, Kind.INDEX)


@pytest.mark.parametrize("how", ["flip", "drop", "cut"])
def test_a_lost_snapshot_is_a_fault(disk: SimulatedDisk, how: str) -> None:
    _hurt(disk, segments(disk, ".state")[-1], how)
    found = only(disk)
    assert (found.severity, found.kind) == (Severity.FAULT, Kind.SNAPSHOT)


@pytest.mark.parametrize("how", ["flip", "drop", "cut"])
@pytest.mark.parametrize(
    ("path", "kind"), [(f"{DATA}/folder.b", Kind.FOLDER), (f"{DATA}/topics/00000001/topic.a", Kind.TOPIC)]
)
def test_a_lost_description_is_a_fault(disk: SimulatedDisk, path: str, kind: Kind, how: str) -> None:
    _hurt(disk, path, how)
    found = only(disk)
    assert (found.severity, found.kind) == (Severity.FAULT, kind)


def _hurt(disk: SimulatedDisk, path: str, how: str) -> None:
    match how:
        case "flip":
            disk.flip_bit(path, 8 * (len(disk.content(path)) - 3))
        case "drop":
            disk.drop(path)
        case "cut":
            disk.cut(path, len(disk.content(path)) - 1)


def test_an_index_that_lies_is_noticed_although_its_checksums_hold(disk: SimulatedDisk) -> None:
    """The index of another folder's segment with the same offsets: every checksum in it is right."""
    other = SimulatedDisk()
    with Log(DATA, disk=other, clock=ManualClock()) as log:
        topic = log.create_topic(TOPIC, segment_bytes=4096, index_interval_bytes=256)
        for _ in range(30):
            topic.append(b"x" * 300)
    path = segments(disk, ".idx")[0]
    file = disk.open(path, writable=True)
    file.write_at(other.content(path), 0)
    file.truncate(len(other.content(path)))
    found = only(disk)
    assert found.kind is Kind.INDEX
    assert "does not describe" in found.why


def test_a_checkpoint_that_lies_is_noticed_although_its_checksum_holds(disk: SimulatedDisk) -> None:
    pair = TwoCopyFile(disk, FOLDER, "state", STATE_MAGIC)
    image = decode_image(pair.load()[0].payload)
    image.producers[0].batches.pop()
    pair.save(encode_image(image))
    found = only(disk)
    assert found.kind is Kind.CHECKPOINT
    assert "producer" in found.why


def test_records_that_do_not_decode_are_told_from_damage(disk: SimulatedDisk) -> None:
    path = segments(disk)[0]
    content = bytearray(disk.content(path))
    header = read_header(content, 128)
    batch = bytearray(content[128 : 128 + header.size_bytes])
    batch[HEADER_BYTES] ^= 0x7E  # the length of the first record
    content[128 : 128 + header.size_bytes] = seal(batch)
    file = disk.open(path, writable=True)
    file.write_at(bytes(content), 0)
    found = only(disk)
    assert (found.severity, found.kind) == (Severity.FAULT, Kind.RECORDS)


def test_a_torn_tail_is_a_note() -> None:
    disk = SimulatedDisk()
    build(disk, clean=False)
    path = segments(disk)[-1]
    file = disk.open(path, writable=True)
    file.append([b"half a batch"], file.size())
    found = only(disk)
    assert (found.severity, found.kind) == (Severity.NOTE, Kind.TAIL)


def test_leftovers_and_strangers_are_notes(disk: SimulatedDisk) -> None:
    for path in (f"{DATA}/topics/00000009.new", f"{DATA}/notes"):
        disk.make_folder(path)
    for path in (
        f"{FOLDER}/{0:020d}.cleaned",
        f"{FOLDER}/{999:020d}.state",
        f"{FOLDER}/readme.log",
        f"{DATA}/cluster.a",
    ):
        disk.create(path)  # the last one is a node's of a cluster, and no stranger
    found = findings(disk)
    assert {f.severity for f in found} == {Severity.NOTE, Severity.FAULT} or {f.severity for f in found} == {
        Severity.NOTE
    }
    kinds = sorted(f.kind for f in found if f.severity is Severity.NOTE)
    assert kinds.count(Kind.LEFTOVER) >= 2
    assert kinds.count(Kind.STRANGER) == 2


def test_nothing_left_is_said_plainly(disk: SimulatedDisk) -> None:
    for path in disk.files():
        if path.startswith(FOLDER):
            disk.drop(path)
    found = only(disk)
    assert found.kind is Kind.PARTITION
    assert "restore" in found.meaning


def test_no_folder_and_no_braidlog_folder_are_refused() -> None:
    disk = SimulatedDisk()
    disk.make_folder("/other")
    disk.create("/other/file")
    with pytest.raises(BrokerError, match="does not exist"):
        verify(disk, "/nowhere")
    with pytest.raises(BrokerError, match="not a braidlog data folder"):
        verify(disk, "/other")


def test_unknown_topic_is_refused_with_a_hint(disk: SimulatedDisk) -> None:
    with pytest.raises(BrokerError, match=f"topics: {TOPIC}"):
        verify(disk, DATA, "clack")


def test_compacted_and_retained_logs_are_sound() -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    with Log(DATA, disk=disk, clock=clock) as log:
        topic = log.create_topic(TOPIC, segment_bytes=4096, index_interval_bytes=256, compact=True)
        for number in range(60):
            clock.advance(1000)
            topic.append(b"x" * 200, key=str(number % 7).encode())
        topic.compact()
        assert verify(disk, DATA).sound
        for number in range(40):
            topic.append(b"y" * 200, key=str(number % 7).encode())
        topic.delete_before(topic.partition().segments[2].base_offset)
        assert topic.start_offset() > 0
    report = verify(disk, DATA)
    assert report.all_findings() == []
    with Log(DATA, disk=disk, clock=clock) as log:
        assert log.topic(TOPIC).start_offset() == report.partitions[0].start_offset


def test_report_survives_json(disk: SimulatedDisk) -> None:
    disk.flip_bit(segments(disk)[1], 8 * 1000)
    report = verify(disk, DATA)
    assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report


def test_unreadable_disk_is_a_fault_not_a_finding(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> list[str]:
        raise StorageFault("cannot list: Input/output error", path)

    monkeypatch.setattr(disk, "names", refuse)
    with pytest.raises(StorageFault, match="Input/output"):
        verify(disk, DATA)
