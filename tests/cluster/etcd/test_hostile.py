"""A process that writes into this cluster's part of etcd: nodes refuse what it wrote, and keep the metadata that they have."""

import msgspec
import pytest
from tests.cluster.etcd.stores import PREFIX, Cluster, Node, next_block
from tests.model.manual_world import Job
from tests.refusals import refused_with

from braidlog.cluster.etcd.entries import ImageEnd, Keys, Written, digest, one
from braidlog.cluster.etcd.leases import LeaseMessage, LeaseMonitor
from braidlog.cluster.etcd.port import EtcdRefusedError, Put
from braidlog.cluster.etcd.position import Position
from braidlog.cluster.etcd.presence import Life, Presence
from braidlog.cluster.membership import Membership
from braidlog.model.errors import BrokerError, Reason, StorageFault

KEYS = Keys(PREFIX)
SEQ = 3
"""The last entry before the attack."""


def begun(*, snapshot_every: int = 1_000) -> tuple[Cluster, Node, Node]:
    cluster = Cluster(snapshot_every=snapshot_every)
    node, other = Node(cluster, "1"), Node(cluster, "2")
    for _ in range(SEQ):
        cluster.run(node.metadata.change(next_block))
    return cluster, node, other


def read(cluster: Cluster, key: bytes) -> bytes | None:
    found = cluster.etcd.read(one(key), 0, 0, keys_only=False).items
    return found[0].value if found else None


def overwrite(cluster: Cluster, values: dict[bytes, bytes | None]) -> dict[bytes, bytes | None]:
    """None: delete the key. Returns what was there before."""
    before = {key: read(cluster, key) for key in values}
    puts = [Put(key, value) for key, value in values.items() if value is not None]
    cluster.etcd.write(puts, [one(key) for key, value in values.items() if value is None], [])
    return before


def entry_after(before: str) -> bytes:
    return msgspec.json.encode(Written(SEQ + 1, "9", "n", before, []))


HEADS: dict[str, dict[bytes, bytes | None]] = {
    "no JSON": {KEYS.head: b"gotcha"},
    "other fields": {KEYS.head: b'{"seq":1}'},
    "another cluster": {KEYS.head: msgspec.json.encode(Position("c9", 7, "d"))},
    "deleted": {KEYS.head: None},
    "going backwards": {KEYS.head: msgspec.json.encode(Position("c1", 1, "d"))},
    "another digest": {KEYS.head: msgspec.json.encode(Position("c1", SEQ, "d"))},
    "beyond the last entry": {KEYS.head: msgspec.json.encode(Position("c1", SEQ + 5, "d"))},
    "an entry that does not decode": {
        KEYS.event(SEQ + 1): b"gotcha",
        KEYS.head: msgspec.json.encode(Position("c1", SEQ + 1, digest(b"gotcha"))),
    },
    "an entry that does not follow": {
        KEYS.event(SEQ + 1): entry_after("d"),
        KEYS.head: msgspec.json.encode(Position("c1", SEQ + 1, digest(entry_after("d")))),
    },
    "a key that is no entry's": {
        KEYS.events.first + b"gotcha": b"gotcha",
        KEYS.head: msgspec.json.encode(Position("c1", SEQ + 1, "d")),
    },
    "an image that is damaged": {
        KEYS.image_end(SEQ): msgspec.json.encode(ImageEnd(1, "d", "d")),
        KEYS.head: msgspec.json.encode(Position("c1", SEQ + 5, "d")),
    },
    "an image's end that does not decode": {
        KEYS.image_end(SEQ): b"gotcha",
        KEYS.head: msgspec.json.encode(Position("c1", SEQ + 5, "d")),
    },
    "a key that is no image's": {
        KEYS.images.first + b"gotcha/end": b"gotcha",
        KEYS.head: msgspec.json.encode(Position("c1", SEQ + 5, "d")),
    },
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_that_is_not_ours_is_refused_and_the_node_goes_on(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """It follows again once the keys are what they were."""
    cluster, node, other = begun()
    position = node.store.position
    before = overwrite(cluster, HEADS[kind])
    for watch in list(cluster.etcd.watches):
        watch.stop()
    with refused_with(Reason.UNAVAILABLE, match="change rejected: metadata in etcd is not this cluster's"):
        cluster.run(node.metadata.change(next_block), ms=1_000)
    cluster.runtime.advance(10_000)
    assert not any(job.is_done for job in (*node.jobs, *other.jobs))
    assert (node.store.position, node.metadata.seq) == (position, SEQ)
    assert "metadata rejected: metadata in etcd is not this cluster's" in caplog.text
    assert caplog.text.count("metadata rejected") == 2, "said once by each node"
    assert node.store.outage is not None
    with pytest.raises(
        (EtcdRefusedError, StorageFault), match=r"not this cluster's|belongs to|restored from an old copy"
    ):
        Node(cluster, "1", known=position)
    overwrite(cluster, before)
    cluster.runtime.advance(5_000)
    cluster.run(node.metadata.change(next_block))
    assert other.metadata.seq == node.metadata.seq == SEQ + 1
    cluster.runtime.advance(5_000)
    assert node.store.outage is None


@pytest.mark.parametrize("value", [b"gotcha", entry_after("d")])
def test_an_entry_that_no_head_names_is_refused_and_the_node_goes_on(value: bytes) -> None:
    cluster, node, _ = begun()
    overwrite(cluster, {KEYS.event(SEQ + 1): value})
    cluster.runtime.advance(3_000)
    with pytest.raises(BrokerError, match=r"the head does not name it; delete key /braid/test/events/0*4,"):
        cluster.run(node.metadata.change(next_block), ms=1_000)
    assert not any(job.is_done for job in node.jobs)
    assert node.metadata.seq == SEQ
    overwrite(cluster, {KEYS.event(SEQ + 1): None})
    cluster.run(node.metadata.change(next_block), ms=1_000)
    assert node.metadata.seq == SEQ + 1


@pytest.mark.parametrize(
    "key", [KEYS.tick("1"), KEYS.proposed("1"), KEYS.events.first + b"x", KEYS.images.first + b"x"]
)
def test_other_keys_may_hold_anything(key: bytes) -> None:
    cluster, node, other = begun(snapshot_every=2)
    overwrite(cluster, {key: b"\xffgotcha"})
    cluster.runtime.advance(5_000)
    for _ in range(3):
        cluster.run(node.metadata.change(next_block))
    cluster.runtime.advance(5_000)
    assert not any(job.is_done for job in (*node.jobs, *other.jobs))
    assert other.metadata.seq == node.metadata.seq == SEQ + 3


@pytest.mark.parametrize("value", [b"\xffgotcha", b"{}", None])
def test_a_node_whose_number_is_overwritten_writes_it_again_under_its_lease(value: bytes | None) -> None:
    cluster, node, _ = begun()
    key = KEYS.life("1")
    presence = Presence(node.client, cluster.runtime, KEYS, node="1", life=Life("f", "s"))
    overwrite(cluster, {key: b"gotcha"})
    cluster.run(presence.register())
    own = read(cluster, key)
    keeping = cluster.runtime.spawn(presence.keep_registered())
    overwrite(cluster, {key: value})
    cluster.runtime.advance(5_000)
    assert not keeping.is_done
    assert read(cluster, key) == own
    keeping.cancel()
    cluster.runtime.advance(10_000)
    assert read(cluster, key) is None, "it goes with its lease"


def test_a_life_of_no_node_is_no_node() -> None:
    cluster, node, _ = begun()
    told: list[LeaseMessage] = []
    leases = LeaseMonitor(node.client, cluster.runtime, KEYS, Membership, told.append, told.append)  # type: ignore[arg-type]
    cluster.etcd.write([Put(KEYS.alive.first + b"\xff", b"x")], [], [])
    job: Job[None] = cluster.runtime.spawn(leases.run())
    cluster.runtime.advance(5_000)
    assert not job.is_done
    assert told
    job.cancel()
