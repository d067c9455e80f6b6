"""The five compression codecs of a record batch: writes what every client reads, reads what every client writes.

Does not handle: the meaning of the bytes, or the size limit (the caller passes it).
Invariant: `decompress` allocates at most about `bytes_max`, regardless of its input. How each codec keeps it:

| codec  | we write                      | we also read            | what bounds the output              |
|--------|-------------------------------|-------------------------|-------------------------------------|
| gzip   | one member                    | several members         | zlib stops at `max_length`          |
| snappy | xerial: magic, [i32, block]*  | a raw block;            | the announced length of a block is  |
|        |                               | concatenated streams    | checked before allocation           |
| lz4    | one frame, independent blocks | every flag; joined      | block headers are walked first; the |
| zstd   | one frame                     | no content size; joined | output is a buffer of fixed size    |
"""

import zlib
from collections.abc import Callable
from enum import IntEnum
from struct import Struct

import cramjam

from braidlog.codec.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

GZIP_LEVEL = 6
GZIP_CHUNK_BYTES = 64 * 1024
GZIP_PART_BYTES = 1024 * 1024
GZIP_MEMBERS_MAX = (
    1024  # setting up a member costs more than its twenty bytes: clients write one, a bomb writes millions
)
LZ4_LEVEL = 1
ZSTD_LEVEL = 3

BLOCKS_MAX = 256 * 1024
"""Maximum blocks and frames of one payload: an empty block takes three bytes, and as long to read as any other."""

_GZIP_MAGIC = b"\x1f\x8b"

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16  # magic, version 1, oldest compatible version 1
_XERIAL_BLOCK_BYTES = 32 * 1024
_SNAPPY_GROWTH_MAX = 22  # three bytes of input make at most a copy of 64

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_BLOCK_BYTES_MAX = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_LZ4_GROWTH_MAX = 255  # a length byte adds at most 255

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK_BYTES_MAX = 128 * 1024
_ZSTD_RAW, _ZSTD_RLE, _ZSTD_COMPRESSED = 0, 1, 2

_I32 = Struct(">i")
_U32_LITTLE = Struct("<I")


class DecompressedTooLarge(ProtocolError):  # noqa: N818 - the bytes are valid
    """The block is valid but larger than its reader's limit."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"the block grows past {bytes_max} bytes when decompressed")


class Compression(IntEnum):
    """The codec in bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Compression, data: Buffer) -> bytes:
    """Return `data` as one compressed block that every client of the format reads."""
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 31)
            return packer.compress(data) + packer.flush()
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            # Java's reader needs independent blocks; the library's default is linked ones.
            frame = cramjam.lz4.Compressor(level=LZ4_LEVEL, content_checksum=False, block_linked=False)
            frame.compress(bytes(data))  # it takes no other buffer; of bytes this makes no copy
            return bytes(frame.finish())
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=ZSTD_LEVEL))


def decompress(codec: int, data: Buffer, bytes_max: int) -> bytes | bytearray:
    """Decompress `data`. Raises `DecompressedTooLarge` above `bytes_max`, and ProtocolError if the data is invalid."""
    reader = _READERS.get(codec)
    if reader is None:
        raise ProtocolError(f"unknown compression codec {codec}")
    return reader(data, bytes_max)


def _read_plain(data: Buffer, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise DecompressedTooLarge(bytes_max)
    return bytes(data)


def _read_gzip(data: Buffer, bytes_max: int) -> bytearray:
    view = memoryview(data)
    if view[:2] == _GZIP_MAGIC and len(view) >= 18 and _U32_LITTLE.unpack_from(view, len(view) - 4)[0] > bytes_max:
        raise DecompressedTooLarge(bytes_max)  # the trailer announces the size: nothing has to be decompressed
    out = bytearray()
    position = 0
    for _ in range(GZIP_MEMBERS_MAX):
        member = zlib.decompressobj(31)
        while not member.eof:
            # Fed in chunks: zlib copies what follows a member to `unused_data`; that must not be the whole rest.
            chunk = view[position : position + GZIP_CHUNK_BYTES]
            if not chunk:
                raise ProtocolError("a gzip member is truncated", position)
            try:
                _inflate(member, chunk, out, bytes_max)
            except zlib.error as error:
                raise ProtocolError(f"gzip: {error}", position) from error
            position += len(chunk) - len(member.unused_data)
        if position == len(view):
            return out
    raise ProtocolError(f"more than {GZIP_MEMBERS_MAX} gzip members", position)


def _inflate(member: "zlib._Decompress", chunk: Buffer, out: bytearray, bytes_max: int) -> None:
    """Decompress one chunk of input in parts: a small input can give a thousand times its size, and no part exceeds
    the limit.
    """
    while chunk:
        out += member.decompress(chunk, min(bytes_max - len(out) + 1, GZIP_PART_BYTES))
        if len(out) > bytes_max:
            raise DecompressedTooLarge(bytes_max)
        chunk = member.unconsumed_tail


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_MAGIC, _I32.pack(1), _I32.pack(1)]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_I32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _read_snappy(data: Buffer, bytes_max: int) -> bytearray:
    view = memoryview(data)
    out = bytearray()
    if view[:8] != _XERIAL_MAGIC:
        _read_snappy_block(view, out, bytes_max)
        return out
    position = 0
    for _ in range(BLOCKS_MAX):
        if position == len(view):
            return out
        # snappy-java reads concatenated streams. The magic is negative as a length, so it cannot start a block.
        if view[position : position + 8] == _XERIAL_MAGIC:
            position += _XERIAL_HEADER_BYTES
            if position > len(view):
                raise ProtocolError("a xerial header is truncated", len(view))
            continue
        if len(view) - position < 4:
            raise ProtocolError("a xerial block's length is truncated", position)
        length = _I32.unpack_from(view, position)[0]
        position += 4
        if length <= 0 or length > len(view) - position:
            raise ProtocolError(f"xerial block of {length} bytes, {len(view) - position} are left", position - 4)
        _read_snappy_block(view[position : position + length], out, bytes_max)
        position += length
    raise ProtocolError(f"more than {BLOCKS_MAX} xerial blocks", position)


def _read_snappy_block(block: memoryview, out: bytearray, bytes_max: int) -> None:
    try:
        announced = cramjam.snappy.decompress_raw_len(block)
        if announced > bytes_max - len(out):
            raise DecompressedTooLarge(bytes_max)
        if announced > len(block) * _SNAPPY_GROWTH_MAX:
            raise ProtocolError(f"a snappy block of {len(block)} bytes cannot decompress to {announced}")
        out += memoryview(cramjam.snappy.decompress_raw(block))
    except (cramjam.DecompressionError, OSError) as error:
        raise ProtocolError(str(error)) from error


def _read_lz4(data: Buffer, bytes_max: int) -> bytearray:
    return _decompress_frames(cramjam.lz4.decompress_into, data, _lz4_room(memoryview(data)), bytes_max)


def _read_zstd(data: Buffer, bytes_max: int) -> bytearray:
    return _decompress_frames(cramjam.zstd.decompress_into, data, _zstd_room(memoryview(data)), bytes_max)


def _decompress_frames(
    decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, room: int, bytes_max: int
) -> bytearray:
    out = bytearray(min(room, bytes_max))
    try:
        size = decompress_into(data, out)
    except (cramjam.DecompressionError, OSError) as error:
        if room > bytes_max:
            # The library reports damage and a small buffer alike. A caller with a larger limit finds out which it is.
            raise DecompressedTooLarge(bytes_max) from error
        raise ProtocolError(f"damaged: {error}") from error
    del out[size:]
    return out


def _lz4_room(view: memoryview) -> int:
    """Return the most bytes that the frames can decompress to, by their block headers.

    magic u32, FLG, BD, [content size u64], [dictionary u32], header checksum; then blocks: u32 size (top bit:
    stored), data, [checksum u32]; a size of 0 ends them; [content checksum u32]
    """
    room = position = blocks = 0
    while position < len(view) or position == 0:
        if view[position : position + 4] != _LZ4_MAGIC or len(view) - position < 7:
            raise ProtocolError("an lz4 frame must start here", position)
        flags = view[position + 4]
        block_bytes_max = _LZ4_BLOCK_BYTES_MAX.get(view[position + 5] >> 4 & 7)
        if flags >> 6 != 1 or block_bytes_max is None:
            raise ProtocolError("an lz4 frame header has an unknown version or block size", position)
        position += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
        while True:
            blocks = _counted(blocks)
            if len(view) - position < 4:
                raise ProtocolError("an lz4 frame is truncated", position)
            word = _U32_LITTLE.unpack_from(view, position)[0]
            position += 4
            if word == 0:
                break
            size = word & 0x7FFFFFFF
            room += min(block_bytes_max, size if word >> 31 else size * _LZ4_GROWTH_MAX)
            position += size + (4 if flags & 0x10 else 0)
        position += 4 if flags & 0x04 else 0
    if position != len(view):
        raise ProtocolError("an lz4 frame is truncated", len(view))
    return room


def _counted(blocks: int) -> int:
    if blocks == BLOCKS_MAX:
        raise ProtocolError(f"more than {BLOCKS_MAX} blocks")
    return blocks + 1


def _zstd_room(view: memoryview) -> int:
    """Return the most bytes that the frames can decompress to, by their block headers (RFC 8878, 3.1.1).

    magic u32, descriptor, [window], [dictionary], [content size]; then blocks: u24 little-endian of last (bit 0),
    type (1-2), size (3-23), data; [checksum u32]
    """
    room = position = blocks = 0
    while position < len(view) or position == 0:
        if view[position : position + 4] != _ZSTD_MAGIC or len(view) - position < 5:
            raise ProtocolError("a zstd frame must start here", position)
        descriptor = view[position + 4]
        single_segment = descriptor >> 5 & 1
        content_size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
        position += 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes
        last = False
        while not last:
            blocks = _counted(blocks)
            if len(view) - position < 3:
                raise ProtocolError("a zstd frame is truncated", position)
            word = view[position] | view[position + 1] << 8 | view[position + 2] << 16
            last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
            room += size if kind in {_ZSTD_RAW, _ZSTD_RLE} else _ZSTD_BLOCK_BYTES_MAX
            position += 3 + (1 if kind == _ZSTD_RLE else size)
        position += 4 if descriptor & 0x04 else 0
    if position != len(view):
        raise ProtocolError("a zstd frame is truncated", len(view))
    return room


_READERS: dict[int, Callable[[Buffer, int], bytes | bytearray]] = {
    Compression.NONE: _read_plain,
    Compression.GZIP: _read_gzip,
    Compression.SNAPPY: _read_snappy,
    Compression.LZ4: _read_lz4,
    Compression.ZSTD: _read_zstd,
}
