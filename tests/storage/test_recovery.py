"""A dry run says what an opening then does, and changes nothing."""

from collections.abc import Callable
from random import Random

import pytest
from tests.storage.building import NOW, batch, make_partition, small

from braidlog import Log
from braidlog.codec.records import encode_batch
from braidlog.model.settings import TopicSettings
from braidlog.storage.damage import Change, ChangeKind
from braidlog.storage.head import Identity
from braidlog.storage.pool import FilePool
from braidlog.storage.recovery import Recovered, Recovery
from braidlog.storage.walk import BadBatch, resume
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
            foreseen = _decided(_recovery(state, read_only=True).look())
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
    found = recovery.look()
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
