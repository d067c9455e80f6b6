"""One at a time, in order; who leaves the line early passes the turn on."""

from random import Random

import pytest
from tests.model.manual_world import Job, ManualWorld

from braidlog.model.errors import NothingDoneError, Reason
from braidlog.model.runtime.keyed_lock import Turns
from braidlog.testing.clock import ManualClock


class Bench:
    def __init__(self, rng: Random | None = None) -> None:
        self.world = ManualWorld(ManualClock(), rng=rng)
        self.turns = Turns(self.world)
        self.inside: list[int] = []
        self.order: list[int] = []

    async def visit(self, number: int, pauses: int = 2) -> None:
        async with self.turns.take("x"):
            self.inside.append(number)
            assert len(self.inside) == 1
            self.order.append(number)
            try:
                for _ in range(pauses):
                    await self.world.pause()
            finally:
                self.inside.remove(number)


def test_one_at_a_time_in_order() -> None:
    bench = Bench()
    jobs = [bench.world.spawn(bench.visit(number)) for number in range(10)]
    bench.world.settle()
    assert bench.order == list(range(10))
    assert all(job.error is None and job.is_done for job in jobs)
    assert not bench.turns.is_held("x")


def test_names_do_not_wait_for_each_other() -> None:
    bench = Bench()

    async def hold() -> None:
        async with bench.turns.take("y"):
            await bench.world.wakeup().wait(1000)

    bench.world.spawn(hold())
    assert bench.world.spawn(bench.visit(1, pauses=0)).is_done


def test_an_error_inside_passes_the_turn_on() -> None:
    bench = Bench()

    async def fail() -> None:
        async with bench.turns.take("x"):
            await bench.world.pause()
            raise ValueError("no")

    failing = bench.world.spawn(fail())
    following = bench.world.spawn(bench.visit(1))
    bench.world.settle()
    assert isinstance(failing.error, ValueError)
    following.result()


def test_who_waits_too_long_leaves_and_nothing_is_stuck() -> None:
    bench = Bench()

    async def hold() -> None:
        async with bench.turns.take("x"):
            await bench.world.wakeup().wait(100)

    holder = bench.world.spawn(hold())
    impatient = bench.world.spawn(bench.visit(1))
    bench.world.advance(60_000)
    assert isinstance(impatient.error, NothingDoneError)
    assert impatient.error.reason is Reason.TIMED_OUT
    late = bench.world.spawn(bench.visit(2))
    bench.world.advance(50_000)
    assert holder.is_done
    late.result()
    assert not bench.turns.is_held("x")


@pytest.mark.parametrize("seed", range(200))
def test_who_goes_away_at_any_moment_blocks_nobody(seed: int) -> None:
    rng = Random(seed)
    bench = Bench(rng)
    jobs: list[Job[None]] = []
    for number in range(30):
        jobs.append(bench.world.spawn(bench.visit(number)))
        if rng.random() < 0.4:
            rng.choice(jobs).cancel()
        if rng.random() < 0.3 and bench.world._ready:
            bench.world._step(bench.world._ready.popleft())
    bench.world.settle()
    assert all(job.is_done and job.error is None for job in jobs), f"seed {seed}"
    assert not bench.turns.is_held("x"), f"seed {seed}"
