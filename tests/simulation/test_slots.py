"""Slots of the key-value cluster, simulated: seeds that must keep every promise, and bugs that must break one."""

from pathlib import Path

import pytest
from tests.replication.planted import planted
from tests.simulation.real_codec import RealCodec
from tests.simulation.slot_search import BY_A_THIRD, SLOT_BUGS, failure, run_all
from tests.simulation.slots import SlotUniverse

BATCHES, BATCH = 4, 25
SOMETIMES = (
    "truncation",
    "election",
    "tail kept",
    "salvage taken",
    "salvage known",
    "salvage superseded",
    "forwarded",
    "withdrawn",
    "expired",
    "checkpoint begun",
    "log trimmed",
    "start followed",
    "gathered",
    "columns",
)
LINES = Path(__file__).with_name("planted_slots.txt").read_text(encoding="utf-8").splitlines()
SEEDS = {int(number): int(seed) for number, seed in (line.split() for line in LINES)}
"""By number of a planted bug: a seed whose run finds it. `python -m tests.simulation.slot_search planted` searches anew."""


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_promise_is_kept(batch: int) -> None:
    done = run_all(range(1 + batch * BATCH, 1 + (batch + 1) * BATCH))
    assert not done.failed, f"python -m tests.simulation.slot_search story {done.failed[0][0]}: {done.failed}"
    missing = [what for what in SOMETIMES if not done.counts[what]]
    assert not missing, f"never happened in {BATCH} seeds: {missing}; a clean run shows nothing of it"
    assert done.counts["answered"] > 50 * BATCH


@pytest.mark.parametrize("number", SLOT_BUGS)
def test_a_planted_bug_is_found(number: int) -> None:
    assert not failure(SEEDS[number])
    with planted(SLOT_BUGS[number]):
        assert failure(SEEDS[number])


def test_a_mutation_that_a_third_has_cut_too_is_the_same_one() -> None:
    with planted(BY_A_THIRD), pytest.raises(AssertionError):
        BY_A_THIRD.killer()


def test_rounds_pass_the_real_codec() -> None:
    """Questions and answers as bytes: the same run."""
    told = []
    for codec in (None, RealCodec()):
        universe = SlotUniverse(3, codec=codec, tells=True)
        universe.run()
        told.append((universe.story, universe.counts["answered"]))
    assert told[0] == told[1]
