"""Decodes captured mayfly traffic: headers in the protocol document's terms, bodies by the tables."""

import struct
from typing import Final

from braidlog.codec.errors import ProtocolError
from braidlog.codec.receive_buffer import ReceiveBuffer
from braidlog.wire.mayfly import fields
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import HEADER_2_BYTES, HEADER_BYTES, read_answer
from braidlog.wire.mayfly.operations import BY_NUMBER, SECRETS
from braidlog.wire.observer import Asked, Fault, Observer, Reading, Side, fault_of

_HEADER: Final = struct.Struct(">HBBII")
_MAGIC: Final = b"\xca\xfe"
_VERSIONS: Final = {Side.CLIENT: (1, 2), Side.SERVER: (1,)}


class MayflyObserver(Observer):
    is_ordered = False
    volatile = frozenset(
        {*m.Statistics.__struct_fields__, *m.MemoryUse.__struct_fields__, *m.SnapshotTaken.__struct_fields__}
    )

    def __init__(self) -> None:
        self._asked = Asked()

    def measure(self, inbox: ReceiveBuffer, side: Side) -> int | None:
        begun = inbox.peek(min(len(inbox), HEADER_BYTES)) or b""
        for place, (actual, expected) in enumerate(zip(begun, _MAGIC, strict=False)):
            if actual != expected:
                raise ProtocolError(f"found {actual:02X}, expected {expected:02X} of the magic CAFE", place)
        if len(begun) > 2 and begun[2] not in _VERSIONS[side]:
            spoken = " or ".join(map(str, _VERSIONS[side]))
            raise ProtocolError(f"found version {begun[2]}, expected {spoken}", 2)
        if len(begun) < HEADER_BYTES:
            return None
        size: int = _HEADER.unpack(begun)[4]
        limit = m.MANY_BYTES_MAX if side is Side.CLIENT else m.ANSWER_BYTES_MAX
        if size > limit:
            raise ProtocolError(f"a payload announces {size} bytes, the limit is {limit}", 8)
        return size + (HEADER_2_BYTES if begun[2] == 2 else HEADER_BYTES)

    def may_be_secret(self, side: Side, begun: bytes) -> bool:
        row = BY_NUMBER.get(begun[3]) if len(begun) > 3 else None
        return side is Side.CLIENT and row is not None and row.request in SECRETS

    def read(self, side: Side, frame: bytes) -> Reading:
        _, version, number, request_id, size = _HEADER.unpack_from(frame)
        start = HEADER_2_BYTES if version == 2 else HEADER_BYTES
        reading = Reading("?", {"Magic": "0xCAFE", "Ver": version}, start)
        try:
            if side is Side.CLIENT:
                self._request(reading, number, request_id, size, frame)
            else:
                self._answer(reading, number, request_id, size, frame)
        except ProtocolError as error:
            reading.fault = fault_of(error, start)
        return reading

    def _request(self, reading: Reading, number: int, request_id: int, size: int, frame: bytes) -> None:
        row = BY_NUMBER.get(number)
        reading.name = "?" if row is None else row.name
        reading.head |= {"Cmd": f"0x{number:02X}({reading.name})", "ReqID": request_id, "Len": size}
        if row is None:
            reading.fault = Fault(f"unknown command 0x{number:02X}", 3)
            return
        reading.is_secret = row.request in SECRETS  # all of it, until it is parsed
        self._asked[request_id] = row.request
        if reading.header_bytes == HEADER_2_BYTES:
            try:
                reading.head["Consistency"] = m.Consistency(frame[12]).name
            except ValueError:
                reading.fault = Fault(f"{frame[12]} is not a consistency: use 1 (ONE), 2 (QUORUM) or 3 (ALL)", 12)
                return
        if size > row.payload_bytes_max:
            reading.fault = Fault(f"{row.name} with {size} bytes, the limit is {row.payload_bytes_max}", 8)
            return
        reading.message = fields.read_request(row.request, frame[reading.header_bytes :])
        reading.is_secret = False

    def _answer(self, reading: Reading, number: int, request_id: int, size: int, frame: bytes) -> None:
        status = m.Status(number) if number in m.Status.__members__.values() else None
        reading.name = "?" if status is None else status.name
        reading.head |= {"Status": f"0x{number:02X}({reading.name})", "ReqID": request_id, "Len": size}
        if status is None:
            reading.fault = Fault(f"unknown status 0x{number:02X}", 3)
            return
        asked = self._asked.pop(request_id, None)
        if status is m.Status.OK and asked is None:
            reading.fields = {"payload": frame[HEADER_BYTES:]}
            reading.fault = Fault(f"an answer to request {request_id}, whose request was not captured", 4)
        else:
            reading.message = read_answer(asked, number, frame, HEADER_BYTES, len(frame))
