"""Decodes captured rustlog traffic in either form, detected by the first byte as the server does."""

from typing import Final

from braidlog.codec.errors import ProtocolError
from braidlog.wire.observer import Fault, LengthPrefixed, Reading, Side, fault_of
from braidlog.wire.rustlog import binary, jsonform
from braidlog.wire.rustlog.messages import FRAME_BYTES_MAX
from braidlog.wire.rustlog.operations import BY_TYPE_BYTE, ERROR_BYTE

_LENGTH_BYTES: Final = 4
_TAB: Final = 0x09


class RustlogObserver(LengthPrefixed):
    frame_bytes_max = FRAME_BYTES_MAX
    volatile = frozenset({"timestamp", "metrics"})

    def read(self, side: Side, frame: bytes) -> Reading:
        payload = frame[_LENGTH_BYTES:]
        reading = Reading("?", {"Len": len(payload)}, _LENGTH_BYTES)
        if not payload:
            reading.fault = Fault("a frame is empty, the minimum is 1 byte", 0)
            return reading
        try:
            if self._is_binary(payload, side):
                reading.head |= {"Form": "binary", "Type": f"0x{payload[0]:02X}"}
                row = BY_TYPE_BYTE.get(payload[0])
                reading.name = "Error" if payload[0] == ERROR_BYTE else "?" if row is None else row.name
                reading.message = (
                    binary.read_request(payload) if side is Side.CLIENT else binary.read_answer(payload)[1]
                )
            else:
                reading.head["Form"] = "json"
                read = jsonform.read_request if side is Side.CLIENT else jsonform.read_answer
                reading.message = read(payload)
            reading.name = type(reading.message).__name__
        except ProtocolError as error:
            reading.fault = fault_of(error, _LENGTH_BYTES)
        return reading

    @staticmethod
    def _is_binary(payload: bytes, side: Side) -> bool:
        first = payload[0]
        if side is Side.SERVER:
            return first in BY_TYPE_BYTE or first == ERROR_BYTE
        return first in BY_TYPE_BYTE and (first != _TAB or len(payload) == 1)
