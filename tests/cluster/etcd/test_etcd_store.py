"""The metadata log in the model of etcd: proposals whose outcome nobody knows, watches that miss something, logs set back."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from tests.cluster.etcd.stores import BLOCK, PREFIX, Cluster, Node, next_block
from tests.refusals import refused_with
from tests.simulation.etcd import Fate, ModelClient

from braidlog.cluster.etcd.entries import ENTRY_BYTES_MAX, Keys, Written, digest, one
from braidlog.cluster.etcd.etcd_store import COMPACT_TICKS, PROPOSE_SECONDS_MAX, TICK_SECONDS, EtcdStore
from braidlog.cluster.etcd.port import EtcdForeignError, EtcdRefusedError, Outcome, Put
from braidlog.cluster.etcd.position import Position
from braidlog.cluster.metadata.events import AddNode, Envelope, Event, IdBlock
from braidlog.cluster.metadata.image import Image
from braidlog.coordinator.transactions.producer_ids import ProducerIds
from braidlog.model.errors import BrokerError, Reason, StorageFault


def fates(*first: Fate, of: str = "write") -> Callable[[str], Fate]:
    """The first calls of that name meet these, all others are done."""
    left: Iterator[Fate] = iter(first)
    return lambda name: next(left, Fate.DONE) if name == of else Fate.DONE


def test_what_one_node_writes_the_others_apply() -> None:
    cluster = Cluster()
    one_node, other = Node(cluster, "1"), Node(cluster, "2")
    cluster.run(one_node.metadata.change(lambda _: [AddNode(node_id="1", addr="a:1")]))
    assert other.metadata.image.nodes == one_node.metadata.image.nodes != {}
    assert other.store.position == one_node.store.position == Position("c1", 1, other.store.position.digest)
    assert Node(cluster, "3").metadata.image == other.metadata.image


def test_every_node_tells_the_same_of_what_happened_and_when() -> None:
    cluster = Cluster()
    one_node, other = Node(cluster, "1"), Node(cluster, "2")
    cluster.run(one_node.metadata.change(lambda _: [AddNode(node_id="1", addr="a:1")]))
    cluster.run(one_node.metadata.change(lambda _: [AddNode(node_id="2", addr="a:1")]))
    own, others, later = (
        [(each.at, each.time_ms, each.words) for each in node.metadata.history.after()]
        for node in (one_node, other, Node(cluster, "3"))
    )
    assert own == others == later
    assert [words for *_, words in own] == ["broker 1 registered at a:1", "broker 2 registered at a:1"]
    assert 0 < own[0][1] < own[1][1]


@pytest.mark.parametrize("fate", [Fate.NOT_ARRIVED, Fate.NOT_ANSWERED, Fate.LATE])
def test_a_block_of_ids_is_given_once_whatever_became_of_the_answer(fate: Fate) -> None:
    cluster = Cluster()
    node = Node(cluster, "1")
    before = node.metadata.image.ids_taken
    node.client.fate = fates(fate)
    cluster.run(node.metadata.change(next_block), ms=1_000)
    cluster.etcd.deliver_late()
    cluster.runtime.advance(5_000)
    assert node.metadata.image.ids_taken == before + BLOCK
    assert cluster.entries() == 1
    assert Node(cluster, "2").metadata.image.ids_taken == before + BLOCK


def test_who_lost_looks_again_before_it_proposes() -> None:
    """Both take a block at once, and the first answer of one is lost: two entries, two different blocks."""
    cluster = Cluster()
    nodes = [Node(cluster, "1"), Node(cluster, "2")]
    before = nodes[0].metadata.image.ids_taken
    nodes[1].client.fate = fates(Fate.NOT_ANSWERED, Fate.NOT_ANSWERED)
    jobs = [cluster.runtime.spawn(node.metadata.change(next_block)) for node in nodes]
    cluster.runtime.advance(2_000)
    for job in jobs:
        job.result()
    assert [node.metadata.image.ids_taken for node in nodes] == [before + 2 * BLOCK] * 2
    assert cluster.entries() == 2


def test_nobody_answers_for_long() -> None:
    cluster = Cluster()
    node = Node(cluster, "1")
    node.client.fate = lambda _: Fate.NOT_ARRIVED
    job = cluster.runtime.spawn(node.metadata.change(next_block))
    cluster.runtime.advance(15_000)
    with refused_with(Reason.UNAVAILABLE, match="the outcome of the change is unknown"):
        job.result()
    assert node.store.outage is not None
    words = node.store.outage.report(cluster.runtime.monotonic())
    assert len(words.splitlines()) == 10
    assert words.startswith("etcd has not answered for")
    assert "nobody answers" in words
    node.client.fate = lambda _: Fate.DONE
    cluster.run(node.metadata.change(next_block), ms=1_000)
    assert node.store.outage is None


def test_an_entry_that_etcd_never_takes_is_given_up() -> None:
    """The head there says the same in other bytes: no condition holds, and there is nothing to read either."""
    cluster = Cluster()
    node = Node(cluster, "1")
    head = Keys(PREFIX).head
    value = cluster.etcd.read(one(head), 0, 0, keys_only=False).items[0].value
    cluster.run(node.client.write([Put(head, value + b" ")]))
    job = cluster.runtime.spawn(node.metadata.change(next_block))
    cluster.runtime.advance(int(PROPOSE_SECONDS_MAX * 1000) + 1_000)
    with refused_with(Reason.UNAVAILABLE, match="the head does not name it"):
        job.result()


def test_an_entry_that_is_too_large_is_refused_before_it_is_sent() -> None:
    cluster = Cluster()
    node = Node(cluster, "1")
    with refused_with(Reason.RECORD_TOO_LARGE):
        cluster.run(node.metadata.change(lambda _: [AddNode(node_id="1", addr="a" * ENTRY_BYTES_MAX)]))
    assert cluster.entries() == 0


def test_a_watch_that_is_deaf_is_opened_anew() -> None:
    cluster = Cluster()
    writer, deaf = Node(cluster, "1"), Node(cluster, "2")
    cluster.runtime.advance(3_000)
    for watch in cluster.etcd.watches:
        watch.is_deaf = True
    cluster.run(writer.metadata.change(next_block), ms=1_000)
    assert deaf.metadata.seq == 0
    cluster.runtime.advance(10_000)
    assert deaf.metadata.seq == writer.metadata.seq == 1


def test_snapshots_replace_entries_and_followers_that_were_away_read_them() -> None:
    cluster = Cluster(snapshot_every=10)
    writer, away = Node(cluster, "1"), Node(cluster, "2")
    away.client.fate = lambda _: Fate.NOT_ARRIVED
    for watch in cluster.etcd.watches[1:]:
        watch.stop()
    for _ in range(55):
        cluster.run(writer.metadata.change(next_block))
    assert cluster.entries() == 55 - 40
    assert cluster.etcd.compacted > 0
    assert away.metadata.seq == 0
    away.client.fate = lambda _: Fate.DONE
    cluster.runtime.advance(5_000)
    assert away.metadata.image == writer.metadata.image
    assert Node(cluster, "3").metadata.image == writer.metadata.image
    images = cluster.etcd.read(Keys(PREFIX).images, 0, 0, keys_only=True).items
    assert [item.key.rpartition(b"image/")[2] for item in images] == [
        b"%020d/%s" % (n, part) for n in (40, 50) for part in (b"0000", b"end")
    ]


def test_an_image_without_its_end_does_not_exist() -> None:
    cluster = Cluster(snapshot_every=10)
    node = Node(cluster, "1")
    for _ in range(12):
        cluster.run(node.metadata.change(next_block))
    keys = Keys(PREFIX)
    cluster.etcd.write([Put(keys.piece(11, 0), b"half")], [], [])
    assert Node(cluster, "2").metadata.image == node.metadata.image
    cluster.etcd.write([Put(keys.piece(10, 0), b"{}")], [], [])
    with pytest.raises(EtcdForeignError, match="image of entry 10 is damaged"):
        Node(cluster, "3")


@pytest.mark.parametrize("back", [1, 3])
def test_an_etcd_that_was_set_back_is_refused(back: int) -> None:
    """By a node that runs, which serves with what it has, and by one that starts and remembers how far it was."""
    cluster = Cluster()
    node = Node(cluster, "1")
    for _ in range(4):
        cluster.run(node.metadata.change(next_block))
    known = node.store.position
    older = Cluster()
    other = Node(older, "1")
    for _ in range(4 - back):
        older.run(other.metadata.change(next_block))
    with pytest.raises(StorageFault, match="restored from an old copy"):
        Node(older, "1", known=known)
    for _ in range(back):  # as far as the first, with other entries
        older.run(other.metadata.change(lambda _: [AddNode(node_id="9", addr="x:1")]))
    with pytest.raises(StorageFault, match="restored from an old copy"):
        Node(older, "1", known=known)
    older.etcd.runtime = cluster.runtime
    node.client.etcd = older.etcd  # the members were replaced under a running node
    with pytest.raises(BrokerError, match="restored from an old copy"):
        cluster.run(node.store.propose([IdBlock(taken=10_000)], after=4), ms=1_000)
    cluster.runtime.advance(10_000)
    assert not any(job.is_done for job in node.jobs)
    assert node.metadata.seq == 4


def test_a_node_stops_before_an_entry_that_it_does_not_know() -> None:
    """Written by a later version, after one that it knows: that one is not acted on either until the node is upgraded."""
    cluster = Cluster()
    node = Node(cluster, "1")
    cluster.run(node.metadata.change(next_block))
    image, position = node.metadata.image.copy(), node.store.position
    keys = Keys(PREFIX)
    value = msgspec.json.encode(Written(2, "9", "n", position.digest, [Envelope(999, msgspec.Raw(b"{}"))]))
    head = msgspec.json.encode(Position("c1", 2, digest(value)))
    cluster.run(ModelClient(cluster.etcd).write([Put(keys.event(2), value), Put(keys.head, head)]))
    unknown = r"entry 2 .* event 999 was written by a later version .* upgrade this node"
    with pytest.raises(StorageFault, match=unknown):
        node.jobs[0].result()
    with pytest.raises(StorageFault, match=unknown):
        cluster.run(node.metadata.change(next_block))
    assert (node.metadata.image, node.metadata.seq, node.store.position) == (image, 1, position)
    with pytest.raises(StorageFault, match=unknown):
        Node(cluster, "1", known=position)


def test_another_cluster_is_refused() -> None:
    cluster = Cluster()
    with pytest.raises(StorageFault, match="belongs to 'c0'"):
        Node(cluster, "1", known=Position("c0", 0, ""))
    store = EtcdStore(ModelClient(cluster.etcd), cluster.runtime, prefix=PREFIX, node="1", new_nonce=lambda: "n")
    assert cluster.run(store.create_cluster("c2")) == "c1", "the one that has begun stays"
    elsewhere = EtcdStore(ModelClient(cluster.etcd), cluster.runtime, prefix="else", node="1", new_nonce=lambda: "n")
    with pytest.raises(BrokerError, match="no cluster"):
        cluster.run(elsewhere.open())


@pytest.mark.parametrize("seed", range(30))
def test_every_node_applies_the_same_entries_each_once(seed: int) -> None:
    """Three nodes take blocks of ids while calls get lost, answers get lost, and some arrive late."""
    rng = Random(seed)
    cluster = Cluster(snapshot_every=15, rng=Random(seed))
    nodes = [Node(cluster, str(number)) for number in range(3)]
    before = nodes[0].metadata.image.ids_taken
    weights = rng.choice([(8, 1, 1, 1), (4, 1, 2, 2), (20, 0, 1, 0)])
    for node in nodes:
        node.client.fate = lambda _: rng.choices(list(Fate), weights)[0]
    blocks: list[int] = []

    async def take(node: Node) -> None:
        taken: list[int] = []

        def decide(image: Image) -> Sequence[Event]:
            taken.append(image.ids_taken + BLOCK)
            return [IdBlock(taken=taken[-1])]

        await node.metadata.change(decide)
        blocks.append(taken[-1])

    unknown = 0
    for _ in range(20):
        jobs = [cluster.runtime.spawn(take(node)) for node in nodes]
        cluster.runtime.advance(rng.randrange(20, 400))
        if rng.random() < 0.2:
            cluster.etcd.deliver_late()
        for watch in [watch for watch in cluster.etcd.watches if rng.random() < 0.05]:
            watch.stop()
        cluster.runtime.advance(12_000)
        unknown += sum(job.error is not None for job in jobs)
    for node in nodes:
        node.client.fate = lambda _: Fate.DONE
    cluster.etcd.deliver_late()
    cluster.runtime.advance(15_000)
    assert len(set(blocks)) == len(blocks), "a block was given twice"
    images = [node.metadata.image for node in nodes] + [Node(cluster, "9").metadata.image]
    assert all(image == images[0] for image in images)
    given = (images[0].ids_taken - before) // BLOCK
    assert len(blocks) <= given <= len(blocks) + unknown
    assert given >= 20


@pytest.mark.parametrize("seed", range(20))
def test_a_producer_id_is_given_once_by_whichever_node(seed: int) -> None:
    """A node whose answer was lost finds its entry with those of others behind it: its image is beyond its own block."""
    rng = Random(seed)
    cluster = Cluster(rng=Random(seed))
    nodes = [Node(cluster, str(number)) for number in range(3)]
    for node in nodes:
        node.client.fate = lambda _: rng.choices((Fate.DONE, Fate.NOT_ANSWERED), (2, 1))[0]
    ids = [ProducerIds(node.metadata, cluster.runtime) for node in nodes]
    given: list[int] = []
    for _ in range(5):
        jobs = [cluster.runtime.spawn(each.allocate()) for each in ids]
        cluster.runtime.advance(1_000)
        given += [job.result() for job in jobs]
        for each in ids:
            each._next = each._limit
    assert len(set(given)) == len(given), f"seed {seed}"


def test_an_entry_that_comes_again_is_taken_once() -> None:
    """As when a watch is opened at an older revision than was read."""
    cluster = Cluster()
    writer, node = Node(cluster, "1"), Node(cluster, "2")
    for _ in range(3):
        cluster.run(writer.metadata.change(next_block))
    before = node.store.position, node.metadata.image.copy()
    again = cluster.etcd.changes_after([Keys(PREFIX).events], 0)
    assert len(again) == 3
    assert cluster.run(node.store._take_changes(again)) is True
    assert (node.store.position, node.metadata.image) == before


def test_how_far_a_node_has_come_is_kept_before_anyone_acts_on_it() -> None:
    """Its own entry, those of others, and an image that was read anew."""
    cluster = Cluster(snapshot_every=10)
    writer, node = Node(cluster, "1"), Node(cluster, "2")
    kept: list[int] = []
    shown: list[int] = []
    fault = [False]

    async def remember(position: Position) -> None:
        await cluster.runtime.wakeup().wait(0.01)
        node.metadata.catch_up()  # as another change of this node does meanwhile
        shown.append(node.metadata.seq)
        assert node.metadata.seq < position.seq
        if fault[0]:
            raise StorageFault("the disk is broken")
        kept.append(position.seq)

    def arrived() -> None:
        node.metadata.catch_up()
        shown.append(node.metadata.seq)
        assert node.metadata.seq <= max(kept, default=0)

    node.store._remember = remember
    node.store.arrived = arrived
    cluster.run(writer.metadata.change(next_block))
    cluster.run(node.metadata.change(next_block))
    assert kept == [1, 2]
    assert node.metadata.seq == 2
    for watch in cluster.etcd.watches[1:]:
        watch.stop()
    node.client.fate = lambda _: Fate.NOT_ARRIVED
    for _ in range(40):
        cluster.run(writer.metadata.change(next_block))
    node.client.fate = lambda _: Fate.DONE
    cluster.runtime.advance(5_000)
    assert shown[-1] == kept[-1] == 42
    fault[0] = True
    with pytest.raises(StorageFault, match="the disk is broken"):
        cluster.run(node.metadata.change(next_block))
    assert node.metadata.seq == 42, "what is not kept is not acted on"


def test_ticks_do_not_fill_etcd() -> None:
    cluster = Cluster()
    node = Node(cluster, "1")
    for _ in range(4):
        cluster.runtime.advance(int(COMPACT_TICKS * TICK_SECONDS * 1000))
    assert node.metadata.seq == 0, "nothing was changed, so no snapshot was made"
    assert cluster.etcd.revision > 3 * COMPACT_TICKS
    assert cluster.etcd.compacted >= cluster.etcd.revision - 2 * COMPACT_TICKS - 10
    cluster.run(node.metadata.change(next_block))
    assert Node(cluster, "2").metadata.image == node.metadata.image


def test_one_call_that_fails_is_no_outage_yet(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    node = Node(cluster, "1")
    node.client.fate = fates(Fate.NOT_ARRIVED)
    cluster.runtime.advance(10_000)
    assert node.store.outage is None
    assert "etcd" not in caplog.text
    node.client.fate = lambda _: Fate.NOT_ARRIVED
    cluster.runtime.advance(10_000)
    assert caplog.text.count("etcd has not answered for") == 1


def test_a_full_etcd_is_told_from_one_that_is_away() -> None:
    cluster = Cluster()
    node = Node(cluster, "1")
    node.store._note(EtcdRefusedError("database space exceeded"))
    assert node.store.outage is not None
    assert node.store.outage.report(5.0).startswith("etcd has refused changes for")


@pytest.mark.parametrize("fate", [Fate.DONE, Fate.NOT_ANSWERED, Fate.NOT_ARRIVED, Fate.LATE])
def test_a_change_that_is_read_as_part_of_an_image_is_known_to_be_made_or_not(fate: Fate) -> None:
    """Its entry went with a snapshot before this node saw it: the nonce that was written with it says whose it was."""
    cluster = Cluster(snapshot_every=2)
    node, others = Node(cluster, "1"), Node(cluster, "2")
    decided = 0
    before = node.metadata.image.ids_taken

    def decide(image: Image) -> Sequence[Event]:
        nonlocal decided
        decided += 1
        return next_block(image)

    node.client.fate = fates(fate)
    for watch in cluster.etcd.watches[:1]:
        watch.is_deaf = True
    write = node.client.write

    async def overtaken(puts: Sequence[Put], **others_: Any) -> Outcome:
        """By so many changes of another node that the entry is let go before this call returns."""
        node.client.write = write  # type: ignore[method-assign]
        try:
            return await write(puts, **others_)
        finally:
            for _ in range(8):
                await others.metadata.change(next_block)
            await node.store._load_again()

    node.client.write = overtaken  # type: ignore[method-assign]
    cluster.run(node.metadata.change(decide), ms=2_000)
    cluster.etcd.deliver_late()
    is_first = fate in (Fate.DONE, Fate.NOT_ANSWERED)
    assert decided == (1 if is_first else 2)
    cluster.runtime.advance(5_000)
    assert node.metadata.image.ids_taken == others.metadata.image.ids_taken == before + 9 * BLOCK
