"""Bugs planted on purpose in the metadata log and what follows it: each replaces one rule, in a test and nowhere else.

The numbers are those of the table in `docs/guides/durability.md`.
"""

import pytest
from tests.cluster import test_reconciliation
from tests.cluster.etcd import stores, test_etcd_store
from tests.replication.planted import RuleBug, planted

from braidlog.cluster import reconciliation
from braidlog.cluster.etcd import etcd_store, image_snapshots
from braidlog.cluster.etcd.etcd_store import EtcdStore
from braidlog.cluster.etcd.position import Position
from braidlog.coordinator.transactions.producer_ids import BLOCK, ProducerIds
from braidlog.model.errors import StorageFault


async def _block_by_the_image(self: ProducerIds) -> tuple[int, int]:
    await self._metadata.change(stores.next_block_of(BLOCK))
    return self._metadata.image.ids_taken - BLOCK, self._metadata.image.ids_taken


async def _watch_from_here(self: EtcdStore) -> int:
    """Nothing is read of what was missed."""
    found = await image_snapshots.read_head(self._etcd, self._keys)
    assert found is not None
    return found[1]


async def _believe(self: EtcdStore, known: Position) -> None:
    """Whatever etcd has is taken for the truth."""


METADATA_BUGS: dict[int, RuleBug] = {
    39: RuleBug(
        "id block given twice after an unknown outcome",
        ((ProducerIds, "_take_block", _block_by_the_image),),
        lambda: test_etcd_store.test_a_producer_id_is_given_once_by_whichever_node(0),
    ),
    40: RuleBug(
        "events applied twice after a watch resumes",
        ((etcd_store, "is_applied", lambda seq, head: False),),
        test_etcd_store.test_an_entry_that_comes_again_is_taken_once,
    ),
    41: RuleBug(
        "watch gap after compaction",
        ((EtcdStore, "_catch_up", _watch_from_here),),
        test_etcd_store.test_snapshots_replace_entries_and_followers_that_were_away_read_them,
    ),
    69: RuleBug(
        "etcd set back",
        ((EtcdStore, "_check_known", _believe),),
        lambda: test_etcd_store.test_an_etcd_that_was_set_back_is_refused(1),
    ),
    73: RuleBug(
        "reconciler deletes what the image does not know",
        ((reconciliation, "may_remove", lambda image, meta: True),),
        test_reconciliation.test_a_folder_is_removed_only_if_the_image_says_so,
    ),
}


@pytest.mark.parametrize("number", METADATA_BUGS)
def test_a_planted_bug_is_found(number: int) -> None:
    bug = METADATA_BUGS[number]
    bug.killer()
    with planted(bug), pytest.raises((AssertionError, StorageFault, pytest.fail.Exception)):
        bug.killer()
