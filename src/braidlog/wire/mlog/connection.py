"""Frames of mlog: bytes become requests and answers, and back. No socket, no clock.

Knows: where a frame begins and ends, which messages each side may send, and in which order answers come. Refuses to
know: what a request means.
Invariant: peer bytes never raise. They give messages, then at most one `Refused`, after which the connection takes
nothing more.

    0        2                 6                          6 + size
    +--------+-----------------+--------------------------+
    | u16    | u32             | JSON                     |
    | type   | size            | `size` bytes, ≤ 4 MiB    |
    +--------+-----------------+--------------------------+
"""

import struct
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, overload

from braidlog.codec.errors import ProtocolError
from braidlog.wire.contract import NEED_DATA, Answered, NeedData, Receiver, Refused
from braidlog.wire.mlog.errors import ErrorCode, RPCErrorResponse
from braidlog.wire.mlog.gojson import GoReader, GoStruct, write
from braidlog.wire.mlog.messages import (
    FetchBatchRequest,
    FetchStreamRequest,
    FetchStreamResponse,
    LogEntry,
    MessageType,
    PackedEntries,
    Pushed,
    ReplicateResponse,
    Request,
)
from braidlog.wire.mlog.operations import BY_REQUEST, NUMBER_OF, OPERATIONS, Operation
from braidlog.wire.mlog.sizes import PAYLOAD_BYTES_MAX

_HEADER: Final = struct.Struct(">HI")
_ENTRIES_HEAD: Final = b'{"Entries":['
_ENTRIES_TAIL: Final = b"]}"

IN_FLIGHT_MAX: Final = 4096
"""Requests of one client connection that wait for their answers."""

REQUEST_READERS: Final[dict[int, GoReader[Any]]] = {row.number: GoReader(row.request) for row in OPERATIONS}
RESPONSE_READERS: Final[dict[int, GoReader[Any]]] = {
    MessageType.RPC_ERROR: GoReader(RPCErrorResponse),
    **{row.response_number: GoReader(row.response) for row in OPERATIONS},
}


def frame(message: GoStruct) -> bytes:
    """The message as one frame; ValueError if no frame can hold it."""
    payload = write(message)
    size = len(payload)
    if size > PAYLOAD_BYTES_MAX:
        raise ValueError(f"{type(message).__name__} takes {size} bytes, a frame holds {PAYLOAD_BYTES_MAX}")
    return _HEADER.pack(NUMBER_OF[type(message)], size) + payload


def _packed(answer: PackedEntries) -> tuple[bytes, ...]:
    """The frame that `frame` would make of the same entries, which are not copied once more."""
    size = len(_ENTRIES_HEAD) + len(answer.rows.data) + len(_ENTRIES_TAIL)
    if size > PAYLOAD_BYTES_MAX:
        raise ValueError(f"{answer.rows.number} entries take {size} bytes, a frame holds {PAYLOAD_BYTES_MAX}")
    return _HEADER.pack(MessageType.FETCH_BATCH_RESP, size) + _ENTRIES_HEAD, answer.rows.data, _ENTRIES_TAIL


class _Frames(Receiver):
    """What has arrived from one peer, and whether it is still believed."""

    def __init__(self, readers: dict[int, GoReader[Any]]) -> None:
        super().__init__()
        self.frame_bytes_max = PAYLOAD_BYTES_MAX
        """Of a payload that comes in."""
        self._readers = readers

    def _next_message(self) -> Any:  # noqa: ANN401 - a request or a response: the readers say which
        """The next message; `ProtocolError` for a frame that is none."""
        header = self._inbox.peek(_HEADER.size)
        if header is None:
            return NEED_DATA
        number, size = _HEADER.unpack(header)
        # Refuse before buffering: neither an unknown message nor 4 GiB of a known one are worth waiting for.
        reader = self._readers.get(number)
        if reader is None:
            raise ProtocolError(f"message type {number} is not one that this side can be sent", 0)
        if size > self.frame_bytes_max:
            raise ProtocolError(f"a payload of {size} bytes is announced, {self.frame_bytes_max} is the limit", 2)
        if len(self._inbox) < _HEADER.size + size:
            return NEED_DATA
        self._inbox.take(_HEADER.size)
        payload = self._inbox.take(size)
        assert payload is not None
        return reader.read(payload)


class ServerConnection(_Frames):
    """The server's end: requests come out, answers go in.

    Answers leave in request order; whoever calls `respond` and `push` keeps it. A request may come while a FetchStream
    is open: pushed frames have a type of their own (11), so its answer may stand between them.
    """

    def __init__(self) -> None:
        super().__init__(REQUEST_READERS)
        self.streaming = False
        """Whether a FetchStream is open. The frames of two could not be told apart."""

    def next_event(self) -> Request | Refused | NeedData:
        if self._closed:
            return NEED_DATA
        try:
            event: Request | NeedData = self._next_message()
        except ProtocolError as error:
            return self._refuse(error)
        return event

    def turn_away(self, reason: str) -> Refused:
        """The error for a client that is not let in, whatever it asked or was about to ask."""
        return self._refuse(ProtocolError(reason))

    def _refuse(self, error: ProtocolError) -> Refused:
        self._close()
        return Refused(error, RPCErrorResponse(ErrorCode.UNKNOWN, str(error)), close=True)

    @overload
    def respond(self, request: Request | Refused, answer: GoStruct) -> bytes: ...

    @overload
    def respond(self, request: Request | Refused, answer: PackedEntries) -> tuple[bytes, ...]: ...

    def respond(self, request: Request | Refused, answer: GoStruct | PackedEntries) -> bytes | tuple[bytes, ...]:
        """The one answer to a request, or an error. ValueError if it is larger than a frame: see sizes.py."""
        if isinstance(answer, PackedEntries):
            if not isinstance(request, FetchBatchRequest):
                raise TypeError(f"entries do not answer {type(request).__name__}")
            return _packed(answer)
        if type(answer) is not RPCErrorResponse:
            operation = None if isinstance(request, Refused) else BY_REQUEST[type(request)]
            if operation is None or operation.streams or type(answer) is not operation.response:
                raise TypeError(f"{type(answer).__name__} does not answer {type(request).__name__}")
        return frame(answer)

    def push(self, message: Pushed) -> bytes:
        """One more answer to a ReplicateStream (the last has `end_of_stream`) or to a FetchStream."""
        if type(message) not in (ReplicateResponse, FetchStreamResponse):
            raise TypeError(f"{type(message).__name__} is not pushed")
        return frame(message)

    def push_entries(self, entries: Iterable[LogEntry]) -> bytes:
        """FetchStream frames, one for each entry, in one piece."""
        return b"".join([frame(FetchStreamResponse(entry)) for entry in entries])


class ClientConnection(_Frames, Answered):
    """The client's end: requests go in, answers come out in the same order; an `RPCErrorResponse` stands for any.

    While a FetchStream is open no other request is taken: nobody could tell whose error an RPCError is.
    """

    def __init__(self) -> None:
        super().__init__(RESPONSE_READERS)
        self._asked: deque[Operation] = deque()

    def request(self, message: Request) -> bytes:
        """The bytes to send. ValueError if the message, or one more message, does not fit."""
        operation = BY_REQUEST[type(message)]
        if self._closed:
            raise ValueError("the connection was refused and takes no more requests")
        if self._asked and self._asked[-1].request is FetchStreamRequest:
            raise ValueError("a FetchStream is open: other requests go through another connection")
        if len(self._asked) >= IN_FLIGHT_MAX:
            raise ValueError(f"{IN_FLIGHT_MAX} requests wait for their answers already")
        data = frame(message)
        self._asked.append(operation)
        return data

    def _next(self) -> GoStruct | NeedData:
        event: GoStruct | NeedData = self._next_message()
        if not isinstance(event, NeedData):
            self._settle(event)
        return event

    def _settle(self, message: GoStruct) -> None:
        """Cross off the request that this message answers."""
        if isinstance(message, RPCErrorResponse):
            # With nothing in flight too: a server may say why before it closes.
            if self._asked:
                self._asked.popleft()
            return
        if not self._asked or type(message) is not self._asked[0].response:
            expected = self._asked[0].response.__name__ if self._asked else "nothing"
            raise ProtocolError(f"{type(message).__name__} came where {expected} was due", 0)
        if not self._asked[0].streams or (isinstance(message, ReplicateResponse) and message.end_of_stream):
            self._asked.popleft()
