"""Fail-over of many partitions at once: all of them led by the node that is killed.

Knows: who leads what. Measured from the signal: until a node that is
left says that every partition has another leader, and until a record for each, handed over after the kill, is acknowledged by all
in-sync replicas. The client is librdkafka; to be told of so many new leaders is part of the second time.
"""

import os
import signal
import sys
import threading
import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.cluster_nodes import NUMBERS, Cluster, cluster
from benchmarks.failover import PATIENCE_MS, QUIET, SECONDS_MAX
from benchmarks.measure import spread

TOPIC = "many"
VICTIM, HEIR, OTHER = NUMBERS
SETTLE_SECONDS_MAX = 300.0
LOOK_SECONDS = 0.05
TARGET_SECONDS = 3.0


def many(partitions: int, count: int) -> None:
    """Each time in a cluster of its own: to give so many partitions back would take longer."""
    leads, acknowledges = [], []
    for number in range(1, count + 1):
        with cluster() as nodes:
            led, acknowledged = _one(nodes, partitions)
        print(
            f"  {number}: all {partitions} lead after {led:.2f} s, acknowledge after {acknowledged:.2f} s", flush=True
        )
        leads.append(led)
        acknowledges.append(acknowledged)
    for what, values in (("another leader", leads), ("an acknowledged record", acknowledges)):
        reached = "reached" if spread(values).median <= TARGET_SECONDS else "MISSED"
        print(
            f"{partitions} partitions of a killed node, each with {what}: {spread(values):.2f} s, "
            f"target {TARGET_SECONDS:g}: {reached}"
        )


def _one(nodes: Cluster, partitions: int) -> tuple[float, float]:
    admin = AdminClient(QUIET | {"bootstrap.servers": nodes.addresses})
    placed = [[VICTIM, *((HEIR, OTHER) if number % 2 else (OTHER, HEIR))] for number in range(partitions)]
    topic = NewTopic(TOPIC, partitions, replica_assignment=placed)
    for made in admin.create_topics([topic], request_timeout=SETTLE_SECONDS_MAX).values():
        made.result(SETTLE_SECONDS_MAX)
    _settle(nodes, partitions)
    patience = {"request.timeout.ms": PATIENCE_MS * 10, "socket.timeout.ms": PATIENCE_MS * 10}
    producer = Producer(QUIET | patience | {"bootstrap.servers": nodes.addresses, "enable.idempotence": True})
    _send(producer, partitions)  # connections and leaders are known
    if producer.flush(SETTLE_SECONDS_MAX):
        sys.exit(f"not all of {partitions} partitions acknowledge before the kill")
    return _kill(nodes, producer, partitions)


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


def _kill(nodes: Cluster, producer: Producer, partitions: int) -> tuple[float, float]:
    """Seconds until all have another leader, and until all have acknowledged."""
    began = time.monotonic()
    os.kill(nodes.nodes[VICTIM].pid, signal.SIGKILL)
    times = _send(producer, partitions)
    led = 0.0
    while not led or len(times) < partitions:
        if time.monotonic() > began + SECONDS_MAX:
            sys.exit(f"{len(times)} of {partitions} partitions acknowledged in {SECONDS_MAX:g} s")
        producer.poll(LOOK_SECONDS)
        if not led and all(state.leader in {HEIR, OTHER} for state in nodes.partitions(HEIR, TOPIC)):
            led = time.monotonic() - began
    return led, max(times) - began
