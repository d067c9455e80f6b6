"""One replica becomes several and one again, while clients append and wait: random walks, and bugs that they find."""

from typing import NamedTuple
from unittest import mock

import pytest
from tests.partition.switching import PromiseBrokenError, Walk

from braidlog.model.errors import BrokerError, StorageFault
from braidlog.partition.partition import Partition
from braidlog.partition.replica_runner import ReplicaRunner
from braidlog.replication import sole
from braidlog.replication.replica_state import Leader, Replica

SEEDS = 150


class Bug(NamedTuple):
    seed: int
    where: object
    name: str
    wrong: object


def _leads_its_set(replica: Replica) -> bool:
    role = replica.role
    return isinstance(role, Leader) and role.has_begun and role.members.committed == (replica.node,)


async def _is_not_synced(*_: object) -> bool:
    return True


BUGS = {
    "the summary of the log is not brought up to date": Bug(
        0,
        ReplicaRunner,
        "replica",
        property(lambda self: self._replica, ReplicaRunner.replica.fset),  # type: ignore[attr-defined]
    ),
    "a set of one is taken for an only replica": Bug(86, sole, "is_sole", _leads_its_set),
    "waiters of steps are not told": Bug(240, sole, "commits_without_step", sole.is_sole),
    "it is acknowledged before the sync": Bug(1, Partition, "durable_alone", _is_not_synced),
}


def test_what_is_acknowledged_stays_while_replicas_come_and_go() -> None:
    counts: dict[str, int] = {}
    for seed in range(SEEDS):
        walk = Walk(seed)
        walk.run()
        counts = {what: counts.get(what, 0) + walk.counts.get(what, 0) for what in counts | walk.counts}
    happened = ("append alone", "append", "acknowledged", "election", "one replica no more, with waiters")
    assert all(counts.get(what, 0) >= 3 for what in happened), counts


@pytest.mark.parametrize("what", BUGS)
def test_a_planted_bug_is_found(what: str) -> None:
    bug = BUGS[what]
    with (
        mock.patch.object(bug.where, bug.name, bug.wrong),
        pytest.raises((PromiseBrokenError, AssertionError, BrokerError, StorageFault)),
    ):
        Walk(bug.seed).run()
    Walk(bug.seed).run()
