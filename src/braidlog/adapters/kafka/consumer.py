"""What consumers tell each other through the broker: subscriptions and assignments of protocol type "consumer".

Knows: the two formats, as far as the broker has to look into them. Refuses to know: any assignor.
Invariant: bytes that are no subscription name no topics; nothing raises. The broker itself never looks: groups are opaque to it.

    subscription   i16 version │ i32 count │ topics: i16-text │ i32-bytes user data │ …      (later versions add at the end)
    assignment     i16 version │ i32 count │ [i16-text topic │ i32 count │ i32 partitions] │ i32-bytes user data
"""

import struct
from collections.abc import Mapping, Sequence

PROTOCOL_TYPE = "consumer"
_COUNT = struct.Struct(">hi")
_SIZE = struct.Struct(">h")
_NO_DATA = struct.pack(">i", -1)


def topics_read(protocol_type: str, metadata: bytes) -> list[str]:
    """The topics a member subscribes to; none where members do not speak as consumers do."""
    if protocol_type != PROTOCOL_TYPE:
        return []
    try:
        _, count = _COUNT.unpack_from(metadata)
        topics, at = [], _COUNT.size
        for _ in range(min(count, len(metadata))):
            (size,) = _SIZE.unpack_from(metadata, at)
            at += _SIZE.size
            if size < 0 or at + size > len(metadata):
                return []
            topics.append(metadata[at : at + size].decode())
            at += size
    except (struct.error, UnicodeDecodeError):
        return []
    return topics


def subscription(topics: Sequence[str]) -> bytes:
    """What a member of a group in which the broker assigns would have said."""
    return _COUNT.pack(0, len(topics)) + b"".join(_text(topic) for topic in topics) + _NO_DATA


def assignment(shares: Mapping[str, Sequence[int]]) -> bytes:
    parts = [
        _text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers) for topic, numbers in shares.items()
    ]
    return _COUNT.pack(0, len(parts)) + b"".join(parts) + _NO_DATA


def _text(text: str) -> bytes:
    data = text.encode()
    return _SIZE.pack(len(data)) + data
