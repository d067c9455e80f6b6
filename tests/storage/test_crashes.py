"""Every crash at every operation of every workload: nothing acknowledged is lost, nothing is invented.

Row 7 of the promises. The number of distinct disks that were tried is part of the promise: it is printed, and a run that tried
fewer than its share fails. `CRASH_SECONDS=600 pytest tests/storage/test_crashes.py -k campaign -s` tries new seeds for so long.
"""

import itertools
import os
import time

import pytest

from braidlog.testing.disk import Operation
from tests.storage import workloads
from tests.storage.crashing import Campaign, World, compare, fixed_ids, go_on, lost, open_log, see_all

STATES_MIN = {
    "appends": 800,
    "lazy": 550,
    "retention": 250,
    "deletion": 200,
    "truncation": 500,
    "transactions": 280,
    "idempotence": 280,
    "compaction": 580,
    "epochs": 250,
    "topics": 1500,
}
SEEDS = range(16)
SEED_STATES_MIN = 550
PROMISED = 20_000


@pytest.fixture(autouse=True)
def _same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_ids(monkeypatch)


def test_every_workload_has_its_share() -> None:
    assert set(STATES_MIN) == set(workloads.ALL)


@pytest.mark.parametrize("name", workloads.ALL)
def test_every_crash_of_a_workload(name: str) -> None:
    campaign = Campaign()
    campaign.run(workloads.ALL[name])
    print(f"{name}: {campaign.states} crash states, {campaign.inside} more inside recovery")
    assert campaign.states >= STATES_MIN[name]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_crash_of_a_mix(seed: int) -> None:
    campaign = Campaign()
    campaign.run(workloads.Mixed(seed))
    print(f"seed {seed}: {campaign.states} crash states, {campaign.inside} more inside recovery")
    assert campaign.states >= SEED_STATES_MIN


@pytest.mark.parametrize("name", workloads.ALL)
def test_kill_at_every_operation(name: str) -> None:
    """kill -9 leaves the page cache: all that returned is there, whatever `flush` says. Then the power goes too."""
    world = World()
    kills = 0

    def before(operation: Operation) -> None:
        nonlocal kills
        kills += 1
        killed = world.disk.after_kill()
        log = open_log(killed, world.clock.now_ms())
        shown = compare(log, world.topics, killed=True)
        # What a reader saw after the kill, and what is acknowledged then, outlives the power.
        assert see_all(open_log(lost(killed), world.clock.now_ms())) == shown
        go_on(log, killed, shown)

    world.disk.on_operation = before
    workloads.ALL[name](world)
    print(f"{name}: {kills} kills")
    assert kills > 100


def test_kill_of_lazy_topics() -> None:
    """`os` and `interval`, with the flusher's thread asleep: it must not be needed for kill -9."""
    for flush in ("os", "interval"):
        world = World()

        def before(operation: Operation, world: World = world) -> None:
            compare(open_log(world.disk.after_kill()), world.topics, killed=True)

        world.disk.on_operation = before
        world.open()
        world.create("t", partitions=2, flush=flush, flush_window_bytes=1 << 20)
        for number in range(12):
            world.append("t", number % 2, size=150 * number, count=2, pid=1)
        world.disk.on_operation = None
        world.close()


@pytest.mark.skipif("CRASH_SECONDS" not in os.environ, reason="a campaign runs as long as CRASH_SECONDS says")
def test_campaign() -> None:
    deadline = time.monotonic() + float(os.environ["CRASH_SECONDS"])
    states = 0
    first = int(os.environ.get("CRASH_SEED", "1000"))
    for seed in itertools.count(first):
        campaign = Campaign(inside_every=15)
        try:
            campaign.run(workloads.Mixed(seed, steps=60))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        states += campaign.states + campaign.inside
        if time.monotonic() > deadline:
            break
    print(f"{states} crash states, seeds {first} to {seed}")
