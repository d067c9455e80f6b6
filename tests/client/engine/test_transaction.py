"""Transactions of our client over a real node; librdkafka says what is committed."""

import asyncio
import contextlib
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka import Producer as ForeignProducer
from tests.client.dialects import fresh, server_url
from tests.client.drivers.kafka.test_staging import committed

import braidlog
from braidlog import aio
from braidlog.client.drivers.kafka.driver import KafkaDriver
from braidlog.client.drivers.transactions import TransactionalProducer
from braidlog.client.errors import AbortedError, NoAnswerError, Refusal, RefusedError, UnsupportedError
from braidlog.testing.server import ServerProcess


async def seen(server: ServerProcess, topic: str, partitions: int = 1) -> list[list[bytes]]:
    return await asyncio.to_thread(committed, server, topic, partitions)


def url_of(server: ServerProcess) -> str:
    return server_url("kafka", server)


class WrongError(Exception):
    """What a program raises in the middle of a transaction."""


async def test_what_was_sent_counts_together_or_not_at_all(braid_server_shared: ServerProcess) -> None:
    async with aio.connect(url_of(braid_server_shared)) as client:
        one, two = fresh(), fresh()
        await client.admin.create_topic(one, 2)
        await client.admin.create_topic(two)
        producer = client.producer(transactional_id=fresh("x"))
        for number in range(3):
            async with producer.transaction():
                for partition in range(2):
                    await producer.send_and_wait(one, b"%d" % number, partition=partition)
                await producer.send(two, b"%d" % number)
                if number == 0:
                    assert await seen(braid_server_shared, one, 2) == [[], []]
        whole = [b"0", b"1", b"2"]
        late: list[aio.Delivery] = []

        async def stopped() -> None:
            async with producer.transaction():
                await producer.send_and_wait(one, b"aborted", partition=0)
                late.append(await producer.send(two, b"aborted, and perhaps never sent"))
                raise WrongError

        with pytest.raises(WrongError):
            await stopped()
        with pytest.raises(AbortedError):
            await late[0]
        async with producer.transaction() as transaction:
            await producer.send_and_wait(two, b"aborted by hand")
            await transaction.abort()
            with pytest.raises(ValueError, match="in transactions only"):
                await producer.send(two, b"too late")
        async with producer.transaction():
            await producer.send(two, b"after")
        async with producer.transaction():
            pass
        assert await seen(braid_server_shared, one, 2) == [whole, whole]
        assert await seen(braid_server_shared, two) == [[*whole, b"after"]]


def test_a_transaction_of_the_blocking_client(braid_server_shared: ServerProcess) -> None:
    source, target, group = fresh(), fresh(), fresh("g")
    with braidlog.connect(url_of(braid_server_shared)) as client:
        client.admin.create_topic(source)
        client.admin.create_topic(target)
        client.producer().send_many(source, [b"%d" % at for at in range(6)])
        producer = client.producer(transactional_id=fresh("x"))
        with client.consumer(reset="earliest") as consumer:
            consumer.subscribe(source, group=group)
            fails = iter((True, False, True))

            def step() -> None:
                records = consumer.poll(3, timeout=30)
                with producer.transaction(consumer):
                    for record in records:
                        producer.send(target, record.value)
                    if next(fails, False):
                        raise WrongError

            while client.admin.group_offsets(group) != {(source, 0): 6}:
                with contextlib.suppress(WrongError):
                    step()
            assert next(fails, None) is None
    assert committed(braid_server_shared, target) == [[b"%d" % at for at in range(6)]]


async def test_who_begins_under_a_name_fences_who_had_it(braid_server_shared: ServerProcess) -> None:
    async with aio.connect(url_of(braid_server_shared)) as client:
        topic, name = fresh(), fresh("x")
        await client.admin.create_topic(topic)
        first, second = client.producer(transactional_id=name), client.producer(transactional_id=name)

        async def fenced() -> None:
            async with first.transaction():
                await first.send_and_wait(topic, b"of the first")
                async with second.transaction():
                    await second.send(topic, b"of the second")
                await first.send(topic, b"fenced")

        with pytest.raises(RefusedError) as refused:
            await fenced()
        assert refused.value.reason is Refusal.FENCED
        for _ in range(2):
            with pytest.raises(RefusedError, match="transactional id"):
                await first.transaction().__aenter__()
        async with second.transaction():
            await second.send(topic, b"and again")
        assert await seen(braid_server_shared, topic) == [[b"of the second", b"and again"]]


async def test_a_record_that_failed_fails_its_transaction_though_it_was_looked_at(
    braid_server_shared: ServerProcess,
) -> None:
    async with aio.connect(url_of(braid_server_shared)) as client:
        topic = fresh()
        await client.admin.create_topic(topic, settings={"max.message.bytes": "1024"})
        producer = client.producer(transactional_id=fresh("x"))

        async def swallows() -> None:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"small")
                with contextlib.suppress(RefusedError):
                    await producer.send_and_wait(topic, b"x" * 2000)

        with pytest.raises(RefusedError) as refused:
            await swallows()
        assert refused.value.reason is Refusal.TOO_LARGE
        async with producer.transaction():
            await producer.send(topic, b"the next one")
        assert await seen(braid_server_shared, topic) == [[b"the next one"]]


async def test_offsets_of_a_member_that_was_replaced_are_not_committed(braid_server_shared: ServerProcess) -> None:
    """What was read in a generation is committed in it: else whoever has the partition now would write it again."""
    async with (
        aio.connect(url_of(braid_server_shared)) as client,
        aio.connect(url_of(braid_server_shared)) as other,
    ):
        source, target, group = fresh(), fresh(), fresh("g")
        await client.admin.create_topic(source, 2)
        await client.admin.create_topic(target)
        plain = client.producer()
        for partition in range(2):
            await plain.send_and_wait(source, b"%d" % partition, partition=partition)
        producer = client.producer(transactional_id=fresh("x"))
        consumer, late = client.consumer(heartbeat_seconds=0.1), other.consumer(heartbeat_seconds=0.1)
        await consumer.subscribe(source, group=group)
        records: list[Any] = []
        while len(records) < 2:
            records += await consumer.poll()
        await late.subscribe(source, group=group)
        while len(consumer.assignment) != 1:  # noqa: ASYNC110 - it joins again by itself
            await asyncio.sleep(0.01)

        async def step(reader: aio.Consumer, writer: aio.Producer, records: list[Any]) -> None:
            async with writer.transaction(reader):
                for record in records:
                    await writer.send(target, record.value)

        with pytest.raises(RefusedError) as refused:
            await step(consumer, producer, records)
        assert refused.value.reason is Refusal.REJOIN
        for each, writer in ((consumer, producer), (late, other.producer(transactional_id=fresh("x")))):
            again: list[Any] = []
            while not again:
                again = await each.poll()
            await step(each, writer, again)
        assert sorted((await seen(braid_server_shared, target))[0]) == [b"0", b"1"]
        assert await client.admin.group_offsets(group) == {(source, 0): 1, (source, 1): 1}
        await late.close()
        await consumer.close()


async def test_a_lost_answer_to_the_commit(braid_server_shared: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections end before the commit, or when it is done and not answered: each transaction counts, and once."""
    async with aio.connect(url_of(braid_server_shared)) as client:
        topic, driver = fresh(), client._driver
        assert isinstance(driver, KafkaDriver)
        await client.admin.create_topic(topic)
        done, lost = driver.commit_transaction, [True] * 3

        async def commit(producer: TransactionalProducer) -> None:
            await done(producer)
            if lost:
                lost.pop()
                raise NoAnswerError("the answer was lost")

        monkeypatch.setattr(driver, "commit_transaction", commit)
        producer = client.producer(transactional_id=fresh("x"))
        for number in range(6):
            async with producer.transaction():
                await producer.send(topic, b"%d" % number)
                if number % 2:
                    await producer.flush()
                for link in driver._links.opened():
                    link.abort("cut by the test")
        assert not lost
        assert await seen(braid_server_shared, topic) == [[b"%d" % number for number in range(6)]]


async def test_what_a_transaction_needs_is_said(braid_server_shared: ServerProcess) -> None:
    async with (
        aio.connect(url_of(braid_server_shared)) as client,
        aio.connect(server_url("cursus", braid_server_shared)) as other,
    ):
        topic = fresh()
        await client.admin.create_topic(topic)
        with pytest.raises(UnsupportedError, match=r"cursus does not support transactions.*kafka"):
            other.producer(transactional_id="x")
        with pytest.raises(ValueError, match="idempotent"):
            client.producer(transactional_id="x", idempotent=False)
        with pytest.raises(ValueError, match="transactional_id"):
            client.producer().transaction()
        producer = client.producer(transactional_id=fresh("x"))
        with pytest.raises(ValueError, match="in transactions only"):
            await producer.send(topic, b"")
        with pytest.raises(ValueError, match="commits belong to a group"):
            await producer.transaction(client.consumer()).__aenter__()
        automatic = client.consumer(auto_commit_ms=1000)
        await automatic.assign(topic, group=fresh("g"))
        with pytest.raises(ValueError, match="auto_commit_ms"):
            await producer.transaction(automatic).__aenter__()
        async with producer.transaction() as open_one:
            with pytest.raises(ValueError, match="one at a time"):
                await producer.transaction().__aenter__()
            with pytest.raises(ValueError, match="used once"):
                await open_one.__aenter__()


KILLED = """
import os, signal, sys
import braidlog
url, topic, source, group, name, last = sys.argv[1:]
with braidlog.connect(url) as client:
    producer = client.producer(transactional_id=name)
    consumer = client.consumer()
    consumer.assign(source, group=group)
    with producer.transaction(consumer):
        for record in consumer.poll(2, timeout=30):
            producer.send(topic, record.value)
        producer.flush()
        if not last:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_client_killed_between_send_and_commit(braid_server_shared: ServerProcess) -> None:
    source, topic, group, name = fresh(), fresh(), fresh("g"), fresh("x")
    url = url_of(braid_server_shared)
    foreign = ForeignProducer({"bootstrap.servers": url.removeprefix("kafka://")})
    with braidlog.connect(url) as client:
        client.admin.create_topic(source)
        client.admin.create_topic(topic)
        for at in range(2):
            foreign.produce(source, b"%d" % at, partition=0)
        foreign.flush()
        words = [sys.executable, "-c", KILLED, url, topic, source, group, name]
        assert subprocess.run([*words, ""], check=False).returncode == -9
        assert client.admin.describe_transaction(name).state == "Ongoing"
        assert client.admin.group_offsets(group) == {}
        subprocess.run([*words, "commit"], check=True)
        assert client.admin.group_offsets(group) == {(source, 0): 2}
    assert committed(braid_server_shared, topic) == [[b"0", b"1"]]
