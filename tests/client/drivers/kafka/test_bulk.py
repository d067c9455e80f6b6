"""Reading in bulk, from a real node: ends of many partitions at once, whole batches, news as it comes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import trustme

from braidlog.client.drivers.kafka.bulk import EARLIEST, LATEST, BulkReader
from braidlog.client.drivers.kafka.driver import KafkaDriver
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import Refusal, RefusedError
from braidlog.client.schemes import make_driver, parse_url
from braidlog.client.session import connect
from braidlog.codec.batch.header import iter_batches
from braidlog.model.record import NewRecord
from braidlog.testing.server import ServerProcess


@pytest.fixture
def url(braid_server_shared: ServerProcess) -> str:
    return f"kafka://127.0.0.1:{braid_server_shared.ports['kafka']}"


def bulk(url: str) -> BulkReader:
    target = parse_url(url)
    driver = make_driver(target, Policy())
    assert isinstance(driver, KafkaDriver)
    return BulkReader(driver)


async def write(url: str, topic: str, partition: int, records: list[Any], partitions: int = 3) -> None:
    async with connect(url) as client:
        await client.admin.ensure_topic(topic, partitions)
        async with client.producer() as producer:
            for sent in await producer.send_many(topic, records, partition=partition):
                await sent


def test_ends_and_times_of_many_partitions(url: str) -> None:
    async def run() -> None:
        await write(url, "bulk-ends", 0, [NewRecord(b"a", timestamp_ms=10), NewRecord(b"b", timestamp_ms=20)])
        await write(url, "bulk-ends", 2, [NewRecord(b"c", timestamp_ms=15)])
        reader = bulk(url)
        places = [("bulk-ends", at) for at in range(3)]
        assert (await reader.topics(None))["bulk-ends"][0] == 3
        found = await reader.topics(["bulk-ends", "bulk-none"])
        assert {name: partitions for name, (partitions, _) in found.items()} == {"bulk-ends": 3}
        assert found["bulk-ends"][1] != bytes(16), "a topic has an id"
        assert list((await reader.offsets(dict.fromkeys(places, EARLIEST))).values()) == [0, 0, 0]
        assert await reader.offsets(dict.fromkeys(places, LATEST)) == dict(zip(places, (2, 0, 1), strict=True))
        assert await reader.offsets(dict.fromkeys(places, 15)) == dict(zip(places, (1, None, 0), strict=True))
        assert await reader.offsets({}) == {}
        with pytest.raises(RefusedError) as caught:
            await reader.offsets({("bulk-none", 0): LATEST})
        assert caught.value.reason is Refusal.TOPIC_NOT_FOUND
        reader.close()

    asyncio.run(run())


def test_batches_come_whole(url: str) -> None:
    async def run() -> None:
        topic = "bulk-whole"
        for at in range(20):
            await write(url, topic, 0, [b"%d" % at * 5000] * 3, 1)
        reader = bulk(url)
        at, seen = 0, 0
        while at < 60:
            found = await reader.fetch((topic, 0), at, bytes_max=40_000, wait_ms=0)
            headers = [header for _, header in iter_batches(found.data)]
            assert headers[0].base_offset == at
            assert headers[-1].next_offset == found.next_offset
            assert (found.start_offset, found.readable_end) == (0, 60)
            at, seen = found.next_offset, seen + 1
        assert 3 <= seen <= 20
        nothing = await reader.fetch((topic, 0), 60, bytes_max=40_000, wait_ms=0)
        assert (len(nothing.data), nothing.next_offset) == (0, 60)
        with pytest.raises(RefusedError) as caught:
            await reader.fetch((topic, 0), 61, bytes_max=1, wait_ms=0)
        assert caught.value.reason is Refusal.OFFSET_OUT_OF_RANGE
        reader.close()

    asyncio.run(run())


def test_a_large_answer_is_whole(url: str) -> None:
    """Several megabytes in one answer: it does not come in one read."""

    async def run() -> None:
        await write(url, "bulk-large", 0, [bytes([at]) * 700_000 for at in range(8)], 1)
        reader = bulk(url)
        found = await reader.fetch(("bulk-large", 0), 0, bytes_max=8_000_000, wait_ms=0)
        assert len(found.data) > 5_000_000
        assert sum(header.record_count for _, header in iter_batches(found.data)) == found.next_offset == 8
        reader.close()

    asyncio.run(run())


def test_news_end_a_wait(url: str) -> None:
    async def run() -> None:
        topic = "bulk-news"
        await write(url, topic, 0, [b"a"], 2)
        reader = bulk(url)
        ends = {(topic, 0): 1, (topic, 1): 0}
        await reader.wait_beyond(ends, 50)  # nothing comes, and it ends
        waiting = asyncio.ensure_future(reader.wait_beyond(ends, 60_000))
        await write(url, topic, 1, [b"b"], 2)
        async with asyncio.timeout(30):
            await waiting
        await reader.commit("bulk-group", {(topic, 0): 1, (topic, 1): 1})
        assert await reader.driver.committed("bulk-group", topic, 1) == 1
        reader.close()

    asyncio.run(run())


def test_a_large_answer_is_whole_over_tls_too(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    pem = tmp_path / "server.pem"
    words = ["--set", f"listeners.kafka.tls.cert={pem}", "--set", f"listeners.kafka.tls.key={pem}"]

    async def run(url: str) -> None:
        await write(url, "bulk-tls", 0, [bytes([at]) * 700_000 for at in range(8)], 1)
        reader = bulk(url)
        found = await reader.fetch(("bulk-tls", 0), 0, bytes_max=8_000_000, wait_ms=0)
        assert sum(header.record_count for _, header in iter_batches(found.data)) == found.next_offset == 8
        reader.close()

    with ServerProcess(tmp_path / "data", *words) as server:
        asyncio.run(run(f"kafka+tls://127.0.0.1:{server.ports['kafka']}?cafile={tmp_path / 'ca.pem'}"))
