"""Several nodes over the model of etcd: they register, take each other's leaderships, drain; each step may be the last."""

from functools import partial
from itertools import count
from random import Random

import msgspec
import pytest
from tests.cluster.etcd.stores import PREFIX, Cluster
from tests.cluster.topics import placed
from tests.simulation.etcd import Fate, ModelClient

from braidlog.cluster.controller_runner import NodeController, Views
from braidlog.cluster.etcd.entries import Keys
from braidlog.cluster.etcd.etcd_store import EtcdStore
from braidlog.cluster.etcd.leases import LeaseMessage, LeaseMonitor
from braidlog.cluster.etcd.presence import Life as Held
from braidlog.cluster.etcd.presence import Presence
from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata import proposals
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.cluster.registration import (
    FENCED_AGAIN_SECONDS,
    START_IDS_MAX,
    NodeDescription,
    Registrar,
    StartFile,
    StartRecord,
)
from braidlog.model.errors import BrokerError
from braidlog.replication.assignment import InSyncSetChange
from braidlog.replication.control.controller import PREFERRED_LEADER_DELAY_MS, STAGGER_MS
from braidlog.replication.control.swim import LeaseExpired, MetadataSilent, MetadataTick, Verdict
from braidlog.testing.disk import SimulatedDisk

FOLDER = "/data"
IDS = count(1)


class Node:
    """One process: its disk may outlive it."""

    def __init__(self, cluster: Cluster, number: int, disk: SimulatedDisk | None = None, **said: str) -> None:
        self.cluster, self.runtime = cluster, cluster.runtime
        self.number = number
        self.disk = disk or SimulatedDisk()
        if not self.disk.exists(FOLDER):
            self.disk.make_folder(FOLDER)
        self.client = ModelClient(cluster.etcd)
        self.store = EtcdStore(
            self.client, self.runtime, prefix=PREFIX, node=str(number), new_nonce=lambda: f"nonce {next(IDS)}"
        )
        cluster.run(self.store.open())
        self.metadata = Metadata(self.store, self.runtime)
        self.store.arrived = self.metadata.catch_up
        self.jobs = [self.runtime.spawn(self.store.follow_changes()), self.runtime.spawn(self.store.check_watch())]
        fields = {"name": str(number), "folder_id": f"f{number}", "boot_id": "b", **said}
        self.registrar = Registrar(
            self.metadata,
            self.runtime,
            StartFile(self.disk, FOLDER),
            NodeDescription(number=number, **fields),  # type: ignore[arg-type]
            new_id=lambda: f"start {next(IDS)}",
        )
        self.controller = NodeController(number, self.metadata, self.runtime, lambda work, _: self.runtime.spawn(work))
        self.metadata.listeners.append(self.controller.on_metadata_change)
        self.runtime.spawn(self.controller.run())

    def register(self, **fields: object) -> int:
        return self.cluster.run(self.registrar.register(**fields))  # type: ignore[arg-type, return-value]

    @property
    def starts(self) -> StartRecord:
        return StartFile(self.disk, FOLDER).load()


def three(cluster: Cluster) -> list[Node]:
    nodes = [Node(cluster, number) for number in (1, 2, 3)]
    for node in nodes:
        node.register()
    created = placed((1, 2, 3), (2, 3, 1))
    cluster.run(nodes[0].metadata.change(lambda _: [created]))
    return nodes


def led(node: Node) -> list[int | None]:
    return [each.leader for each in node.metadata.image.topics["t"].assignments]


def accuse(nodes: list[Node], dead: int) -> None:
    for node in nodes:
        member = node.metadata.image.cluster.member(dead)
        assert member is not None
        if node.number != dead:
            node.controller.on_verdict(Verdict(dead, member.registered.incarnation, "silent"))


def test_a_node_is_registered_under_the_number_of_its_entry() -> None:
    cluster = Cluster()
    nodes = three(cluster)
    assert [node.registrar.incarnation for node in nodes] == [1, 2, 3]
    assert nodes[0].starts == StartRecord(remembers=1)
    assert nodes[2].metadata.image.cluster.incarnations() == ((1, 1), (2, 2), (3, 3))


@pytest.mark.parametrize("fate", [Fate.NOT_ARRIVED, Fate.NOT_ANSWERED, Fate.LATE])
def test_an_answer_that_was_lost_registers_once(fate: Fate) -> None:
    cluster = Cluster()
    node = Node(cluster, 1)
    left = iter([fate, fate])
    node.client.fate = lambda call: next(left, Fate.DONE) if call == "write" else Fate.DONE
    job = cluster.runtime.spawn(node.registrar.register())
    cluster.runtime.advance(1_000)
    cluster.etcd.deliver_late()
    cluster.runtime.advance(20_000)
    assert job.result() == 1
    assert cluster.entries() == 1


def test_a_registration_that_nobody_could_tell_of_is_found_again() -> None:
    """Etcd has it, and answers no write for longer than a proposal is repeated."""
    cluster = Cluster()
    node = Node(cluster, 1)
    node.client.fate = lambda call: Fate.NOT_ANSWERED if call == "write" else Fate.NOT_ARRIVED
    job = cluster.runtime.spawn(node.registrar.register())
    cluster.runtime.advance(15_000)
    assert not job.is_done
    node.client.fate = lambda _: Fate.DONE
    cluster.runtime.advance(15_000)
    assert job.result() == 1
    assert cluster.entries() == 1


def test_a_node_that_died_before_it_heard_is_known_again() -> None:
    cluster = Cluster()
    nodes = three(cluster)
    dying = Node(cluster, 2, nodes[1].disk)
    dying.client.fate = lambda call: Fate.NOT_ANSWERED if call == "write" else Fate.DONE
    job = cluster.runtime.spawn(dying.registrar.register())
    cluster.runtime.advance(50)
    assert dying.starts.start_ids != ()
    job.cancel()
    assert dying.starts.remembers == 2
    assert cluster.entries() == 5, "it is registered, and does not know it"
    again = Node(cluster, 2, nodes[1].disk)
    again.register()
    member = again.metadata.image.cluster.member(2)
    assert member is not None
    assert again.metadata.image.assignment("t", 0).torn == (), "the folder is no copy"
    assert again.starts.start_ids == ()


def test_a_copy_of_a_folder_counts_for_nothing() -> None:
    cluster = Cluster()
    nodes = three(cluster)
    copy = nodes[2].disk.after_kill()
    incarnation = Node(cluster, 3, nodes[2].disk).register()
    known = nodes[0].metadata.image.assignment("t", 0)
    assert (known.in_sync, known.torn) == ((1, 2), ())
    back = InSyncSetChange(3, True, incarnation, known.leader_epoch, known.partition_epoch)
    cluster.run(nodes[0].metadata.change(lambda _: [e.ChangeSet(topic="t", partition=0, change=back)]))
    Node(cluster, 3, copy).register()
    assert nodes[0].metadata.image.assignment("t", 0).torn == (3,)


def test_a_clean_stop_is_told_once() -> None:
    cluster = Cluster()
    nodes = three(cluster)
    cluster.run(nodes[2].registrar.stopped_cleanly())
    assert nodes[2].starts == StartRecord(remembers=3, stopped_cleanly=True)
    again = Node(cluster, 3, nodes[2].disk)
    again.register()
    member = again.metadata.image.cluster.member(3)
    assert member is not None
    assert member.registered.life.stopped_cleanly
    again.register()
    member = again.metadata.image.cluster.member(3)
    assert member is not None
    assert not member.registered.life.stopped_cleanly
    never = Node(cluster, 5)
    cluster.run(never.registrar.stopped_cleanly())
    assert never.starts == StartRecord(), "who was never registered promises nothing"


def test_a_number_belongs_to_one_name() -> None:
    cluster = Cluster()
    three(cluster)
    other = Node(cluster, 3, name="n3")
    with pytest.raises(BrokerError, match=r"node 'n3' maps to number 3, which belongs to '3'"):
        other.register()


def test_who_is_fenced_registers_again_and_who_is_replaced_stops() -> None:
    cluster = Cluster()
    nodes = three(cluster)
    assert not nodes[0].registrar.is_fenced
    accuse(nodes, 1)
    cluster.runtime.advance(1_000)
    assert nodes[0].registrar.is_fenced
    assert not nodes[0].registrar.is_replaced
    nodes[0].register()
    assert not nodes[0].registrar.is_fenced
    Node(cluster, 1, nodes[0].disk.after_kill()).register()
    cluster.runtime.advance(100)
    assert nodes[0].registrar.is_replaced


def test_the_dead_are_followed_by_one_entry() -> None:
    """All are accused at once, and the lowest of the living goes first."""
    cluster = Cluster()
    nodes = three(cluster)
    before = cluster.entries()
    accuse(nodes, 1)
    cluster.runtime.advance(3 * STAGGER_MS)
    assert led(nodes[2]) == [2, 2]
    assert cluster.entries() == before + 1
    assert nodes[2].metadata.image.assignment("t", 1).in_sync == (2, 3)


def test_who_is_next_does_it_if_the_first_does_not() -> None:
    cluster = Cluster()
    nodes = three(cluster)
    nodes[1].client.fate = lambda call: Fate.NOT_ARRIVED
    accuse(nodes, 1)
    cluster.runtime.advance(STAGGER_MS - 20)
    assert led(nodes[2]) == [1, 2]
    cluster.runtime.advance(200)
    assert led(nodes[2]) == [2, 2]


def test_what_was_decided_at_an_older_image_is_decided_anew() -> None:
    cluster = Cluster()
    nodes = three(cluster)
    accuse(nodes, 1)
    cluster.runtime.spawn(nodes[2].metadata.change(lambda _: [e.IdBlock(taken=2000)]))
    cluster.runtime.advance(2_000)
    assert led(nodes[0]) == [2, 2]
    assert nodes[0].metadata.image == nodes[2].metadata.image


def test_a_node_that_drains_leads_nothing_and_stays_in_sync() -> None:
    cluster = Cluster()
    nodes = three(cluster)
    cluster.run(proposals.drain(nodes[0].metadata, 2))
    cluster.runtime.advance(1_000)
    image = nodes[2].metadata.image
    assert led(nodes[2]) == [1, 3]
    assert image.assignment("t", 1).in_sync == (2, 3, 1)
    cluster.run(proposals.drain(nodes[0].metadata, 2, is_draining=False))
    cluster.runtime.advance(PREFERRED_LEADER_DELAY_MS + 1_000)
    assert led(nodes[2]) == [1, 2], "preferred leaders return when it is calm"
    with pytest.raises(BrokerError, match="unknown node 9"):
        cluster.run(proposals.drain(nodes[0].metadata, 9))


def test_a_node_that_cannot_register_says_why_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    node = Node(cluster, 1)
    node.client.fate = lambda _: Fate.NOT_ARRIVED
    registering = cluster.runtime.spawn(node.registrar.register())
    cluster.runtime.advance(35_000)
    said = [each for each in caplog.messages if each.startswith("node 1 is not registered yet; retrying: etcd")]
    assert len(said) in (2, 3), "every 10 s or so"
    node.client.fate = lambda _: Fate.DONE
    cluster.runtime.advance(1_000)
    assert registering.result() == 1


def test_a_view_follows_what_has_changed() -> None:
    cluster = Cluster()
    nodes = three(cluster)
    image, views = nodes[0].metadata.image, Views()
    changed = []
    assert dict(views.at(image, 4).view.partitions) == dict(Views().at(image, 4).view.partitions) != {}
    assert views.at(image, 4).changed == ()
    for event in (
        e.AddPartitions(topic="t", topic_id="01", partitions=3, placement=((3, 1),)),
        e.DrainNode(node=3, incarnation=3, is_draining=True),
        e.DeleteTopic(topic="t", topic_id="01", deleted_ms=1),
    ):
        image.apply(event)
        seen, fresh = views.at(image, 5), Views().at(image, 5).view
        assert (dict(seen.view.partitions), seen.view.nodes) == (dict(fresh.partitions), fresh.nodes)
        changed.append(seen.changed)
    assert changed == [(("t", 2),), (), (("t", 0), ("t", 1), ("t", 2))]


def test_a_lease_that_is_gone_costs_leaderships() -> None:
    cluster = Cluster()
    nodes = three(cluster)
    told: list[LeaseMessage] = []
    keys = Keys(PREFIX)
    present = []
    for node in nodes:
        there = Presence(node.client, cluster.runtime, keys, node=str(node.number), life=Held(f"f{node.number}", "s"))
        cluster.run(there.register())
        cluster.runtime.spawn(there.keep_registered())
        present.append(there)
    observer = nodes[2]
    leases = LeaseMonitor(
        observer.client,
        cluster.runtime,
        keys,
        lambda: observer.metadata.image.cluster,
        told.append,
        observer.controller.on_lease_lost,
    )
    cluster.runtime.spawn(leases.run())
    cluster.runtime.advance(5_000)
    assert set(told) == {MetadataTick((1, 2, 3))}
    nodes[1].client.fate = observer.client.fate = lambda _: Fate.NOT_ARRIVED
    cluster.runtime.advance(5_000)
    assert told[-1] == MetadataSilent()
    assert LeaseExpired(2, 2) not in told
    observer.client.fate = lambda _: Fate.DONE
    cluster.runtime.advance(5_000)
    assert LeaseExpired(2, 2) in told
    assert led(observer) == [1, 3]
    assert observer.metadata.image.assignment("t", 1).in_sync == (2, 3, 1), "it keeps its place in the set"


def test_the_starts_that_a_folder_remembers_are_bounded() -> None:
    starts = StartRecord()
    for number in range(START_IDS_MAX + 5):
        starts = starts.with_start_id(str(number))
    assert len(starts.start_ids) == START_IDS_MAX
    assert starts.start_ids[-1] == str(START_IDS_MAX + 4)
    assert msgspec.json.decode(msgspec.json.encode(starts), type=StartRecord) == starts


def test_fifty_nodes_that_start_together_all_start() -> None:
    """Answers are lost, watches show nothing, and entries are replaced by images before their proposers have read them."""
    rng, cluster = Random(8), Cluster()
    nodes = [Node(cluster, number) for number in range(1, 51)]

    async def start(node: Node) -> int:
        incarnation = await node.registrar.register()
        await node.metadata.change(lambda image: [e.IdBlock(taken=image.ids_taken + 1)])
        return incarnation

    for node in nodes:
        node.store._snapshot_every = 2
        node.client.fate = lambda call: rng.choices(list(Fate), (6, 1, 3, 1))[0] if call == "write" else Fate.DONE
    for watch in cluster.etcd.watches:
        watch.is_deaf = True
    before = nodes[0].metadata.image.ids_taken
    jobs = [cluster.runtime.spawn(start(node)) for node in nodes]
    cluster.runtime.advance(30_000)
    incarnations = {node.number: job.result() for node, job in zip(nodes, jobs, strict=True)}
    cluster.etcd.deliver_late()
    image = Node(cluster, 51).metadata.image
    assert {number: member.incarnation for number, member in image.cluster.nodes().items()} == incarnations
    assert image.ids_taken == before + len(nodes), "each start took its block once"


def fence(incarnation: int, _: Image) -> list[e.Event]:
    return [e.FenceNode(node=1, incarnation=incarnation)]


def test_a_node_that_is_fenced_again_and_again_registers_with_growing_pauses(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    one, other = Node(cluster, 1), Node(cluster, 2)
    one.register()
    other.register()
    paused = []
    for _ in range(8):
        incarnation = one.registrar.incarnation
        assert incarnation is not None
        cluster.run(other.metadata.change(partial(fence, incarnation)))
        assert one.registrar.is_fenced
        began = cluster.runtime.monotonic()
        job = cluster.runtime.spawn(one.registrar.register())
        while one.registrar.incarnation == incarnation:
            cluster.runtime.advance(100)
        job.result()
        paused.append(round(cluster.runtime.monotonic() - began, 1) - 0.1)
    assert paused == pytest.approx([0, 0.5, 1, 2, 4, 8, 16, 16], abs=0.11)
    assert "registration delayed, fenced again, pause=16 s" in caplog.text
    cluster.runtime.advance(int(FENCED_AGAIN_SECONDS * 1000))
    last = one.registrar.incarnation or 0
    cluster.run(other.metadata.change(partial(fence, last)))
    assert one.register() > last, "after a calm minute it does not wait"


def test_leases_that_a_node_was_too_late_to_look_at_are_not_lost() -> None:
    """It looks every second; after four without processor time it begins to count what it misses again."""
    cluster = Cluster()
    node = three(cluster)[0]
    told: list[LeaseMessage] = []
    leases = LeaseMonitor(
        node.client, node.runtime, Keys(PREFIX), lambda: node.metadata.image.cluster, told.append, lambda _: None
    )
    node.client._seconds = lambda: 2.0
    cluster.runtime.spawn(leases.run())
    cluster.runtime.advance(5_500)
    node.client._seconds = lambda: 0.001
    cluster.runtime.advance(1_000)
    assert not [each for each in told if isinstance(each, LeaseExpired)]
    cluster.runtime.advance(1_000)
    assert [each for each in told if isinstance(each, LeaseExpired)]
