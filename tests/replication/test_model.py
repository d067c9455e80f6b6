"""Three replicas in every order of events: completely in small bounds here, in larger ones by `make model`; and bugs found so.

A schedule is a file of `schedules/`: the events, one to a line, in which a planted bug breaks a promise. Without it none is.
"""

import re
from pathlib import Path

import pytest
from tests.cluster.test_planted import METADATA_BUGS
from tests.coordinator.test_planted import DECISION_BUGS
from tests.replication.explore import SMALL, explore, replay, wander
from tests.replication.planted import BUGS, RULE_BUGS, planted
from tests.simulation.slot_search import SLOT_BUGS
from tests.simulation.test_coordinators import PLANTED as COORDINATOR_BUGS
from tests.simulation.test_transactions import BUGS as TRANSACTION_BUGS
from tests.storage.planted import BUGS as STORAGE_BUGS

FORWARDED_AGAIN = 49
"""Planted where nodes ask each other: tests/adapters/peers/test_node_port.py."""
BEHIND_REFUSED = 78
"""Planted at Kafka's port: tests/adapters/kafka/records/test_refused_batches.py."""
HERE = Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "guides" / "durability.md"


def schedule(number: int) -> list[str]:
    return (HERE / "schedules" / f"{number:02}.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", SMALL)
def test_every_world_keeps_the_promises(name: str) -> None:
    assert explore(SMALL[name]) > 500


def test_random_walks_keep_them_too() -> None:
    wander(seed=1, count=150)


@pytest.mark.parametrize("number", BUGS)
def test_a_planted_bug_is_found(number: int) -> None:
    bug = BUGS[number]
    assert replay(schedule(number), bug.bounds) is None
    with planted(bug):
        assert replay(schedule(number), bug.bounds) is not None


@pytest.mark.parametrize("number", RULE_BUGS)
def test_a_planted_rule_is_found(number: int) -> None:
    bug = RULE_BUGS[number]
    bug.killer()
    with planted(bug), pytest.raises(AssertionError):
        bug.killer()


def test_the_guide_lists_every_planted_bug() -> None:
    listed = re.findall(r"^\| (\d+) \| (.*?) \|", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    tables = (STORAGE_BUGS, METADATA_BUGS, BUGS, RULE_BUGS, SLOT_BUGS, DECISION_BUGS)
    planned = {number: bug.what for table in tables for number, bug in table.items()}
    told = {int(number): what for number, what in listed}
    assert {number: told[number] for number in planned} == planned
    assert set(told) - set(planned) == {*COORDINATOR_BUGS, *TRANSACTION_BUGS, FORWARDED_AGAIN, BEHIND_REFUSED}
