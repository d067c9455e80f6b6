"""The send queue of a connection: answers in memory and slices of files, combined into few writes.

File slices are read when they are sent. Invariant: an answer has exactly its announced size; a file that yields fewer
bytes raises a fault. Does not handle: dialects, the order of answers, clients that do not read.
"""

import asyncio
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from braidlog.model.errors import StorageFault
from braidlog.server.net.scheduler import Cancellable
from braidlog.wire.contract import Output, Slice

_COPIED_BYTES_MAX = 32 * 1024
"""Pieces up to this size are copied together; larger ones are sent without a copy."""
TOGETHER_BYTES = 512 * 1024
"""Pieces are combined into one system call up to this size: each call wakes a waiting client, which costs both ends."""
_SENT_FROM_FILE_BYTES_MIN = 64 * 1024
"""Slices of at least this size are sent from the page cache with sendfile, where the socket allows it."""


_PIECE_BYTES_MIN = 4 * 1024
"""Pieces that are smaller than this on average are copied into one."""


class Led(NamedTuple):
    """A large slice of a file, and the bytes before it."""

    head: bytes
    slice: Slice


Sent = bytes | Sequence[bytes]
"""Data of one write: bytes, or several pieces."""


class SendQueue:
    """Ready answers of one connection, its transport, and written bytes that have not left yet."""

    __slots__ = (
        "_has_slices", "_largest_write_bytes", "_socket", "_socket_number", "_unsent_bytes_most", "_writable", "blocked_since",
        "bytes_out", "has_unsent", "held_bytes", "ready", "transport",
    )  # fmt: skip

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        """None before the connection and after its end."""
        self.bytes_out = 0
        self._forget()

    def _forget(self) -> None:
        self._socket: tuple[asyncio.Transport, int] | None = None
        """The transport of a plain socket, and the socket's descriptor."""
        self._socket_number: int | None = None
        """That descriptor while no tap sits before the socket: sendfile would bypass it."""
        self._writable: asyncio.Future[None] | None = None
        self.blocked_since: float | None = None
        """When the transport's buffer became full; None while it has room."""
        self.held_bytes = 0
        """Bytes of answers that are not written yet, including those that wait for earlier ones."""
        self.has_unsent = False
        self.ready: list[Output] = []
        self._has_slices = False
        self._largest_write_bytes = 0
        self._unsent_bytes_most = 0

    # -- the transport ---------------------------------------------------------------------------------------

    def connect(self, transport: asyncio.Transport, buffer_bytes_max: int) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=buffer_bytes_max)
        connected = transport.get_extra_info("socket")
        if connected is not None and transport.get_extra_info("ssl_object") is None:
            self._socket = transport, connected.fileno()
            self._socket_number = connected.fileno()

    @property
    def descriptor(self) -> int | None:
        """Descriptor of the socket while it is open."""
        connected = None if self.transport is None else self.transport.get_extra_info("socket")
        return None if connected is None or connected.fileno() < 0 else int(connected.fileno())

    def speak_through(self, transport: asyncio.Transport) -> None:
        """Replace the transport: a tap puts its own before the socket's, and removes it later."""
        self.transport = transport
        self._socket_number = self._socket[1] if self._socket is not None and self._socket[0] is transport else None

    def disconnect(self) -> None:
        """Reset everything but the count of sent bytes: the connection has ended."""
        self.transport = None
        self.unblock()
        self._forget()

    def block(self, loop: asyncio.AbstractEventLoop) -> None:
        """The transport's buffer is full: `writable` waits."""
        self.blocked_since = loop.time()
        self._writable = Cancellable(loop=loop)

    def unblock(self) -> None:
        self.blocked_since = None
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    @property
    def is_blocked(self) -> bool:
        return self._writable is not None

    async def writable(self) -> None:
        """Wait until the transport has room or the connection has ended."""
        while self._writable is not None:
            await self._writable

    # -- what is ready ---------------------------------------------------------------------------------------

    def hold(self, output: Output) -> int:
        """Count an answer as held and return its size. File slices count too: sending reads them into memory."""
        size = len(output) if isinstance(output, bytes) else size_of(output)
        self.held_bytes += size
        return size

    def add(self, output: Output) -> None:
        """Append an answer to the ready ones."""
        self.ready.append(output)
        if type(output) is not bytes:
            self._has_slices = True

    def add_pieces(self, answers: list[bytes], size: int) -> None:
        """Append answers of `size` bytes together, and count them as held."""
        self.ready += answers
        self.held_bytes += size

    def clear(self) -> None:
        self.ready.clear()

    def take_ready(self) -> Iterable[Sent | Led]:
        """Remove and return everything ready, in few pieces; it no longer counts as held."""
        ready, self.ready = self.ready, []
        if self._has_slices:
            self._has_slices = False
            return self._written(ready)
        pieces: list[bytes] = ready  # type: ignore[assignment]  # no slices
        size = sum(map(len, pieces))
        self.held_bytes -= size
        if len(pieces) == 1:
            return (pieces[0],)
        return (pieces if size > len(pieces) * _PIECE_BYTES_MIN else b"".join(pieces),)

    def _written(self, ready: list[Output]) -> Iterator[Sent | Led]:
        for data in writes(ready):
            self.held_bytes -= len(data.head) + data.slice.size if isinstance(data, Led) else _bytes_of(data)
            yield data

    # -- writing ---------------------------------------------------------------------------------------------

    def flush(self, transport: asyncio.Transport, unsent_bytes_max: int) -> bool:
        """Write what is ready; False if more than `unsent_bytes_max` written bytes have not left yet."""
        for data in self.take_ready():
            if self.has_unsent and transport.get_write_buffer_size() > unsent_bytes_max:
                return False
            if isinstance(data, Led):
                self._send_ordered(transport, data)
            else:
                self.send(transport, data)
        return True

    def send(self, transport: asyncio.Transport, data: Sent) -> None:
        """Write data. All of its pieces stay in memory until the last one has left."""
        size = _bytes_of(data)
        if self.has_unsent and transport.get_write_buffer_size():
            self._unsent_bytes_most += size
            self._largest_write_bytes = max(size, self._largest_write_bytes)
        else:
            self._unsent_bytes_most = self._largest_write_bytes = size
        if isinstance(data, bytes):
            transport.write(data)
        else:
            transport.writelines(data)
        self.has_unsent = transport.get_write_buffer_size() > 0
        self.bytes_out += size

    def _send_ordered(self, transport: asyncio.Transport, led: Led) -> None:
        """Send from the file as much as the socket accepts now; read and write the rest."""
        head, sent = led.head, 0
        if self._socket_number is not None and not transport.get_write_buffer_size():
            sent = send_from_file(self._socket_number, led)
            self.bytes_out += sent
        if sent < len(head):
            self.send(transport, head[sent:])
            sent = len(head)
        if sent < len(head) + led.slice.size:
            self.send(transport, read_slice(led.slice, sent - len(head)))

    def write(self, transport: asyncio.Transport, data: bytes) -> bool:
        """Write while nothing else is ready or unsent; return whether all of it has left."""
        transport.write(data)
        self.bytes_out += len(data)
        if not transport.get_write_buffer_size():
            return True
        self._unsent_bytes_most = self._largest_write_bytes = len(data)
        self.has_unsent = True
        return False

    def bytes_kept(self) -> int:
        """Return the bytes in memory of held and of unsent answers."""
        unsent = 0 if self.transport is None else self.transport.get_write_buffer_size()
        if unsent:
            # The sent part of a write stays in memory until its rest has left.
            unsent = min(unsent + self._largest_write_bytes, self._unsent_bytes_most)
        return self.held_bytes + unsent


def size_of(output: Output) -> int:
    if isinstance(output, bytes):
        return len(output)
    return sum(len(piece) if isinstance(piece, bytes) else piece.size for piece in output)


def _bytes_of(data: Sent) -> int:
    return len(data) if isinstance(data, bytes) else sum(map(len, data))


def writes(outputs: Sequence[Output]) -> Iterator[Sent | Led]:
    """Combine outputs in order into few writes; large slices stay references to their files."""
    run: list[bytes] = []
    """Small pieces after those of `together`."""
    together: list[bytes] = []
    size = 0
    for piece in _pieces(outputs):
        if not isinstance(piece, bytes):
            if together:
                yield together
                together, size = [], 0
            yield Led(b"".join(run), piece)
            run = []
        elif len(piece) <= _COPIED_BYTES_MAX:
            run.append(piece)
        else:
            together += (b"".join(run), piece) if run else (piece,)
            run = []
            size += len(piece)
            if size >= TOGETHER_BYTES:
                yield together
                together, size = [], 0
    if together:
        yield [*together, b"".join(run)] if run else together
    elif run:
        yield run[0] if len(run) == 1 else b"".join(run)


def _pieces(outputs: Sequence[Output]) -> Iterator[bytes | Slice]:
    """Yield the pieces of all outputs; small slices are read lazily."""
    for output in outputs:
        if isinstance(output, bytes):
            yield output
            continue
        for piece in output:
            if isinstance(piece, bytes) or (piece.size >= _SENT_FROM_FILE_BYTES_MIN and piece.source is not None):
                yield piece
            else:
                yield read_slice(piece)


def read_slice(piece: Slice, start: int = 0) -> bytes:
    data = piece.read(start)
    if len(data) != piece.size - start:
        raise StorageFault(f"a slice of {piece.size} bytes gave {start + len(data)}")
    return data


def send_from_file(number: int, led: Led) -> int:
    """Send as much as the socket `number`, whose buffer is empty, accepts now; return the number of bytes.

    Errors are not raised here (a full socket, a disconnect, an unreadable or shortened file): the caller meets them
    when it sends the rest as bytes.
    """
    assert led.slice.source is not None, "asked of slices that have one"
    descriptor, position = led.slice.source
    head_bytes, end = len(led.head), len(led.head) + led.slice.size
    sent = 0
    try:
        if head_bytes:
            sent = _send_more(number, led.head)
        while head_bytes <= sent < end:
            count = os.sendfile(number, descriptor, position + sent - head_bytes, end - sent)
            if not count:
                break
            sent += count
    except OSError:
        pass
    return sent


def _send_more(number: int, data: bytes) -> int:
    """Send bytes with MSG_MORE: the kernel combines them with the bytes that follow."""
    # The given family and type avoid system calls. The descriptor stays the transport's: detach below.
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=number)
    try:
        return borrowed.send(data, socket.MSG_MORE | socket.MSG_DONTWAIT)
    finally:
        borrowed.detach()
