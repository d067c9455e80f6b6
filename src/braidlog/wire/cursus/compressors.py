"""Named compressors of whole bodies.

Four algorithms and the first bytes of their output. A decompressed body may not exceed the frame limit. The
algorithms are in codec.
Invariant: reading allocates about as much as the limit allows, regardless of what the body announces. Decompressed
bytes stay in proportion to what a client sent.

A body does not name its compression. Gzip is recognized by its first two bytes. Another compressor must be configured
and is recognized by its first bytes, none of which can begin a batch, an envelope or a command. Only a raw snappy
block has no fixed first bytes: it is tried last, on a body that is nothing else.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from braidlog.codec.compression import Compression, compress, decompress
from braidlog.codec.errors import ProtocolError

EXPANDED_BYTES_FREE = 4 * 1024 * 1024
EXPANSION_MAX = 100
"""Maximum growth: gzip could turn one byte into a thousand."""


class Compressor(msgspec.Struct, frozen=True):
    """One algorithm. `decompress(data, bytes_max)` raises ProtocolError rather than exceed `bytes_max`.

    `unmarked`: it also reads bodies that do not begin with `magic`.
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
"""The default registry. A program with its own algorithm passes `{**COMPRESSORS, "its name": Compressor(...)}`."""


def choose(name: str, compressors: Mapping[str, Compressor]) -> Compressor | None:
    """Return the configured compressor; None for `none` and the empty name. Raises ValueError for an unknown name."""
    if name in {"", "none"}:
        return None
    if name not in compressors:
        raise ValueError(f"unknown compression {name!r}; must be one of {', '.join(sorted(compressors))}")
    return compressors[name]


def expand(body: bytes, configured: Compressor | None, bytes_max: int, *, is_plain: Callable[[bytes], bool]) -> bytes:
    """Return the decompressed body, or the body itself if it is not compressed."""
    if body.startswith(GZIP.magic):
        return _expand(GZIP, body, bytes_max)
    if configured is None:
        return body
    if body.startswith(configured.magic) or (configured.unmarked and body and not is_plain(body)):
        return _expand(configured, body, bytes_max)
    return body


def _expand(compressor: Compressor, body: bytes, bytes_max: int) -> bytes:
    # A small body may grow to a few megabytes; larger growth is allowed only for large bodies.
    bytes_max = min(bytes_max, max(EXPANDED_BYTES_FREE, len(body) * EXPANSION_MAX))
    plain = compressor.decompress(body, bytes_max)
    if len(plain) > bytes_max:  # an external compressor may ignore its limit
        raise ProtocolError(f"the body grows past {bytes_max} bytes when decompressed")
    return plain
