"""What connections send: bytes, and slices of files that are read when they leave.

Knows: how many bytes an answer has, and how several become few writes. Refuses to know: sockets, dialects, order.
Invariant: what is given out has exactly the bytes that were announced: a file that gives fewer is a fault.
"""

from collections.abc import Iterator, Sequence

from braidlog.model.errors import StorageFault
from braidlog.wire.contract import Output, Slice

_COPIED_BYTES_MAX = 32 * 1024
"""A piece up to this is copied next to its neighbours, into one write; a larger one is written by itself."""


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
