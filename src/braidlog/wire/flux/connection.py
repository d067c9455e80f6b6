"""Both ends of a flux connection: bytes become requests or responses, messages become bytes.

Does not handle: sockets, time, the meaning of a command.
Invariant: the same bytes, however cut, give the same events. A peer's bytes never raise on a server. Answers may be
given in any order, because each has its request's id (the Flux page, §1: a slow request does not delay a fast one).

A line without a newline at the end of the stream is not an event: half a COMMIT must not be executed.
"""

from collections.abc import Iterator

from braidlog.codec.errors import ProtocolError
from braidlog.wire.contract import NEED_DATA, Answered, NeedData, Receiver, Refused
from braidlog.wire.flux.lines import (
    NO_ID,
    read_envelope,
    read_error,
    read_payload,
    read_request,
    refusal,
    write_error,
    write_request,
    write_response,
)
from braidlog.wire.flux.messages import Answer, ErrorCode, Failed, Request, Response
from braidlog.wire.flux.records import LINE_BYTES_MAX

# Other protocols begin with these bytes (TLS 16, a length 00, other dialects CA, BE, BA) and may never send a
# newline. They are rejected immediately, not when the line becomes too long or too old.
_NO_TEXT = frozenset(bytes((byte,)) for byte in (*range(9), *range(14, 32), *range(127, 256)))


class _LineEnd(Receiver):
    """Shared by both ends: yields the lines of a stream. They are taken from the buffer many at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.frame_bytes_max = LINE_BYTES_MAX
        """Maximum bytes of a received line."""
        self._lines: Iterator[bytes] = iter(())

    def _next_line(self) -> bytes | None:
        """Return the next line without its newline; None until it is complete. Raises ProtocolError once a line is
        too long, complete or not.

        Also raises it if the line begins with a non-text byte: both ends begin with `V1`.
        """
        line = next(self._lines, None)
        if line is None:
            if (start := self._inbox.peek(1)) in _NO_TEXT:
                raise ProtocolError(f"a line begins with {start!r}, which is not text: this is flux")
            self._lines = iter(self._inbox.take_lines(self.frame_bytes_max))
            line = next(self._lines, None)
        if line is not None and (start := line[:1]) in _NO_TEXT:
            raise ProtocolError(f"a line begins with {start!r}, which is not text: this is flux")
        return line

    def _close(self) -> None:
        super()._close()
        self._lines = iter(())


class ServerConnection(_LineEnd):
    """The broker's end."""

    def next_event(self) -> Request | Refused | NeedData:
        try:
            line = self._next_line()
        except ProtocolError as error:
            # The end of this line is unknown, so the next line cannot be found: answer, then close.
            return self._refuse(error)
        return NEED_DATA if line is None else read_request(line)

    def turn_away(self, reason: str) -> Refused:
        """Return the error for a client that is not admitted."""
        return self._refuse(ProtocolError(reason))

    def _refuse(self, error: ProtocolError) -> Refused:
        self._close()
        return refusal(NO_ID, ErrorCode.BAD_REQUEST, str(error), error, close=True)

    def respond(self, request: Request | Refused, answer: Answer | Response) -> bytes:
        """Return the bytes that answer a request, in any order of requests; a `Refused` is accepted as a request.

        Raises ValueError for an answer over the line limit: limit it first with `records_that_fit` or
        `answer_records`.
        """
        if isinstance(request, Refused):
            return self.refuse(request)
        assert isinstance(answer, Answer)
        return write_response(request, answer)

    def refuse(self, refused: Refused) -> bytes:
        """Return the bytes that answer a `Refused`."""
        response: Response = refused.answer
        assert isinstance(response.answer, Failed)
        return write_error(response.correlation_id, response.answer)


class ClientConnection(_LineEnd, Answered):
    """The client's end: it stores its open requests, because an answer can be read only with its request."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[str, Request] = {}

    def request(self, message: Request) -> bytes:
        """Return the bytes of a request. Raises ValueError if its id has an open request, or if the dialect cannot
        express it.
        """
        if message.correlation_id in self._asked:
            raise ValueError(f"a request with correlation id {message.correlation_id!r} is still unanswered")
        line = write_request(message)
        self._asked[message.correlation_id] = message
        return line

    def _next(self) -> Response | NeedData:
        """Return an answer, in the server's order."""
        line = self._next_line()
        if line is None:
            return NEED_DATA
        correlation_id, status, rest = read_envelope(line)
        asked = self._asked.pop(correlation_id, None)
        if status == b"ERR" and (asked is not None or correlation_id == NO_ID):
            return Response(correlation_id, read_error(rest))
        if asked is None:
            raise ProtocolError(f"an answer to the unknown request {correlation_id[:40]!r}")
        return Response(correlation_id, read_payload(asked, rest))
