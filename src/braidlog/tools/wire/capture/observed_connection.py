"""Decode both sides of a connection incrementally: messages with bytes and faults.

The result does not depend on how the bytes are split. At most `keep_bytes_max` of a side is buffered. After invalid bytes
a side is no longer decoded, and if it contained secrets, no further bytes of it are shown. Does not handle: dialects,
sockets, time.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.codec.receive_buffer import Buffer, ReceiveBuffer
from braidlog.tools.wire.capture.observed_message import Seen, conceal, see
from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.dialect import watched
from braidlog.wire.observer import Fault, Observer, Reading, Side, fault_of, hidden_text, observer_class
from braidlog.wire.preamble import WORD, Introduction, Preamble

KEEP_BYTES_MAX: Final = 16 * 1024 * 1024
SHOWN_OF_LARGE_BYTES: Final = 64


class _Stream:
    """Bytes of one side that are not decoded yet."""

    def __init__(self) -> None:
        self.inbox = ReceiveBuffer()
        self.position = 0
        self.passing_over = 0
        self.passed_over = 0
        self.large: Seen | None = None
        """The oversized frame that is being skipped."""
        self.is_broken = False
        self.had_secrets = False


class Watcher:
    """Decoder of a connection."""

    def __init__(self, dialect: str, keep_bytes_max: int = KEEP_BYTES_MAX) -> None:
        self.dialect = dialect
        self._observer: Observer = observer_class(dialect)()
        self._secrets = watched()[dialect].secrets
        self._keep_bytes_max = keep_bytes_max
        self._streams = {side: _Stream() for side in Side}
        self._preamble: Preamble | None = Preamble()
        self._first = bytearray()  # input of the preamble: a line of at most a kilobyte, and the bytes after it

    @property
    def is_ordered(self) -> bool:
        return self._observer.is_ordered

    @property
    def volatile(self) -> frozenset[str]:
        return self._observer.volatile

    def is_broken(self, side: Side) -> bool:
        """Return whether the side sent bytes that cannot start a frame."""
        return self._streams[side].is_broken

    def feed(self, side: Side, data: Buffer) -> Iterator[Seen]:
        """Add bytes; yield the messages that they complete."""
        stream = self._streams[side]
        if stream.is_broken:
            if data:
                yield self._undecoded(side, stream, bytes(data))
            return
        if side is Side.CLIENT and self._preamble is not None:
            met = self._meet(stream, data)
            if met is None:
                return
            yield from met
        else:
            stream.inbox.feed(data)
        yield from self._messages(side, stream)

    def end(self, side: Side) -> Iterator[Seen]:
        """End a side; yield its remaining bytes as a truncated message."""
        stream = self._streams[side]
        if stream.large is not None:
            yield self._passed_over(side, stream)
        if side is Side.CLIENT and self._preamble is not None:
            self._preamble = None
            if self._first:
                yield self._cut_off(
                    side, stream, bytes(self._first), "; expected a newline after the introduction", is_secret=True
                )
        left = stream.inbox.peek(len(stream.inbox)) or b""
        if left and not stream.is_broken:
            wanted = self._wanted(side, stream)
            missing = "" if wanted is None else f"; expected {wanted - len(left)} more"
            is_secret = stream.had_secrets or self._may_be_secret(side, left)
            yield self._cut_off(side, stream, left, missing, is_secret=is_secret)
            stream.inbox.skip(len(left))

    def _cut_off(self, side: Side, stream: _Stream, left: bytes, missing: str, *, is_secret: bool) -> Seen:
        fault = Fault(f"truncated after {len(left)} bytes{missing}", len(left))
        return self._seen(side, stream, left, Reading("?", {}, 0, fields={}, fault=fault, is_secret=is_secret))

    def _may_be_secret(self, side: Side, begun: bytes) -> bool:
        return bool(self._secrets) and self._observer.may_be_secret(side, begun)

    def _wanted(self, side: Side, stream: _Stream) -> int | None:
        try:
            return self._observer.measure(stream.inbox, side)
        except ProtocolError:
            return None

    def _meet(self, stream: _Stream, data: Buffer) -> list[Seen] | None:
        """Parse an introduction, or the first bytes of the dialect. None: more bytes are needed."""
        assert self._preamble is not None
        self._preamble.receive(data)
        self._first += data
        event = self._preamble.next_event()
        if event is NEED_DATA:
            return None
        rest, first = self._preamble.take_rest(), bytes(self._first)
        self._preamble, self._first = None, bytearray()
        if isinstance(event, Refused):
            stream.is_broken = True
            reading = Reading("AUTH", {"Preamble": "AUTH"}, len(WORD), is_secret=True, fault=Fault(str(event.error), 0))
            return [self._seen(Side.CLIENT, stream, first, reading)]
        stream.inbox.feed(rest)
        return (
            [self._introduced(stream, event, first[: len(first) - len(rest)])]
            if isinstance(event, Introduction)
            else []
        )

    def _introduced(self, stream: _Stream, event: Introduction, line: bytes) -> Seen:
        reading = Reading(
            "AUTH",
            {"Preamble": "AUTH", "Principal": event.principal},
            line.rindex(event.token),  # its last word: the principal may be equal to it
            fields={"token": hidden_text(len(event.token))},
            secrets=(event.token,),
        )
        return self._seen(Side.CLIENT, stream, line, reading)

    def _messages(self, side: Side, stream: _Stream) -> Iterator[Seen]:
        inbox = stream.inbox
        while True:
            if stream.passing_over:
                skipped = min(stream.passing_over, len(inbox))
                inbox.skip(skipped)
                stream.passed_over += skipped
                stream.passing_over -= skipped
                if not stream.passing_over:
                    yield self._passed_over(side, stream)
            if stream.passing_over or not len(inbox):
                return
            try:
                size = self._observer.measure(inbox, side)
            except ProtocolError as error:
                yield self._broken(side, stream, error)
                return
            if size is not None and size > self._keep_bytes_max:
                self._pass_over(side, stream, size)
                continue
            frame = None if size is None else inbox.take(size)
            if frame is None:
                return
            yield self._seen(side, stream, frame, self._observer.read(side, frame))

    def _seen(self, side: Side, stream: _Stream, frame: bytes, reading: Reading) -> Seen:
        seen = see(side, frame, reading, self._secrets, stream.position)
        stream.had_secrets |= bool(seen.hidden)
        stream.position += len(frame)
        return seen

    def _broken(self, side: Side, stream: _Stream, error: ProtocolError) -> Seen:
        """Report bytes that cannot start a frame."""
        stream.is_broken = True
        data = stream.inbox.take(len(stream.inbox)) or b""
        # The invalid bytes may be the end of a token with a wrong length: then show no details.
        fault = Fault("invalid start of a frame", 0) if stream.had_secrets else fault_of(error, 0)
        reading = Reading("?", {}, 0, fields={}, fault=fault, is_secret=stream.had_secrets)
        return self._seen(side, stream, data, reading)

    def _undecoded(self, side: Side, stream: _Stream, data: bytes) -> Seen:
        fault = Fault("not decoded: follows invalid bytes")
        return self._seen(side, stream, data, Reading("?", {}, 0, fields={}, fault=fault, is_secret=stream.had_secrets))

    def _pass_over(self, side: Side, stream: _Stream, size: int) -> None:
        """Skip an oversized frame, and report it by its beginning."""
        begun = stream.inbox.peek(min(len(stream.inbox), SHOWN_OF_LARGE_BYTES)) or b""
        is_secret = stream.had_secrets or self._may_be_secret(side, begun)
        data, hidden = conceal(begun, 0, (), everything=is_secret)
        fault = Fault(f"{size} bytes exceed the decoding limit of {self._keep_bytes_max}")
        stream.large = Seen(side, "?", {}, {}, data, 0, stream.position, hidden, fault)
        stream.passing_over, stream.passed_over = size, 0

    def _passed_over(self, side: Side, stream: _Stream) -> Seen:
        large, stream.large = stream.large, None
        assert large is not None
        assert large.side is side
        stream.position += stream.passed_over
        return msgspec.structs.replace(large, left_out=stream.passed_over - len(large.data))
