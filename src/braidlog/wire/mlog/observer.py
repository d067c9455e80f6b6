"""Decodes captured mlog traffic: the type of a frame determines its reader, for both sides."""

import struct
from typing import ClassVar, Final

from braidlog.codec.errors import ProtocolError
from braidlog.codec.receive_buffer import ReceiveBuffer
from braidlog.wire.mlog.connection import REQUEST_READERS, RESPONSE_READERS
from braidlog.wire.mlog.messages import MessageType
from braidlog.wire.mlog.sizes import PAYLOAD_BYTES_MAX
from braidlog.wire.observer import Fault, Observer, Reading, Side, fault_of

_HEADER: Final = struct.Struct(">HI")

_READERS: Final = {Side.CLIENT: REQUEST_READERS, Side.SERVER: RESPONSE_READERS}


class MlogObserver(Observer):
    volatile: ClassVar[frozenset[str]] = frozenset({"LeaderAddr", "RaftLeaderAddr"})

    def measure(self, inbox: ReceiveBuffer, side: Side) -> int | None:  # noqa: ARG002 - the same for both
        header = inbox.peek(_HEADER.size)
        if header is None:
            return None
        number: int
        size: int
        number, size = _HEADER.unpack(header)
        if number not in MessageType.__members__.values():
            raise ProtocolError(f"unknown message type {number}: must be 0 to {max(MessageType)}", 0)
        if size > PAYLOAD_BYTES_MAX:
            raise ProtocolError(f"a payload announces {size} bytes, the limit is {PAYLOAD_BYTES_MAX}", 2)
        return _HEADER.size + size

    def read(self, side: Side, frame: bytes) -> Reading:
        number, size = _HEADER.unpack_from(frame)
        name = MessageType(number).title
        reading = Reading(name, {"Type": f"{number}({name})", "Size": size}, _HEADER.size)
        reader = _READERS[side].get(number)
        if reader is None:
            reading.fault = Fault(f"{reading.name} is not sent by a {side}", 0)
            return reading
        try:
            reading.message = reader.read(frame[_HEADER.size :])
        except ProtocolError as error:
            reading.fault = fault_of(error, _HEADER.size)
        return reading
