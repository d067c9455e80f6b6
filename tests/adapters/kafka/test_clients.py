"""Foreign clients as they are: what each writes, each reads. (Groups, transactions and administration: tests/interop.)"""

import asyncio
import time
import uuid
import warnings
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from braidlog.testing.server import ServerProcess

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kafka-python reads its schemas in an old way
    import kafka

COUNT = 200
SECONDS_MAX = 60
VALUES = [b"value %d " % number * 20 for number in range(COUNT)]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def host(server: ServerProcess) -> str:
    return f"127.0.0.1:{server.ports['kafka']}"


def write_confluent(address: str, topic: str, codec: str) -> None:
    failed: list[Any] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "compression.type": codec, "enable.idempotence": True, "linger.ms": 5}
    )
    for value in VALUES:
        producer.produce(topic, value, key=b"k", headers={"h": b"1"}, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(SECONDS_MAX) == 0
    assert failed == [None] * COUNT


def write_kafka_python(address: str, topic: str, codec: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=address, compression_type=None if codec == "none" else codec)
    sent = [producer.send(topic, value, key=b"k") for value in VALUES]
    assert [each.get(SECONDS_MAX).offset for each in sent] == list(range(COUNT))
    producer.close()


def write_aiokafka(address: str, topic: str, codec: str) -> None:
    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, compression_type=None if codec == "none" else codec, enable_idempotence=True
        )
        await producer.start()
        try:
            sent = [await producer.send(topic, value, key=b"k") for value in VALUES]
            assert [(await each).offset for each in sent] == list(range(COUNT))
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(write(), SECONDS_MAX))


def read_confluent(address: str, topic: str, offset: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
    found: list[bytes] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < COUNT - offset and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None
            assert message.offset() == offset + len(found)
            found.append(message.value() or b"")
    consumer.close()
    return found


def read_kafka_python(address: str, topic: str, offset: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, consumer_timeout_ms=SECONDS_MAX * 1000)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, offset)
    found: list[bytes] = []
    for record in consumer:
        assert record.offset == offset + len(found)
        found.append(record.value)
        if len(found) == COUNT - offset:
            break
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: COUNT}
    consumer.close()
    return found


def read_aiokafka(address: str, topic: str, offset: int) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address, isolation_level="read_committed")
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            return [(await consumer.getone()).value for _ in range(COUNT - offset)]
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(read(), SECONDS_MAX))


WRITERS = {"confluent": write_confluent, "kafka-python": write_kafka_python, "aiokafka": write_aiokafka}
READERS = (read_confluent, read_kafka_python, read_aiokafka)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_one_writes_all_read(braid_server_shared: ServerProcess, writer: str, codec: str) -> None:
    address = host(braid_server_shared)
    topic = f"{writer}-{codec}-{uuid.uuid4().hex[:8]}"
    WRITERS[writer](address, topic, codec)
    for read in READERS:
        assert read(address, topic, 0) == VALUES
        assert read(address, topic, 137) == VALUES[137:]  # most likely within a batch


def test_times_are_found_and_metadata_read(braid_server_shared: ServerProcess) -> None:
    address = host(braid_server_shared)
    topic = f"times-{uuid.uuid4().hex[:8]}"
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for number in range(10):
        producer.produce(topic, b"x", timestamp=1_700_000_000_000 + number * 1000)
    assert producer.flush(SECONDS_MAX) == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "none"})
    asked = [confluent_kafka.TopicPartition(topic, 0, 1_700_000_000_000 + 3500)]
    assert [each.offset for each in consumer.offsets_for_times(asked, SECONDS_MAX)] == [4]
    assert consumer.get_watermark_offsets(asked[0], SECONDS_MAX) == (0, 10)
    consumer.close()
    listed = AdminClient({"bootstrap.servers": address}).list_topics(timeout=SECONDS_MAX)
    assert topic in listed.topics
    assert [(each.id, each.port) for each in listed.brokers.values()] == [(0, braid_server_shared.ports["kafka"])]
