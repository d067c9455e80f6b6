"""Measure a running node: write and read throughput, and latency of single records. Not a benchmark of a machine.

Only acknowledged records and records read back count. Results have the spread of the repetitions, since a single
number would suggest more precision than there is.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from braidlog.client.blocking import Client

READ_SECONDS_MAX: Final = 120.0
LATENCY_RECORDS: Final = 200


class Figure(msgspec.Struct, frozen=True):
    """Median, minimum and maximum of the repetitions."""

    name: str
    unit: str
    median: float
    low: float
    high: float
    repeats: int


class Load(msgspec.Struct, frozen=True):
    records: int
    record_bytes: int
    repeats: int


def measure(client: Client, topic: str, load: Load, report: Callable[[str], None]) -> list[Figure]:
    """Measure writes, reads and single writes; `report` receives progress messages."""
    value = bytes(index % 251 for index in range(load.record_bytes))
    samples: dict[str, list[float]] = {}
    for number in range(load.repeats):
        report(f"repetition {number + 1} of {load.repeats}")
        samples.setdefault("produce", []).append(_produce(client, topic, value, load.records))
        samples.setdefault("consume", []).append(_consume(client, topic, load.records))
        latencies = _latencies(client, topic, value)
        for name, share in (("latency p50", 0.5), ("latency p99", 0.99)):
            samples.setdefault(name, []).append(latencies[int(len(latencies) * share)] * 1000)
    units = {"produce": "records/s", "consume": "records/s"}
    return [_figure(name, units.get(name, "ms"), found) for name, found in samples.items()]


def _figure(name: str, unit: str, samples: Sequence[float]) -> Figure:
    median, low, high = (round(each, 3) for each in (statistics.median(samples), min(samples), max(samples)))
    return Figure(name, unit, median, low, high, len(samples))


def _produce(client: Client, topic: str, value: bytes, records: int) -> float:
    with client.producer(linger_ms=2) as producer:
        began = time.perf_counter()
        sent = producer.send_many(topic, [value] * records)
        producer.flush()
        seconds = time.perf_counter() - began
    assert all(delivery.done() for delivery in sent)
    return records / seconds


def _consume(client: Client, topic: str, records: int) -> float:
    """Read the last `records` records of the topic, which has one partition."""
    span = client.admin.describe_topic(topic).partitions[0]
    with client.consumer() as consumer:
        began = time.perf_counter()
        consumer.assign(topic, [0], start=span.latest - records)
        read = 0
        while read < records:
            read += len(consumer.poll(max_records=10_000, timeout=1.0))
            if time.perf_counter() - began > READ_SECONDS_MAX:
                raise TimeoutError(f"read {read} of {records} records in {READ_SECONDS_MAX:g} s")
        seconds = time.perf_counter() - began
    return read / seconds


def _latencies(client: Client, topic: str, value: bytes) -> list[float]:
    """Return the sorted times from sending a record to its acknowledgement, one record at a time."""
    found = []
    with client.producer() as producer:
        for _ in range(LATENCY_RECORDS):
            began = time.perf_counter()
            producer.send_and_wait(topic, value)
            found.append(time.perf_counter() - began)
    return sorted(found)
