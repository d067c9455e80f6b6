"""Decodes captured traffic between nodes: headers in the protocol document's terms, payloads by the table. Either end
may begin.
"""

from braidlog.codec.errors import ProtocolError
from braidlog.codec.receive_buffer import ReceiveBuffer
from braidlog.wire.observer import Observer, Reading, Side, fault_of
from braidlog.wire.peer.connection import HEADER, HEADER_BYTES, check_begin, check_size, read_message
from braidlog.wire.peer.messages import BY_NUMBER


class PeerObserver(Observer):
    is_ordered = False

    def measure(self, inbox: ReceiveBuffer, side: Side) -> int | None:  # noqa: ARG002 - both ends are the same
        begun = inbox.peek(min(len(inbox), HEADER_BYTES)) or b""
        check_begin(begun[:4], BY_NUMBER)
        if len(begun) < HEADER_BYTES:
            return None
        _, _, number, _, size = HEADER.unpack(begun)
        check_size(BY_NUMBER[number], size)
        return HEADER_BYTES + int(size)

    def may_be_secret(self, side: Side, begun: bytes) -> bool:  # noqa: ARG002 - nodes show certificates
        return False

    def read(self, side: Side, frame: bytes) -> Reading:  # noqa: ARG002 - both ends are the same
        _, version, number, sender, size = HEADER.unpack_from(frame)
        row = BY_NUMBER[number]
        head = {
            "Magic": "0xBEE5",
            "Ver": version,
            "Type": f"0x{number:02X}({row.name})",
            "From": sender.hex(),
            "Len": size,
        }
        reading = Reading(row.name, head, HEADER_BYTES)
        try:
            reading.message = read_message(row, frame)
        except ProtocolError as error:
            reading.fault = fault_of(error, 0)
        return reading
