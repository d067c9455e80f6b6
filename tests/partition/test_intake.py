"""What a client's compressed batch may cost before it is appended, where it is opened, and whose turn it is."""

from collections.abc import Awaitable
from typing import Any

import pytest
from tests.broker.node import Node
from tests.model.manual_world import Job, ManualWorld
from tests.refusals import refused_with

from braidlog.codec.batch import HEADER_BYTES, read_header
from braidlog.codec.compression import Compression
from braidlog.codec.records import encode_batch, seal_section
from braidlog.model.errors import BrokerError, Reason
from braidlog.partition.intake import (
    HERE_BYTES_MAX,
    LINE_BYTES_MAX,
    RATIO_FREE_BYTES,
    Allowance,
    DecompressionLimits,
    Intake,
)
from braidlog.worker.here import Here
from braidlog.worker.jobs import Answer, Buffer, CheckRecords
from braidlog.worker.jobs import Job as WorkerJob

PACKED = [codec for codec in Compression if codec is not Compression.NONE]
MEGABYTE = 1 << 20


class Noted(Here):
    """A worker that remembers what it was asked."""

    def __init__(self) -> None:
        self.jobs: list[WorkerJob] = []

    async def do(self, job: WorkerJob, payload: Buffer) -> Answer:
        self.jobs.append(job)
        return await super().do(job, payload)


class Bench:
    """`bench.check(batch)`"""

    def __init__(self, **limits: int) -> None:
        self.node = Node()
        self.node.create("a")
        self.worker = Noted()
        self.limits = DecompressionLimits(**limits)
        self.intake = Intake(self.node.services.hosting, self.node.world, self.worker, self.limits)
        self.allowance = Allowance(self.limits)

    def check(self, batch: bytes) -> None:
        self.node.run(self.intake.check("a", 0, batch, read_header(batch), self.allowance))


def packed(size: int, codec: Compression = Compression.GZIP) -> bytes:
    return encode_batch([bytes(size)], base_timestamp=0, compression=codec)


@pytest.mark.parametrize("codec", PACKED)
def test_small_is_opened_here_and_large_by_the_worker(codec: Compression) -> None:
    bench = Bench()
    bench.check(packed(1000, codec))
    assert bench.worker.jobs == []
    bench.check(packed(2 * MEGABYTE, codec))
    assert len(bench.worker.jobs) == 1
    assert bench.allowance.bytes_left < bench.limits.decompressed_bytes_max - 2 * MEGABYTE


def test_a_request_has_one_megabyte_of_the_loop_for_all_its_batches() -> None:
    bench = Bench()
    for _ in range(4):
        bench.check(packed(HERE_BYTES_MAX // 3))
    assert len(bench.worker.jobs) == 2, "two fitted beside each other, not four"


@pytest.mark.parametrize("codec", PACKED)
def test_more_than_a_request_may_have_is_refused(codec: Compression) -> None:
    bench = Bench(decompressed_bytes_max=10 * MEGABYTE, decompressed_ratio_max=100_000)
    with refused_with(Reason.RECORD_TOO_LARGE):
        bench.check(packed(11 * MEGABYTE, codec))
    bench.check(packed(6 * MEGABYTE, codec))
    with refused_with(Reason.RECORD_TOO_LARGE):
        bench.check(packed(6 * MEGABYTE, codec))


def test_nothing_left_is_not_asked_of_the_worker() -> None:
    bench = Bench()
    bench.allowance.bytes_left = bench.allowance.here_left = 0
    with pytest.raises(BrokerError, match=r"limits\.decompressed_bytes_max"):
        bench.check(packed(10))
    assert bench.worker.jobs == []


def test_a_ratio_that_no_client_reaches_is_refused_and_a_few_megabytes_are_free() -> None:
    bench = Bench(decompressed_ratio_max=100)
    free = packed(RATIO_FREE_BYTES - 100, Compression.ZSTD)
    assert len(free) * 100 < RATIO_FREE_BYTES
    bench.check(free)
    with refused_with(Reason.RECORD_TOO_LARGE):
        bench.check(packed(RATIO_FREE_BYTES + 100, Compression.ZSTD))


@pytest.mark.parametrize("codec", PACKED)
def test_very_compressible_batches_pass_by_default(codec: Compression) -> None:
    lines = [b'{"level":"info","message":"started","at":%d}' % (number // 1000) for number in range(400_000)]
    Bench().check(encode_batch(lines, base_timestamp=0, compression=codec))


@pytest.mark.parametrize("size", [1000, 2 * MEGABYTE])
def test_a_record_that_is_not_sound_is_refused_wherever_it_is_opened(size: int) -> None:
    bench = Bench()
    plain = encode_batch([bytes(size)], base_timestamp=0)
    section = bytearray(plain[HEADER_BYTES:])
    section[-1] = 9  # nine headers are announced, and none follows
    lying = seal_section(section, 1, base_timestamp=0, max_timestamp=0, compression=Compression.GZIP)
    with refused_with(Reason.INVALID_RECORD):
        bench.check(lying)


def test_what_is_cheap_to_see_is_seen_before_anything_is_opened() -> None:
    bench = Bench()
    batch = packed(2 * MEGABYTE)
    with pytest.raises(ValueError, match="CRC"):
        bench.check(batch[:-9] + bytes(9))
    assert bench.worker.jobs == []


# -- order -------------------------------------------------------------------------------------------------------


class Held:
    """A worker that answers when it is told to."""

    def __init__(self, world: ManualWorld) -> None:
        self._world = world
        self._wakeups: list[Any] = []

    def do(self, job: WorkerJob, payload: Buffer) -> Awaitable[Answer]:
        wakeup = self._world.wakeup()
        self._wakeups.append(wakeup)

        async def answer() -> Answer:
            await wakeup.wait(1e6)
            return Answer(1)

        return answer()

    def let_go(self) -> None:
        self._wakeups.pop(0).wake()


class Line:
    """Requests of some sources, each with one batch; `done` has them in the order in which they were appended."""

    def __init__(self) -> None:
        self.node = Node()
        self.node.create("a")
        self.worker = Held(self.node.world)
        self.intake = Intake(self.node.services.hosting, self.node.world, self.worker, DecompressionLimits())
        self.done: list[str] = []

    def send(self, source: str, name: str, *, large: bool, weight: int = 10) -> Job[None]:
        batch = packed(2 * MEGABYTE if large else 10)

        async def request() -> None:
            if not self.intake.begin(source):
                await self.intake.wait(source, weight)
            allowance = self.intake.allowance()
            try:
                await self.intake.check("a", 0, batch, read_header(batch), allowance)
                self.done.append(name)
            finally:
                self.intake.end(source)

        return self.node.spawn(request())

    def go_on(self) -> None:
        self.worker.let_go()
        self.node.world.settle()


def test_what_one_connection_sends_stays_in_order() -> None:
    line = Line()
    line.send("x", "large", large=True)
    line.send("x", "small", large=False)
    line.send("x", "large again", large=True)
    line.send("x", "last", large=False)
    line.send("y", "another's", large=False)
    assert line.done == ["another's"]
    line.go_on()
    assert line.done == ["another's", "large", "small"]
    line.go_on()
    assert line.done == ["another's", "large", "small", "large again", "last"]


def test_who_leaves_the_line_holds_nobody_up() -> None:
    line = Line()
    line.send("x", "large", large=True)
    gone = line.send("x", "gone", large=False)
    line.send("x", "next", large=False)
    gone.cancel()
    line.go_on()
    assert line.done == ["large", "next"]
    line.send("x", "later", large=False)
    assert line.done == ["large", "next", "later"]


def test_who_leaves_when_its_turn_has_come_passes_it_on() -> None:
    line = Line()
    assert line.intake.begin("x")
    gone = line.send("x", "gone", large=False)
    line.send("x", "next", large=False)
    line.intake.end("x")
    gone.cancel()  # it was woken, and has not gone on yet
    line.node.world.settle()
    assert line.done == ["next"]


def test_what_waits_in_line_is_bounded() -> None:
    line = Line()
    line.send("x", "large", large=True)
    line.send("x", "waits", large=False, weight=LINE_BYTES_MAX)
    job = line.send("x", "too much", large=False, weight=1)
    with refused_with(Reason.TIMED_OUT):
        job.result()
    line.go_on()
    assert line.done == ["large", "waits"]
    line.send("x", "later", large=False)
    assert line.done[-1] == "later"


def test_the_worker_is_told_how_much() -> None:
    bench = Bench(decompressed_bytes_max=10 * MEGABYTE)
    bench.check(packed(2 * MEGABYTE))
    assert bench.worker.jobs == [CheckRecords(RATIO_FREE_BYTES)], "few bytes may become a few megabytes"
