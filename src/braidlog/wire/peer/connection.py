"""Either end of a connection between two nodes: bytes in, messages out; messages in, bytes out.

Does not handle: the meaning of a message. Invalid bytes are never answered.
Invariants: a peer's bytes never raise. The same bytes, however cut, give the same messages. A frame of another
protocol fails at its first byte. A length is accepted only if its type allows it, and a type only if it is used on
this connection.

    ┌──────────┬───────────┬────────┬────────────────┬──────────────────┐
    │ BEE5  2  │ version 1 │ type 1 │ sender UUID 16 │ payload length 4 │ payload …
    └──────────┴───────────┴────────┴────────────────┴──────────────────┘
"""

import struct
from collections.abc import Collection
from typing import Final

import msgspec

from braidlog.codec.cursor import Reader
from braidlog.codec.errors import ProtocolError
from braidlog.wire.contract import NEED_DATA, NeedData, Receiver, Refused
from braidlog.wire.peer.messages import BY_KIND, BY_NUMBER, Ack, Message, Row

MAGIC: Final = b"\xbe\xe5"
VERSION: Final = 1
UUID_BYTES: Final = 16
HEADER: Final = struct.Struct(">2sBB16sI")
HEADER_BYTES: Final = HEADER.size
_BEGIN: Final = (*MAGIC, VERSION)


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A message with the id of its sender, which therefore never depends on the connection's history."""

    sender: bytes
    message: Message


class PeerConnection(Receiver):
    """Both ends are equal. `Refused` always closes: the caller retries on a new connection.

    `spoken`: the message types accepted here; all others are unknown.
    """

    def __init__(self, spoken: Collection[int] = BY_NUMBER.keys()) -> None:
        super().__init__()
        self._spoken = spoken

    def next_event(self) -> Frame | Refused | NeedData:
        if self._closed:
            return NEED_DATA
        try:
            return self._next()
        except ProtocolError as error:
            self._close()
            return Refused(error, None, close=True)

    def _next(self) -> Frame | NeedData:
        begun = self._inbox.peek(min(len(self._inbox), 4)) or b""
        check_begin(begun, self._spoken)
        head = self._inbox.peek(HEADER_BYTES)
        if head is None:
            return NEED_DATA
        _, _, number, sender, size = HEADER.unpack(head)
        row = BY_NUMBER[number]
        check_size(row, size)
        frame = self._inbox.take(HEADER_BYTES + size)
        return NEED_DATA if frame is None else Frame(sender, read_message(row, frame))


def check_begin(begun: bytes, spoken: Collection[int]) -> None:
    """Check magic, version and type, as far as they have arrived."""
    for position, (expected, actual) in enumerate(zip(_BEGIN, begun, strict=False)):
        if expected != actual:
            what = "version" if position == 2 else "magic"
            raise ProtocolError(f"invalid {what} of a node's message: byte {position} is {actual:#04x}", position)
    if len(begun) > 3 and begun[3] not in spoken:
        raise ProtocolError(f"nodes send no message of type {begun[3]:#04x} here", 3)


def check_size(row: Row, size: int) -> None:
    """Check the size before the payload is awaited."""
    if not row.bytes_min <= size <= row.bytes_max:
        allowed = f"{row.bytes_min}" if row.bytes_min == row.bytes_max else f"{row.bytes_min} to {row.bytes_max}"
        raise ProtocolError(f"a {row.name} must have {allowed} bytes, not {size}", 20)


def read_message(row: Row, frame: bytes) -> Message:
    """Parse a complete frame. Positions of faults count from its first byte."""
    reader = Reader(frame, HEADER_BYTES)
    message = row.kind(*[kind.read(reader, name) for name, kind in row.fields])
    if reader.left:
        raise ProtocolError(f"{reader.left} bytes follow a {row.name}", reader.position)
    if isinstance(message, Ack):
        _check_flags(frame, message)
    return message


def _check_flags(frame: bytes, ack: Ack) -> None:
    if ack.is_alive and ack.is_refused:
        raise ProtocolError("a witness cannot report both a live node and a refused connection", len(frame) - 2)


def write(sender: bytes, message: Message) -> bytes:
    """Return the frame of a message. Raises ValueError if a number does not fit."""
    row = BY_KIND[type(message)]
    if len(sender) != UUID_BYTES:
        raise ValueError(f"a node's id must have {UUID_BYTES} bytes, not {len(sender)}")
    try:
        payload = b"".join(kind.write(getattr(message, name)) for name, kind in row.fields)
    except (struct.error, ValueError) as error:
        raise ValueError(f"{row.name} cannot be encoded: {error}") from error
    return HEADER.pack(MAGIC, VERSION, row.number, sender, len(payload)) + payload
