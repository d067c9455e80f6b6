"""A quick measurement of a running node: writing, reading, and how long one record takes. No benchmark of a machine.

Knows: what is timed and how often. Refuses to know: terminals, dialects.
Invariants: a figure is of records that were acknowledged, or read back, every one of them counted. Repeats are shown with their
spread: a single number would claim more than is known.
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
    """Of all repeats: the middle one, the least and the most."""

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


def measure(client: Client, topic: str, load: Load, told: Callable[[str], None]) -> list[Figure]:
    """Write, read back, write one by one; `told` hears what is going on."""
    value = bytes(index % 251 for index in range(load.record_bytes))
    samples: dict[str, list[float]] = {}
    for number in range(load.repeats):
        told(f"repeat {number + 1} of {load.repeats}")
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
    """The last so many records of the topic, which has one partition."""
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
    """From sending one record to its acknowledgement, one after the other, sorted."""
    found = []
    with client.producer() as producer:
        for _ in range(LATENCY_RECORDS):
            began = time.perf_counter()
            producer.send_and_wait(topic, value)
            found.append(time.perf_counter() - began)
    return sorted(found)
