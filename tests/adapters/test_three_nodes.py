"""Clients that know one server, at each of three real nodes: RustLog, Flux, Cursus, keys, and the commands of the shell."""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.adapters.cursus.drive import Client as CursusClient
from tests.adapters.cursus.drive import batch
from tests.adapters.kafka.asker import Asker
from tests.adapters.mlog.client import MlogClient
from tests.adapters.rustlog.client import Client as RustlogClient
from tests.cli.braid import Braid, url_of
from tests.server.etcd.members import Member, members
from tests.waiting import until

from braidlog import connect, kv
from braidlog.client.blocking import Client
from braidlog.client.drivers.cluster import LackingTopic
from braidlog.client.errors import ClientError
from braidlog.client.kv import commands as c
from braidlog.testing.cluster_process import NODES, ClusterProcess
from braidlog.testing.server import ServerProcess
from braidlog.wire.cursus.batch import read_batch
from braidlog.wire.kafka.messages import topics
from braidlog.wire.mlog import messages as mlog
from braidlog.wire.rustlog.messages import Form
from braidlog.wire.rustlog.messages import OffsetCommitResponse as RustlogCommitted

SECONDS_MAX = 60.0
SESSION = "consumer.session.timeout.ms"
VALUES = [b"%d" % number for number in range(30)]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with members(tmp_path_factory.mktemp("etcd"), 1) as started:
        yield started[0]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, etcd: Member) -> Iterator[ClusterProcess]:
    """All nodes run before and after a test."""
    with ClusterProcess(tmp_path_factory.mktemp("cluster"), etcd.url, prefix="forwarded") as nodes:
        with connect(nodes.url("kafka")) as client:
            client.admin.create_topic("orders", partitions=3)
            until(lambda: None not in leaders(client), "all partitions are led")
        yield nodes


def leaders(client: Client, topic: str = "orders") -> list[int | None]:
    found = [each for each in client.admin.describe_cluster().partitions if each.topic == topic]
    return [each.leader for each in sorted(found, key=lambda each: each.partition)]


def read(client: Client, topic: str, wanted: Sequence[bytes]) -> list[bytes | None]:
    """From the beginning, until all of these have come."""
    consumer = client.consumer()
    consumer.assign(topic, start="earliest")
    found: list[bytes | None] = []
    deadline = time.monotonic() + SECONDS_MAX
    while not {*wanted} <= {*found} and time.monotonic() < deadline:
        found += [record.value for record in consumer.poll(timeout=1.0)]
    return found


@pytest.mark.parametrize("dialect", ["rustlog", "flux"])
def test_any_node_serves_all_partitions(cluster: ClusterProcess, dialect: str) -> None:
    """Ten records through each node, to partitions that all of them lead; what was acknowledged is read through any."""
    topic = f"any-{dialect}"
    with connect(cluster.url("kafka")) as client:
        client.admin.create_topic(topic, partitions=3)
    for number in NODES:
        with connect(url_of(cluster[number], dialect)) as client:
            producer = client.producer()
            for value in VALUES[number * 10 - 10 : number * 10]:
                producer.send_and_wait(topic, value, key=value)
    for number in NODES:
        with connect(url_of(cluster[number], dialect)) as client:
            assert sorted(each or b"" for each in read(client, topic, VALUES)) == sorted(VALUES)


def test_a_group_of_flux_is_one_whichever_nodes_its_members_reached(cluster: ClusterProcess) -> None:
    with connect(url_of(cluster[2], "flux")) as client:
        producer = client.producer()
        for value in VALUES:
            producer.send_and_wait("grouped", value, key=value)
        found = list[bytes | None]()
        with client.consumer() as consumer:
            consumer.subscribe("grouped", group="g", start="earliest")
            while len(found) < len(VALUES):
                found += [record.value for record in consumer.poll(timeout=SECONDS_MAX)]
            consumer.commit()
        assert sorted(each for each in found if each) == sorted(VALUES)
    with connect(url_of(cluster[3], "flux")) as client, client.consumer() as consumer:
        consumer.subscribe("grouped", group="g", start="earliest")
        client.producer().send_and_wait("grouped", b"last")
        assert [record.value for record in consumer.poll(timeout=SECONDS_MAX)] == [b"last"]


def test_keys_are_the_same_at_any_node(cluster: ClusterProcess) -> None:
    for number in NODES:
        with kv.connect(url_of(cluster[number], "mayfly")) as keys:
            keys.set(f"k{number}", b"v")
            assert keys.incr("count") == number
    for number in NODES:
        with kv.connect(url_of(cluster[number], "mayfly")) as keys:
            assert [keys.get(f"k{each}") for each in NODES] == [b"v"] * 3


def test_mlogs_leader_serves_a_topic_that_was_acknowledged(cluster: ClusterProcess) -> None:
    """Its clients look for the leader once, and send there: on one node the next, at another the answer."""
    addresses = {cluster[number].address("mlog"): number for number in NODES}
    refused = []
    for number in range(15):
        name, at = f"served-{number}", number % 3 + 1
        with contextlib.closing(MlogClient(cluster[at])) as client:
            created = client.ask(mlog.CreateTopicRequest(name, number % 2 * 2))
            assert isinstance(created, mlog.CreateTopicResponse), created
        with contextlib.closing(MlogClient(cluster[at % 3 + 1])) as client:
            host, _, port = client.ask(mlog.FindTopicLeaderRequest(name)).leader_addr.rpartition(":")
        with contextlib.closing(MlogClient(cluster[addresses[host, int(port)]])) as client:
            answer = client.ask(mlog.ProduceRequest(name, b"v", mlog.AckMode.ALL))
            if not isinstance(answer, mlog.ProduceResponse):
                refused.append((number, at, answer))
    assert refused == []


@pytest.mark.parametrize("number", NODES)
def test_a_commit_to_what_does_not_exist_is_refused_alike_at_every_node(cluster: ClusterProcess, number: int) -> None:
    """For groups that all nodes coordinate, each once its coordinator serves it."""
    refusal = RustlogCommitted(success=False)
    for group in (f"g-{each}" for each in range(6)):
        for form in Form:
            with RustlogClient(cluster[number], form) as rustlog:
                until(partial(has_kept, rustlog, group), f"{group} is served")
                assert rustlog.commit(group, "absent", 1) == refusal
    with RustlogClient(cluster[number]) as rustlog:
        assert rustlog.commit("g-0", "orders", 1, partition=9) == refusal
    for group in (f"g-{each}" for each in range(6)):
        with contextlib.closing(MlogClient(cluster[number])) as client:
            refused = client.ask(mlog.CommitOffsetRequest("absent", group, 1))
            assert (refused.code, refused.message.partition(";")[0]) == (3, "no topic 'absent'")
        with CursusClient(cluster[number]) as asked:
            line = f"COMMIT_OFFSET topic=absent partition=0 group={group} offset=2"
            assert asked.ask(line) == "ERROR: topic_not_found topic=absent"


def has_kept(rustlog: RustlogClient, group: str) -> bool:
    return bool(rustlog.commit(group, "orders", 1) == RustlogCommitted(success=True))


def test_the_commands_work_through_the_url_of_any_node(cluster: ClusterProcess) -> None:
    for number in NODES:
        for dialect in ("rustlog", "flux"):
            braid = Braid(url=url_of(cluster[number], dialect))
            braid.ok("produce", "orders", stdin=f"{dialect} {number}\n")
        at = ("--url", url_of(cluster[number], "mayfly"))
        keys = Braid()
        keys.ok("kv", "set", "shell", f"{number}", *at)
        assert keys.ok("kv", "get", "shell", *at).strip() == f"{number}"
        named = {f"named:{number}:{each}" for each in range(20)}  # in many slots, of all nodes
        with kv.connect(at[1]) as store:
            assert all(store.run([c.set_(each, "v") for each in named]))
        for url in (at[1], cluster.url("mayfly")):  # of version 1, which is handed on, and of version 2, which is told
            assert set(keys.ok("kv", "keys", f"named:{number}:*", "--url", url).split()) == named
    wanted = sorted(f"{dialect} {number}" for number in NODES for dialect in ("rustlog", "flux"))
    for number in NODES:
        for dialect in ("rustlog", "flux"):
            braid = Braid(url=url_of(cluster[number], dialect))
            assert sorted(braid.ok("consume", "orders").splitlines()) == wanted


def test_settings_of_a_group_that_librdkafka_has_set_hold_on_all_nodes(cluster: ClusterProcess) -> None:
    admin = AdminClient({"bootstrap.servers": cluster[1].bootstrap(), "log_level": 0})
    entry = ConfigEntry(SESSION, "50000", incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.GROUP, "grouped", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([wanted]).values():
        future.result(SECONDS_MAX)

    def told(number: int) -> str:
        with contextlib.closing(Asker(cluster[number].address("kafka"))) as asker:
            asked = topics.DescribeConfigsRequest([topics.DescribeConfigsRequestResource(32, "grouped", [SESSION])])
            return str(asker.ask(asked).results[0].configs[0].value)

    for number in NODES:
        until(lambda number=number: told(number) == "50000", f"node {number} knows of it")  # type: ignore[misc]


def test_topics_made_while_nodes_are_away_or_drain_have_all_replicas_in_the_end(cluster: ClusterProcess) -> None:
    with connect(cluster.url("kafka")) as client:
        admin = client.admin

        def counted(topic: str, field: str) -> set[int]:
            return {len(getattr(each, field)) for each in admin.describe_cluster().partitions if each.topic == topic}

        cluster[3].kill()
        until(lambda: not all(each.alive for each in admin.describe_cluster().nodes), "node 3 is fenced")
        with contextlib.closing(Asker(cluster[1].address("kafka"))) as asker:
            three = topics.CreateTopicsRequestTopic("away", num_partitions=2, replication_factor=3)
            (created,) = asker.ask(topics.CreateTopicsRequest([three])).topics
        assert (created.error_code, created.replication_factor) == (0, 3)
        assert counted("away", "replicas") == {3}
        producer = client.producer(acks="all")
        for value in VALUES:
            producer.send_and_wait("away", value, key=value)
        admin.drain_node(2)
        admin.create_topic("drained", partitions=2)
        assert counted("drained", "replicas") == {2}
        assert admin.describe_cluster().lacking == (LackingTopic("drained", 3, 2),)
        braid = Braid(url=cluster.url("kafka"))
        named = "drained (replication factor 3)"
        assert f"fewer replicas than the replication factor: {named}" in braid("cluster", "doctor").stdout
        assert f"2 partitions below the replication factor: {named}" in braid.ok("cluster", "status")
        cluster[3].restart()
        admin.drain_node(2, is_draining=False)
        until(lambda: counted("away", "in_sync") == counted("drained", "in_sync") == {3}, "all replicas are in sync")
        until(lambda: not admin.describe_cluster().lacking, "no topic lacks a replica")
        assert named not in braid("cluster", "doctor").stdout + braid.ok("cluster", "status")
        assert sorted(each or b"" for each in read(client, "away", VALUES)) == sorted(VALUES)


def test_what_was_acknowledged_through_another_node_outlives_the_leader(cluster: ClusterProcess) -> None:
    """What is asked while nobody leads is held, and refused if that takes longer."""
    with connect(cluster.url("kafka")) as client:
        client.admin.create_topic("outlived")
        until(lambda: leaders(client, "outlived") != [None], "it is led")
        (leader,) = leaders(client, "outlived")
    assert leader is not None
    with connect(url_of(cluster[leader % 3 + 1], "rustlog")) as client:
        producer, kept = client.producer(), list[bytes]()

        def keep(count: int) -> None:
            for _ in range(1000):
                value = b"%d" % len(kept)
                with suppress(ClientError):  # it was sent to a node that has died since: nobody knows
                    producer.send_and_wait("outlived", value, partition=0)
                    kept.append(value)
                if len(kept) == count:
                    return
            raise AssertionError(f"only {kept} were acknowledged")

        keep(10)
        cluster[leader].kill()
        keep(20)
        cluster[leader].restart()
        found = read(client, "outlived", kept)
        assert list(dict.fromkeys(found)) == kept, "in order; what nobody knew of may be there before its repetition"


# -- Cursus ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(cluster: ClusterProcess) -> Iterator[CursusClient]:
    """Node 1 alone."""
    with CursusClient(cluster[1]) as client:
        yield client


def partitions(asked: CursusClient, topic: str) -> list[dict[str, Any]]:
    """As the metadata has them, once all replicas are in sync."""

    def whole() -> list[dict[str, Any]]:
        status = json.loads(asked.ok("CLUSTER_STATUS").partition("=")[2])
        found = [each for each in status["partitions"] if each["topic"] == topic]
        return found if found and all(each["healthy"] for each in found) else []

    return until(whole, f"{topic} is whole", SECONDS_MAX)


def elect(asked: CursusClient, topic: str, number: int, node: str) -> None:
    """Once the node is in sync."""
    line = f"ELECT_LEADER topic={topic} partition={number} broker={node}"
    until(lambda: asked.ask(line).startswith("OK"), f"node {node} leads {topic}/{number}", SECONDS_MAX)


def test_published_producers_of_cursus_go_on_after_leaders_have_moved(
    cluster: ClusterProcess, asked: CursusClient
) -> None:
    """Each knows one node, and has asked once who leads. All is acknowledged, and stored once."""
    cursus = pytest.importorskip("cursus", reason="pip install cursus-client")
    topic, count = "moved", 600
    asked.ok(f"CREATE topic={topic} partitions=3")
    partitions(asked, topic)
    with ExitStack() as stack:
        producers = [stack.enter_context(producer_of(cursus, cluster[number], topic)) for number in NODES]

        def acknowledged() -> int:
            return sum(each.unique_ack_count for each in producers)

        for number in range(count):
            producers[number % 3].send(str(number), key=f"key {number}")
            if number % 100 == 50:
                for each in partitions(asked, topic):
                    elect(asked, topic, each["partition"], next(node for node in each["isr"] if node != each["leader"]))
                until(partial(has_more, acknowledged, number), "no producer stalls", SECONDS_MAX)
        until(lambda: acknowledged() == count, "all is acknowledged", SECONDS_MAX)
    stored = [record.payload.decode() for number in range(3) for record in asked.consume(topic, number)]
    assert sorted(stored) == sorted(map(str, range(count)))


def has_more(acknowledged: Callable[[], int], than: int) -> bool:
    return acknowledged() > than


def producer_of(cursus: Any, server: ServerProcess, topic: str) -> Any:
    config = cursus.ProducerConfig(
        topic,
        [f"127.0.0.1:{server.ports['cursus']}"],
        partitions=3,
        acks=cursus.Acks.ALL,
        idempotent=True,
        batch_size=5,
        linger_ms=1,
        max_backoff_ms=100,
    )
    return cursus.Producer(config)


def test_a_transaction_of_cursus_counts_what_all_leaders_have(cluster: ClusterProcess, asked: CursusClient) -> None:
    asked.ok("CREATE topic=counted partitions=3")
    at = {each["partition"]: each["leader"] for each in partitions(asked, "counted")}
    for number in range(3):
        if at[number] != str(number + 1):
            elect(asked, "counted", number, str(number + 1))
    for number in NODES:
        with CursusClient(cluster[number]) as client:
            began = client.ok(f"INIT_PRODUCER_ID transactional_id=t-{number}")
            who = f"transactional_id=t-{number} {began.split(' ', 2)[2]}"
            client.ok(f"BEGIN_TXN {who}")
            for partition in range(3):
                client.ok(f"TXN_PUBLISH {who} topic=counted partition={partition} seqNum=1 message=m")
            assert "messages=3 offsets=0" in client.ok(f"TXN_STATUS transactional_id=t-{number}")
            assert "state=committed messages=3 offsets=0" in client.ok(f"END_TXN {who} result=commit")
    ends = [each.rpartition("=")[2] for each in asked.ok("LIST_OFFSETS topic=counted").split(",")]
    assert len(set(ends)) == 1, "the same of each"
    assert [len(asked.consume("counted", number)) for number in range(3)] == [3, 3, 3]


def test_groups_of_cursus_are_listed_by_any_node(cluster: ClusterProcess, asked: CursusClient) -> None:
    names = [f"listed-{number}" for number in range(20)]  # kept by all nodes
    for name in names:
        assert "assignments=[0 1 2]" in asked.ok(f"JOIN_GROUP topic=orders group={name} member=m")
    for number in NODES:
        with CursusClient(cluster[number]) as client:
            listed = client.ok("LIST_GROUPS").rpartition("=")[2].split(",")
            assert set(names) <= set(listed)


def test_a_stream_of_cursus_begins_where_its_group_has_committed_whichever_node_keeps_that(
    cluster: ClusterProcess, asked: CursusClient
) -> None:
    asked.ok("CREATE topic=streamed partitions=1")
    (known,) = partitions(asked, "streamed")
    asked.ack(batch("streamed", b"0", b"1", b"2", acks="all"))
    leader = int(known["leader"])
    for name in [f"streaming-{number}" for number in range(6)]:  # kept by all nodes
        asked.ok(f"COMMIT_OFFSET topic=streamed partition=0 group={name} offset=2")
        with CursusClient(cluster[leader]) as client:
            client.send(f"STREAM topic=streamed partition=0 group={name}")
            assert [each.payload for each in read_batch(client.read())[0].records] == [b"2"]
    with CursusClient(cluster[leader % 3 + 1]) as client:
        assert client.ask("STREAM topic=streamed partition=0").startswith("ERROR: NOT_LEADER LEADER_IS 127.0.0.1:")


def test_a_wait_at_another_node_ends_when_its_client_closes(cluster: ClusterProcess, asked: CursusClient) -> None:
    """A client that has sent all it will send reads its answer long before the wait is over."""
    asked.ok("CREATE topic=waited partitions=1")
    (known,) = partitions(asked, "waited")
    with CursusClient(cluster[int(known["leader"]) % 3 + 1]) as client:
        client.send("CONSUME topic=waited partition=0 offset=0 wait_ms=30000")
        client.socket.shutdown(socket.SHUT_WR)
        assert read_batch(client.read())[0].records == ()
