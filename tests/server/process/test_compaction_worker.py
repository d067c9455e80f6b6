"""Compactions by a worker process: the same log as without one, whatever becomes of the process."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.record import NewRecord
from braidlog.server.net.memory_budget import Budget
from braidlog.server.process.compaction_worker import WorkerRewriting
from braidlog.server.process.worker_process import WorkerProcess, WorkerSettings
from braidlog.storage.compaction.compaction import Compacted, Compaction
from braidlog.storage.compaction.compaction_merge import Plan, Rewritten
from braidlog.storage.embedded_log import Log, Topic
from braidlog.storage.files import Disk
from braidlog.worker.jobs import RewriteSegments

SECONDS_MAX = 120
Rows = list[tuple[int, bytes | None, bytes | None]]


def filled(path: Path) -> Log:
    log = Log(str(path))
    topic = log.create_topic("t", segment_bytes=4096, index_interval_bytes=256)
    for number in range(300):
        topic.append_many([NewRecord(b"%d" % number * 20, b"%d" % (number % 7))])
    return log


def rows(topic: Topic) -> Rows:
    return [(record.offset, record.key, record.value) for record in topic.read(records_max=10_000)]


@pytest.fixture
def expected(tmp_path: Path) -> Rows:
    with filled(tmp_path / "here") as log:
        (done,) = log.topic("t").compact()
        assert done.records_removed > 200
        return rows(log.topic("t"))


class Bench:
    """A log and a process that compacts it."""

    def __init__(self, log: Log, worker: WorkerProcess) -> None:
        self.log = log
        self.worker = worker
        self.topic = log.topic("t")
        self.jobs = 0
        """That were written beside."""

    async def compact(self) -> Compacted:
        partition, loop = self.topic.partition(0), asyncio.get_running_loop()
        rewriter = partial(self._rewriting, loop)
        compaction = Compaction(self.log.disk, self.log.folder.pool, partition, now_ms=0, rewriter=rewriter)
        return await asyncio.to_thread(compaction.run)

    def _rewriting(self, loop: asyncio.AbstractEventLoop, disk: Disk, plan: Plan) -> WorkerRewriting:
        bench = self

        class Counted(WorkerRewriting):
            def write(self, first: int) -> Rewritten:
                written = super().write(first)
                bench.jobs += self._here is None
                return written

        return Counted(self.worker, loop, disk, plan)


def play(path: Path, scene: Callable[[Bench], Awaitable[None]], settings: WorkerSettings | None = None) -> None:
    async def run() -> None:
        worker = WorkerProcess(settings or WorkerSettings(), Budget(1 << 30), priority="1")
        running = asyncio.ensure_future(worker.run())
        try:
            async with asyncio.timeout(SECONDS_MAX):
                with filled(path) as log:
                    await scene(Bench(log, worker))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_it_is_the_same_log_as_without(tmp_path: Path, expected: Rows) -> None:
    async def scene(bench: Bench) -> None:
        segments = len(bench.topic.partition(0).segments)
        done = await bench.compact()
        assert done.bytes_after < done.bytes_before
        assert bench.jobs >= 1
        assert len(bench.topic.partition(0).segments) < segments
        assert rows(bench.topic) == expected
        assert (await bench.compact()).records_removed == 0

    play(tmp_path / "data", scene)
    with Log(str(tmp_path / "data")) as log:
        assert log.topic("t").partition(0).damages == []
        assert rows(log.topic("t")) == expected


def test_a_process_that_is_killed_costs_nothing(tmp_path: Path, expected: Rows) -> None:
    async def scene(bench: Bench) -> None:
        with await bench.worker.do(RewriteSegments(0), _nothing()):
            pass  # left, or it is held as the job is that comes next
        assert bench.worker.held_bytes() == 0
        assert bench.worker.pid is not None
        os.kill(bench.worker.pid, signal.SIGSTOP)
        compacting = asyncio.ensure_future(bench.compact())
        while not bench.worker.held_bytes():  # noqa: ASYNC110 - what is waited for knows of no event
            await asyncio.sleep(0.001)
        os.kill(bench.worker.pid, signal.SIGKILL)
        assert (await compacting).records_removed > 200
        assert bench.jobs == 0
        assert rows(bench.topic) == expected

    play(tmp_path / "data", scene)


def test_without_a_process_it_is_done_here(tmp_path: Path, expected: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no such program"))

    async def scene(bench: Bench) -> None:
        assert (await bench.compact()).records_removed > 200
        assert rows(bench.topic) == expected

    play(tmp_path / "data", scene, WorkerSettings(wait_seconds_max=0.05))


def test_a_node_that_stops_leaves_the_log_as_it_is(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        bench.worker.is_over = True
        before = rows(bench.topic)
        with pytest.raises(BrokerError, match="the node stops"):
            await bench.compact()
        assert rows(bench.topic) == before

    play(tmp_path / "data", scene)


def test_damage_is_found_by_the_process_and_noted_by_the_log(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        partition = bench.topic.partition(0)
        names = rot(partition.segments[1].path)
        with pytest.raises(StorageFault, match="damaged"):
            await bench.compact()
        assert [damage.next_offset for damage in partition.damages] == [partition.segments[1].next_offset]
        assert bench.log.disk.names(partition.folder) == names

    play(tmp_path / "data", scene)


def test_a_disk_that_fails_is_the_disks_fault_here_too(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        partition = bench.topic.partition(0)
        bench.log.disk.rename(partition.segments[0].path, str(tmp_path / "away"))
        with pytest.raises(StorageFault, match="No such file"):
            await bench.compact()

    play(tmp_path / "data", scene)


def rot(path: str) -> list[str]:
    """Flip a bit of the last record; the names in the folder."""
    content = bytearray(Path(path).read_bytes())
    content[-3] ^= 1
    Path(path).write_bytes(content)
    return sorted(each.name for each in Path(path).parent.iterdir())


def _nothing() -> bytes:
    """A plan of no segments: done at once."""
    plan = Plan("", bytes(16), 0, [], [], [], [], 0, 0, 1, 1, 1, 1, 0)
    return msgspec.msgpack.encode(plan)
