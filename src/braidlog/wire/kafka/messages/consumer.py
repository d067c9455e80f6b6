"""Subscription and assignment of protocol type "consumer", version 1. Members exchange them through the broker.

Later versions append a generation and a rack. `rows.py` explains the rows.
"""

from typing import Annotated

from braidlog.wire.kafka.messages.parts import TopicPartitions
from braidlog.wire.kafka.rows import Bytes, Message, Text


class ConsumerSubscription(Message, frozen=True):
    topics: list[Text] = []
    user_data: Bytes | None = None
    owned_partitions: Annotated[list[TopicPartitions], "1+"] = []


class ConsumerAssignment(Message, frozen=True):
    assigned_partitions: list[TopicPartitions] = []
    user_data: Bytes | None = None
