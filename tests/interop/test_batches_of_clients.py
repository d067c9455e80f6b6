# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Batches of stock clients read here, batches of ours read there: kafka-python, aiokafka and librdkafka."""

import time

import confluent_kafka
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from tests.interop.kafka_python import MemoryRecords, MemoryRecordsBuilder
from tests.interop.kafka_python import codec as kafka_codec
from tests.interop.stub_broker import TOPIC, StubBroker

from braidlog.codec.batch.header import iter_batches
from braidlog.codec.batch.records import check_batch_records, control_batch, decode_batch, encode_batch
from braidlog.codec.compression import Compression

BOUND = 1 << 24
DEADLINE_S = 30
START_MS = 1_700_000_000_123

# (timestamp, key, value, headers): nulls, empties, lengths at which varints grow, times that go back.
RECORDS = [
    (START_MS, b"user1", b"created", (("h", b"1"),)),
    (START_MS + 2, None, b"x", ()),
    (START_MS - 5_000, b"user2", None, (("trace", b"\x00\xff"), ("empty", b""), ("none", None), ("é", b"e"))),
    (START_MS + 86_400_000, b"", b"", ()),
    (START_MS + 3, b"k" * 64, b"v" * 8192, ()),
    *[(START_MS + index, b"key-%d" % (index % 7), b"value-%d " % index * 20, ()) for index in range(200)],
]

KAFKA_PYTHON_NEEDS = {
    Compression.SNAPPY: kafka_codec.has_snappy,
    Compression.LZ4: kafka_codec.has_lz4,
    Compression.ZSTD: kafka_codec.has_zstd,
}


def need_of_kafka_python(compression):
    if not KAFKA_PYTHON_NEEDS.get(compression, lambda: True)():
        reason = f"kafka-python has no {compression.name} here: install python-snappy, lz4 and zstandard"
        print(reason)
        pytest.skip(reason)


def ours(compression, base_offset=0, **fields):
    timestamps, keys, values, headers = zip(*RECORDS, strict=True)
    return encode_batch(
        values,
        keys=keys,
        timestamps=timestamps,
        headers=headers,
        base_timestamp=timestamps[0],
        base_offset=base_offset,
        compression=compression,
        **fields,
    )


def read_here(data):
    """Every record of the batches, after the checks that a broker makes of a producer's batch."""
    found = []
    for position, header in iter_batches(data):
        newest = check_batch_records(data, position, header, decompressed_bytes_max=BOUND)
        assert newest == header.max_timestamp
        rows = decode_batch(data, position, decompressed_bytes_max=BOUND)
        assert [row[0] for row in rows] == list(range(len(rows)))
        found += [row[1:] for row in rows]
    return found


def codecs_of(data):
    return {header.compression for _, header in iter_batches(data)}


@pytest.mark.parametrize("compression", Compression)
def test_kafka_python_writes(compression):
    need_of_kafka_python(compression)
    builder = MemoryRecordsBuilder(2, compression, 1 << 20, producer_id=7, producer_epoch=1, base_sequence=3)
    for timestamp, key, value, headers in RECORDS:
        assert builder.append(timestamp, key, value, list(headers))
    builder.close()
    data = bytes(builder.buffer())
    assert codecs_of(data) == {compression}
    assert read_here(data) == RECORDS
    if compression is Compression.NONE:
        assert data == ours(compression, producer_id=7, producer_epoch=1, base_sequence=3)


@pytest.mark.parametrize("compression", Compression)
def test_kafka_python_reads(compression):
    need_of_kafka_python(compression)
    log = MemoryRecords(ours(compression, base_offset=41, producer_id=7, producer_epoch=1, base_sequence=3))
    batch = log.next_batch()
    assert batch.validate_crc()
    assert (batch.base_offset, batch.producer_id, batch.producer_epoch, batch.base_sequence) == (41, 7, 1, 3)
    assert [(r.offset, r.timestamp, r.key, r.value, tuple((k, v) for k, v in r.headers)) for r in batch] == [
        (41 + index, *record) for index, record in enumerate(RECORDS)
    ]
    assert log.next_batch() is None


@pytest.mark.parametrize("commit", [True, False])
def test_kafka_python_reads_control_batches(commit):
    marker = control_batch(
        base_offset=9,
        leader_epoch=0,
        producer_id=1000,
        producer_epoch=0,
        commit=commit,
        timestamp_ms=START_MS,
    )
    batch = MemoryRecords(marker).next_batch()
    assert batch.validate_crc()
    assert batch.is_control_batch
    (record,) = list(batch)
    assert (record.commit, record.abort) == (commit, not commit)


@pytest.mark.parametrize("compression", Compression)
def test_aiokafka_writes(compression):
    builder = AioBuilder(2, compression, 0, -1, -1, -1, 1 << 20)
    for index, (timestamp, key, value, headers) in enumerate(RECORDS):
        assert builder.append(index, timestamp, key, value, list(headers))
    data = bytes(builder.build())
    assert codecs_of(data) == {compression}
    assert read_here(data) == RECORDS
    if compression is Compression.NONE:
        assert data == ours(compression, leader_epoch=-1)


@pytest.mark.parametrize("compression", Compression)
def test_aiokafka_reads(compression):
    batch = AioBatch(ours(compression, base_offset=41))
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, tuple((k, v) for k, v in r.headers)) for r in batch] == [
        (41 + index, *record) for index, record in enumerate(RECORDS)
    ]


@pytest.mark.parametrize("compression", Compression)
def test_librdkafka_writes(compression):
    failures = []
    with StubBroker() as broker:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.address,
                "broker.address.family": "v4",
                "compression.type": compression.name.lower(),
                "linger.ms": 50,
                "message.timeout.ms": DEADLINE_S * 1000,
            }
        )
        for timestamp, key, value, headers in RECORDS:
            producer.produce(
                TOPIC,
                value,
                key,
                partition=0,
                timestamp=timestamp,
                headers=list(headers),
                on_delivery=lambda error, _message: failures.append(error) if error else None,
            )
        assert producer.flush(DEADLINE_S) == 0
    assert failures == []
    data = b"".join(broker.produced)
    assert codecs_of(data) == {compression}
    assert read_here(data) == RECORDS


@pytest.mark.parametrize("compression", Compression)
def test_librdkafka_reads(compression):
    marker = control_batch(
        base_offset=41 + len(RECORDS),
        leader_epoch=0,
        producer_id=7,
        producer_epoch=1,
        commit=True,
        timestamp_ms=START_MS,
    )
    log = ours(compression, base_offset=41) + marker
    found: list[tuple[object, ...]] = []
    with StubBroker(log, next_offset=42 + len(RECORDS)) as broker:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.address,
                "broker.address.family": "v4",
                "group.id": "interop",
                "enable.auto.commit": False,
                "check.crcs": True,
            }
        )
        # From the middle of the batch: a client drops what stands before the offset it asked for.
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 42)])
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < len(RECORDS) - 1 and time.monotonic() < deadline:
            for message in consumer.consume(num_messages=500, timeout=0.2):
                assert message.error() is None
                headers = tuple(message.headers() or ())
                found.append((message.offset(), message.timestamp()[1], message.key(), message.value(), headers))
        consumer.close()
    assert found == [(41 + index, *record) for index, record in enumerate(RECORDS)][1:]
