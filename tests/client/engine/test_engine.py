"""What a consumer asks of its group and its partitions, over a real node: topics, patterns, pauses, names that stay."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.client.dialects import fresh, server_url, until

import braidlog
from braidlog import aio
from braidlog.client.errors import Refusal, RefusedError, UnsupportedError
from braidlog.testing.server import ServerProcess

OPTIONS: dict[str, Any] = {"heartbeat_seconds": 0.1, "wait_ms": 50, "patterns_seconds": 0.1}


def url_of(server: ServerProcess) -> str:
    return server_url("kafka", server)


async def polled(consumer: aio.Consumer, count: int) -> list[aio.ConsumedRecord]:
    found: list[aio.ConsumedRecord] = []
    while len(found) < count:
        found += await consumer.poll(timeout=0.2)
    return found


async def commit(consumer: aio.Consumer) -> None:
    """As soon as the group has settled."""
    while True:
        try:
            return await consumer.commit()
        except RefusedError as error:
            if error.reason is not Refusal.REJOIN:
                raise
            await asyncio.sleep(0.01)


def of(consumer: aio.Consumer, *topics: str) -> Callable[[], bool]:
    return lambda: {topic for topic, _ in consumer.assignment} == set(topics)


async def test_several_topics_and_those_that_match(braid_server_shared: ServerProcess) -> None:
    async with aio.connect(url_of(braid_server_shared)) as client:
        word, group = fresh("w"), fresh("g")
        names = [f"{word}.{each}" for each in ("plain", "log-a", "log-b", "other")]
        for name in names:
            await client.admin.create_topic(name, 2)
        producer = client.producer()
        await producer.send_many(names[0], [b"plain"], partition=1)
        await producer.send_many(names[1], [b"a"], partition=0)
        await producer.send_many(names[3], [b"not wanted"], partition=0)
        one, two = client.consumer(**OPTIONS), client.consumer(**OPTIONS)
        await one.subscribe(names[0], f"{word}.log-?", group=group)
        assert of(one, *names[:3])()
        assert sorted(each.value or b"" for each in await polled(one, 2)) == [b"a", b"plain"]
        await two.subscribe(names[0], f"{word}.log-*", group=group)
        await until(lambda: len(one.assignment) == len(two.assignment) == 3, "they share all three")
        assert one.assignment.isdisjoint(two.assignment)
        late = f"{word}.log-c"
        await client.admin.create_topic(late, 2)
        await until(lambda: late in {topic for topic, _ in one.assignment | two.assignment}, "the new topic is read")
        await two.close()
        await until(of(one, *names[:3], late), "all of them are left to one")
        await producer.send_and_wait(late, b"c", partition=1)
        assert [each.value for each in await polled(one, 1)] == [b"c"]
        await commit(one)
        assert (await client.admin.group_offsets(group))[late, 1] == 1
        assert one.metrics.joins >= 3
        await one.close()


async def test_what_a_dialect_cannot_ask_for_is_refused(braid_server_shared: ServerProcess) -> None:
    async with aio.connect(server_url("cursus", braid_server_shared)) as client:
        for topics, instance, words in (
            (("a", "b"), None, "several topics"),
            (("a*",), None, "several topics"),
            (("a",), "x", "over a restart"),
        ):
            with pytest.raises(UnsupportedError, match=f"{words}; supported by: kafka"):
                await client.consumer().subscribe(*topics, group="g", instance=instance)
        with pytest.raises(ValueError, match="missing"):
            await client.consumer().subscribe(group="g")


async def test_a_member_that_comes_back_under_its_name_has_its_share(braid_server_shared: ServerProcess) -> None:
    async with (
        aio.connect(url_of(braid_server_shared)) as client,
        aio.connect(url_of(braid_server_shared)) as again,
    ):
        topic, group = fresh(), fresh("g")
        await client.admin.create_topic(topic, 2)
        one, two = client.consumer(**OPTIONS), client.consumer(**OPTIONS)
        changes: list[Any] = []
        await one.subscribe(topic, group=group, instance="one", on_rebalance=lambda *each: changes.append(each))
        await two.subscribe(topic, group=group, instance="two")
        await until(lambda: len(one.assignment) == len(two.assignment) == 1, "each has one")
        share, told = two.assignment, len(changes)
        await two.close()
        back = again.consumer(**OPTIONS)
        await back.subscribe(topic, group=group, instance="two")
        assert back.assignment == share
        assert len(changes) == told
        usurper = client.consumer(**OPTIONS)
        await usurper.subscribe(topic, group=group, instance="two")
        with pytest.raises(RefusedError) as refused:
            await polled(back, 1)
        assert refused.value.reason is Refusal.FENCED
        for each in (one, back, usurper):
            each.abandon()


async def test_callbacks_of_a_rebalance(braid_server_shared: ServerProcess) -> None:
    """Before it joins again a member can still commit what it has worked on: whoever gets the partition goes on there."""
    async with aio.connect(url_of(braid_server_shared)) as client:
        topic, group = fresh(), fresh("g")
        await client.admin.create_topic(topic, 2)
        producer = client.producer()
        for partition in range(2):
            await producer.send_many(topic, [b"first"], partition=partition)
        one, two = client.consumer(**OPTIONS), client.consumer(**OPTIONS)
        told: list[Any] = []

        async def before(held: frozenset[tuple[str, int]]) -> None:
            told.append(("before", held))
            await one.commit()

        await one.subscribe(topic, group=group, before_rebalance=before, on_rebalance=lambda *each: told.append(each))
        both = frozenset({(topic, 0), (topic, 1)})
        assert told == [(frozenset(), both)]
        await polled(one, 2)
        await two.subscribe(topic, group=group)
        await until(lambda: len(told) == 3, "one was told")
        assert told[1] == ("before", both)
        assert told[2] == (two.assignment, frozenset())
        for partition in range(2):
            await producer.send_many(topic, [b"second"], partition=partition)
        assert [each.value for each in await polled(two, 1)] == [b"second"]
        await one.close()
        await two.close()


def test_pause_resume_seek_and_lag(braid_server_shared: ServerProcess) -> None:
    topic = fresh()
    with braidlog.connect(url_of(braid_server_shared)) as client:
        client.admin.create_topic(topic, 2)
        producer = client.producer()
        for partition in range(2):
            for at in range(5):
                producer.send(topic, b"%d" % at, partition=partition, timestamp_ms=1000 * at)
        producer.flush()
        sent = producer.metrics
        assert (sent.records, sent.acknowledged, sent.failed) == (10, 10, 0)
        assert sent.bytes >= 10
        assert sent.attempts >= sent.batches >= 2
        consumer = client.consumer(**OPTIONS)
        consumer.assign(topic)
        consumer.pause((topic, 0))
        assert consumer.paused == {(topic, 0)}
        found: list[Any] = []
        while len(found) < 5:
            found += consumer.poll(timeout=0.2)
        assert {each.partition for each in found} == {1}
        assert consumer.poll(timeout=0.2) == []
        assert consumer.lag()[topic, 1] == 0
        assert consumer.position(topic, 0) == 0
        consumer.seek(topic, 0, datetime.fromtimestamp(3, UTC))
        consumer.resume()
        while len(found) < 7:
            found += consumer.poll(timeout=0.2)
        assert [(each.partition, each.value) for each in found[5:]] == [(0, b"3"), (0, b"4")]
        assert consumer.lag() == {(topic, 0): 0, (topic, 1): 0}
        got = consumer.metrics
        assert (got.records, got.joins) == (7, 0)
        assert got.bytes >= 7
        with pytest.raises(ValueError, match="not assigned"):
            consumer.pause(("nowhere", 0))


async def test_the_lag_grows_while_nobody_polls(braid_server_shared: ServerProcess) -> None:
    async with aio.connect(url_of(braid_server_shared)) as client:
        topic = fresh()
        await client.admin.create_topic(topic)
        consumer = client.consumer(**OPTIONS)
        await consumer.assign(topic)
        assert consumer.lag() == {(topic, 0): None}
        producer = client.producer()
        for _ in range(3):
            await producer.send_and_wait(topic, b"x")
        await until(lambda: consumer.lag() == {(topic, 0): 3}, "three are not read")
        await consumer.close()
