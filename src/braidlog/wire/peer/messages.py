"""The messages between nodes, and the table of their types: one row each, a number, a message, its bytes.

Knows: what each says. Refuses to know: headers (`connection.py`), and what a node does about any of it.
"""

import struct
from typing import Final, NamedTuple

import msgspec


class Message(msgspec.Struct, frozen=True, gc=False):
    """What all of them are."""


class Ping(Message, frozen=True):
    """Answered at once by a `Pong`, on the same connection."""

    members_hash: int
    """Of all (node, incarnation) that the sender takes for members: who has the same hash has the same list."""


class Pong(Message, frozen=True):
    node: int
    incarnation: int
    wall_ms: int
    """The sender's clock, so that one that is far from all others can be told so."""
    members_hash: int


class PingRequest(Message, frozen=True):
    """`by` asks the receiver whether it hears anything of a node; answered by an `Ack` on another connection."""

    by: int
    node: int
    incarnation: int


class Ack(Message, frozen=True):
    """What the witness `by` found about a node."""

    by: int
    node: int
    incarnation: int
    is_alive: bool
    is_refused: bool = False
    """Nobody listens there. Never together with `is_alive`."""


class Leave(Message, frozen=True):
    """This incarnation stops: leaving is not dying."""

    node: int
    incarnation: int


class Row(NamedTuple):
    """`layout`: the payload; it has these bytes and no others."""

    number: int
    name: str
    kind: type[Message]
    layout: struct.Struct
    drawing: str


OPERATIONS: Final = (
    Row(0x01, "PING", Ping, struct.Struct(">Q"), "u64 `members_hash`"),
    Row(0x02, "PONG", Pong, struct.Struct(">IQqQ"), "u32 `node`, u64 `incarnation`, i64 `wall_ms`, u64 `members_hash`"),
    Row(0x03, "PING_REQ", PingRequest, struct.Struct(">IIQ"), "u32 `by`, u32 `node`, u64 `incarnation`"),
    Row(
        0x04,
        "ACK",
        Ack,
        struct.Struct(">IIQ??"),
        "u32 `by`, u32 `node`, u64 `incarnation`, u8 `is_alive`, u8 `is_refused`",
    ),
    Row(0x05, "LEAVE", Leave, struct.Struct(">IQ"), "u32 `node`, u64 `incarnation`"),
)
"""The high nibble is the group. 0x00 is nothing: memory that nobody wrote must not look like a message."""
BY_NUMBER: Final = {row.number: row for row in OPERATIONS}
BY_KIND: Final = {row.kind: row for row in OPERATIONS}
