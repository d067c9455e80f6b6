"""Connections of this process: one for each address, kept from task to task.

Knows: that Spark uses a Python worker for many tasks, one after the other. Refuses to know: what is written.
Invariant: a process that was forked shares no connection with its parent.
"""

import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from braidlog.client.drivers.kafka.driver import KafkaDriver
from braidlog.client.drivers.kafka.staging import BatchWriter, Sinks
from braidlog.client.engine.retry import Policy, retry
from braidlog.client.errors import Refusal, RefusedError
from braidlog.client.loop_thread import LoopThread
from braidlog.client.schemes import make_driver, parse_url

T = TypeVar("T")

POLICY = Policy()
SHORT = Policy(retry_timeout=5.0, request_timeout=10.0)
"""For what is only tidying up: it ends by itself too, and a task that fails should say so soon."""


class SinkConnection:
    """A node's Kafka door, for code that waits."""

    def __init__(self, url: str) -> None:
        driver = make_driver(parse_url(url), POLICY)
        assert isinstance(driver, KafkaDriver)
        self._driver = driver
        self._thread = LoopThread("braidlog-sink")
        self._thread.at_end = driver.close
        self.sinks = Sinks(driver, POLICY)
        self.sinks_soon = Sinks(driver, SHORT)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def writer(self, **how: Any) -> BatchWriter:  # noqa: ANN401 - the writer's own words
        return self._thread.make(lambda: BatchWriter(self._driver, POLICY, **how))

    def partitions(self, topic: str, create: int | None) -> int:
        """How many the topic has; with `create` one that is not there is made with so many."""
        try:
            return self._count(topic)
        except RefusedError as error:
            if error.reason is not Refusal.TOPIC_NOT_FOUND or create is None:
                raise
        self._create(topic, create)
        return self._count(topic)

    def _count(self, topic: str) -> int:
        return self.run(retry(POLICY, lambda: self._driver.partitions(topic)))

    def _create(self, topic: str, partitions: int) -> None:
        try:
            self.run(retry(POLICY, lambda: self._driver.create_topic(topic, partitions)))
        except RefusedError as error:
            if error.reason is not Refusal.TOPIC_EXISTS:  # else another task was faster
                raise

    def close(self) -> None:
        self._thread.stop()


_connections: dict[tuple[int, str], SinkConnection] = {}


def connection_to(url: str) -> SinkConnection:
    place = os.getpid(), url
    if place not in _connections:
        _connections[place] = SinkConnection(url)
    return _connections[place]


def close_connections() -> None:
    """Of this process; the next `connection_to` opens anew."""
    for place in [place for place in _connections if place[0] == os.getpid()]:
        _connections.pop(place).close()
