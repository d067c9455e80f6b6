"""Keys of three nodes against a Redis Cluster of three masters with a replica each, in one run: `make bench-kv-cluster`.

Knows: what to ask of whom. Both are processes of their own on loopback, driven by the same loaders (load.py): prepared bytes out,
answers counted, one connection to each node that has keys, each in a process. Contenders take turns within each repeat.

| | braidlog | Redis Cluster |
|---|---|---|
| a SET is answered | when two of three nodes have synced it (QUORUM) | when its master synced it and one replica has it (WAIT) |
| processes | three nodes, three members of etcd | six servers |

Without `redis-server` (Debian: `apt-get install redis-server`) it says so, and measures nothing.
"""

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.synchronize import Barrier
from typing import NamedTuple

from benchmarks.cluster_nodes import Cluster, cluster
from benchmarks.kv import KEYS, PIPELINE, VALUE, WINDOW, key, mayfly_frames, redis_commands
from benchmarks.load import Answers, Line, Marks, cpu_seconds, percentile
from benchmarks.measure import ratios, spread
from benchmarks.peers import redis
from benchmarks.peers.redis_cluster import RedisCluster, missing, slot_of
from braidlog import connect
from braidlog.client.blocking import Client
from braidlog.kv.replicated.slots import slot_of as our_slot_of
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import ClientConnection, Request

Address = tuple[str, int]
_ANSWER = b"\xca\xfe\x01"
_OK = _ANSWER + b"\x01"
_WAIT = redis.command(b"WAIT", b"1", b"0")
_ASK_SECONDS_MAX = 2.0
FAIL_OVER_SECONDS_MAX = 30.0
START_SECONDS_MAX = 300.0


class Mark(NamedTuple):
    """What tells answers to a chunk: what each holds, what each holds that is no refusal, how many there are."""

    each: bytes
    well: bytes
    answers: int


class Side(NamedTuple):
    """One contender: who has which keys, what is sent for some of them, what its answers hold, whose processor time counts."""

    name: str
    keys: Mapping[Address, list[bytes]]
    set_chunk: Callable[[list[bytes]], bytes]
    set_mark: Mark
    get_chunk: Callable[[list[bytes]], bytes]
    get_mark: Mark
    pids: list[int]


# -- who has which keys ----------------------------------------------------------------------------------------------


def asked(address: Address, message: m.Message, *, version: int = 1) -> m.Message | None:
    """One answer of a node; None if it gives none."""
    client = ClientConnection()
    with contextlib.suppress(OSError), socket.create_connection(address, _ASK_SECONDS_MAX) as line:
        line.settimeout(_ASK_SECONDS_MAX)
        line.sendall(client.request(Request(client.next_id(), message), version=version))
        while data := line.recv(1 << 16):
            client.receive(data)
            said = client.next_event()
            if said is not NEED_DATA:
                found: m.Message | None = getattr(said, "message", None)
                return found
    return None


def ours_by_owner(nodes: Cluster) -> dict[Address, list[bytes]]:
    """A node of version 2 tells where the keys of a slot are: MOVED, or nothing of the kind if they are there."""
    first = nodes.nodes[min(nodes.nodes)]
    with connect(f"kafka://{nodes.addresses}") as client:
        _wait(lambda: _is_whole(client), "slots are made, and have all their replicas")
    found, owners = defaultdict(list), dict[int, Address]()
    for each in map(key, range(KEYS)):
        slot = our_slot_of(each)
        if slot not in owners:
            owners[slot] = _owner(first.address("mayfly"), each)
        found[owners[slot]].append(each)
    return dict(found)


def _is_whole(client: Client) -> bool:
    found = client.admin.describe_cluster()
    return bool(found.slots) and not found.weak_slots


def _owner(first: Address, each: bytes) -> Address:
    """When it has taken a SET of the key, so that whoever measures finds a leader with its replicas."""
    owner = [first]

    def is_set() -> bool:
        said = asked(owner[0], m.Set(each, VALUE), version=2)
        if isinstance(said, m.Moved):
            owner[0] = said.host, said.port
        return isinstance(said, m.Stored)

    _wait(is_set, f"{each!r} is set")
    return owner[0]


def _wait(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while not condition():
        if time.monotonic() > until:
            sys.exit(f"not within {START_SECONDS_MAX:g} s: {what}")
        time.sleep(0.05)  # noqa: TID251 - nothing is measured yet


def theirs_by_owner(peer: RedisCluster) -> dict[Address, list[bytes]]:
    owners, found = peer.owners(), defaultdict(list)
    for number in range(KEYS):
        found[owners[slot_of(key(number))]].append(key(number))
    return dict(found)


@contextlib.contextmanager
def both() -> Iterator[tuple[Side, Side, Cluster, RedisCluster]]:
    with cluster("--set", "kv.feed=false") as nodes, RedisCluster() as peer:
        sets = redis_commands(b"SET", VALUE)
        ours = Side(
            "braidlog", ours_by_owner(nodes),
            mayfly_frames(lambda each: m.Set(each, VALUE)), Mark(_ANSWER, _OK, PIPELINE),
            mayfly_frames(m.Get), Mark(_ANSWER, _OK, PIPELINE), nodes.pids,
        )  # fmt: skip
        theirs = Side(
            "redis", theirs_by_owner(peer),
            lambda keys: sets(keys) + _WAIT, Mark(b":1\r\n", b":1\r\n", 1),
            redis_commands(b"GET"), Mark(VALUE + b"\r\n", VALUE, PIPELINE), peer.pids,
        )  # fmt: skip
        yield ours, theirs, nodes, peer


# -- throughput ------------------------------------------------------------------------------------------------------


def _drive(
    address: Address,
    chunks: list[bytes],
    mark: Mark,
    barrier: Barrier,
    taken: "multiprocessing.Queue[tuple[float, int]]",
) -> None:
    line, counter = Line(address), Answers(mark.each, mark.well)
    barrier.wait()
    seconds = line.drive(chunks, mark.answers, counter, window=WINDOW)
    taken.put((seconds, len(chunks) * mark.answers - counter.well))
    line.close()


class Rate(NamedTuple):
    per_second: float
    """Of all connections together."""
    per_processor_second: float
    """Of all processes."""
    refused: int
    """Answers that say that it was not done, or that nobody knows: TIMEOUT, when replicas have not synced within 2 s."""


def rate(side: Side, make: Callable[[list[bytes]], bytes], mark: Mark, count: int) -> Rate:
    chance = random.Random(7)  # noqa: S311 - the same keys for everyone
    each = max(count // PIPELINE // len(side.keys), 1)
    chunks = {at: [make(chance.choices(keys, k=PIPELINE)) for _ in range(each)] for at, keys in side.keys.items()}
    barrier = multiprocessing.Barrier(len(chunks))
    taken: multiprocessing.Queue[tuple[float, int]] = multiprocessing.Queue()
    before = sum(map(cpu_seconds, side.pids))
    drivers = [
        multiprocessing.Process(target=_drive, args=(at, made, mark, barrier, taken)) for at, made in chunks.items()
    ]
    for driver in drivers:
        driver.start()
    found = [taken.get(timeout=300) for _ in drivers]
    for driver in drivers:
        driver.join()
    longest, refused = max(seconds for seconds, _ in found), sum(count for _, count in found)
    done = each * len(chunks) * PIPELINE - refused
    return Rate(done / longest, done / max(sum(map(cpu_seconds, side.pids)) - before, 0.01), refused)


def throughput(sides: Sequence[Side], count: int, repeats: int) -> None:
    for name in ("SET", "GET"):
        figures: dict[str, list[Rate]] = defaultdict(list)
        for _ in range(repeats):
            for side in reversed(sides):
                make, mark = (side.set_chunk, side.set_mark) if name == "SET" else (side.get_chunk, side.get_mark)
                figures[side.name].append(rate(side, make, mark, count))
        for at, called in enumerate(("/s", " per second of processor time")):
            mine, other = ([each[at] for each in figures[side.name]] for side in sides)
            print(
                f"{name} braidlog {spread(mine):>9,.0f}{called}   redis {spread(other):>9,.0f}{called}   "
                f"ratio {ratios(mine, other):.2f}"
            )
        for side in sides:
            if refused := sum(each.refused for each in figures[side.name]):
                print(f"{name} {side.name}: {refused} refused, and not counted above")


def latency(sides: Sequence[Side], count: int) -> None:
    for side in sides:
        (address, keys), *_ = side.keys.items()
        line, request = Line(address), side.set_chunk(keys[:1])
        counter = Answers(side.set_mark.each, side.set_mark.well)
        found = line.latencies(request, counter, count)
        line.close()
        print(
            f"one SET, {side.name}: p50 {percentile(found, 0.5) * 1e3:.2f} ms, p99 {percentile(found, 0.99) * 1e3:.2f} ms"
            f"{'' if counter.well == count else f', {count - counter.well} refused'}"
        )


# -- fail-over -------------------------------------------------------------------------------------------------------


def fail_over(ours: Side, nodes: Cluster, peer: RedisCluster) -> None:
    """kill -9 of the node that has a key, until a SET of it is answered again. Once each: what is left has no copy to spare."""
    chosen = key(7)
    for name, taken in (("braidlog", _ours_again(ours, nodes, chosen)), ("redis", _theirs_again(peer, chosen))):
        told = f"not within {FAIL_OVER_SECONDS_MAX:g} s" if taken is None else f"{taken:.2f} s"
        print(f"kill -9 of the node with a key, until it is set again, {name}: {told}")


def _until(is_set: Callable[[], bool]) -> float | None:
    start = time.monotonic()
    while time.monotonic() - start < FAIL_OVER_SECONDS_MAX:
        if is_set():
            return time.monotonic() - start
        time.sleep(0.01)  # noqa: TID251 - nothing else is measured meanwhile
    return None


def _ours_again(ours: Side, nodes: Cluster, chosen: bytes) -> float | None:
    owner = next(address for address, keys in ours.keys.items() if chosen in keys)
    number = next(number for number, node in nodes.nodes.items() if node.address("mayfly") == owner)
    others = [node.address("mayfly") for each, node in nodes.nodes.items() if each != number]
    os.kill(nodes.nodes[number].pid, signal.SIGKILL)
    return _until(lambda: any(isinstance(asked(each, m.Set(chosen, VALUE)), m.Stored) for each in others))


def _theirs_again(peer: RedisCluster, chosen: bytes) -> float | None:
    before = peer.owners()[slot_of(chosen)]
    peer.kill_master_of(chosen)

    def is_set() -> bool:
        now = peer.owners()[slot_of(chosen)]
        if now in (before, ("", 0)):
            return False
        with contextlib.suppress(OSError, ConnectionError):
            line = Line(now)
            return line.ask(redis.command(b"SET", chosen, VALUE), Marks(b"\r\n")).startswith(b"+OK")
        return False

    return _until(is_set)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="operations of each throughput run")
    parser.add_argument("--asked", type=int, default=2_000, help="requests of the latency run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a hundredth of it, to see that it runs")
    options = parser.parse_args()
    if why := missing():
        sys.exit(f"skipped: {why}")
    count, asks, repeats = (options.count // 100, options.asked // 100, 1) if options.quick else (
        options.count, options.asked, options.repeats
    )  # fmt: skip
    with both() as (ours, theirs, nodes, peer):
        print(
            f"## {PIPELINE} x {WINDOW} deep, a connection to each of {len(ours.keys)} and {len(theirs.keys)} nodes with keys"
        )
        throughput((ours, theirs), max(count, PIPELINE), repeats)
        print("\n## one at a time")
        latency((ours, theirs), max(asks, 10))
        print("\n## fail-over")
        fail_over(ours, nodes, peer)


if __name__ == "__main__":
    main()
