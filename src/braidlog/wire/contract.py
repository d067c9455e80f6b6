"""The interface of every dialect's connections.

    connection.receive(data)            bytes as they came, cut anywhere
    connection.next_event()             a message, `Refused`, or NEED_DATA
    connection.respond(request, answer) the bytes to send (`Refused` is accepted as a request); a client has `request(message)`

A server connection also has `frame_bytes_max`, which may be changed at any time, and `turn_away(reason)`: the
`Refused` for a client that is not admitted. It may have `single_frame(data)`, a fast path for a read that is exactly
one request (see `Receiver`).

A connection is a pure state machine: the same bytes, however cut, give the same events. After `Refused(close=True)`
it accepts no more bytes.
"""

from bisect import bisect_right
from collections.abc import Sequence, Sized
from enum import Enum
from itertools import accumulate
from typing import Any, Final, Protocol

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.codec.receive_buffer import Buffer, ReceiveBuffer


def base64_bytes(size: int) -> int:
    """Return the base64 length of `size` bytes."""
    return (size + 2) // 3 * 4


def count_fitting(sizes: Sequence[int], room: int) -> int:
    """Return how many of the first items fit into `room` bytes; 0 if the first does not fit."""
    return len(sizes) if sum(sizes) <= room else bisect_right(list(accumulate(sizes)), room)


class NeedData(Enum):
    """The event for incomplete input: more bytes must arrive."""

    NEED_DATA = "need data"


NEED_DATA: Final = NeedData.NEED_DATA


def drop_traceback(error: BaseException | None) -> None:
    """Drop the traceback of an error kept as a value. The traceback holds every frame it passed through, and the
    frames hold the error: a reference cycle that keeps a connection and its buffers until garbage collection.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


class Refused(msgspec.Struct, frozen=True):
    """The peer sent bytes that are not a message of the dialect.

    `answer` is the dialect's error message (None if the dialect has none); it is sent in place of a response, in
    order. With `close` the connection must be closed after the answer was sent.
    """

    error: ProtocolError
    answer: Any
    close: bool

    def __post_init__(self) -> None:
        drop_traceback(self.error)


class Slice(Protocol):
    """Bytes stored elsewhere, such as in a file: their size is known, and they can be read."""

    @property
    def size(self) -> int: ...

    @property
    def source(self) -> tuple[int, int] | None:
        """Return the file descriptor and the position of the bytes, for senders that use sendfile."""
        ...

    def read(self, start: int = 0) -> bytes:
        """Read the bytes from `start` on."""
        ...


Output = bytes | tuple[bytes, ...] | list[bytes | Slice]
"""Output of a connection: bytes, or a tuple of pieces, or a list of bytes and file slices in order. A slice is read
only when it is sent.
"""


class Receiver:
    """The receiving half of a connection: buffers bytes until they form a message; after its end it accepts none."""

    def __init__(self) -> None:
        self._inbox = ReceiveBuffer()
        self._closed = False

    def receive(self, data: Buffer) -> None:
        if not self._closed:
            self._inbox.feed(data)

    def single_frame(self, data: bytes) -> Any | None:  # noqa: ANN401, ARG002 - each dialect has its own
        """Return the request if `data` is exactly one request, called when nothing is buffered. The result equals
        that of `receive` and `next_event`. None: `data` is something else or not on the fast path; the state is
        unchanged.
        """
        return None

    @property
    def buffered_bytes(self) -> int:
        """Bytes that have arrived and do not form a message yet."""
        return len(self._inbox)

    def _close(self) -> None:
        """Stop parsing and drop the buffered bytes."""
        self._closed = True
        self._inbox = ReceiveBuffer()


class Answered(Receiver):
    """A client connection. Every `Refused` closes it: a request waits for each response, including an unreadable one."""

    _asked: Sized
    """Requests without a (last) response: in order or by id."""

    @property
    def in_flight(self) -> int:
        return len(self._asked)

    def next_event(self) -> Any:  # noqa: ANN401 - the answer of any dialect, `Refused` or NEED_DATA
        if self._closed:
            return NEED_DATA
        try:
            return self._next()
        except ProtocolError as error:
            self._close()
            return Refused(error, None, close=True)

    def _next(self) -> Any:  # noqa: ANN401
        """Return the next response or NEED_DATA; raises `ProtocolError` for invalid bytes."""
        raise NotImplementedError
