"""Our client on the log protocols, across the kill of a node that leads: three real processes, a real etcd."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.server.etcd.members import members
from tests.waiting import until

from braidlog import connect
from braidlog.client.blocking import Client
from braidlog.codec.crc import crc32c
from braidlog.testing.cluster_process import NODES, ClusterProcess

SECONDS_MAX = 60.0
KILLED = 3
PRODUCERS: dict[str, dict[str, Any]] = {
    "kafka": {"idempotent": True},
    "cursus": {},
    "mlog": {"acks": "all", "retries": "at-least-once"},
}
"""Those that are idempotent store nothing twice; the others say that they may."""
ONCE = ("kafka", "cursus")
RECORDS = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    folder = tmp_path_factory.mktemp("cluster")
    with members(folder, 1) as (etcd,), ClusterProcess(folder / "nodes", etcd.url) as nodes:
        yield nodes


def led_by(number: int, start: str) -> str:
    """A name whose topic is led by this node at first."""
    names = (f"{start}-{at}" for at in range(100))
    return next(name for name in names if crc32c(name.encode()) % len(NODES) == NODES.index(number))


def topic_of(dialect: str) -> str:
    return led_by(KILLED, dialect)


def create_topics(clients: dict[str, Client], cluster: ClusterProcess) -> None:
    """By each protocol its own, but mlog's, which would have one replica; all nodes know of them, and one leads them all."""
    topics = {topic_of(dialect) for dialect in clients}
    for dialect, client in clients.items():
        creator = clients["kafka"] if dialect == "mlog" else client
        creator.admin.create_topic(topic_of(dialect), partitions=1)
    for number in NODES:
        with connect(f"kafka://127.0.0.1:{cluster[number].ports['kafka']}") as one:

            def led(one: Client = one) -> list[int | None]:
                return [each.leader for each in one.admin.describe_cluster().partitions if each.topic in topics]

            until(lambda led=led: led() == [KILLED] * len(topics), f"topics on node {number}")  # type: ignore[misc]


class Flow:
    """A producer and a consumer of one topic over one protocol."""

    def __init__(self, dialect: str, client: Client) -> None:
        self.dialect = dialect
        self.topic = topic_of(dialect)
        self.sent: list[Any] = []
        self.seen: list[bytes | None] = []
        self._producer = client.producer(**PRODUCERS[dialect])
        self._consumer = client.consumer()
        self._consumer.assign(self.topic, start="earliest")

    def send(self, count: int) -> None:
        first = len(self.sent)
        self.sent += [self._producer.send(self.topic, b"%d" % number) for number in range(first, first + count)]

    def read(self) -> None:
        """Until everything that was sent is acknowledged, and seen."""
        wanted = [b"%d" % number for number in range(len(self.sent))]
        for each in self.sent:
            each.result()
        deadline = time.monotonic() + SECONDS_MAX
        while len(set(self.seen)) < len(wanted):
            self.seen += [record.value for record in self._consumer.poll(timeout=1.0)]
            assert time.monotonic() < deadline, f"{self.dialect}: {len(set(self.seen))} of {len(wanted)}"
        assert list(dict.fromkeys(self.seen)) == wanted, self.dialect
        if self.dialect in ONCE:
            assert self.seen == wanted, self.dialect


def test_producers_and_consumers_of_every_protocol_go_on_when_a_leader_is_killed(cluster: ClusterProcess) -> None:
    with ExitStack() as stack:
        clients = {dialect: stack.enter_context(connect(cluster.url(dialect))) for dialect in PRODUCERS}
        admin = clients["kafka"].admin
        create_topics(clients, cluster)
        flows = [Flow(dialect, client) for dialect, client in clients.items()]
        for flow in flows:
            flow.send(RECORDS // 3)
            flow.read()
        for flow in flows:
            flow.send(RECORDS // 3)
        cluster[KILLED].kill()
        for flow in flows:
            flow.read()
        topics = {flow.topic for flow in flows}
        assert KILLED not in {each.leader for each in admin.describe_cluster().partitions if each.topic in topics}
        cluster[KILLED].restart()
        for flow in flows:
            flow.send(RECORDS // 3)
            flow.read()
