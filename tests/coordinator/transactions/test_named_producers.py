"""Producers that name themselves: the same id after every crash, the higher epoch wins."""

from random import Random

import pytest
from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.coordinator.state_limits import StateKind
from braidlog.coordinator.transactions.named_producers import EPOCH_MAX, UNUSED_MS_MAX, NamedProducer
from braidlog.model.errors import Reason
from braidlog.testing.faults import Crash


def resolve(node: Node, name: str, epoch: int) -> NamedProducer:
    return node.run(node.named_producers.resolve(name, epoch))


def test_epochs_follow_one_another() -> None:
    node = Node()
    first = resolve(node, "a", -(2**63))
    assert resolve(node, "a", -(2**63)) == first
    second = resolve(node, "a", 2**63 - 1)
    assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)
    with refused_with(Reason.STALE_PRODUCER_EPOCH):
        resolve(node, "a", 7)
    assert resolve(node, "b", 7).producer_id != first.producer_id
    again = node.restarted()
    assert resolve(again, "a", 2**63 - 1) == second


def test_the_log_runs_out_of_epochs() -> None:
    node = Node()
    first = resolve(node, "a", 0)
    last = NamedProducer(first.producer_id, EPOCH_MAX, 1)
    node.coordinator("a").named_producers._table.put("a", value=last)
    after = resolve(node, "a", 2)
    assert after.producer_id != first.producer_id
    assert after.epoch == 0


@pytest.mark.parametrize("name", ["", "x" * 250])
def test_names_have_bounds(name: str) -> None:
    with refused_with(Reason.INVALID_RECORD):
        resolve(Node(), name, 0)


def test_a_name_that_nobody_uses_is_forgotten_on_disk_too() -> None:
    node = Node()
    ids = [resolve(node, name, 0).producer_id for name in "ab"]
    node.clock.advance(UNUSED_MS_MAX)
    assert resolve(node, "b", 0).producer_id == ids[1]
    node.clock.advance(1)
    assert node.run(node.named_producers.expire()) == ["a"]
    for each in (node, node.restarted()):
        assert each.services.holdings.used(StateKind.NAMED_PRODUCERS) == 1
        assert resolve(each, "b", 0).producer_id == ids[1]
    assert resolve(node, "a", 0).producer_id not in ids


def test_a_name_of_an_earlier_run_has_its_time_from_the_start_of_this_one() -> None:
    node = Node()
    known = resolve(node, "a", 0)
    node.clock.advance(2 * UNUSED_MS_MAX)
    again = node.restarted()
    assert again.run(again.named_producers.expire()) == []
    assert resolve(again, "a", 0) == known


@pytest.mark.parametrize("seed", range(20))
def test_many_at_once_get_the_same(seed: int) -> None:
    node = Node(rng=Random(seed))
    jobs = [node.spawn(node.named_producers.resolve("a", 5)) for _ in range(10)]
    node.runtime.settle()
    assert len({job.result() for job in jobs}) == 1, f"seed {seed}"


def test_no_crash_lets_a_name_change_its_id() -> None:
    """Whatever was told before a crash holds after it, at every write and sync."""
    states = 0
    for number in range(1, 200):
        node = Node()
        node.begin_shards()
        node.disk.stop_at = len(node.disk.operations) + number
        told: list[NamedProducer] = []
        try:
            told.append(resolve(node, "a", 5))
            told.append(resolve(node, "a", 6))
        except Crash:
            for label, disk in node.disk.crash_states() if told else ():
                found = resolve(node.restarted(disk), "a", 6)
                assert found.producer_id == told[-1].producer_id, f"{label}, crash at {number}"
                assert found.epoch >= told[-1].epoch
                states += 1
        else:
            break
    assert states > 5
