"""A cursus connection without its socket: bytes in, requests out; answers in, bytes out.

Knows: frames, envelopes, when a body is compressed, which answer goes with which request.
Refuses to know: topics, groups, time. Who pushes and how often is the session's business.
Invariant: the same bytes, however cut, give the same events; answers leave in the order of their requests, so the session
answers one request before it takes the next (a stream is never answered, only pushed to, and ends its connection).

    frame      u32 length | body                         length 0: a keep-alive from the broker, an empty command to it
    body       BA7C…                                     a batch
               u16 length of topic | topic | text        a command in an envelope, whose topic is read and means nothing
               text                                      a command as it is (its first byte is a letter, an envelope's is 0)
               1F 8B…                                    any of these, compressed
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any

from braidlog.codec.errors import ProtocolError
from braidlog.codec.inbox import lone_payload
from braidlog.wire.contract import NEED_DATA, Answered, NeedData, Receiver, Refused
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import replies
from braidlog.wire.cursus.batch import (
    MAGIC,
    Batch,
    BatchRecord,
    PackedBatch,
    Spelling,
    header_bytes,
    packed_head,
    read_batch,
    record_bytes,
    write_batch,
)
from braidlog.wire.cursus.commands import CommandReader, command_name, write_command
from braidlog.wire.cursus.compressors import COMPRESSORS, GZIP, Compressor, choose, expand
from braidlog.wire.cursus.failures import (
    CommandError,
    ErrorCode,
    Failure,
    echo,
    is_failure,
    read_failure,
    write_failure,
)
from braidlog.wire.cursus.messages import BATCH, BY_NAME, BY_REQUEST, OPERATIONS, Operation, Request
from braidlog.wire.cursus.requests import Acks, Credentials, ReadStream, Stream
from braidlog.wire.sizes import count_fitting

FRAME_BYTES_MAX = 64 * 1024 * 1024
EXPANDED_BYTES_MAX = 16 * 1024 * 1024
"""What a compressed request may become. A broker does that between other clients' requests."""
ENVELOPE_TOPIC_BYTES_MAX = 255
"""One more, and the first byte would not tell an envelope from a command."""

_LENGTH = Struct(">I")
_SHORT = Struct(">H")
_PRODUCE = next(row for row in OPERATIONS if row.name == BATCH)
_ACKS = frozenset(Acks)


class ServerConnection(Receiver):
    """The broker's end. `compression` names what CONSUME and STREAM batches are compressed with, as clients are configured.

    `frame_bytes_max` may be changed at any time: a session that asks for AUTH first keeps it small until then.
    """

    def __init__(
        self,
        *,
        compression: str = "none",
        compressors: Mapping[str, Compressor] = COMPRESSORS,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        super().__init__()
        self.frame_bytes_max = frame_bytes_max
        self.compression = compression
        self._compressor = choose(compression, compressors)
        self._read_command = CommandReader().read

    def lone_request(self, data: bytes) -> Request | None:
        """Commands alone, and without compression."""
        body = lone_payload(data, self.frame_bytes_max)
        if body is None or self._compressor is not None or body.startswith((MAGIC, GZIP.magic)):
            return None
        try:
            return self._read_command(_unwrap(body))
        except CommandError:
            return None

    def next_event(self) -> Request | Refused | NeedData:
        if self._closed:
            return NEED_DATA
        try:
            body = self._inbox.take_frame(self.frame_bytes_max)
        except ProtocolError as error:
            # Where the next frame begins is unknown now, so nothing more is understood.
            return self._end(error, Failure.of(ErrorCode.FRAME_TOO_LARGE, limit=self.frame_bytes_max))
        if body is None:
            return NEED_DATA
        try:
            return self._read(body)
        except CommandError as error:
            return Refused(error, error.failure, close=False)
        except ProtocolError as error:
            return Refused(error, Failure.of(ErrorCode.DECODE_FAILED, reason=error), close=False)

    def turn_away(self, reason: str) -> Refused:
        """The error for a client that is not let in, whatever it asked or was about to ask."""
        return self._end(ProtocolError(reason), Failure.of(ErrorCode.AUTHENTICATION_FAILED, reason=reason))

    def _end(self, error: ProtocolError, failure: Failure) -> Refused:
        self._close()
        return Refused(error, failure, close=True)

    def _read(self, body: bytes) -> Request:
        bytes_max = min(self.frame_bytes_max, EXPANDED_BYTES_MAX)
        body = expand(body, self._compressor, bytes_max, is_plain=_is_plain)
        if body.startswith(MAGIC):
            batch, spelling = read_batch(body)
            if batch.acks not in _ACKS:
                raise CommandError(Failure.of(ErrorCode.INVALID_ACKS, value=echo(batch.acks)))
            return Request(_PRODUCE, batch, spelling)
        return self._read_command(_unwrap(body))

    def respond(self, request: Request | Refused, answer: Any) -> Any:  # noqa: ANN401 - any answer of the table
        """The bytes of an answer, in a tuple for a `PackedBatch`.

        ValueError if it is larger than a frame may be, or holds what a line cannot carry.
        """
        if isinstance(answer, Failure):
            if isinstance(request, Request) and isinstance(request.message, ReadStream):
                return self._frame(replies.write_stream_failure(answer))
            return self._frame(write_failure(answer))
        is_packed = isinstance(answer, PackedBatch)
        kind = Batch if is_packed else type(answer)
        if isinstance(request, Refused) or kind not in request.operation.answers:
            raise TypeError(f"{type(answer).__name__} does not answer this")
        if isinstance(request.message, Stream):
            raise TypeError("a stream is pushed to, not answered")
        if is_packed or kind is Batch:
            return self._batch_frame(answer, request.spelling)
        return b"".join(map(self._frame, replies.write_answer(answer, request.spelling)))

    def push(self, request: Request, frame: Batch | PackedBatch | a.KeepAlive | a.StreamControl) -> bytes:
        """The bytes of a frame pushed to the stream that `request` opened."""
        return b"".join(self._pushed(request, frame))

    def _pushed(self, request: Request, frame: Batch | PackedBatch | a.KeepAlive | a.StreamControl) -> Iterable[bytes]:
        if not isinstance(request.message, Stream):
            raise TypeError("only a stream is pushed to")
        if isinstance(frame, Batch | PackedBatch):
            framed = self._batch_frame(frame, request.spelling)
            return (framed,) if isinstance(framed, bytes) else framed
        return map(self._frame, replies.write_answer(frame, request.spelling))

    def count_fitting(self, request: Request, topic: str, partition: int, records: Sequence[BatchRecord]) -> int:
        """How many of the records, from the first on, fit one batch frame to this peer."""
        return count_fitting(list(map(record_bytes, records)), self.records_room(request, topic, partition))

    def records_room(self, request: Request, topic: str, partition: int) -> int:
        """How many bytes of records fit one batch frame to this peer."""
        room = self.frame_bytes_max
        if self._compressor is not None:
            room = (room - 1024) * 6 // 7  # what cannot be compressed grows; snappy, the worst, by a sixth
        return room - header_bytes(topic, request.spelling, partition)

    def _batch_frame(self, batch: Batch | PackedBatch, spelling: Spelling) -> bytes | tuple[bytes, ...]:
        if isinstance(batch, PackedBatch):
            head, rows = packed_head(batch, spelling), batch.rows.data
            size = len(head) + len(rows)
            if self._compressor is None and size <= self.frame_bytes_max:
                return _LENGTH.pack(size) + head, rows
            body = head + rows
        else:
            body = write_batch(batch, spelling)
        # The plain body has the limit too: the peer refuses to decompress past it.
        if self._compressor is None or len(body) > self.frame_bytes_max:
            return self._frame(body)
        return self._frame(self._compressor.compress(body))

    def _frame(self, body: bytes) -> bytes:
        return _frame(body, self.frame_bytes_max)


class ClientConnection(Answered):
    """The client's end. Answers are told apart by what was asked.

    `envelope` is the topic of the envelope around commands, None for commands without one.
    """

    def __init__(
        self,
        *,
        spelling: Spelling = Spelling.CLIENTS,
        envelope: str | None = "",
        compression: str = "none",
        compressors: Mapping[str, Compressor] = COMPRESSORS,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        super().__init__()
        self.frame_bytes_max = frame_bytes_max
        self._spelling = spelling
        if envelope is not None and len(envelope.encode()) > ENVELOPE_TOPIC_BYTES_MAX:
            raise ValueError(f"an envelope's topic has at most {ENVELOPE_TOPIC_BYTES_MAX} bytes")
        self._envelope = b"" if envelope is None else _SHORT.pack(len(envelope.encode())) + envelope.encode()
        self._compressor = choose(compression, compressors)
        self._asked: deque[Operation] = deque()
        self._contents: a.StreamContents | None = None

    def request(self, message: Any, credentials: Credentials | None = None) -> bytes:  # noqa: ANN401 - any request
        """The bytes of a request. ValueError if the spelling cannot carry it or it is larger than a frame may be."""
        if isinstance(message, Batch):
            body = write_batch(message, self._spelling)
            if self._compressor is not None and len(body) <= self.frame_bytes_max:
                body = self._compressor.compress(body)
        else:
            body = self._envelope + write_command(message, self._spelling, credentials)
        framed = _frame(body, self.frame_bytes_max)
        self._asked.append(BY_REQUEST[type(message)])
        return framed

    def _next(self) -> Any:  # noqa: ANN401 - any answer of the table, or Failure
        while (body := self._inbox.take_frame(self.frame_bytes_max)) is not None:
            event = self._read(body)
            if event is not None:
                return event
        return NEED_DATA

    def _read(self, body: bytes) -> Any:  # noqa: ANN401 - any answer of the table, or None while one is half there
        if not self._asked:
            raise ProtocolError("an answer came, and nothing was asked")
        operation = self._asked[0]
        if self._contents is not None:
            contents, self._contents = self._contents, None
            self._asked.popleft()
            return replies.read_events(contents, body)
        if is_failure(body):
            self._asked.popleft()
            return read_failure(body)
        if operation.request is ReadStream:
            return self._read_envelope(body)
        if Batch in operation.answers:
            body = expand(body, self._compressor, self.frame_bytes_max, is_plain=_is_plain_answer)
        answer = replies.read_answer(operation.answers, body)
        if operation.request is not Stream or isinstance(answer, a.StreamControl):
            self._asked.popleft()
        return answer

    def _read_envelope(self, body: bytes) -> Failure | None:
        contents = replies.read_envelope(body)
        if isinstance(contents, Failure):
            self._asked.popleft()
            return contents
        self._contents = contents
        return None


def _frame(body: bytes, frame_bytes_max: int) -> bytes:
    if len(body) > frame_bytes_max:
        raise ValueError(f"a frame of {len(body)} bytes; {frame_bytes_max} is the limit")
    return _LENGTH.pack(len(body)) + body


def _unwrap(body: bytes) -> bytes:
    """The text of a command, without its envelope if it has one."""
    if not body.startswith(b"\x00"):
        return body
    end = 2 + int.from_bytes(body[:2], "big")
    if len(body) < end:
        raise CommandError(Failure.of(ErrorCode.MALFORMED_INPUT, reason="an envelope ends before its topic does")).at(0)
    return body[end:]


def _is_plain(body: bytes) -> bool:
    if body.startswith(MAGIC):
        return True
    try:
        return command_name(_unwrap(body)) in BY_NAME
    except CommandError:
        return False


def _is_plain_answer(body: bytes) -> bool:
    return body.startswith((MAGIC, b"STREAM_CONTROL", b"OK"))
