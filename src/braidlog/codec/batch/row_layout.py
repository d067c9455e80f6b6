"""Declares how a dialect writes one record: a row of parts. Each dialect declares its rows in wire/."""

from enum import IntEnum
from typing import NamedTuple

PARTS_MAX = 16


class Kind(IntEnum):
    """The content of one part of a row. Numbers are big-endian; decimals and base64 are ASCII."""

    LITERAL = 0
    """The constant `text`."""
    OFFSET_64 = 1
    """The record's offset, 64 bits. Skipped when read."""
    OFFSET_DECIMAL = 2
    MICROS_DECIMAL = 3
    """The timestamp in microseconds. Before 1970 it is 0; beyond 64 bits it is the maximum."""
    KEY_16 = 4
    """A 16-bit length and the key; a null key is written as an empty one. A row with a longer key cannot be written."""
    VALUE_32 = 5
    """A 32-bit length and the value; a null value is written as an empty one."""
    VALUE_BASE64 = 6
    """The value in quotes; `text` replaces a null value."""
    MAYBE_KEY_BASE64 = 7
    """`text`, the key and a quote; empty for a null key."""


class Part(NamedTuple):
    kind: Kind
    text: bytes = b""


Layout = tuple[Part, ...]


class RowForm(NamedTuple):
    """How the records of one response are written."""

    layout: Layout
    bytes_max: int
    """Maximum bytes of all rows."""
    between: bytes = b""
    plain_only: bool = False
    """Whether rows end before a record with headers, because the layout has no field for them."""


class Packed(NamedTuple):
    """Encoded rows and their count: they replace a list of records in a response."""

    data: bytes
    number: int
