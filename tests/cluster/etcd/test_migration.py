"""A single node's metadata moves into etcd: whatever is the last step of a try, the next one ends it, and nothing is lost."""

from collections.abc import Iterator
from itertools import count
from random import Random

import pytest
from tests.cluster.node import MetadataNode
from tests.model.manual_world import Job
from tests.simulation.etcd import Fate, ModelClient, ModelEtcd

from braidlog.cluster.etcd.entries import Keys
from braidlog.cluster.etcd.etcd_store import EtcdStore
from braidlog.cluster.etcd.migration import is_moving, move_into_etcd
from braidlog.cluster.etcd.port import EtcdError, Put, Range
from braidlog.cluster.etcd.position import Position, PositionFile
from braidlog.cluster.metadata.image import Image
from braidlog.model.errors import BrokerError
from braidlog.testing.disk import Crash

KEYS = Keys("p")


def single() -> MetadataNode:
    node = MetadataNode()
    node.run(node.topics.create("a", 2))
    node.run(node.topics.create("b", 1, followers=["peer"]))
    node.run(node.topics.delete("b"))
    node.run(node.brokers.register(7, "host", 1))
    return node


def move(node: MetadataNode, client: ModelClient, cluster: str = "c1") -> Position:
    image = node.metadata.image
    work = move_into_etcd(client, KEYS, node.folder, image, node="0", new_cluster=cluster)
    job: Job[Position] = node.runtime.spawn(work)
    node.runtime.advance(10_000)
    return job.result()


def loaded(node: MetadataNode, etcd: ModelEtcd, known: Position) -> Image:
    store = EtcdStore(ModelClient(etcd), node.runtime, prefix="p", node="1", new_nonce=lambda: "n")
    job: Job[None] = node.runtime.spawn(store.open(known))
    node.runtime.advance(1_000)
    job.result()
    image, seq = store.load()
    assert seq == 1
    return image


def position_of(node: MetadataNode) -> Position | None:
    return PositionFile(node.folder.disk, node.folder.path, "0").load()


def test_everything_is_in_etcd_afterwards() -> None:
    node = single()
    etcd = ModelEtcd(node.runtime)
    moved = move(node, ModelClient(etcd))
    assert loaded(node, etcd, moved) == node.metadata.image
    assert (position_of(node), node.folder.identity.cluster) == (moved, "c1")
    with pytest.raises(BrokerError, match="already belongs to cluster c1"):
        move(node, ModelClient(etcd))


def test_a_prefix_with_a_cluster_is_refused_before_anything_changes() -> None:
    first, second = single(), single()
    etcd = ModelEtcd(first.runtime)
    move(first, ModelClient(etcd))
    second.runtime = first.runtime
    with pytest.raises(BrokerError, match="etcd holds cluster c1 at '/p/head'"):
        move(second, ModelClient(etcd), "c2")
    assert (position_of(second), second.folder.identity.cluster) == (None, "")


def fates_up_to(last: int, fate: Fate) -> Iterator[Fate]:
    """So many calls are done, and all others meet `fate`."""
    for _ in range(last):
        yield Fate.DONE
    while True:
        yield fate


@pytest.mark.parametrize("fate", [Fate.NOT_ARRIVED, Fate.NOT_ANSWERED, Fate.LATE])
def test_whatever_etcd_answered_last_the_next_try_ends_it(fate: Fate) -> None:
    for last in count():
        node = single()
        etcd = ModelEtcd(node.runtime)
        fates = fates_up_to(last, fate)
        try:
            moved = move(node, ModelClient(etcd, lambda _, fates=fates: next(fates)))  # type: ignore[misc]
        except EtcdError:
            again = node.restarted()
            etcd.runtime = again.runtime
            known = position_of(again)
            assert known is None or is_moving(known), "it does not pass for moved"
            moved = move(again, ModelClient(etcd), "another id")
            assert moved.cluster == ("c1" if known else "another id")
            etcd.deliver_late()
            assert loaded(again, etcd, moved) == again.metadata.image == node.metadata.image
            assert position_of(again) == moved
        else:
            assert last > 5
            return


def test_whatever_the_disk_kept_the_next_try_ends_it() -> None:
    """The power goes at every operation of the folder's disk."""
    tried = 0
    for operation in count(1):
        node = single()
        etcd = ModelEtcd(node.runtime)
        node.disk.stop_at = len(node.disk.operations) + operation
        try:
            move(node, ModelClient(etcd))
        except Crash:
            pass
        else:
            break
        for label, disk in node.disk.crash_states(limit=3, rng=Random(operation)):
            again = node.restarted(disk)
            there = _copy(etcd, again)
            assert again.metadata.image == node.metadata.image, label
            moved = position_of(again)
            if moved is None or is_moving(moved):
                moved = move(again, ModelClient(there), "another id")
            assert position_of(again) == moved, label
            assert loaded(again, there, moved) == node.metadata.image, label
            tried += 1
    assert tried > 10


def _copy(etcd: ModelEtcd, node: MetadataNode) -> ModelEtcd:
    copy = ModelEtcd(node.runtime)
    items = etcd.read(Range(b"/", b"0"), 0, 0, keys_only=False).items
    copy.write([Put(item.key, item.value) for item in items], [], [])
    return copy


def test_a_folder_on_its_way_is_no_longer_one_that_starts_alone() -> None:
    node = single()
    etcd = ModelEtcd(node.runtime)
    done = fates_up_to(1, Fate.NOT_ARRIVED)
    with pytest.raises(EtcdError):
        move(node, ModelClient(etcd, lambda _: next(done)))
    assert node.restarted().folder.identity.cluster == "c1"
