"""The same program over every dialect, in both faces: what the capability table promises is there, the rest is refused."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.client.dialects import COLUMNS, FACES, connected, fresh, read, server_url

from braidlog.client.drivers.contract import Commits, Headers
from braidlog.client.errors import RecordError, Refusal, RefusedError, UnsupportedError
from braidlog.client.schemes import capabilities
from braidlog.codec.murmur import partition_for_key
from braidlog.testing.server import ServerProcess

pytestmark = [pytest.mark.parametrize("face", FACES), pytest.mark.parametrize("column", COLUMNS)]


HEADERS: dict[Headers, tuple[Any, ...]] = {
    Headers.EVENT: (("eventType", b"paid"), ("schemaVersion", b"3"), ("metadata", b'{"a": 1}')),
    Headers.ANY: (("trace", b"\x00\xff"), ("none", None), ("", b""), ("trace", "zweimal \u00fc".encode())),
}


async def test_create_produce_consume(column: str, face: str, braid_server_shared: ServerProcess) -> None:
    async with connected(face, server_url(column, braid_server_shared)) as client:
        topic = fresh("kind=orders").ljust(249, "x")  # all that a name may be, on every door
        await client.admin.create_topic(topic)
        assert topic in await client.admin.list_topics()
        producer = client.producer()
        sent = [await producer.send(topic, b"value %d" % at) for at in range(50)]
        await producer.flush()
        placed = [await delivery for delivery in sent]
        assert [(each.topic, each.partition, each.offset) for each in placed] == [(topic, 0, at) for at in range(50)]
        found = await read(client, topic, 50)
        assert [(each.offset, each.value) for each in found] == [(at, b"value %d" % at) for at in range(50)]


async def test_a_topic_that_is_there_is_not_made_twice(
    column: str, face: str, braid_server_shared: ServerProcess
) -> None:
    async with connected(face, server_url(column, braid_server_shared)) as client:
        topic = fresh()
        assert await client.admin.ensure_topic(topic)
        assert not await client.admin.ensure_topic(topic)
        with pytest.raises(RefusedError) as caught:
            await client.admin.create_topic(topic)
        assert caught.value.reason is Refusal.TOPIC_EXISTS


async def test_keys_choose_partitions(column: str, face: str, braid_server_shared: ServerProcess) -> None:
    async with connected(face, server_url(column, braid_server_shared)) as client:
        topic, able = fresh(), client.capabilities
        await client.admin.create_topic(topic, 3 if able.partitions else 1)
        producer = client.producer()
        if not able.keys:
            with pytest.raises(RecordError, match=r"keys.*flux"):
                await producer.send(topic, b"v", key=b"k")
            return
        keys = [b"key %d" % (at % 7) for at in range(70)]
        placed = [await (await producer.send(topic, b"v%d" % at, key=key)) for at, key in enumerate(keys)]
        found = await read(client, topic, 70)
        assert sorted((each.value, each.key) for each in found) == sorted(
            (b"v%d" % at, key) for at, key in enumerate(keys)
        )
        assert len({each.partition for each in found}) > 1
        by_key: dict[bytes, set[int]] = {}
        for key, each in zip(keys, placed, strict=True):
            by_key.setdefault(key, set()).add(each.partition)
        assert all(len(places) == 1 for places in by_key.values())
        if able.places:
            assert by_key == {key: {partition_for_key(key, 3)} for key in by_key}


async def test_values_at_the_edge(column: str, face: str, braid_server_shared: ServerProcess) -> None:
    async with connected(face, server_url(column, braid_server_shared)) as client:
        topic, able = fresh(), client.capabilities
        await client.admin.create_topic(topic)
        producer = client.producer()
        values: list[bytes | None] = [bytes(range(256)), b" ,\n|:hw=\xff", b"x" * 500_000]
        for value, carried in ((None, able.null_values), (b"", able.empty_values)):
            if carried:
                values.append(value)
            else:
                with pytest.raises(RecordError, match="supported by: "):
                    await producer.send(topic, value)
        for value in values:
            await producer.send(topic, value)
        await producer.flush()
        assert [each.value for each in await read(client, topic, len(values))] == values


async def test_headers_and_timestamps(column: str, face: str, braid_server_shared: ServerProcess) -> None:
    async with connected(face, server_url(column, braid_server_shared)) as client:
        topic, able = fresh(), client.capabilities
        await client.admin.create_topic(topic)
        producer = client.producer()
        if able.headers is not Headers.ANY:
            with pytest.raises(RecordError):
                await producer.send(topic, b"v", headers=[("trace", b"1")])
        if not able.stamps:
            with pytest.raises(RecordError, match="timestamps"):
                await producer.send(topic, b"v", timestamp_ms=1)
        headers: tuple[Any, ...] = HEADERS.get(able.headers, ())
        await producer.send_and_wait(topic, b"v", headers=headers)
        if able.stamps:
            await producer.send_and_wait(topic, b"w", timestamp_ms=1_500_000_000_123)
            assert (await read(client, topic, 1, start=1))[0].timestamp_ms == 1_500_000_000_123
        record = (await read(client, topic, 2 if able.stamps else 1))[0]
        assert record.headers == headers
        assert (record.timestamp_ms is not None) is able.timestamps
        if record.timestamp_ms is not None:
            assert record.timestamp_ms > 1_600_000_000_000


async def test_what_is_not_bytes_is_refused_before_it_is_sent(
    column: str, face: str, braid_server_shared: ServerProcess
) -> None:
    async with connected(face, server_url(column, braid_server_shared)) as client:
        topic, producer = fresh(), client.producer()
        await client.admin.create_topic(topic)
        # The text is base64 too: a JSON protocol that takes it as such stores other bytes.
        wrong: list[tuple[dict[str, Any], str]] = [
            (
                {"value": "dGV4dA=="},
                r"the value of a record must be bytes or None, not str; encode it: text\.encode\(\)",
            ),
            ({"value": bytearray(b"v")}, "the value of a record must be bytes or None, not bytearray"),
            ({"value": b"v", "key": "k"}, "the key of a record must be bytes or None, not str"),
            ({"value": b"v", "headers": [("name", "text")]}, "a header must be a pair of a str and bytes or None"),
            ({"value": b"v", "headers": {"name": b"raw"}}, "a header must be a pair of a str and bytes or None"),
            (
                {"value": b"v", "timestamp_ms": 1.5},
                "a timestamp must be a number of milliseconds since 1970, not float",
            ),
        ]
        for record, words in wrong:
            with pytest.raises(TypeError, match=words):
                await producer.send(topic, **record)
        with pytest.raises(TypeError, match="a topic name must be a str, not bytes"):
            await producer.send(topic.encode(), b"v")
        assert (await producer.send_and_wait(topic, b"v")).offset == 0


async def test_too_large_is_refused_before_it_is_sent(
    column: str, face: str, braid_server_shared: ServerProcess
) -> None:
    async with connected(face, server_url(column, braid_server_shared)) as client:
        topic = fresh()
        await client.admin.create_topic(topic)
        with pytest.raises(RecordError, match="room"):
            await client.producer().send(topic, b"x" * 11_000_000)


async def test_start_anywhere(column: str, face: str, braid_server_shared: ServerProcess) -> None:
    async with connected(face, server_url(column, braid_server_shared)) as client:
        topic = fresh()
        await client.admin.create_topic(topic)
        producer = client.producer()
        for at in range(10):
            await producer.send(topic, b"%d" % at)
        await producer.flush()
        assert (await read(client, topic, 3, start=7))[0].offset == 7
        consumer = client.consumer(wait_ms=100)
        await consumer.assign(topic, [0], start="latest")
        assert consumer.position(topic, 0) == 10
        await producer.send_and_wait(topic, b"new")
        assert [each.value for each in await consumer.poll(timeout=30)] == [b"new"]
        await consumer.seek(topic, 0, 4)
        assert (await consumer.poll(max_records=2, timeout=30))[0].offset == 4
        assert consumer.position(topic, 0) == 6


async def test_start_at_a_time(column: str, face: str, braid_server_shared: ServerProcess) -> None:
    async with connected(face, server_url(column, braid_server_shared)) as client:
        topic, consumer = fresh(), client.consumer(wait_ms=100)
        await client.admin.create_topic(topic)
        noon = datetime(2020, 2, 29, 12, tzinfo=UTC)
        if not client.capabilities.finds_times:
            with pytest.raises(UnsupportedError, match="an offset by its time; supported by: kafka"):
                await consumer.assign(topic, start=noon)
            return
        with pytest.raises(ValueError, match="zone"):
            await consumer.assign(topic, start=noon.replace(tzinfo=None))
        first_ms = 1_582_977_600_000  # noon, as `date -u -d 2020-02-29T12:00 +%s` has it
        producer = client.producer()
        for at in range(10):
            await producer.send_and_wait(topic, b"%d" % at, timestamp_ms=first_ms + at * 1000)
        assert (await read(client, topic, 10, start=noon))[0].offset == 0
        later = noon + timedelta(seconds=6)
        assert (await read(client, topic, 4, start=later))[0].offset == 6
        assert (await read(client, topic, 3, start=later + timedelta(microseconds=1)))[0].offset == 7
        await consumer.assign(topic, start=noon + timedelta(days=1))
        assert consumer.position(topic, 0) == 10
        await consumer.seek(topic, 0, later)
        assert consumer.position(topic, 0) == 6


async def test_commits_without_a_group(column: str, face: str, braid_server_shared: ServerProcess) -> None:
    async with connected(face, server_url(column, braid_server_shared)) as client:
        topic = fresh()
        await client.admin.create_topic(topic)
        await client.producer().send_many(topic, [b"%d" % at for at in range(10)])
        consumer = client.consumer(wait_ms=100)
        await consumer.assign(topic, group="readers")
        assert await consumer.committed(topic, 0) is None
        got = await consumer.poll(max_records=4, timeout=30)
        if client.capabilities.commits is Commits.MEMBERS:
            with pytest.raises(UnsupportedError, match="subscribe"):
                await consumer.commit()
            return
        await consumer.commit()
        assert await consumer.committed(topic, 0) == len(got)
        [lag] = await client.admin.lag("readers", topic)
        assert (lag.committed, lag.latest, lag.lag) == (len(got), 10, 10 - len(got))
        again = client.consumer(wait_ms=100)
        await again.assign(topic, group="readers")
        assert (await again.poll(timeout=30))[0].offset == len(got)


async def test_a_commit_of_somebody_else_moves_nobody(
    column: str, face: str, braid_server_shared: ServerProcess
) -> None:
    """To an mlog server offset 0 means "where I was", and who names nobody is "default"."""
    async with connected(face, server_url(column, braid_server_shared)) as client:
        if client.capabilities.commits is Commits.MEMBERS:
            return
        topic = fresh()
        await client.admin.create_topic(topic)
        await client.producer().send_many(topic, [b"%d" % at for at in range(6)])
        consumer = client.consumer(wait_ms=100)
        await consumer.assign(topic, group="default")
        await consumer.poll(max_records=3, timeout=30)
        await consumer.commit()
        assert [each.offset for each in await read(client, topic, 6)] == list(range(6))


async def test_what_is_not_there(column: str, face: str, braid_server_shared: ServerProcess) -> None:
    async with connected(face, server_url(column, braid_server_shared), retry_timeout=5) as client:
        topic, able = fresh("missing"), client.capabilities
        calls = [client.admin.describe_topic(topic), client.consumer().assign(topic)]
        if able.deletes:
            calls.append(client.admin.delete_topic(topic))
        if able.places:  # else the server makes a topic on first use
            calls.append(client.producer().send_and_wait(topic, b"v"))
        for call in calls:
            with pytest.raises(RefusedError) as caught:
                await call
            assert caught.value.reason is Refusal.TOPIC_NOT_FOUND
        assert topic not in await client.admin.list_topics()


async def test_deleted_or_refused_by_name(column: str, face: str, braid_server_shared: ServerProcess) -> None:
    async with connected(face, server_url(column, braid_server_shared)) as client:
        topic = fresh()
        await client.admin.create_topic(topic)
        if client.capabilities.deletes:
            await client.admin.delete_topic(topic)
            assert topic not in await client.admin.list_topics()
        else:
            with pytest.raises(
                UnsupportedError, match="does not support deleting topics; supported by: cursus, kafka, mlog"
            ):
                await client.admin.delete_topic(topic)


async def test_what_a_dialect_lacks_is_refused_with_who_has_it(
    column: str, face: str, braid_server_shared: ServerProcess
) -> None:
    async with connected(face, server_url(column, braid_server_shared)) as client:
        able = client.capabilities
        assert able == capabilities()[column]
        if not able.groups:
            with pytest.raises(UnsupportedError, match="cursus, flux"):
                await client.consumer().subscribe("t", group="g")
        if not able.group_admin:
            with pytest.raises(UnsupportedError, match="cursus"):
                await client.admin.list_groups()
        if not able.idempotence:
            with pytest.raises(UnsupportedError, match="cursus"):
                client.producer(idempotent=True)
        if not able.partitions:
            with pytest.raises(UnsupportedError, match="partitions"):
                await client.admin.create_topic(fresh(), 2)
        if "all" not in able.acks:
            with pytest.raises(UnsupportedError, match="acks=all"):
                client.producer(acks="all")
        else:
            topic = fresh()
            await client.admin.create_topic(topic)
            assert (await client.producer(acks="all").send_and_wait(topic, b"v")).offset == 0


async def test_reprs_help(column: str, face: str, braid_server_shared: ServerProcess) -> None:
    url = server_url(column, braid_server_shared)
    async with connected(face, url) as client:
        topic = fresh()
        await client.admin.create_topic(topic)
        inner = getattr(client, "_inner", client)
        producer, consumer = client.producer(), client.consumer()
        delivery = await producer.send(topic, b"v")
        await delivery
        await consumer.assign(topic)
        address = url.partition("?")[0]
        assert repr(inner) == f"<Client {address}>"
        assert f"{address}> 0 unflushed" in repr(getattr(producer, "_inner", producer))
        assert f"{topic}/0" in repr(getattr(consumer, "_inner", consumer))
        assert "offset=0" in repr(getattr(delivery, "_inner", delivery))
