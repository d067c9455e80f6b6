"""Seeds of the simulated transactions are clean, and each planted bug shows itself in one of them."""

from collections.abc import Callable

import msgspec
import pytest
from tests.simulation.transactions import failure

from braidlog.coordinator.journal import NOTHING, Mark, Table
from braidlog.coordinator.transactions.pending_commits import PendingCommits
from braidlog.coordinator.transactions.transactions import Transactions
from braidlog.partition.partition import Partition
from braidlog.partition.produce import transaction_verification
from braidlog.storage.state.producer_table import ProducerTable

Patch = pytest.MonkeyPatch


def marker_repeated_into_the_next(patch: Patch) -> None:
    patch.setattr(ProducerTable, "has_ended", lambda *_: False)


def verification_older_than_a_marker(patch: Patch) -> None:
    patch.setattr(transaction_verification, "_holds", lambda *_: True)


class NeverForgets(dict[int, int]):
    def pop(self, *_: object) -> None:  # type: ignore[override]
        """What was verified once is for ever."""

    def clear(self) -> None: ...


def stale_cache(patch: Patch) -> None:
    made = Partition.__init__

    def make(self: Partition, *args: object, **named: object) -> None:
        made(self, *args, **named)  # type: ignore[arg-type]
        self.verified = NeverForgets()

    patch.setattr(Partition, "__init__", make)


def unsettled_decision_carried_out(patch: Patch) -> None:
    keep = Transactions._keep_together

    async def forgetful(self: Transactions, *args: object) -> object:
        try:
            return await keep(self, *args)  # type: ignore[arg-type]
        finally:
            self._in_doubt.clear()

    patch.setattr(Transactions, "_keep_together", forgetful)


def staged_commit_repeated(patch: Patch) -> None:
    """What is pending is committed, and stays pending: the next of the same end commits it once more."""
    patch.setattr(PendingCommits, "_forget", lambda *_: None)


def pending_unknown_to_the_shard(patch: Patch) -> None:
    put = Table.put

    def in_memory(self: Table, *key: str | int, value: msgspec.Struct) -> Mark:
        return NOTHING if self.kind == "pending-commit" else put(self, *key, value=value)

    patch.setattr(Table, "put", in_memory)


BUGS: dict[int, tuple[Callable[[Patch], None], int]] = {
    36: (staged_commit_repeated, 0),
    37: (stale_cache, 1),
    57: (unsettled_decision_carried_out, 165),
    58: (pending_unknown_to_the_shard, 8),
    59: (marker_repeated_into_the_next, 0),
    60: (verification_older_than_a_marker, 86),
}
"""Each with a seed in which it shows itself."""
SEEDS = (*range(20), *{seed for _, seed in BUGS.values()})


@pytest.mark.parametrize("seed", sorted(set(SEEDS)))
def test_transactions_are_whole_and_counted_once(seed: int) -> None:
    assert failure(seed) == ""


@pytest.mark.parametrize("seed", range(20))
def test_transactions_of_version_2_are_whole_and_counted_once(seed: int) -> None:
    assert failure(seed, version=2) == ""


@pytest.mark.parametrize("number", BUGS)
def test_a_planted_bug_shows_itself(number: int, monkeypatch: Patch) -> None:
    plant, seed = BUGS[number]
    plant(monkeypatch)
    assert failure(seed)
