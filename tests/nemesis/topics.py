"""Names of topics that several clients take and give back through any node: changes of metadata, of which an order has to
explain every answer. A refusal tells nothing but that nothing was done: a node refuses by an image that may be behind.
"""

import random
import time

from tests.adapters.kafka.client import Client as KafkaClient
from tests.attack.clients import Client
from tests.histories.history import Action, Call, History, Outcome
from tests.nemesis.keys import Keys

from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.messages import topics as m

NAME = "name-"
"""How they begin."""
PAUSE_SECONDS = 0.2
TIMEOUT_MS = 10_000
NO_ERROR, UNKNOWN_TOPIC, TOPIC_EXISTS = 0, 3, 36


class TopicCaller(Client):
    """Creates and deletes the topic that others create and delete as well."""

    def __init__(self, node: ServerProcess, history: History, names: Keys, name: str) -> None:
        super().__init__(node, history, name)
        self._names = names
        self._rng = random.Random(name)

    def work(self) -> None:
        with KafkaClient(self.node) as client:
            while not self.stop.wait(PAUSE_SECONDS):
                call = self._chosen()
                try:
                    done = _asked(client, call)
                except BaseException:
                    self._names.spoilt(call.key)
                    raise
                call.end, call.answer = time.monotonic(), True
                call.outcome = Outcome.ACKNOWLEDGED if done else Outcome.REFUSED
                self.acknowledged += 1

    def _chosen(self) -> Call:
        name = self._names.next()
        if self._rng.random() < 0.5:
            call = Call(self.name, name, Action.DELETE, None, time.monotonic())
        else:
            call = Call(self.name, name, Action.SWAP, (None, self._rng.randrange(1 << 40)), time.monotonic())
        self.history.add(call)
        return call


def _asked(client: KafkaClient, call: Call) -> bool:
    """Whether it was done; AssertionError if nobody knows."""
    if call.action is Action.DELETE:
        rows = [m.DeleteTopicsRequestTopic(call.key)]
        (told,) = client.ask(m.DeleteTopicsRequest(rows, [call.key], TIMEOUT_MS)).responses
    else:
        made = m.CreateTopicsRequestTopic(call.key, num_partitions=1, replication_factor=-1)
        (told,) = client.ask(m.CreateTopicsRequest([made], TIMEOUT_MS)).topics
    refusal = UNKNOWN_TOPIC if call.action is Action.DELETE else TOPIC_EXISTS
    assert told.error_code in (NO_ERROR, refusal), told
    return bool(told.error_code == NO_ERROR)
