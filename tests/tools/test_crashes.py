"""After a power loss at any moment a check may find notes and faults, but never damage: a crash loses nothing durable."""

from collections.abc import Callable
from random import Random

import pytest
from tests.tools.folders import DATA, TOPIC, build, repair

from braidlog import Log, StorageFault
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import Crash, SimulatedDisk
from braidlog.tools.findings import Kind, Severity
from braidlog.tools.verify import verify


def _compact(disk: SimulatedDisk) -> None:
    log = Log(DATA, disk=disk, clock=ManualClock())  # no `with`: who is dead closes nothing
    topic = log.create_topic(TOPIC, segment_bytes=4096, index_interval_bytes=256, compact=True)
    for number in range(40):
        topic.append(b"x" * 200, key=str(number % 3).encode())
    topic.compact()
    topic.delete_before(topic.partition().segments[-1].base_offset)
    topic.append(b"y")
    log.close()


def _truncate(disk: SimulatedDisk) -> None:
    build(disk)
    log = Log(DATA, disk=disk, clock=ManualClock())
    log.topic(TOPIC).partition().truncate(17)
    log.close()


@pytest.mark.parametrize("work", [build, _compact, _truncate], ids=["append", "compact", "truncate"])
def test_a_crash_is_never_called_damage(work: Callable[[SimulatedDisk], object]) -> None:
    counted = SimulatedDisk()
    work(counted)
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    for stop_at in sorted(rng.sample(range(1, len(counted.operations) + 1), 40)):
        dying = SimulatedDisk()
        dying.stop_at = stop_at
        with pytest.raises(Crash):
            work(dying)
        for label, state in dying.crash_states(limit=10, rng=rng):
            if not state.exists(f"{DATA}/folder.a") or not state.exists(f"{DATA}/topics/00000001"):
                continue
            findings = verify(state, DATA).all_findings()
            damages = [f for f in findings if f.severity is Severity.DAMAGE]
            assert not damages, f"stopped at {stop_at}, {label}: {damages}"
            assert {f.kind for f in findings if f.severity is Severity.FAULT} <= {
                Kind.CHECKPOINT,  # a torn save looks like damage to one of two
                Kind.FOLDER,
                Kind.TOPIC,
                Kind.INDEX,  # the name of a new index may be lost after a clean stop: no folder is synced for a hint
            }, f"stopped at {stop_at}, {label}: {findings}"
            try:
                repair(state)
            except StorageFault as fault:
                raise AssertionError(f"stopped at {stop_at}, {label}: {fault}") from fault
            assert verify(state, DATA).sound
