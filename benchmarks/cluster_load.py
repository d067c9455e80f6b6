"""Load for a cluster, ours or another's, by librdkafka (confluent-kafka) in processes of its own.

Knows: topics of three replicas, records in, how long one takes. Refuses to know: whose cluster it is.
A record that is not acknowledged ends the run. The client's own work is C: it is told of errors only, not of every record.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.cluster_nodes import partitions_by

SECONDS_MAX = 180
LOOK_SECONDS = 0.02
REPLICAS = 3
RUN = 100
"""Records for a partition before the next one's turn."""
QUIET = {"log_level": 0, "broker.address.family": "v4"}
WARM = 20
"""Single records that are not counted: the first ones open connections."""


class Topic(NamedTuple):
    """`placed`: the replicas of each partition; None: three, where the cluster likes."""

    partitions: int
    settings: Mapping[str, str] = {"min.insync.replicas": "2"}
    placed: list[list[int]] | None = None


def make_topic(addresses: str, topic: Topic) -> str:
    """A new one; its name."""
    name = f"bench-{time.monotonic_ns()}"
    where: dict[str, Any] = {"replica_assignment": topic.placed} if topic.placed else {"replication_factor": REPLICAS}
    made = NewTopic(name, topic.partitions, config=dict(topic.settings), **where)
    admin = AdminClient(QUIET | {"bootstrap.servers": addresses})
    admin.create_topics([made], request_timeout=SECONDS_MAX)[name].result(SECONDS_MAX)
    _wait_until_known(addresses, name, topic.partitions)
    return name


def _wait_until_known(addresses: str, name: str, partitions: int) -> None:
    """Until each node has heard of it: who asks one that has not would be told that there is no such topic."""
    nothing, until = threading.Event(), time.monotonic() + SECONDS_MAX
    for address in addresses.split(","):
        host, _, port = address.partition(":")
        while sum(state.leader > 0 for state in partitions_by((host, int(port)), name)) < partitions:
            if time.monotonic() > until:
                raise RuntimeError(f"{address} knows no leaders of a new topic after {SECONDS_MAX} s")
            nothing.wait(LOOK_SECONDS)


def delete_topic(addresses: str, name: str) -> None:
    admin = AdminClient(QUIET | {"bootstrap.servers": addresses})  # held until it has answered
    admin.delete_topics([name])[name].result(SECONDS_MAX)


def _producer(addresses: str, topic: str, failures: list[str], **own: Any) -> Producer:  # noqa: ANN401 - librdkafka's settings
    settings = {
        "bootstrap.servers": addresses,
        "acks": "all",
        "allow.auto.create.topics": False,
        "delivery.report.only.error": True,
        "on_delivery": lambda error, _: failures.append(str(error)),
    }
    producer = Producer(QUIET | settings | own)
    producer.list_topics(topic, SECONDS_MAX)
    return producer


def _produce(
    addresses: str,
    topic: str,
    partitions: int,
    size: int,
    count: int,
    start: Barrier,
    answers: Any,  # noqa: ANN401
) -> None:
    """In a process of its own: when it began and ended, or why it did not."""
    failures: list[str] = []
    queue = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 256_000, "linger.ms": 5}
    producer = _producer(addresses, topic, failures, **queue)
    value = os.urandom(size)
    start.wait(SECONDS_MAX)
    began = time.monotonic()
    for number in range(0, count, RUN):
        partition = number // RUN % partitions
        for _ in range(min(RUN, count - number)):
            while True:
                try:
                    producer.produce(topic, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.01)
    left = producer.flush(SECONDS_MAX)
    answers.put((began, time.monotonic(), f"{left} not acknowledged, {failures[:1]}" if left or failures else ""))


def produce(addresses: str, topic: str, partitions: int, size: int, count: int, clients: int) -> float:
    """Seconds from the first record to the last acknowledgement, `count` records from all clients together."""
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(clients), context.Queue()
    arguments = (addresses, topic, partitions, size, count // clients, start, answers)
    processes = [context.Process(target=_produce, args=arguments, daemon=True) for _ in range(clients)]
    for each in processes:
        each.start()
    try:
        said: list[tuple[float, float, str]] = [answers.get(timeout=SECONDS_MAX) for _ in processes]
    finally:
        for each in processes:
            each.join(SECONDS_MAX)
    if wrong := [text for _, _, text in said if text]:
        raise RuntimeError(f"{addresses}: {wrong}")
    return max(ended for _, ended, _ in said) - min(began for began, _, _ in said)


def singles(addresses: str, topic: str, size: int, go_on: Callable[[int], bool]) -> list[float]:
    """Seconds of single records, one after another, for as long as `go_on(how many so far)` says."""
    failures: list[str] = []
    producer = _producer(addresses, topic, failures, **{"linger.ms": 0})
    value, taken = os.urandom(size), []
    number = 0
    while number < WARM or go_on(number - WARM):
        start = time.perf_counter()
        producer.produce(topic, value, partition=0)
        if producer.flush(SECONDS_MAX) or failures:
            raise RuntimeError(f"{addresses} did not acknowledge a record: {failures[:1]}")
        if number >= WARM:
            taken.append(time.perf_counter() - start)
        number += 1
    return taken
