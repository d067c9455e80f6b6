"""Fetch as nodes speak it with each other: Kafka's rows, and behind them tagged fields of ours, far above Kafka's tags.

A reader of Kafka's own rows passes over what it does not know, and can read this too.
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
    """Named again in the answer. 0: nothing is asked."""
    complaint: Annotated[I64, "tag 25203"] = -1
    """Records from this offset on came with a wrong checksum, more than once."""
    round: Annotated[I64, "tag 25204"] = 0
    """Of the last answer from this leader in this epoch."""


class ReplicaFetchRequestTopic(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: list[ReplicaFetchRequestPartition] = []


class ReplicaFetchRequest(FetchRequest, frozen=True):
    topics: list[ReplicaFetchRequestTopic] = []  # type: ignore[assignment]  # the same array, with more in its rows


class ReplicaFetchResponsePartition(FetchResponsePartition, frozen=True):
    question: Annotated[I64, "tag 25202"] = 0
    common_end: Annotated[I64, "tag 25203"] = 0
    """No assigned replica ends below."""
    round: Annotated[I64, "tag 25204"] = 0
    """Named again in the next question: whoever names it has had this answer."""


class ReplicaFetchResponseTopic(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: list[ReplicaFetchResponsePartition] = []


class ReplicaFetchResponse(FetchResponse, frozen=True):
    responses: list[ReplicaFetchResponseTopic] = []  # type: ignore[assignment]  # the same array, with more in its rows
