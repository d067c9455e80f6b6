"""The connection of a session: a stream pushes nothing before all earlier requests are answered.

Invariant: a STREAM is returned only after every earlier request was answered, and no request is returned after it
unless the STREAM was rejected. Once frames are pushed, further bytes of the client are dropped.
"""

from typing import Any

from braidlog.adapters.contract import Conversation
from braidlog.codec.errors import ProtocolError
from braidlog.wire.contract import NEED_DATA, NeedData, Refused
from braidlog.wire.cursus.connection import ServerConnection
from braidlog.wire.cursus.failures import ErrorCode, Failure
from braidlog.wire.cursus.messages import Request
from braidlog.wire.cursus.requests import Stream

BEHIND_STREAM_BYTES_MAX = 256 * 1024


class SessionConnection(ServerConnection):
    """The connection that the adapter opens for each client."""

    _unanswered = 0
    _held: Request | None = None
    _in_stream = False
    _is_pushing = False

    @property
    def buffered_bytes(self) -> int:
        """Bytes that a client sends after a STREAM do not count: they are not an incomplete frame."""
        return 0 if self._held is not None or self._in_stream else super().buffered_bytes

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_pushing:
            super().receive(data)

    def single_frame(self, data: bytes) -> Request | None:
        if self._held is not None or self._in_stream or self._is_pushing:
            return None
        found = super().single_frame(data)
        if found is None or isinstance(found.message, Stream):
            return None
        self._unanswered += 1
        return found

    def next_event(self) -> Request | Refused | NeedData:
        if self._held is not None or self._in_stream:
            return self._after_stream()
        event = super().next_event()
        if isinstance(event, Request):
            if isinstance(event.message, Stream):
                self._held = event
                return self._after_stream()
            self._unanswered += 1
        return event

    def _after_stream(self) -> Request | Refused | NeedData:
        if len(self._inbox) > BEHIND_STREAM_BYTES_MAX:
            error = ProtocolError(f"more than {BEHIND_STREAM_BYTES_MAX} bytes were sent after a STREAM")
            return Refused(error, Failure.of(ErrorCode.DECODE_FAILED, reason=error), close=True)
        if self._held is None or self._unanswered:
            return NEED_DATA
        request, self._held = self._held, None
        self._in_stream = True
        return request

    def respond(self, request: Request | Refused, answer: Any) -> Any:  # noqa: ANN401 - any answer of the table, or another node's
        if isinstance(request, Request):
            if isinstance(request.message, Stream):
                self._in_stream = False
            else:
                self._unanswered -= 1
        return answer if isinstance(answer, bytes) else super().respond(request, answer)

    def begin_pushing(self) -> None:
        """Start the stream, which will end the connection: nothing more is read from the client."""
        self._is_pushing = True
        self._inbox.take(len(self._inbox))


class ActingConversation:
    """A conversation in which one request has another principal."""

    def __init__(self, conversation: Conversation, principal: str) -> None:
        self._conversation = conversation
        self.principal = principal

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the conversation
        return getattr(self._conversation, name)
