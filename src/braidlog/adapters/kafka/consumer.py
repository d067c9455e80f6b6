"""What consumers tell each other through the broker, as far as the broker has to look into it.

Knows: which topics a member reads. Refuses to know: the formats (`wire/kafka/consumer.py` does), any assignor.
Invariant: bytes that are no subscription name no topics; nothing raises. The broker itself never looks: groups are opaque to it.
"""

from braidlog.codec.errors import ProtocolError
from braidlog.wire.kafka.consumer import PROTOCOL_TYPE, assignment, read_subscription, subscription

__all__ = ["PROTOCOL_TYPE", "assignment", "subscription", "topics_read"]


def topics_read(protocol_type: str, metadata: bytes) -> list[str]:
    """The topics a member subscribes to; none where members do not speak as consumers do."""
    if protocol_type != PROTOCOL_TYPE:
        return []
    try:
        return read_subscription(metadata).topics
    except ProtocolError:
        return []
