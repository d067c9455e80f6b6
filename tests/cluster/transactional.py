"""What librdkafka does with transactions over the partitions of three real nodes."""

from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from tests.waiting import until

from braidlog.client.blocking import Client
from braidlog.testing.cluster_process import ClusterProcess

PARTITIONS = 6
NODES = (1, 2, 3)
SECONDS_MAX = 60.0
TRIES_MAX = 5
NEVER_FORGETS = {"metadata.recovery.strategy": "none"}
"""When all its connections are down at once librdkafka 2.11 to 2.16 begins anew with the addresses it was given, forgets nodes
that it knew, and waits for ever for one of them that was a group's coordinator (its issues 5456 and 5511)."""


def addresses(cluster: ClusterProcess) -> str:
    return cluster.url("kafka").removeprefix("kafka://")


def transactional(cluster: ClusterProcess, name: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": addresses(cluster),
            "transactional.id": name,
            "transaction.timeout.ms": 600_000,  # a slow machine is no reason to be fenced
            "log_level": 0,
            **NEVER_FORGETS,
        }
    )
    producer.init_transactions(SECONDS_MAX)
    return producer


def made(client: Client, topic: str, settings: Mapping[str, str] | None = None) -> None:
    """Led by all nodes, also where one of them was taken for dead meanwhile because the machine is slow."""
    until(lambda: sum(each.alive for each in client.admin.describe_cluster().nodes) == len(NODES), "three nodes")
    client.admin.create_topic(topic, partitions=PARTITIONS, settings=settings)

    def is_led_by_all() -> bool:
        found = [each for each in client.admin.describe_cluster().partitions if each.topic == topic]
        if not found or any(len(each.in_sync) < len(NODES) for each in found):
            return False
        if {each.leader for each in found} == {*NODES}:
            return True
        client.admin.elect_preferred()
        return False

    until(is_led_by_all, "led by all")


def seen(cluster: ClusterProcess, topic: str, count: int) -> list[bytes | None]:
    """The values of those."""
    return sorted((each.value() for each in committed(cluster, topic, count)), key=lambda value: value or b"")


def committed(cluster: ClusterProcess, topic: str, count: int) -> list[Message]:
    """What a reader of committed records finds in all partitions, up to their ends; so many at least."""
    reader = Consumer(
        {
            "bootstrap.servers": addresses(cluster),
            "group.id": "reads " + topic,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    found: list[Message] = []
    ended: set[int] = set()
    try:
        reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])

        def more() -> bool:
            for message in reader.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition() or 0)
            return len(found) >= count and len(ended) == PARTITIONS

        until(more, f"{count} records of {topic}")
    finally:
        reader.close()
    return found


def _resumed(call: Callable[..., None], *arguments: object) -> None:
    """What has taken too long goes on when it is called again."""
    for _ in range(TRIES_MAX):
        try:
            call(*arguments, SECONDS_MAX)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return
    raise TimeoutError(call)


class Job:
    """Consume, transform, produce: each input counts once, whatever happens in between."""

    def __init__(self, cluster: ClusterProcess, at_once: int = 5) -> None:
        """So many inputs in a transaction, at most."""
        self._cluster = cluster
        self._at_once = at_once
        self._held: list[Message] = []
        """Read, and in no transaction yet."""
        self.producer = transactional(cluster, "job")
        self.consumer = self._joined()

    def _joined(self) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": addresses(self._cluster),
                "group.id": "job",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 30_000,
                "log_level": 0,
                **NEVER_FORGETS,
            }
        )
        consumer.subscribe(["in"], on_revoke=lambda *_: self._held.clear(), on_lost=lambda *_: self._held.clear())
        return consumer

    def step(self) -> int:
        """One transaction; returns how many inputs it carried. One that cannot be committed is aborted, and read again."""
        messages = self._read()
        if not messages:
            return 0
        try:
            self.producer.begin_transaction()
            self._carry(messages)
            _resumed(self.producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            _resumed(self.producer.abort_transaction)
            self.consumer.close()
            self.consumer = self._joined()
            return 0
        return len(messages)

    def _read(self) -> list[Message]:
        """One by one: `consume` of librdkafka 2.16 may wait for ever for a lock of its own when a leader changes.

        What was read before a rebalance is given up: it may be read again, by this member too."""
        self._held.clear()
        for number in range(self._at_once):
            message = self.consumer.poll(0.5 if number == 0 else 0)
            if message is not None and message.error() is None:
                self._held.append(message)
        return list(self._held)

    def _carry(self, messages: Sequence[Message]) -> None:
        for message in messages:
            value = message.value()
            assert value is not None
            self.producer.produce("out", b"done " + value, partition=int(value) % PARTITIONS)
        places = [TopicPartition("in", m.partition() or 0, (m.offset() or 0) + 1) for m in messages]
        latest = {each.partition: each for each in places}
        group = self.consumer.consumer_group_metadata()
        _resumed(self.producer.send_offsets_to_transaction, list(latest.values()), group)

    def close(self) -> None:
        self.consumer.close()
