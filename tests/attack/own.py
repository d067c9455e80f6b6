"""The client of this repository at work on the node: what it says was stored is there, what it says was not is not.

It gives up soon, so that a disk that is full for a while refuses some of its records; of the others that were given up
it has to say that nobody knows.
"""

import itertools
import time
from collections import deque

from tests.attack.clients import PAUSE_SECONDS, WINDOW, Client
from tests.histories.history import Append, History, Outcome

import braidlog
from braidlog.client.blocking import Delivery, Producer
from braidlog.client.errors import ClientError, RefusedError, Stored, UnknownOutcomeError
from braidlog.client.schemes import SCHEMES
from braidlog.testing.server import ServerProcess

DOOR_SECONDS = 5
GIVES_UP_SECONDS = 0.25
SECONDS_MAX = 100


class OwnProducer(Client):
    """Through one door after the other, for a few seconds each."""

    def __init__(self, node: ServerProcess, history: History, topic: str, name: str) -> None:
        super().__init__(node, history, name)
        self._topic = topic
        self._number = 0
        self._dialects = itertools.cycle(sorted(SCHEMES.keys() & node.ports.keys()))

    def work(self) -> None:
        dialect = next(self._dialects)
        url = "{}://{}:{}".format(dialect, *self.node.address(dialect))
        try:
            with (
                braidlog.connect(url, retry_timeout=GIVES_UP_SECONDS) as client,
                client.producer(delivery_timeout=GIVES_UP_SECONDS) as producer,
            ):
                self._produce(producer)
        except ClientError as error:
            raise ConnectionError(f"{dialect}: {error}") from error

    def _produce(self, producer: Producer) -> None:
        waiting: deque[tuple[Append, Delivery]] = deque()
        until = time.monotonic() + DOOR_SECONDS
        while time.monotonic() < until and not self.stop.wait(PAUSE_SECONDS):
            append = Append(self.name, self._number, self._topic, time.monotonic())
            self._number += 1
            self.history.add(append)
            waiting.append((append, producer.send(self._topic, append.value.encode())))
            if len(waiting) == WINDOW:
                self._collect_results(*waiting.popleft())
        for append, delivery in waiting:
            self._collect_results(append, delivery)

    def _collect_results(self, append: Append, delivery: Delivery) -> None:
        try:
            placed = delivery.result(SECONDS_MAX)
        except UnknownOutcomeError:
            return
        except ClientError as error:
            if not isinstance(error, RefusedError) or error.reason.stored is Stored.NO:
                append.end, append.outcome = time.monotonic(), Outcome.REFUSED
            return
        append.offset, append.end, append.outcome = placed.offset, time.monotonic(), Outcome.ACKNOWLEDGED
        self.acknowledged += 1
