"""A small data folder with a bit of everything, what is in it, and what must be true of it after a repair."""

from braidlog import Compression, Log, Record
from braidlog.codec.batch.records import control_batch, encode_batch
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk
from braidlog.tools.repair.folder import Repair, RepairReport
from braidlog.tools.verify import verify

DATA = "/data"
TOPIC = "clicks"
FOLDER = f"{DATA}/topics/00000001/0000"
Truth = dict[int, Record]


def build(disk: SimulatedDisk, *, clean: bool = True) -> Truth:
    """Five segments: three epochs, compressed batches, an idempotent producer, a committed and an aborted transaction."""
    clock = ManualClock()
    log = Log(DATA, disk=disk, clock=clock)
    topic = log.create_topic(TOPIC, segment_bytes=4096, index_interval_bytes=512)
    partition = topic.partition()
    for number in range(24):
        clock.advance(1000)
        if number % 5 == 4:
            partition.roll(clock.now_ms())
        if number in (9, 17):
            partition.begin_epoch(number)
        epoch = partition.state.epochs.latest if number >= 9 else 0
        batch = encode_batch(
            [f"value {number}.{part} ".encode() * 12 for part in range(1 + number % 3)],
            keys=[f"key {number % 5}".encode()] * (1 + number % 3),
            base_timestamp=clock.now_ms(),
            compression=[Compression.NONE, Compression.GZIP, Compression.NONE, Compression.ZSTD][number % 4],
            producer_id=7 if number % 2 else -1,
            producer_epoch=0 if number % 2 else -1,
            base_sequence=_sequence(number) if number % 2 else -1,
        )
        partition.append(batch, leader_epoch=epoch, now_ms=clock.now_ms())
        partition.sync()
        if number in (5, 13):
            _transaction(clock, log, commit=number == 5)
    truth = {record.offset: record for record in topic.iterate(committed_only=False)}
    if clean:
        log.close()
    return truth


def _sequence(number: int) -> int:
    return sum(1 + earlier % 3 for earlier in range(1, number, 2))


def _transaction(clock: ManualClock, log: Log, *, commit: bool) -> None:
    partition = log.topic(TOPIC).partition()
    epoch = partition.state.epochs.latest
    data = encode_batch(
        [b"in a transaction"] * 2,
        base_timestamp=clock.now_ms(),
        producer_id=8,
        producer_epoch=0,
        base_sequence=0 if commit else 2,
        transactional=True,
    )
    partition.append(data, leader_epoch=epoch, now_ms=clock.now_ms())
    marker = control_batch(
        base_offset=0, leader_epoch=0, producer_id=8, producer_epoch=0, commit=commit, timestamp_ms=clock.now_ms()
    )
    partition.append_marker(marker, leader_epoch=epoch, now_ms=clock.now_ms())
    partition.sync()


def segments(disk: SimulatedDisk, suffix: str = ".log") -> list[str]:
    return [path for path in disk.files() if path.startswith(FOLDER) and path.endswith(suffix)]


def tree(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: disk.content(path) for path in disk.files()}


def repairer(disk: SimulatedDisk, *, drop_unreadable: bool = False) -> Repair:
    return Repair(disk, DATA, ManualClock(), drop_unreadable=drop_unreadable, new_id=lambda: "0" * 32)


def repair(disk: SimulatedDisk) -> RepairReport:
    return repairer(disk).run()


def read(disk: SimulatedDisk, topic: str = TOPIC) -> Truth:
    with Log(DATA, disk=disk, clock=ManualClock()) as log:
        return {record.offset: record for record in log.topic(topic).iterate(committed_only=False)}


def assert_healed(disk: SimulatedDisk, truth: Truth, may_lose: set[int] | None = None, topic: str = TOPIC) -> set[int]:
    """The folder is sound, what is read is what was written, nothing more is lost than may be, and writes get new offsets."""
    report = verify(disk, DATA)
    assert report.sound, report.all_findings()
    found = read(disk, topic)
    for offset, record in found.items():
        assert record == truth[offset]
    lost = set(truth) - set(found)
    if may_lose is not None:
        assert lost <= may_lose, f"{sorted(lost - may_lose)} could have been kept"
    with Log(DATA, disk=disk, clock=ManualClock()) as log:
        partition = log.topic(topic).partition()
        batch = encode_batch([b"after"], base_timestamp=0)
        epoch = max(partition.state.epochs.latest, 0)
        appended = partition.append(batch, leader_epoch=epoch, now_ms=0)
        partition.sync()
        assert appended.base_offset > max(truth), "an offset was given out twice"
        assert log.topic(topic).read(appended.base_offset)[0].value == b"after"
    report = verify(disk, DATA)
    assert report.sound, report.all_findings()
    return lost
