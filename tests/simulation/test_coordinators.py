"""Coordinators on shards while nodes die: the product's own over simulated replicas; and bugs planted in them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from tests.simulation.coordinators import ShardedUniverse
from tests.simulation.search import FAILURES

from braidlog.broker.coordination import coordinators
from braidlog.coordinator.groups.group import Group
from braidlog.coordinator.journal import NOTHING, Journal
from braidlog.partition.internal.coordinator_log import CoordinatorLog

SEEDS = range(1, 25)
SOMETIMES = ("shard lost while it is read", "coordinator fenced", "join", "commit", "read")


async def _at_once(*_: object) -> None:
    """Nothing is waited for, and nothing is read."""


def _ignored(*_: object) -> None:
    """Nobody is refused."""


PLANTED: dict[int, list[tuple[object, str, object]]] = {
    32: [(CoordinatorLog, "durable", _at_once)],
    33: [(coordinators, "load_tables", _at_once)],
    34: [(Group, "check_owner", _ignored), (Group, "heartbeat", _ignored)],
    56: [(Journal, "write_start", lambda _: NOTHING), (Journal, "all_settled", _at_once)],
}
"""By the numbers of docs/guides/durability.md: what is replaced by something wrong."""


@contextmanager
def planted(number: int) -> Iterator[None]:
    patches = [mock.patch.object(*each) for each in PLANTED[number]]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def failure(seed: int) -> str:
    try:
        ShardedUniverse(seed).run()
    except FAILURES as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_nothing_that_a_coordinator_told_is_lost() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        universe = ShardedUniverse(seed)
        universe.run()
        counts.update(universe.counts)
    assert [each for each in SOMETIMES if not counts[each]] == [], dict(counts)


@pytest.mark.parametrize(("number", "seed"), [(32, 12), (33, 1), (34, 1), (56, 66)])
def test_the_simulator_finds_a_bug_planted_in_coordinators(number: int, seed: int) -> None:
    with planted(number):
        assert failure(seed)
