"""Both ends of a rustlog connection: bytes in, messages out; messages in, bytes out.

Handles frames, detects a payload's form, and decides which faults close a connection. Does not handle: fields
(`messages.py`), their encoding (`jsonform.py`, `binary.py`), services.
Invariant: a peer's bytes never raise. The same bytes, however cut, give the same events. An answer has the form of
its request.

    ┌──────────────────┬────────────────────────────┐     first byte of the payload
    │ length    u32 BE │ payload   1 … 10 MiB bytes │     01 to 09, FF         binary
    └──────────────────┴────────────────────────────┘     {, blank             JSON

The byte 09 is both MetricsFetch and a tab, which JSON allows before its object. A MetricsFetch is that byte alone,
and a single tab is not JSON: the length distinguishes them. Any other first byte is malformed JSON.
"""

import struct
from collections import deque
from typing import Final, overload

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.codec.receive_buffer import ReceiveBuffer, lone_payload
from braidlog.wire.contract import NEED_DATA, Answered, NeedData, Receiver, Refused
from braidlog.wire.rustlog import binary, jsonform
from braidlog.wire.rustlog.messages import (
    FRAME_BYTES_MAX,
    PONG,
    Answer,
    BinaryErrorCode,
    Error,
    ErrorCode,
    Fetch,
    Form,
    Id,
    Message,
    PackedFetchResponse,
    Ping,
    Produce,
    ProduceResponse,
)
from braidlog.wire.rustlog.operations import BY_REQUEST, BY_TYPE_BYTE, Operation

_LENGTH: Final = struct.Struct(">I")
_TAB: Final = 0x09
_BINARY: Final = Form.BINARY
_JSON_FIRST: Final = frozenset(b"{ \t\n\r")


class Request(msgspec.Struct, frozen=True):
    """A client's request, and its form, which the answer must have."""

    message: Message
    form: Form

    @property
    def id(self) -> Id:
        return self.message.id


_BARE_BYTES: Final = 5
_BARE_REQUESTS: Final = {
    _LENGTH.pack(1) + bytes((byte,)): Request(row.request(), Form.BINARY)
    for byte, row in BY_TYPE_BYTE.items()
    if not binary.LAYOUTS[row.request]
}
"""Binary requests without fields, as complete frames that need no parsing."""
_PING: Final = _BARE_REQUESTS[b"\0\0\0\1\xff"]
_PONG_FRAME: Final = _LENGTH.pack(1) + binary.write_answer(BY_REQUEST[Ping], PONG)


class RefusedFrame(Refused, frozen=True):
    """A frame that is not a valid request. `respond(event, event.answer)` returns its bytes, as for a request."""

    form: Form
    id: Id = None


class Response(msgspec.Struct, frozen=True):
    """A server's answer to the oldest open request."""

    message: Answer
    form: Form
    request: type[Message] | None
    """The type of its request; None for an Error without a request, before the server closes."""


class ServerConnection(Receiver):
    """The server's end. Answers must leave in the order of the events: this dialect's clients match by order."""

    def __init__(self) -> None:
        super().__init__()
        self.frame_bytes_max = FRAME_BYTES_MAX
        """Maximum bytes of a received payload."""
        self._form = Form.JSON  # form of the last recognized payload: used to reject an unrecognized frame

    def single_frame(self, data: bytes) -> Request | None:
        """Only the binary form is on the fast path."""
        if len(data) == _BARE_BYTES:
            request = _BARE_REQUESTS.get(data)
        elif (produce := binary.read_lone_produce(data, self.frame_bytes_max)) is not None:
            request = Request(produce, _BINARY)
        else:
            payload = lone_payload(data, self.frame_bytes_max)
            if payload is None or payload[0] not in BY_TYPE_BYTE or payload[0] == _TAB:
                return None
            try:
                request = Request(binary.read_request(payload), Form.BINARY)
            except ProtocolError:
                return None
        if request is not None:
            self._form = _BINARY
        return request

    def next_event(self) -> Request | RefusedFrame | NeedData:
        request = self._inbox.take_constant_frame(_BARE_BYTES, _BARE_REQUESTS)
        if request is not None:
            self._form = Form.BINARY
            return request
        if self._closed:
            return NEED_DATA
        try:
            payload = _take_payload(self._inbox, self.frame_bytes_max)
        except ProtocolError as error:
            return self._refuse(error, close=True, code=BinaryErrorCode.FRAME)
        return NEED_DATA if payload is None else self._understand(payload)

    def turn_away(self, reason: str) -> RefusedFrame:
        """Return the error for a client that is not admitted, in the form of its last request."""
        if not self._closed and (first := self._inbox.peek(1, at=4)) is not None:
            self._form = Form.JSON if first[0] in _JSON_FIRST or first[0] not in BY_TYPE_BYTE else Form.BINARY
        return self._refuse(ProtocolError(reason), close=True)

    def _understand(self, payload: bytes) -> Request | RefusedFrame:
        first = payload[0]
        try:
            if first in BY_TYPE_BYTE and (first != _TAB or len(payload) == 1):
                self._form = Form.BINARY
                return Request(binary.read_request(payload), Form.BINARY)
            if first in _JSON_FIRST:
                self._form = Form.JSON
            return Request(jsonform.read_request(payload), Form.JSON)
        except jsonform.InvalidError as error:
            return self._refuse(error, close=False, request_id=error.request_id)
        except ProtocolError as error:
            # Malformed JSON ends the connection (the RustLog page, §4). The end of a binary frame is always known:
            # the published server answers 2 and continues.
            return self._refuse(error, close=isinstance(error, jsonform.MalformedError))

    @overload
    def respond(self, request: Request | RefusedFrame, answer: Answer) -> bytes: ...

    @overload
    def respond(self, request: Request | RefusedFrame, answer: PackedFetchResponse) -> tuple[bytes, ...]: ...

    def respond(
        self, request: Request | RefusedFrame, answer: Answer | PackedFetchResponse
    ) -> bytes | tuple[bytes, ...]:
        """Return the frame that answers a request, in the request's form. Raises ValueError if it exceeds a frame."""
        if request is _PING and answer is PONG:
            return _PONG_FRAME
        if type(answer) is ProduceResponse and request.form is _BINARY and type(request) is Request:
            if type(request.message) is Produce:
                return binary.write_produced(answer)
        elif isinstance(answer, PackedFetchResponse):
            return _packed(request, answer)
        operation = BY_REQUEST[type(request.message)] if isinstance(request, Request) else None
        if request.form is Form.BINARY:
            return _frame(binary.write_answer(operation, answer))
        if not isinstance(answer, Error) and (operation is None or type(answer) is not operation.response):
            raise TypeError(f"{type(answer).__name__} does not answer {operation.name if operation else 'a refusal'}")
        assert isinstance(answer, Message)
        return _frame(jsonform.write(jsonform.with_id(answer, request.id)))

    def _refuse(
        self,
        error: ProtocolError,
        *,
        close: bool,
        code: BinaryErrorCode = BinaryErrorCode.DECODE,
        request_id: Id = None,
    ) -> RefusedFrame:
        if close:
            self._close()
        in_form = code if self._form is Form.BINARY else ErrorCode.INVALID_REQUEST
        return RefusedFrame(error, Error(int(in_form), str(error), None), close, self._form, request_id)


class ClientConnection(Answered):
    """The client's end. `form` is the form of its requests."""

    def __init__(self, form: Form = Form.JSON) -> None:
        super().__init__()
        self.form = form
        self._asked: deque[tuple[Operation, Id]] = deque()

    def request(self, message: Message) -> bytes:
        """Return the frame of a request. Raises ValueError if it exceeds a frame, or its form cannot express it."""
        payload = binary.write_request(message) if self.form is Form.BINARY else jsonform.write(message)
        frame = _frame(payload)
        self._asked.append((BY_REQUEST[type(message)], message.id))
        return frame

    def _next(self) -> Response | NeedData:
        """A server that cannot detect the form of a frame rejects it in JSON: an Error is accepted in either form."""
        payload = _take_payload(self._inbox, FRAME_BYTES_MAX)
        if payload is None:
            return NEED_DATA
        message: Answer
        operation: Operation | None
        if payload[0] == 0x7B or self.form is Form.JSON:
            message, form = jsonform.read_answer(payload), Form.JSON
            self._check_id(message)
            operation = None if isinstance(message, Error) else self._expected(type(message), form)
        else:
            operation, message = binary.read_answer(payload)
            form = Form.BINARY
            if operation is not None:
                self._expected(type(message), form)
        answered = self._asked.popleft()[0] if self._asked else None
        return Response(message, form, None if answered is None else answered.request)

    def _expected(self, answer: type, form: Form) -> Operation:
        if not self._asked:
            raise ProtocolError(f"{answer.__name__} answers no request")
        operation = self._asked[0][0]
        expected = operation.binary_response if self.form is Form.BINARY else operation.response
        if answer is not expected or form is not self.form:
            raise ProtocolError(f"{answer.__name__} in {form.value} is not an answer to {operation.name}")
        return operation

    def _check_id(self, message: Message) -> None:
        """Check the echoed id. A server without support for `id` omits it; one that echoes another id is out of step."""
        expected = self._asked[0][1] if self._asked else None
        if message.id is not None and message.id != expected:
            raise ProtocolError(f"an answer has id {message.id!r}, the oldest request has {expected!r}")


def _take_payload(inbox: ReceiveBuffer, frame_bytes_max: int) -> bytes | None:
    """Return the next payload, None until it is complete. A length that is too large or 0 is rejected immediately."""
    payload = inbox.take_frame(frame_bytes_max)
    if payload == b"":
        raise ProtocolError("a frame is empty, the minimum is 1 byte", 0)
    return payload


def _packed(request: Request | RefusedFrame, answer: PackedFetchResponse) -> tuple[bytes, ...]:
    """Return a packed answer to Fetch without copying its rows again."""
    if not isinstance(request, Request) or not isinstance(request.message, Fetch):
        raise TypeError("only a Fetch can be answered with rows")
    is_binary = request.form is Form.BINARY
    head, tail = binary.envelope(answer) if is_binary else jsonform.envelope(answer, request.id)
    size = len(head) + len(answer.rows.data) + len(tail)
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a message of {size} bytes does not fit a frame of {FRAME_BYTES_MAX}")
    return _LENGTH.pack(size) + head, answer.rows.data, tail


def _frame(payload: bytes) -> bytes:
    if len(payload) > FRAME_BYTES_MAX:
        raise ValueError(f"a message of {len(payload)} bytes does not fit a frame of {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(payload)) + payload
