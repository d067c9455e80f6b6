"""Every crash at every operation of every workload: nothing acknowledged is lost, nothing is invented.

Row 7 of the promises. The number of distinct disks that were tried is part of the promise: it is printed, and a run that tried
fewer than its share fails. `CRASH_SECONDS=600 pytest tests/storage/test_crashes.py -k campaign -s` tries new seeds for so long;
`CRASH=full` (`make crash`) adds the mixes that a plain run leaves out.
"""

import itertools
import os
import time
from collections.abc import Callable

import pytest
from tests.sampling import FULL
from tests.storage import workloads
from tests.storage.crashing import Campaign, Runtime, compare, fixed_ids, go_on, lost, open_log, read_raw, see_all

from braidlog.codec.batch.records import encode_batch
from braidlog.storage.embedded_log import Log
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import Crash, Operation, SimulatedDisk

STATES_MIN = {
    "appends": 800,
    "acknowledged": 300,
    "few_files": 1200,
    "idle": 800,
    "lazy": 550,
    "retention": 250,
    "deletion": 200,
    "truncation": 500,
    "transactions": 280,
    "idempotence": 280,
    "compaction": 580,
    "epochs": 250,
    "replica": 400,
    "takeover": 200,
    "topics": 1500,
}
MIX_STATES_MIN = {range(4): 4_400, range(4, 7): 3_100, range(7, 10): 4_000, range(10, 13): 3_900}
MORE_MIX_STATES_MIN = {range(13, 16): 6_800, range(16, 20): 4_900, range(20, 24): 4_300} if FULL else {}
KILLED_MIXES = range(100, 108) if FULL else range(101, 106, 2)
"""Every kind of step is in the three of a plain run, as it is in the first thirteen mixes above."""
PROMISED = 20_000


@pytest.fixture(autouse=True)
def _same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_ids(monkeypatch)


def test_the_shares_add_up() -> None:
    """Each test below fails if it tried less than its share; together that is what is promised."""
    assert set(STATES_MIN) == set(workloads.ALL)
    assert sum(STATES_MIN.values()) + sum(MIX_STATES_MIN.values()) >= PROMISED


@pytest.mark.parametrize("name", workloads.ALL)
def test_every_crash_of_a_workload(name: str) -> None:
    campaign = Campaign()
    campaign.run(workloads.ALL[name])
    print(f"{name}: {campaign.states} crash states, {campaign.inside} more inside recovery")
    assert campaign.states >= STATES_MIN[name]


@pytest.mark.parametrize(("seeds", "states_min"), (MIX_STATES_MIN | MORE_MIX_STATES_MIN).items(), ids=str)
def test_every_crash_of_a_mix(seeds: range, states_min: int) -> None:
    states = 0
    for seed in seeds:
        campaign = Campaign()
        try:
            campaign.run(workloads.Mixed(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        states += campaign.states
        print(f"seed {seed}: {campaign.states} crash states, {campaign.inside} more inside recovery")
    assert states >= states_min


def kill_everywhere(work: Callable[[Runtime], None]) -> int:
    """kill -9 leaves the page cache: all that returned is there, whatever `flush` says. Then the power goes too."""
    runtime = Runtime()
    kills = 0

    def before(operation: Operation) -> None:
        nonlocal kills
        kills += 1
        killed = runtime.disk.after_kill()
        log = open_log(killed, runtime.clock.now_ms())
        shown = compare(log, runtime.topics, killed=True)
        # What a reader saw after the kill, and what is acknowledged then, outlives the power.
        assert see_all(open_log(lost(killed), runtime.clock.now_ms())) == shown
        go_on(log, killed, shown)

    runtime.disk.on_operation = before
    work(runtime)
    return kills


@pytest.mark.parametrize("name", workloads.ALL)
def test_kill_at_every_operation(name: str) -> None:
    kills = kill_everywhere(workloads.ALL[name])
    print(f"{name}: {kills} kills")
    assert kills > 100


def test_kill_at_every_operation_of_a_mix() -> None:
    kills = sum(kill_everywhere(workloads.Mixed(seed)) for seed in KILLED_MIXES)
    print(f"{kills} kills")
    assert kills > 125 * len(KILLED_MIXES)


def test_kill_while_the_folder_is_made() -> None:
    """A folder whose name was seen and not synced must not take acknowledged records with it."""
    number = 1
    while True:
        disk = SimulatedDisk()
        disk.stop_at = number
        try:
            Log("/a/b/c", disk=disk, clock=ManualClock())
        except Crash:
            killed = disk.after_kill()
            Log("/a/b/c", disk=killed, clock=ManualClock()).create_topic("t").append(b"x")
            assert len(Log("/a/b/c", disk=lost(killed), clock=ManualClock()).topic("t").read()) == 1, (
                f"operation {number}"
            )
            number += 1
        else:
            break
    assert number > 10


@pytest.mark.parametrize("name", ["truncation", "epochs", "deletion"])
def test_a_crash_and_then_a_lost_checkpoint(name: str) -> None:
    """After recovery and one more append either slot alone is enough: none of them holds an intent that is over."""
    runtime = Runtime()
    tried = 0

    def before(operation: Operation) -> None:
        nonlocal tried
        for _, state in runtime.disk.crash_states(2):
            log = open_log(state, runtime.clock.now_ms())
            if "t" not in log.topics():
                continue
            p = log.topic("t").partition()
            p.append(encode_batch([b"more"], base_timestamp=0), leader_epoch=max(0, p.state.epochs.latest), now_ms=0)
            p.sync()
            shown = (p.start_offset, p.end_offset, read_raw(p, p.start_offset, p.end_offset))
            for slot in ("state.a", "state.b"):
                damaged = state.after_kill()
                damaged.cut(f"{p.folder}/{slot}", 10)
                q = open_log(damaged, runtime.clock.now_ms()).topic("t").partition()
                assert not q.damages
                assert (q.start_offset, q.end_offset, read_raw(q, q.start_offset, q.end_offset)) == shown, operation
                tried += 1

    runtime.disk.on_operation = before
    workloads.ALL[name](runtime)
    assert tried > 300


def test_kill_of_lazy_topics() -> None:
    """`os` and `interval`, with the flusher's thread asleep: it must not be needed for kill -9."""
    for flush in ("os", "interval"):
        runtime = Runtime()

        def before(operation: Operation, runtime: Runtime = runtime) -> None:
            compare(open_log(runtime.disk.after_kill()), runtime.topics, killed=True)

        runtime.disk.on_operation = before
        runtime.open()
        runtime.create("t", partitions=2, flush=flush, flush_window_bytes=1 << 20)
        for number in range(12):
            runtime.append("t", number % 2, size=150 * number, count=2, pid=1)
        runtime.disk.on_operation = None
        runtime.close()


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


def test_an_index_from_before_a_truncation() -> None:
    """Its entries point into batches that are gone; two kills later the checkpoint covers their offsets again."""
    runtime = Runtime()
    runtime.open()
    runtime.create("t", flush_window_bytes=1 << 20, segment_bytes=1 << 16)
    for number in range(14):
        runtime.append("t", size=90 + number)
    runtime.reopen()
    runtime.truncate("t", 4)
    for number in range(14):
        runtime.append("t", size=150 + 7 * number % 50)
    disk = runtime.disk
    for turn in range(3):
        disk = disk.after_kill()
        try:
            compare(open_log(disk, runtime.clock.now_ms()), runtime.topics, killed=True)
        except AssertionError as error:
            raise AssertionError(f"opening {turn}: {error}") from error
