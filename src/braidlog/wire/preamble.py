"""The optional line with which a client authenticates before the first frame of any dialect.

Does not handle: checking the token, or parsing the dialect.
Invariant: the same bytes, however cut, give the same event. Other bytes are passed to the dialect unchanged. No log
or traceback shows a token.

    AUTH <principal> <token>\\n                  then frames immediately: a valid token is not answered

No dialect begins like this. `AUTH` as a length is 1,096,111,176 (Cursus, RustLog and Kafka reject a tenth of it),
`AU` as a type is 16,725 (mlog has 29), a line of Flux begins with `V1|`.
"""

from enum import Enum
from typing import Final

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.codec.receive_buffer import Buffer, ReceiveBuffer
from braidlog.wire.contract import NEED_DATA, NeedData, Refused

WORD: Final = b"AUTH "
LINE_BYTES_MAX: Final = 1024

_FORM: Final = "AUTH requires a principal and a token, each one word: AUTH <principal> <token>"


class Introduction(msgspec.Struct, frozen=True):
    """The client's principal and its token."""

    principal: str
    token: bytes

    def __repr__(self) -> str:
        return f"Introduction(principal={self.principal!r}, token=<hidden>)"


class NoIntroduction(Enum):
    """The event for a client without the line: the dialect's bytes have begun."""

    NO_INTRODUCTION = "no introduction"


NO_INTRODUCTION: Final = NoIntroduction.NO_INTRODUCTION


class Preamble:
    """The server's end: one event, then `take_rest` returns the bytes of the dialect."""

    def __init__(self) -> None:
        self._inbox = ReceiveBuffer()

    def receive(self, data: Buffer) -> None:
        self._inbox.feed(data)

    def next_event(self) -> Introduction | NoIntroduction | Refused | NeedData:
        """Return one of the three events, once; NEED_DATA until it is known."""
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
        """Return the bytes after the introduction, or all bytes without one."""
        return self._inbox.take(len(self._inbox)) or b""

    @property
    def buffered_bytes(self) -> int:
        return len(self._inbox)


def write_introduction(principal: str, token: str) -> bytes:
    """Return the client's line. Raises ValueError (without the token in its text) for values that it cannot hold."""
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
        # Not `from error`: it would contain the line with the token.
        raise ProtocolError("a principal must be UTF-8") from None
