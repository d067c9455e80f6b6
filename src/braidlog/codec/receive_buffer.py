"""Receive buffer of a sans-I/O connection: bytes that have arrived and are not parsed yet.

Does not handle: where a frame ends (the dialect decides).
Invariant: no byte is copied more than twice, however the stream was cut. Memory follows what was fed, never an
announced length.
"""

from collections.abc import Mapping
from struct import Struct
from typing import TypeVar

from braidlog.codec.errors import ProtocolError

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

_U32 = Struct(">I")
_COMPACT_BYTES = 64 * 1024
_LINES_BYTES = 64 * 1024
LARGE_BYTES = 64 * 1024
"""Reads of a frame of at least this size are kept as they came until the frame is complete."""
_PART_BYTES_MIN = 16 * 1024
"""Smaller parts are joined with their neighbours: a client that sends byte by byte must not cost more than its bytes.
"""


def lone_payload(data: bytes, frame_bytes_max: int) -> bytes | None:
    """Return the payload if `data` is exactly one frame with a u32 length, neither empty nor too large; else None."""
    size = len(data) - 4
    if 0 < size <= frame_bytes_max and _U32.unpack_from(data)[0] == size:
        return data[4:]
    return None


class ReceiveBuffer:
    """Collects socket reads and returns complete frames.

    Most reads hold complete frames and nothing else: such a read is kept as it came. Only a frame that a read cuts is
    assembled in a separate buffer. The reads of a large frame are kept and joined once.
    """

    __slots__ = ("_awaits_large", "_behind", "_behind_bytes", "_data", "_position", "_searched")

    def __init__(self) -> None:
        self._data: bytes | bytearray = b""
        self._position = 0
        self._searched = 0
        self._awaits_large = False
        self._behind: list[bytes | bytearray] = []
        """Reads that came after `_data`."""
        self._behind_bytes = 0

    def __len__(self) -> int:
        return len(self._data) - self._position + self._behind_bytes

    def feed(self, data: Buffer) -> None:
        if self._awaits_large or self._behind:
            self._feed_behind(data)
            return
        held = self._data
        if self._position == len(held):
            self._data = data if type(data) is bytes else bytes(data)
            self._position = self._searched = 0
            return
        if type(held) is bytes:
            held = self._data = bytearray(memoryview(held)[self._position :])
            self._restart()
        elif self._position >= _COMPACT_BYTES:
            del self._data[: self._position]  # type: ignore[union-attr]  # a bytearray: the other kind was just turned into one
            self._restart()
        held += data

    def _feed_behind(self, data: Buffer) -> None:
        behind = self._behind
        self._behind_bytes += len(data)
        if len(data) >= _PART_BYTES_MIN:
            behind.append(data if type(data) is bytes else bytes(data))
        elif behind and type(behind[-1]) is bytearray:
            behind[-1] += data
        else:
            behind.append(bytearray(data))

    def _gather(self) -> None:
        """Join all bytes into one buffer."""
        rest = memoryview(self._data)[self._position :]
        self._data = bytearray().join((rest, *self._behind))
        self._restart()
        self._behind, self._behind_bytes, self._awaits_large = [], 0, False

    def _take_across(self, size: int) -> bytes:
        """Return the next `size` bytes, which are present and do not end in `_data`."""
        parts: list[Buffer] = [memoryview(self._data)[self._position :]]
        missing, number = size - len(parts[0]), 0
        while missing > len(self._behind[number]):
            missing -= len(self._behind[number])
            number += 1
        last = self._behind[number]
        parts += self._behind[:number]
        parts.append(memoryview(last)[:missing])
        self._behind_bytes -= size - len(parts[0]) - missing + len(last)
        self._behind = self._behind[number + 1 :]
        self._data, self._position = last if type(last) is bytes else bytes(last), missing
        self._searched, self._awaits_large = 0, False
        return b"".join(parts)

    def _restart(self) -> None:
        self._searched = max(self._searched - self._position, 0)
        self._position = 0

    def peek(self, size: int, at: int = 0) -> bytes | None:
        """Return the next `size` bytes (from `at` on) without taking them; None until they have arrived."""
        start = self._position + at
        if len(self._data) - start < size:
            if not self._behind or len(self) - at < size:
                return None
            self._gather()
            start = at
        return bytes(self._data[start : start + size])

    def window(self) -> tuple[bytes | bytearray, int]:
        """Return all bytes and where the unread part begins, for callers that read headers in place immediately."""
        if self._behind:
            self._gather()
        return self._data, self._position

    def as_bytes(self) -> tuple[bytes, int]:
        """Return all bytes as `bytes`, ready to be sliced. Copies the unread part: use it only to take a complete
        frame.
        """
        if self._behind:
            self._gather()
        data = self._data
        if type(data) is not bytes:
            with memoryview(data) as view:
                data = self._data = bytes(view[self._position :])
            self._restart()
        return data, self._position

    def skip(self, size: int) -> None:
        """Skip bytes that have arrived."""
        self._position += size

    def peek_u32(self, at: int = 0) -> int | None:
        start = self._position + at
        if len(self._data) - start < 4:
            found = self.peek(4, at)
            return None if found is None else int.from_bytes(found)
        return int(_U32.unpack_from(self._data, start)[0])

    def take(self, size: int) -> bytes | None:
        """Return the next `size` bytes; None until they have arrived. The caller has checked `size` against its
        limit.
        """
        data, start = self._data, self._position
        end = start + size
        if len(data) < end:
            if len(data) + self._behind_bytes >= end:
                return self._take_across(size)
            self._awaits_large = size >= LARGE_BYTES
            return None
        self._position = end
        if type(data) is bytes:
            return data[start:end]
        with memoryview(data) as view:
            return bytes(view[start:end])

    def take_frame(self, frame_bytes_max: int) -> bytes | None:
        """Return the payload of a frame with a u32 length; None until it is complete.

        A length over the limit is rejected immediately.
        """
        start = self._position + 4
        if len(self._data) < start:
            if len(self) < 4:
                return None
            self._gather()
            start = 4
        (size,) = _U32.unpack_from(self._data, self._position)
        if size > frame_bytes_max:
            raise ProtocolError(f"a frame announces {size} bytes, the limit is {frame_bytes_max}", 0)
        if len(self._data) < start + size and len(self) - 4 < size:
            self._awaits_large = size >= LARGE_BYTES
            return None
        self._position = start
        return self.take(size)

    def take_constant_frame(self, size: int, known: Mapping[bytes, T]) -> T | None:
        """Return the value of the next frame if it is one of the `known` constant frames of `size` bytes."""
        data, start = self._data, self._position
        if type(data) is not bytes:
            return None
        found = known.get(data[start : start + size])
        if found is not None:
            self._position = start + size
        return found

    def take_line(self, line_bytes_max: int) -> bytes | None:
        """Return the bytes up to the next newline, without it; None until it has arrived."""
        if self._behind:
            self._gather()
        start = max(self._searched, self._position)
        end = self._data.find(b"\n", start)
        length = (len(self._data) if end < 0 else end) - self._position
        if length > line_bytes_max:
            raise ProtocolError(f"a line has more than {line_bytes_max} bytes", line_bytes_max)
        if end < 0:
            self._searched = len(self._data)  # do not search the same bytes again when more arrive
            return None
        line = self.take(length)
        self._position += 1
        return line

    def take_lines(self, line_bytes_max: int) -> list[bytes]:
        """Return the complete lines of one window, without newlines, so that many short lines stay small in memory.

        Empty only when no line is complete. Calling this until it is empty gives the same lines as `take_line`.
        """
        if self._behind:
            self._gather()
        start = max(self._searched, self._position)
        end = self._data.rfind(b"\n", start, self._position + min(_LINES_BYTES, line_bytes_max + 1))
        if end < 0:
            line = self.take_line(line_bytes_max)
            return [] if line is None else [line]
        with memoryview(self._data) as view:
            lines = bytes(view[self._position : end])
        self._position = end + 1
        return lines.split(b"\n")
