"""A request that comes alone has a way of its own through a session: whatever happens around it, nobody can tell."""

import asyncio
import random
from typing import Any

import pytest
from tests.server.toy import Scene

from braidlog.cluster.metadata.events import QuotaEntity
from braidlog.security.quotas import Quotas
from braidlog.server.net.connection_limits import SessionLimits
from braidlog.server.net.memory_budget import Budget

SEEDS = 40
STEPS = 50
BUDGET_BYTES = 10_000_000
LINES = ("one", "two", "soon 3", "silent", "soon silent", "fail x", "soon fail x", "large 100", "large 40000", "!bad",
    "pieces 100", "pieces 40000", "pieces 70000")  # fmt: skip
WAITS = ("wait", "poll", "long", "owe")
AROUND = ("many", "cut", "release", "release", "stick", "drain", "full", "room", "quota", "free")
KINDS = ("lone",) * 8 + AROUND
RATES = {QuotaEntity("anonymous"): {"append_bytes_per_second": 1e12}}


class Pair:
    """The same connection twice: one may take the short way, the other never does."""

    def __init__(self, *, ordered: bool) -> None:
        self.quotas = [Quotas(), Quotas()]
        self.budgets = [Budget(BUDGET_BYTES), Budget(BUDGET_BYTES)]
        limits = SessionLimits(in_flight_max=4, output_bytes_max=60_000)
        self.scenes = [
            Scene(limits, ordered=ordered, budget=budget, quotas=quotas)
            for budget, quotas in zip(self.budgets, self.quotas, strict=True)
        ]
        self.asked = 0
        self.short = 0
        single_frame = self.scenes[0].session._lone_request

        def count(data: bytes) -> Any:
            found = single_frame(data)
            self.short += found is not None
            return found

        self.scenes[0].session._lone_request = count
        self.scenes[1].session._lone_request = lambda _: None

    def line(self, chance: random.Random) -> str:
        if chance.random() < 0.15:
            self.asked += 1
            return f"{chance.choice(WAITS)} {self.asked}"
        return chance.choice(LINES)

    def step(self, chance: random.Random) -> None:
        kind = chance.choice(KINDS)
        lines = [self.line(chance) for _ in range(1 if kind == "lone" else 3)]
        text = "the beginning of " if kind == "cut" else "".join(f"{line}\n" for line in lines)
        waiting = sorted(self.scenes[1].adapter.waiting)
        released = chance.choice(waiting) if waiting else None
        for scene, quotas, budget in zip(self.scenes, self.quotas, self.budgets, strict=True):
            match kind:
                case "lone" | "many" | "cut" if scene.transport.reading and not scene.transport.closed:
                    scene.session.data_received(text.encode())
                case "release" if released is not None:
                    scene.adapter.release(released)
                case "stick":
                    scene.transport.stuck = True
                case "drain":
                    scene.transport.drain()
                case "full" | "room":
                    budget.reserve(BUDGET_BYTES if kind == "full" else 0)
                case "quota" | "free":
                    quotas.administer(RATES if kind == "quota" else {})

    def told(self) -> list[Any]:
        return [
            (
                # Those that were held back together go on in any order, where the dialect has none.
                scene.sent if scene.adapter.ordered else sorted(scene.sent),
                scene.transport.reading,
                scene.transport.closed,
                scene.adapter.begun,
                scene.session.requests,
                scene.session.bytes_in,
                scene.session.outbox.bytes_out,
                scene.session.held_bytes(),
                scene.session.is_quiet,
                scene.account.counters.requests,
                {name: sum(seconds.counts) for name, seconds in scene.account.counters.seconds.items()},
                budget.bytes_held,
            )
            for scene, budget in zip(self.scenes, self.budgets, strict=True)
        ]


@pytest.mark.parametrize("ordered", [True, False])
def test_both_ways_serve_alike(ordered: bool) -> None:
    async def play(seed: int) -> int:
        chance = random.Random(seed)
        pair = Pair(ordered=ordered)
        for number in range(STEPS):
            pair.step(chance)
            for _ in range(4):
                await asyncio.sleep(0)
            first, second = pair.told()
            assert first == second, f"seed {seed}, step {number}"
        return pair.short

    async def all_seeds() -> int:
        return sum([await play(seed) for seed in range(SEEDS)])

    assert asyncio.run(all_seeds()) > SEEDS, "the short way was hardly taken"
