"""Three nodes of ours against three of Apache Kafka in KRaft mode, in one run.

Knows: what to ask of whom, and the targets. Both clusters run on this machine, on the same disk, driven by the same librdkafka
with `acks = all`, three replicas, two of them needed; they take turns within each repeat, and a ratio is one of neighbours.
Processor time is that of all server processes, ours with etcd's members. Durability is said with each row: Kafka never syncs
before it acknowledges; ours does not with `flush = os`, and with `flush = ack` it does on every node that counts.
Refuses to know: networks and disks of several machines. Clients and six servers share the cores of this one: what a core more
would give to either is not seen here.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from benchmarks.cluster_load import SECONDS_MAX, Topic, delete_topic, make_topic, produce, singles
from benchmarks.cluster_nodes import NUMBERS, ask, cluster, partitions_by, processor_seconds
from benchmarks.kafka import OURS, THEIRS, Row
from benchmarks.load import percentile
from benchmarks.measure import ratios, spread
from benchmarks.peers.kafka_cluster import KafkaCluster
from braidlog.wire.kafka.messages import placement as p

MB = 1_000_000
GB = 1_000_000_000
PARTITIONS = 6
MIN_IN_SYNC = {"min.insync.replicas": "2"}
UNSYNCED, SYNCED = "flush = os", "flush = ack on ours"
SETTINGS = {UNSYNCED: {"braidlog.flush": "os"}, SYNCED: {"braidlog.flush": "ack"}}
COST_TARGET = 3.33
WARM_MB = 200
SINGLES = 1000
REASSIGN_VERSION = 0
LOOK_SECONDS = 0.1
REST_SECONDS = 5.0
Found = TypeVar("Found")


class Nodes(Protocol):
    """What both clusters can do."""

    @property
    def addresses(self) -> str: ...

    @property
    def pids(self) -> list[int]: ...

    def resident_bytes(self) -> list[int]: ...


class Side(NamedTuple):
    name: str
    nodes: Nodes

    def used(self) -> float:
        """Seconds of a processor so far, of all its processes."""
        return sum(map(processor_seconds, self.nodes.pids))


class Options(NamedTuple):
    repeats: int
    mb: int
    """Of records in each run."""
    gb: float
    """That an empty follower copies."""
    clients: int
    partitions: int
    """Of a cluster at rest."""


@contextmanager
def both(parent: str | None = None) -> Iterator[list[Side]]:
    with cluster(parent=parent) as ours, KafkaCluster() as theirs:
        yield [Side(OURS, ours), Side(THEIRS, theirs)]


def _row(
    what: str, ours: Sequence[float], theirs: Sequence[float], target: float, form: str, *, less: bool = False
) -> Row:
    """`less`: where less is better the ratio is turned around, so that more is always in our favour."""
    ratio = ratios(theirs, ours) if less else ratios(ours, theirs)
    return Row(what, f"{spread(ours):{form}}", f"{spread(theirs):{form}}", ratio, target)


def _in_turns(sides: list[Side], repeats: int, run: Callable[[Side, dict[str, str]], Found]) -> dict[str, list[Found]]:
    """One after another, ours with a sync before each acknowledgement and without: what the machine does meets all alike."""
    ours, theirs = sides
    contenders = {UNSYNCED: (ours, SETTINGS[UNSYNCED]), SYNCED: (ours, SETTINGS[SYNCED]), THEIRS: (theirs, {})}
    found: dict[str, list[Found]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, (side, settings) in contenders.items():
            found[name].append(run(side, settings))
    return found


# -- records in ----------------------------------------------------------------------------------------------------


def _run(side: Side, settings: dict[str, str], *, size: int, count: int, clients: int) -> tuple[float, float]:
    """Records a second, and processor seconds for a gigabyte."""
    topic = make_topic(side.nodes.addresses, Topic(PARTITIONS, MIN_IN_SYNC | settings))
    used = side.used()
    seconds = produce(side.nodes.addresses, topic, PARTITIONS, size, count, clients)
    cost = (side.used() - used) / (count * size) * GB
    delete_topic(side.nodes.addresses, topic)
    return count / seconds, cost


def throughput(sides: list[Side], asked: Options) -> Iterator[Row]:
    for size, mb in ((1024, asked.mb), (100, asked.mb // 2)):
        run = partial(_run, size=size, clients=asked.clients)
        # The first is not counted: a virtual machine compiles what it sees often.
        _in_turns(sides, 1, partial(run, count=max(mb, WARM_MB) * MB // size))
        found = _in_turns(sides, asked.repeats, partial(run, count=mb * MB // size))
        rates = {name: [rate for rate, _ in runs] for name, runs in found.items()}
        costs = {name: [cost for _, cost in runs] for name, runs in found.items()}
        for mode, wanted in ((UNSYNCED, 1.3), (SYNCED, 1.0)):
            what = f"produce {size} B, acks all, three replicas, {mode}"
            for unit, scale in (("k records/s", 1000), ("MB/s", MB / size)):
                ours, theirs = ([rate / scale for rate in rates[name]] for name in (mode, THEIRS))
                yield _row(f"{what}, {unit}", ours, theirs, wanted, ",.1f")
            yield _row(f"{what}, processor s per GB", costs[mode], costs[THEIRS], COST_TARGET, ",.1f", less=True)


def latency(sides: list[Side], asked: Options) -> Iterator[Row]:
    def run(side: Side, settings: dict[str, str]) -> list[float]:
        topic = make_topic(side.nodes.addresses, Topic(1, MIN_IN_SYNC | settings))
        taken = singles(side.nodes.addresses, topic, 100, lambda done: done < SINGLES)
        delete_topic(side.nodes.addresses, topic)
        return taken

    found = _in_turns(sides, asked.repeats, run)
    for mode in (UNSYNCED, SYNCED):
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            ours, theirs = ([percentile(one, share) * 1000 for one in found[who]] for who in (mode, THEIRS))
            yield _row(f"one record acknowledged by all, {mode}, {name}, ms", ours, theirs, 1.0, ",.2f", less=True)


# -- an empty follower ----------------------------------------------------------------------------------------------


def _address(side: Side) -> tuple[str, int]:
    host, _, port = side.nodes.addresses.split(",")[0].partition(":")
    return host, int(port)


def _add_replica(side: Side, topic: str, nodes: list[int]) -> None:
    moves = [p.AlterPartitionReassignmentsRequestPartition(number, nodes) for number in range(PARTITIONS)]
    wanted = p.AlterPartitionReassignmentsRequestTopic(topic, moves)
    said = ask(_address(side), p.AlterPartitionReassignmentsRequest(topics=[wanted]), REASSIGN_VERSION)
    if said is None or said.error_code:
        raise RuntimeError(f"{side.name} does not reassign: {said}")


class Copied(NamedTuple):
    mb_per_second: float
    p99_without: float
    p99_beside: float


def _copy(side: Side, gigabytes: float, clients: int) -> Copied:
    """A third replica that has nothing; p99 of single records of another topic, in ms, without it and beside it."""
    addresses, size = side.nodes.addresses, 1024
    own = SETTINGS[UNSYNCED] if side.name == OURS else {}
    held, new = list(NUMBERS[:2]), list(NUMBERS)
    bulk = make_topic(addresses, Topic(PARTITIONS, own, [held] * PARTITIONS))
    beside = make_topic(addresses, Topic(1, MIN_IN_SYNC | own, [new]))
    produce(addresses, bulk, PARTITIONS, size, int(gigabytes * GB) // size, clients)
    quiet = singles(addresses, beside, 100, lambda done: done < SINGLES)
    began = looked = seconds = 0.0

    def go_on(done: int) -> bool:
        nonlocal began, looked, seconds
        now = time.monotonic()
        if not done:
            began = looked = now
            _add_replica(side, bulk, new)
        if now - looked < LOOK_SECONDS:
            return True
        looked = now
        if now - began > SECONDS_MAX:
            raise RuntimeError(f"{side.name}: {gigabytes:g} GB are not copied after {SECONDS_MAX} s")
        if all(state.in_sync == NUMBERS for state in partitions_by(_address(side), bulk)):
            seconds = now - began
        return not seconds

    busy = singles(addresses, beside, 100, go_on)
    for topic in (bulk, beside):
        delete_topic(addresses, topic)
    return Copied(gigabytes * 1000 / seconds, percentile(quiet, 0.99) * 1000, percentile(busy, 0.99) * 1000)


def copying(sides: list[Side], asked: Options) -> Iterator[Row]:
    runs = [[_copy(each, asked.gb, asked.clients) for each in sides] for _ in range(asked.repeats)]

    def row(what: str, value: Callable[[Copied], float], form: str, *, less: bool = True) -> Row:
        return _row(what, [value(mine) for mine, _ in runs], [value(other) for _, other in runs], 1.0, form, less=less)

    what = f"an empty follower copies {asked.gb:g} GB, MB/s (target 150 of ours)"
    yield row(what, lambda run: run.mb_per_second, ",.0f", less=False)
    yield row("one record acknowledged by all without it, p99, ms", lambda run: run.p99_without, ",.1f")
    yield row("the same beside it", lambda run: run.p99_beside, ",.1f")
    yield row("how many times as long (target 2 of ours)", lambda run: run.p99_beside / run.p99_without, ",.1f")


# -- nothing to do --------------------------------------------------------------------------------------------------


def memory(sides: list[Side], asked: Options) -> Iterator[Row]:
    for each in sides:
        make_topic(each.nodes.addresses, Topic(asked.partitions, MIN_IN_SYNC))
    threading.Event().wait(REST_SECONDS)  # what the creation left to do is done meanwhile
    ours, theirs = ([node / MB for node in each.nodes.resident_bytes()] for each in sides)
    what = f"memory of a node at rest, {asked.partitions} partitions, MB (target 80 of ours)"
    yield _row(what, ours, theirs, 3.0, ",.0f", less=True)


PARTS: dict[str, Callable[[list[Side], Options], Iterator[Row]]] = {
    "memory": memory,
    "produce": throughput,
    "single": latency,
    "copy": copying,
}


def compare(parts: Sequence[str], asked: Options, parent: str | None) -> None:
    print(f"{asked.repeats} repeats, median (lowest..highest); ratios above 1 are in our favour\n")
    print("| what | braidlog | Apache Kafka | ratio | target |\n|---|---|---|---|---|", flush=True)
    with both(parent) as sides:
        for name, measure in PARTS.items():  # in this order: what a node has after work is not what it has at rest
            for row in measure(sides, asked) if name in parts else ():
                print(row, flush=True)
