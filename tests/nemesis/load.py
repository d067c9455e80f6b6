"""Clients of a cluster: the five doors of the log with all in-sync replicas asked for, librdkafka in bulk, groups and keys.

A client of a door knows no leader: it goes from node to node until one takes its records.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from confluent_kafka import Producer
from tests.adapters.cursus.drive import batch
from tests.adapters.doors import DOORS, CursusDoor, FluxDoor, MlogDoor
from tests.adapters.kafka.client import Client as KafkaClient
from tests.adapters.mayfly.client import Client as MayflyClient
from tests.attack.clients import (
    TROUBLE,
    Client,
    Committer,
    Counter,
    Leaser,
    Writer,
    look_at_commit,
    look_at_counter,
    read_whole,
)
from tests.attack.foreign import RDKAFKA, SECONDS_MAX, IdempotentProducer, read_to_end, wait_for_transactions
from tests.histories.history import Append, History, Read, Resends, Seen
from tests.nemesis.keys import HASH, LIST, FieldWriter, KeyCaller, Keys, Pusher
from tests.nemesis.nodes import NemesisCluster
from tests.nemesis.replicas import leader_of
from tests.nemesis.topics import NAME, TopicCaller

import braidlog
from braidlog.client.blocking import Delivery
from braidlog.client.drivers.contract import Acks
from braidlog.client.engine.delivery import Retries
from braidlog.client.errors import ClientError
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.messages.cluster import FindCoordinatorRequest
from braidlog.wire.mlog import messages as mlog

IN_FLIGHT_MAX = 2_000
WINDOW = 20
TURN_SECONDS = 0.01
IDLE_SECONDS = 0.05
READ_SECONDS_MAX = 30.0
CALLERS = 3
"""Clients of one key."""
PAIR = 2
"""Of one list, one hash, and one topic's name."""


class MlogDoorToAll(MlogDoor):
    def send(self, topic: str, value: str) -> None:
        self._sent.append(value)
        self._client.send(mlog.ProduceRequest(topic, value.encode(), mlog.AckMode.ALL))

    def read(self, topic: str) -> dict[int, str]:
        """Without the name of a consumer: its progress would be kept by another node than the one that has the records."""
        found: dict[int, str] = {}
        while True:
            answer = self._client.ask(mlog.FetchBatchRequest(topic, "", len(found), 5000))
            assert isinstance(answer, mlog.FetchBatchResponse), answer
            if not answer.entries:
                return found
            found |= {each.offset: (each.value or b"").decode() for each in answer.entries if each is not None}


class CursusDoorToAll(CursusDoor):
    def send(self, topic: str, value: str) -> None:
        self._sent.append(value)
        self._client.send(batch(topic, value.encode(), acks="all"))


class FluxDoorToAll(FluxDoor):
    def send(self, topic: str, value: str) -> None:
        self._sent[self._talk.begin("PRODUCE", f"{topic} k:{value} acks=all")] = value


TO_ALL = {**DOORS, "mlog": MlogDoorToAll, "cursus": CursusDoorToAll, "flux": FluxDoorToAll}
"""RustLog's document has no such word: what it promises is the node's choice."""


class AnyNode(ServerProcess):
    """Where clients are told to go: to one node after the other; those that find the others by themselves are told all."""

    def __init__(self, cluster: NemesisCluster) -> None:
        super().__init__("")
        self._cluster = cluster
        self._turns = itertools.cycle(cluster.nodes.values())
        self._lock = threading.Lock()

    def address(self, dialect: str) -> tuple[str, int]:
        with self._lock:
            return next(self._turns).address(dialect)

    def bootstrap(self, dialect: str = "kafka") -> str:
        return ",".join(node.bootstrap(dialect) for node in self._cluster.nodes.values())


class CoordinatorOf(AnyNode):
    """Where a group is kept: asked of one node after the other."""

    def __init__(self, cluster: NemesisCluster, group: str) -> None:
        super().__init__(cluster)
        self._group = group

    def address(self, dialect: str) -> tuple[str, int]:
        with KafkaClient(AnyNode(self._cluster)) as client:
            found = client.ask(FindCoordinatorRequest(self._group), 1)
        assert found.error_code == 0, found
        return self._cluster[found.node_id].address(dialect)


class DoorWriter(Writer):
    doors = TO_ALL
    pause_seconds = 0.02

    def __init__(self, cluster: NemesisCluster, history: History, dialect: str, topic: str, name: str) -> None:
        super().__init__(AnyNode(cluster), history, dialect, topic, name)


class BulkProducer(IdempotentProducer):
    """librdkafka, which follows leaders. It sends what it was asked for by `more`, and a record now and then."""

    def __init__(self, cluster: NemesisCluster, history: History, topic: str, name: str) -> None:
        super().__init__(AnyNode(cluster), history, topic, name)
        self._wanted = self._due = 0
        self.errors: list[str] = []
        self.pace = 5
        """Records a turn."""

    def more(self, records: int) -> None:
        self._wanted = self._number + records
        self._due = self.acknowledged + records
        self.pace = max(records // 400, 5)

    @property
    def is_behind(self) -> bool:
        """Whether some of what it was asked for is not acknowledged yet."""
        return self.acknowledged < self._due

    def produce(self) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": SECONDS_MAX * 1000}
        producer = Producer({"bootstrap.servers": self.node.bootstrap(), **RDKAFKA, **settings})
        while not self.stop.is_set():
            is_idle = self._number >= self._wanted
            for _ in range(1 if is_idle else self.pace):
                if self._open < IN_FLIGHT_MAX:
                    append = self.next_append()
                    producer.produce(
                        self._topic, append.value.encode(), partition=0, on_delivery=self._delivery(append)
                    )
            producer.poll(IDLE_SECONDS if is_idle else TURN_SECONDS)
            self.check()
        producer.flush(SECONDS_MAX)

    def _delivery(self, append: Append) -> Any:
        def delivered(error: object, message: Any) -> None:
            if error is not None:
                self.errors.append(f"{append.value}: {error}")
                self.troubles.append(str(error))
                self.completed(append, -1)
            else:
                self.completed(append, message.offset())

        return delivered


class RetryingWriter(IdempotentProducer):
    """Our own client: it sends again until a record is acknowledged, with a number where the dialect has one, else perhaps twice.
    `errors` is what it told whoever uses it."""

    pause_seconds = 0.01

    def __init__(self, cluster: NemesisCluster, history: History, dialect: str, topic: str, name: str) -> None:
        super().__init__(AnyNode(cluster), history, topic, name)
        self._dialect = dialect
        self.errors: list[str] = []

    def produce(self) -> None:
        waiting: deque[tuple[Append, Delivery]] = deque()
        with braidlog.connect(f"{self._dialect}://{self.node.bootstrap(self._dialect)}") as client:
            able = client.capabilities
            if not able.idempotence:
                self.history.resends[self.name] = Resends.AT_LEAST_ONCE
            acks = Acks.ALL if Acks.ALL in able.acks else None
            producer = client.producer(acks=acks, retries=Retries.AT_LEAST_ONCE)
            key = b"one" if able.keys else None  # in flux order is a key's
            while waiting or not self.stop.is_set():
                while len(waiting) < WINDOW and not self.stop.is_set():
                    append = self.next_append()
                    waiting.append((append, producer.send(self._topic, append.value.encode(), key=key)))
                    self.stop.wait(self.pause_seconds)
                if waiting:
                    self._take(*waiting.popleft())

    def _take(self, append: Append, delivery: Delivery) -> None:
        try:
            offset = delivery.result().offset
        except ClientError as error:
            self.errors.append(f"{append.value}: {type(error).__name__}: {error}"[:300])
            self.completed(append, -1)
        else:
            self.completed(append, offset)


def clients_of_state(cluster: NemesisCluster, history: History, topic: str, round_number: int) -> list[Client]:
    """Groups on five doors, each at the node that keeps it; and keys and names of topics, through any node."""
    node, keys, names = AnyNode(cluster), Keys(f"key-{round_number}"), Keys(f"{NAME}{round_number}")
    groups = {dialect: f"group-{dialect}-{round_number}" for dialect in sorted(DOORS)}
    return [
        *(Committer(CoordinatorOf(cluster, groups[each]), history, each, topic, groups[each]) for each in groups),
        Counter(node, history, f"counter-{round_number}"),
        Leaser(node, history, f"lease-{round_number}"),
        *(KeyCaller(node, history, keys, f"caller-{round_number}-{each}") for each in range(CALLERS)),
        *(TopicCaller(node, history, names, f"topics-{round_number}-{each}") for each in range(PAIR)),
        *(Pusher(node, history, f"{LIST}{round_number}", f"pusher-{round_number}-{each}") for each in range(PAIR)),
        *(FieldWriter(node, history, f"{HASH}{round_number}", f"field-{round_number}-{each}") for each in range(PAIR)),
    ]


def look_at_all(cluster: NemesisCluster, clients: Iterable[Client], topic: str) -> Iterator[Seen | Read]:
    """What the groups, counters, lists and hashes among them are at now."""
    node = AnyNode(cluster)
    for client in clients:
        if isinstance(client, Committer):
            yield look_at_commit(client.node, client.dialect, client.name, topic)
        elif isinstance(client, Counter):
            yield look_at_counter(node, client.name)
        elif isinstance(client, Pusher | FieldWriter):
            with MayflyClient(node) as connected:
                yield from client.look(connected)


def read_committed_through(cluster: NemesisCluster, topic: str) -> Read:
    wait_for_transactions(leader_of(cluster, topic), topic)
    return read_to_end(AnyNode(cluster), topic, committed=True)


def read_through(cluster: NemesisCluster, dialect: str, topic: str) -> Read:
    """Everything there is of a topic, from the node that gives it."""
    if dialect == "kafka":
        return read_to_end(AnyNode(cluster), topic, committed=False)
    return _first(cluster, lambda node: read_whole(node, dialect, topic, last=True, doors=TO_ALL))


def _first(cluster: NemesisCluster, read: Any) -> Read:
    """The first node's answer that has one; who leads may be about to change."""
    deadline = time.monotonic() + READ_SECONDS_MAX
    refusals: Iterable[str] = ()
    while time.monotonic() < deadline:
        refusals = []
        for node in cluster.nodes.values():
            try:
                found: Read = read(node)
            except TROUBLE as error:
                refusals.append(f"node {node.number}: {type(error).__name__}: {error}"[:200])
            else:
                return found
        threading.Event().wait(IDLE_SECONDS)
    raise ConnectionError("; ".join(refusals))
