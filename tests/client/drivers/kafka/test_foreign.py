"""Our kafka client beside librdkafka, over one server: what one writes the other reads, and both share a group."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (  # its package does not export them to mypy
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from tests.client.dialects import fresh, read, run, server_url, until

from braidlog import aio
from braidlog.client.errors import Refusal, RefusedError
from braidlog.testing.server import ServerProcess

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
STAMP_MS = 1_700_000_000_000


def address(server: ServerProcess) -> str:
    return f"127.0.0.1:{server.ports['kafka']}"


def consumer_of(server: ServerProcess, group: str, **settings: Any) -> Consumer:
    return Consumer(
        {"bootstrap.servers": address(server), "group.id": group, "auto.offset.reset": "earliest", **settings}
    )


def polled(consumer: Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += consumer.consume(count - len(found), timeout=1)
    assert [each.error() for each in found if each.error()] == []
    return found


@pytest.mark.parametrize("codec", CODECS)
async def test_what_we_write_librdkafka_reads(codec: str, braid_server_shared: ServerProcess) -> None:
    async with aio.connect(f"{server_url('kafka', braid_server_shared)}?compression={codec}") as client:
        topic = fresh()
        await client.admin.create_topic(topic)
        producer = client.producer(linger_ms=50)
        for at in range(100):
            key = b"k%d" % at if at % 2 else None
            value = b"v" * at if at % 3 else None
            headers = (("at", b"%d" % at), ("none", None)) if at % 5 == 0 else ()
            await producer.send(topic, value, key=key, headers=headers, timestamp_ms=STAMP_MS + at)
        await producer.flush()
    consumer = consumer_of(braid_server_shared, fresh("g"), **{"check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = await asyncio.to_thread(polled, consumer, 100)
    await asyncio.to_thread(consumer.close)
    assert [(each.key(), each.value(), each.headers(), each.timestamp()[1]) for each in found] == [
        (
            b"k%d" % at if at % 2 else None,
            b"v" * at if at % 3 else None,
            [("at", b"%d" % at), ("none", None)] if at % 5 == 0 else None,
            STAMP_MS + at,
        )
        for at in range(100)
    ]


@pytest.mark.parametrize("codec", CODECS)
async def test_what_librdkafka_writes_we_read(codec: str, braid_server_shared: ServerProcess) -> None:
    async with aio.connect(server_url("kafka", braid_server_shared)) as client:
        topic = fresh()
        await client.admin.create_topic(topic)
        settings = {"bootstrap.servers": address(braid_server_shared), "compression.type": codec, "linger.ms": 50}
        producer = Producer(settings)
        for at in range(100):
            headers: list[Any] = [("at", b"%d" % at)] if at % 5 == 0 else []
            producer.produce(topic, b"v" * at, b"k%d" % at, 0, timestamp=STAMP_MS + at, headers=headers)
        await asyncio.to_thread(producer.flush)
        found = await read(client, topic, 100)
        assert [(each.offset, each.key, each.value, each.headers, each.timestamp_ms) for each in found] == [
            (at, b"k%d" % at, b"v" * at, (("at", b"%d" % at),) if at % 5 == 0 else (), STAMP_MS + at)
            for at in range(100)
        ]
        assert [each.offset for each in await read(client, topic, 37, start=63)] == list(range(63, 100))


async def test_read_committed_sees_what_was_committed(braid_server_shared: ServerProcess) -> None:
    url = server_url("kafka", braid_server_shared)
    async with aio.connect(url) as client, aio.connect(f"{url}?isolation=read_committed") as careful:
        topic = fresh()
        await client.admin.create_topic(topic)
        settings = {"bootstrap.servers": address(braid_server_shared), "transactional.id": fresh("txn")}
        producer = Producer(settings)
        await asyncio.to_thread(producer.init_transactions)
        for number, commit in enumerate((True, False, True, False)):
            producer.begin_transaction()
            for at in range(3):
                producer.produce(topic, b"%d-%d" % (number, at), partition=0)
            await asyncio.to_thread(producer.flush)
            await asyncio.to_thread(producer.commit_transaction if commit else producer.abort_transaction)
        producer.begin_transaction()
        producer.produce(topic, b"open", partition=0)
        await asyncio.to_thread(producer.flush)
        committed = [b"%d-%d" % (number, at) for number in (0, 2) for at in range(3)]
        assert [each.value for each in await read(careful, topic, 6)] == committed
        everything = [b"%d-%d" % (number, at) for number in range(4) for at in range(3)]
        assert [each.value for each in await read(client, topic, 13)] == [*everything, b"open"]
        # Four markers; the open one ends what a careful reader is told of.
        assert (await careful.admin.describe_topic(topic)).partitions[0].latest == 16
        assert (await client.admin.describe_topic(topic)).partitions[0].latest == 17
        await asyncio.to_thread(producer.commit_transaction)
        assert [each.value for each in await read(careful, topic, 7)] == [*committed, b"open"]


class Foreign:
    """A consumer of librdkafka that is polled in a thread until it is stopped."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer = consumer
        self._stopped = False
        self.values: set[bytes | None] = set()
        self.partitions: set[int] = set()
        consumer.subscribe([topic])
        self._polling = asyncio.ensure_future(asyncio.to_thread(self._poll))

    def _poll(self) -> None:
        while not self._stopped:
            message = self._consumer.poll(0.05)
            if message is not None and not message.error():
                self.values.add(message.value())
            self.partitions = {each.partition for each in self._consumer.assignment()}  # this call holds all threads up
        self._consumer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped = True
        await self._polling


@pytest.mark.parametrize("first", ["ours", "theirs"])
async def test_a_group_of_both(first: str, braid_server_shared: ServerProcess) -> None:
    """Whoever comes first leads, and shares out for the other."""
    async with aio.connect(server_url("kafka", braid_server_shared)) as client:
        topic, group = fresh(), fresh("g")
        await client.admin.create_topic(topic, 4)
        ours = client.consumer(heartbeat_seconds=0.1, wait_ms=50)
        settings = {"partition.assignment.strategy": "range", "heartbeat.interval.ms": 100}

        if first == "ours":
            await ours.subscribe(topic, group=group)
        async with Foreign(consumer_of(braid_server_shared, group, **settings), topic) as theirs:
            if first == "theirs":
                await until(lambda: len(theirs.partitions) == 4, "librdkafka has all")
                await ours.subscribe(topic, group=group)
            await until(_shared(ours, theirs), "each has two")
            producer = client.producer()
            for at in range(80):
                await producer.send(topic, b"%d" % at, partition=at % 4)
            await producer.flush()
            got: set[bytes | None] = set()
            while len(got) < 40:
                got |= {each.value for each in await ours.poll(timeout=1)}
            await until(lambda: len(theirs.values) == 40, "librdkafka's half")
            assert got | theirs.values == {b"%d" % at for at in range(80)}
            await ours.commit()
            info = await client.admin.describe_group(group)
            assert sorted(number for member in info.members for number in member.partitions) == [0, 1, 2, 3]
        await until(lambda: len(ours.assignment) == 4, "all of it is ours")
        await ours.close()


def _shared(ours: aio.Consumer, theirs: Foreign) -> Callable[[], bool]:
    def shared() -> bool:
        own = {partition for _, partition in ours.assignment}
        return len(own) == len(theirs.partitions) == 2 and own | theirs.partitions == {0, 1, 2, 3}

    return shared


def test_a_password_is_proved_by_scram(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"root-token").hexdigest()
    config = tmp_path / "braid.toml"
    config.write_text(f'[auth.tokens]\nroot = "{digest}"\n')
    with ServerProcess(tmp_path / "data", "--config", str(config)) as server:
        plain = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        admin = AdminClient(
            {"bootstrap.servers": address(server), **plain, "sasl.username": "root", "sasl.password": "root-token"}
        )
        changes: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion("a=da,x", ScramCredentialInfo(mechanism, 4096), "p@ss w\u00f6rd".encode())
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for done in admin.alter_user_scram_credentials(changes).values():
            done.result(30)

        async def test() -> None:
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                where = f"127.0.0.1:{server.ports['kafka']}?sasl={mechanism}"
                async with aio.connect(f"kafka://a%3Dda%2Cx:p%40ss%20w%C3%B6rd@{where}") as client:
                    assert await client.admin.list_topics() == []
                with pytest.raises(RefusedError) as caught:
                    await aio.connect(f"kafka://a%3Dda%2Cx:wrong@{where}")
                assert caught.value.reason is Refusal.NOT_ALLOWED

        run(test)
