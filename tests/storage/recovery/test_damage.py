"""Damage to every file of a log: no wrong record is ever served, and nothing is missing without being named.

Row 6 of the promises. Each byte of each file gets one flipped bit (which one is drawn from SEED), files are cut, zeroed, lost.
A plain run flips one byte in FLIPPED_ONE_IN of each file, `make crash` every one.
For each, the log is opened and read from end to end, offset by offset: what is served must be what was written;
what is not served must raise `StorageFault` where it is asked for, and the partition must refuse to write over it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

import pytest
from tests.sampling import FULL, one_in
from tests.storage.building import batches_in
from tests.storage.crashing import FOLDER, Runtime, Seen, compare, fixed_ids, open_log, see_all

from braidlog.codec.batch.header import iter_batches
from braidlog.codec.batch.records import decode_batch, encode_batch
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.storage.embedded_log import Log
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.segment.segment_files import DATA_START
from braidlog.testing.disk import SimulatedDisk

SEED = 20240611
FLIPPED_ONE_IN = 5
TOPIC = FOLDER + "/topics/00000001"
PLACE = TOPIC + "/0000"
PAGE_BYTES = 512

Rows = dict[int, tuple[bytes | None, bytes | None]]


@pytest.fixture(autouse=True)
def _same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_ids(monkeypatch)
    print(f"seed {SEED}")


def write(runtime: Runtime) -> None:
    """Four segments; producers, two epochs, transactions of both kinds, a start in the middle of a batch."""
    runtime.open()
    runtime.create("t")
    for number in range(8):
        runtime.append("t", count=1 + number % 3, size=120, pid=1)
    runtime.append("t", count=2, size=60, pid=2, transactional=True)
    runtime.append("t", count=4, size=300)
    runtime.mark("t", 2, commit=False)
    runtime.epoch("t", 3)
    runtime.append("t", count=3, size=100, pid=2, transactional=True)
    runtime.append("t", count=2, size=700)
    runtime.delete_before("t", 4)
    runtime.mark("t", 2, commit=True)
    runtime.append("t", size=900, pid=1)
    runtime.append("t", size=1200)
    runtime.append("t", count=3, size=30)
    runtime.append("t", size=1200)
    runtime.append("t", count=3, size=90, pid=1)
    runtime.append("t", count=2, size=50)


def write_compacted(runtime: Runtime) -> None:
    runtime.open()
    runtime.create("t", compact=True)
    for _ in range(4):
        runtime.append("t", count=6, keys=[b"a", b"b", b"c"], size=150)
    runtime.append("t", keys=[b"d"], size=1900, pid=6)
    runtime.append("t", keys=[b"a"], size=1900, pid=6)
    runtime.compact("t")
    runtime.append("t", keys=[b"b"], size=100)


def built(work: Callable[[Runtime], None], *, clean: bool) -> SimulatedDisk:
    """The disk after the work: stopped cleanly, or killed with everything synced."""
    runtime = Runtime()
    work(runtime)
    if clean:
        runtime.close()
        return runtime.disk.after_kill()
    return runtime.disk.after_kill()


def rows_of(seen: Seen) -> tuple[Rows, dict[int, int]]:
    """Every record that was there, and for each offset the base of its batch; markers count as a record of their own."""
    rows: Rows = {}
    bases = {}
    for position, header in iter_batches(seen.raw):
        for offset in range(max(header.base_offset, seen.start), header.next_offset):
            bases[offset] = header.base_offset
        for offset, _, key, value, _ in decode_batch(seen.raw, position, decompressed_bytes_max=1 << 20):
            if offset >= seen.start:
                rows[offset] = (key, value)
    return rows, bases


@dataclass
class Found:
    """What a reader of a damaged log gets."""

    detected: bool = False
    whole: bool = False
    unreadable: set[int] = field(default_factory=set)
    partition: PartitionLog | None = None


class Original:
    """A log as it was, and the question whether a damaged copy of it is honest."""

    def __init__(self, work: Callable[[Runtime], None], *, clean: bool) -> None:
        self.disk = built(work, clean=clean)
        pristine = self.disk.copy()
        self.seen = see_all(open_log(pristine))["t", 0]
        self.rows, self.bases = rows_of(self.seen)
        self.tried = 0

    def files(self, *endings: str) -> list[str]:
        return [path for path in self.disk.files() if path.endswith(endings) and not path.endswith("LOCK")]

    def batches(self, path: str) -> list[tuple[int, int, int, int]]:
        """(position, end, base offset, next offset) of each batch of a segment."""
        found = batches_in(self.disk.content(path))
        return [(at, at + h.size_bytes, h.base_offset, h.next_offset) for at, h in found]

    def after(self, damage: Callable[[SimulatedDisk], None]) -> Found:
        self.tried += 1
        disk = self.disk.copy()
        damage(disk)
        try:
            log = open_log(disk)
        except StorageFault:
            return Found(detected=True, unreadable=set(self.bases))
        if log.folder.broken_topics:
            return Found(detected=True, unreadable=set(self.bases))
        assert log.topics() == ["t"], "the topic is gone and nobody says so"
        return self._read(log)

    def _read(self, log: Log) -> Found:
        found = Found()
        try:
            p = log.topic("t").partition()
        except StorageFault:
            return Found(detected=True, unreadable=set(self.bases))
        found.partition = p
        served = self._read_offsets(p, found)
        assert p.start_offset == self.seen.start or p.damages, f"starts at {p.start_offset}"
        assert p.end_offset == self.seen.end or p.damages, f"ends at {p.end_offset}"
        found.detected |= bool(p.damages)
        found.whole = served == self.rows
        self._read_records(log, found)
        if found.detected:
            assert p.damages, "a fault was raised and no report names it"
            with pytest.raises(StorageFault):
                p.append(encode_batch([b"x"], base_timestamp=0), leader_epoch=9, now_ms=0)
        else:
            assert found.whole, "records are missing and nobody says so"
            shown = see_all(log)["t", 0]
            assert shown.watermark <= self.seen.watermark, "more counts as committed than did before"
            shown = shown._replace(watermark=self.seen.watermark)  # an older checkpoint may be the one that is left
            assert shown == self.seen, "the records are right, what is known of them is not"
        return found

    def _read_offsets(self, p: PartitionLog, found: Found) -> Rows:
        served: Rows = {}
        offset = self.seen.start
        while offset < self.seen.end:
            try:
                piece = p.slice_at(offset, 1)
                if piece is None and offset == p.end_offset and p.damages:
                    # Nothing on the disk tells any more that the log went on: readers wait here, writers are refused.
                    found.unreadable.add(offset)
                    offset += 1
                    continue
                assert piece is not None, f"the log ends at {offset} and nobody says why"
                data = piece.read()
            except StorageFault:
                found.detected = True
                found.unreadable.add(offset)
                offset += 1
                continue
            except BrokerError as error:
                raise AssertionError(f"offset {offset} is refused with {error.reason}, not with a fault") from error
            assert piece.next_offset > offset
            assert piece.offset <= offset, f"offset {offset} is skipped"
            expected = piece.offset
            for position, header in iter_batches(data):
                assert header.base_offset == expected
                expected = header.next_offset
                for at, _, key, value, _ in decode_batch(data, position, decompressed_bytes_max=1 << 20):
                    if at >= self.seen.start:
                        served[at] = (key, value)
                        assert self.rows.get(at) == (key, value), f"record {at} is served wrong"
            assert expected == piece.next_offset
            offset = piece.next_offset
        return served

    def _read_records(self, log: Log, found: Found) -> None:
        """`Topic.iterate` from the start: right up to a fault, or to the end."""
        shown: list[tuple[int, bytes | None, bytes | None]] = []
        try:
            # Not a list of all: what came before the fault counts.
            shown.extend((record.offset, record.key, record.value) for record in log.topic("t").iterate())
        except StorageFault:
            found.detected = True
        else:
            end = min(self.seen.stable, log.topic("t").partition().end_offset)
            assert not found.unreadable or min(found.unreadable) >= end, "a reader stepped over damage"
            if not found.detected:
                assert tuple(shown) == self.seen.committed
        wanted = set(self.seen.committed)
        assert set(shown) <= wanted, "a committed reader is shown what it must not see"
        assert [row[0] for row in shown] == [r[0] for r in self.seen.committed if not shown or r[0] <= shown[-1][0]][
            : len(shown)
        ], "a reader stepped over a record"


def flips(original: Original, path: str, random: Random) -> Iterator[tuple[int, Found]]:
    """One flipped bit in every byte of a file, or in a sample of them."""
    for byte in one_in(FLIPPED_ONE_IN, range(len(original.disk.content(path)))):
        bit = byte * 8 + random.randrange(8)

        def damage(disk: SimulatedDisk, bit: int = bit) -> None:
            disk.flip_bit(path, bit)

        try:
            yield byte, original.after(damage)
        except Exception as error:
            raise AssertionError(f"{path} bit {bit}: {type(error).__name__}: {error}") from error


CASES = [(write, True), (write, False), (write_compacted, True), (write_compacted, False)]
IDS = ["clean", "killed", "compacted-clean", "compacted-killed"]


@pytest.fixture(params=CASES, ids=IDS)
def original(request: pytest.FixtureRequest) -> Original:
    work, clean = request.param
    return Original(work, clean=clean)


def test_undamaged_is_whole(original: Original) -> None:
    found = original.after(lambda disk: None)
    assert found.whole
    assert not found.detected
    assert len(original.files(".log")) >= 2


def test_flips_in_segments(original: Original) -> None:
    """Only the batch that was hit may become unreadable, and it must: every byte of a segment is guarded by something."""
    random = Random(SEED)
    for path in original.files(".log"):
        batches = original.batches(path)
        name = path.rsplit("/", 1)[1]
        for byte, found in flips(original, path, random):
            hit = {o for a, b, base, end in batches if a <= byte < b for o in range(base, end)}
            hit &= set(original.bases)
            assert found.unreadable <= hit, f"{name} byte {byte}: {found.unreadable} cannot be read, {hit} were hit"
            assert found.unreadable == hit, f"{name} byte {byte}: {hit} were hit and are read"
            if not hit and not found.detected:
                # A batch below the start of the log, stepped over; or bytes of the head that nothing depends on.
                assert byte >= DATA_START, f"{name} byte {byte} of the head is guarded by nothing"
    print(f"{original.tried} flips in segments")
    assert original.tried >= (4000 if FULL else 4000 // FLIPPED_ONE_IN)


def test_flips_elsewhere(original: Original) -> None:
    """An index is made again, of two checkpoints one is enough: nothing is lost."""
    random = Random(SEED)
    for path in original.files(".idx", ".a", ".b", ".state"):
        for byte, found in flips(original, path, random):
            assert found.whole, f"{path} byte {byte}: records are lost with a file that can be made again"
            assert not found.detected, f"{path} byte {byte}: a file that can be made again is taken for damage"
    print(f"{original.tried} flips in indexes, checkpoints and settings")
    assert original.tried >= (1500 if FULL else 1500 // FLIPPED_ONE_IN)


def test_cuts(original: Original) -> None:
    random = Random(SEED)
    for path in original.files(".log", ".idx", ".a", ".b", ".state"):
        size = len(original.disk.content(path))
        sizes = set(range(0, size, PAGE_BYTES)) | {random.randrange(size) for _ in range(20)} | {size - 1}
        batches = original.batches(path) if path.endswith(".log") else []
        if batches:
            sizes |= {position for position, *_ in batches} | {DATA_START - 1, DATA_START}
        for cut in sorted(sizes):
            if cut < size:
                found = original.after(lambda disk, path=path, cut=cut: disk.cut(path, cut))  # type: ignore[misc]
                if path.endswith(".log"):
                    hit = {o for _, end, base, after in batches if end > cut for o in range(base, after)}
                    in_reserve = (
                        bool(batches) and cut >= batches[-1][1]
                    )  # zeros that nobody was told of: nothing is lost
                    assert found.detected is not in_reserve, f"{path} cut at {cut}"
                    if cut >= DATA_START:
                        assert found.unreadable == hit & set(original.bases), f"{path} cut at {cut}"
                else:
                    assert found.whole
                    assert not found.detected, f"{path} cut at {cut}"
    print(f"{original.tried} cuts")
    assert original.tried >= 150


def test_zeroed_pages(original: Original) -> None:
    for path in original.files(".log", ".idx", ".a", ".b", ".state"):
        size = len(original.disk.content(path))
        for start in range(0, size, PAGE_BYTES):
            for end in (start + PAGE_BYTES, start + 8 * PAGE_BYTES, size):
                found = original.after(lambda disk, p=path, s=start, e=end: disk.zero(p, s, e))  # type: ignore[misc]
                if path.endswith(".log"):
                    whole = original.disk.content(path)
                    hit = {
                        offset
                        for a, b, base, after in original.batches(path)
                        if any(whole[max(a, start) : min(b, end)])
                        for offset in range(base, after)
                    }
                    assert found.unreadable == hit & set(original.bases), f"{path} zeros {start} to {end}"
                    assert found.detected or not hit & set(original.bases)
                else:
                    assert found.whole
                    assert not found.detected
    print(f"{original.tried} zeroed ranges")


def test_dropped_files(original: Original) -> None:
    for path in original.files(".log", ".idx", ".a", ".b", ".state"):
        found = original.after(lambda disk, path=path: disk.drop(path))  # type: ignore[misc]
        if path.endswith(".log"):
            hit = {o for _, _, base, after in original.batches(path) for o in range(base, after)} & set(original.bases)
            assert found.detected, f"{path} is gone and nobody says so"
            assert found.unreadable == hit, f"{path} is gone"
        else:
            assert found.whole, f"{path} is gone"
            assert not found.detected, f"{path} is gone"


def test_two_losses_of_one_kind(original: Original) -> None:
    """Both files of a pair: no redundancy is left, so it must be said, or made again from the records."""
    for stem in (PLACE + "/state", TOPIC + "/topic", FOLDER + "/folder"):

        def damage(disk: SimulatedDisk, stem: str = stem) -> None:
            disk.drop(stem + ".a")
            disk.drop(stem + ".b")

        disk = original.disk.copy()
        damage(disk)
        try:
            log = open_log(disk)
            if log.folder.broken_topics:
                continue
            p = log.topic("t").partition()
        except (StorageFault, BrokerError):
            continue
        found = Found()
        original._read_offsets(p, found)
        assert not found.unreadable or p.damages, stem


def test_the_report_names_what_is_damaged() -> None:
    original = Original(write, clean=True)
    path = original.files(".log")[1]
    batches = original.batches(path)
    position, end, base, after = batches[len(batches) // 2]
    found = original.after(lambda disk: disk.flip_bit(path, (position + 70) * 8))
    assert found.partition is not None
    [damage] = found.partition.damages
    assert (damage.file, damage.position, damage.end) == (path, position, end)
    assert (damage.first_offset, damage.next_offset) == (base, after)
    assert path in str(damage)
    assert found.unreadable == set(range(base, after))


def test_damage_of_one_partition_leaves_the_others_alone() -> None:
    runtime = Runtime()
    runtime.open()
    runtime.create("t", partitions=2)
    runtime.append("t", 0, count=3)
    runtime.append("t", 1, count=3)
    runtime.close()
    disk = runtime.disk
    disk.flip_bit(f"{PLACE}/{0:020d}.log", (DATA_START + 80) * 8)
    log = open_log(disk)
    with pytest.raises(StorageFault):
        log.topic("t").append(b"x", partition=0)
    assert log.topic("t").append(b"x", partition=1) == 3


def test_damage_under_an_open_log() -> None:
    """Bytes that change after they were checked: a slice may carry them, `Topic.read` must not."""
    runtime = Runtime()
    runtime.open()
    runtime.create("t")
    for _ in range(4):
        runtime.append("t", count=2, size=50)
    topic = runtime.log.topic("t")
    assert len(topic.read()) == 8
    path = f"{PLACE}/{0:020d}.log"
    size = len(runtime.disk.content(path))
    whole = runtime.disk.content(path)
    wanted = [(r.offset, r.value) for r in topic.read()]
    for byte in range(DATA_START, size):
        runtime.disk.flip_bit(path, byte * 8 + byte % 8)
        try:
            shown = [(r.offset, r.value) for r in topic.read()]
        except StorageFault:
            pass
        else:
            assert shown == wanted, f"byte {byte}"
            relative = next(byte - a for a, b, *_ in _batches(whole) if a <= byte < b)
            assert 12 <= relative < 16, f"byte {byte} of the segment is read over"  # the epoch: no part of a record
        runtime.disk.flip_bit(path, byte * 8 + byte % 8)
    assert [(r.offset, r.value) for r in topic.read()] == wanted


def _batches(data: bytes) -> list[tuple[int, int]]:
    return [(at, at + header.size_bytes) for at, header in batches_in(data)]


def test_a_damaged_swap() -> None:
    """A rewrite that waits for its place is checked before the old files go; when they are gone, it is all there is."""
    runtime = Runtime()
    stops: list[SimulatedDisk] = []

    def before(operation: object) -> None:
        if any(path.endswith(".swap") for path in runtime.disk.files()):
            stops.append(runtime.disk.after_kill())

    runtime.disk.on_operation = before
    write_compacted(runtime)
    runtime.disk.on_operation = None
    written = {row[0]: row[1:] for batch in runtime.topics["t"].partitions[0].batches for row in batch.rows}
    assert len(stops) >= 3
    random = Random(SEED)
    for number, stop in enumerate(stops):
        [path] = [path for path in stop.files() if path.endswith(".swap")]
        size = len(stop.content(path))
        for byte in range(size) if number == 0 else random.sample(range(size), 200):
            disk = stop.copy()
            disk.flip_bit(path, byte * 8 + random.randrange(8))
            p = open_log(disk).topic("t").partition()
            assert p.damages, f"byte {byte} of a rewrite is guarded by nothing"
            missing = _read_written(p, written)
            assert number > 0 or not missing, f"byte {byte}: the old files are there and are not read"
            assert path in disk.files(), "damage was taken away"


def _read_written(p: PartitionLog, written: Mapping[int, tuple[bytes | None, bytes | None]]) -> set[int]:
    """Read all: every record as it was written, every offset served or refused with a fault. Return the refused."""
    missing = set()
    offset = p.start_offset
    while offset < p.end_offset:
        try:
            piece = p.slice_at(offset, 1)
        except StorageFault:
            missing.add(offset)
            offset += 1
            continue
        assert piece is not None
        assert piece.offset <= offset < piece.next_offset
        data = piece.read()
        for position, _ in iter_batches(data):
            for at, _, key, value, _ in decode_batch(data, position, decompressed_bytes_max=1 << 20):
                assert written[at] == (key, value), f"record {at} is served wrong"
        offset = piece.next_offset
    return missing


def test_either_checkpoint_alone_is_enough() -> None:
    """After every call that returned: what only a checkpoint knows (epochs, the start, an end of a truncation) is in both."""
    runtime = Runtime()
    runtime.open()
    runtime.create("t", flush_window_bytes=1 << 20)

    def announce_by_append(epoch: int) -> None:
        runtime.at("t")[1].epoch = epoch
        runtime.append("t", count=2, size=80, pid=1)

    steps: list[Callable[[], None]] = [
        lambda: runtime.append("t", count=3, pid=1),
        lambda: announce_by_append(3),
        lambda: runtime.append("t", size=1500),
        lambda: runtime.delete_before("t", 2),
        lambda: announce_by_append(4),
        lambda: runtime.append("t", size=2000),
        lambda: runtime.append("t", size=2000),
        lambda: runtime.delete_before("t", 6),
        lambda: runtime.epoch("t", 6),
        lambda: runtime.append("t", size=100),
        lambda: runtime.truncate("t", 8),
        lambda: announce_by_append(9),
    ]
    for number, step in enumerate(steps):
        step()
        for slot in ("state.a", "state.b"):
            disk = runtime.disk.after_kill()
            disk.cut(f"{PLACE}/{slot}", 20)
            try:
                compare(open_log(disk), runtime.topics, killed=True)
            except Exception as error:
                raise AssertionError(f"step {number} without {slot}: {error}") from error
