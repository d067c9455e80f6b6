"""Zigzag varints: the variable-length integers inside a record.

32-bit varints (at most 5 bytes) and 64-bit varlongs (at most 10), as Protocol Buffers' sint32 and sint64. The kernel
has inlined copies; tests compare them with these.
Invariant: a number is read only from bytes before `end`, and never from more bytes than its width can need.

    value    0  -1   1  -2   63    64
    bytes   00  01  02  03   7e  80 01      seven bits a byte, lowest first; the top bit says "more"
"""

from braidlog.codec.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

VARINT_BYTES_MAX = 5
VARLONG_BYTES_MAX = 10


def encode_varint(value: int) -> bytes:
    """Encode a signed 32-bit number in 1 to 5 bytes."""
    if not -(2**31) <= value < 2**31:
        raise ProtocolError(f"{value} does not fit a 32-bit varint")
    return _encode(value)


def encode_varlong(value: int) -> bytes:
    """Encode a signed 64-bit number in 1 to 10 bytes."""
    if not -(2**63) <= value < 2**63:
        raise ProtocolError(f"{value} does not fit a 64-bit varint")
    return _encode(value)


def read_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return the 32-bit number at `position`, and the position after it."""
    return _read(data, position, end, VARINT_BYTES_MAX, 0x0F)


def read_varlong(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return the 64-bit number at `position`, and the position after it."""
    return _read(data, position, end, VARLONG_BYTES_MAX, 0x01)


def _encode(value: int) -> bytes:
    return encode_unsigned(value << 1 if value >= 0 else (-value << 1) - 1)


def encode_unsigned(value: int) -> bytes:
    """Encode a number of 0 or more without zigzag: seven bits per byte, lowest first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read(data: Buffer, position: int, end: int, bytes_max: int, last_byte_max: int) -> tuple[int, int]:
    value = 0
    for index in range(bytes_max):
        at = position + index
        if at >= end:
            raise ProtocolError("a varint is truncated", at)
        byte = data[at]
        # The last byte of a width has few bits left: more bits, or a continuation bit, exceed the type.
        if index == bytes_max - 1 and byte > last_byte_max:
            raise ProtocolError(f"a varint is longer than {bytes_max} bytes or wider than its type", at)
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
    raise AssertionError("the last byte either ends the number or is rejected")
