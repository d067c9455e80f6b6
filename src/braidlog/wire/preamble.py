"""The line with which a client may say who it is, before the first frame of whatever it speaks then.

Knows: one line, and how to tell it from the first bytes of every dialect. Refuses to know: tokens that are right, dialects.
Invariant: the same bytes, however cut, give the same event; bytes that are no such line are handed on unchanged; nothing that is
shown in a log or a traceback holds a token.

    AUTH <principal> <token>\\n                  then frames, at once: nothing is answered if the token is right

No dialect can begin like this. `AUTH` as a length is 1,096,111,176 (Cursus, RustLog and Kafka refuse a tenth of it), `AU` as a
type is 16,725 (mlog has 29), a line of Flux begins with `V1|`.
"""

from enum import Enum
from typing import Final

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.codec.inbox import Buffer, Inbox
from braidlog.wire.contract import NEED_DATA, NeedData, Refused

WORD: Final = b"AUTH "
LINE_BYTES_MAX: Final = 1024

_FORM: Final = "AUTH takes a principal and a token, each one word: AUTH <principal> <token>"


class Introduction(msgspec.Struct, frozen=True):
    """Who the client says it is, and its proof."""

    principal: str
    token: bytes

    def __repr__(self) -> str:
        return f"Introduction(principal={self.principal!r}, token=<hidden>)"


class NoIntroduction(Enum):
    """The event that says: the dialect's own bytes have begun."""

    NO_INTRODUCTION = "no introduction"


NO_INTRODUCTION: Final = NoIntroduction.NO_INTRODUCTION


class Preamble:
    """The server's end: one event, and `rest`, which belongs to the dialect."""

    def __init__(self) -> None:
        self._inbox = Inbox()

    def receive(self, data: Buffer) -> None:
        self._inbox.feed(data)

    def next_event(self) -> Introduction | NoIntroduction | Refused | NeedData:
        """One of the three, once; NEED_DATA until it is clear which."""
        begun = self._inbox.peek(min(len(self._inbox), len(WORD))) or b""
        if not WORD.startswith(begun):
            return NO_INTRODUCTION
        if begun != WORD:
            return NEED_DATA
        try:
            line = self._inbox.take_line(LINE_BYTES_MAX)
            return NEED_DATA if line is None else _read(line)
        except ProtocolError as error:
            return Refused(error, None, close=True)

    def take_rest(self) -> bytes:
        """Everything behind the introduction, or everything if there was none."""
        return self._inbox.take(len(self._inbox)) or b""

    @property
    def buffered_bytes(self) -> int:
        return len(self._inbox)


def write_introduction(principal: str, token: str) -> bytes:
    """The client's line. ValueError, without the token, for what it cannot carry."""
    line = b"AUTH %b %b\n" % (principal.encode(), token.encode())
    if len(line.split()) != 3 or len(line.splitlines()) != 1 or len(line) > LINE_BYTES_MAX:
        raise ValueError(f"{_FORM}, and both together at most {LINE_BYTES_MAX - 8} bytes")
    return line


def _read(line: bytes) -> Introduction:
    words = line.split()
    if len(words) != 3:
        raise ProtocolError(_FORM)
    try:
        return Introduction(words[1].decode(), words[2])
    except UnicodeDecodeError:
        # Not `from error`: it would carry the line, token and all.
        raise ProtocolError("a principal is UTF-8") from None
