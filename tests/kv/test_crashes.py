"""Every crash at every operation of every workload: nothing acknowledged is lost, nothing is invented, nothing happens twice.

The number of distinct disks that were tried is part of the promise: it is printed, and a run that tried fewer fails.
"""

from collections.abc import Callable

import pytest
from tests.kv import workloads
from tests.kv.crashing import SETTINGS, Campaign, Runtime, go_on, lost, open_store, see

from braidlog.testing.disk import Operation

STATES_MIN = {
    "strings": 100,
    "groups": 120,
    "counters": 110,
    "collections": 160,
    "expiry": 80,
    "snapshots": 170,
    "restarts": 70,
    "bursts": 70,
    "reserved": 100,
}


@pytest.mark.parametrize("name", workloads.ALL)
def test_every_crash_of_a_workload(name: str) -> None:
    campaign = Campaign()
    campaign.run(workloads.ALL[name])
    print(f"{name}: {campaign.states} crash states, {campaign.inside} more inside recovery")
    assert campaign.states >= STATES_MIN[name]


@pytest.mark.parametrize("seeds", [range(first, first + 4) for first in range(0, 16, 4)], ids=str)
def test_every_crash_of_a_mix(seeds: range) -> None:
    states = 0
    for seed in seeds:
        campaign = Campaign()
        try:
            campaign.run(workloads.Mixed(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        states += campaign.states
        print(f"seed {seed}: {campaign.states} crash states, {campaign.inside} more inside recovery")
    assert states >= 500


def kill_everywhere(work: Callable[[Runtime], None]) -> int:
    """kill -9 leaves the page cache: all that returned is there, synced or not. Then the power goes too."""
    runtime = Runtime()
    kills = 0

    def before(operation: Operation) -> None:
        nonlocal kills
        kills += 1
        killed = runtime.disk.after_kill()
        now_ms = runtime.clock.now_ms()
        store = open_store(killed, SETTINGS, now_ms)
        seen = runtime.compare(store, killed=True)
        assert see(open_store(lost(killed), SETTINGS, now_ms)) == seen, (
            "what was shown after a kill is gone with the power"
        )
        go_on(store, killed, SETTINGS, now_ms)

    runtime.disk.on_operation = before
    work(runtime)
    return kills


@pytest.mark.parametrize("name", workloads.ALL)
def test_kill_at_every_operation(name: str) -> None:
    kills = kill_everywhere(workloads.ALL[name])
    print(f"{name}: {kills} kills")
    assert kills > 30


def test_kill_at_every_operation_of_a_mix() -> None:
    kills = sum(kill_everywhere(workloads.Mixed(seed)) for seed in range(100, 106))
    print(f"{kills} kills")
    assert kills > 400
