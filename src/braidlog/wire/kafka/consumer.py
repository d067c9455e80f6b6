"""Subscriptions and assignments: the bytes that group members put into JoinGroup and SyncGroup.

Does not handle: assignors. The broker does not read these bytes.
Invariant: unreadable bytes raise a `ProtocolError`. Later versions are read as version 1, because they only append
fields; if a client omits the fields of its version, as version 0.

    subscription   i16 version │ i32 count │ topics: i16-text │ i32-bytes user data │ 1+: owned, as in an assignment │ …
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
    """Return a subscription to these topics without owned partitions, in version 0, which every consumer understands."""
    return _written(ConsumerSubscription(list(topics)))


def assignment(shares: Mapping[str, Sequence[int]]) -> bytes:
    return _written(ConsumerAssignment([TopicPartitions(topic, list(numbers)) for topic, numbers in shares.items()]))


def read_subscription(data: bytes) -> ConsumerSubscription:
    found = _read(ConsumerSubscription, data)
    assert isinstance(found, ConsumerSubscription)
    return found


def read_assignment(data: bytes) -> ConsumerAssignment:
    """Parse an assignment. No bytes mean no partitions: a leader sends that for a member without any."""
    found = _read(ConsumerAssignment, data) if data else ConsumerAssignment()
    assert isinstance(found, ConsumerAssignment)
    return found


def _written(message: Message) -> bytes:
    pieces: list[Any] = [_VERSION.pack(0)]
    write_message(message, 0, pieces.append, flexible=False)
    return b"".join(pieces)


def _read(kind: type[Message], data: bytes) -> Message:
    if len(data) < _VERSION.size:
        raise ProtocolError(f"{len(data)} bytes are too short for a version", 0)
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise ProtocolError(f"{version} is not a version", 0)
    try:
        return read_message(kind, min(version, 1), data, _VERSION.size, flexible=False)[0]
    except ProtocolError:
        return read_message(kind, 0, data, _VERSION.size, flexible=False)[0]


class ConsumerMetadata:
    """The same functions for callers that do not know the messages."""

    protocol_type = PROTOCOL_TYPE

    def subscription(self, data: bytes) -> tuple[list[str], dict[str, set[int]]]:
        found = read_subscription(data)
        return found.topics, {each.topic: set(each.partitions) for each in found.owned_partitions}

    def shares(self, data: bytes) -> dict[str, list[int]]:
        return {each.topic: each.partitions for each in read_assignment(data).assigned_partitions}

    def assignment(self, shares: Mapping[str, Sequence[int]]) -> bytes:
        return assignment(shares)
