"""Both ends of a flux connection: bytes become requests or responses, messages become bytes.

Knows: where a line ends, which answer belongs to which request. Refuses to know: sockets, time, what a command does.
Invariant: the same bytes, however cut, give the same events; a server raises nothing on a peer's bytes; answers may be given
in any order, for each carries its request's id (the Flux page, §1: a slow request does not hold back a fast one).

A line that is cut off by the end of the stream is no request and is never an event: half a COMMIT must not be carried out.
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

# What speaks another protocol begins its frames so (TLS 16, a length 00, our other dialects' CA, BE, BA) and may never send a
# newline: it is told at once, and not when its line has become too long or too old.
_NO_TEXT = frozenset(bytes((byte,)) for byte in (*range(9), *range(14, 32), *range(127, 256)))


class _LineEnd(Receiver):
    """What both ends share: the lines of a stream, one by one. They are taken from the inbox many at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.frame_bytes_max = LINE_BYTES_MAX
        """Of a line that comes in."""
        self._lines: Iterator[bytes] = iter(())

    def _next_line(self) -> bytes | None:
        """The next line without its newline; None until it is whole. ProtocolError once a line is too long, whole or not.

        Or once it begins with what is no text: both ends begin with `V1`.
        """
        line = next(self._lines, None)
        if line is None:
            if (start := self._inbox.peek(1)) in _NO_TEXT:
                raise ProtocolError(f"a line begins with {start!r}, which is no text: this is flux")
            self._lines = iter(self._inbox.take_lines(self.frame_bytes_max))
            line = next(self._lines, None)
        if line is not None and (start := line[:1]) in _NO_TEXT:
            raise ProtocolError(f"a line begins with {start!r}, which is no text: this is flux")
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
            # Where the next line begins cannot be known without reading the rest of this one: answer, then close.
            return self._refuse(error)
        return NEED_DATA if line is None else read_request(line)

    def turn_away(self, reason: str) -> Refused:
        """The error for a client that is not let in, whatever it asked or was about to ask."""
        return self._refuse(ProtocolError(reason))

    def _refuse(self, error: ProtocolError) -> Refused:
        self._close()
        return refusal(NO_ID, ErrorCode.BAD_REQUEST, str(error), error, close=True)

    def respond(self, request: Request | Refused, answer: Answer | Response) -> bytes:
        """The bytes that answer a request, in whatever order requests are answered; a `Refused` stands for its request.

        An answer over the line's limit is a ValueError: cap with `records_that_fit` or `answer_records` before.
        """
        if isinstance(request, Refused):
            return self.refuse(request)
        assert isinstance(answer, Answer)
        return write_response(request, answer)

    def refuse(self, refused: Refused) -> bytes:
        """The bytes that answer what was no request."""
        response: Response = refused.answer
        assert isinstance(response.answer, Failed)
        return write_error(response.correlation_id, response.answer)


class ClientConnection(_LineEnd, Answered):
    """The client's end: it remembers what it asked, for an answer can only be read knowing the question."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[str, Request] = {}

    def request(self, message: Request) -> bytes:
        """The bytes that ask. ValueError if its id is still waiting for an answer, or if the dialect cannot say it."""
        if message.correlation_id in self._asked:
            raise ValueError(f"a request with correlation id {message.correlation_id!r} is still unanswered")
        line = write_request(message)
        self._asked[message.correlation_id] = message
        return line

    def _next(self) -> Response | NeedData:
        """An answer, in the server's order."""
        line = self._next_line()
        if line is None:
            return NEED_DATA
        correlation_id, status, rest = read_envelope(line)
        asked = self._asked.pop(correlation_id, None)
        if status == b"ERR" and (asked is not None or correlation_id == NO_ID):
            return Response(correlation_id, read_error(rest))
        if asked is None:
            raise ProtocolError(f"an answer came to {correlation_id[:40]!r}, which was not asked")
        return Response(correlation_id, read_payload(asked, rest))
