"""Everything that is compared with others, in one command and a budget of minutes: `make bench`, or a part of it,
`make bench BENCH="--minutes 5 pings keys"`.

Knows: the questions, whom they are asked, what was wanted. Refuses to know: how a run is told (comparison.py). Groups of
questions share servers and the budget; within a group ours and theirs take turns, round by round, until its share is used.
Writes `bench.json` and a table beside it, and compares ratios with what `--keep` wrote beside this file: of the groups that were
asked on a quiet machine.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from tests.adapters.attackers import CONNECTIONS
from tests.adapters.rustlog.client import Client

from benchmarks import compaction, doors, flood, hostile, kv, modes, streams
from benchmarks.comparison import (
    BUSY_MAX,
    Asked,
    Question,
    Row,
    Run,
    Sample,
    answered,
    changes,
    load_run,
    merged,
    save_run,
    table,
)
from benchmarks.kafka import NOW_MS, OURS, Contender, consume, make_topic, produce, produce_request, raw_speed
from benchmarks.load import RECEIVE_BYTES, Cores, Frames, Line, cpu_seconds, percentile, placed
from benchmarks.measure import busy_share
from benchmarks.peers import redis
from braidlog.codec.batch.records import encode_batch
from braidlog.model.settings import Flush
from braidlog.wire.rustlog import messages as rustlog
from braidlog.wire.rustlog.connection import ClientConnection as RustlogClient

KEPT: Final = Path(__file__).parent / "kept.json"
MINUTES: Final = 10.0
ROUNDS_MIN: Final = 3
LOOKS: Final = 5
LOOK_SECONDS: Final = 1.0
FLOOD_SECONDS: Final = 3.0
WAIT_MS_MAX: Final = 30.0
RECORD_NS_MAX: Final = 65.0
REDIS: Final = "Redis 7"
STREAMS: Final = "Redis Streams"


class Group(NamedTuple):
    """Questions that share servers. `program`: what must be installed for the other side."""

    name: str
    open: Callable[[], AbstractContextManager[Asked]]
    program: str = ""


# -- small frames --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def pings() -> Iterator[Asked]:
    ping = RustlogClient(rustlog.Form.BINARY).request(rustlog.Ping())
    with doors.node(fsync=False) as braid, doors.bare_echo("echo") as bare, doors.bare_echo("framed") as framed:
        ours = (braid.server.address("rustlog"), braid.server.pid)

        def work(run: doors.Load, other: tuple[tuple[str, int], int], *, by_cpu: bool) -> Sample:
            mine, theirs = (run(address, pid, ping, 40_000) for address, pid in (ours, other))
            return Sample(mine[by_cpu], theirs[by_cpu], 1e6 / mine[1])

        many = partial(work, doors.ring, bare)
        yield [
            (Question("pings, 50 connections", "a bare echo", 0.75, "/s"), partial(many, by_cpu=False)),
            (
                Question("pings, 50 connections, by processor time", "a bare echo", 0.6, "/s"),
                partial(many, by_cpu=True),
            ),
            (
                Question("pings, pipelined", "an echo frame by frame", 0.65, "/s"),
                partial(work, doors.pipelined, framed, by_cpu=False),
            ),
        ]


# -- keys ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def keys(*, fsync: bool, feed: bool, wanted: dict[str, float]) -> Iterator[Asked]:
    what = ("fsync" if fsync else "feed on") if fsync or feed else "feed off"
    count = 30_000 if fsync else 200_000
    with kv.both(fsync=fsync, feed=feed) as (ours, theirs):
        kv.fill_both(ours, theirs)

        def pipelined(work: kv.Work) -> Sample:
            other = kv.rate(theirs.address, work.theirs, work, work.theirs_mark, count)
            before = cpu_seconds(ours.pid)
            mine = kv.rate(ours.address("mayfly"), work.ours, work, None, count)
            return Sample(mine, other, (cpu_seconds(ours.pid) - before) / count * 1e6)

        def lone(work: kv.Work, cores: Cores) -> Sample:
            return Sample(*kv.p50s(ours, theirs, work, 2_000, cores))

        peer = "Redis, AOF always" if fsync else REDIS
        asked: Asked = [
            (Question(f"{work.name}, pipelined, {what}", peer, wanted[work.name], "/s"), partial(pipelined, work))
            for work in kv.WORKS
        ]
        if not fsync and not feed:
            asked += [
                (
                    Question(f"{work.name}, alone, p50, {cores.value}", peer, 3.0, "µs", less_is_better=True),
                    partial(lone, work, cores),
                )
                for work, cores in product(kv.WORKS[:2], Cores)
            ]
        yield asked


# -- records -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def one_produce(*, fsync: bool) -> Iterator[Asked]:
    value, what = doors.value_of(100), "fsync" if fsync else "no fsync"
    with doors.node(fsync=fsync) as braid, redis.Redis(fsync=fsync) as other:
        door = doors.DOORS[0]
        line, theirs = braid.line(door), Line(other.address)
        request = door.client().request(door.produce(braid.topic(line, door), [value]))
        single = redis.Produce(b"l", value).single

        def work(cores: Cores) -> Sample:
            count = 1_000
            before = cpu_seconds(braid.server.pid)
            with placed(cores, braid.server.pid):
                mine = percentile(line.latencies(request, door.counter(), count), 0.5) * 1e6
            used = (cpu_seconds(braid.server.pid) - before) / count * 1e6
            with placed(cores, other.pid):
                taken = percentile(theirs.latencies(single, redis.Produce.counter(), count), 0.5) * 1e6
            return Sample(mine, taken, used)

        wanted = 1.5 if fsync else 1.8
        yield [
            (
                Question(
                    f"one acknowledged produce, {what}, p50, {cores.value}", STREAMS, wanted, "µs", less_is_better=True
                ),
                partial(work, cores),
            )
            for cores in Cores
        ]


@contextlib.contextmanager
def fetches() -> Iterator[Asked]:
    chunks, size = 100, 100
    value = doors.value_of(size)
    with doors.node(fsync=False) as braid, redis.Redis(fsync=False) as other:
        stored = doors.RedisLoad(other)
        plan = stored.stored(value, chunks)
        _, topic = braid.produce(doors.DOORS[0], value, 1000, chunks)

        def work(door: doors.Door, planned: tuple[list[bytes], int]) -> Sample:
            before = cpu_seconds(braid.server.pid)
            mine = braid.fetch(door, planned)
            used = (cpu_seconds(braid.server.pid) - before) / planned[1] * 1e6
            return Sample(mine, stored.fetch(plan), used)

        asked: Asked = []
        for door, wanted in zip(doors.DOORS[:2], (2.3, 2.0), strict=True):
            planned = braid.fetch_plan(door, topic, size, chunks * 1000)
            question = Question(f"fetch 1,000 records of 100 B, {door.name}", STREAMS, wanted, "records/s")
            asked.append((question, partial(work, door, planned)))
        yield asked


def writing_receiver(ports: Any, folder: str) -> None:  # noqa: ANN401 - a queue of multiprocessing
    """In a process of its own: read frames, look at nothing but their length, write them to the page cache, answer each."""
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    answer = (50).to_bytes(4) + bytes(50)
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports.put(server.getsockname()[1])
        while True:
            connection, _ = server.accept()
            frames = Frames()
            with connection, tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                while size := connection.recv_into(buffer):
                    file.write(buffer[:size])
                    if count := frames.feed(buffer[:size]):
                        connection.sendall(answer * count)


@contextlib.contextmanager
def raw_produce() -> Iterator[Asked]:
    batch = encode_batch([os.urandom(1000)] * 990, base_timestamp=NOW_MS)
    total = 200_000_000
    context = multiprocessing.get_context("spawn")
    with doors.node(fsync=False) as braid, tempfile.TemporaryDirectory(prefix="braid-bench-") as folder:
        ports: Any = context.Queue()
        bare = context.Process(target=writing_receiver, args=(ports, folder), daemon=True)
        bare.start()
        try:
            other = ("127.0.0.1", ports.get(timeout=60))
            host, port = braid.server.address("kafka")

            def work() -> Sample:
                topic = f"raw-{time.monotonic_ns()}"
                make_topic(f"{host}:{port}", topic)
                request = produce_request(topic, batch)
                before = cpu_seconds(braid.server.pid)
                mine = raw_speed((host, port), request, total)
                used = (cpu_seconds(braid.server.pid) - before) / (total / len(batch)) * 1e6
                return Sample(mine, raw_speed(other, request, total), used)

            peer = "a receiver that writes to the page cache, too"
            yield [(Question("raw Produce, batches of 1 MB", peer, 0.7, "MB/s"), work)]
        finally:
            bare.kill()
            bare.join()


@contextlib.contextmanager
def librdkafka_consumes() -> Iterator[Asked]:
    count = 1_000_000
    with doors.node(fsync=False) as braid:
        host, port = braid.server.address("kafka")
        ours, topics = Contender(OURS, f"{host}:{port}", braid.server), dict[str, str]()
        produce(ours, 100, "1", count, topics)

        def work() -> Sample:
            before = cpu_seconds(braid.server.pid)
            consume(ours, count, topics)
            return Sample((cpu_seconds(braid.server.pid) - before) / count * 1e9, RECORD_NS_MAX)

        what = "librdkafka consumes 100 B, the server's time for a record"
        yield [(Question(what, f"{RECORD_NS_MAX:g} ns", 1.0, "ns", less_is_better=True), work)]


# -- beside others ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def beside_a_flood() -> Iterator[Asked]:
    with doors.node(fsync=False) as braid:
        with Client(braid.server) as client:
            client.create(flood.TOPIC)
        address = braid.server.address("kafka")

        def work() -> Sample:
            with flood.flooded(braid.server):
                taken = asyncio.run(flood.ask_all(address, FLOOD_SECONDS))
            return Sample(taken[len(taken) // 2] * 1000, WAIT_MS_MAX)

        def kept() -> Sample:
            with flood.flooded(braid.server) as alone:
                asyncio.run(asyncio.sleep(FLOOD_SECONDS))
            with flood.flooded(braid.server) as beside:
                asyncio.run(flood.ask_all(address, FLOOD_SECONDS))
            return Sample(beside.commits_per_second, alone.commits_per_second)

        what = f"median wait of {flood.OTHERS} connections beside a flood"
        yield [
            (Question(what, f"{WAIT_MS_MAX:g} ms", 1.0, "ms", less_is_better=True), work),
            (Question(f"the flood beside {flood.OTHERS} connections", "the flood alone", 0.7, "commits/s"), kept),
        ]


@contextlib.contextmanager
def beside_attackers() -> Iterator[Asked]:
    with hostile.attacked_node() as measure:

        def work() -> Sample:
            attacked, calm = measure()
            return Sample(attacked * 1000, calm * 1000)

        what = f"p99 of a client beside {CONNECTIONS:,} hostile connections"
        yield [(Question(what, "without them", hostile.SLOWDOWN_MAX, "ms", less_is_better=True), work)]


@contextlib.contextmanager
def beside_a_compaction() -> Iterator[Asked]:
    with compaction.compacting_node(compaction.GB) as measure:

        def work() -> Sample:
            beside, calm = measure()
            return Sample(beside * 1000, calm * 1000)

        what = "p99 of produce while 1 GB is compacted (5 GB: `make bench-compaction`)"
        yield [(Question(what, "before that", compaction.SLOWDOWN_MAX, "ms", less_is_better=True), work)]


GROUPS: Final = (
    Group("pings", pings),
    Group("produce", partial(one_produce, fsync=False), "redis-server"),
    Group("produce-fsync", partial(one_produce, fsync=True), "redis-server"),
    Group("fetch", fetches, "redis-server"),
    Group("raw", raw_produce),
    Group("raw-fetch", streams.raw_fetches, "rabbitmq-server"),
    Group("clients", streams.clients, "rabbitmq-server"),
    Group("librdkafka", librdkafka_consumes),
    Group("flood", beside_a_flood),
    Group("hostile", beside_attackers),
    Group("compaction", beside_a_compaction),
    Group(
        "keys", partial(keys, fsync=False, feed=False, wanted={"SET": 1.2, "GET": 1.2, "INCR": 1.0}), "redis-server"
    ),
    Group("keys-feed", partial(keys, fsync=False, feed=True, wanted=dict.fromkeys(("SET", "GET", "INCR"), 0.8)), "redis-server"),
    Group("keys-fsync", partial(keys, fsync=True, feed=False, wanted=dict.fromkeys(("SET", "GET", "INCR"), 1.0)), "redis-server"),
    *(
        Group(f"modes-{flush.value}{'-feed' * feed}", partial(modes.modes, flush, feed=feed), "etcd")
        for flush, feed in product((Flush.INTERVAL, Flush.ACK), (False, True))
    ),
)  # fmt: skip

ELSEWHERE: Final = (
    Row(
        Question("librdkafka consumes 100 B", "Apache Kafka", 1.0, "records/s"),
        missing="by `make bench-kafka`, which needs Java and Maven",
    ),
)
"""What is wanted, and measured by another command."""


def measured(group: Group, seconds: float, clock: Callable[[], float] = time.monotonic) -> list[Row]:
    """Rounds of all its questions until its share of the budget is used, three of them at least."""
    if group.program and shutil.which(group.program) is None:
        missing = f"{group.program} is not installed (Debian: apt-get install {group.program})"
        return [Row(Question(group.name, group.program, 0.0, ""), missing=missing, group=group.name)]
    until = clock() + seconds
    try:
        with group.open() as asked:
            samples: list[list[Sample]] = [[] for _ in asked]
            while len(samples[0]) < ROUNDS_MIN or clock() < until:
                for kept, (_, work) in zip(samples, asked, strict=True):
                    kept.append(work())
            rows = [answered(question, found) for (question, _), found in zip(asked, samples, strict=True)]
            return [msgspec.structs.replace(row, group=group.name) for row in rows]
    except (OSError, RuntimeError) as error:  # the other groups are asked none the less
        return [Row(Question(group.name, "", 0.0, ""), missing=f"it failed: {error}", group=group.name)]


def others_share(looks: int = LOOKS, share: Callable[[float], float] = busy_share) -> float:
    """How busy others keep the machine. Servers that have just been stopped may have something to clear away: the quietest of a
    few looks counts, and the first that is quiet is enough."""
    least = 1.0
    for _ in range(looks):
        least = min(least, share(LOOK_SECONDS))
        if least <= BUSY_MAX:
            break
    return least


def run(groups: Sequence[Group], minutes: float, others: Callable[[], float]) -> Run:
    load = os.getloadavg()[0]
    rows: list[Row] = []
    for group in groups:
        busy = others()
        found = measured(group, minutes * 60 / len(groups))
        rows += [msgspec.structs.replace(row, busy=busy) for row in found]
    return Run(os.cpu_count() or 1, load, rows + list(ELSEWHERE))


def keep(found: Run, kept: Run | None, path: Path) -> list[str]:
    """Keep what can be compared with; what is to be said of it."""
    asked = dict.fromkeys(row.group for row in found.rows if row.group)
    spoiled = {row.group: row for row in found.rows if row.group and not row.is_kept}
    told = [f"kept: {', '.join(name for name in asked if name not in spoiled) or 'nothing'}"]
    told += [
        f"not kept: {name}: {row.missing or f'others had {row.busy:.0%} of the machine'}"
        for name, row in spoiled.items()
    ]
    if len(spoiled) < len(asked):
        save_run(merged(found, kept, [group.name for group in GROUPS]), path)
    return told


def refusal(groups: Sequence[Group], kept: Run | None, busy: float) -> str | None:
    """Why a run need not even begin if it is to be kept."""
    if busy > BUSY_MAX:
        return f"others have {busy:.0%} of the machine: end them (`top` names them), or run without --keep"
    cores = os.cpu_count() or 1
    if kept is not None and kept.cores != cores and len(groups) < len(GROUPS):
        return f"the kept run is of {kept.cores} cores and this machine has {cores}: keep all groups at once, not some"
    return None


def main(arguments: Sequence[str] | None = None, others: Callable[[], float] = others_share) -> None:
    names = [group.name for group in GROUPS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"all of {', '.join(names)} without any")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="for all together, about; three rounds each at least"
    )
    parser.add_argument("--keep", action="store_true", help="the next runs are compared with this one")
    options = parser.parse_args(arguments)
    if unknown := set(options.groups) - set(names):
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    kept = load_run(KEPT)
    groups = [group for group in GROUPS if not options.groups or group.name in options.groups]
    busy = others()
    if options.keep and (why := refusal(groups, kept, busy)) is not None:
        sys.exit(why)
    if busy > BUSY_MAX:
        print(f"others have {busy:.0%} of the machine: the figures tell of them as well", file=sys.stderr)
    found = run(groups, options.minutes, others)
    text = table(found, kept)
    save_run(found, Path("bench.json"))
    Path("bench.md").write_text(text, encoding="utf-8")
    print(text)
    for what, moved in changes(found, kept).items():
        print(f"{what}: {moved}")
    if kept is not None and kept.cores != found.cores:
        print(
            f"the kept run is of {kept.cores} cores, and this machine has {found.cores}: ratios may have moved by that"
        )
    if kept is None and not options.keep:
        print("no run is kept to compare with: --keep on a quiet machine keeps this one")
    if options.keep:
        print(*keep(found, kept, KEPT), sep="\n")


if __name__ == "__main__":
    main()
