"""Limits the partitions that a request may name, each at most once, because work adds up per partition."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from braidlog.wire.kafka.apis import Key

PARTITIONS_MAX = 20_000

Partition = tuple[object, int]
"""Return the request's topic name or id, and the partition's number."""

LOOKING_UP: Mapping[Key, Callable[[Any, Any], Partition]] = MappingProxyType(
    {
        Key.FETCH: lambda topic, each: (topic.topic or topic.topic_id, each.partition),
        Key.LIST_OFFSETS: lambda topic, each: (topic.name, each.partition_index),
        Key.COUNT_RECORDS: lambda topic, each: (topic.name, each.partition_index),
        Key.OFFSET_FOR_LEADER_EPOCH: lambda topic, each: (topic.topic, each.partition),
    }
)
"""Requests with a lookup per partition. In other requests, a partition costs no more than its bytes."""


def excess(key: Key, message: Any) -> str | None:  # noqa: ANN401 - each API has its own message
    """Return how a request exceeds the limits; None if it does not."""
    partition = LOOKING_UP.get(key)
    if partition is None:
        return None
    topics = message.topics
    count = len(topics[0].partitions) if len(topics) == 1 else sum(len(topic.partitions) for topic in topics)
    if count <= 1 and len(topics) <= 1:
        return None
    if max(count, len(topics)) > PARTITIONS_MAX:
        return f"names {max(count, len(topics))} partitions, the limit is {PARTITIONS_MAX}"
    if len({partition(topic, each) for topic in topics for each in topic.partitions}) < count:
        return "names a partition more than once"
    return None
