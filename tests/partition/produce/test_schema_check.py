"""A topic that asks for schemas takes values of its subject's schemas alone, whatever door they come through."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import braidlog
from braidlog.client.errors import ClientError
from braidlog.partition.produce.append import HERE_BYTES_MAX
from braidlog.testing.server import ServerProcess

SECONDS_MAX = 60
OTHERS = ("mlog", "rustlog", "cursus", "flux")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("checked")
    with ServerProcess(folder, admin=True) as running:
        yield running


@pytest.fixture(scope="module")
def registry(node: ServerProcess) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": node.registry_url}) as made:
        yield made


def create(node: ServerProcess, topic: str, setting: str = "braidlog.value.schema.check", **more: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{node.ports['kafka']}"})
    made = admin.create_topics([NewTopic(topic, 1, config={setting: "true", **more})])
    made[topic].result(SECONDS_MAX)
    return admin


def produce(node: ServerProcess, topic: str, *values: bytes | None, **config: object) -> KafkaError | None:
    """What the broker says to values that are sent as one batch."""
    said: list[KafkaError | None] = []
    address = f"127.0.0.1:{node.ports['kafka']}"
    producer = Producer({"bootstrap.servers": address, "linger.ms": 60_000, "batch.size": 64_000_000, **config})
    # Or it learns of the partition while it flushes, and may send the first value alone.
    producer.list_topics(topic, SECONDS_MAX)
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: said.append(error))
    assert producer.flush(SECONDS_MAX) == 0
    return next((each for each in said if each is not None), None)


def records(node: ServerProcess, topic: str) -> list[bytes | None]:
    """All values that the topic has."""
    reader = Consumer({"bootstrap.servers": f"127.0.0.1:{node.ports['kafka']}", "group.id": "all"})
    place = TopicPartition(topic, 0, 0)
    reader.assign([place])
    _, end = reader.get_watermark_offsets(place, SECONDS_MAX)
    found: list[bytes | None] = [each.value() for each in reader.consume(end, SECONDS_MAX)] if end else []
    reader.close()
    assert len(found) == end
    return found


def head(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


@pytest.mark.parametrize("setting", ["braidlog.value.schema.check", "confluent.value.schema.validation"])
def test_confluents_serializer_writes_and_others_are_refused(
    node: ServerProcess, registry: SchemaRegistryClient, setting: str
) -> None:
    topic = f"orders-{setting[:5]}"
    create(node, topic, setting)
    other = registry.register_schema("somebody-else", Schema('"double"', "AVRO"))
    serialize = AvroSerializer(registry, '{"type":"record","name":"O","fields":[{"name":"id","type":"long"}]}')
    data = serialize({"id": 7}, SerializationContext(topic, MessageField.VALUE))
    assert data is not None
    # Registered a moment ago, and taken at once: what is not known is looked for before it is refused.
    assert produce(node, topic, data, data, None) is None
    for values, said in [
        ([b"no schema"], "value of record 0 of the batch begins with no schema id"),
        ([data, b"\0\0\0\1", data], "value of record 1 of the batch begins with no schema id"),
        ([data, head(other) + b"x"], f"has no schema {other}"),
        ([head(4711)], f"subject '{topic}-value' has no schema 4711"),
    ]:
        error = produce(node, topic, *values)
        assert error is not None
        assert error.code() == KafkaError.INVALID_RECORD, said
    assert produce(node, topic, data) is None
    assert records(node, topic) == [data, data, None, data]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd", "snappy"])
def test_compressed_batches_are_looked_into(node: ServerProcess, registry: SchemaRegistryClient, codec: str) -> None:
    topic = f"packed-{codec}"
    create(node, topic)
    number = registry.register_schema(f"{topic}-value", Schema('"string"', "AVRO"))
    good, bad = head(number) + b"x" * 1000, head(number + 1000) + b"x" * 1000
    many = 2 * HERE_BYTES_MAX // len(good)
    for size in (3, many):  # here, and by the worker
        assert produce(node, topic, *[good] * size, **{"compression.type": codec}) is None
        error = produce(node, topic, *[good] * (size - 1), bad, **{"compression.type": codec})
        assert error is not None
        assert error.code() == KafkaError.INVALID_RECORD


@pytest.mark.parametrize("scheme", OTHERS)
def test_every_other_door_refuses_too(node: ServerProcess, registry: SchemaRegistryClient, scheme: str) -> None:
    topic = f"door-{scheme}"
    create(node, topic)
    number = registry.register_schema(f"{topic}-value", Schema('"string"', "AVRO"))
    url = f"{scheme}://127.0.0.1:{node.ports[scheme]}"
    with braidlog.connect(url) as client:
        with client.producer() as producer:
            producer.send(topic, head(number) + b"x").result(SECONDS_MAX)
        # What cursus says of it does not tell a refusal from a failure, and a client tries that again for a while.
        with client.producer(delivery_timeout=1.0) as producer:
            for value in (b"bare value", head(number + 1000) + b"x"):
                with pytest.raises(ClientError):
                    producer.send(topic, value).result(SECONDS_MAX)
    assert records(node, topic) == [head(number) + b"x"]


def test_it_is_off_unless_set_and_may_be_set_later(node: ServerProcess, registry: SchemaRegistryClient) -> None:
    topic = "later"
    admin = create(node, topic, **{"retention.ms": "-1"})
    both = ("braidlog.value.schema.check", "confluent.value.schema.validation")

    def shown() -> list[str]:
        (described,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return [described.result(SECONDS_MAX)[name].value for name in both]

    def alter(value: str) -> None:
        entry = ConfigEntry(both[0], value, incremental_operation=AlterConfigOpType.SET)
        asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        (altered,) = admin.incremental_alter_configs([asked]).values()
        altered.result(SECONDS_MAX)

    assert shown() == ["true", "true"]
    assert produce(node, topic, b"x") is not None
    alter("false")
    assert shown() == ["false", "false"]
    assert produce(node, topic, b"x") is None
    alter("true")
    assert produce(node, topic, b"y") is not None
    number = registry.register_schema(f"{topic}-value", Schema('"string"', "AVRO"))
    assert produce(node, topic, head(number)) is None
    with pytest.raises(KafkaException):
        create(node, "odd", **{"braidlog.value.schema.check": "perhaps"})
