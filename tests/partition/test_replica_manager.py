"""All replicas of three nodes, run: topics made, led, handed over, made whole again, over one log of metadata."""

import errno
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

import pytest
from tests.broker.node import batch_of
from tests.cluster.topics import placed
from tests.model.manual_world import Job, ManualRuntime
from tests.refusals import refused_with

from braidlog.cluster.controller_runner import Views
from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata import proposals
from braidlog.cluster.metadata.history import History
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Conflict, Entry, Metadata
from braidlog.model.errors import BrokerError, NotLeaderError, Reason, StorageFault
from braidlog.model.settings import Flush, TopicSettings
from braidlog.partition.fetch.fetch import Fetch
from braidlog.partition.hosted_log import Role
from braidlog.partition.opening import retry
from braidlog.partition.partition import Partition
from braidlog.partition.partition_context import Key
from braidlog.partition.produce.append import Acks, Append, ProducerLimit
from braidlog.partition.produce.transaction_verification import Verified
from braidlog.partition.reconciler import Reconciler
from braidlog.partition.replica_manager import Between, ReplicaManager
from braidlog.replication.control.controller import Controller, step
from braidlog.replication.control.incarnation import Life
from braidlog.replication.messages import Fetch as Question
from braidlog.replication.messages import Refusal, Refused
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.log.partition_log import Appended, PartitionLog
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk
from braidlog.worker.inline_worker import Here

NODES = (1, 2, 3)
T = TypeVar("T")


class SharedStore:
    """One log of metadata in memory: a `MetadataStore` of every node at once."""

    is_alone = False

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.history = History()
        self.is_away = False

    def load(self) -> tuple[Image, int]:
        return Image(), 0

    async def propose(self, events: Sequence[e.Event], after: int) -> int | Conflict:
        if self.is_away:
            raise BrokerError(Reason.UNAVAILABLE, "nobody answers")
        if after != len(self.entries):
            return Conflict(len(self.entries))
        self.entries.append(Entry(after + 1, tuple(events)))
        return after + 1

    def write_durably(self, events: Sequence[e.Event]) -> None:
        raise AssertionError(events)

    def follow(self, after: int) -> Sequence[Entry]:
        return self.entries[after:]

    async def save(self, image: Image, seq: int) -> None: ...

    def close(self) -> None: ...


class Node:
    def __init__(self, cluster: "Cluster", number: int, disk: SimulatedDisk, *, opens: bool = True) -> None:
        self.cluster, self.number, self.disk, self.runtime = cluster, number, disk, cluster.runtime
        self.is_alive = True
        self.folder = DataFolder(disk, "/data", cluster.clock)
        self.folder_id = self.folder.identity.folder_id
        self.metadata = Metadata(cluster.store, self.runtime)
        self.metadata.catch_up()
        self.replicas = ReplicaManager(
            str(number), self.metadata, self.folder, self.runtime, self.spawn, lambda: None, lambda _: self
        )
        self.hosting = self.replicas.hosting
        self.released: list[tuple[int, int]] = []
        before_release = {"a": lambda number, log: self.released.append((number, log.end_offset))}
        self.reconciler = Reconciler(self.metadata, self.folder, self.hosting, self.runtime, before_release)
        producers = ProducerLimit(self.hosting, self.runtime, 100)
        self.append_service = Append(self.hosting, self.runtime, producers, self.ask)
        self.fetch = Fetch(self.hosting, self.runtime, Here())
        if opens:
            self.runtime.run(self.reconciler.open_all())

    async def ask(self, *_: object) -> Verified:
        raise AssertionError("there are no transactions")

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> object:
        assert name
        return self.runtime.spawn(work)

    def send(self, node: int, key: Key, message: Between) -> None:
        self.cluster.under_way.append((self, node, key, message))

    def register(self, boot_id: str = "b") -> None:
        """As a node does that was killed, and whose machine was not."""
        before = self.metadata.image.cluster.member(self.number)
        incarnation = self.metadata.seq + 1
        is_known = before is not None and self.folder_id == before.registered.life.folder_id
        remembers = before.registered.incarnation if before and is_known else 0
        life = Life(boot_id=boot_id, folder_id=self.folder_id, remembers=remembers)
        damaged = tuple(f"{topic}/{number}" for topic, number in self.replicas.damaged())
        event = e.RegisterNode(node=self.number, incarnation=incarnation, life=life, damaged=damaged)
        self.cluster.write(event)
        self.replicas.registered(incarnation)
        self.cluster.settle()

    def partition(self, number: int = 0) -> Partition:
        found = self.hosting.partition("a", number)
        assert isinstance(found, Partition)
        return found

    def append(self, *values: bytes, partition: int = 0, producer: tuple[int, int, int] | None = None) -> Job[Appended]:
        batch = batch_of(*values, producer=producer)
        job = self.runtime.spawn(self.append_service.append("a", partition, batch, acks=Acks.ALL, timeout_ms=60_000))
        self.cluster.settle()
        return job

    @property
    def in_sync(self) -> list[int]:
        return list(self.metadata.image.topics["a"].assignments[0].in_sync)

    def values(self, partition: int = 0) -> list[bytes | None]:
        found = self.runtime.run(self.fetch.records("a", partition, 0, bytes_max=1 << 20))
        return [each.value for each in found.records]


class Cluster:
    def __init__(self, partitions: int = 1, settings: TopicSettings = TopicSettings()) -> None:  # noqa: B008 - frozen
        self.clock = ManualClock()
        self.runtime = ManualRuntime(self.clock)
        self.store = SharedStore()
        self.under_way: deque[tuple[Node, int, Key, Between]] = deque()
        self.nodes: dict[int, Node] = {}
        for number in NODES:
            self.nodes[number] = Node(self, number, SimulatedDisk())
            self.nodes[number].register()
        placement = ((1, 2, 3) if each % 2 == 0 else (2, 3, 1) for each in range(partitions))
        self.write(placed(*placement, topic="a", topic_id=f"{1:032x}", settings=settings, replicas=()))

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    @property
    def alive(self) -> list[Node]:
        return [each for each in self.nodes.values() if each.is_alive]

    def write(self, *events: e.Event) -> None:
        """What somebody decided, and everyone who lives hears."""
        self.store.entries.append(Entry(len(self.store.entries) + 1, events))
        self.settle()

    def settle(self) -> None:
        is_quiet = False
        while not is_quiet:
            is_quiet = True
            for node in self.alive:
                seq = node.metadata.seq
                node.metadata.catch_up()
                if node.metadata.seq != seq:
                    is_quiet = False
                    assert not self.runtime.run(node.reconciler.apply_metadata())
                    node.replicas.apply_metadata()
            self.runtime.settle()
            while self.under_way:
                is_quiet = False
                for _ in range(len(self.under_way)):  # all that was said by then arrives in one turn of the loop
                    sender, to, key, message = self.under_way.popleft()
                    receiver = self.nodes[to]
                    if sender.is_alive and receiver.is_alive:
                        receiver.replicas.received(sender.number, key, message)
                self.runtime.settle()

    def pass_time(self, ms: int = 1_000) -> None:
        for _ in range(ms // 100):
            self.runtime.advance(100)
            if self.clock.now_ms() % 300 == 0:
                for node in self.alive:
                    for each in node.replicas.partitions:
                        each.tick()
            self.settle()

    def kill(self, number: int) -> None:
        self.nodes[number].is_alive = False
        self.under_way.clear()

    def fence(self, number: int) -> None:
        """As a controller does it: one entry for all that the dead one led."""
        node = self.alive[0]
        image = node.metadata.image
        member = image.cluster.member(number)
        assert member is not None
        events: list[e.Event] = [e.FenceNode(node=number, incarnation=member.registered.incarnation)]
        for partition, known in enumerate(image.topics["a"].assignments):
            if known.leader == number:
                leader = next(each for each in known.in_sync if each != number)
                events.append(
                    e.AssignPartition(
                        topic="a",
                        partition=partition,
                        leader_epoch=known.leader_epoch,
                        partition_epoch=known.partition_epoch,
                        after=known.with_leader(leader),
                    )
                )
        self.write(*events)

    def restart(self, number: int) -> None:
        self.nodes[number] = Node(self, number, self.nodes[number].disk.after_kill())
        self.nodes[number].register()

    def upkeep(self, node: int) -> None:
        """As that node's controller does it, when nodes have come and gone for the last time."""
        image, seq = self[node].metadata.image, self[node].metadata.seq
        proposal = step(Controller(node=node), Views().at(image, seq), 0)[1]
        if proposal is not None:
            self.runtime.run(proposals.write_entry(self[node].metadata, proposal))
            self[node].replicas.apply_metadata()
        self.settle()


def test_nodes_whose_machines_all_lost_power_go_on_with_the_longest_log(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(settings=TopicSettings(flush=Flush.OS))
    cluster[1].append(b"one")
    cluster[1].append(b"two")
    cluster.pass_time(1_000)
    cluster[3].partition().log.sync()
    for number in NODES:
        cluster.kill(number)
    for number in NODES:
        _, disk = next(iter(cluster[number].disk.crash_states(limit=1, rng=Random(number))))
        cluster.nodes[number] = Node(cluster, number, disk)
        cluster[number].register(boot_id="after the power cut")
    known = cluster[1].metadata.image.topics["a"].assignments[0]
    assert (known.leader, known.in_sync, known.torn) == (None, (), NODES)
    ends = {number: cluster[number].partition().log.end_offset for number in NODES}
    longest = max(NODES, key=ends.__getitem__)
    assert ends[longest] == 2 > min(ends.values())
    cluster.pass_time(1_000)
    cluster.upkeep(1)
    known = cluster[1].metadata.image.topics["a"].assignments[0]
    assert (known.leader, known.unclean_epoch) == (longest, known.leader_epoch)
    assert "what was acknowledged last may be lost" in caplog.text
    cluster.pass_time(2_000)
    assert cluster[1].in_sync == [1, 2, 3]
    assert [cluster[number].values() for number in NODES] == [[b"one", b"two"]] * 3
    assert cluster[longest].append(b"three").result().base_offset == 2


def test_a_killed_leader_loses_nothing_and_comes_back_as_a_follower() -> None:
    cluster = Cluster()
    first = cluster[1].append(b"one", producer=(7, 0, 0))
    assert first.result().base_offset == 0
    cluster.kill(1)
    cluster.fence(1)
    assert cluster[2].partition().role is Role.LEADER
    retry = cluster[2].append(b"one", producer=(7, 0, 0))
    second = cluster[2].append(b"two", producer=(7, 0, 1))
    assert not second.is_done, "the dead one is in the set until it has lagged behind for long enough"
    cluster.pass_time(11_000)
    assert cluster[2].in_sync == [2, 3]
    assert (retry.result().base_offset, retry.result().duplicate, second.result().base_offset) == (0, True, 1)
    cluster.restart(1)
    cluster.pass_time(2_000)
    assert cluster[2].in_sync == [1, 2, 3]
    logs = [cluster[number].partition().log.read(0, 10_000) for number in NODES]
    assert logs[0] == logs[1] == logs[2] != b""
    assert [cluster[number].values() for number in NODES] == [[b"one", b"two"]] * 3


def test_a_partition_that_is_opened_while_its_node_registers_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.kill(3)
    node = Node(cluster, 3, cluster[3].disk.after_kill(), opens=False)
    is_registered = cluster.runtime.wakeup()

    async def slow(work: Callable[[], T]) -> T:
        done = work()
        await is_registered.wait(60)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(cluster.runtime, "blocking", slow)
        opening = cluster.runtime.spawn(node.reconciler.open_all())
    node.register()
    assert not opening.is_done
    cluster.nodes[3] = node
    is_registered.wake()
    cluster.pass_time(2_000)
    assert opening.is_done
    assert cluster[1].in_sync == [1, 2, 3]
    assert cluster[1].append(b"one").result().base_offset == 0
    assert node.partition().end_offset == 1


@pytest.mark.parametrize("is_start_first", [True, False])
def test_a_start_and_what_arrives_meanwhile_open_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, is_start_first: bool
) -> None:
    cluster = Cluster(partitions=6)
    cluster.kill(1)
    cluster.kill(3)
    node = Node(cluster, 3, cluster[3].disk.after_kill(), opens=False)
    opened: list[tuple[str, int]] = []
    real = DataFolder.open_partition

    def watched(folder: DataFolder, name: str, number: int) -> PartitionLog:
        opened.append((name, number))
        return real(folder, name, number)

    monkeypatch.setattr(DataFolder, "open_partition", watched)
    cluster.fence(1)  # its partitions have other leaders: the node hears of it while it starts
    node.metadata.catch_up()
    begin = [node.reconciler.open_all, node.reconciler.apply_metadata]
    jobs = [cluster.runtime.spawn(each()) for each in (begin if is_start_first else begin[::-1])]
    cluster.runtime.settle()
    for job in jobs:
        job.result()
    assert sorted(opened) == [("a", number) for number in range(6)]
    assert sorted(each.number for each in node.replicas.partitions) == list(range(6))
    with pytest.raises(AssertionError, match="is open already"):
        node.hosting.host(node.replicas.partitions)


def test_epochs_of_many_partitions_begin_with_one_save(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=20)
    cluster.kill(1)
    before = len(cluster[2].disk.operations)
    hops: list[object] = []
    blocking = cluster.runtime.blocking

    def counted(work: Callable[[], T]) -> Awaitable[T]:
        hops.append(work)
        return blocking(work)

    monkeypatch.setattr(cluster.runtime, "blocking", counted)
    cluster.fence(1)
    assert 0 < len(hops) < 10, "nor one thread for each"
    assert all(cluster[2].partition(each).role is Role.LEADER for each in range(0, 20, 2))
    synced = [each for each in cluster[2].disk.operations[before:] if each.kind == "sync"]
    assert len(synced) < 10, "less than one for each of ten"


def test_what_changes_for_many_partitions_is_told_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=100)
    node = cluster[2]
    cluster.kill(1)
    turned: list[int] = []

    def slow_clock() -> float:
        turned.append(0)
        return len(turned) / 1_000

    monkeypatch.setattr(cluster.runtime, "monotonic", slow_clock)
    for each in node.replicas.partitions:
        known = node.metadata.image.topics["a"].assignments[each.number]
        leader = 3 if each.number % 4 == 0 else 2
        event = e.AssignPartition(
            topic="a",
            partition=each.number,
            leader_epoch=known.leader_epoch,
            partition_epoch=known.partition_epoch,
            after=known.with_leader(leader),
        )
        node.metadata.image.apply(event)
    node.replicas.apply_metadata()
    epochs = {each.number: each.replicated.replica.epoch for each in node.replicas.partitions}
    late = sorted(number for number, epoch in epochs.items() if epoch == 1)
    assert 10 < len(late) < 90, "the loop turns in between"
    assert {*range(0, 100, 4)} <= {*late}, "what it leads itself comes first"
    asked = node.hosting.hosted("a", late[0])
    assert isinstance(asked, Partition)
    node.replicas.received(3, asked.key, Refused(Question(2, 0, 3, 1, 0, 0, 0), Refusal.UNKNOWN_EPOCH, 2))
    assert asked.replicated.replica.epoch == 2, "whoever is asked about hears of it first"
    cluster.runtime.settle()
    assert {each.replicated.replica.epoch for each in node.replicas.partitions} == {2}


def test_partitions_are_not_gone_through_for_a_change_of_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=4)
    renewed: list[int] = []
    monkeypatch.setattr(Partition, "renew", lambda partition, _: renewed.append(partition.number))
    followed: list[None] = []
    monkeypatch.setattr(cluster[2].hosting, "host", lambda *_: followed.append(None))
    cluster.kill(1)
    cluster.fence(1)
    assert cluster[2].partition(0).role is Role.LEADER
    assert (renewed, followed) == ([], [])
    altered = TopicSettings(retention_ms=1_000)
    cluster.write(e.AlterTopic(topic="a", topic_id=f"{1:032x}", settings=altered))
    assert sorted(renewed) == [0, 0, 1, 1, 2, 2, 3, 3], "by both nodes"


def test_followers_save_the_epochs_of_what_they_copy_together() -> None:
    cluster = Cluster(partitions=20)
    disk = cluster[2].disk
    before = len(disk.operations)
    batch = batch_of(b"x")
    jobs = [
        cluster.runtime.spawn(cluster[1].append_service.append("a", each, batch, acks=Acks.ALL, timeout_ms=60_000))
        for each in range(0, 20, 2)
    ]
    cluster.settle()
    assert all(job.is_done for job in jobs)
    saved = [each.path.rpartition("/")[2] for each in disk.operations[before:] if each.kind == "sync"]
    assert 0 < len([each for each in saved if each.startswith("epochs.")]) < 10, "less than one for each of ten"
    assert len([each for each in saved if each.startswith("state.")]) == 10, "the first checkpoint of each segment"


def test_changes_of_sets_are_gathered_into_one_entry() -> None:
    cluster = Cluster(partitions=10)
    cluster.kill(3)
    before = len(cluster.store.entries)
    cluster.pass_time(11_000)
    written = cluster.store.entries[before:]
    assert len(written) == 2, "one for each leader"
    assert sum(len(entry.events) for entry in written) == 10
    for assignment in cluster[1].metadata.image.topics["a"].assignments:
        assert 3 not in assignment.in_sync


def test_a_change_whose_outcome_is_not_known_is_asked_for_again() -> None:
    cluster = Cluster()
    cluster.kill(3)
    cluster.store.is_away = True
    cluster.pass_time(11_000)
    assert cluster[1].in_sync == [1, 2, 3]
    waits = cluster[1].append(b"x")
    assert not waits.is_done
    cluster.store.is_away = False
    cluster.pass_time(1_000)
    assert cluster[1].in_sync == [1, 2]
    assert waits.is_done


def test_nobody_speaks_for_another_node() -> None:
    cluster = Cluster()
    cluster.kill(2)
    waits = cluster[1].append(b"x")
    member = cluster[1].metadata.image.cluster.member(2)
    assert member is not None
    key = cluster[1].partition().key
    forged = Question(2, member.registered.incarnation, leader=1, epoch=1, offset=1, last_epoch=1, start=0)
    cluster[1].replicas.received(3, key, forged)
    cluster.settle()
    assert not waits.is_done
    cluster[1].replicas.received(2, (bytes(16), 0), forged)
    cluster[1].replicas.received(2, (key[0], 7), forged)
    refused = Refused(forged, Refusal.UNKNOWN_REPLICA, 0)
    assert [each[1:] for each in cluster.under_way] == [(2, (bytes(16), 0), refused), (2, (key[0], 7), refused)]
    assert not waits.is_done, "of another partition"
    cluster[1].replicas.received(2, key, forged)
    cluster.settle()
    assert waits.is_done, "it would have counted"


def test_a_follower_that_may_not_join_is_not_waited_for() -> None:
    cluster = Cluster()
    cluster.kill(3)
    cluster.pass_time(11_000)
    cluster.fence(3)
    cluster[3].is_alive = True
    cluster.pass_time(1_000)
    cluster.kill(3)
    assert cluster[1].in_sync == [1, 2]
    kept = cluster[1].append(b"x")
    cluster.pass_time(1_000)
    assert kept.is_done


def test_a_partition_that_others_hold_is_refused_in_words() -> None:
    cluster = Cluster()
    cluster.write(placed((2, 3), topic="b", topic_id=f"{2:032x}", replicas=(), min_in_sync=1))
    with refused_with(Reason.NOT_LEADER):
        cluster[1].hosting.partition("b", 0)
    assert cluster[2].hosting.partition("b", 0).role is Role.LEADER


def folders(node: Node) -> list[str]:
    """The partitions of topic "a" that a node has on its disk, in whatever state."""
    return sorted({name for name in node.disk.names(node.folder.partition_folder("a", 0)[:-5]) if name[0] == "0"})


def moved(cluster: Cluster, partition: int, **fields: object) -> e.AssignPartition:
    known = cluster.alive[0].metadata.image.topics["a"].assignments[partition]
    return e.AssignPartition(
        topic="a",
        partition=partition,
        leader_epoch=known.leader_epoch,
        partition_epoch=known.partition_epoch,
        after=known.with_changes(**fields),
    )


def test_a_node_has_folders_of_what_it_holds_and_removes_what_has_moved_away() -> None:
    cluster = Cluster(partitions=2)
    cluster[1].append(b"one")
    assert [folders(cluster[each]) for each in NODES] == [["0000", "0001"]] * 3
    cluster.write(moved(cluster, 0, replicas=(1, 2), in_sync=(1, 2)))
    assert [folders(cluster[each]) for each in NODES] == [["0000", "0001"], ["0000", "0001"], ["0001"]]
    with refused_with(Reason.NOT_LEADER):
        cluster[3].partition()
    cluster.kill(3)
    cluster.restart(3)
    assert folders(cluster[3]) == ["0001"], "a start makes nothing that others hold"
    assert cluster[1].append(b"two").is_done
    cluster.write(moved(cluster, 0, replicas=(1, 2, 3)))
    assert folders(cluster[3]) == ["0000", "0001"]
    cluster.pass_time(1_000)
    assert cluster[3].values() == [b"one", b"two"]
    assert cluster[1].in_sync == [1, 2, 3]


def test_a_log_that_moves_away_is_shown_before_it_is_removed_also_after_a_start() -> None:
    cluster = Cluster(partitions=2)
    cluster[1].append(b"one")
    cluster.write(moved(cluster, 0, replicas=(1, 2), in_sync=(1, 2)))
    assert [cluster[each].released for each in NODES] == [[], [], [(0, 1)]]
    cluster.kill(3)
    cluster.write(moved(cluster, 1, replicas=(1, 2), in_sync=(1, 2)))
    cluster.restart(3)
    assert cluster[3].released == [(1, 0)]
    assert folders(cluster[3]) == []


def test_a_reader_of_what_has_moved_away_is_sent_to_those_who_hold_it() -> None:
    cluster = Cluster()
    partition = cluster[3].partition()
    cluster.write(moved(cluster, 0, replicas=(1, 2), in_sync=(1, 2)))
    with pytest.raises(NotLeaderError, match="holds no replica of a/0 any more"):
        partition.require_hosted()


def test_new_partitions_of_other_nodes_are_not_made_here() -> None:
    cluster = Cluster()
    grown = e.AddPartitions(topic="a", topic_id=f"{1:032x}", partitions=3, placement=((1, 2), (3, 2)))
    cluster.write(grown)
    assert [folders(cluster[each]) for each in NODES] == [["0000", "0001"], ["0000", "0001", "0002"], ["0000", "0002"]]
    assert cluster[3].folder.topic("a").absent == (1,)
    assert cluster[1].append(b"x", partition=1).is_done


def test_a_copy_that_cannot_be_opened_is_set_aside_and_copied_anew() -> None:
    cluster = Cluster(partitions=2)
    assert cluster[1].append(b"one").is_done
    cluster.kill(3)
    disk = cluster[3].disk.after_kill()
    place = cluster[3].folder.partition_folder("a", 0)
    for path in [each for each in disk.files() if each.startswith(place)]:
        disk.drop(path)
    node = cluster.nodes[3] = Node(cluster, 3, disk)
    assert list(node.hosting.offline) == [("a", 0)]
    assert not node.hosting.may_reset("a", 0), "its sets count on it until it has registered without it"
    node.register()
    assert node.replicas.damaged() == [("a", 0)]
    assert 3 not in cluster[1].in_sync
    assert cluster.runtime.run(retry(node.hosting, cluster.runtime)) == [node.partition()]
    cluster.settle()
    cluster.pass_time(1_000)
    assert (cluster[1].in_sync, node.values()) == ([1, 2, 3], [b"one"])
    assert node.hosting.offline == {}
    assert node.hosting.quarantined == {"damaged": 0, "stray": 0}
    node.hosting.count_set_aside()
    assert node.hosting.quarantined == {"damaged": 1, "stray": 0}
    (kept,) = [name for name in folders(node) if name.endswith(".damaged")]
    disk.remove_folder(node.folder.partition_folder("a", 0)[:-4] + kept)
    node.hosting.count_set_aside()
    assert node.hosting.quarantined == {"damaged": 0, "stray": 0}, "somebody has removed it"


def test_a_copy_begins_anew_only_if_others_have_all_of_it() -> None:
    cluster = Cluster()
    node = cluster[3]
    fault = StorageFault("it cannot be read")
    node.hosting.take_offline(node.partition(), fault)
    assert not node.hosting.may_reset("a", 0), "it is in sync"
    cluster.write(moved(cluster, 0, in_sync=(1, 2)))
    assert node.hosting.may_reset("a", 0)
    fault.__cause__ = OSError(errno.EMFILE, "too many open files")
    assert not node.hosting.may_reset("a", 0), "the system refuses it, and may not later"
    fault.__cause__ = None
    cluster.write(moved(cluster, 0, eligible=(3,), in_sync=(1,)))
    assert not node.hosting.may_reset("a", 0), "it may be elected"
    cluster.write(moved(cluster, 0, eligible=(), leader=None))
    assert not node.hosting.may_reset("a", 0), "nobody leads: it may be the last"


@pytest.mark.parametrize("was_in_sync", [True, False])
def test_a_node_whose_disk_was_wiped_copies_everything_and_leads_nothing_before(was_in_sync: bool) -> None:
    cluster = Cluster(partitions=2)
    assert cluster[1].append(b"one").is_done
    cluster.kill(1)
    cluster.fence(1)
    if not was_in_sync:
        cluster.pass_time(11_000)
        assert cluster[2].in_sync == [2, 3]
    cluster.nodes[1] = Node(cluster, 1, SimulatedDisk())
    assert cluster[1].replicas.damaged() == [("a", 0), ("a", 1)], "what was made is missed"
    cluster[1].register()
    known = cluster[2].metadata.image.topics["a"].assignments[0]
    assert 1 not in (*known.in_sync, *known.eligible)
    cluster.pass_time(1_000)
    assert cluster[2].in_sync == [1, 2, 3]
    assert [each.partition().log.read(0, 10_000) for each in cluster.alive].count(
        cluster[2].partition().log.read(0, 10_000)
    ) == 3
    assert cluster[1].values() == [b"one"]
    assert cluster[1].hosting.offline == {}
