"""The worker process: started when needed, fed in order, gone with its node; what dies costs one job."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from braidlog.codec.batch.records import decode_batch, encode_batch
from braidlog.codec.compression import Compression
from braidlog.codec.errors import ProtocolError
from braidlog.model.errors import BrokerError, Reason
from braidlog.server.net.memory_budget import Budget
from braidlog.server.process.worker_process import ANSWERS_PART, WorkerProcess, WorkerSettings
from braidlog.storage.embedded_log import Log
from braidlog.worker.jobs import IDLE, CheckRecords, ClipRecords, ScrubSegment, read_scrubbed

MANY = 1 << 28
SECONDS_MAX = 120
"""The machine may be busy: what is waited for is a condition, this is only its end."""
CHECK = CheckRecords(MANY)
BATCH = encode_batch([b"%d" % number for number in range(1000)], base_timestamp=0, compression=Compression.GZIP)
Scene = Callable[[WorkerProcess], Coroutine[Any, Any, None]]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for knows of no event
        await asyncio.sleep(0.001)


def play(
    scene: Scene, settings: WorkerSettings | None = None, budget: Budget | None = None, priority: str = "0"
) -> None:
    async def run() -> None:
        worker = WorkerProcess(settings or WorkerSettings(), budget or Budget(1 << 30), priority=priority)
        running = asyncio.ensure_future(worker.run())
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await scene(worker)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert worker.pid is None

    asyncio.run(run())


async def paused(worker: WorkerProcess) -> int:
    """Its process, which does nothing from now on until it is killed."""
    await worker.do(CHECK, BATCH)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    return worker.pid


async def refused(answer: "asyncio.Future[Any]") -> str:
    with pytest.raises(BrokerError) as error:
        await answer
    assert error.value.reason is Reason.TIMED_OUT
    return str(error.value)


def is_there(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except FileNotFoundError:
        return False


def test_a_node_without_jobs_has_no_process() -> None:
    async def scene(worker: WorkerProcess) -> None:
        await asyncio.sleep(0)
        assert (worker.pid, worker.report().starts) == (None, 0)
        await worker.do(CHECK, BATCH)
        assert (worker.pid is not None, worker.report().starts) == (True, 1)

    play(scene)


def test_jobs_are_done_and_answered_in_order() -> None:
    async def scene(worker: WorkerProcess) -> None:
        clip = ClipRecords(start_offset=990, records_max=3, bytes_max=MANY, decompressed_bytes_max=MANY)
        sizes, clipped = await asyncio.gather(worker.do(CHECK, BATCH), worker.do(clip, BATCH))
        assert sizes.number > len(BATCH)
        assert clipped.number == 993
        with clipped:
            rows = decode_batch(clipped.payload, decompressed_bytes_max=0)
        assert [row[3] for row in rows] == [b"990", b"991", b"992"]
        assert sum(worker.report().jobs) == 2
        assert worker.held_bytes() == 0

    play(scene)


def test_a_segment_is_read_where_it_is(tmp_path: Path) -> None:
    with Log(str(tmp_path / "data")) as log:
        topic = log.create_topic("t")
        for number in range(20):
            topic.append(b"%d" % number)
        path = topic.partition(0).segments[0].path
    rotten = bytearray(Path(path).read_bytes())
    rotten[-3] ^= 1
    Path(path).write_bytes(rotten)

    async def scene(worker: WorkerProcess) -> None:
        first = ScrubSegment(path, 0, 0, 0, 0, 500, [(0, 0)])
        found = read_scrubbed((await worker.do(first, b"")).payload)
        assert (found.is_end, found.damaged) == (False, [])
        assert 500 <= found.bytes_read < 600
        rest = ScrubSegment(path, 0, 0, found.position, found.offset, MANY, [(0, 0)])
        found = read_scrubbed((await worker.do(rest, b"")).payload)
        assert (found.is_end, found.damaged) == (True, [19])
        gone = ScrubSegment(path + "x", 0, 0, 0, 0, MANY, [])
        assert read_scrubbed((await worker.do(gone, b"")).payload).is_end

    play(scene)


def test_what_a_job_raises_is_raised_here() -> None:
    async def scene(worker: WorkerProcess) -> None:
        with pytest.raises(BrokerError, match="grows past 10 bytes") as large:
            await worker.do(CheckRecords(10), BATCH)
        assert large.value.reason is Reason.RECORD_TOO_LARGE
        with pytest.raises(ProtocolError):
            await worker.do(ClipRecords(0, 1, 1, MANY), BATCH[:-1] + b"\xff")
        assert (worker.report().starts, worker.report().failed) == (1, 0)

    play(scene)


def test_a_job_that_needs_more_memory_than_there_is_fails_alone() -> None:
    huge = encode_batch([bytes(1 << 20)] * 200, base_timestamp=0, compression=Compression.ZSTD)

    async def scene(worker: WorkerProcess) -> None:
        with pytest.raises(BrokerError, match=r"worker\.memory_bytes_max") as large:
            await worker.do(CHECK, huge)
        assert large.value.reason is Reason.RECORD_TOO_LARGE
        await worker.do(CHECK, BATCH)
        assert worker.report().starts == 1

    play(scene, WorkerSettings(memory_bytes_max=100 << 20))


def test_a_process_that_dies_costs_the_job_it_was_doing() -> None:
    async def scene(worker: WorkerProcess) -> None:
        pid = await paused(worker)
        first, second = worker.do(CHECK, BATCH), worker.do(CHECK, BATCH)
        await until(lambda: worker.report().waiting == 1)
        os.kill(pid, signal.SIGKILL)
        assert "has ended; try again" in await refused(first)
        assert (await second).number > 0
        assert (worker.report().starts, worker.report().failed) == (2, 1)

    play(scene)


def test_a_process_that_dies_between_jobs_costs_none() -> None:
    async def scene(worker: WorkerProcess) -> None:
        await worker.do(CHECK, BATCH)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        child = worker._child
        assert child is not None
        await until(lambda: child.has_ended)
        await worker.do(CHECK, BATCH)
        assert (worker.report().starts, worker.report().failed) == (2, 0)

    play(scene)


def test_a_job_that_takes_too_long_is_given_up_with_its_process() -> None:
    async def scene(worker: WorkerProcess) -> None:
        pid = await paused(worker)
        worker._settings = msgspec.structs.replace(worker._settings, job_seconds_max=0.01)
        assert "within 0.01 s" in await refused(worker.do(CHECK, BATCH))
        assert not is_there(pid)

    play(scene)


def test_a_job_that_is_interrupted_says_why_and_costs_no_other() -> None:
    async def scene(worker: WorkerProcess) -> None:
        worker.interrupt("nothing is under way")
        pid = await paused(worker)
        under_way, next_one = worker.do(CHECK, BATCH), worker.do(CHECK, BATCH)
        await until(lambda: worker.report().waiting == 1)
        worker.interrupt("others wait")
        assert "others wait; try again" in await refused(under_way)
        assert not is_there(pid)
        with await next_one as answer:
            assert answer.number

    play(scene)


def test_a_worker_of_idle_priority_only_takes_what_nobody_else_wants() -> None:
    async def scene(worker: WorkerProcess) -> None:
        await worker.do(CHECK, BATCH)
        assert worker.pid is not None
        assert os.sched_getscheduler(worker.pid) == os.SCHED_IDLE

    play(scene, priority=IDLE)


def test_who_waits_too_long_is_refused() -> None:
    async def scene(worker: WorkerProcess) -> None:
        await paused(worker)
        under_way = worker.do(CHECK, BATCH)
        await until(lambda: worker.report().waiting == 0)
        worker._settings = msgspec.structs.replace(worker._settings, wait_seconds_max=0.01)
        assert "not begun by the worker process within 0.01 s" in await refused(worker.do(CHECK, BATCH))
        assert not under_way.done()
        assert worker.held_bytes() == len(BATCH)

    play(scene)


def test_too_many_jobs_and_too_many_bytes_are_refused_at_once() -> None:
    async def scene(worker: WorkerProcess) -> None:
        await paused(worker)
        worker.do(CHECK, BATCH)
        await until(lambda: worker.report().waiting == 0)
        waiting = [worker.do(CHECK, BATCH) for _ in range(2)]
        assert "worker.jobs_max" in await refused(worker.do(CHECK, BATCH))
        worker._settings = msgspec.structs.replace(worker._settings, jobs_max=100)
        assert "worker.queue_bytes_max" in await refused(worker.do(CHECK, BATCH))
        assert not any(each.done() for each in waiting)

    play(scene, WorkerSettings(jobs_max=2, queue_bytes_max=3 * len(BATCH)))


def test_a_single_job_may_be_larger_than_the_queue() -> None:
    async def scene(worker: WorkerProcess) -> None:
        assert (await worker.do(CHECK, BATCH)).number > 0

    play(scene, WorkerSettings(queue_bytes_max=1))


def test_what_waits_counts_in_the_memory_budget() -> None:
    large = encode_batch([os.urandom(100_000)], base_timestamp=0)
    budget = Budget(450_000)

    async def scene(worker: WorkerProcess) -> None:
        await paused(worker)
        worker.do(CHECK, large)
        await until(lambda: worker.report().waiting == 0)
        waiting = [worker.do(CHECK, large) for _ in range(3)]
        assert budget.bytes_held == 4 * len(large)
        over = worker.do(CHECK, large)
        for each in (*waiting, over):
            assert "no memory left" in await refused(each)
        await until(lambda: budget.bytes_held == 0)

    play(scene, budget=budget)


CLIPPED = 1 << 20
CLIP = ClipRecords(start_offset=0, records_max=MANY, bytes_max=CLIPPED, decompressed_bytes_max=MANY)
BOMB = encode_batch([bytes(CLIPPED // 4)] * 100, base_timestamp=0, compression=Compression.ZSTD)


def test_what_jobs_gave_counts_until_it_is_used_and_no_more_is_made_than_has_a_place() -> None:
    """Forty bombs of 25 MB each, from 40 times a few kilobytes: without a bound the 40 answers are there at once."""
    budget = Budget(ANSWERS_PART * 2 * CLIPPED)
    many = 40

    async def scene(worker: WorkerProcess) -> None:
        answers = [worker.do(CLIP, BOMB) for _ in range(many)]
        last = worker.do(CHECK, BATCH)
        for used, each in enumerate(answers):
            await until(lambda: worker._is_short or worker.report().waiting == 0)
            given = sum(done.done() for done in answers) - used
            assert given <= 4, "two fit, one was under way, and the records are cut a little below the limit"
            assert 0 < budget.bytes_held <= 4 * CLIPPED + (many + 1) * len(BOMB)
            with await each as answer:
                assert CLIPPED // 2 < len(answer.payload) <= CLIPPED
        assert (await last).number > 0, "who came after them is answered"
        assert (worker.held_bytes(), budget.bytes_held) == (0, 0)

    play(scene, budget=budget)


def test_an_answer_that_nobody_took_counts_no_more() -> None:
    async def scene(worker: WorkerProcess) -> None:
        gone = worker.do(CLIP, BOMB)
        await until(lambda: worker.report().waiting == 0)
        gone.cancel()
        dropped = worker.do(CLIP, BOMB)
        await until(dropped.done)
        assert worker.held_bytes() == len(dropped.result().payload)
        del dropped
        assert (await worker.do(CHECK, BATCH)).number > 0
        assert worker.held_bytes() == 0

    play(scene)


def test_no_job_is_begun_while_the_node_has_no_memory_left() -> None:
    budget = Budget(1 << 20)

    class Other:
        peer = "another"

        def held_bytes(self) -> int:
            return 1 << 20

        def abort(self) -> None: ...

        def room_again(self) -> None: ...

    async def scene(worker: WorkerProcess) -> None:
        other = Other()
        await worker.do(CHECK, BATCH)
        budget.note(other, 1 << 20)  # it is let go, and takes its time
        waiting = worker.do(CHECK, BATCH)
        await until(lambda: worker in budget._waiting)
        assert worker.report().waiting == 1
        budget.forget(other)
        assert (await waiting).number > 0

    play(scene, budget=budget)


def test_the_end_of_the_node_ends_what_waits() -> None:
    answers = []

    async def scene(worker: WorkerProcess) -> None:
        await paused(worker)
        answers.extend([worker.do(CHECK, BATCH), worker.do(CHECK, BATCH)])
        await until(lambda: worker.report().waiting == 1)

    play(scene)
    assert ["the node stops" in str(each.exception()) for each in answers] == [True, True]


NODE = """
import asyncio, os, signal, sys
from braidlog.codec.batch.records import encode_batch
from braidlog.server.net.memory_budget import Budget
from braidlog.server.process.worker_process import WorkerProcess, WorkerSettings
from braidlog.worker.jobs import CheckRecords

async def main():
    worker = WorkerProcess(WorkerSettings(), Budget(1 << 30))
    asyncio.ensure_future(worker.run())
    batch = encode_batch([b"x"], base_timestamp=0)
    await worker.do(CheckRecords(100), batch)
    if sys.argv[1] == "busy":
        os.kill(worker.pid, signal.SIGSTOP)
        worker.do(CheckRecords(100), batch)
    print(worker.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_no_process_is_left_when_the_node_is_killed(state: str) -> None:
    with subprocess.Popen([sys.executable, "-c", NODE, state], stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        pid = int(node.stdout.readline())
        assert is_there(pid)
        node.kill()

    async def gone() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await until(lambda: not is_there(pid))

    asyncio.run(gone())
