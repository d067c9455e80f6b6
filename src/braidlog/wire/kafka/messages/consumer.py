"""What consumers of a group tell each other through the broker: protocol type "consumer", as of version 1.

Knows: rows (`rows.py` says how to read one). Refuses to know: bytes, and how partitions are shared out. Later versions add a
generation and a rack at the end.
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
