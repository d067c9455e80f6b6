"""A dry run says what an opening then does, and changes nothing."""

from collections.abc import Callable
from random import Random

import pytest
from tests.storage.building import FOLDER as PLACE
from tests.storage.building import IDENTITY, NOW, batch, make_partition, open_partition, small

from braidlog import Log, StorageFault
from braidlog.codec.batch.records import encode_batch
from braidlog.model.settings import TopicSettings
from braidlog.storage.log.partition_log import PartitionLog, create_partition
from braidlog.storage.open_files import FilePool
from braidlog.storage.recovery.damage import Change, ChangeKind, DamageKind
from braidlog.storage.recovery.recovery import Recovered, Recovery
from braidlog.storage.segment.batch_scan import BadBatch, ScannedBatch, resume
from braidlog.storage.segment.segment import Segment
from braidlog.storage.segment.segment_files import DATA_START, Identity
from braidlog.storage.state.partition_state import STATE_MAGIC, StateImage, encode_image
from braidlog.storage.two_copy_file import TwoCopyFile
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import Crash, SimulatedDisk

DATA = "/data"
FOLDER = f"{DATA}/topics/00000001/0000"


def _compact(disk: SimulatedDisk) -> None:
    log = Log(DATA, disk=disk, clock=ManualClock())  # no `with`: who is dead closes nothing
    topic = log.create_topic("a", segment_bytes=4096, index_interval_bytes=256, compact=True)
    for number in range(40):
        topic.append(b"x" * 200, key=str(number % 3).encode())
    topic.compact()
    topic.delete_before(topic.partition().segments[-1].base_offset)
    topic.append(b"y")
    log.close()


def _truncate(disk: SimulatedDisk) -> None:
    log = Log(DATA, disk=disk, clock=ManualClock())
    topic = log.create_topic("a", segment_bytes=4096, index_interval_bytes=256)
    for _ in range(40):
        topic.append(b"x" * 200)
    topic.partition().truncate(17)
    topic.append(b"y")
    log.close()


def _tree(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: disk.content(path) for path in disk.files()}


def _identity(disk: SimulatedDisk) -> Identity:
    """As the heads of the segments have it: the topic's own description is not what is tested here."""
    heads = [disk.content(path)[16:32] for path in disk.files() if path.startswith(FOLDER) and path.endswith(".log")]
    return Identity(next((head for head in heads if any(head)), bytes(16)), 0)


def _recovery(disk: SimulatedDisk, *, read_only: bool) -> Recovery:
    settings = TopicSettings(segment_bytes=4096, index_interval_bytes=256)
    return Recovery(disk, FOLDER, _identity(disk), settings, FilePool(disk), read_only=read_only)


def _decided(found: Recovered) -> tuple[list[Change], list[str], list[tuple[int, int]], int, int]:
    changes = [change for change in found.report.changes if change.kind is not ChangeKind.DERIVED]
    damages = [str(damage) for damage in found.report.damages]
    segments = [(segment.base_offset, segment.size) for segment in found.segments]
    return changes, damages, segments, found.state.start_offset, found.state.end_offset


@pytest.mark.parametrize("work", [_compact, _truncate], ids=["compact", "truncate"])
def test_a_dry_run_decides_as_an_opening_does(work: Callable[[SimulatedDisk], None]) -> None:
    counted = SimulatedDisk()
    work(counted)
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    kinds = set()
    last = len(counted.operations)
    for stop_at in sorted(rng.sample(range(last // 2, last + 1), 60)):
        dying = SimulatedDisk()
        dying.stop_at = stop_at
        with pytest.raises(Crash):
            work(dying)
        for label, state in dying.crash_states(limit=4, rng=rng):
            before = _tree(state)
            foreseen = _decided(_recovery(state, read_only=True).inspect())
            assert _tree(state) == before, "a dry run changes nothing"
            assert _decided(_recovery(state, read_only=False).run()) == foreseen, f"stopped at {stop_at}, {label}"
            kinds |= {change.kind for change in foreseen[0]}
    assert kinds, "no crash left anything: this test tests nothing"


def test_a_dry_run_reads_a_finished_rewrite_whose_old_file_is_gone() -> None:
    disk = SimulatedDisk()
    partition = make_partition(disk, small())
    for number in range(20):
        partition.append(batch(str(number).encode() * 40), now_ms=NOW)
    partition.close()
    path = partition.segments[0].path
    end = partition.end_offset
    disk.rename(path, path.replace(".log", ".swap"))
    recovery = Recovery(disk, partition.folder, partition.identity, small(), FilePool(disk), read_only=True)
    found = recovery.inspect()
    assert found.report.damages == []
    assert [change.kind for change in found.report.changes] == [ChangeKind.FINISH_REWRITE]
    assert (found.segments[0].base_offset, found.state.end_offset) == (0, end)


def test_batches_inside_of_a_damaged_record_are_not_taken_for_the_logs() -> None:
    disk = SimulatedDisk()
    partition = make_partition(disk, small(segment_bytes=2**20))
    inner = bytearray(encode_batch([b"inner"] * 3, base_timestamp=0))
    inner[:8] = (1000).to_bytes(8, "big")  # outside of the checksum: a whole batch with a later offset
    for value in (b"first", bytes(inner), b"last"):
        partition.append(encode_batch([value], base_timestamp=0), now_ms=NOW)
    partition.close()
    segment = partition.segments[0]
    places = [(found.position, found.header) for found in segment.walk_from(0, check=True)]
    position, header = places[1]
    for magic_or_data in (16, header.size_bytes - 1):  # the end it states is not to be had, and is
        hurt = disk.after_kill()
        hurt.flip_bit(segment.path, 8 * (position + magic_or_data))
        file = hurt.open(segment.path, writable=False)
        assert resume(file, segment.size, BadBatch(position, 1, "hurt")) == (places[2][0], 2)


def _written(identity: Identity = IDENTITY) -> tuple[SimulatedDisk, PartitionLog]:
    """Four segments of six batches each, closed."""
    disk = SimulatedDisk()
    create_partition(disk, PLACE, identity, small(), FilePool(disk), now_ms=NOW)
    partition = PartitionLog(disk, PLACE, identity, small(), FilePool(disk))
    for number in range(24):
        if number % 6 == 0 and number:
            partition.roll(NOW)
        partition.append(batch(str(number).encode() * 40), now_ms=NOW)
        partition.sync()
    partition.close()
    return disk, partition


def test_nothing_is_read_from_a_segment_that_says_it_is_anothers() -> None:
    disk, partition = _written()
    theirs, foreign = _written(Identity(b"f" * 16, 0))
    first, second = partition.segments[0], partition.segments[1]
    assert first.path == foreign.segments[0].path
    disk.open(first.path, writable=True).write_at(theirs.content(first.path), 0)
    opened = open_partition(disk)
    assert DamageKind.FOREIGN in {damage.kind for damage in opened.damages}
    with pytest.raises(StorageFault):
        opened.read(0, 1)
    assert opened.read(second.base_offset, 1)


def test_the_seal_of_an_index_tells_of_a_segment_that_is_gone() -> None:
    """The checkpoint is older than the segments that are lost: their offsets were given out all the same."""
    disk, partition = _written()
    for segment in partition.segments[1:]:
        disk.drop(segment.path)
    image = StateImage(start_offset=0, end_offset=3, epochs=partition.state.epochs.entries())
    pair = TwoCopyFile(disk, PLACE, "state", STATE_MAGIC)
    pair.load()
    pair.save(encode_image(image), copies=2)
    opened = open_partition(disk)
    [damage] = opened.damages
    assert damage.kind is DamageKind.MISSING
    assert (damage.first_offset, damage.next_offset) == (6, 18), "as far as the last index that was sealed"
    assert opened.end_offset == 18


def test_without_checkpoints_one_wrong_epoch_condemns_one_batch() -> None:
    disk = SimulatedDisk()
    partition = make_partition(disk, small(segment_bytes=2**20))
    for number in range(10):
        partition.append(batch(str(number).encode() * 40, leader_epoch=3), leader_epoch=3, now_ms=NOW)
    partition.close()
    [segment] = partition.segments
    position = [found.position for found in segment.walk_from(0, check=True)][2]
    disk.flip_bit(segment.path, 8 * (position + 14))  # a far higher epoch
    for name in ("state.a", "state.b"):
        disk.drop(f"{partition.folder}/{name}")
    opened = open_partition(disk)
    assert [(damage.first_offset, damage.next_offset) for damage in opened.damages] == [(2, 3)]
    assert opened.state.epochs.entries() == [(3, 0)]


class _Witness:
    """An auditor who remembers, and keeps all but `unwanted`."""

    def __init__(self, unwanted: int | None = None) -> None:
        self.seen: list[int] = []
        self._unwanted = unwanted

    def begin(self, segment: Segment) -> None:
        assert segment.base_offset == 0 or self.seen

    def take(self, segment: Segment, found: ScannedBatch) -> str | None:
        assert found.window[found.at : found.at + 8] == found.header.base_offset.to_bytes(8, "big")
        self.seen.append(found.header.base_offset)
        return "unwanted" if found.header.base_offset == self._unwanted else None


def _audit(disk: SimulatedDisk, partition: PartitionLog, witness: _Witness) -> Recovered:
    pool = FilePool(disk)
    return Recovery(
        disk, partition.folder, partition.identity, small(), pool, read_only=True, auditor=witness
    ).inspect()


def test_an_audit_finds_what_an_opening_leaves_for_its_readers() -> None:
    disk, partition = _written()
    first, second = partition.segments[0], partition.segments[1]
    disk.flip_bit(first.path, 8 * (first.size - 3))
    disk.flip_bit(second.path, 8 * (DATA_START + 7))  # one bit of the base offset, outside the checksum
    assert open_partition(disk.after_kill()).damages == [], "sealed segments are trusted"
    witness = _Witness()
    [lost, mended] = _audit(disk, partition, witness).report.damages
    assert (lost.file, lost.end, lost.next_offset, lost.mended) == (first.path, first.size, first.next_offset, b"")
    assert (mended.file, mended.position) == (second.path, DATA_START)
    assert mended.first_offset == mended.next_offset, "nothing is lost"
    assert mended.mended[:8] == second.base_offset.to_bytes(8, "big")
    assert witness.seen == [offset for offset in range(24) if offset != lost.first_offset]


def test_an_auditor_may_refuse_a_whole_batch() -> None:
    disk, partition = _written()
    witness = _Witness(unwanted=5)
    [damage] = _audit(disk, partition, witness).report.damages
    assert (damage.first_offset, damage.next_offset, damage.why) == (5, 6, "unwanted")
    assert witness.seen == list(range(24))
