"""Fail-over of many partitions at once: all of them led by the node that is killed.

Knows: who leads what. Measured from the signal: until a node that is left says that every partition has another leader, until a
record for each, handed over after that, is acknowledged by all in-sync replicas, and until librdkafka has an acknowledgement for
each, for which it has to be told of so many new leaders. Refuses to know: what of that is the client's own time.
"""

import os
import signal
import sys
import threading
import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.cluster_nodes import NUMBERS, Cluster, ask, cluster
from benchmarks.failover import PATIENCE_MS, PRODUCE_VERSION, QUIET, SECONDS_MAX, record_for
from benchmarks.measure import spread

TOPIC = "many"
VICTIM, HEIR, OTHER = NUMBERS
SETTLE_SECONDS_MAX = 300.0
LOOK_SECONDS = 0.05
TARGET_SECONDS = 3.0


def many(partitions: int, count: int) -> None:
    """Each time in a cluster of its own: to give so many partitions back would take longer."""
    rounds = []
    for number in range(1, count + 1):
        with cluster() as nodes:
            rounds.append(_one(nodes, partitions))
        led, served, heard = rounds[-1]
        print(
            f"  {number}: all {partitions} have a leader after {led:.2f} s, acknowledge after {served:.2f}, "
            f"librdkafka's after {heard:.2f}",
            flush=True,
        )
    print(f"{partitions} partitions of a killed node")
    whats = ("have another leader", "acknowledge to a client that asks anew", "acknowledge to librdkafka")
    for what, values in zip(whats, zip(*rounds, strict=True), strict=True):
        reached = "reached" if spread(values).median <= TARGET_SECONDS else "MISSED"
        print(f"  all {what}: {spread(values):.2f} s, target {TARGET_SECONDS:g}: {reached}", flush=True)


def _one(nodes: Cluster, partitions: int) -> tuple[float, float, float]:
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


class Asked(threading.Thread):
    """A client without a past: asks who leads, and hands those nodes a record for each partition until each is acknowledged."""

    def __init__(self, nodes: Cluster, partitions: int) -> None:
        super().__init__(daemon=True)
        self._nodes = nodes
        self._began = time.monotonic()
        self._left = set(range(partitions))
        self.led = self.served = 0.0
        """Seconds until all had another leader, and until all had acknowledged."""

    def run(self) -> None:
        nothing = threading.Event()
        while self._left and time.monotonic() < self._began + SECONDS_MAX:
            states = self._nodes.partitions(HEIR, TOPIC)
            if not self.led and states and all(state.leader in {HEIR, OTHER} for state in states):
                self.led = time.monotonic() - self._began
            if self.led and states:
                for leader in (HEIR, OTHER):
                    self._hand(leader, sorted(each for each in self._left if states[each].leader == leader))
            nothing.wait(LOOK_SECONDS)
        self.served = time.monotonic() - self._began

    def _hand(self, leader: int, partitions: list[int]) -> None:
        if partitions:
            said = ask(self._nodes.nodes[leader].address("kafka"), record_for(TOPIC, partitions), PRODUCE_VERSION)
            answers = [] if said is None else said.responses[0].partition_responses
            self._left -= {each.index for each in answers if not each.error_code}


def _kill(nodes: Cluster, producer: Producer, partitions: int) -> tuple[float, float, float]:
    """Seconds until all have another leader, until all have acknowledged, and until librdkafka has heard so."""
    began, asked = time.monotonic(), Asked(nodes, partitions)
    os.kill(nodes.nodes[VICTIM].pid, signal.SIGKILL)
    asked.start()
    times = _send(producer, partitions)
    while len(times) < partitions:
        if time.monotonic() > began + SECONDS_MAX:
            sys.exit(f"{len(times)} of {partitions} partitions acknowledged in {SECONDS_MAX:g} s")
        producer.poll(LOOK_SECONDS)
    asked.join()
    return asked.led, asked.served, max(times) - began
