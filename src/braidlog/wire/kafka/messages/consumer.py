"""What consumers of a group tell each other through the broker: protocol type "consumer", as of version 0.

Knows: rows (`rows.py` says how to read one). Refuses to know: bytes, and how partitions are shared out. Later versions add what
is owned already, a generation and a rack, all at the end: who shares out ranges needs none of it.
"""

from braidlog.wire.kafka.messages.parts import TopicPartitions
from braidlog.wire.kafka.rows import Bytes, Message, Text


class ConsumerSubscription(Message, frozen=True):
    topics: list[Text] = []
    user_data: Bytes | None = None


class ConsumerAssignment(Message, frozen=True):
    assigned_partitions: list[TopicPartitions] = []
    user_data: Bytes | None = None
