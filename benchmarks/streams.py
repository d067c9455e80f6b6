"""Kafka's door and our own client against RabbitMQ streams, for `make bench`.

Knows: what to ask of whom. RabbitMQ is driven by the bare loader in every row, also where ours is a client in Python: more than
that no client of its can have. Neither side syncs. Its records are entries of their own, as its clients send them unless they are
told otherwise; one row is told otherwise, a hundred records in an entry.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final

from benchmarks import doors
from benchmarks.comparison import Asked, Question, Sample
from benchmarks.kafka import MB, NOW_MS, WINDOW, delete_topic, make_topic, produce_request
from benchmarks.load import Frames, Line, cpu_seconds
from benchmarks.peers.rabbitmq import CHUNK, Rabbit
from braidlog.aio import connect
from braidlog.client.drivers.kafka.bulk import BulkReader, whole
from braidlog.client.drivers.kafka.driver import KafkaDriver
from braidlog.client.drivers.kafka.staging import BatchWriter, Section
from braidlog.client.engine.retry import Policy
from braidlog.client.schemes import make_driver, parse_url
from braidlog.codec.batch.kernel import encode_records
from braidlog.codec.batch.records import encode_batch
from braidlog.codec.columns.arrow import PieceBuilder, PieceLimits
from braidlog.wire.kafka.connection import ClientConnection
from braidlog.wire.kafka.messages import data as kafka

PEER: Final = "RabbitMQ streams"
FETCH_VERSION: Final = 12
FETCH_BYTES: Final = 1 << 20
FETCH_WINDOW: Final = 4
COLUMNS_FETCH_BYTES: Final = 2 << 20
"""What the Spark source asks for at a time, unless it is told otherwise."""
BULK_RECORDS: Final = 8_000
PER_ENTRY: Final = 100
_PIECES: Final = PieceLimits(64_000, 16 * MB)


# -- by raw frames -----------------------------------------------------------------------------------------------------


def fetch_request(topic: str, offset: int) -> bytes:
    partition = kafka.FetchRequestPartition(0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    wanted = [kafka.FetchRequestTopic(topic, partitions=[partition])]
    message = kafka.FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES, topics=wanted)
    return ClientConnection("bench").request(message, FETCH_VERSION)


def fetch_plan(address: tuple[str, int], topic: str, records: int) -> list[bytes]:
    """The requests that read the topic: each begins where the answer to the one before ended."""
    line, frames, offset = Line(address), [], 0
    while offset < records:
        frames.append(fetch_request(topic, offset))
        client = ClientConnection("bench")
        client.request(kafka.FetchRequest(), FETCH_VERSION)  # so that it expects the answer
        client.receive(line.ask(frames[-1], Frames()))
        answer: Any = client.next_event()
        part = answer.message.responses[0].partitions[0]
        found, following = whole(memoryview(part.records), offset)
        if part.error_code or not found:
            raise RuntimeError(f"nothing at {offset} of {topic}: code {part.error_code}")
        offset = following
    line.close()
    return frames


@contextlib.contextmanager
def raw_fetches() -> Iterator[Asked]:
    """What a batch and what a stream's chunk costs to be sent: neither server looks at records."""
    with doors.node(fsync=False) as braid, Rabbit() as rabbit:
        address = braid.server.address("kafka")
        asked: Asked = []
        for size, name, per_batch, records in ((100, "100 B", 1000, 2_000_000), (1024, "1 KiB", 100, 400_000)):
            value, topic = doors.value_of(size), f"fetch-{size}"
            make_topic("{}:{}".format(*address), topic)
            batch = encode_batch([value] * per_batch, base_timestamp=NOW_MS)
            line = Line(address)
            line.drive([produce_request(topic, batch)] * (records // per_batch), 1, Frames(), window=WINDOW)
            line.close()
            _, stream = rabbit.produce(value, records // CHUNK, window=WINDOW)
            plan = fetch_plan(address, topic, records)

            def work(plan: list[bytes] = plan, stream: bytes = stream, records: int = records) -> Sample:
                before = cpu_seconds(braid.server.pid)
                line = Line(address)
                mine = records / line.drive(plan, 1, Frames(), window=FETCH_WINDOW)
                line.close()
                used = (cpu_seconds(braid.server.pid) - before) / records * 1e6
                return Sample(mine, rabbit.consume(stream, records), used)

            asked.append((Question(f"Kafka Fetch by raw frames, {name}", PEER, 1.2, "records/s"), work))
        yield asked


# -- by our own client -------------------------------------------------------------------------------------------------


def _driver(url: str) -> KafkaDriver:
    driver = make_driver(parse_url(url), Policy())
    assert isinstance(driver, KafkaDriver)
    return driver


async def write_in_bulk(url: str, topic: str, value: bytes, records: int) -> None:
    """Values, batch by batch, packed and sealed here, until the last is acknowledged."""
    driver = _driver(url)
    writer = BatchWriter(driver, Policy())
    await writer.begin()
    place = (topic, 0)
    await writer.add([place])
    values: list[bytes | None] = [value] * BULK_RECORDS
    for _ in range(records // BULK_RECORDS):
        section = Section(encode_records(values, None, None, None, NOW_MS), BULK_RECORDS, NOW_MS, NOW_MS)
        await writer.send(writer.seal(place, section))
    await writer.flush()
    await writer.close()
    driver.close()


async def write_one_by_one(url: str, topic: str, value: bytes, records: int) -> None:
    """The same through `Producer.send_many`: every record has an outcome of its own."""
    async with connect(url) as client, client.producer() as producer:
        for _ in range(records // CHUNK):
            await producer.send_many(topic, [value] * CHUNK, partition=0)
        await producer.flush()


async def read_to_columns(url: str, topic: str, records: int) -> None:
    """Batches into Arrow columns, the next fetch on its way while one is decoded."""
    driver = _driver(url)
    reader = BulkReader(driver)
    builder = PieceBuilder(("offset", "value"), _PIECES, end_offset=records, decompressed_bytes_max=COLUMNS_FETCH_BYTES)
    place, at, rows = (topic, 0), 0, 0
    fetch = partial(reader.fetch, place, bytes_max=COLUMNS_FETCH_BYTES, wait_ms=500)
    under_way = asyncio.ensure_future(fetch(at))
    while at < records:
        found = await under_way
        begin, at = at, found.next_offset
        if at < records:
            under_way = asyncio.ensure_future(fetch(at))
            await asyncio.sleep(0)  # so that it is sent
        rows += sum(piece.num_rows for piece, _ in builder.add(found.data, begin))
    rows += sum(piece.num_rows for piece, _ in builder.flush())
    driver.close()
    if rows != records:
        raise RuntimeError(f"{rows} of {records} records came back")


@contextlib.contextmanager
def clients() -> Iterator[Asked]:
    value = doors.value_of(100)
    with doors.node(fsync=False) as braid, Rabbit() as rabbit:
        host, port = braid.server.address("kafka")
        url, pid = f"kafka://{host}:{port}", braid.server.pid
        records = 250 * BULK_RECORDS
        chunks = records // CHUNK
        _, stream = rabbit.produce(value, chunks, window=WINDOW)
        make_topic(f"{host}:{port}", "read")
        asyncio.run(write_in_bulk(url, "read", value, records))

        def ours(count: int, run: Callable[[], Coroutine[Any, Any, None]]) -> tuple[float, float]:
            before, start = cpu_seconds(pid), time.perf_counter()
            asyncio.run(run())
            taken = time.perf_counter() - start
            return count / taken, (cpu_seconds(pid) - before) / count * 1e6

        def produce(
            write: Callable[[str, str, bytes, int], Coroutine[Any, Any, None]], count: int, per_entry: int = 1
        ) -> Sample:
            # Neither waits for the disk to take what the other wrote, and what was written is deleted: a run of minutes would
            # fill the memory with gigabytes of it, and tell how quickly the machine gives out new pages.
            topic = f"written-{time.monotonic_ns()}"
            make_topic(f"{host}:{port}", topic)
            os.sync()
            mine, used = ours(count, lambda: write(url, topic, value, count))
            delete_topic(f"{host}:{port}", topic)
            os.sync()
            theirs, written = rabbit.produce(
                value, chunks // 4 if per_entry == 1 else chunks, window=WINDOW, per_entry=per_entry
            )
            rabbit.delete_stream(written)
            return Sample(mine, theirs, used)

        def consume() -> Sample:
            mine, used = ours(records, lambda: read_to_columns(url, "read", records))
            return Sample(mine, rabbit.consume(stream, records), used)

        many = f"{PEER}, {PER_ENTRY} records in an entry"
        bulk, single = "our client writes 100 B in bulk, acknowledged", "our Producer sends 100 B, acknowledged"
        yield [
            (Question(bulk, PEER, 6.0, "records/s"), partial(produce, write_in_bulk, records)),
            (Question(f"{bulk} (2)", many, 0.0, "records/s"), partial(produce, write_in_bulk, records, PER_ENTRY)),
            (Question(single, PEER, 0.0, "records/s"), partial(produce, write_one_by_one, 50_000)),
            (Question("our client reads 100 B to columns", PEER, 0.8, "records/s"), consume),
        ]
