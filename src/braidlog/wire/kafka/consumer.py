"""Subscriptions and assignments: the bytes that a group's members put into JoinGroup and SyncGroup.

Knows: the version in front, and the rows. Refuses to know: any assignor, and the broker, to which all this is opaque.
Invariant: what cannot be read is a `ProtocolError`. Every version is read as version 0, because later ones only add at the end,
and some clients forget what they should add.

    subscription   i16 version │ i32 count │ topics: i16-text │ i32-bytes user data │ …
    assignment     i16 version │ i32 count │ [i16-text topic │ i32 count │ i32 partitions] │ i32-bytes user data
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from braidlog.codec.errors import ProtocolError
from braidlog.wire.kafka.compiler import read_message, write_message
from braidlog.wire.kafka.messages.consumer import ConsumerAssignment, ConsumerSubscription
from braidlog.wire.kafka.messages.parts import TopicPartitions
from braidlog.wire.kafka.rows import Message

PROTOCOL_TYPE: Final = "consumer"
_VERSION: Final = struct.Struct(">h")


def subscription(topics: Sequence[str]) -> bytes:
    """A member that reads these topics and owns nothing: in version 0, which every consumer understands."""
    return _written(ConsumerSubscription(list(topics)))


def assignment(shares: Mapping[str, Sequence[int]]) -> bytes:
    return _written(ConsumerAssignment([TopicPartitions(topic, list(numbers)) for topic, numbers in shares.items()]))


def read_subscription(data: bytes) -> ConsumerSubscription:
    found = _read(ConsumerSubscription, data)
    assert isinstance(found, ConsumerSubscription)
    return found


def read_assignment(data: bytes) -> ConsumerAssignment:
    """No bytes are no partitions: so says a leader that has nothing for a member."""
    found = _read(ConsumerAssignment, data) if data else ConsumerAssignment()
    assert isinstance(found, ConsumerAssignment)
    return found


def _written(message: Message) -> bytes:
    pieces: list[Any] = [_VERSION.pack(0)]
    write_message(message, 0, pieces.append, flexible=False)
    return b"".join(pieces)


def _read(kind: type[Message], data: bytes) -> Message:
    if len(data) < _VERSION.size:
        raise ProtocolError(f"{len(data)} bytes have no room for a version", 0)
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise ProtocolError(f"{version} is no version", 0)
    found, _ = read_message(kind, 0, data, _VERSION.size, flexible=False)
    return found


def topics_read(protocol_type: str, metadata: bytes) -> list[str]:
    """The topics a member subscribes to; none where members do not speak as consumers do, or not intelligibly."""
    if protocol_type != PROTOCOL_TYPE:
        return []
    try:
        return read_subscription(metadata).topics
    except ProtocolError:
        return []
