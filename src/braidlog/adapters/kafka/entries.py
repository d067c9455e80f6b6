"""How many partitions a request may name, and each of them once: what is done for each of them adds up."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from braidlog.wire.kafka.apis import Key

PARTITIONS_MAX = 20_000

Partition = tuple[object, int]
"""What the request calls the topic, and the partition's number."""

LOOKING_UP: Mapping[Key, Callable[[Any, Any], Partition]] = MappingProxyType(
    {
        Key.FETCH: lambda topic, each: (topic.topic or topic.topic_id, each.partition),
        Key.LIST_OFFSETS: lambda topic, each: (topic.name, each.partition_index),
        Key.COUNT_RECORDS: lambda topic, each: (topic.name, each.partition_index),
        Key.OFFSET_FOR_LEADER_EPOCH: lambda topic, each: (topic.topic, each.partition),
    }
)
"""Requests that look something up for each partition. In others it costs no more than its bytes."""


def excess(key: Key, message: Any) -> str | None:  # noqa: ANN401 - each API has its own message
    """What is too much about a request; None if nothing is."""
    partition = LOOKING_UP.get(key)
    if partition is None:
        return None
    topics = message.topics
    count = len(topics[0].partitions) if len(topics) == 1 else sum(len(topic.partitions) for topic in topics)
    if count <= 1 and len(topics) <= 1:
        return None
    if max(count, len(topics)) > PARTITIONS_MAX:
        return f"names {max(count, len(topics))} partitions, {PARTITIONS_MAX} is the limit"
    if len({partition(topic, each) for topic in topics for each in topic.partitions}) < count:
        return "names a partition more than once"
    return None
