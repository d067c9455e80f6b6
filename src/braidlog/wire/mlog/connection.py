"""Frames of mlog: bytes become requests and answers, and back.

Handles frames, the messages that each side may send, and the order of answers. Does not handle: sockets, clocks, the
meaning of a request.
Invariant: a peer's bytes never raise. They give messages, then at most one `Refused`, after which the connection
accepts no more bytes.

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
"""Maximum unanswered requests of one client connection."""

REQUEST_READERS: Final[dict[int, GoReader[Any]]] = {row.number: GoReader(row.request) for row in OPERATIONS}
RESPONSE_READERS: Final[dict[int, GoReader[Any]]] = {
    MessageType.RPC_ERROR: GoReader(RPCErrorResponse),
    **{row.response_number: GoReader(row.response) for row in OPERATIONS},
}


def frame(message: GoStruct) -> bytes:
    """Return the message as one frame. Raises ValueError if it exceeds a frame."""
    payload = write(message)
    size = len(payload)
    if size > PAYLOAD_BYTES_MAX:
        raise ValueError(f"{type(message).__name__} takes {size} bytes, a frame may have {PAYLOAD_BYTES_MAX}")
    return _HEADER.pack(NUMBER_OF[type(message)], size) + payload


def _packed(answer: PackedEntries) -> tuple[bytes, ...]:
    """Return the same frame as `frame`, without copying the packed entries again."""
    size = len(_ENTRIES_HEAD) + len(answer.rows.data) + len(_ENTRIES_TAIL)
    if size > PAYLOAD_BYTES_MAX:
        raise ValueError(f"{answer.rows.number} entries take {size} bytes, a frame may have {PAYLOAD_BYTES_MAX}")
    return _HEADER.pack(MessageType.FETCH_BATCH_RESP, size) + _ENTRIES_HEAD, answer.rows.data, _ENTRIES_TAIL


class _Frames(Receiver):
    """The received bytes of one peer."""

    def __init__(self, readers: dict[int, GoReader[Any]]) -> None:
        super().__init__()
        self.frame_bytes_max = PAYLOAD_BYTES_MAX
        """Maximum bytes of a received payload."""
        self._readers = readers

    def _next_message(self) -> Any:  # noqa: ANN401 - a request or a response: the readers say which
        """Return the next message; raises `ProtocolError` for an invalid frame."""
        header = self._inbox.peek(_HEADER.size)
        if header is None:
            return NEED_DATA
        number, size = _HEADER.unpack(header)
        # Reject before buffering: neither an unknown message nor 4 GiB of a known one are worth waiting for.
        reader = self._readers.get(number)
        if reader is None:
            raise ProtocolError(f"this side cannot receive message type {number}", 0)
        if size > self.frame_bytes_max:
            raise ProtocolError(f"a payload announces {size} bytes, the limit is {self.frame_bytes_max}", 2)
        if len(self._inbox) < _HEADER.size + size:
            return NEED_DATA
        self._inbox.take(_HEADER.size)
        payload = self._inbox.take(size)
        assert payload is not None
        return reader.read(payload)


class ServerConnection(_Frames):
    """The server's end: returns requests, accepts answers.

    The caller of `respond` and `push` keeps answers in request order. A request may arrive while a FetchStream is
    open: pushed frames have their own type (11), so its answer may be sent between them.
    """

    def __init__(self) -> None:
        super().__init__(REQUEST_READERS)
        self.streaming = False
        """Whether a FetchStream is open. A client could not distinguish the frames of two."""

    def next_event(self) -> Request | Refused | NeedData:
        if self._closed:
            return NEED_DATA
        try:
            event: Request | NeedData = self._next_message()
        except ProtocolError as error:
            return self._refuse(error)
        return event

    def turn_away(self, reason: str) -> Refused:
        """Return the error for a client that is not admitted."""
        return self._refuse(ProtocolError(reason))

    def _refuse(self, error: ProtocolError) -> Refused:
        self._close()
        return Refused(error, RPCErrorResponse(ErrorCode.UNKNOWN, str(error)), close=True)

    @overload
    def respond(self, request: Request | Refused, answer: GoStruct) -> bytes: ...

    @overload
    def respond(self, request: Request | Refused, answer: PackedEntries) -> tuple[bytes, ...]: ...

    def respond(self, request: Request | Refused, answer: GoStruct | PackedEntries) -> bytes | tuple[bytes, ...]:
        """Return the one answer to a request, or an error. Raises ValueError if it exceeds a frame: see sizes.py."""
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
        """Return one more answer to a ReplicateStream (the last has `end_of_stream`) or to a FetchStream."""
        if type(message) not in (ReplicateResponse, FetchStreamResponse):
            raise TypeError(f"{type(message).__name__} is not pushed")
        return frame(message)

    def push_entries(self, entries: Iterable[LogEntry]) -> bytes:
        """Return FetchStream frames, one per entry, joined."""
        return b"".join([frame(FetchStreamResponse(entry)) for entry in entries])


class ClientConnection(_Frames, Answered):
    """The client's end: accepts requests, returns answers in the same order. An `RPCErrorResponse` may replace any
    answer.

    During an open FetchStream no other request is accepted: an RPCError could belong to either.
    """

    def __init__(self) -> None:
        super().__init__(RESPONSE_READERS)
        self._asked: deque[Operation] = deque()

    def request(self, message: Request) -> bytes:
        """Return the bytes to send. Raises ValueError if the message does not fit, or if no more requests are
        allowed.
        """
        operation = BY_REQUEST[type(message)]
        if self._closed:
            raise ValueError("the connection was rejected and accepts no more requests")
        if self._asked and self._asked[-1].request is FetchStreamRequest:
            raise ValueError("a FetchStream is open: use another connection for other requests")
        if len(self._asked) >= IN_FLIGHT_MAX:
            raise ValueError(f"{IN_FLIGHT_MAX} requests are unanswered, which is the limit")
        data = frame(message)
        self._asked.append(operation)
        return data

    def _next(self) -> GoStruct | NeedData:
        event: GoStruct | NeedData = self._next_message()
        if not isinstance(event, NeedData):
            self._settle(event)
        return event

    def _settle(self, message: GoStruct) -> None:
        """Remove the request that this message answers."""
        if isinstance(message, RPCErrorResponse):
            # Also without open requests: a server may send an error before it closes.
            if self._asked:
                self._asked.popleft()
            return
        if not self._asked or type(message) is not self._asked[0].response:
            expected = self._asked[0].response.__name__ if self._asked else "nothing"
            raise ProtocolError(f"{type(message).__name__} came instead of {expected}", 0)
        if not self._asked[0].streams or (isinstance(message, ReplicateResponse) and message.end_of_stream):
            self._asked.popleft()
