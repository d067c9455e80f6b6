"""A shop's orders: records for a pipeline, and what it must make of them, worked out in plain Python.

Knows: what was sent. The figures here are made without Spark and without the pipeline's code.
"""

import json
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import braidlog
from braidlog.client.drivers.contract import ConsumedRecord
from braidlog.testing.server import ServerProcess

START = datetime(2026, 5, 1, 8, tzinfo=UTC)
LATE = timedelta(minutes=1)
SIZE = timedelta(minutes=1)
PARTITIONS = 2
READ_SECONDS_MAX = 120

LEAST = """
name = "{name}"
[source]
servers = "127.0.0.1:{kafka}"
topics = ["{topic}"]
starting = "{starting}"
[run]
trigger = "200 milliseconds"
[tables]
format = "{format}"
[silver]
schema = "id string, type string, version bigint, at timestamp, amount double, latency_ms double"
required = ["id", "type"]
event_time = "at"
transforms = ["transforms/loud.sql"]
[silver.dedup]
by = ["header:producer", "header:sequence"]
[gold.windows]
size = "1 minute"
by = ["type"]
latency = "latency_ms"
late = "1 minute"
[report]
admin = "{admin}"
[[expectations]]
stage = "silver"
name = "not_negative"
check = "amount >= 0"
on_violation = "drop"
"""
MORE = """
[silver.versions]
aggregate = "id"
version = "version"
first = 1
[gold.state]
key = "id"
servers = "mayfly://127.0.0.1:{mayfly}"
[[expectations]]
stage = "windows"
name = "busy"
check = "events > 3"
[[stages]]
name = "latest"
transform = "transforms/latest.sql"
table = "latest"
[tables.upsert.latest]
key = ["id"]
order = "_offset"
"""


def write_project(
    folder: Path,
    node: ServerProcess,
    *,
    name: str = "shop",
    topic: str = "orders",
    starting: str = "earliest",
    table_format: str = "delta",
    admin: str = "",
    more: str = MORE,
) -> Path:
    (folder / "transforms").mkdir(parents=True, exist_ok=True)
    ports = {"kafka": node.ports["kafka"], "mayfly": node.ports["mayfly"]}
    text = (LEAST + more).format(name=name, topic=topic, starting=starting, format=table_format, admin=admin, **ports)
    (folder / "pipeline.toml").write_text(text)
    (folder / "transforms" / "loud.sql").write_text("SELECT *, upper(type) AS loud FROM input")
    (folder / "transforms" / "latest.sql").write_text("SELECT id, version, amount, _offset FROM input")
    return folder


class Shop:
    """Sends records, keeps what it sent."""

    def __init__(self, node: ServerProcess, seed: int, topic: str = "orders") -> None:
        print(f"seed {seed}")
        self._dice = random.Random(seed)
        self._url = f"kafka://127.0.0.1:{node.ports['kafka']}"
        self._topic = topic
        self._versions: dict[str, int] = defaultdict(int)
        self._sequence = 0
        self._clock = START
        with braidlog.connect(self._url) as client:
            client.admin.ensure_topic(topic, PARTITIONS)

    def send(self, count: int) -> None:
        with braidlog.connect(self._url) as client:
            producer = client.producer()
            for _ in range(count):
                value, key, headers = self._record()
                times = 2 if self._dice.random() < 0.1 else 1
                for _ in range(times):  # a producer that was in doubt
                    producer.send(self._topic, value, key=key, headers=headers)

    def _record(self) -> tuple[bytes | None, bytes, list[tuple[str, bytes]]]:
        dice = self._dice
        order = f"o{dice.randrange(20)}"
        self._clock += timedelta(seconds=dice.uniform(0, 3))
        self._sequence += 1
        headers = [("producer", b"web"), ("sequence", b"%d" % self._sequence)]
        if dice.random() < 0.1:
            bad = dice.choice(
                [b"no json", b'{"id":"%s"}' % order.encode(), b'{"id":"a","type":"b","amount":"x"}', None]
            )
            return bad, order.encode(), headers
        self._versions[order] += dice.choice((1, 1, 1, 1, 3))
        value = {
            "id": order,
            "type": dice.choice(("placed", "paid")),
            "version": self._versions[order],
            "at": self._clock.isoformat(),
            "amount": float(dice.randrange(-5, 100)),
            "latency_ms": float(dice.randrange(1000)),
        }
        return json.dumps(value).encode(), order.encode(), headers if dice.random() < 0.9 else []


def read_all(node: ServerProcess, topic: str) -> list[ConsumedRecord]:
    """What a plain client reads."""
    with braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}?isolation=read_committed") as client:
        spans = client.admin.describe_topic(topic).partitions
        left = {number for number, span in enumerate(spans) if span.latest > span.earliest}
        consumer = client.consumer()
        consumer.assign(topic, start="earliest")
        found: list[ConsumedRecord] = []
        deadline = time.monotonic() + READ_SECONDS_MAX
        while left:
            assert time.monotonic() < deadline, f"{topic} is not read to its end: {left} of {spans}"
            found += consumer.poll(timeout=1)
            left = {number for number in left if consumer.reached(topic, number) < spans[number].latest}
        return found


class Expected(NamedTuple):
    """What the pipeline must make of a topic."""

    silver: dict[str, dict[str, Any]]
    dead: dict[tuple[int, int], str]
    gaps: set[tuple[str, int, int]]
    again: list[tuple[str, int]]
    windows: dict[tuple[datetime, str], tuple[int, float, float]]
    state: dict[str, dict[str, Any]]
    negative: int


def expected(records: Iterable[ConsumedRecord]) -> Expected:
    silver: dict[str, dict[str, Any]] = {}
    dead: dict[tuple[int, int], str] = {}
    seen: set[str] = set()
    negative = 0
    for record in sorted(records, key=lambda each: (each.partition, each.offset)):
        try:
            event = json.loads(record.value or b"")
        except json.JSONDecodeError:
            event = None
        if reason := _reason(record.value, event):
            dead[record.partition, record.offset] = reason
            continue
        headers = {name: (text or b"").decode() for name, text in record.headers}
        place = f"{record.topic}/{record.partition}/{record.offset}"
        name = f"3:web/{len(headers['sequence'])}:{headers['sequence']}" if "sequence" in headers else place
        if name in seen:
            continue
        seen.add(name)
        if event["amount"] < 0:
            negative += 1
            continue
        silver[name] = {**event, "at": datetime.fromisoformat(event["at"]), "key": (record.key or b"").decode()}
    rows = silver.values()
    return Expected(silver, dead, _gaps(rows), _again(rows), _windows(rows), _state(rows), negative)


def _reason(value: bytes | None, event: Any) -> str | None:
    if value is None:
        return "the value is null"
    if not isinstance(event, dict):
        return "the value is not a JSON object"
    if event.get("amount") == "x":
        return "the value does not fit the schema: amount is not of type double"
    return None if "type" in event else "required and missing: type"


def _gaps(events: Iterable[dict[str, Any]]) -> set[tuple[str, int, int]]:
    versions: dict[str, list[int]] = defaultdict(list)
    for event in events:
        versions[event["id"]].append(event["version"])
    found = set()
    for order, numbers in versions.items():
        known = [0, *sorted(set(numbers))]
        found |= {(order, low + 1, high) for low, high in pairwise(known) if high > low + 1}
    return found


def _again(events: Iterable[dict[str, Any]]) -> list[tuple[str, int]]:
    """Sent twice without headers that would have told."""
    counted = Counter((event["id"], event["version"]) for event in events)
    return sorted(place for place, count in counted.items() for _ in range(count - 1))


def _windows(events: Iterable[dict[str, Any]]) -> dict[tuple[datetime, str], tuple[int, float, float]]:
    listed = list(events)
    closed = max(event["at"] for event in listed) - LATE
    grouped: dict[tuple[datetime, str], list[float]] = defaultdict(list)
    for event in listed:
        start = event["at"].replace(second=0, microsecond=0)
        if start + SIZE <= closed:
            grouped[start, event["type"]].append(event["latency_ms"])
    return {
        key: (len(values), *[sorted(values)[math.ceil(p * len(values)) - 1] for p in (0.5, 0.99)])  # type: ignore[misc]
        for key, values in grouped.items()
    }


def _state(events: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {event["id"]: event for event in events}  # in the order of offsets: an order has one partition
