"""Producer ids: never the same twice, whatever crashes."""

from random import Random

import pytest
from tests.broker.node import Node

from braidlog.coordinator.transactions.producer_ids import BLOCK
from braidlog.testing.faults import Crash


def test_ids_are_distinct_and_outlast_restarts() -> None:
    node = Node()
    given = []
    for _ in range(4):
        given += [node.run(node.services.producer_ids.allocate()) for _ in range(BLOCK // 2 + 100)]
        node = node.restarted()
    assert len(set(given)) == len(given)
    assert given == sorted(given)


@pytest.mark.parametrize("seed", range(20))
def test_many_at_once_over_the_end_of_a_block(seed: int) -> None:
    node = Node(rng=Random(seed))
    ids = node.services.producer_ids
    node.run(ids.allocate())
    ids._next = ids._limit - 3
    jobs = [node.spawn(ids.allocate()) for _ in range(10)]
    node.runtime.settle()
    given = [job.result() for job in jobs]
    assert len(set(given)) == 10, f"seed {seed}"


def test_no_crash_repeats_an_id() -> None:
    """At every write and sync of taking a block: whatever the disk keeps, the next id is one that nobody has."""
    states = 0
    for number in range(1, 200):
        node = Node()
        node.disk.stop_at = len(node.disk.operations) + number
        given = []
        try:
            for _ in range(2):
                given.append(node.run(node.services.producer_ids.allocate()))
                node.services.producer_ids._next = node.services.producer_ids._limit
        except Crash:
            for label, disk in node.disk.crash_states():
                again = node.restarted(disk)
                assert again.run(again.services.producer_ids.allocate()) not in given, label
                states += 1
        else:
            break
    assert states > 20


def test_an_id_is_not_given_before_its_block_is_durable() -> None:
    node = Node()
    with node.runtime.holding_syncs():
        job = node.spawn(node.services.producer_ids.allocate())
        assert not job.is_done
    assert job.result() == BLOCK
