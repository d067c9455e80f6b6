"""What every dialect's connections have in common.

Knows: three verbs. Refuses to know: any dialect's messages.

    connection.receive(data)            bytes as they came, cut anywhere
    connection.next_event()             a message, `Refused`, or NEED_DATA
    connection.respond(request, answer) what to send (a `Refused` stands for its request); a client has `request(message)`

A server's end also has `frame_bytes_max`, which may be changed at any time, and `turn_away(reason)`: the `Refused` for a client
that is not let in; it may have `lone_request(data)`, a short way for a read that is one whole request (see `Receiver`).

A connection is a pure state machine: the same bytes, however cut, give the same events. After `Refused(close=True)` it takes
nothing more.
"""

from collections.abc import Sized
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.codec.inbox import Buffer, Inbox


class NeedData(Enum):
    """The event that says: nothing more can be understood until more bytes arrive."""

    NEED_DATA = "need data"


NEED_DATA: Final = NeedData.NEED_DATA


def forget_trace(error: BaseException | None) -> None:
    """An error that is kept as a value keeps, by its traceback, every frame it came through, and they keep it: a ring that only
    the garbage collector opens, with a whole connection and its buffers in it."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


class Refused(msgspec.Struct, frozen=True):
    """The peer sent something that is not a message of the dialect.

    `answer` is the dialect's own error message for it (None where the dialect has none); it takes the place of a response, in
    order. With `close` the connection must be closed once the answer is sent.
    """

    error: ProtocolError
    answer: Any
    close: bool

    def __post_init__(self) -> None:
        forget_trace(self.error)


class Slice(Protocol):
    """Bytes that are elsewhere, such as in a file: their number is known, and they can be read."""

    @property
    def size(self) -> int: ...

    @property
    def source(self) -> tuple[int, int] | None:
        """The descriptor of a file and where in it they begin, for who can send them without reading them."""
        ...

    def read(self, start: int = 0) -> bytes:
        """From `start` on."""
        ...


Output = bytes | tuple[bytes, ...] | list[bytes | Slice]
"""What is to be sent: bytes, at once or in a tuple of pieces; in a list, bytes and slices of files in their order. A slice is
read when it leaves, and not before."""


class Receiver:
    """The receiving half of a connection: bytes wait in the inbox until they are understood; after the end nothing is taken."""

    def __init__(self) -> None:
        self._inbox = Inbox()
        self._closed = False

    def receive(self, data: Buffer) -> None:
        if not self._closed:
            self._inbox.feed(data)

    def lone_request(self, data: bytes) -> Any | None:  # noqa: ANN401, ARG002 - each dialect has its own
        """The request that `data` is, whole and alone, asked when nothing is buffered: the one that `receive` and `next_event`
        would give. None: it is more, less or no request, or none of those that are read here; nothing has changed then."""
        return None

    @property
    def buffered_bytes(self) -> int:
        """Bytes that have arrived and are not yet a message."""
        return len(self._inbox)

    def _close(self) -> None:
        """Nothing more is understood; what came is not kept."""
        self._closed = True
        self._inbox = Inbox()


class Answered(Receiver):
    """The client's end. A `Refused` closes: an answer that cannot be read is one that someone waits for."""

    _asked: Sized
    """What has no (last) answer yet: requests or their rows, in order or by id."""

    @property
    def in_flight(self) -> int:
        return len(self._asked)

    def next_event(self) -> Any:  # noqa: ANN401 - whatever the dialect answers, `Refused` or NEED_DATA
        if self._closed:
            return NEED_DATA
        try:
            return self._next()
        except ProtocolError as error:
            self._close()
            return Refused(error, None, close=True)

    def _next(self) -> Any:  # noqa: ANN401
        """The next answer or NEED_DATA; `ProtocolError` if there can be none."""
        raise NotImplementedError
