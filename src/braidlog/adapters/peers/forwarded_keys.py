"""Translates a Mayfly request to a FORWARD between nodes, and its response to an ANSWER, with the same command, body
and status.

Does not handle: bodies, serving.
"""

import struct
from typing import Final

from braidlog.broker.forwarding import Call
from braidlog.model.errors import NothingDoneError, Reason
from braidlog.wire.mayfly.connection import HEADER_2_BYTES, HEADER_BYTES
from braidlog.wire.mayfly.hot import FIRST
from braidlog.wire.mayfly.messages import Consistency
from braidlog.wire.peer import messages as m

FIRST_HOP: Final = 1
"""Hop count from the node that the client reached; a second hop is not allowed."""
_VERSION_2: Final = FIRST + 0x100
_HEADER: Final = struct.Struct(">III")


def forward_of(call: Call, stamp: bytes) -> m.Forward:
    """The forwarded form of a client's frame."""
    first, _, size = _HEADER.unpack_from(call.body)
    begin = HEADER_BYTES if first & 0xFFFFFF00 == FIRST else HEADER_2_BYTES
    assert begin + size == len(call.body), "one request at a time"
    consistency = Consistency.QUORUM if begin == HEADER_BYTES else call.body[HEADER_BYTES]
    return m.Forward(0, first & 0xFF, consistency, FIRST_HOP, stamp, call.principal, call.body[begin:])


def relayed(call: Call, answer: m.Answer | m.TopologyChanged) -> bytes:
    """The frame for the client. Raises `NothingDoneError` if the other node does not hold the key."""
    if isinstance(answer, m.TopologyChanged):
        raise NothingDoneError(Reason.NOT_LEADER, f"the other node does not lead the key (epoch {answer.epoch})")
    _, number, _ = _HEADER.unpack_from(call.body)
    return _HEADER.pack(FIRST | answer.status, number, len(answer.body)) + answer.body


def request_of(forward: m.Forward) -> bytes:
    """The frame as the client would have sent it here."""
    head = _HEADER.pack(_VERSION_2 | forward.command, forward.request, len(forward.body))
    return head + bytes((forward.consistency,)) + forward.body


def answer_of(forward: m.Forward, frame: bytes) -> m.Answer:
    return m.Answer(forward.request, frame[3], frame[HEADER_BYTES:])
