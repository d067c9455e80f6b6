"""Topics for the benchmarks of Spark: records of random bytes, or of JSON objects, as a good client would send them."""

import os
import random
from collections.abc import Callable

import msgspec

import braidlog
from benchmarks.kafka import NOW_MS, make_topic
from benchmarks.load import Frames, Line
from braidlog.codec.batch.records import encode_batch
from braidlog.wire.kafka.connection import ClientConnection
from braidlog.wire.kafka.messages import data as kafka

VALUE_BYTES = 100
PARTITIONS = 2
BATCH_RECORDS = 1000
DISTINCT_BATCHES = 256
"""Then they repeat: too many values for a dictionary of Parquet's, which would make a column of one value out of them."""
PRODUCE_VERSION = 9
WINDOW = 8
FIELDS = 20
WORDS = [f"word {at}" for at in range(100)]


def noise(number: int) -> list[bytes]:  # noqa: ARG001 - all differ
    data = os.urandom(VALUE_BYTES * BATCH_RECORDS)
    return [data[at : at + VALUE_BYTES] for at in range(0, len(data), VALUE_BYTES)]


def objects(number: int) -> list[bytes]:
    """JSON of `FIELDS`: numbers, words that come again, texts that do not."""
    chance = random.Random(number)  # noqa: S311 - the same in every run
    return [
        msgspec.json.encode(
            {
                **{f"whole{at}": chance.randrange(2**31) for at in range(6)},
                **{f"number{at}": chance.random() for at in range(5)},
                **{f"word{at}": chance.choice(WORDS) for at in range(4)},
                **{f"text{at}": chance.randbytes(10).hex() for at in range(3)},
                **{f"flag{at}": chance.random() < 0.5 for at in range(2)},
            }
        )
        for _ in range(BATCH_RECORDS)
    ]


def fill(
    address: str,
    topic: str,
    rows: int,
    settings: dict[str, str] | None = None,
    values: Callable[[int], list[bytes]] = noise,
) -> None:
    """`rows` records into a topic's partitions, from a plain socket: batches of a thousand, as a good client would send."""
    make_topic_of(address, topic, PARTITIONS, settings)
    host, port = address.split(":")
    line = Line((host, int(port)))
    try:
        for partition in range(PARTITIONS):
            left = rows // PARTITIONS // BATCH_RECORDS
            distinct = range(min(left, DISTINCT_BATCHES))
            requests = [_request(topic, partition, number, values(number)) for number in distinct]
            while left > 0:
                chunks = [requests[at % len(requests)] for at in range(min(left, 1000))]
                line.drive(chunks, 1, Frames(), window=WINDOW)
                left -= len(chunks)
    finally:
        line.close()


def _request(topic: str, partition: int, number: int, values: list[bytes]) -> bytes:
    keys = [b"%08d" % (number * BATCH_RECORDS + at) for at in range(BATCH_RECORDS)]
    stamps = [NOW_MS + at for at in range(BATCH_RECORDS)]
    batch = encode_batch(values, keys=keys, timestamps=stamps, base_timestamp=NOW_MS)
    wanted = kafka.ProduceRequestTopic(topic, partition_data=[kafka.ProduceRequestPartition(partition, batch)])
    return ClientConnection("bench").request(kafka.ProduceRequest(None, 1, 30_000, [wanted]), PRODUCE_VERSION)


def make_topic_of(address: str, topic: str, partitions: int, settings: dict[str, str] | None = None) -> None:
    if partitions == 1:
        make_topic(address, topic)
        return
    with braidlog.connect(f"kafka://{address}") as client:
        client.admin.create_topic(topic, partitions=partitions, settings=settings)
