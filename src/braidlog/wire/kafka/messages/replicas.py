"""Fetch between nodes: Kafka's rows, and tagged fields of braidlog's own with numbers far above Kafka's tags.

A reader of Kafka's rows skips unknown tags, so it can read these messages too.
"""

from typing import Annotated

from braidlog.wire.kafka.messages.data import (
    FetchRequest,
    FetchRequestPartition,
    FetchResponse,
    FetchResponsePartition,
)
from braidlog.wire.kafka.rows import I64, NO_UUID, Message, Uuid


class ReplicaFetchRequestPartition(FetchRequestPartition, frozen=True):
    question: Annotated[I64, "tag 25202"] = 0
    """Repeated in the answer. 0: no request."""
    complaint: Annotated[I64, "tag 25203"] = -1
    """Records from this offset on arrived with a wrong checksum more than once."""
    round: Annotated[I64, "tag 25204"] = 0
    """From the last answer of this leader in this epoch."""


class ReplicaFetchRequestTopic(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: list[ReplicaFetchRequestPartition] = []


class ReplicaFetchRequest(FetchRequest, frozen=True):
    topics: list[ReplicaFetchRequestTopic] = []  # type: ignore[assignment]  # the same array, with more in its rows


class ReplicaFetchResponsePartition(FetchResponsePartition, frozen=True):
    question: Annotated[I64, "tag 25202"] = 0
    common_end: Annotated[I64, "tag 25203"] = 0
    """Every assigned replica has at least this log end offset."""
    round: Annotated[I64, "tag 25204"] = 0
    """Repeated in the next request: a follower that repeats it has received this answer."""


class ReplicaFetchResponseTopic(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: list[ReplicaFetchResponsePartition] = []


class ReplicaFetchResponse(FetchResponse, frozen=True):
    responses: list[ReplicaFetchResponseTopic] = []  # type: ignore[assignment]  # the same array, with more in its rows
