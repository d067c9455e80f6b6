"""Kafka's door against Apache Kafka's own broker, in one run: `make bench-kafka`.

Knows: what to ask of whom, and the targets. Both brokers are processes of their own on loopback, on the same disk, driven by the
same librdkafka (confluent-kafka) with the same settings; they take turns within each repeat, and a ratio is one of neighbours.
Durability is the same on both sides:

| | braidlog | Apache Kafka |
|---|---|---|
| fsync before each acknowledgement | topics.flush = ack | log.flush.interval.messages = 1 |
| the page cache | topics.flush = os | its default |

The last part leaves the client out: prepared Produce requests from a plain socket, against a receiver that only counts bytes.
"""

import argparse
import multiprocessing
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.load import RECEIVE_BYTES, Frames, Line, percentile
from benchmarks.measure import Spread, interleave, ratios, spread
from benchmarks.peers.kafka import KafkaPeer
from braidlog.codec.batch.records import encode_batch
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.connection import ClientConnection
from braidlog.wire.kafka.messages import data as kafka

MB = 1_000_000
NOW_MS = 1_700_000_000_000
SECONDS_MAX = 120
WINDOW = 8
QUIET = {"log_level": 0, "broker.address.family": "v4"}
OURS, THEIRS, BARE = "braidlog", "Apache Kafka", "bare receiver"

# What is wanted of ours : theirs; of times and memory theirs : ours, so that more is always better.
TARGETS = {"produce": 1.0, "consume": 1.0, "latency": 1.0, "memory": 3.0, "start": 5.0, "raw": 0.7}

RAW_BATCH_BYTES = (16 * 1024, 100_000, 1_000_000)  # writes of exactly 1 MiB are slow on some disks: stay below
PRODUCE_VERSION = 9


class Broker(Protocol):
    """What both kinds of process can do."""

    def resident_bytes(self) -> int: ...


class Contender(NamedTuple):
    name: str
    address: str
    process: Broker


class Row(NamedTuple):
    """One line of the table."""

    what: str
    ours: str
    theirs: str
    ratio: Spread
    target: float

    def __str__(self) -> str:
        reached = "reached" if self.ratio.median >= self.target else "MISSED"
        return f"| {self.what} | {self.ours} | {self.theirs} | {self.ratio:.2f} | {self.target:g} {reached} |"


# -- the two brokers ---------------------------------------------------------------------------------------------


@contextmanager
def brokers(parent: str | None, *, fsync: bool) -> Iterator[list[Contender]]:
    settings = {"log.flush.interval.messages": "1"} if fsync else {}
    words = ("--set", f"topics.flush={'ack' if fsync else 'os'}", "--set", "topics.retention_ms=-1")
    with (
        tempfile.TemporaryDirectory(prefix="bench-kafka-", dir=parent) as folder,
        ServerProcess(f"{folder}/data", *words) as ours,
        KafkaPeer(settings={"log.retention.ms": "-1", **settings}) as theirs,
    ):
        yield [
            Contender(OURS, f"127.0.0.1:{ours.ports['kafka']}", ours),
            Contender(THEIRS, theirs.address(), theirs),
        ]


def make_topic(address: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(SECONDS_MAX)


def delete_topic(address: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    admin.delete_topics([name])[name].result(SECONDS_MAX)


# -- what librdkafka does with them ------------------------------------------------------------------------------


def produce(contender: Contender, size: int, acks: str, count: int, topics: dict[str, str]) -> float:
    """Records/s into a new topic, from the first call until the last acknowledgement."""
    topic = f"bench-{time.monotonic_ns()}"
    make_topic(contender.address, topic)
    topics[contender.name] = topic
    failures: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": contender.address,
            **QUIET,
            "acks": acks,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    producer.list_topics(topic, SECONDS_MAX)
    value = os.urandom(size)

    def delivered(error: Any, _: Any) -> None:  # noqa: ANN401 - the client's
        if error is not None:
            failures.append(error)

    start = time.perf_counter()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=0, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if not number % 1000:
            producer.poll(0)
    left = producer.flush(SECONDS_MAX)
    taken = time.perf_counter() - start
    if left or failures:
        raise RuntimeError(f"{contender.name}: {left} not acknowledged, {failures[:1]}")
    return count / taken


def consume(contender: Contender, count: int, topics: dict[str, str]) -> float:
    """Records/s of the topic that was just written, from the first poll to the last record."""
    consumer = Consumer(
        {
            "bootstrap.servers": contender.address,
            **QUIET,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4 * MB,
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.assign([TopicPartition(topics[contender.name], 0, 0)])
    seen = 0
    start = time.perf_counter()
    while seen < count:
        # No more than are left: for a full ten thousand it would wait until the time is up, and measure that.
        messages = consumer.consume(min(10_000, count - seen), 1.0)
        if messages and messages[0].error():
            raise RuntimeError(f"{contender.name}: {messages[0].error()}")
        seen += len(messages)
        if time.perf_counter() - start > SECONDS_MAX:
            raise RuntimeError(f"{contender.name}: {seen} of {count} records in {SECONDS_MAX} s")
    taken = time.perf_counter() - start
    consumer.close()
    return count / taken


def latencies(contender: Contender, size: int, count: int) -> list[float]:
    """Seconds of single records with acks = all, one after another."""
    topic = f"bench-{time.monotonic_ns()}"
    make_topic(contender.address, topic)
    producer = Producer({"bootstrap.servers": contender.address, **QUIET, "acks": "all", "linger.ms": 0})
    producer.list_topics(topic, SECONDS_MAX)
    value, taken = os.urandom(size), []
    for number in range(count + 20):
        start = time.perf_counter()
        producer.produce(topic, value, partition=0)
        if producer.flush(SECONDS_MAX):
            raise RuntimeError(f"{contender.name} did not acknowledge")
        if number >= 20:  # the first ones open connections
            taken.append(time.perf_counter() - start)
    return taken


def throughput(parent: str | None, *, fsync: bool, repeats: int, scale: float) -> list[Row]:
    rows = []
    mode = "fsync" if fsync else "page cache"
    with brokers(parent, fsync=fsync) as contenders:
        for size, acks in ((100, "1"), (100, "all"), (1024, "1"), (1024, "all")):
            count = int((1_000_000 if size == 100 else 300_000) * scale)
            topics: dict[str, str] = {}
            written: dict[str, list[float]] = {each.name: [] for each in contenders}
            read: dict[str, list[float]] = {each.name: [] for each in contenders}
            for each in contenders:  # not counted: a virtual machine compiles what it sees often
                produce(each, size, acks, count, topics)
                consume(each, count, topics)
            for _ in range(repeats):
                for each in contenders:
                    written[each.name].append(produce(each, size, acks, count, topics))
                for each in contenders:
                    read[each.name].append(consume(each, count, topics))
            rows.append(_faster(f"produce {size} B, acks {acks}, {mode}, k records/s", written, "produce"))
            if acks == "all":
                rows.append(_faster(f"consume {size} B, {mode}, k records/s", read, "consume"))
        singles: dict[str, list[list[float]]] = {each.name: [] for each in contenders}
        for _ in range(repeats):
            for each in contenders:
                singles[each.name].append(latencies(each, 100, max(int(1000 * scale), 50)))
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            marks = {who: [percentile(run, share) * 1e6 for run in runs] for who, runs in singles.items()}
            rows.append(_less(f"one record acknowledged, {mode}, {name}, us", marks, "latency"))
        memory = {each.name: [each.process.resident_bytes() / MB] for each in contenders}
        rows.append(_less(f"resident memory after all that ({mode}), MB", memory, "memory"))
    return rows


def _faster(what: str, results: dict[str, list[float]], target: str) -> Row:
    ours, theirs = (f"{spread([value / 1000 for value in results[name]]):,.0f}" for name in (OURS, THEIRS))
    return Row(what, ours, theirs, ratios(results[OURS], results[THEIRS]), TARGETS[target])


def _less(what: str, results: dict[str, list[float]], target: str) -> Row:
    """Where less is better the ratio is turned around."""
    ours, theirs = (f"{spread(results[name]):,.0f}" for name in (OURS, THEIRS))
    return Row(what, ours, theirs, ratios(results[THEIRS], results[OURS]), TARGETS[target])


# -- from process start to the first acknowledged record ---------------------------------------------------------


def _first_record(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, **QUIET, "acks": "all", "linger.ms": 0})
    producer.produce("first", b"x")
    if producer.flush(SECONDS_MAX):
        raise RuntimeError("the first record was not acknowledged")


def start_ours(parent: str | None) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-kafka-", dir=parent) as folder:
        start = time.perf_counter()
        with ServerProcess(f"{folder}/data") as node:
            _first_record(f"127.0.0.1:{node.ports['kafka']}")
            return time.perf_counter() - start


def start_theirs() -> float:
    """Its folder is formatted before: that happens once in a cluster's life."""
    peer = KafkaPeer()
    peer.prepare()
    start = time.perf_counter()
    with peer:
        _first_record(peer.address())
        return time.perf_counter() - start


def starts(parent: str | None, repeats: int) -> list[Row]:
    runs: dict[str, Callable[[], float]] = {OURS: partial(start_ours, parent), THEIRS: start_theirs}
    results = {name: [value * 1000 for value in values] for name, values in interleave(runs, repeats).items()}
    return [_less("process start to first acknowledged record, ms", results, "start")]


# -- no client library: prepared requests ------------------------------------------------------------------------


def produce_request(topic: str, batch: bytes) -> bytes:
    partition = kafka.ProduceRequestPartition(0, batch)
    wanted = kafka.ProduceRequestTopic(topic, partition_data=[partition])
    return ClientConnection("bench").request(kafka.ProduceRequest(None, 1, 30_000, [wanted]), PRODUCE_VERSION)


def bare_receiver(ports: Any, answer_bytes: int) -> None:  # noqa: ANN401 - a queue of multiprocessing
    """In a process of its own: read frames, look at nothing but their length, answer each with a few bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports.put(server.getsockname()[1])
        while True:
            connection, _ = server.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _receive(connection, struct.pack(">I", answer_bytes) + bytes(answer_bytes))


def _receive(connection: socket.socket, answer: bytes) -> None:
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    frames = Frames()
    while size := connection.recv_into(buffer):
        if count := frames.feed(buffer[:size]):
            connection.sendall(answer * count)


def raw_speed(address: tuple[str, int], request: bytes, total: int) -> float:
    """MB/s of one connection with a few requests in flight."""
    line = Line(address)
    chunks = [request] * max(total // len(request), 2 * WINDOW)
    try:
        line.drive(chunks[:WINDOW], 1, Frames(), window=WINDOW)  # warm
        taken = line.drive(chunks, 1, Frames(), window=WINDOW)
    finally:
        line.close()
    return len(chunks) * len(request) / taken / MB


def raw(parent: str | None, repeats: int, scale: float) -> list[Row]:
    rows = []
    ports: Any = multiprocessing.get_context("spawn").Queue()
    bare = multiprocessing.get_context("spawn").Process(target=bare_receiver, args=(ports, 50), daemon=True)
    bare.start()
    try:
        bare_address = ("127.0.0.1", ports.get(timeout=SECONDS_MAX))
        with brokers(parent, fsync=False) as contenders:
            for size in RAW_BATCH_BYTES:
                value = os.urandom(1000)
                batch = encode_batch([value] * max(size // 1010, 1), base_timestamp=NOW_MS)
                total = int(500 * MB * scale)

                def into(contender: Contender, batch: bytes = batch, total: int = total) -> float:
                    topic = f"raw-{time.monotonic_ns()}"
                    make_topic(contender.address, topic)
                    host, port = contender.address.split(":")
                    return raw_speed((host, int(port)), produce_request(topic, batch), total)

                runs: dict[str, Callable[[], float]] = {each.name: partial(into, each) for each in contenders}
                runs[BARE] = partial(raw_speed, bare_address, produce_request("raw", batch), total)
                results = interleave(runs, repeats)
                what = f"raw Produce of {size // 1000} KB batches, MB/s"
                ours = f"{spread(results[OURS]):,.0f}"
                for peer, target in ((BARE, TARGETS["raw"]), (THEIRS, TARGETS["produce"])):
                    shown = f"{spread(results[peer]):,.0f} ({peer})"
                    rows.append(Row(what, ours, shown, ratios(results[OURS], results[peer]), target))
    finally:
        bare.kill()
        bare.join()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="throughput, start, raw; all without any")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="how much work in each run")
    parser.add_argument("--folder", help="where braidlog's data goes; Apache Kafka's goes to the temporary folder")
    options = parser.parse_args()
    parts: dict[str, Callable[[], list[Row]]] = {
        "start": lambda: starts(options.folder, options.repeats),
        "raw": lambda: raw(options.folder, options.repeats, options.scale),
        "throughput": lambda: [
            row
            for fsync in (False, True)
            for row in throughput(options.folder, fsync=fsync, repeats=options.repeats, scale=options.scale)
        ],
    }
    print(f"{options.repeats} repeats, median (lowest..highest); ratios above 1 are in our favour\n")
    print("| what | braidlog | the other | ratio | target |\n|---|---|---|---|---|")
    for name in options.parts or parts:
        for row in parts[name]():
            print(row, flush=True)


if __name__ == "__main__":
    main()
