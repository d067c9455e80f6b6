"""Bugs planted on purpose, each in the run of a seed in which it shows itself; the same runs are clean without it.

`planted.txt` has a line per bug: its number (docs/guides/durability.md) and that run's seed. `make sim-planted` searches for them
anew, as is needed whenever what a mix draws has changed.
"""

from pathlib import Path

import pytest
from tests.replication.planted import planted
from tests.simulation.search import EVERY_BUG, failure

LINES = Path(__file__).with_name("planted.txt").read_text(encoding="utf-8").splitlines()
SEEDS = {int(number): int(seed) for number, seed in (line.split() for line in LINES)}


@pytest.mark.parametrize("number", SEEDS)
def test_the_simulator_finds_a_planted_bug(number: int) -> None:
    with planted(EVERY_BUG[number]):
        assert failure(SEEDS[number])


def test_the_same_runs_are_clean_without_it() -> None:
    found = {seed: failure(seed) for seed in sorted(set(SEEDS.values()))}
    assert {seed: why for seed, why in found.items() if why} == {}
