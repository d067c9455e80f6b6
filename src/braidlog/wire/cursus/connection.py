"""A cursus connection without its socket: bytes in, requests out; answers in, bytes out.

Handles frames, envelopes, compression, and which answer belongs to which request. Does not handle: topics, groups,
time, and when frames are pushed (the session does).
Invariant: the same bytes, however cut, give the same events. Answers leave in the order of their requests, so the
session answers one request before it takes the next (a stream is never answered, only pushed to, and ends its
connection).

    frame      u32 length | body                         length 0: a keep-alive from the broker, an empty command to it
    body       BA7C…                                     a batch
               u16 length of topic | topic | text        a command in an envelope; its topic is read and ignored
               text                                      a plain command (its first byte is a letter, an envelope's is 0)
               1F 8B…                                    any of these, compressed
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any

from braidlog.codec.errors import ProtocolError
from braidlog.codec.receive_buffer import lone_payload
from braidlog.wire.contract import NEED_DATA, Answered, NeedData, Receiver, Refused, count_fitting
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

FRAME_BYTES_MAX = 64 * 1024 * 1024
EXPANDED_BYTES_MAX = 16 * 1024 * 1024
"""Maximum size of a decompressed request: the broker decompresses it between other clients' requests."""
ENVELOPE_TOPIC_BYTES_MAX = 255
"""Maximum length of an envelope's topic: with one byte more, the first byte could not distinguish an envelope from a
command.
"""

_LENGTH = Struct(">I")
_SHORT = Struct(">H")
_PRODUCE = next(row for row in OPERATIONS if row.name == BATCH)
_ACKS = frozenset(Acks)


class ServerConnection(Receiver):
    """The broker's end. `compression` names the compressor of CONSUME and STREAM batches; clients must be configured
    alike.

    `frame_bytes_max` may be changed at any time: a session that requires AUTH keeps it small until then.
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

    def single_frame(self, data: bytes) -> Request | None:
        """Only uncompressed commands are on the fast path."""
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
            # The start of the next frame is unknown, so parsing stops.
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
        """Return the error for a client that is not admitted."""
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
        """Return the bytes of an answer, as a tuple for a `PackedBatch`.

        Raises ValueError if it exceeds a frame, or contains a value that a line cannot hold.
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
            raise TypeError("a stream has pushed frames and no answer")
        if is_packed or kind is Batch:
            return self._batch_frame(answer, request.spelling)
        return b"".join(map(self._frame, replies.write_answer(answer, request.spelling)))

    def push(self, request: Request, frame: Batch | PackedBatch | a.KeepAlive | a.StreamControl) -> bytes:
        """Return the bytes of a frame pushed to the stream that `request` opened."""
        return b"".join(self._pushed(request, frame))

    def _pushed(self, request: Request, frame: Batch | PackedBatch | a.KeepAlive | a.StreamControl) -> Iterable[bytes]:
        if not isinstance(request.message, Stream):
            raise TypeError("only a stream has pushed frames")
        if isinstance(frame, Batch | PackedBatch):
            framed = self._batch_frame(frame, request.spelling)
            return (framed,) if isinstance(framed, bytes) else framed
        return map(self._frame, replies.write_answer(frame, request.spelling))

    def count_fitting(self, request: Request, topic: str, partition: int, records: Sequence[BatchRecord]) -> int:
        """Return how many of the first records fit one batch frame to this peer."""
        return count_fitting(list(map(record_bytes, records)), self.records_room(request, topic, partition))

    def records_room(self, request: Request, topic: str, partition: int) -> int:
        """Return how many bytes of records fit one batch frame to this peer."""
        room = self.frame_bytes_max
        if self._compressor is not None:
            room = (room - 1024) * 6 // 7  # incompressible data grows: with snappy, the worst, by a sixth
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
        # The uncompressed body has the same limit: the peer refuses to decompress beyond it.
        if self._compressor is None or len(body) > self.frame_bytes_max:
            return self._frame(body)
        return self._frame(self._compressor.compress(body))

    def _frame(self, body: bytes) -> bytes:
        return _frame(body, self.frame_bytes_max)


class ClientConnection(Answered):
    """The client's end. An answer is read by the type of its request.

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
            raise ValueError(f"an envelope's topic may have at most {ENVELOPE_TOPIC_BYTES_MAX} bytes")
        self._envelope = b"" if envelope is None else _SHORT.pack(len(envelope.encode())) + envelope.encode()
        self._compressor = choose(compression, compressors)
        self._asked: deque[Operation] = deque()
        self._contents: a.StreamContents | None = None

    def request(self, message: Any, credentials: Credentials | None = None) -> bytes:  # noqa: ANN401 - any request
        """Return the bytes of a request. Raises ValueError if the spelling cannot hold it, or if it exceeds a frame."""
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
            raise ProtocolError("an answer arrived without a request")
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
        raise ValueError(f"a frame of {len(body)} bytes; the limit is {frame_bytes_max}")
    return _LENGTH.pack(len(body)) + body


def _unwrap(body: bytes) -> bytes:
    """Return the text of a command without its envelope."""
    if not body.startswith(b"\x00"):
        return body
    end = 2 + int.from_bytes(body[:2], "big")
    if len(body) < end:
        raise CommandError(Failure.of(ErrorCode.MALFORMED_INPUT, reason="an envelope ends within its topic")).at(0)
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
