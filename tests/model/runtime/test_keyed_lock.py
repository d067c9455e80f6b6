"""One at a time, in order; who leaves the line early passes the turn on."""

from random import Random

import pytest
from tests.model.manual_world import Job, ManualRuntime

from braidlog.model.errors import NothingDoneError, Reason
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.testing.clock import ManualClock


class Bench:
    def __init__(self, rng: Random | None = None) -> None:
        self.runtime = ManualRuntime(ManualClock(), rng=rng)
        self.turns = KeyedLock(self.runtime)
        self.inside: list[int] = []
        self.order: list[int] = []

    async def visit(self, number: int, pauses: int = 2) -> None:
        async with self.turns.acquire("x"):
            self.inside.append(number)
            assert len(self.inside) == 1
            self.order.append(number)
            try:
                for _ in range(pauses):
                    await self.runtime.pause()
            finally:
                self.inside.remove(number)


def test_one_at_a_time_in_order() -> None:
    bench = Bench()
    jobs = [bench.runtime.spawn(bench.visit(number)) for number in range(10)]
    bench.runtime.settle()
    assert bench.order == list(range(10))
    assert all(job.error is None and job.is_done for job in jobs)
    assert not bench.turns.is_held("x")


def test_names_do_not_wait_for_each_other() -> None:
    bench = Bench()

    async def hold() -> None:
        async with bench.turns.acquire("y"):
            await bench.runtime.wakeup().wait(1000)

    bench.runtime.spawn(hold())
    assert bench.runtime.spawn(bench.visit(1, pauses=0)).is_done


def test_an_error_inside_passes_the_turn_on() -> None:
    bench = Bench()

    async def fail() -> None:
        async with bench.turns.acquire("x"):
            await bench.runtime.pause()
            raise ValueError("no")

    failing = bench.runtime.spawn(fail())
    following = bench.runtime.spawn(bench.visit(1))
    bench.runtime.settle()
    assert isinstance(failing.error, ValueError)
    following.result()


def test_who_waits_too_long_leaves_and_nothing_is_stuck() -> None:
    bench = Bench()

    async def hold() -> None:
        async with bench.turns.acquire("x"):
            await bench.runtime.wakeup().wait(100)

    holder = bench.runtime.spawn(hold())
    impatient = bench.runtime.spawn(bench.visit(1))
    bench.runtime.advance(60_000)
    assert isinstance(impatient.error, NothingDoneError)
    assert impatient.error.reason is Reason.TIMED_OUT
    late = bench.runtime.spawn(bench.visit(2))
    bench.runtime.advance(50_000)
    assert holder.is_done
    late.result()
    assert not bench.turns.is_held("x")


@pytest.mark.parametrize("seed", range(200))
def test_who_goes_away_at_any_moment_blocks_nobody(seed: int) -> None:
    rng = Random(seed)
    bench = Bench(rng)
    jobs: list[Job[None]] = []
    for number in range(30):
        jobs.append(bench.runtime.spawn(bench.visit(number)))
        if rng.random() < 0.4:
            rng.choice(jobs).cancel()
        if rng.random() < 0.3 and bench.runtime._ready:
            bench.runtime._step(bench.runtime._ready.popleft())
    bench.runtime.settle()
    assert all(job.is_done and job.error is None for job in jobs), f"seed {seed}"
    assert not bench.turns.is_held("x"), f"seed {seed}"
