# mypy: disable-error-code="no-untyped-call"
"""Kafka's door and the others, one log: what Kafka clients write is read through all of them, and the other way round."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaException, Producer, TopicPartition
from tests.adapters.test_cross_door import Ask, door
from tests.interop.kafka.checking import CODECS, START_MS, fresh, until

from braidlog import Log
from braidlog.testing.server import ServerProcess
from braidlog.wire.cursus.batch import Batch, BatchRecord
from braidlog.wire.cursus.connection import ClientConnection as CursusConnection
from braidlog.wire.cursus.requests import Consume as CursusConsume
from braidlog.wire.flux.connection import ClientConnection as FluxConnection
from braidlog.wire.flux.messages import Consume as FluxConsume
from braidlog.wire.flux.messages import Encoding
from braidlog.wire.flux.messages import Produce as FluxProduce
from braidlog.wire.mlog import messages as mlog
from braidlog.wire.mlog.connection import ClientConnection as MlogConnection
from braidlog.wire.rustlog import messages as rustlog
from braidlog.wire.rustlog.connection import ClientConnection as RustlogConnection

SECONDS = 30
QUIET = {"log_level": 0, "broker.address.family": "v4"}

# Key, value, headers, timestamp: no keys, bytes that are no text, a header twice.
ROWS: list[tuple[bytes | None, bytes, list[tuple[str, bytes | None]], int]] = [
    (b"user1", b"created", [("trace", b"1")], START_MS),
    (None, b"no key", [], START_MS + 2),
    (b"user2", b"\x00\xff bytes", [("trace", b"\x00\xff"), ("none", None), ("trace", b"again")], START_MS - 5_000),
    (b"k" * 64, b"v" * 3000, [], START_MS + 3),
    *[(b"key-%d" % (number % 7), b"value-%d " % number * 10, [], START_MS + number) for number in range(20)],
]


@contextmanager
def doors(server: ServerProcess) -> Iterator[dict[str, Ask]]:
    connections = {
        "mlog": MlogConnection(),
        "flux": FluxConnection(),
        "cursus": CursusConnection(),
        "rustlog": RustlogConnection(),
    }
    with ExitStack() as stack:
        yield {name: stack.enter_context(door(server, name, each)) for name, each in connections.items()}


def bootstrap(server: ServerProcess) -> dict[str, Any]:
    return {"bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}", **QUIET}


def write(server: ServerProcess, topic: str, codec: str) -> None:
    """All rows in one compressed batch, or a few."""
    producer = Producer({**bootstrap(server), "compression.type": codec, "linger.ms": 50})
    failures: list[Any] = []
    for key, value, headers, timestamp in ROWS:
        producer.produce(
            topic,
            value,
            key,
            partition=0,
            headers=headers,
            timestamp=timestamp,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(SECONDS) == 0
    assert failures == []


def read(server: ServerProcess, topic: str, count: int) -> list[Any]:
    consumer = Consumer(
        {**bootstrap(server), "group.id": fresh("group"), "check.crcs": True, "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Any] = []

    def some() -> bool:
        for message in consumer.consume(500, 0.2):
            if message.error():
                raise KafkaException(message.error())
            found.append(message)
        return len(found) >= count

    until(some, f"{count} records", SECONDS)
    consumer.close()
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_writes_and_every_door_reads(codec: str, braid_server_shared: ServerProcess) -> None:
    server, topic = braid_server_shared, fresh(f"from-kafka-{codec}")
    write(server, topic, codec)
    keys, wanted = [row[0] for row in ROWS], [row[1] for row in ROWS]
    with doors(server) as ask:
        entries = ask["mlog"](mlog.FetchBatchRequest(topic, "", 0, 100, "")).entries
        assert [(entry.offset, entry.value) for entry in entries] == list(enumerate(wanted))
        fetched = ask["rustlog"](
            rustlog.Fetch(group_id="", topic=topic, partition=0, offset=0, max_bytes=1 << 20)
        ).message
        assert [(record.key, record.payload) for record in fetched.records] == list(zip(keys, wanted, strict=True))
        shown: list[Any] = []
        while len(shown) < len(ROWS):  # Flux answers in pages
            page = ask["flux"](FluxConsume(f"page-{len(shown)}", topic, 0, len(shown), Encoding.BASE64)).answer.records
            assert page
            shown += page
        assert [(record.key, record.value) for record in shown] == list(zip(keys, wanted, strict=True))
        batch = ask["cursus"](CursusConsume(topic, 0, 0))
        assert [record.payload for record in batch.records] == wanted


def test_kafka_reads_what_every_door_writes(braid_server: ServerProcess) -> None:
    with doors(braid_server) as ask:
        ask["rustlog"](rustlog.CreateTopic(topic="shared", partition_count=1))
        ask["rustlog"](rustlog.Produce(topic="shared", partition=0, records=[b"one", b"two"], keys=[b"r", None]))
        ask["mlog"](mlog.ProduceRequest("shared", b"from mlog", mlog.AckMode.LEADER))
        ask["flux"](FluxProduce("1", "shared", b"f", b"from flux", encoding=Encoding.BASE64))
        event = BatchRecord(b"from cursus", b"c", event_type="Made", schema_version=3, metadata="m")
        ask["cursus"](Batch("shared", 0, (event,)))
    found = read(braid_server, "shared", 5)
    assert [(message.offset(), message.key(), message.value()) for message in found] == [
        (0, b"r", b"one"),
        (1, None, b"two"),
        (2, None, b"from mlog"),
        (3, b"f", b"from flux"),
        (4, b"c", b"from cursus"),
    ]
    assert dict(found[4].headers())["eventType"] == b"Made"
    assert all(message.timestamp()[0] == TIMESTAMP_CREATE_TIME for message in found)
    assert all(message.timestamp()[1] > START_MS for message in found)


def test_doors_take_turns_on_one_topic(braid_server: ServerProcess) -> None:
    """Kafka's batches and the others' stand in one order with dense offsets, and keep all they carried."""
    topic = "turns"
    write(braid_server, topic, "zstd")
    with doors(braid_server) as ask:
        ask["mlog"](mlog.ProduceRequest(topic, b"between", mlog.AckMode.LEADER))
    write(braid_server, topic, "lz4")
    count = 2 * len(ROWS) + 1
    found = read(braid_server, topic, count)
    assert [message.offset() for message in found] == list(range(count))
    rows = [(m.key(), m.value(), list(m.headers() or []), m.timestamp()[1]) for m in found]
    assert rows[: len(ROWS)] == ROWS
    assert rows[len(ROWS)][1] == b"between"
    assert rows[len(ROWS) + 1 :] == ROWS
    assert braid_server.stop() == 0
    with Log(braid_server.data_dir) as log:
        kept = log.topic(topic).read(records_max=count)
    assert [(r.key, r.value, list(r.headers), r.timestamp_ms) for r in kept[: len(ROWS)]] == ROWS
