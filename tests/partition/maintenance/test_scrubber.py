"""Damage on the disk of a running node: found before anybody is served it, by a round of reading or by the next read."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.broker.node import Node, batch_of
from tests.partition.fetching import fetch_all

from braidlog.codec.batch.header import BatchHeader, read_header
from braidlog.codec.batch.row_layout import Kind, Part, RowForm
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.settings import TopicSettings
from braidlog.partition.fetch.fetch import Wanted
from braidlog.partition.maintenance.scrubber import Scrubber, ScrubSettings
from braidlog.partition.partition import Partition
from braidlog.storage.compaction.compaction import Compaction
from braidlog.storage.files import File
from braidlog.storage.segment.segment_files import DATA_START, log_name
from braidlog.worker.inline_worker import Here
from braidlog.worker.jobs import Answer, Buffer, Job, ScrubSegment, read_scrubbed

MANY = 1 << 20
ROWS = RowForm((Part(Kind.OFFSET_DECIMAL),), MANY, b",")
HOUR_MS = 3_600_000
SMALL = TopicSettings(segment_bytes=4096, index_interval_bytes=256)


class Watched(Here):
    """A worker that remembers what it was asked."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.disk)
        self.jobs: list[Job] = []
        self.refuses = False

    async def do(self, job: Job, payload: Buffer) -> Answer:
        if self.refuses:
            raise BrokerError(Reason.TIMED_OUT, "the line is full; try again")
        self.jobs.append(job)
        return await super().do(job, payload)


class Setting:
    """A node with a topic of several segments, and its scrubber."""

    def __init__(self) -> None:
        self.node = Node(defaults=SMALL)
        self.node.create("a")
        self.node.create("b", 2)
        for number in range(60):
            self.node.append("a", b"%d" % number + b"." * 200)
        self.node.append("b", b"x")
        self.worker = Watched(self.node)
        self.told: list[str] = []
        self.scrubber = self.made()

    def made(self, **settings: float) -> Scrubber:
        changed = msgspec.convert(settings, ScrubSettings)
        node = self.node
        return Scrubber(node.folder, node.services.hosting, node.runtime, self.worker, changed, self.told.append)

    @property
    def hosted(self) -> Partition:
        return self.node.services.hosting.partition("a", 0)

    def path(self, number: int) -> str:
        return self.hosted.log.segments[number].path

    def rot(self, number: int, batch: int = 1, *, at: int = 70) -> int:
        """Flip a bit of a record; its offset."""
        content = self.node.disk.content(self.path(number))
        position, header = list(read_headers_at(content))[batch]
        self.node.disk.flip_bit(self.path(number), (position + at) * 8)
        return header.base_offset

    def round(self) -> int:
        """Until the round is over; how many steps it took."""
        for steps in range(1, 1000):
            self.node.run(self.scrubber.step())
            if self.scrubber.progress.is_done:
                return steps
        raise AssertionError("the round does not end")


class _Broken:
    """A file that asks before it is read."""

    def __init__(self, file: File, asked: Callable[[str, str], None]) -> None:
        self._file = file
        self._asked = asked

    def read_at(self, size: int, position: int) -> bytes:
        self._asked("read", self._file.path)
        return self._file.read_at(size, position)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def read_headers_at(content: bytes) -> Iterator[tuple[int, BatchHeader]]:
    position = DATA_START
    while position < len(content):
        header = read_header(content, position)
        yield position, header
        position += header.size_bytes


@pytest.fixture
def setting() -> Setting:
    made = Setting()
    assert len(made.hosted.log.segments) > 3
    return made


def test_a_round_reads_every_closed_segment_once(setting: Setting) -> None:
    setting.round()
    asked = [job.path for job in setting.worker.jobs if hasattr(job, "path")]
    assert asked == [segment.path for segment in setting.hosted.log.segments[:-1]]
    assert (setting.hosted.damages, setting.told) == ([], [])
    scrubber = setting.scrubber
    assert (scrubber.rounds, scrubber.damages, scrubber.partitions_left) == (1, 0, 0)
    closed = setting.hosted.log.segments[:-1]
    assert scrubber.read_bytes == sum(segment.data_bytes for segment in closed)


def test_damage_in_a_closed_segment_is_found_and_never_served(setting: Setting) -> None:
    node, hosted = setting.node, setting.hosted
    assert len(node.values("a")) == 60  # all of it was checked just now, and is checked no more
    bad = setting.rot(1)
    setting.round()
    assert [damage.first_offset for damage in hosted.damages] == [bad]
    assert setting.scrubber.damages == 1
    assert "takes no writes" in hosted.fault
    with pytest.raises(StorageFault, match=f"offsets from {bad}"):
        node.run(fetch_all(node.services.fetch, [Wanted("a", 0, bad, MANY)], bytes_max=MANY))
    (before,) = node.run(fetch_all(node.services.fetch, [Wanted("a", 0, bad - 1, MANY)], bytes_max=MANY))
    assert before.slice is not None
    assert before.slice.next_offset == bad
    with pytest.raises(StorageFault):
        node.append("a", b"refused")
    node.append("b", b"others go on")


def test_every_damage_of_a_round_is_found(setting: Setting) -> None:
    bad = [setting.rot(0, 0), setting.rot(1, 2), setting.rot(1, 4, at=14), setting.rot(3)]
    setting.round()
    assert [damage.first_offset for damage in setting.hosted.damages] == bad


@pytest.mark.parametrize("reader", ["batches", "records", "rows"])
def test_what_was_checked_long_ago_is_checked_again_before_it_is_read(setting: Setting, reader: str) -> None:
    node = setting.node
    assert len(node.values("a")) == 60
    bad = setting.rot(2)
    node.run(setting.scrubber.forget_checks())
    services = node.services
    reads: dict[str, Callable[[], Any]] = {
        "batches": partial(fetch_all, services.fetch, [Wanted("a", 0, bad, MANY)], bytes_max=MANY),
        "records": partial(services.fetch.records, "a", 0, bad, bytes_max=MANY),
        "rows": partial(services.fetch.rows, "a", 0, bad, ROWS, bytes_max=MANY),
    }
    with pytest.raises(StorageFault, match=f"offsets from {bad}"):
        node.run(reads[reader]())
    assert [damage.first_offset for damage in setting.hosted.damages] == [bad]


@pytest.mark.parametrize("reader", ["records", "rows"])
def test_who_opens_batches_notices_also_what_was_checked_a_moment_ago(setting: Setting, reader: str) -> None:
    node = setting.node
    assert len(node.values("a")) == 60
    bad = setting.rot(2)
    fetch = node.services.fetch
    read: Callable[..., Any] = fetch.records if reader == "records" else partial(fetch.rows, form=ROWS)
    with pytest.raises(StorageFault, match=f"offsets from {bad}"):
        node.run(read("a", 0, bad, bytes_max=MANY))
    assert setting.hosted.damages


def test_compaction_copies_nothing_that_is_damaged(setting: Setting) -> None:
    node, log = setting.node, setting.hosted.log
    node.values("a")
    bad = setting.rot(1)
    before = {name: node.disk.content(f"{log.folder}/{name}") for name in node.disk.names(log.folder)}
    with pytest.raises(StorageFault):
        Compaction(node.disk, node.folder.pool, log, now_ms=node.clock.now_ms()).run()
    assert [damage.first_offset for damage in log.damages] == [bad]
    logs = {name: data for name, data in before.items() if name.endswith(".log")}
    assert {
        n: node.disk.content(f"{log.folder}/{n}") for n in node.disk.names(log.folder) if n.endswith(".log")
    } == logs


def test_a_round_that_was_interrupted_goes_on_where_it_was(setting: Setting) -> None:
    for _ in range(3):
        node_step = setting.node.run(setting.scrubber.step())
        assert node_step > 0
    setting.scrubber.save()
    done = len(setting.worker.jobs)
    setting.scrubber = setting.made()
    setting.round()
    asked = [job.path for job in setting.worker.jobs if hasattr(job, "path")]
    assert asked == [segment.path for segment in setting.hosted.log.segments[:-1]]
    assert len(asked) > done


def test_progress_that_cannot_be_read_begins_a_round(setting: Setting) -> None:
    setting.node.run(setting.scrubber.step())
    setting.scrubber.save()
    setting.node.disk.flip_bit("/data/scrub.a", 300)
    again = setting.made()
    assert (again.progress.is_done, again.progress.began_ms) == (True, 0)


def test_no_faster_than_it_may(setting: Setting) -> None:
    setting.scrubber = setting.made(bytes_per_second=1000)
    pause = setting.node.run(setting.scrubber.step())
    assert pause == pytest.approx(setting.hosted.log.segments[0].data_bytes / 1000)


def test_the_next_round_waits_for_its_time(setting: Setting) -> None:
    setting.round()
    done = len(setting.worker.jobs)
    assert setting.node.run(setting.scrubber.step()) == pytest.approx(60)
    assert setting.scrubber.progress.is_done
    setting.node.runtime.advance(72 * HOUR_MS)
    setting.round()
    assert len(setting.worker.jobs) == 2 * done


def test_a_worker_that_cannot_is_asked_again_later(setting: Setting) -> None:
    setting.worker.refuses = True
    assert setting.node.run(setting.scrubber.step()) == pytest.approx(60)
    setting.worker.refuses = False
    setting.round()
    assert len(setting.worker.jobs) == len(setting.hosted.log.segments) - 1


def test_segments_that_go_meanwhile_are_no_damage(setting: Setting) -> None:
    node, log = setting.node, setting.hosted.log
    node.run(setting.scrubber.step())
    job = setting.scrubber._find()
    assert job is not None
    log.advance_start(log.segments[2].base_offset)
    found = read_scrubbed(node.run(setting.worker.do(job, b"")).payload)
    assert (found.is_end, found.damaged, found.fault) == (True, [], "")
    setting.round()
    assert (setting.hosted.damages, setting.told) == ([], [])


def test_a_segment_that_cannot_be_read_is_told_and_the_others_are_read(setting: Setting) -> None:
    def broken(operation: str, path: str) -> None:
        if operation == "read" and path == setting.path(1):
            raise StorageFault("cannot read: Input/output error", path)

    disk = setting.node.disk
    with pytest.MonkeyPatch.context() as patch:
        opened = disk.open
        patch.setattr(disk, "open", lambda path, *, writable: _Broken(opened(path, writable=writable), broken))
        setting.round()
    assert len(setting.told) == 1
    assert setting.path(1) in setting.told[0]
    assert len(setting.worker.jobs) == len(setting.hosted.log.segments) - 1


def test_a_segment_that_was_rewritten_is_read_from_its_beginning(setting: Setting) -> None:
    node, log = setting.node, setting.hosted.log
    half = log.segments[0]
    third = list(log.batches_of(half))[3]
    job = ScrubSegment(half.path, 0, 0, third.position, third.header.base_offset, MANY, [])
    Compaction(node.disk, node.folder.pool, log, now_ms=node.clock.now_ms()).run()
    found = read_scrubbed(node.run(setting.worker.do(job, b"")).payload)
    assert (found.generation, found.damaged, found.is_end) == (1, [], True)
    assert found.bytes_read == log.segments[0].data_bytes


def test_internal_topics_are_read_too(setting: Setting) -> None:
    node = setting.node
    log = node.shard_log("g")
    log.append(batch_of(b"{}", keys=[b'["x"]']), now_ms=1)
    log.roll(1)
    path = f"{log.folder}/{log_name(0)}"
    node.disk.flip_bit(path, (DATA_START + 65) * 8)
    setting.round()
    assert [line for line in setting.told if "internal topic" in line and "offset 0" in line]
