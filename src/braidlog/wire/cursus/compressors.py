"""Named compressors of whole bodies.

Knows: four names, what each one's output begins with, and that a body may not grow past a frame's limit.
Refuses to know: the algorithms (codec does), what is in a body.
Invariant: reading allocates about as much as the limit allows, whatever the body claims; what a client makes us inflate is in
proportion to what it sent.

A body says nothing about its compression. Gzip is known by its first two bytes; another compressor must be configured, and is
then known by its own first bytes, none of which can begin a batch, an envelope or a command. Only a raw snappy block begins
with anything: it is tried last, on a body that is nothing else.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from braidlog.codec.compression import Compression, compress, decompress
from braidlog.codec.errors import ProtocolError

EXPANDED_BYTES_FREE = 4 * 1024 * 1024
EXPANSION_MAX = 100
"""Gzip alone could make a thousand bytes of one."""


class Compressor(msgspec.Struct, frozen=True):
    """One algorithm. `decompress(data, bytes_max)` raises ProtocolError rather than exceed `bytes_max`.

    `unmarked` says that it also reads bodies that do not begin with `magic`.
    """

    name: str
    magic: bytes
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes, int], bytes]
    unmarked: bool = False


def _of(name: str, codec: Compression, magic: bytes, *, unmarked: bool = False) -> Compressor:
    return Compressor(
        name,
        magic,
        lambda data: compress(codec, data),
        lambda data, bytes_max: bytes(decompress(codec, data, bytes_max)),
        unmarked,
    )


GZIP = _of("gzip", Compression.GZIP, b"\x1f\x8b")
COMPRESSORS: Mapping[str, Compressor] = MappingProxyType(
    {
        compressor.name: compressor
        for compressor in (
            GZIP,
            _of("snappy", Compression.SNAPPY, b"\x82SNAPPY\x00", unmarked=True),
            _of("lz4", Compression.LZ4, b"\x04\x22\x4d\x18"),
            _of("zstd", Compression.ZSTD, b"\x28\xb5\x2f\xfd"),
        )
    }
)
"""The registry as it comes. A program that has its own algorithm passes `{**COMPRESSORS, "its name": Compressor(...)}`."""


def choose(name: str, compressors: Mapping[str, Compressor]) -> Compressor | None:
    """The configured compressor, None for `none` and the empty name. ValueError for a name nobody registered."""
    if name in {"", "none"}:
        return None
    if name not in compressors:
        raise ValueError(f"compression {name!r} is none of {', '.join(sorted(compressors))}")
    return compressors[name]


def expand(body: bytes, configured: Compressor | None, bytes_max: int, *, is_plain: Callable[[bytes], bool]) -> bytes:
    """The body as it was before compression, or as it is."""
    if body.startswith(GZIP.magic):
        return _expand(GZIP, body, bytes_max)
    if configured is None:
        return body
    if body.startswith(configured.magic) or (configured.unmarked and body and not is_plain(body)):
        return _expand(configured, body, bytes_max)
    return body


def _expand(compressor: Compressor, body: bytes, bytes_max: int) -> bytes:
    # A few bytes may become a few megabytes, whatever they are; that much more only what is large already.
    bytes_max = min(bytes_max, max(EXPANDED_BYTES_FREE, len(body) * EXPANSION_MAX))
    plain = compressor.decompress(body, bytes_max)
    if len(plain) > bytes_max:  # a compressor from outside may keep its promise badly
        raise ProtocolError(f"the body grows past {bytes_max} bytes when decompressed")
    return plain
