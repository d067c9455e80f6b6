"""The prefix of a value whose schema is in a registry: Confluent's wire format.

    u8 0 | i32 id | payload                                 Avro, JSON
    u8 0 | i32 id | indexes | payload                       Protobuf

The indexes are zig-zag varints: their count, then the index of a message among those of its file, then among those
nested in it, and so on; a single 0 stands for one index of 0, the first message. Does not handle: looking up ids.
"""

from typing import Final

from braidlog.codec.errors import ProtocolError
from braidlog.codec.varint import read_varlong

MAGIC: Final = 0
BYTES: Final = 5
INDEXES_MAX: Final = 64


NO_ID: Final = "no schema id: a value with one begins with a byte 0 and four bytes of id"


class FramingError(ValueError):
    """A value without a valid prefix."""


def subject_of(topic: str) -> str:
    """Return the subject of a topic's values by the default naming strategy."""
    return f"{topic}-value"


def has_id(value: bytes) -> bool:
    return len(value) >= BYTES and value[0] == MAGIC


def id_of(value: bytes) -> int:
    """Return the schema's id; the payload begins after `BYTES`."""
    if not has_id(value):
        raise FramingError(NO_ID)
    return int.from_bytes(value[1:BYTES], "big")


def head(schema_id: int) -> bytes:
    return bytes([MAGIC]) + schema_id.to_bytes(4, "big")


def read_indexes(value: bytes, position: int = BYTES) -> tuple[tuple[int, ...], int]:
    """Return the indexes of a Protobuf value's message, and the position after them."""
    try:
        count, position = read_varlong(value, position, len(value))
        if not 0 <= count <= INDEXES_MAX:
            raise FramingError(f"{count} message indexes")
        indexes = []
        for _ in range(count):
            index, position = read_varlong(value, position, len(value))
            indexes.append(index)
    except ProtocolError as error:
        raise FramingError(f"invalid message indexes: {error}") from None
    return tuple(indexes) or (0,), position
