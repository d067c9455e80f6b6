"""What librdkafka does with transactions over the partitions of three real nodes."""

from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from tests.cli.braid import until

from braidlog.client.blocking import Client
from braidlog.testing.cluster_process import ClusterProcess

PARTITIONS = 6
NODES = (1, 2, 3)
SECONDS_MAX = 60.0


def addresses(cluster: ClusterProcess) -> str:
    return cluster.url("kafka").removeprefix("kafka://")


def transactional(cluster: ClusterProcess, name: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": addresses(cluster),
            "transactional.id": name,
            "transaction.timeout.ms": 60_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(SECONDS_MAX)
    return producer


def made(client: Client, topic: str) -> None:
    """Led by all nodes."""
    client.admin.create_topic(topic, partitions=PARTITIONS)

    def leaders() -> set[int | None]:
        found = [each for each in client.admin.describe_cluster().partitions if each.topic == topic]
        return {each.leader for each in found if len(each.in_sync) == len(NODES)}

    until(lambda: leaders() == {*NODES}, "led by all")


def seen(cluster: ClusterProcess, topic: str, count: int) -> list[bytes | None]:
    """What a reader of committed records finds in all partitions, up to their ends."""
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
    found: list[bytes | None] = []
    ended: set[int] = set()
    try:
        reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])

        def more() -> bool:
            for message in reader.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    found.append(message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition() or 0)
            return len(found) >= count and len(ended) == PARTITIONS

        until(more, f"{count} records of {topic}")
    finally:
        reader.close()
    return sorted(found, key=lambda value: value or b"")


class Job:
    """Consume, transform, produce: each input counts once, whatever happens in between."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self._cluster = cluster
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
            }
        )
        consumer.subscribe(["in"])
        return consumer

    def step(self) -> int:
        """One transaction; returns how many inputs it carried. One that cannot be committed is aborted, and read again."""
        messages = [each for each in self.consumer.consume(5, 0.5) if each.error() is None]
        if not messages:
            return 0
        try:
            self.producer.begin_transaction()
            self._carry(messages)
            self.producer.commit_transaction(SECONDS_MAX)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.producer.abort_transaction(SECONDS_MAX)
            self.consumer.close()
            self.consumer = self._joined()
            return 0
        return len(messages)

    def _carry(self, messages: Sequence[Message]) -> None:
        for message in messages:
            value = message.value()
            assert value is not None
            self.producer.produce("out", b"done " + value, partition=int(value) % PARTITIONS)
        places = [TopicPartition("in", m.partition() or 0, (m.offset() or 0) + 1) for m in messages]
        latest = {each.partition: each for each in places}
        group = self.consumer.consumer_group_metadata()
        self.producer.send_offsets_to_transaction(list(latest.values()), group, SECONDS_MAX)

    def close(self) -> None:
        self.consumer.close()
