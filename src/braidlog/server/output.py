"""What connections send: bytes, and slices of files that are read when they leave.

Knows: how many bytes an answer has, how several become few writes, and what of them is still in memory. Refuses to know:
dialects, order, and what to do about a client that takes nothing.
Invariant: what is given out has exactly the bytes that were announced: a file that gives fewer is a fault.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from braidlog.model.errors import StorageFault
from braidlog.wire.contract import Output, Slice

_COPIED_BYTES_MAX = 32 * 1024
"""A piece up to this is copied next to its neighbours, into one write; a larger one is written by itself."""


class Outbox:
    """What is ready to be sent over one connection, and what was sent and has not left."""

    __slots__ = ("_has_slices", "_largest_write_bytes", "_unsent_bytes_most", "has_unsent", "held_bytes", "ready")

    def __init__(self) -> None:
        self.held_bytes = 0
        """Of answers that are not sent yet, those that wait for their turn included."""
        self.has_unsent = False
        self.ready: list[Output] = []
        self._has_slices = False
        self._largest_write_bytes = 0
        self._unsent_bytes_most = 0

    def hold(self, output: Output) -> int:
        """Count it from now on; its size. What it has in files counts too: it is in memory once it leaves."""
        size = len(output) if isinstance(output, bytes) else size_of(output)
        self.held_bytes += size
        return size

    def add(self, output: Output) -> None:
        """It leaves next, after what was added before."""
        self.ready.append(output)
        if type(output) is not bytes:
            self._has_slices = True

    def add_small(self, answers: list[bytes], size: int) -> None:
        """They leave next, and have `size` bytes together."""
        self.ready += answers
        self.held_bytes += size

    def clear(self) -> None:
        self.ready.clear()

    def take(self) -> Iterable[bytes]:
        """Everything that is ready, in few pieces; what was taken is held no more."""
        ready, self.ready = self.ready, []
        if self._has_slices:
            self._has_slices = False
            return self._written(ready)
        data: bytes = ready[0] if len(ready) == 1 else b"".join(ready)  # type: ignore[assignment, arg-type]  # no slices
        self.held_bytes -= len(data)
        return (data,)

    def _written(self, ready: list[Output]) -> Iterator[bytes]:
        for data in writes(ready):
            self.held_bytes -= len(data)
            yield data

    def send(self, transport: asyncio.Transport, data: bytes) -> None:
        size = len(data)
        if self.has_unsent and transport.get_write_buffer_size():
            self._unsent_bytes_most += size
            self._largest_write_bytes = max(size, self._largest_write_bytes)
        else:
            self._unsent_bytes_most = self._largest_write_bytes = size
        transport.write(data)
        self.has_unsent = transport.get_write_buffer_size() > 0

    def bytes_kept(self, transport: asyncio.Transport | None) -> int:
        """What is in memory: of answers in line, and of answers that were not taken."""
        unsent = 0 if transport is None else transport.get_write_buffer_size()
        if unsent:
            # Of a write that has left in part, that part is kept too, until the rest has left.
            unsent = min(unsent + self._largest_write_bytes, self._unsent_bytes_most)
        return self.held_bytes + unsent


def size_of(output: Output) -> int:
    if isinstance(output, bytes):
        return len(output)
    return sum(len(piece) if isinstance(piece, bytes) else piece.size for piece in output)


def writes(outputs: Sequence[Output]) -> Iterator[bytes]:
    """The bytes of all outputs in their order, in few pieces."""
    run: list[bytes] = []
    for output in outputs:
        if isinstance(output, bytes):
            run.append(output)
            continue
        for piece in output:
            data = piece if isinstance(piece, bytes) else _read(piece)
            if len(data) <= _COPIED_BYTES_MAX:
                run.append(data)
                continue
            if run:
                yield b"".join(run)
                run = []
            yield data
    if run:
        yield run[0] if len(run) == 1 else b"".join(run)


def _read(piece: Slice) -> bytes:
    data = piece.read()
    if len(data) != piece.size:
        raise StorageFault(f"a slice of {piece.size} bytes gave {len(data)}")
    return data
