"""Decodes captured flux traffic: lines, and answers that repeat their request's id."""

from collections.abc import Sequence
from typing import Any, Final

from braidlog.codec.errors import ProtocolError
from braidlog.codec.receive_buffer import ReceiveBuffer
from braidlog.wire.contract import Refused
from braidlog.wire.flux.lines import read_envelope, read_error, read_payload, read_request
from braidlog.wire.flux.operations import BY_REQUEST, Argument
from braidlog.wire.flux.records import LINE_BYTES_MAX
from braidlog.wire.observer import Asked, Fault, Observer, Reading, Side, fault_of, fields_of

_NO_TEXT: Final = frozenset((*range(9), *range(14, 32), *range(127, 256)))


class FluxObserver(Observer):
    is_ordered = False
    volatile = frozenset({"term", "index", "host", "port"})

    def __init__(self) -> None:
        self._asked = Asked()
        self._searched = {Side.CLIENT: 0, Side.SERVER: 0}

    def measure(self, inbox: ReceiveBuffer, side: Side) -> int | None:
        data, at = inbox.window()
        if len(data) > at and data[at] in _NO_TEXT:
            raise ProtocolError(f"a line begins with {data[at]:02X}, which is not text: expected V1|", 0)
        end = data.find(b"\n", at + self._searched[side])
        size = (len(data) if end < 0 else end) - at
        if size > LINE_BYTES_MAX:
            raise ProtocolError(f"a line has more than {LINE_BYTES_MAX} bytes", LINE_BYTES_MAX)
        self._searched[side] = size if end < 0 else 0
        return None if end < 0 else size + 1

    def read(self, side: Side, frame: bytes) -> Reading:
        line = frame[:-1]
        return self._request(line) if side is Side.CLIENT else self._answer(line)

    def _request(self, line: bytes) -> Reading:
        _, word, command, _ = (line.split(b"|", 3) + [b""] * 4)[:4]
        head = {"Id": word.decode("utf-8", "replace"), "Command": command.decode("utf-8", "replace").strip()}
        reading = Reading(head["Command"].upper() or "?", head, 0)
        event = read_request(line)
        if isinstance(event, Refused):
            fault = fault_of(event.error, 0)
            reading.fault = Fault(fault.message, len(line) if fault.position is None else fault.position)
            return reading
        self._asked[event.correlation_id] = event
        reading.fields = _words(event, BY_REQUEST[type(event)].arguments)
        return reading

    def _answer(self, line: bytes) -> Reading:
        reading = Reading("?", {}, 0)
        try:
            correlation_id, status, rest = read_envelope(line)
            reading.head = {"Id": correlation_id, "Status": status.decode()}
            asked = self._asked.pop(correlation_id, None)
            reading.name = "ERR" if status == b"ERR" else "OK"
            if status == b"ERR":
                reading.message = read_error(rest)
            elif asked is None:
                reading.fields = {"payload": rest.decode("utf-8", "replace")}
                reading.fault = Fault(f"an answer to {correlation_id!r}, whose request was not captured", 3)
            else:
                reading.head["Command"] = BY_REQUEST[type(asked)].command
                reading.fields = _words(read_payload(asked, rest), BY_REQUEST[type(asked)].payload)
        except ProtocolError as error:
            reading.fault = fault_of(error, 0)
        return reading


def _words(message: Any, arguments: Sequence[Argument]) -> dict[str, Any]:  # noqa: ANN401 - a request or an answer
    """Return the fields of a message by their words on the line; the id is already in the head."""
    names = {argument.field: argument.word for argument in arguments}
    found = fields_of(message, {}, [])
    constants = {argument.word: argument.kind.shape for argument in arguments if not argument.field}
    return {names.get(name, name): value for name, value in found.items() if name != "correlation_id"} | constants
