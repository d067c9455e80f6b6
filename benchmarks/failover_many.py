"""Fail-over of many partitions at once: all of them led by the node that is killed.

Knows: who leads what, and two clients, each with a cluster of its own, for each would wait for the other's records. The first has
a connection to each node that is left: it asks one of them until every partition has another leader, then hands each leader one
record for each of its partitions in one request, again for those that were not acknowledged by all in-sync replicas. What it
takes is the nodes' own time. The other is librdkafka, which has to be told of so many new leaders and asks in its own time.
Measured from the signal, with the processor time that the nodes take meanwhile.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.cluster_nodes import NUMBERS, Cluster, Line, about, cluster, processor_seconds, states_of
from benchmarks.failover import PATIENCE_MS, PRODUCE_VERSION, QUIET, SECONDS_MAX, record_for
from benchmarks.measure import spread

TOPIC = "many"
VICTIM, HEIR, OTHER = NUMBERS
SETTLE_SECONDS_MAX = 300.0
LOOK_SECONDS = 0.05
TARGET_SECONDS = 3.0
SIGNS = {"few requests": "all have another leader", "librdkafka": "one acknowledges"}


class Round(NamedTuple):
    """Seconds from the kill until the first sign (all have another leader; for librdkafka: one has acknowledged) and until all
    have acknowledged; processor seconds of the nodes that are left."""

    first: float
    served: float
    busy: float


def many(partitions: int, count: int) -> None:
    """Each time in a cluster of its own: to give so many partitions back would take longer."""
    clients: dict[str, Callable[[Cluster, int], Round]] = {"few requests": _few_requests, "librdkafka": _librdkafka}
    rounds: dict[str, list[Round]] = {name: [] for name in clients}
    for number in range(1, count + 1):
        for name, kill in clients.items():
            with cluster() as nodes:
                _make(nodes, partitions)
                found = kill(nodes, partitions)
            rounds[name].append(found)
            print(
                f"  {number}, {name}: {SIGNS[name]} after {found.first:.2f} s, all {partitions} acknowledge after "
                f"{found.served:.2f}; the nodes that are left took {found.busy:.2f} s of processor time",
                flush=True,
            )
    print(f"{partitions} partitions of a killed node")
    for name, each in rounds.items():
        served = [found.served for found in each]
        reached = "reached" if spread(served).median <= TARGET_SECONDS else "MISSED"
        print(f"  all acknowledge to {name}: {spread(served):.2f} s, target {TARGET_SECONDS:g}: {reached}", flush=True)


def _make(nodes: Cluster, partitions: int) -> None:
    admin = AdminClient(QUIET | {"bootstrap.servers": nodes.addresses})
    placed = [[VICTIM, *((HEIR, OTHER) if number % 2 else (OTHER, HEIR))] for number in range(partitions)]
    topic = NewTopic(TOPIC, partitions, replica_assignment=placed)
    for made in admin.create_topics([topic], request_timeout=SETTLE_SECONDS_MAX).values():
        made.result(SETTLE_SECONDS_MAX)
    _settle(nodes, partitions)
    with Line(nodes.nodes[VICTIM].address("kafka")) as line:
        _hand(line, list(range(partitions)))


def _settle(nodes: Cluster, partitions: int) -> None:
    """Until all nodes say that the one that is to be killed leads them all, with all replicas in sync."""
    nothing, until = threading.Event(), time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        states = [state for number in NUMBERS for state in nodes.partitions(number, TOPIC)]
        ready = sum(state.leader == VICTIM and state.in_sync == NUMBERS for state in states)
        if ready == partitions * len(NUMBERS):
            return
        if time.monotonic() > until:
            sys.exit(f"{ready // len(NUMBERS)} of {partitions} partitions in sync after {SETTLE_SECONDS_MAX:g} s")
        nothing.wait(LOOK_SECONDS)


def _acknowledged(line: Line, partitions: list[int]) -> set[int]:
    """A record to each, in one request; those that were acknowledged."""
    said = line.ask(record_for(TOPIC, partitions), PRODUCE_VERSION)
    answers = [] if said is None else said.responses[0].partition_responses
    return {each.index for each in answers if not each.error_code}


def _kill(nodes: Cluster) -> tuple[float, float]:
    """When, and how much those that are left had worked by then."""
    busy = _busy(nodes)
    os.kill(nodes.nodes[VICTIM].pid, signal.SIGKILL)
    return time.monotonic(), busy


def _busy(nodes: Cluster) -> float:
    return sum(processor_seconds(nodes.nodes[number].pid) for number in (HEIR, OTHER))


# -- few requests ------------------------------------------------------------------------------------------------------


def _few_requests(nodes: Cluster, partitions: int) -> Round:
    lines = {number: Line(nodes.nodes[number].address("kafka")) for number in (HEIR, OTHER)}
    nothing = threading.Event()
    began, busy = _kill(nodes)
    while not (leaders := _leaders(lines[HEIR], partitions)):
        if time.monotonic() > began + SECONDS_MAX:
            sys.exit(f"not all partitions have another leader after {SECONDS_MAX:g} s")
        nothing.wait(LOOK_SECONDS)
    led = time.monotonic() - began
    led_by = {number: [at for at, each in enumerate(leaders) if each == number] for number in lines}
    with ThreadPoolExecutor(len(lines)) as pool:
        list(pool.map(_hand, lines.values(), led_by.values()))
    served = time.monotonic() - began
    for line in lines.values():
        line.__exit__()
    return Round(led, served, _busy(nodes) - busy)


def _leaders(line: Line, partitions: int) -> list[int]:
    """Of each partition, once the one that was killed leads none."""
    states = states_of(line.ask(about(TOPIC)))
    return (
        [each.leader for each in states] if sum(each.leader in (HEIR, OTHER) for each in states) == partitions else []
    )


def _hand(line: Line, partitions: list[int]) -> None:
    left, until = set(partitions), time.monotonic() + SECONDS_MAX
    while left:
        if time.monotonic() > until:
            sys.exit(f"{len(left)} of {len(partitions)} partitions have not acknowledged after {SECONDS_MAX:g} s")
        left -= _acknowledged(line, sorted(left))


# -- librdkafka --------------------------------------------------------------------------------------------------------


def _librdkafka(nodes: Cluster, partitions: int) -> Round:
    patience = {"request.timeout.ms": PATIENCE_MS * 10, "socket.timeout.ms": PATIENCE_MS * 10}
    producer = Producer(QUIET | patience | {"bootstrap.servers": nodes.addresses, "enable.idempotence": True})
    _send(producer, partitions)  # connections and leaders are known
    if producer.flush(SETTLE_SECONDS_MAX):
        sys.exit(f"not all of {partitions} partitions acknowledge before the kill")
    began, busy = _kill(nodes)
    times = _send(producer, partitions)
    while len(times) < partitions:
        if time.monotonic() > began + SECONDS_MAX:
            sys.exit(f"{len(times)} of {partitions} partitions acknowledged in {SECONDS_MAX:g} s")
        producer.poll(LOOK_SECONDS)
    return Round(min(times) - began, max(times) - began, _busy(nodes) - busy)


def _send(producer: Producer, partitions: int) -> list[float]:
    """A record to each; when each was acknowledged comes into the list."""
    times: list[float] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            sys.exit(f"not acknowledged: {error}")
        times.append(time.monotonic())

    for number in range(partitions):
        producer.produce(TOPIC, b"x", partition=number, on_delivery=delivered)
    return times
