"""The messages between nodes, and the table of their types: number, message and fields of each."""

from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from braidlog.codec.cursor import Reader
from braidlog.codec.errors import ProtocolError
from braidlog.model.limits import KV_COLLECTION_BYTES_MAX, KV_KEY_BYTES_MAX
from braidlog.wire.fields import I64, TEXT, U8, U16, U32, U64, Kind, Layout


class Message(msgspec.Struct, frozen=True, gc=False):
    """Base of all messages."""


class Ping(Message, frozen=True):
    """Answered immediately by a `Pong` on the same connection."""

    members_hash: int
    """Hash of all (node, incarnation) that the sender considers members: equal hashes mean equal lists."""


class Pong(Message, frozen=True):
    node: int
    incarnation: int
    wall_ms: int
    """The sender's clock, to detect a node whose clock differs from all others."""
    members_hash: int


class PingRequest(Message, frozen=True):
    """`by` requests that the receiver probe a node; answered by an `Ack` on another connection."""

    by: int
    node: int
    incarnation: int


class Ack(Message, frozen=True):
    """The result of a probe by the witness `by`."""

    by: int
    node: int
    incarnation: int
    is_alive: bool
    is_refused: bool = False
    """The connection was refused. Never together with `is_alive`."""


class Leave(Message, frozen=True):
    """This incarnation is shutting down: leaving is not a failure."""

    node: int
    incarnation: int


# -- keys and values ---------------------------------------------------------------------------------------------


class Forward(Message, frozen=True):
    """A client's request, sent from the node that received it to the key's owner. Answered by `Answer` or
    `TopologyChanged`.
    """

    request: int
    """The sender's id of the request; the answer repeats it."""
    command: int
    """The command as in the client's header; the body is unchanged too."""
    consistency: int
    hops: int
    """How many nodes have forwarded it, including the sender."""
    stamp: bytes
    """The sender's clock."""
    principal: str
    body: bytes


class Answer(Message, frozen=True):
    """The answer for the client, as its header and body."""

    request: int
    status: int
    body: bytes


class TopologyChanged(Message, frozen=True):
    """The request was forwarded too often and the key is not on this node: nothing was done. `epoch` is this node's
    metadata epoch.
    """

    request: int
    epoch: int


class Replicate(Message, frozen=True):
    """A change that was truncated from a log and must not be lost. Answered by `Replicated` once it is settled."""

    request: int
    log: int
    operation: int
    stamp: bytes
    ttl_seconds: int
    origin_epoch: int
    """The leader epoch and the offset of its first write, ..."""
    origin_offset: int
    """... which identify it permanently."""
    key: bytes
    argument: bytes


class Replicated(Message, frozen=True):
    """`is_settled`: it is committed here, or a newer change is. Otherwise the sender keeps it and does not retry."""

    request: int
    is_settled: bool


class SyncRequest(Message, frozen=True):
    """Compares leaves of a log's hash tree, as of an offset of the log, with the leader.

    Answered by `SyncOk`, or by any number of `SyncDiff` and a `SyncEnd`.
    """

    log: int
    epoch: int
    offset: int
    first_leaf: int
    next_leaf: int
    digest: int


class SyncOk(Message, frozen=True):
    log: int
    epoch: int
    offset: int
    first_leaf: int
    next_leaf: int


class SyncDiff(Message, frozen=True):
    """A key of a leaf that differs, in the leader's state after `offset`."""

    log: int
    epoch: int
    offset: int
    stamp: bytes
    """The stamp of its last change."""
    deadline_ms: int
    kind: int
    key: bytes
    value: bytes


class Verdict(IntEnum):
    """The result of a comparison that found a difference."""

    NARROWER = 1
    """Several leaves: compare parts of the range."""
    TOLD = 2
    """One leaf: all of its keys have been sent."""
    UNKNOWN = 3
    """The leader does not have the tree of that offset (any more)."""


class SyncEnd(Message, frozen=True):
    """These leaves differ. For one leaf: all of its keys have been sent, `keys` of them, in the state after `offset`."""

    log: int
    epoch: int
    offset: int
    first_leaf: int
    next_leaf: int
    keys: int
    verdict: Verdict


# -- the table ---------------------------------------------------------------------------------------------------


def _read_flag(reader: Reader, what: str) -> bool:
    at = reader.position
    if (found := reader.u8(what)) > 1:
        raise ProtocolError(f"{what} is 0 or 1, not {found}", at)
    return bool(found)


def _read_verdict(reader: Reader, what: str) -> Verdict:
    at = reader.position
    found = reader.u8(what)
    if found not in Verdict.__members__.values():
        raise ProtocolError(f"{what} is not a {found}", at)
    return Verdict(found)


def _short(label: str, bytes_min: int, bytes_max: int) -> Kind:
    """Bytes with a u16 length."""

    def read(reader: Reader, what: str) -> bytes:
        at = reader.position
        size = reader.u16(what)
        if not bytes_min <= size <= bytes_max:
            raise ProtocolError(f"{what} of {size} bytes, {bytes_min} to {bytes_max} are allowed", at)
        return reader.take(size, what)

    def write(value: bytes) -> bytes:
        if not bytes_min <= len(value) <= bytes_max:
            raise ValueError(f"{label} of {len(value)} bytes, {bytes_min} to {bytes_max} are allowed")
        return U16.write(len(value)) + value

    return Kind(f"u16 len + {label}", read, write, 2 + bytes_min, 2 + bytes_max)


def _rest(bytes_max: int) -> Kind:
    """All remaining bytes."""

    def write(value: bytes) -> bytes:
        if len(value) > bytes_max:
            raise ValueError(f"{len(value)} bytes, {bytes_max} are allowed")
        return value

    return Kind("the rest", lambda reader, what: reader.take(reader.left, what), write, 0, bytes_max)


def _write_stamp(stamp: bytes) -> bytes:
    if len(stamp) != STAMP_BYTES:
        raise ValueError(f"a stamp must have {STAMP_BYTES} bytes, not {len(stamp)}")
    return stamp


def _read_principal(reader: Reader, what: str) -> str:
    at = reader.position
    found = reader.text16(what)
    if reader.position - at > 2 + PRINCIPAL_BYTES_MAX:
        raise ProtocolError(f"{what} of {reader.position - at - 2} bytes, {PRINCIPAL_BYTES_MAX} are allowed", at)
    return found


STAMP_BYTES: Final = 28
PRINCIPAL_BYTES_MAX: Final = 1024
FORWARD_BYTES_MAX: Final = 1024 * 1024
"""Maximum body of a forwarded request: as large as a client's may be."""
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
FLAG: Final = Kind("u8", _read_flag, lambda flag: b"\1" if flag else b"\0", 1, 1)
STAMP: Final = Kind(
    "stamp", lambda reader, what: reader.take(STAMP_BYTES, what), _write_stamp, STAMP_BYTES, STAMP_BYTES
)
KEY: Final = _short("key", 1, KV_KEY_BYTES_MAX)
PRINCIPAL: Final = Kind("str", _read_principal, TEXT.write, 2, 2 + PRINCIPAL_BYTES_MAX)
VERDICT: Final = Kind("u8", _read_verdict, U8.write, 1, 1)
_PLACE: Final = (("log", U16), ("epoch", U32), ("offset", U64))
_LEAVES: Final = (("first_leaf", U16), ("next_leaf", U16))


class Row(NamedTuple):
    """One row. `fields`: the payload, in this order and without other fields."""

    number: int
    name: str
    kind: type[Message]
    fields: Layout

    @property
    def bytes_min(self) -> int:
        return sum(kind.bytes_min for _, kind in self.fields)

    @property
    def bytes_max(self) -> int:
        return sum(kind.bytes_max for _, kind in self.fields)


_WITNESSED: Final = (("by", U32), ("node", U32), ("incarnation", U64))
OPERATIONS: Final = (
    Row(0x01, "PING", Ping, (("members_hash", U64),)),
    Row(
        0x02,
        "PONG",
        Pong,
        (("node", U32), ("incarnation", U64), ("wall_ms", I64), ("members_hash", U64)),
    ),
    Row(0x03, "PING_REQ", PingRequest, _WITNESSED),
    Row(0x04, "ACK", Ack, (*_WITNESSED, ("is_alive", FLAG), ("is_refused", FLAG))),
    Row(0x05, "LEAVE", Leave, (("node", U32), ("incarnation", U64))),
    Row(
        0x11,
        "FORWARD",
        Forward,
        (
            ("request", U32),
            ("command", U8),
            ("consistency", U8),
            ("hops", U8),
            ("stamp", STAMP),
            ("principal", PRINCIPAL),
            ("body", _rest(FORWARD_BYTES_MAX)),
        ),
    ),
    Row(0x12, "ANSWER", Answer, (("request", U32), ("status", U8), ("body", _rest(ANSWER_BYTES_MAX)))),
    Row(0x13, "TOPOLOGY_CHANGED", TopologyChanged, (("request", U32), ("epoch", U64))),
    Row(
        0x14,
        "REPLICATE",
        Replicate,
        (
            ("request", U32),
            ("log", U16),
            ("operation", U8),
            ("stamp", STAMP),
            ("ttl_seconds", U32),
            ("origin_epoch", U32),
            ("origin_offset", U64),
            ("key", KEY),
            ("argument", _rest(FORWARD_BYTES_MAX)),
        ),
    ),
    Row(0x15, "REPLICATED", Replicated, (("request", U32), ("is_settled", FLAG))),
    Row(0x21, "SYNC_REQ", SyncRequest, (*_PLACE, *_LEAVES, ("digest", U64))),
    Row(0x22, "SYNC_OK", SyncOk, (*_PLACE, *_LEAVES)),
    Row(
        0x23,
        "SYNC_DIFF",
        SyncDiff,
        (
            *_PLACE,
            ("stamp", STAMP),
            ("deadline_ms", U64),
            ("kind", U8),
            ("key", KEY),
            ("value", _rest(KV_COLLECTION_BYTES_MAX)),
        ),
    ),
    Row(0x24, "SYNC_END", SyncEnd, (*_PLACE, *_LEAVES, ("keys", U32), ("verdict", VERDICT))),
)
"""The high nibble is the group. 0x00 is not used: uninitialized memory must not look like a message."""
BY_NUMBER: Final = {row.number: row for row in OPERATIONS}
BY_KIND: Final = {row.kind: row for row in OPERATIONS}
GOSSIP: Final = frozenset(number for number in BY_NUMBER if number >> 4 == 0)
"""Membership messages. All are small."""
ASKED: Final = frozenset((0x11, 0x14, 0x21))
"""Requests about keys; a connection for keys accepts no others, ..."""
ANSWERED: Final = frozenset(BY_NUMBER) - GOSSIP - ASKED
"""... and returns only these answers."""
