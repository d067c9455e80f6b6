"""Produce, over services without a socket: what is waited for, and in which order."""

from types import SimpleNamespace
from typing import Any, cast

from tests.adapters.kafka.client import batch_of, produce_of
from tests.broker.node import Node

from braidlog.adapters.kafka.producing import produce
from braidlog.adapters.kafka.refused_batches import RefusedBatches
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.routing import Denied

VERSION = 9


def test_partitions_of_one_request_are_synced_together() -> None:
    """While it waits for the first, the others are synced: not one sync after the other."""
    node = Node()
    for topic in ("a", "b"):
        node.create(topic, 1)
    logs = [node.services.hosting.partition(topic, 0).log for topic in ("a", "b")]
    message = produce_of(("a", 0, batch_of(b"one")), ("b", 0, batch_of(b"two")))
    request: Any = SimpleNamespace(message=message, version=VERSION, parts=4)
    conversation: Any = object()
    with node.world.holding_syncs(logs[0]):
        job = node.spawn(produce(RefusedBatches(), request, cast("Services", node.services), conversation, Denied()))
        node.world.settle()
        assert not job.is_done
        assert [log.durable_offset for log in logs] == [0, 1]
    answer = job.result()
    assert answer is not None
    assert [each.partition_responses[0].error_code for each in answer.responses] == [0, 0]
