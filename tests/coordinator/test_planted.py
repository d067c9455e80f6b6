"""Bugs planted on purpose in what coordinators decide: each replaces one rule, in a test and nowhere else.

The numbers are those of the table in `docs/guides/durability.md`; the others of coordinators are planted in simulated clusters
(`tests/simulation/test_coordinators.py`, `test_transactions.py`).
"""

import pytest
from tests.coordinator import test_shards
from tests.replication.planted import RuleBug, planted
from tests.storage.state import test_producer_table

from braidlog.codec.batch.records import EndMarker
from braidlog.coordinator import shards
from braidlog.storage.state.producer_table import ProducerTable

_has_ended = ProducerTable.has_ended


def _whoever_says_it(self: ProducerTable, producer_id: int, marker: EndMarker) -> bool:
    return _has_ended(self, producer_id, marker._replace(coordinator_epoch=-1))


DECISION_BUGS: dict[int, RuleBug] = {
    35: RuleBug(
        "marker without coordinator epoch",
        ((ProducerTable, "has_ended", _whoever_says_it),),
        test_producer_table.test_a_coordinator_that_has_a_successor_ends_nothing,
    ),
    38: RuleBug(
        "stage in another shard than its sink",
        ((shards, "read_stage_name", lambda _: None),),
        test_shards.test_stages_are_where_their_sink_is_and_so_is_whom_its_driver_asks,
    ),
}


@pytest.mark.parametrize("number", DECISION_BUGS)
def test_a_planted_bug_is_found(number: int) -> None:
    bug = DECISION_BUGS[number]
    bug.killer()
    with planted(bug), pytest.raises((AssertionError, pytest.fail.Exception)):
        bug.killer()
