"""Read and write the fields of a binary message, big-endian, every length checked.

Knows: integers, length-prefixed bytes and strings. Refuses to know: messages.
Invariant: a read beyond the end is a `ProtocolError` that says what was wanted and where; a count is never believed for more
than the bytes that are left could hold.
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
    """A position in a message that is whole."""

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
        """The next `size` bytes."""
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise ProtocolError(f"{what} is said to have {size} bytes, {self.left} are left", self.position)
        value = bytes(self.data[self.position : end])
        self.position = end
        return value

    def text16(self, what: str) -> str:
        """A string with its length as u16, in UTF-8."""
        at = self.position
        raw = self.take(self.u16(what), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"{what} is not UTF-8", at + 2 + error.start) from error

    def count(self, value: int, item_bytes_min: int, what: str) -> int:
        """A count, refused if the bytes that are left could not hold so many items."""
        if value < 0 or value * item_bytes_min > self.left:
            raise ProtocolError(f"{value} {what} cannot stand in the {self.left} bytes that are left", self.position)
        return value

    def end(self, what: str) -> None:
        if self.left:
            raise ProtocolError(f"{self.left} bytes follow the {what}", self.position)


def text16(value: str) -> bytes:
    raw = value.encode("utf-8")
    if len(raw) > 0xFFFF:
        raise ProtocolError(f"a string of {len(raw)} bytes does not fit a 16-bit length")
    return _U16.pack(len(raw)) + raw
