"""Three nodes of a cluster, with their sockets, disks and a real etcd: led, killed, drained, started again.

Over 500 lines because all of these share a cluster of processes, whose start takes seconds.
"""

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tests.broker.node import batch_of
from tests.cli.braid import Braid, check
from tests.cluster.transactional import PARTITIONS, made, seen, transactional
from tests.debian import have
from tests.server.etcd.members import Member, members
from tests.server.etcd.test_etcd_metadata import config_for, ports
from tests.waiting import until as wait_until

from braidlog import connect
from braidlog.broker.coordination.coordinator import Coordinator
from braidlog.broker.services import Services
from braidlog.client.blocking import Client
from braidlog.client.drivers.cluster import ClusterPartition as ClusterInfoPartition
from braidlog.cluster.etcd.etcd_store import EtcdStore
from braidlog.cluster.etcd.port import EtcdError
from braidlog.cluster.metadata.events import FenceNode
from braidlog.coordinator.shards import shard_for_name
from braidlog.coordinator.snapshot_store import Snapshot, StreamName
from braidlog.coordinator.transactions.markers import Failures
from braidlog.coordinator.transactions.transaction import ProducerIdentity
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.stage_ids import stage_name
from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.partition.produce.append import Acks
from braidlog.replication.assignment import Assignment
from braidlog.server import cluster_node
from braidlog.server.etcd.cluster_config import ClusterConfig
from braidlog.server.etcd.health import ask_members
from braidlog.server.node import Server
from braidlog.server.peers.gossip_thread import GossipThread
from braidlog.testing.cluster_process import ClusterProcess
from braidlog.testing.server import ServerProcess

SECONDS_MAX = 60.0
NODES = (1, 2, 3)
RETRIABLE = {Reason.NOT_LEADER, Reason.NOT_ENOUGH_REPLICAS, Reason.ACKS_TIMED_OUT}


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with members(tmp_path_factory.mktemp("etcd"), 1) as started:
        yield started[0]


async def end_threads() -> None:
    """What was begun on a thread ends with its process; here it is waited for, or it writes into the folder of the next."""
    loop = asyncio.get_running_loop()
    threads = loop._default_executor  # type: ignore[attr-defined]
    loop.set_default_executor(ThreadPoolExecutor())
    if threads is not None:
        await asyncio.to_thread(threads.shutdown)


class ThreeNodes:
    """Three whole servers in this process. What a crash leaves is on their disks and in etcd."""

    def __init__(self, folder: Path, etcd: str, prefix: str) -> None:
        self._folder, self._etcd, self._prefix = folder, etcd, prefix
        self.servers: dict[int, Server] = {}

    async def start(self, number: int) -> None:
        config = config_for(self._folder / str(number), self._etcd, self._prefix, node=str(number))
        server = Server(config)
        await server.start()
        self.servers[number] = server

    def services(self, number: int) -> Services:
        services = self.servers[number].services
        assert services is not None
        return services

    async def crash(self, number: int) -> None:
        """All at once, without a word to anybody."""
        server = self.servers.pop(number)
        assert server._cluster is not None
        server._tasks.cancel()
        await server._cluster.disconnect()
        await server._tasks.stop()
        assert server._flusher is not None
        server._flusher.stop()
        await end_threads()
        assert server._cluster._store._gateway is not None
        server._cluster._store._gateway.close()
        assert server.services is not None
        server.services.hosting._folder.release()

    async def stop(self, number: int) -> None:
        await self.servers.pop(number).stop()

    async def create(self, topic: str) -> None:
        await self.services(1).topics.create(topic, 1)
        await self.until(lambda: all(self.services(each).hosting.hosted(topic, 0) is not None for each in NODES))

    def partition(self, number: int) -> Partition:
        found = self.services(number).hosting.hosted("a", 0)
        assert isinstance(found, Partition)
        return found

    def assignment(self) -> Assignment:
        return self.services(next(iter(self.servers))).metadata.image.assignment("a", 0)

    async def leader(self, *, but: int = 0) -> int:
        def found() -> int:
            leads = [each for each in self.servers if each != but and self.partition(each).role is Role.LEADER]
            return leads[0] if leads else 0

        await self.until(lambda: found() > 0)
        return found()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while not condition():  # noqa: ASYNC110 - many things make it true, none of them tells
                await asyncio.sleep(0.01)

    async def append(self, value: bytes, sequence: int) -> None:
        """As a producer does that asks the metadata again when it is told to."""
        batch = batch_of(value, producer=(7, 0, sequence))
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                append = self.services(await self.leader()).append
                try:
                    await append.append("a", 0, batch, acks=Acks.ALL, timeout_ms=1_000)
                except BrokerError as error:
                    if error.reason not in RETRIABLE:
                        raise
                else:
                    return

    async def values(self, number: int) -> list[bytes | None]:
        found = await self.services(number).fetch.records("a", 0, 0, bytes_max=1 << 20)
        return [each.value for each in found.records]

    async def all_have(self, *wanted: bytes) -> None:
        """In sync, and everyone reads the same."""
        await self.until(lambda: len(self.assignment().in_sync) == len(NODES))
        await self.until(lambda: all(self.partition(each).high_watermark == len(wanted) for each in NODES))
        for number in NODES:
            assert await self.values(number) == list(wanted)
        logs = [self.partition(each).log.read(0, 1 << 20) for each in NODES]
        assert logs[0] == logs[1] == logs[2]


@asynccontextmanager
async def three_nodes(folder: Path, etcd: Member, prefix: str) -> AsyncIterator[ThreeNodes]:
    nodes = ThreeNodes(folder, etcd.url, prefix)
    try:
        async with asyncio.timeout(4 * SECONDS_MAX):
            for number in NODES:
                await nodes.start(number)
            yield nodes
    finally:
        for number in list(nodes.servers):
            await nodes.stop(number)


def test_nothing_acknowledged_is_lost_by_a_crash_of_the_leader_and_a_drain_of_the_next(
    tmp_path: Path, etcd: Member
) -> None:
    async def scene() -> None:
        async with three_nodes(tmp_path, etcd, "crash") as nodes:
            await nodes.create("a")
            await nodes.append(b"one", 0)
            first = await nodes.leader()
            await nodes.crash(first)
            await nodes.append(b"two", 1)
            second = await nodes.leader()
            assert second != first
            assert nodes.services(second).metadata.image.cluster.nodes()[first].is_fenced
            await nodes.start(first)
            await nodes.all_have(b"one", b"two")
            metadata = nodes.services(first).metadata
            seen: list[tuple[int | None, bool]] = []
            metadata.listeners.append(
                lambda: seen.append(
                    (metadata.image.assignment("a", 0).leader, metadata.image.cluster.nodes()[second].is_fenced)
                )
            )
            await nodes.stop(second)
            moved = next(each for each in seen if each[0] != second)
            assert moved == (await nodes.leader(), False), "it leads before the other has gone"
            await nodes.append(b"three", 2)
            await nodes.start(second)
            await nodes.all_have(b"one", b"two", b"three")

    asyncio.run(scene())


def test_a_node_that_is_alone_in_its_cluster_leads_before_it_listens(tmp_path: Path, etcd: Member) -> None:
    async def scene() -> None:
        nodes = ThreeNodes(tmp_path, etcd.url, "alone")
        await nodes.start(1)
        await nodes.services(1).topics.create("a", 1)
        await nodes.append(b"one", 0)
        await nodes.stop(1)
        await nodes.start(1)
        assert nodes.partition(1).role is Role.LEADER
        assert await nodes.values(1) == [b"one"]
        assert (cluster := nodes.servers[1]._cluster) is not None
        assert cluster.peers.adapter._throttle._rate is nodes.services(1).replication_rate
        await nodes.stop(1)

    asyncio.run(scene())


def test_a_node_is_ready_when_the_others_know_of_it(
    tmp_path: Path, etcd: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or whoever waits for it, and then makes a topic with a replica on it, is told by another that there are too few."""
    monkeypatch.setattr(cluster_node, "KNOWN_SECONDS_MAX", SECONDS_MAX)
    asked: list[list[int]] = []
    unaware = GossipThread.unconfirmed_nodes

    def noted(gossip: GossipThread, members: Sequence[tuple[int, int]]) -> list[int]:
        asked.append(unaware(gossip, members))
        return asked[-1]

    monkeypatch.setattr(GossipThread, "unconfirmed_nodes", noted)

    async def scene() -> None:
        nodes = ThreeNodes(tmp_path, etcd.url, "known")
        await nodes.start(1)
        store, known = nodes.services(1).metadata._store, nodes.services(1).metadata.image.cluster.nodes
        assert isinstance(store, EtcdStore)
        arrived, store.arrived = store.arrived, lambda: None
        starting = asyncio.create_task(nodes.start(2))
        await nodes.until(lambda: len(asked) > 3 and asked[-1] == [1])
        assert not starting.done()
        assert 2 not in known()
        store.arrived = arrived
        arrived()
        await starting
        assert 2 in known()
        for number in (2, 1):
            await nodes.stop(number)

    asyncio.run(scene())


def test_a_node_that_was_taken_for_dead_comes_back_by_itself(tmp_path: Path, etcd: Member) -> None:
    async def scene() -> None:
        async with three_nodes(tmp_path, etcd, "fenced") as nodes:
            await nodes.create("a")
            await nodes.append(b"one", 0)
            metadata = nodes.services(2).metadata
            before = metadata.image.cluster.nodes()[3].incarnation
            await metadata.change(
                lambda image: (
                    []
                    if image.cluster.nodes()[3].is_fenced or image.cluster.nodes()[3].incarnation != before
                    else [FenceNode(node=3, incarnation=before)]
                )
            )
            await nodes.until(lambda: metadata.image.cluster.nodes()[3].incarnation > before)
            await nodes.append(b"two", 1)
            await nodes.all_have(b"one", b"two")
            assert nodes.servers[3]._failure is None, "it took its own registration for another's"

    asyncio.run(scene())


async def coordinator(nodes: ThreeNodes, name: str) -> tuple[int, Coordinator]:
    """Return the node that keeps a name, once one does, and its coordinator."""
    await nodes.services(next(iter(nodes.servers))).coordinators.ensure_shards()
    found: list[tuple[int, Coordinator]] = []

    def look() -> bool:
        for number in nodes.servers:
            with contextlib.suppress(BrokerError):
                found.append((number, nodes.services(number).coordinators.coordinator_for(name)))
        return bool(found)

    await nodes.until(look)
    return found[-1]


async def refuse(*_: object, **__: object) -> Failures:
    """Instead of markers."""
    raise BrokerError(Reason.UNAVAILABLE, "killed")


def test_what_was_decided_is_ended_by_the_next_coordinator(tmp_path: Path, etcd: Member) -> None:
    """A transaction, and a batch of a sink, whose coordinator dies between the decision and the first marker; and a snapshot
    of an event stream that another node gave it to keep."""

    async def open_one(nodes: ThreeNodes, kept: Coordinator, name: str) -> ProducerIdentity:
        txn = await kept.transactions.begin_producer(name)
        await kept.transactions.add_partitions(name, txn.producer_id, txn.epoch, [("a", 0)])
        batch = batch_of(name.encode(), producer=(txn.producer_id, txn.epoch, 0), transactional=True)
        append = nodes.services(await nodes.leader()).append
        await append.append("a", 0, batch, acks=Acks.ALL, timeout_ms=60_000, transactional_id=name)
        return ProducerIdentity(name, txn.producer_id, txn.epoch)

    async def scene() -> None:
        async with three_nodes(tmp_path, etcd, "decided") as nodes:
            await nodes.create("a")
            first, kept = await coordinator(nodes, "t")
            sinks = [f"s{number}" for number in range(100) if shard_for_name(f"s{number}") == shard_for_name("t")]
            producing = await open_one(nodes, kept, "t")
            stage = await open_one(nodes, kept, stage_name(sinks[0], 0, "0-0"))
            services = nodes.services(first)
            topic_id = services.hosting.meta("a").topic_id
            streams = (StreamName("a", topic_id, (b"%d" % number).hex()) for number in range(1000))
            stream = next(each for each in streams if shard_for_name(each.counted_as) == shard_for_name("t"))
            await nodes.services(first % 3 + 1).stream_snapshots.save(stream, Snapshot(0, b"kept"))
            services.markers.write = refuse  # type: ignore[method-assign]
            for decision in (
                kept.transactions.end_transaction(*producing, commit=True),
                kept.staging.commit(sinks[0], 0, [stage], owner="me"),
            ):
                with pytest.raises(BrokerError, match="killed"):
                    await decision
            await nodes.crash(first)

            async def committed() -> list[bytes | None]:
                fetch = nodes.services(await nodes.leader()).fetch
                found = await fetch.records("a", 0, 0, bytes_max=1 << 20, committed_only=True)
                return [each.value for each in found.records]

            async with asyncio.timeout(SECONDS_MAX):
                while await committed() != [b"t", stage.name.encode()]:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.05)
            number, next_one = await coordinator(nodes, "t")
            assert number != first
            assert next_one.staging.last_batch(sinks[0], owner="me") == 0
            for each in nodes.servers:
                assert await nodes.services(each).stream_snapshots.find(stream) == Snapshot(0, b"kept")

    asyncio.run(scene())


def leader_of(client: Client, topic: str = "a") -> int:
    """Once there is one, as the nodes tell it."""
    until = time.monotonic() + SECONDS_MAX
    while True:
        (found,) = [each for each in client.admin.describe_cluster().partitions if each.topic == topic]
        if found.leader is not None:
            return found.leader
        assert time.monotonic() < until, "nobody leads"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, etcd: Member) -> Iterator[ClusterProcess]:
    """Real processes, all of them running before and after a test."""
    with ClusterProcess(tmp_path_factory.mktemp("cluster"), etcd.url, prefix="killed") as nodes:
        yield nodes


def test_a_producer_survives_the_kill_of_the_process_that_leads(cluster: ClusterProcess) -> None:
    """What was acknowledged is there once, in order, whichever node is asked."""
    with connect(cluster.url("kafka")) as client:
        client.admin.create_topic("a", partitions=1)
        producer = client.producer(acks="all", idempotent=True)
        wanted = [b"%d" % number for number in range(60)]
        for value in wanted[:20]:
            producer.send_and_wait("a", value)
        killed = leader_of(client)
        sent = [producer.send("a", value) for value in wanted[20:40]]
        cluster[killed].kill()
        for each in sent:
            each.result()
        assert leader_of(client) != killed
        cluster[killed].restart()
        for value in wanted[40:]:
            producer.send_and_wait("a", value)
        consumer = client.consumer()
        consumer.assign("a", start="earliest")
        found: list[bytes | None] = []
        while len(found) < len(wanted):
            found += [record.value for record in consumer.poll(timeout=SECONDS_MAX)]
        assert found == wanted


class GroupMember:
    """A consumer of librdkafka in a group, which counts how often it was given partitions, and lost them."""

    def __init__(self, addresses: str, group: str, topic: str) -> None:
        own = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        self.consumer = Consumer({"bootstrap.servers": addresses, "log_level": 0, **own})
        self.assigned = self.revoked = 0
        self.read: list[Message] = []
        self.acknowledged: dict[int, int] = {}
        self.consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned += bool(partitions)

    def _on_revoke(self, _: Consumer, __: list[TopicPartition]) -> None:
        self.revoked += 1

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None and message.error() is None:
            self.read.append(message)

    def commit(self) -> bool:
        """All that it has read; whether that is acknowledged."""
        try:
            told = self.consumer.commit(offsets=self.consumer.position(self.consumer.assignment()), asynchronous=False)
        except KafkaException:
            return False
        if not told or any(each.error is not None for each in told):
            return False
        self.acknowledged.update({each.partition: each.offset for each in told})
        return True


def test_a_group_goes_on_when_the_node_that_coordinates_it_is_killed(cluster: ClusterProcess) -> None:
    """Its members keep their assignment, and what they committed is there."""
    addresses = cluster.url("kafka").removeprefix("kafka://")
    admin = AdminClient({"bootstrap.servers": addresses, "log_level": 0})
    with connect(cluster.url("kafka")) as client:
        client.admin.create_topic("grouped", partitions=2)
        producer = client.producer(acks="all", idempotent=True)
        for number in range(20):
            producer.send_and_wait("grouped", b"%d" % number, partition=number % 2)
    members = [GroupMember(addresses, "g", "grouped") for _ in range(2)]

    def poll_until(condition: Callable[[], bool]) -> None:
        until = time.monotonic() + SECONDS_MAX
        while not condition():
            assert time.monotonic() < until
            for each in members:
                each.poll()

    def is_shared_out() -> bool:
        return all(len(each.consumer.assignment()) == 1 for each in members)

    try:
        poll_until(lambda: is_shared_out() and {m.value() for e in members for m in e.read} >= {b"18", b"19"})
        poll_until(lambda: all(each.commit() for each in members))
        before = [(each.assigned, each.revoked) for each in members]
        group = admin.describe_consumer_groups(["g"])["g"].result(SECONDS_MAX)
        killed = group.coordinator.id
        shards = admin.list_topics("__consumer_offsets", SECONDS_MAX).topics["__consumer_offsets"].partitions
        assert shards[shard_for_name("g")].leader == killed
        assert all(set(each.replicas) == set(NODES) for each in shards.values())
        cluster[killed].kill()
        poll_until(lambda: all(each.commit() for each in members))
        # Another: the first one waits for the node that it took for the coordinator.
        other = AdminClient({"bootstrap.servers": addresses, "log_level": 0})
        after = other.describe_consumer_groups(["g"])["g"].result(SECONDS_MAX)
        assert after.coordinator.id != killed
        assert {each.member_id for each in after.members} == {each.member_id for each in group.members}
        assert [(each.assigned, each.revoked) for each in members] == before, "nobody has to begin anew"
        acknowledged = {**members[0].acknowledged, **members[1].acknowledged}
        found = members[0].consumer.committed([TopicPartition("grouped", each) for each in acknowledged], SECONDS_MAX)
        assert {each.partition: each.offset for each in found} == acknowledged
    finally:
        for each in members:
            each.consumer.close()
        for node in cluster.nodes.values():
            if not node.is_running:
                node.restart()


def test_an_administrator_moves_partitions_and_leaders(cluster: ClusterProcess, tmp_path: Path) -> None:
    """Off node 3, by the commands."""
    braid = Braid(url=cluster.url("kafka"))
    braid.ok("topic", "create", "moved", "--partitions", "3")

    def told() -> list[dict[str, Any]]:
        return list(braid.json("cluster", "partitions", "moved", schema="cluster-partitions"))

    wait_until(lambda: all(each["leader"] is not None for each in told()), "leaders")
    file = tmp_path / "plan.json"
    wanted = ["moved", "--nodes", "1,2", "--replicas", "2"]
    plan = braid.json("cluster", "reassign", "plan", *wanted, schema="cluster-reassign-plan")
    file.write_text(json.dumps(plan), encoding="utf-8")
    begun = braid.json("cluster", "reassign", "apply", str(file), schema="cluster-outcomes")
    assert [(each["partition"], each["error"]) for each in begun] == [(0, ""), (1, ""), (2, "")]
    wait_until(lambda: '"moving":[]' in braid.ok("cluster", "reassign", "watch", "--once", "-o", "json"), "moved")
    assert braid.ok("cluster", "reassign", "watch") == "No partition is moving.\n"
    assert braid.json("cluster", "reassign", "watch", schema="cluster-reassign-watch") == {"moving": []}
    assert [each["replicas"] for each in told()] == [each["replicas"] for each in plan["partitions"]]
    assert all(sorted(each["replicas"]) == [1, 2] for each in told())
    assert braid.json("cluster", "reassign", "plan", *wanted, schema="cluster-reassign-plan")["partitions"] == []
    for each in braid.json("cluster", "elect", "moved", "--preferred", schema="cluster-outcomes"):
        assert each["error"] in ("", "ELECTION_NOT_NEEDED")
    wait_until(lambda: all(each["leader"] == each["replicas"][0] for each in told()), "elected")
    assert "the preferred replica leads (ELECTION_NOT_NEEDED)" in braid.ok("cluster", "elect", "moved/0")
    assert braid.ok("cluster", "reassign", "cancel") == "No partition is moving.\n"
    refused = braid("cluster", "reassign", "cancel", "moved/0")
    assert (
        refused.exit_code,
        "moved/0 has no reassignment in progress (NO_REASSIGNMENT_IN_PROGRESS)" in refused.stdout,
    ) == (
        1,
        True,
    )
    assert "unknown partition 'moved/7'; see `braid cluster" in braid("cluster", "elect", "moved/7").stderr
    assert (
        "node 9 does not exist; see `braid cluster nodes`"
        in braid("cluster", "reassign", "plan", "--nodes", "9").stderr
    )
    file.write_text("{}", encoding="utf-8")
    assert "is not a plan" in braid("cluster", "reassign", "apply", str(file)).stderr


def test_a_partition_leaves_a_node_and_returns_while_its_leader_stays(cluster: ClusterProcess) -> None:
    with connect(cluster.url("kafka")) as client:
        client.admin.create_topic("returns", partitions=1)

        def now() -> ClusterInfoPartition:
            (found,) = [each for each in client.admin.describe_cluster().partitions if each.topic == "returns"]
            return found

        wait_until(lambda: len(now().in_sync) == 3, "in sync")
        first, second, third = now().replicas
        for nodes in ((first, second), (first, second, third)):
            (told,) = client.admin.move_partitions({("returns", 0): nodes})
            assert told.error == ""
            wait_until(lambda: not client.admin.list_moves(), "moved")
            assert set(now().replicas) == set(now().in_sync) == set(nodes)


def test_a_consumer_of_librdkafka_reads_from_the_follower_in_its_rack(cluster: ClusterProcess) -> None:
    """Its statistics say from whom; after that node was killed it reads on from the leader."""
    read_from = list[tuple[int, int]]()

    def told(statistics: str) -> None:
        for each in json.loads(statistics)["topics"].get("near", {"partitions": {}})["partitions"].values():
            if each["partition"] == 0:
                read_from.append((each["leader"], each["broker"]))

    with connect(cluster.url("kafka")) as client:
        client.admin.create_topic("near", partitions=1)
        wait_until(lambda: in_sync(client, "near") == len(NODES), "in sync")
        leader = leader_of(client, "near")
        follower = max({*NODES} - {leader})
        addresses = cluster.url("kafka").removeprefix("kafka://")
        producer = Producer({"bootstrap.servers": addresses, "enable.idempotence": True, "log_level": 0})
        wanted = [b"%d" % number for number in range(40)]

        def produce(*values: bytes) -> None:
            for value in values:
                producer.produce("near", value, partition=0)
            assert producer.flush(SECONDS_MAX) == 0

        produce(*wanted[:20])
        reader = Consumer(
            {
                "bootstrap.servers": addresses,
                "group.id": "near",
                "enable.auto.commit": False,
                "client.rack": f"rack-{follower}",
                "statistics.interval.ms": 100,
                "stats_cb": told,
                "log_level": 0,
            }
        )
        try:
            reader.assign([TopicPartition("near", 0, 0)])
            found: list[bytes | None] = []

            def more() -> int:
                message = reader.poll(0.1)
                if message is not None and message.error() is None:
                    found.append(message.value())
                return len(found)

            wait_until(lambda: more() == 20, "read")
            wait_until(lambda: more() == 20 and read_from[-1:] == [(leader, follower)], "from the follower")
            produce(*wanted[20:30])
            wait_until(lambda: more() == 30, "read")
            assert read_from[-1] == (leader, follower)
            cluster[follower].kill()
            produce(*wanted[30:])
            wait_until(lambda: more() == len(wanted), "read without the follower")
            assert found == wanted
        finally:
            reader.close()
            if not cluster[follower].is_running:
                cluster[follower].restart()
        wait_until(lambda: in_sync(client, "near") == len(NODES), "in sync")


def test_a_node_is_drained_and_may_lead_again(cluster: ClusterProcess) -> None:
    braid = Braid(url=cluster.url("kafka"))
    braid.ok("topic", "create", "drained", "--partitions", "3")

    def leaders() -> set[int | None]:
        told = braid.json("cluster", "partitions", "drained", schema="cluster-partitions")
        return {each["leader"] for each in told if len(each["in_sync"]) == 3}

    wait_until(lambda: leaders() == {1, 2, 3}, "led by all")
    report = braid.json("cluster", "drain", "3", schema="cluster-drain")
    assert report == {"node": 3, "draining": True, "leads": []}
    assert 3 not in leaders()
    row = braid.json("cluster", "nodes", schema="cluster-nodes")[2]
    assert (row["alive"], row["draining"], row["leads"]) == (True, True, 0)
    assert "draining" in braid.ok("cluster", "nodes")
    assert braid.ok("cluster", "drain", "3", "--undo") == "node 3 may lead again\n"
    assert "unknown node 9; see `braid cluster nodes`" in braid.fails(3, "cluster", "drain", "9")

    def said() -> list[str]:
        return [line.split("  ")[-1] for line in braid.ok("cluster", "events", "--since", "-10m").splitlines()]

    wait_until(lambda: "node 3 may lead again" in said(), "told")
    assert said().index("node 3 drains: it must not lead") < said().index("node 3 may lead again")
    assert any(words.startswith("drained/") and "(was node 3)" in words for words in said())
    events = [json.loads(line) for line in braid.ok("cluster", "events", "-o", "json").splitlines()]
    moved = next(each for each in events if each["topic"] == "drained" and "(was node 3)" in each["words"])
    check("cluster-event", moved)
    assert moved["event"] == "AssignPartition"


def in_sync(client: Client, topic: str) -> int:
    """How many replicas of a topic's partitions are, where the fewest are."""
    return min(len(each.in_sync) for each in client.admin.describe_cluster().partitions if each.topic == topic)


def test_a_rolling_restart_under_load_loses_nothing_and_shows_no_error(cluster: ClusterProcess) -> None:
    """A producer of librdkafka and one of ours, both idempotent with acks=all; node after node is stopped and started."""
    errors, acknowledged = list[str](), list[bytes | None]()

    def delivered(error: object, message: Message) -> None:
        if error is not None:
            errors.append(str(error))
        else:
            acknowledged.append(message.value())

    addresses = cluster.url("kafka").removeprefix("kafka://")
    foreign = Producer({"bootstrap.servers": addresses, "enable.idempotence": True, "linger.ms": 0, "log_level": 0})
    with connect(cluster.url("kafka")) as client:
        client.admin.create_topic("rolled", partitions=3)
        own = client.producer(acks="all", idempotent=True)
        sent, is_over = list[bytes](), threading.Event()

        def load() -> None:
            while not is_over.wait(0.05):
                for producer, partition in ((b"foreign", 0), (b"own", 1), (b"foreign", 2)):
                    value = b"%s %d" % (producer, len(sent))
                    sent.append(value)
                    if producer == b"foreign":
                        foreign.produce("rolled", value, partition=partition, on_delivery=delivered)
                    else:
                        own.send_and_wait("rolled", value, partition=partition)
                foreign.poll(0)

        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(load)
            try:
                for number in NODES:
                    assert cluster[number].stop() == 0
                    cluster[number].restart()
                    wait_until(lambda: in_sync(client, "rolled") == len(NODES), "in sync")
            finally:
                is_over.set()
            loading.result()
        assert foreign.flush(SECONDS_MAX) == 0
        assert errors == []
        assert set(acknowledged) == {value for value in sent if value.startswith(b"foreign")}
        consumer = client.consumer()
        consumer.assign("rolled", start="earliest")
        found: list[bytes | None] = []
        while len(found) < len(sent):
            found += [record.value for record in consumer.poll(timeout=SECONDS_MAX)]
        assert len(found) == len(sent)
        assert set(found) == set(sent)


def test_records_of_all_nodes_count_together(cluster: ClusterProcess) -> None:
    with connect(cluster.url("kafka")) as client:
        made(client, "whole")
    producer = transactional(cluster, "whole")
    for turn, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        for number in range(PARTITIONS):
            producer.produce("whole", b"%d %d" % (turn, number), partition=number)
        (producer.commit_transaction if commit else producer.abort_transaction)(SECONDS_MAX)
    wanted = [b"%d %d" % (turn, number) for turn in (0, 2) for number in range(PARTITIONS)]
    assert seen(cluster, "whole", len(wanted)) == wanted


@pytest.fixture
def own_cluster(tmp_path: Path, etcd: Member) -> Iterator[ClusterProcess]:
    """For a test that does not leave it as it was."""
    with ClusterProcess(tmp_path / "own", etcd.url, prefix="removed") as nodes:
        yield nodes


def test_an_administrator_removes_a_node_that_is_gone(own_cluster: ClusterProcess, tmp_path: Path) -> None:
    cluster, braid = own_cluster, Braid(url=own_cluster.url("kafka"))
    braid.ok("topic", "create", "held")
    remove = ("cluster", "remove", "3", "--yes")
    assert "broker 9 is not registered" in braid.fails(3, "cluster", "remove", "9", "--yes")
    assert "node 3 is running; stop it first" in braid.fails(3, *remove)
    cluster[3].kill()

    def is_fenced() -> bool:
        return not braid.json("cluster", "nodes", schema="cluster-nodes")[2]["alive"]

    wait_until(is_fenced, "fenced")
    assert "node 3 has replicas of" in braid.fails(3, *remove)
    file = tmp_path / "plan.json"
    file.write_text(braid.ok("cluster", "reassign", "plan", "--nodes", "1,2", "--replicas", "2"), encoding="utf-8")
    braid.ok("cluster", "reassign", "apply", str(file))
    wait_until(lambda: '"moving":[]' in braid.ok("cluster", "reassign", "watch", "--once", "-o", "json"), "moved")
    assert braid.json(*remove, schema="cluster-remove") == {"removed": 3}
    assert [each["node"] for each in braid.json("cluster", "nodes", schema="cluster-nodes")] == [1, 2]


def test_administration_is_answered_in_its_time_while_etcd_and_a_replica_answer_nobody(tmp_path: Path) -> None:
    """The code is the broker's, not the client's: each request names a time that is shorter than any wait of the nodes."""
    timeout = {"operation_timeout": 1.5, "request_timeout": SECONDS_MAX}
    with (
        members(tmp_path, 1) as (etcd,),
        ClusterProcess(tmp_path, etcd.url) as nodes,
        connect(nodes.url("kafka")) as client,
    ):
        client.admin.create_topic("a", 1)
        with client.producer() as producer:
            producer.send("a", b"kept")
        leader = leader_of(client)
        hosts = ",".join(f"127.0.0.1:{node.ports['kafka']}" for node in nodes.nodes.values())
        admin = AdminClient({"bootstrap.servers": hosts})
        admin.list_topics(timeout=SECONDS_MAX)
        away = nodes[next(number for number in NODES if number != leader)].pid
        stopped: tuple[Callable[[signal.Signals], None], ...] = (etcd.signal, partial(os.kill, away))
        asked: dict[str, Callable[[], dict[Any, Any]]] = {
            "CreateTopics": lambda: admin.create_topics([NewTopic("b", 1), NewTopic("c", 1)], **timeout),
            "CreatePartitions": lambda: admin.create_partitions([NewPartitions("a", 2)], **timeout),
            "DeleteTopics": lambda: admin.delete_topics(["a"], **timeout),
            "DeleteRecords": lambda: admin.delete_records([TopicPartition("a", 0, -1)], **timeout),
        }
        for tell in stopped:
            tell(signal.SIGSTOP)
        try:
            answers = {name: list(ask().values()) for name, ask in asked.items()}
            found = {name: {_code(each) for each in every} for name, every in answers.items()}
        finally:
            for tell in stopped:
                tell(signal.SIGCONT)
        assert found == {key: {KafkaError.REQUEST_TIMED_OUT} for key in asked}
        leader_of(client)


def _code(answer: Future[Any]) -> int:
    """0: it was done."""
    try:
        answer.result(SECONDS_MAX)
    except KafkaException as error:
        return int(error.args[0].code())
    return 0


def test_the_member_of_a_removed_node_leaves_etcd(tmp_path: Path) -> None:
    """Nodes with embedded members, one of which is killed: its member ends with it, and counts no more when it is removed."""
    have("etcd", "etcd-server")
    with ports(2 * len(NODES)) as found, contextlib.ExitStack() as stack:
        there = {number: found[2 * at : 2 * at + 2] for at, number in enumerate(NODES)}
        peers = ",".join(f"{number}=http://127.0.0.1:{peer}" for number, (_, peer) in there.items())
        nodes = {}
        for number, (client, peer) in there.items():
            settings = {
                "node": number, "cluster.etcd": "embedded", "cluster.initial_cluster": peers,
                "cluster.client_port": client, "cluster.peer_port": peer,
            }  # fmt: skip
            words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
            nodes[number] = ServerProcess(tmp_path / str(number), *words)
            stack.push(nodes[number])
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(ServerProcess.start, nodes.values()))
        braid = Braid(url=f"kafka://127.0.0.1:{nodes[1].ports['kafka']}")
        config = ClusterConfig(etcd=[f"http://127.0.0.1:{client}" for client, _ in there.values()])
        nodes[3].kill()

        def etcd() -> dict[str, bool]:
            with contextlib.suppress(EtcdError):  # the others elect a leader
                return {each.name: not each.trouble for each in asyncio.run(ask_members(config))}
            return {}

        wait_until(lambda: etcd() == {"1": True, "2": True, "3": False}, "the member has ended")
        wait_until(lambda: not braid.json("cluster", "nodes", schema="cluster-nodes")[2]["alive"], "fenced")
        file = tmp_path / "plan.json"
        file.write_text(braid.ok("cluster", "reassign", "plan", "--nodes", "1,2", "--replicas", "2"), encoding="utf-8")
        braid.ok("cluster", "reassign", "apply", str(file))
        wait_until(lambda: '"moving":[]' in braid.ok("cluster", "reassign", "watch", "--once", "-o", "json"), "moved")
        braid.ok("cluster", "remove", "3", "--yes")
        wait_until(lambda: etcd() == {"1": True, "2": True}, "the member is removed")
