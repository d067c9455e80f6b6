"""Metadata: at every disk operation of a workload, what may be left is started again, and is whole.

A plain run takes two states of each operation, `make crash` five.
`CRASH_SECONDS=600 pytest tests/cluster/test_crashes.py -k campaign -s` tries new seeds for so long.
"""

import itertools
import os
import time
from collections.abc import Sequence

import pytest
from tests.cluster.crashing import Campaign
from tests.cluster.node import MetadataNode
from tests.sampling import FULL

from braidlog.cluster.metadata.events import DeleteTopic, Event
from braidlog.cluster.metadata.local_store import LocalStore
from braidlog.cluster.metadata.metadata_store import Conflict, Decide
from braidlog.cluster.reconciliation import Action, RecordFolderCreated
from braidlog.partition.internal.internal_topic import InternalTopic
from braidlog.partition.reconciler import Reconciler
from braidlog.storage.embedded_log import Log
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import Crash, SimulatedDisk

CHANGES = 24
SEEDS = (0, 2)
STATES_PER_OPERATION = 5 if FULL else 2
STATES_MIN = 900 if FULL else 400
PROMISED = 20_000


def run(seed: int, changes: int = CHANGES, states_per_operation: int = 12) -> Campaign:
    campaign = Campaign(seed, states_per_operation)
    try:
        campaign.run(changes)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return campaign


@pytest.mark.parametrize("seed", SEEDS)
def test_every_operation_of_a_workload_may_be_the_last(seed: int) -> None:
    began = time.process_time()
    campaign = run(seed, states_per_operation=STATES_PER_OPERATION)
    print(
        f"seed {seed}: {campaign.states} crash states, {campaign.inside} more inside the start that followed, "
        f"{time.process_time() - began:.1f} s of CPU"
    )
    assert campaign.states >= STATES_MIN
    assert campaign.inside > (200 if FULL else 80)
    assert campaign.missed > (20 if FULL else 8)
    assert campaign.took_effect > (100 if FULL else 40), "changes under way must have been seen to survive"


def test_the_first_start_on_a_folder_may_end_anywhere() -> None:
    """Its topics were made without a node: whatever is left, the next start adopts them all."""
    made = SimulatedDisk()
    with Log("/data", disk=made, clock=ManualClock()) as log:
        log.create_topic("mine", partitions=2).append(b"x", partition=0)
        log.create_topic("more")
    states = 0
    for number in itertools.count(1):
        disk = made.after_kill()
        disk.stop_at = number
        try:
            MetadataNode(disk)
        except Crash:
            for label, left in disk.crash_states():
                again = MetadataNode(left)
                assert again.hosting.names() == ["mine", "more"], label
                assert again.hosting.partition("mine", 0).end_offset == 1, label
                assert again.restarted().metadata.image == again.metadata.image, label
                states += 1
        else:
            break
    assert states > 50


@pytest.mark.skipif("CRASH_SECONDS" not in os.environ, reason="a campaign runs as long as CRASH_SECONDS says")
def test_campaign() -> None:
    deadline = time.monotonic() + float(os.environ["CRASH_SECONDS"])
    states, seed = 0, 1000
    while states < PROMISED or time.monotonic() < deadline:
        campaign = run(seed, 40)
        states += campaign.states + campaign.inside
        seed += 1
        print(f"up to seed {seed}: {states} crash states")


# -- mistakes that the campaign must find ----------------------------------------------------------------------


def found(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, mistake: object) -> bool:
    monkeypatch.setattr(kind, name, mistake)
    for seed in SEEDS:
        try:
            run(seed, states_per_operation=4)
        except AssertionError as error:
            print(error)
            return True
    return False


def test_an_event_that_is_applied_before_it_is_durable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def propose(self: LocalStore, events: Sequence[Event], after: int) -> int | Conflict:
        assert after == self._seq
        self.write(events)
        return self._took(events)

    assert found(monkeypatch, LocalStore, "propose", propose)


def test_a_folder_that_goes_before_the_event_is_durable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    change = Reconciler.change

    async def hasty(self: Reconciler, name: str, decide: Decide) -> None:
        if any(isinstance(event, DeleteTopic) for event in decide(self._metadata.image)):
            for hosted in self._hosting.remove(name):
                hosted.log.close()
            self._folder.delete_topic(name)
        await change(self, name, decide)

    assert found(monkeypatch, Reconciler, "change", hasty)


def test_a_folder_that_nobody_noted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made and served; that it was made is noted by the next start, if there is one before the folder is lost."""
    carry_out = Reconciler._carry_out

    async def forgetful(self: Reconciler, action: Action) -> None:
        if not isinstance(action, RecordFolderCreated):
            await carry_out(self, action)

    assert found(monkeypatch, Reconciler, "_carry_out", forgetful)


def test_entries_that_go_before_the_snapshot_is_durable_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(self: InternalTopic, batch: bytes) -> None:
        self._log.roll(1)
        self._log.advance_start(self._log.end_offset)
        self.append(batch)
        self._log.sync()

    assert found(monkeypatch, InternalTopic, "replace", replace)
