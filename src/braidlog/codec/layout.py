"""How a dialect writes one record: a row of parts, declared once.

Knows: the kinds of parts there are. Refuses to know: any dialect; each declares its own rows in wire/.
"""

from enum import IntEnum
from typing import NamedTuple

PARTS_MAX = 16


class Kind(IntEnum):
    """What a part of a row holds. Numbers are big-endian; decimals and base64 are ASCII."""

    LITERAL = 0
    """`text`, in every row."""
    OFFSET_64 = 1
    """The record's offset, 64 bits. When read: passed over."""
    OFFSET_DECIMAL = 2
    MICROS_DECIMAL = 3
    """The timestamp in microseconds; before 1970 it is 0, beyond 64 bits it is the most they hold."""
    KEY_16 = 4
    """16 bits of length and the key; a null key is an empty one. A row whose key is longer cannot be written."""
    VALUE_32 = 5
    """32 bits of length and the value; a null value is an empty one."""
    VALUE_BASE64 = 6
    """The value in quotes; `text` stands for a null one."""
    MAYBE_KEY_BASE64 = 7
    """`text`, the key and a quote; nothing at all for a null key."""


class Part(NamedTuple):
    kind: Kind
    text: bytes = b""


Layout = tuple[Part, ...]


class RowForm(NamedTuple):
    """How the records of one answer are written."""

    layout: Layout
    bytes_max: int
    """Room for all rows."""
    between: bytes = b""
    plain_only: bool = False
    """Whether rows end before a record with headers, for which they have no place."""


class Packed(NamedTuple):
    """Rows as they stand on the wire, and how many they are: what takes the place of a list of records in an answer."""

    data: bytes
    number: int
