"""The key-value store against Redis, in one run: `make bench-kv`.

Knows: what to ask of whom, and the targets. Both servers are processes of their own on loopback, driven by the same loaders
(load.py): prepared bytes out, answers counted, several connections, each in a process. Contenders take turns within each repeat;
a ratio is one of neighbours. Durability is the same on both sides:

| | braidlog | Redis |
|---|---|---|
| always | kv.flush = ack | appendfsync always |
| everysec | kv.flush = interval | appendfsync everysec |

The change feed (`kv.feed`) has no equal in Redis: throughput is measured without it and with it.
"""

import argparse
import contextlib
import multiprocessing
import random
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

from benchmarks.load import Cores, Counter, Line, Marks, cpu_seconds, percentile, placed
from benchmarks.measure import ratios, seconds, spread
from benchmarks.peers import redis
from braidlog.testing.server import ServerProcess
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import Burst, ClientConnection, Request, ServerConnection

CONNECTIONS = 4
PIPELINE = 64
"""Commands in one chunk, of which `WINDOW` are under way on each connection."""
WINDOW = 4
KEYS = 10_000
VALUE = b"v" * 16
LATENCY_TARGET = 3.0
MEMORY_TARGET = 3.0


def key(number: int) -> bytes:
    return b"key:%06d" % number


def mayfly_frames(make: Callable[[bytes], m.Message]) -> Callable[[list[bytes]], bytes]:
    def chunk(keys: list[bytes]) -> bytes:
        client = ClientConnection()
        return b"".join([client.request(Request(client.next_id(), make(each))) for each in keys])

    return chunk


def redis_commands(name: bytes, *more: bytes) -> Callable[[list[bytes]], bytes]:
    def chunk(keys: list[bytes]) -> bytes:
        return b"".join([redis.command(name, each, *more) for each in keys])

    return chunk


def _mayfly_counter() -> Marks:
    """The head of an OK, which nothing else in these answers can look like: counted as cheaply as Redis's answers are."""
    return Marks(b"\xca\xfe\x01\x01")


class Work(NamedTuple):
    """One command, as each side writes it and as its answers are counted."""

    name: str
    prefix: bytes
    ours: Callable[[list[bytes]], bytes]
    theirs: Callable[[list[bytes]], bytes]
    theirs_mark: bytes


WORKS = (
    Work("SET", b"", mayfly_frames(lambda k: m.Set(k, VALUE)), redis_commands(b"SET", VALUE), b"+OK\r\n"),
    Work("GET", b"", mayfly_frames(m.Get), redis_commands(b"GET"), VALUE + b"\r\n"),
    Work("INCR", b"n", mayfly_frames(m.Incr), redis_commands(b"INCR"), b"\r\n"),
)

Targets = tuple[float, float, float]
"""Of SET, GET and INCR: operations/s beside Redis's."""
TARGETS: dict[tuple[bool, bool], Targets] = {
    (False, False): (1.2, 1.2, 1.0),
    (False, True): (0.8, 0.8, 0.8),
    (True, False): (1.0, 1.0, 1.0),
    (True, True): (0.8, 0.8, 0.8),
}
"""By whether each acknowledgement waits for the disk, and whether the change feed is written."""


# -- throughput ----------------------------------------------------------------------------------------------------


def _drive(
    address: tuple[str, int],
    chunks: list[bytes],
    mark: bytes | None,
    barrier: Barrier,
    taken: "multiprocessing.Queue[float]",
) -> None:
    counter: Counter = _mayfly_counter() if mark is None else Marks(mark)
    line = Line(address)
    barrier.wait()
    taken.put(line.drive(chunks, PIPELINE, counter, window=WINDOW))
    line.close()


def rate(
    address: tuple[str, int], make: Callable[[list[bytes]], bytes], work: Work, mark: bytes | None, count: int
) -> float:
    """Operations/s of several connections together, each a process with bytes prepared before the clock starts."""
    chance = random.Random(7)  # noqa: S311 - the same keys for everyone
    chunks = [
        make([work.prefix + key(chance.randrange(KEYS)) for _ in range(PIPELINE)])
        for _ in range(max(count // PIPELINE // CONNECTIONS, 1))
    ]
    barrier = multiprocessing.Barrier(CONNECTIONS)
    taken: multiprocessing.Queue[float] = multiprocessing.Queue()
    drivers = [
        multiprocessing.Process(target=_drive, args=(address, chunks, mark, barrier, taken)) for _ in range(CONNECTIONS)
    ]
    for driver in drivers:
        driver.start()
    longest = max(taken.get(timeout=300) for _ in drivers)
    for driver in drivers:
        driver.join()
    return len(chunks) * PIPELINE * CONNECTIONS / longest


def fill(address: tuple[str, int], make: Callable[[list[bytes]], bytes], counter: Counter, keys: int) -> None:
    line = Line(address)
    chunks = [make([key(n) for n in range(start, start + PIPELINE)]) for start in range(0, keys, PIPELINE)]
    line.drive(chunks, PIPELINE, counter, window=WINDOW)
    line.close()


@contextlib.contextmanager
def both(*, fsync: bool, feed: bool) -> Iterator[tuple[ServerProcess, redis.Redis]]:
    with tempfile.TemporaryDirectory(prefix="braid-bench-") as folder:
        flags = {"kv.flush": "ack" if fsync else "interval", "kv.feed": str(feed).lower()}
        changes = [part for name, value in flags.items() for part in ("--set", f"{name}={value}")]
        with ServerProcess(folder, *changes) as ours, redis.Redis(fsync=fsync, lazily="everysec") as theirs:
            yield ours, theirs


def fill_both(ours: ServerProcess, theirs: redis.Redis) -> None:
    fill(ours.address("mayfly"), WORKS[0].ours, _mayfly_counter(), KEYS)
    fill(theirs.address, WORKS[0].theirs, Marks(WORKS[0].theirs_mark), KEYS)


def throughput(ours: ServerProcess, theirs: redis.Redis, count: int, repeats: int, targets: Targets) -> None:
    address = ours.address("mayfly")
    fill_both(ours, theirs)
    for work, target in zip(WORKS, targets, strict=True):
        mine, other, busy = [], [], []
        for _ in range(repeats):
            other.append(rate(theirs.address, work.theirs, work, work.theirs_mark, count))
            before = cpu_seconds(ours.pid)
            mine.append(rate(address, work.ours, work, None, count))
            busy.append((cpu_seconds(ours.pid) - before) / count * 1e6)
        ratio = ratios(mine, other)
        print(
            f"{work.name:<5} braidlog {spread(mine):>9,.0f}/s   redis {spread(other):>9,.0f}/s   ratio {ratio:.2f}  "
            f"{_verdict(ratio.median >= target, target)}   {statistics.median(busy):.2f} µs of CPU each"
        )


def latency(ours: ServerProcess, theirs: redis.Redis, count: int, repeats: int) -> None:
    for work, cores in product(WORKS, Cores):
        mine, other = [], []
        for _ in range(repeats):
            own, their = p50s(ours, theirs, work, count, cores)
            mine.append(own)
            other.append(their)
        ratio = ratios(mine, other)
        print(
            f"{work.name:<5} braidlog {spread(mine):>6.0f} µs   redis {spread(other):>6.0f} µs   ratio {ratio:.2f}  "
            f"{_verdict(ratio.median <= LATENCY_TARGET, LATENCY_TARGET)}   client and server on {cores.value}"
        )


def p50s(ours: ServerProcess, theirs: redis.Redis, work: Work, count: int, cores: Cores) -> tuple[float, float]:
    """Ours and theirs in µs, one after the other."""
    with placed(cores, theirs.pid):
        other = _p50(theirs.address, work.theirs, work, Marks(work.theirs_mark), count)
    with placed(cores, ours.pid):
        return _p50(ours.address("mayfly"), work.ours, work, _mayfly_counter(), count), other


def _p50(
    address: tuple[str, int], make: Callable[[list[bytes]], bytes], work: Work, counter: Counter, count: int
) -> float:
    line = Line(address)
    request = make([work.prefix + key(1)])
    line.latencies(request, counter, count // 10)
    found = percentile(line.latencies(request, counter, count), 0.5) * 1e6
    line.close()
    return found


# -- the wire alone ------------------------------------------------------------------------------------------------


HOT: tuple[tuple[m.Message, m.Message], ...] = (
    (m.Get(key(1)), m.Value(VALUE)),
    (m.Set(key(1), VALUE), m.STORED),
    (m.Del(key(1)), m.MISSING),
    (m.Incr(key(1)), m.Number(5)),
    (m.Ping(), m.DONE),
    (m.RPush(key(1), (VALUE,)), m.Length(5)),
    (m.HGet(key(1), b"field"), m.Value(VALUE)),
)


def wire(repeats: int, count: int = 20_000) -> None:
    """What reading a request and writing its answer takes, without sockets and without a store: one by one, and in bursts."""
    for message, answer in HOT:
        data = mayfly_frames(lambda _, message=message: message)([b""] * count)  # type: ignore[misc]
        taken = {most: min(_parse(data, most, answer) for _ in range(repeats)) / count * 1e9 for most in (1, 64)}
        print(f"{type(message).__name__:<6} {taken[1]:>6.0f} ns one by one   {taken[64]:>6.0f} ns in bursts")


def _parse(data: bytes, burst_max: int, answer: m.Message) -> float:
    server = ServerConnection(burst_max=burst_max)

    def work() -> None:
        server.receive(data)
        while (event := server.next_event()) is not NEED_DATA:
            server.respond(event, [answer] * len(event) if isinstance(event, Burst) else answer)

    return seconds(work)


# -- memory --------------------------------------------------------------------------------------------------------


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024


def memory(keys: int) -> None:
    """Resident bytes for each small key, in fresh servers: what the first keys cost once is left out."""
    base = keys // 10 // PIPELINE * PIPELINE
    keys = keys // PIPELINE * PIPELINE
    with both(fsync=False, feed=False) as (ours, theirs):
        grown = []
        for pid, address, make, counter in (
            (ours.pid, ours.address("mayfly"), WORKS[0].ours, _mayfly_counter),
            (theirs.pid, theirs.address, WORKS[0].theirs, lambda: Marks(WORKS[0].theirs_mark)),
        ):
            fill(address, make, counter(), base)
            before = resident_bytes(pid)
            line = Line(address)
            chunks = [make([key(n) for n in range(at, at + PIPELINE)]) for at in range(base, base + keys, PIPELINE)]
            line.drive(chunks, PIPELINE, counter(), window=WINDOW)
            line.close()
            grown.append((resident_bytes(pid) - before) / keys)
    ratio = grown[0] / grown[1]
    print(
        f"{keys:,} keys of 10 bytes, values of {len(VALUE)}: braidlog {grown[0]:.0f} B, redis {grown[1]:.0f} B each, "
        f"ratio {ratio:.2f}  {_verdict(ratio <= MEMORY_TARGET, MEMORY_TARGET)}"
    )


def _verdict(reached: bool, target: float) -> str:  # noqa: FBT001 - the verdict itself
    return f"(target {target:g}: {'reached' if reached else 'MISSED'})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400_000, help="operations of each throughput run")
    parser.add_argument("--asked", type=int, default=2_000, help="requests of each latency run")
    parser.add_argument("--keys", type=int, default=500_000, help="keys of the memory run")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print("## reading a request and writing its answer, the best of some runs")
    wire(options.repeats)
    for (fsync, feed), targets in TARGETS.items():
        called = f"{'always' if fsync else 'everysec'}, change feed {'on' if feed else 'off'}"
        with both(fsync=fsync, feed=feed) as (ours, theirs):
            print(
                f"\n## {called}, {CONNECTIONS} connections, {PIPELINE} x {WINDOW} deep: operations/s, median (low..high)"
            )
            throughput(ours, theirs, options.count // (4 if fsync else 1), options.repeats, targets)
            if not feed:
                print(f"\n## {called}, one connection, one at a time: p50")
                latency(ours, theirs, options.asked, options.repeats)
    print("\n## memory")
    memory(options.keys)


if __name__ == "__main__":
    main()
