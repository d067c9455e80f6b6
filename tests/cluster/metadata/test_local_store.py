"""The local store: durable before applied, one proposal at a time, snapshots, trimming, and what it refuses to load."""

from unittest.mock import Mock

import msgspec
import pytest
from tests.cluster.node import MetadataNode

from braidlog.cluster.metadata.events import IdBlock, RemoveNode
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.local_store import METADATA_TOPIC, Line
from braidlog.cluster.metadata.metadata_store import Conflict
from braidlog.codec.batch.records import encode_batch
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.partition.internal.internal_topic import InternalTopic


def test_nothing_is_applied_before_it_is_durable() -> None:
    node = MetadataNode()
    with node.runtime.holding_syncs():
        job = node.runtime.spawn(node.topics.create("a", 1))
        node.runtime.settle()
        assert (node.metadata.seq, node.metadata.image, node.folder.find("a")) == (0, Image(), None)
        assert not job.is_done
    job.result()
    assert (node.metadata.seq, node.hosting.names()) == (2, ["a"]), "created, and its folder made"


def test_an_entry_whose_sync_failed_is_true_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the log: the next one is decided at an image that has it, and has the next number."""
    node = MetadataNode()
    with monkeypatch.context() as patch:
        patch.setattr(InternalTopic, "durable", Mock(side_effect=StorageFault("no room")))
        for number in (1, 2):
            with pytest.raises(StorageFault):
                node.run(node.brokers.register(number, "host", 1))
        assert node.metadata.image == Image()
    node.run(node.brokers.register(3, "host", 1))
    assert (sorted(node.metadata.image.nodes), node.metadata.seq) == (["1", "3"], 2)
    assert node.restarted().metadata.image == node.metadata.image


def test_one_of_two_proposals_for_the_same_place_conflicts_and_is_decided_again() -> None:
    node = MetadataNode()
    first = node.runtime.spawn(node.store.propose([IdBlock(taken=2000)], after=0))
    second = node.runtime.spawn(node.store.propose([IdBlock(taken=2000)], after=0))
    node.runtime.settle()
    assert (first.result(), second.result()) == (1, Conflict(1))
    jobs = [node.runtime.spawn(node.brokers.register(number, "host", 1)) for number in range(1, 6)]
    jobs.append(node.runtime.spawn(node.metadata.change(lambda image: [IdBlock(taken=image.ids_taken + 1)])))
    node.runtime.settle()
    for job in jobs:
        job.result()
    assert (sorted(node.metadata.image.nodes), node.metadata.image.ids_taken) == (["1", "2", "3", "4", "5"], 2001)
    assert node.restarted().metadata.image == node.metadata.image


def test_a_decision_is_checked_again_at_the_newer_image() -> None:
    node = MetadataNode()
    node.run(node.brokers.register(1, "host", 1))
    jobs = [node.runtime.spawn(node.metadata.change(lambda _: [RemoveNode(node_id="1")])) for _ in range(2)]
    node.runtime.settle()
    jobs[0].result()
    with pytest.raises(BrokerError, match="not registered"):
        jobs[1].result()


def test_the_log_is_replaced_by_a_snapshot_and_does_not_grow_for_ever() -> None:
    node = MetadataNode(snapshot_every=10)
    sizes = []
    for _ in range(12):
        for port in range(10):
            node.run(node.brokers.register(1, "host", port))
        sizes.append(node.folder.open_partition(METADATA_TOPIC, 0).size_bytes)
    assert max(sizes) < 4 * min(sizes)
    again = node.restarted()
    assert (again.metadata.image, again.metadata.seq) == (node.metadata.image, 120)
    again.run(again.brokers.register(2, "host", 1))
    assert again.restarted().metadata.seq == 121


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b'{"seq":1,"events":[{"event_type":999,"data":{}}]}',
        msgspec.json.encode(Line(7, events=[])),
    ],
)
def test_a_log_that_makes_no_sense_is_not_loaded(line: bytes) -> None:
    node = MetadataNode()
    log = node.folder.open_partition(METADATA_TOPIC, 0)
    log.append(encode_batch([line], base_timestamp=1), now_ms=1)
    log.sync()
    with pytest.raises(StorageFault, match="metadata log"):
        node.restarted()
