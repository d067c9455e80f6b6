"""Damage of every kind, then a repair: what was whole is still there, what was lost stays lost, and writing goes on."""

import json
from collections.abc import Callable
from random import Random

import pytest
from tests.storage.building import batches_in
from tests.tools.folders import (
    DATA,
    FOLDER,
    TOPIC,
    Truth,
    assert_healed,
    build,
    read,
    repair,
    repairer,
    segments,
    tree,
)

from braidlog import BrokerError, Compression, Log, NewRecord, StorageFault
from braidlog.codec.batch.header import HEADER_BYTES, iter_batches, read_header, seal
from braidlog.codec.batch.records import encode_batch
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import Crash, SimulatedDisk
from braidlog.tools.dump import BatchLine, PartitionDump, StateLine
from braidlog.tools.findings import Kind
from braidlog.tools.verify import verify

Hurt = Callable[[SimulatedDisk], set[int] | None]


@pytest.fixture(scope="module")
def original() -> tuple[SimulatedDisk, Truth]:
    disk = SimulatedDisk()
    return disk, build(disk)


@pytest.fixture
def disk(original: tuple[SimulatedDisk, Truth]) -> SimulatedDisk:
    return original[0].after_kill()


@pytest.fixture
def truth(original: tuple[SimulatedDisk, Truth]) -> Truth:
    return original[1]


def offsets_of(disk: SimulatedDisk, path: str, *numbers: int) -> set[int]:
    """The offsets of the numbered batches of a segment; of all of them if none is numbered."""
    headers = [header for _, header in batches_in(disk.content(path))]
    chosen = [headers[number] for number in numbers] if numbers else headers
    return {offset for header in chosen for offset in range(header.base_offset, header.next_offset)}


def position_of(disk: SimulatedDisk, path: str, number: int) -> int:
    return [position for position, _ in batches_in(disk.content(path))][number]


def flip_data(disk: SimulatedDisk) -> set[int]:
    path = segments(disk)[1]
    lost = offsets_of(disk, path, 1)
    disk.flip_bit(path, 8 * (position_of(disk, path, 1) + HEADER_BYTES + 9))
    return lost


def flip_length(disk: SimulatedDisk) -> set[int]:
    disk.flip_bit(segments(disk)[1], 8 * (position_of(disk, segments(disk)[1], 1) + 9) + 3)
    return set()


def flip_base_offset(disk: SimulatedDisk) -> set[int]:
    disk.flip_bit(segments(disk)[1], 8 * (position_of(disk, segments(disk)[1], 1) + 2))
    return set()


def flip_epoch(disk: SimulatedDisk) -> set[int]:
    disk.flip_bit(segments(disk)[3], 8 * (position_of(disk, segments(disk)[3], 0) + 12))
    return set()


def flip_last_batch(disk: SimulatedDisk) -> set[int]:
    path = segments(disk)[-1]
    lost = offsets_of(disk, path, -1)
    disk.flip_bit(path, 8 * (len(disk.content(path)) - 4))
    return lost


def zero_sector(disk: SimulatedDisk) -> set[int]:
    path = segments(disk)[2]
    position = position_of(disk, path, 1)
    lost = offsets_of(disk, path, 1)
    disk.zero(path, position, position + 40)
    return lost


def zero_whole_segment(disk: SimulatedDisk) -> set[int]:
    path = segments(disk)[1]
    lost = offsets_of(disk, path)
    disk.zero(path, 0, 2**20)
    return lost


def flip_head(disk: SimulatedDisk) -> set[int]:
    disk.flip_bit(segments(disk)[1], 8 * 13)  # the generation, by which the mark is known
    return set()


def flip_mark(disk: SimulatedDisk) -> set[int]:
    disk.flip_bit(segments(disk)[-1], 8 * 66)
    return set()


def flip_head_and_mark(disk: SimulatedDisk) -> set[int]:
    for number in (1, -1):
        disk.zero(segments(disk)[number], 0, 128)
    return set()


def cut_sealed(disk: SimulatedDisk) -> set[int]:
    path = segments(disk)[1]
    lost = offsets_of(disk, path, -2, -1)
    disk.cut(path, position_of(disk, path, -2) + 30)
    return lost


def cut_active(disk: SimulatedDisk) -> set[int]:
    path = segments(disk)[-1]
    lost = offsets_of(disk, path, -1)
    disk.cut(path, len(disk.content(path)) - 1)
    return lost


def cut_active_into_its_head(disk: SimulatedDisk) -> set[int]:
    path = segments(disk)[-1]
    lost = offsets_of(disk, path)
    disk.cut(path, 70)
    return lost


def empty_active(disk: SimulatedDisk) -> set[int]:
    path = segments(disk)[-1]
    lost = offsets_of(disk, path)
    disk.cut(path, 0)
    return lost


def lengthen_sealed(disk: SimulatedDisk) -> set[int]:
    file = disk.open(segments(disk)[1], writable=True)
    file.append([b"garbage behind the end"], file.size())
    return set()


def drop_first(disk: SimulatedDisk) -> set[int]:
    return drop(disk, 0)


def drop_two_in_the_middle(disk: SimulatedDisk) -> set[int]:
    return drop(disk, 1) | drop(disk, 1)


def drop_last(disk: SimulatedDisk) -> set[int]:
    return drop(disk, -1)


def drop_all_segments(disk: SimulatedDisk) -> set[int]:
    return set().union(*(drop(disk, 0) for _ in segments(disk)))


def drop(disk: SimulatedDisk, number: int) -> set[int]:
    path = segments(disk)[number]
    lost = offsets_of(disk, path)
    disk.drop(path)
    return lost


def many_in_one_segment(disk: SimulatedDisk) -> set[int]:
    path = segments(disk)[2]
    lost = offsets_of(disk, path, 0, 2)
    places = [position_of(disk, path, number) + HEADER_BYTES + 2 for number in (0, 2)]
    for place in places:
        disk.flip_bit(path, 8 * place)
    return lost


def many_everywhere(disk: SimulatedDisk) -> set[int]:
    lost = flip_data(disk) | many_in_one_segment(disk) | cut_active(disk) | drop_first(disk)
    disk.drop(segments(disk, ".idx")[-1])
    disk.flip_bit(f"{FOLDER}/state.a", 100)
    disk.drop(f"{DATA}/folder.a")
    disk.cut(f"{DATA}/topics/00000001/topic.b", 10)
    return lost


def lose_checkpoints(disk: SimulatedDisk) -> set[int]:
    disk.flip_bit(f"{FOLDER}/state.a", 100)
    disk.drop(f"{FOLDER}/state.b")
    return set()


def lose_checkpoints_and_data(disk: SimulatedDisk) -> set[int]:
    return lose_checkpoints(disk) | drop(disk, -2) | flip_data(disk)


def lose_checkpoints_and_an_epoch(disk: SimulatedDisk) -> set[int]:
    """Without a checkpoint the history of epochs is learned; one flipped epoch must not condemn what follows it."""
    path = segments(disk)[1]
    lost = offsets_of(disk, path, 0)
    disk.flip_bit(path, 8 * (128 + 12) + 2)
    return lost | lose_checkpoints(disk)


def lose_checkpoints_and_the_last_snapshot(disk: SimulatedDisk) -> set[int]:
    """The snapshot is written again; that the log starts where it did must be in it."""
    disk.drop(segments(disk, ".state")[-1])
    return lose_checkpoints(disk)


def lose_the_first_batch_too(disk: SimulatedDisk) -> set[int]:
    """... and when the first epoch began."""
    lost = offsets_of(disk, segments(disk)[0], 0)
    disk.flip_bit(segments(disk)[0], 8 * (128 + HEADER_BYTES + 9))
    return lost | lose_checkpoints_and_the_last_snapshot(disk)


def lose_snapshots(disk: SimulatedDisk) -> set[int]:
    first, second, *_ = segments(disk, ".state")
    disk.drop(first)
    disk.flip_bit(second, 200)
    return set()


def lose_all_derived(disk: SimulatedDisk) -> set[int]:
    for path in [*segments(disk, ".idx"), *segments(disk, ".state")]:
        disk.drop(path)
    return set()


def flip_index(disk: SimulatedDisk) -> set[int]:
    disk.flip_bit(segments(disk, ".idx")[1], 8 * 30)
    return set()


def lose_identity(disk: SimulatedDisk) -> set[int]:
    disk.drop(f"{DATA}/folder.a")
    disk.flip_bit(f"{DATA}/folder.b", 33)
    return set()


KINDS: list[Hurt] = [
    flip_data,
    flip_length,
    flip_base_offset,
    flip_epoch,
    flip_last_batch,
    zero_sector,
    zero_whole_segment,
    flip_head,
    flip_mark,
    flip_head_and_mark,
    cut_sealed,
    cut_active,
    cut_active_into_its_head,
    empty_active,
    lengthen_sealed,
    drop_first,
    drop_two_in_the_middle,
    drop_last,
    drop_all_segments,
    many_in_one_segment,
    many_everywhere,
    lose_checkpoints,
    lose_checkpoints_and_data,
    lose_checkpoints_and_an_epoch,
    lose_checkpoints_and_the_last_snapshot,
    lose_the_first_batch_too,
    lose_snapshots,
    lose_all_derived,
    flip_index,
    lose_identity,
]


@pytest.mark.parametrize("hurt", KINDS, ids=lambda hurt: hurt.__name__)
def test_every_kind_of_damage(disk: SimulatedDisk, truth: Truth, hurt: Hurt) -> None:
    may_lose = hurt(disk)
    assert not verify(disk, DATA).sound
    hurt_tree = tree(disk)
    plan = repairer(disk).plan()
    assert tree(disk) == hurt_tree, "a plan changes nothing"
    report = repair(disk)
    assert report.steps == plan.steps, "what was announced is what was done"
    assert report.beyond_repair == []
    lost = assert_healed(disk, truth, may_lose)
    assert report.offsets_lost >= len(lost)
    assert repairer(disk).plan().steps == [], "there is nothing left to do"


@pytest.mark.parametrize("hurt", KINDS, ids=lambda hurt: hurt.__name__)
def test_a_repair_that_dies_at_any_point_is_run_again(disk: SimulatedDisk, truth: Truth, hurt: Hurt) -> None:
    may_lose = hurt(disk)
    rng = Random(hurt.__name__)
    counted = disk.after_kill()
    repair(counted)
    stops = range(1, len(counted.operations) + 1)
    for stop_at in stops if len(stops) < 60 else sorted(rng.sample(stops, 60)):
        dying = disk.after_kill()
        dying.stop_at = stop_at
        dying.stop_when = rng.choice(["before", "after"])
        with pytest.raises(Crash):
            repair(dying)
        for label, state in dying.crash_states(limit=4, rng=rng):
            again = state.copy()
            try:
                repair(again)
                assert_healed(again, truth, may_lose)
            except (AssertionError, StorageFault, BrokerError) as error:
                raise AssertionError(f"{hurt.__name__}, stopped {dying.stop_when} {stop_at}, {label}") from error


def test_bits_flipped_anywhere(disk: SimulatedDisk, truth: Truth) -> None:
    """No byte of a folder at rest is unguarded: whichever bit is flipped, a check says so and a repair mends it."""
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    places = [(path, at) for path in disk.files() if not path.endswith("LOCK") for at in range(len(disk.content(path)))]
    for path, at in rng.sample(places, 250):
        hurt = disk.after_kill()
        hurt.flip_bit(path, 8 * at + rng.randrange(8))
        assert not verify(hurt, DATA).sound, f"byte {at} of {path}"
        repair(hurt)
        may_lose = set()
        if path.endswith(".log") and at >= 128:
            bases = [offsets for offsets in _batches(disk, path) if offsets[0] <= at < offsets[1]]
            may_lose = set(range(bases[0][2], bases[0][3]))
        assert_healed(hurt, truth, may_lose)


def _batches(disk: SimulatedDisk, path: str) -> list[tuple[int, int, int, int]]:
    return [
        (128 + position, 128 + position + header.size_bytes, header.base_offset, header.next_offset)
        for position, header in iter_batches(disk.content(path)[128:])
    ]


def test_random_damage_in_random_number(disk: SimulatedDisk, truth: Truth) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    for _ in range(80):
        hurt = disk.after_kill()
        for _ in range(rng.randint(1, 6)):
            path = rng.choice([path for path in hurt.files() if path.startswith(FOLDER)])
            size = max(len(hurt.content(path)), 1)
            match rng.randrange(4):
                case 0:
                    if hurt.content(path):
                        hurt.flip_bit(path, rng.randrange(8 * size))
                case 1:
                    start = rng.randrange(size)
                    hurt.zero(path, start, start + rng.randrange(1, 512))
                case 2:
                    hurt.cut(path, rng.randrange(size))
                case 3:
                    hurt.drop(path)
        if verify(hurt, DATA).partitions[0].findings and not repairer(hurt).plan().beyond_repair:
            done = repair(hurt)
            found = read(hurt)
            assert all(found[offset] == truth[offset] for offset in found)
            report = verify(hurt, DATA)
            there = range(report.partitions[0].start_offset, report.partitions[0].end_offset)
            lost = {offset for offset in truth if offset not in found and offset in there}
            assert len(lost) <= done.offsets_lost, "more is lost than was said"
            assert report.sound, report.all_findings()


def test_quarantine_keeps_the_bytes_and_says_where_they_stood(disk: SimulatedDisk) -> None:
    flip_data(disk)
    path = segments(disk)[1]
    position = position_of_bad = _first_bad(disk)
    before = disk.content(path)
    report = repair(disk)
    base = int(path.rsplit("/")[-1].split(".")[0])
    assert report.quarantined == [f"{TOPIC}-0-{base}-{position}.bin"]
    kept = disk.content(f"{DATA}/quarantine/{report.quarantined[0]}")
    assert kept == before[position : position + len(kept)]
    said = json.loads(disk.content(f"{DATA}/quarantine/{TOPIC}-0-{base}-{position_of_bad}.json"))
    assert said["topic"] == TOPIC
    assert said["position"] == position
    assert said["end"] == position + len(kept)
    assert said["next_offset"] > said["first_offset"]
    assert "CRC" in said["why"]
    assert said["taken_out_ms"] == ManualClock().now_ms()
    for _, state in disk.crash_states():
        assert state.content(f"{DATA}/quarantine/{report.quarantined[0]}") == kept, "quarantine is durable"


def _first_bad(disk: SimulatedDisk) -> int:
    [found] = [finding for finding in verify(disk, DATA).all_findings() if finding.kind is Kind.BATCH]
    return found.position


def test_quarantine_is_durable_before_anything_changes(disk: SimulatedDisk) -> None:
    many_everywhere(disk)
    disk.operations.clear()
    repair(disk)
    touched = [
        op for op in disk.operations if op.kind in ("rename", "remove", "truncate") and op.path.startswith(FOLDER)
    ]
    synced = [op for op in disk.operations if op.kind == "sync_folder" and op.path.endswith("quarantine")]
    reports = [op for op in disk.operations if op.kind == "rename" and "quarantine" in op.path]
    assert reports
    assert touched[0].number > synced[-1].number > reports[-1].number


def test_an_earlier_quarantine_is_not_overwritten(disk: SimulatedDisk, truth: Truth) -> None:
    flip_data(disk)
    [first] = repair(disk).quarantined
    kept = disk.content(f"{DATA}/quarantine/{first}")
    path = segments(disk)[1]
    position = _position_in_name(first)
    disk.flip_bit(path, 8 * (position + 40))  # the empty batch that stands there now
    [second] = repair(disk).quarantined
    assert second == first.replace(".bin", ".1.bin")
    assert disk.content(f"{DATA}/quarantine/{first}") == kept
    assert_healed(disk, truth)


def _position_in_name(name: str) -> int:
    return int(name.removesuffix(".bin").rsplit("-", 1)[1])


def test_a_topic_without_description_comes_back_under_another_name(disk: SimulatedDisk, truth: Truth) -> None:
    for name in ("topic.a", "topic.b"):
        disk.zero(f"{DATA}/topics/00000001/{name}", 0, 100)
    repair(disk)
    assert_healed(disk, truth, set(), topic="recovered-00000001")


def test_a_partition_of_which_nothing_is_left_is_beyond_repair(disk: SimulatedDisk) -> None:
    for path in disk.files():
        if path.startswith(FOLDER):
            disk.drop(path)
    before = tree(disk)
    plan = repairer(disk).plan()
    assert plan.steps == []
    assert "restore" in plan.beyond_repair[0]
    assert tree(disk) == before


def test_a_segment_of_another_version_is_left_alone(disk: SimulatedDisk) -> None:
    path = segments(disk)[1]
    head = bytearray(disk.content(path)[:64])
    head[9] = 2
    from braidlog.codec.crc import crc32c  # noqa: PLC0415

    head[60:64] = crc32c(bytes(head[:60])).to_bytes(4, "big")
    disk.open(path, writable=True).write_at(bytes(head), 0)
    before = tree(disk)
    plan = repairer(disk).plan()
    assert plan.steps == []
    assert "version 2" in plan.beyond_repair[0]
    repair_tree = tree(disk)
    assert repair_tree == before


def test_unreadable_records_stay_unless_told_otherwise(disk: SimulatedDisk, truth: Truth) -> None:
    path = segments(disk)[0]
    header = read_header(disk.content(path), 128)
    batch = bytearray(disk.content(path)[128 : 128 + header.size_bytes])
    batch[HEADER_BYTES] ^= 0x7E
    disk.open(path, writable=True).write_at(seal(batch), 128)
    plan = repairer(disk).plan()
    assert plan.steps == []
    assert "--drop-unreadable" in plan.beyond_repair[0]
    repairer(disk, drop_unreadable=True).run()
    assert_healed(disk, truth, set(range(header.base_offset, header.next_offset)))


def test_a_stale_batch_of_a_truncated_epoch_is_not_resurrected(disk: SimulatedDisk, truth: Truth) -> None:
    """Its checksum holds and its place fits; only its epoch, one bit from the right one, tells that it was truncated."""
    path = segments(disk)[2]
    position = position_of(disk, path, 0)
    header = read_header(disk.content(path), position)
    assert header.leader_epoch == 9
    lost = offsets_of(disk, path, 0)
    with Log(DATA, disk=disk, clock=ManualClock()) as log:
        assert 0 in {epoch for epoch, _ in log.topic(TOPIC).partition().state.epochs.entries()}
    disk.open(path, writable=True).write_at((0).to_bytes(4, "big"), position + 12)
    repair(disk)
    assert assert_healed(disk, truth, lost) == lost


def test_batches_inside_a_record_are_not_taken_for_the_logs_own() -> None:
    """A log of logs: the value of a record is a batch with a valid checksum and a plausible offset."""
    disk = SimulatedDisk()
    with Log(DATA, disk=disk, clock=ManualClock()) as log:
        topic = log.create_topic(TOPIC)
        inner = encode_batch([b"inner"] * 3, base_timestamp=0, base_offset=5)
        for _ in range(3):
            topic.append_many([NewRecord(b"plain"), NewRecord(b"head " + inner + b" tail")])
        topic.append_many([NewRecord(b"x" * 50)] * 4, compression=Compression.NONE)
        truth = {record.offset: record for record in topic}
    path = segments(disk)[0]
    twice = disk.after_kill()
    disk.flip_bit(path, 8 * (128 + 30))  # in the header, under the checksum: the length is still right
    repair(disk)
    assert assert_healed(disk, truth, {0, 1}) == {0, 1}
    last = position_of(twice, path, -1)
    twice.flip_bit(path, 8 * (128 + 30))
    twice.zero(path, last, last + 40)  # now no chain of batches reaches the end
    repair(twice)
    lost = {0, 1, *range(6, 10)}
    assert assert_healed(twice, truth, lost) == lost


def test_an_interrupted_truncation_is_finished_not_repaired() -> None:
    disk = SimulatedDisk()
    truth = build(disk, clean=False)
    log_disk = disk.after_kill()
    partition = Log(DATA, disk=log_disk, clock=ManualClock()).topic(TOPIC).partition()
    log_disk.stop_at = len(log_disk.operations) + 6
    with pytest.raises(Crash):
        partition.truncate(20)
    left = log_disk.after_kill()
    report = verify(left, DATA)
    assert report.sound, report.all_findings()
    repair(left)
    assert verify(left, DATA).all_findings() == []
    assert set(read(left)) == {offset for offset in truth if offset < report.partitions[0].end_offset}


def test_folder_in_use_is_refused(disk: SimulatedDisk) -> None:
    flip_data(disk)
    with Log(DATA, disk=disk, clock=ManualClock()), pytest.raises(BrokerError, match="in use"):
        repair(disk)


def test_a_full_disk_leaves_the_log_as_it_was(disk: SimulatedDisk, truth: Truth) -> None:
    may_lose = many_everywhere(disk)
    counted = disk.after_kill()
    repair(counted)
    for number in range(1, len(counted.operations) + 1, 3):
        full = disk.after_kill()
        full.fail_at = {number: 28}
        with pytest.raises(StorageFault, match="No space left"):
            repair(full)
        full.fail_at = {}
        repair(full.after_kill())
        again = full.after_kill()
        repair(again)
        assert_healed(again, truth, may_lose)


def _open_folder() -> tuple[SimulatedDisk, Truth]:
    """A log whose owner was killed: the last checkpoint lies inside the last segment, before its end."""
    disk = SimulatedDisk()
    truth = build(disk, clean=False)
    return disk.after_kill(), truth


def test_lost_offsets_around_a_checkpoint_are_not_given_out_again() -> None:
    disk, truth = _open_folder()
    path = segments(disk)[-1]
    lost = offsets_of(disk, path)
    [image] = [line.image for line in PartitionDump(disk, DATA, TOPIC, 0).state() if _is_newest(line)]
    checkpoint = -1 if image is None else image.end_offset
    assert min(lost) < checkpoint < max(lost), "else this test tests nothing"
    disk.zero(path, 128, 2**20)
    repair(disk)
    assert assert_healed(disk, truth, lost) == lost & set(truth)


def _is_newest(line: StateLine) -> bool:
    return line.file.endswith("/state") and line.fault is None


def test_the_mark_is_found_although_the_head_and_the_index_are_lost() -> None:
    """Where nothing else tells the end of the log, the mark does; it is known by the generation that the head has lost."""
    disk, truth = _open_folder()
    path = segments(disk)[-1]
    lost = offsets_of(disk, path, -1)
    disk.flip_bit(path, 8 * 14)
    if disk.exists(path.replace(".log", ".idx")):
        disk.drop(path.replace(".log", ".idx"))
    disk.cut(path, len(disk.content(path)) - 1)
    repair(disk)
    assert_healed(disk, truth, lost)


def test_empty_batches_carry_the_epochs_of_what_they_stand_for(disk: SimulatedDisk) -> None:
    with Log(DATA, disk=disk, clock=ManualClock()) as log:
        history = log.topic(TOPIC).partition().state.epochs
    drop_two_in_the_middle(disk)
    repair(disk)
    empty = [
        line
        for line in PartitionDump(disk, DATA, TOPIC, 0).batches()
        if isinstance(line, BatchLine) and not line.records
    ]
    assert {line.leader_epoch for line in empty} == {0, 9}
    for line in empty:
        assert {history.at(offset) for offset in range(line.first_offset, line.next_offset)} == {line.leader_epoch}


def test_a_retained_log_without_checkpoints_keeps_its_start() -> None:
    disk = SimulatedDisk()
    truth = build(disk)
    with Log(DATA, disk=disk, clock=ManualClock()) as log:
        start = log.topic(TOPIC).partition().segments[2].base_offset
        log.topic(TOPIC).delete_before(start)
    for name in ("state.a", "state.b"):
        disk.drop(f"{FOLDER}/{name}")
    repair(disk)
    assert_healed(disk, {offset: truth[offset] for offset in truth if offset >= start}, set())
    assert verify(disk, DATA).partitions[0].start_offset == start


def _rewritten(disk: SimulatedDisk) -> tuple[str, bytes]:
    """What a rewrite of the second segment would leave if it were interrupted before it took its place."""
    path = segments(disk)[1]
    hurt = disk.after_kill()
    hurt.flip_bit(path, 8 * 70)
    repair(hurt)
    return path.replace(".log", ".swap"), hurt.content(path)


def test_an_interrupted_rewrite_is_finished(disk: SimulatedDisk, truth: Truth) -> None:
    swap, content = _rewritten(disk)
    disk.create(swap).write_at(content, 0)
    disk.drop(segments(disk)[1])
    assert verify(disk, DATA).sound
    repair(disk)
    assert not disk.exists(swap)
    assert_healed(disk, truth, set())


def test_an_interrupted_rewrite_that_was_damaged_is_quarantined(disk: SimulatedDisk, truth: Truth) -> None:
    swap, content = _rewritten(disk)
    disk.create(swap).write_at(content, 0)
    disk.flip_bit(swap, 8 * 400)
    damaged = disk.content(swap)
    assert not verify(disk, DATA).sound
    [name] = repair(disk).quarantined
    assert disk.content(f"{DATA}/quarantine/{name}") == damaged
    assert not disk.exists(swap)
    assert_healed(disk, truth, set())
