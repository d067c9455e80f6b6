"""Topics of every kind, and what was written to them."""

import random
from typing import NamedTuple

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

import braidlog
from braidlog import Compression, Log, NewRecord

SECONDS_MAX = 60
SEED = 20_261_115


class Row(NamedTuple):
    """A record as the log should give it back."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class Runtime:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.url = ""
        self.servers = ""
        self.registry = ""
        """Where its schema registry is."""
        self.rows: dict[str, list[Row]] = {}
        """What a reader of committed records should find."""
        self._names = 0

    def name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}-{self._names}"

    def write(self, topic: str, partition: int, values: list[bytes | None], **record: object) -> None:
        """Through the node."""
        with braidlog.connect(self.url) as client:
            client.admin.ensure_topic(topic, partition + 1)
            with client.producer() as producer:
                records = [NewRecord(value, **record) for value in values]  # type: ignore[arg-type]
                for delivery in producer.send_many(topic, records, partition=partition):
                    delivery.result(SECONDS_MAX)

    def delete_before(self, topic: str, offset: int, partition: int = 0) -> None:
        admin = AdminClient({"bootstrap.servers": self.servers})
        for future in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
            future.result(SECONDS_MAX)

    def grow(self, topic: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.servers})
        for future in admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result(SECONDS_MAX)


def random_records(rng: random.Random, count: int) -> list[NewRecord]:
    def some(size: int) -> bytes | None:
        return None if rng.random() < 0.1 else rng.randbytes(rng.randrange(size))

    return [
        NewRecord(
            some(200),
            some(12),
            tuple((f"h{at}", some(9)) for at in range(rng.choice((0, 0, 0, 1, 3)))),
            1_700_000_000_000 + rng.randrange(10_000),
        )
        for _ in range(count)
    ]


def _row(partition: int, offset: int, record: NewRecord) -> Row:
    assert record.timestamp_ms is not None
    return Row(partition, offset, record.key, record.value, tuple(record.headers), record.timestamp_ms)


def prepare(runtime: Runtime) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    with Log(runtime.folder) as log:
        plain = log.create_topic("plain", partitions=3)
        runtime.rows["plain"] = []
        for partition in range(3):
            for compression in Compression:
                records = random_records(rng, rng.randrange(1, 400))
                first = plain.append_many(records, partition=partition, compression=compression).base_offset
                runtime.rows["plain"] += [_row(partition, first + at, each) for at, each in enumerate(records)]
        compacted = log.create_topic("compacted", compact=True, segment_bytes=4096)
        last: dict[bytes, Row] = {}
        for at in range(400):
            key = b"k%d" % rng.randrange(40)
            record = NewRecord(b"value %d" % at, key, (), 1_700_000_000_000 + at)
            last[key] = _row(0, compacted.append_many([record]).base_offset, record)
        compacted.compact()
        # What is in the active segment is not compacted yet: the log itself says what is left.
        left = [Row(0, each.offset, each.key, each.value, tuple(each.headers), each.timestamp_ms) for each in compacted]
        assert len(left) < 200
        assert set(last.values()) <= set(left)
        runtime.rows["compacted"] = left
        stamped = log.create_topic("stamped", append_time=True)
        stamped.append_many([NewRecord(b"a", timestamp_ms=7), NewRecord(b"b", timestamp_ms=8)])


def transactions(runtime: Runtime) -> Producer:
    """Two transactions that were committed, one that was aborted between them, and one that stays open."""
    with braidlog.connect(runtime.url) as client:
        client.admin.create_topic("txn")
    rows: list[Row] = []
    offset = 0
    writer = Producer(
        {
            "bootstrap.servers": runtime.servers,
            "transactional.id": "spark-source",
            "transaction.timeout.ms": 900_000,  # the open one must outlive the tests
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    writer.init_transactions(SECONDS_MAX)
    for fate in ("commit", "abort", "commit", "open"):
        writer.begin_transaction()
        for at in range(5):
            value = f"{fate} {at}".encode()
            writer.produce("txn", value, partition=0, timestamp=1_700_000_000_000 + at)
            if fate == "commit":
                rows.append(Row(0, offset + at, None, value, (), 1_700_000_000_000 + at))
        writer.flush(SECONDS_MAX)
        offset += 6  # five records and a marker
        if fate == "commit":
            writer.commit_transaction(SECONDS_MAX)
        elif fate == "abort":
            writer.abort_transaction(SECONDS_MAX)
    runtime.rows["txn"] = rows
    return writer
