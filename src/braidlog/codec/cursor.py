"""Reads and writes the fields of a binary message, big-endian, and checks every length.

Does not handle: messages.
Invariant: a read beyond the end raises a `ProtocolError` that names the field and its position. A count larger than
the remaining bytes could hold is rejected.
"""

import struct

from braidlog.codec.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

_U16 = struct.Struct(">H")
_I32 = struct.Struct(">i")
_U32 = struct.Struct(">I")
_I64 = struct.Struct(">q")
_U64 = struct.Struct(">Q")


class Reader:
    """A position in a complete message."""

    __slots__ = ("data", "position")

    def __init__(self, data: Buffer, position: int = 0) -> None:
        self.data = data
        self.position = position

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def _fixed(self, layout: struct.Struct, what: str) -> int:
        end = self.position + layout.size
        if end > len(self.data):
            raise ProtocolError(f"{what} needs {layout.size} bytes, {self.left} are left", self.position)
        value: int = layout.unpack_from(self.data, self.position)[0]
        self.position = end
        return value

    def u8(self, what: str) -> int:
        if self.position >= len(self.data):
            raise ProtocolError(f"{what} needs 1 byte, none is left", self.position)
        value = self.data[self.position]
        self.position += 1
        return value

    def u16(self, what: str) -> int:
        return self._fixed(_U16, what)

    def i32(self, what: str) -> int:
        return self._fixed(_I32, what)

    def u32(self, what: str) -> int:
        return self._fixed(_U32, what)

    def i64(self, what: str) -> int:
        return self._fixed(_I64, what)

    def u64(self, what: str) -> int:
        return self._fixed(_U64, what)

    def take(self, size: int, what: str) -> bytes:
        """Return the next `size` bytes."""
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise ProtocolError(f"{what} announces {size} bytes, {self.left} are left", self.position)
        value = bytes(self.data[self.position : end])
        self.position = end
        return value

    def text16(self, what: str) -> str:
        """Read a UTF-8 string with its length as u16."""
        at = self.position
        raw = self.take(self.u16(what), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"{what} is not UTF-8", at + 2 + error.start) from error

    def count(self, value: int, item_bytes_min: int, what: str) -> int:
        """Return the count. Raises if the remaining bytes cannot hold that many items."""
        if value < 0 or value * item_bytes_min > self.left:
            raise ProtocolError(f"{value} {what} do not fit the remaining {self.left} bytes", self.position)
        return value

    def end(self, what: str) -> None:
        if self.left:
            raise ProtocolError(f"{self.left} bytes follow the {what}", self.position)


def text16(value: str) -> bytes:
    raw = value.encode("utf-8")
    if len(raw) > 0xFFFF:
        raise ProtocolError(f"a string of {len(raw)} bytes does not fit a 16-bit length")
    return _U16.pack(len(raw)) + raw
