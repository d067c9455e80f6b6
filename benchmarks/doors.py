"""The four doors against NATS JetStream, Redis Streams and a bare echo, all in one run: `make bench-doors`.

Knows: what to ask of whom, and the targets. Every server is a process of its own, on loopback; every one of them is driven by the
same loader (load.py), which sends prepared bytes and counts answers, so that what is compared are servers, not client libraries.
Contenders take turns within each repeat; a ratio is one of neighbours. Durability is the same on both sides:

| | braidlog | NATS | Redis |
|---|---|---|---|
| fsync | flush = ack | sync_interval always | appendfsync always |
| no fsync | flush = os | sync_interval 10m | appendfsync no |
"""

import argparse
import contextlib
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from benchmarks.echo import serve_echo
from benchmarks.load import Counter, Frames, Line, Marks, cpu_seconds, percentile
from benchmarks.measure import Spread, ratios, spread
from benchmarks.peers import nats, redis
from braidlog.testing.server import ServerProcess
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.cursus import requests as cursus
from braidlog.wire.cursus.batch import Batch, BatchRecord
from braidlog.wire.cursus.connection import ClientConnection as CursusClient
from braidlog.wire.flux import messages as flux
from braidlog.wire.flux.connection import ClientConnection as FluxClient
from braidlog.wire.mlog import messages as mlog
from braidlog.wire.mlog.connection import ClientConnection as MlogClient
from braidlog.wire.rustlog import messages as rustlog
from braidlog.wire.rustlog.connection import ClientConnection as RustlogClient

MARK = b"<braid!>"
WINDOW = 8
Load = Callable[[tuple[str, int], int, bytes, int], tuple[float, float]]
"""load(address, pid of the server, a frame, how many) → frames per second, and per second of the server's processor time."""
FETCH_WINDOW = 4
FETCH_RECORDS = 1000
LIMIT = "(bare loop)"


class Door(NamedTuple):
    """One way to speak to braidlog: how to ask, and how its answers are counted."""

    name: str
    dialect: str
    client: Callable[[], Any]
    counter: Callable[[], Counter]
    create: Callable[[str], Any]
    produce: Callable[[str, list[bytes]], Any]
    fetch: Callable[[str, int, int], Any]
    """(topic, offset, bytes of a record): FETCH_RECORDS of them, in the dialect's own words."""
    fetched: Callable[[Any], int]
    """How many records an answer holds."""
    produce_target: float
    fetch_target: float
    batches: bool = True


def _frames() -> Frames:
    return Frames()


def _rustlog(name: str, form: rustlog.Form, target: float) -> Door:
    return Door(
        name,
        "rustlog",
        lambda: RustlogClient(form),
        _frames,
        lambda topic: rustlog.CreateTopic(topic=topic, partition_count=1),
        lambda topic, values: rustlog.Produce(topic=topic, partition=0, records=values),
        lambda topic, offset, size: rustlog.Fetch(
            group_id="", topic=topic, partition=0, offset=offset, max_bytes=FETCH_RECORDS * size
        ),
        lambda answer: len(answer.message.records),
        target,
        target,
    )


DOORS = (
    _rustlog("RustLog binary", rustlog.Form.BINARY, 3.0),
    Door(
        "Cursus",
        "cursus",
        CursusClient,
        _frames,
        lambda topic: cursus.Create(topic, 1),
        lambda topic, values: Batch(topic, 0, tuple(BatchRecord(value) for value in values)),
        lambda topic, offset, _: cursus.Consume(topic, 0, offset, records_max=FETCH_RECORDS),
        lambda answer: len(answer.records),
        3.0,
        3.0,
    ),
    _rustlog("RustLog JSON", rustlog.Form.JSON, 1.0),
    Door(
        "mlog",
        "mlog",
        MlogClient,
        lambda: Frames(size=6, at=2),
        mlog.CreateTopicRequest,
        lambda topic, values: mlog.ProduceBatchRequest(topic, tuple(values), mlog.AckMode.LEADER),
        lambda topic, offset, _: mlog.FetchBatchRequest(topic, "", offset, FETCH_RECORDS),
        lambda answer: len(answer.entries),
        1.0,
        1.0,
    ),
    Door(
        "Flux",
        "flux",
        FluxClient,
        lambda: Marks(b"\n"),
        lambda topic: flux.CreateTopic("c", topic, 1, 1),
        lambda topic, values: flux.Produce("p", topic, b"k", values[0]),
        lambda topic, offset, _: flux.Consume("f", topic, 0, offset, records_max=FETCH_RECORDS),
        lambda answer: len(answer.answer.records),
        0.0,
        0.0,
        batches=False,
    ),
)


def ask(line: Line, door: Door, message: Any) -> Any:  # noqa: ANN401 - each dialect has its own messages
    """One request, its answer understood; an error is raised."""
    client = door.client()
    client.receive(line.ask(client.request(message), door.counter()))
    answer = client.next_event()
    said = repr(answer)
    if answer is NEED_DATA or any(word in said[:120] for word in ("Error", "Refused", "Failure")):
        raise RuntimeError(f"{door.name} answered {said[:300]}")
    return answer


class Node:
    """A braidlog server and the work that is done with it."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.topics = 0

    def line(self, door: Door) -> Line:
        return Line(self.server.address(door.dialect))

    def topic(self, line: Line, door: Door) -> str:
        self.topics += 1
        name = f"bench{self.topics}"
        ask(line, door, door.create(name))
        return name

    def produce(self, door: Door, value: bytes, per_batch: int, batches: int) -> tuple[float, str]:
        """Records/s of `batches` requests of `per_batch` records each."""
        line = self.line(door)
        topic = self.topic(line, door)
        values = [value] * per_batch
        ask(line, door, door.produce(topic, values))  # also checks that it is taken
        frame = door.client().request(door.produce(topic, values))
        taken = line.drive([frame] * batches, 1, door.counter(), window=WINDOW)
        line.close()
        return per_batch * batches / taken, topic

    def fetch_plan(self, door: Door, topic: str, size: int, records: int) -> tuple[list[bytes], int]:
        """The requests that read the first `records` records: each begins where the one before ended."""
        line = self.line(door)
        frames, offset = [], 0
        while offset < records:
            message = door.fetch(topic, offset, size)
            count = door.fetched(ask(line, door, message))
            if not count:
                raise RuntimeError(f"{door.name} gives nothing at {offset}")
            frames.append(door.client().request(message))
            offset += count
        line.close()
        return frames, offset

    def fetch(self, door: Door, plan: tuple[list[bytes], int]) -> float:
        frames, records = plan
        line = self.line(door)
        taken = line.drive(frames, 1, door.counter(), window=FETCH_WINDOW)
        line.close()
        return records / taken


@contextlib.contextmanager
def node(*, fsync: bool) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="braid-bench-") as folder:
        flush = f"topics.flush={'ack' if fsync else 'os'}"
        with ServerProcess(folder, "--set", flush) as server:
            yield Node(server)


def value_of(size: int) -> bytes:
    return MARK + b"x" * (size - len(MARK))


# -- throughput ------------------------------------------------------------------------------------------------


class NatsLoad:
    """JetStream's two ways to publish, and its push consumer."""

    def __init__(self, server: nats.Nats) -> None:
        self._server = server
        self._streams = 0

    def _stream(self, line: Line) -> str:
        self._streams += 1
        name = f"S{self._streams}"
        self._server.create_stream(line, name)
        return name

    def produce(self, value: bytes, chunks: int, make: Callable[[str, bytes], Any]) -> float:
        line = self._server.connect()
        work = make(self._stream(line), value)
        taken = line.drive(work.chunks(chunks), work.per_chunk, work.counter(), window=WINDOW)
        line.close()
        return chunks * nats.CHUNK / taken

    def stored(self, value: bytes, chunks: int) -> str:
        line = self._server.connect()
        stream = self._stream(line)
        work = nats.Produce(stream, value)
        line.drive(work.chunks(chunks), work.per_chunk, work.counter(), window=WINDOW)
        line.close()
        return stream

    def fetch(self, stream: str, records: int) -> float:
        line = self._server.connect()
        self._streams += 1
        deliver = f"deliver{self._streams}"
        line.socket.sendall(f"SUB {deliver} 2\r\n".encode())
        request = self._server.consume_request(stream, f"C{self._streams}", deliver)
        taken = line.drive([request], records, Marks(MARK), window=records)
        line.close()
        return records / taken


class RedisLoad:
    """XADD and XRANGE."""

    def __init__(self, server: redis.Redis) -> None:
        self._server = server
        self._keys = 0

    def produce(self, value: bytes, chunks: int) -> float:
        line = Line(self._server.address)
        self._keys += 1
        work = redis.Produce(b"k%d" % self._keys, value)
        taken = line.drive(work.chunks(chunks), work.per_chunk, work.counter(), window=WINDOW)
        line.ask(redis.command(b"DEL", b"k%d" % self._keys), Marks(b"\r\n"))
        line.close()
        return chunks * redis.CHUNK / taken

    def stored(self, value: bytes, chunks: int) -> redis.Fetch:
        line = Line(self._server.address)
        work = redis.Produce(b"kept", value)
        line.ask(redis.command(b"DEL", b"kept"), Marks(b"\r\n"))
        line.drive(work.chunks(chunks), work.per_chunk, work.counter(), window=WINDOW)
        plan = redis.Fetch(line, b"kept", MARK, chunks * redis.CHUNK)
        line.close()
        return plan

    def fetch(self, plan: redis.Fetch) -> float:
        line = Line(self._server.address)
        taken = line.drive(plan.chunks, redis.CHUNK, plan.counter(), window=FETCH_WINDOW)
        line.close()
        return len(plan.chunks) * redis.CHUNK / taken


def throughput(*, fsync: bool, size: int, repeats: int, scale: float) -> None:
    value = value_of(size)
    per_batch = 1000 if size <= 200 else 100
    ours = max(int((1500 if size <= 200 else 3000) * scale), 10)
    theirs = max(int((200 if size <= 200 else 100) * scale), 4)
    print(f"\n## {size} B records, {'fsync' if fsync else 'no fsync'}: records/s, median (low..high) of {repeats}")
    with node(fsync=fsync) as braid, nats.Nats(fsync=fsync) as nats_server, redis.Redis(fsync=fsync) as redis_server:
        jet, red = NatsLoad(nats_server), RedisLoad(redis_server)
        few = max(theirs // 50, 2) if fsync else theirs  # one sync per message: a few thousand a second
        produce: dict[str, Callable[[], float]] = {
            "NATS": lambda: jet.produce(value, few, nats.Produce),
            "NATS batches": lambda: jet.produce(value, theirs, nats.ProduceBatches),
            "Redis": lambda: red.produce(value, theirs),
        }
        topics: dict[str, str] = {}
        for door in DOORS:
            batch, count = (per_batch, ours) if door.batches else (1, max(int(20_000 * scale), 1000))
            count = count if door.produce_target >= 3 else max(count // 4, 10)
            produce[door.name] = _kept(topics, door, partial(braid.produce, door, value, batch, count))
        _report("produce", produce, {door.name: door.produce_target for door in DOORS}, repeats)
        if fsync:
            return  # reading does not sync anything
        stream, plan = jet.stored(value, theirs), red.stored(value, theirs)
        fetch: dict[str, Callable[[], float]] = {
            "NATS": lambda: jet.fetch(stream, theirs * nats.CHUNK),
            "Redis": lambda: red.fetch(plan),
        }
        for door in DOORS:
            records = theirs * 1000 if door.batches else int(20_000 * scale)
            planned = braid.fetch_plan(door, topics["RustLog binary"], size, records)
            fetch[door.name] = partial(braid.fetch, door, planned)
        with bare_echo("sender", FETCH_RECORDS * (size + 4)) as (address, _):
            fetch[LIMIT] = partial(_limit, address, theirs)
            _report("fetch", fetch, {door.name: door.fetch_target for door in DOORS}, repeats)


def _limit(address: tuple[str, int], requests: int) -> float:
    """Records/s if nobody had to look for them: a loop that only sends as many bytes as RustLog's binary answers have."""
    line = Line(address)
    taken = line.drive([bytes(4)] * requests, 1, Frames(), window=FETCH_WINDOW)
    line.close()
    return requests * FETCH_RECORDS / taken


def _kept(topics: dict[str, str], door: Door, run: Callable[[], tuple[float, str]]) -> Callable[[], float]:
    def work() -> float:
        rate, topics[door.name] = run()
        return rate

    return work


def _report(what: str, contenders: dict[str, Callable[[], float]], targets: dict[str, float], repeats: int) -> None:
    results: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, run in contenders.items():
            results[name].append(run())
    peers = [name for name in contenders if name not in targets and name != LIMIT]
    best = max(peers, key=lambda name: statistics.median(results[name]))
    for name, rates in results.items():
        line = f"{what:8} {name:16} {_big(spread(rates)):34}"
        if name in targets:
            ratio = ratios(rates, results[best])
            line += f" {ratio:.2f} of {best}" + _judged(ratio.median >= targets[name], targets[name])
            if LIMIT in results:
                line += f"; {ratios(rates, results[LIMIT]).median:.2f} of the loopback"
        print(line, flush=True)


def _judged(reached: bool, target: float) -> str:  # noqa: FBT001
    return "" if not target else f", target {target:g}: {'reached' if reached else 'MISSED'}"


def _big(values: Spread) -> str:
    return f"{values.median:12,.0f} ({values.low:,.0f}..{values.high:,.0f})"


# -- latency ---------------------------------------------------------------------------------------------------


def latency(*, fsync: bool, repeats: int, count: int) -> None:
    """One record, acknowledged, then the next: p50 and p99, against the peer that is faster at each."""
    value = value_of(100)
    print(
        f"\n## one acknowledged 100 B produce after another, {'fsync' if fsync else 'no fsync'}: µs of {repeats} times {count}"
    )
    with contextlib.ExitStack() as stack:
        braid = stack.enter_context(node(fsync=fsync))
        nats_server = stack.enter_context(nats.Nats(fsync=fsync))
        redis_server = stack.enter_context(redis.Redis(fsync=fsync))
        line = nats_server.connect()
        nats_server.create_stream(line, "L")
        contenders: dict[str, tuple[Line, bytes, Callable[[], Counter]]] = {
            "NATS": (line, nats.Produce("L", value).single, nats.Produce.counter),
            "Redis": (Line(redis_server.address), redis.Produce(b"l", value).single, redis.Produce.counter),
        }
        for door in DOORS:
            line = braid.line(door)
            request = door.client().request(door.produce(braid.topic(line, door), [value]))
            contenders[door.name] = (line, request, door.counter)
        results: dict[str, list[tuple[float, float]]] = {}
        echo = stack.enter_context(bare_echo("echo"))
        contenders[LIMIT] = (Line(echo[0]), contenders["RustLog binary"][1], lambda: Marks(MARK))
        for line, request, counter in contenders.values():
            line.latencies(request, counter(), max(count // 10, 10))
        for _ in range(repeats):
            for name, (line, request, counter) in contenders.items():
                taken = line.latencies(request, counter(), count)
                results.setdefault(name, []).append((percentile(taken, 0.5) * 1e6, percentile(taken, 0.99) * 1e6))
        for number, what in enumerate(("p50", "p99")):
            peers = {name: [pair[number] for pair in results[name]] for name in ("NATS", "Redis")}
            best = min(peers, key=lambda name: statistics.median(peers[name]))
            for name, pairs in results.items():
                values = [pair[number] for pair in pairs]
                text = f"{what} {name:16} {spread(values):.0f}"
                if name not in peers and name != LIMIT:
                    ratio = ratios(values, peers[best])
                    text = f"{text:50} {ratio:.2f} of {best}" + _judged(ratio.median <= 1.5, 1.5)
                print(text, flush=True)


# -- small frames ----------------------------------------------------------------------------------------------


def small_frames(*, repeats: int, count: int) -> None:
    """Pings against echoes: the same bytes, one frame a read from many connections, then a pipeline."""
    print(f"\n## pings (RustLog binary) against a bare uvloop echo of the same bytes; {repeats} repeats")
    ping = RustlogClient(rustlog.Form.BINARY).request(rustlog.Ping())
    with node(fsync=False) as braid, bare_echo("echo") as bare, bare_echo("framed") as framed:
        ours = (braid.server.address("rustlog"), braid.server.pid)
        for what, other, work in (
            ("50 connections, one frame each", bare, ring),
            ("one connection, pipelined, echo frame by frame", framed, pipelined),
        ):
            wall: list[tuple[float, float]] = []
            cpu: list[tuple[float, float]] = []
            for _ in range(repeats):
                pairs = [work(address, pid, ping, count) for address, pid in (ours, other)]
                wall.append((pairs[0][0], pairs[1][0]))
                cpu.append((pairs[0][1], pairs[1][1]))
            for unit, rates in (("second", wall), ("second of the server's CPU", cpu)):
                mine, echo = [a for a, _ in rates], [b for _, b in rates]
                ratio = ratios(mine, echo)
                text = f"{what}, frames per {unit}: {_big(spread(mine))}, echo {_big(spread(echo))}"
                print(f"{text}: {ratio:.2f}{_judged(ratio.median >= 0.6, 0.6)}", flush=True)


def ring(address: tuple[str, int], pid: int, ping: bytes, count: int) -> tuple[float, float]:
    """Fifty clients, each with one frame on its way: sent in turn, gathered in turn."""
    lines = [Line(address) for _ in range(50)]
    size = len(ping)
    before = cpu_seconds(pid)
    start = _now()
    rounds = max(count // len(lines), 1)
    for _ in range(rounds):
        for line in lines:
            line.socket.send(ping)
        for line in lines:
            got = len(line.socket.recv(4096))
            assert got == size, f"{got} bytes came back, {size} went out"
    taken, used = _now() - start, cpu_seconds(pid) - before
    for line in lines:
        line.close()
    return rounds * len(lines) / taken, rounds * len(lines) / max(used, 0.01)


def pipelined(address: tuple[str, int], pid: int, ping: bytes, count: int) -> tuple[float, float]:
    line = Line(address)
    chunks = max(count * 4 // 1000, 1)
    before = cpu_seconds(pid)
    taken = line.drive([ping * 1000] * chunks, 1000, Frames(), window=4)
    used = cpu_seconds(pid) - before
    line.close()
    return chunks * 1000 / taken, chunks * 1000 / max(used, 0.01)


def _now() -> float:
    import time  # noqa: PLC0415 - the only clock here

    return time.perf_counter()


@contextlib.contextmanager
def bare_echo(kind: str, size: int = 0) -> Iterator[tuple[tuple[str, int], int]]:
    context = multiprocessing.get_context("spawn")
    ports: Any = context.Queue()
    process = context.Process(target=serve_echo, args=(ports, kind, size), daemon=True)
    process.start()
    try:
        assert process.pid is not None
        yield ("127.0.0.1", ports.get(timeout=60)), process.pid
    finally:
        process.terminate()
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["throughput", "latency", "frames"], help="which parts to run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="how much work in each run")
    options = parser.parse_args()
    if "frames" in options.parts:
        small_frames(repeats=options.repeats, count=int(100_000 * options.scale))
    if "throughput" in options.parts:
        for fsync in (False, True):
            for size in (100, 1024):
                throughput(fsync=fsync, size=size, repeats=options.repeats, scale=options.scale)
    if "latency" in options.parts:
        for fsync in (False, True):
            latency(fsync=fsync, repeats=options.repeats, count=max(int(2000 * options.scale), 100))


if __name__ == "__main__":
    main()
