# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Every form in which a client may send a compressed block, and every way in which one may lie."""

import contextlib
import gzip
import struct
import subprocess
import sys

import cramjam
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.codec.compression import GZIP_MEMBERS_MAX, Compression, compress, decompress
from braidlog.codec.errors import ProtocolError

BOUND = 1 << 20
TEXT = b"the quick brown fox jumps over the lazy dog " * 100
PACKED = [codec for codec in Compression if codec is not Compression.NONE]
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def xerial(*blocks: bytes) -> bytes:
    return XERIAL + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def lz4_frame(data: bytes, **flags: bool) -> bytes:
    frame = cramjam.lz4.Compressor(level=1, **flags)
    frame.compress(data)
    return bytes(frame.finish())


def zstd_stream(data: bytes) -> bytes:
    """A frame without content size, as Java and librdkafka write it: a stream that did not know its end."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("data", [b"", b"a", TEXT, bytes(range(256)) * 1024], ids=len)
def test_what_we_write_we_read(codec, data):
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(bytearray(packed)), len(data)) == data
    if data:
        with pytest.raises(ProtocolError):
            decompress(codec, packed, len(data) - 1)


def test_what_we_write_is_what_clients_need():
    assert compress(Compression.GZIP, TEXT)[:2] == b"\x1f\x8b"
    assert compress(Compression.SNAPPY, TEXT).startswith(XERIAL)
    frame = compress(Compression.LZ4, TEXT)
    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] >> 6 == 1
    assert frame[4] & 0x20, "Java's reader takes independent blocks only"
    assert compress(Compression.ZSTD, TEXT)[:4] == bytes.fromhex("28b52ffd")
    # Others than ourselves read it: pyarrow carries its own lz4, zstd and zlib.
    for codec, name in ((Compression.GZIP, "gzip"), (Compression.LZ4, "lz4"), (Compression.ZSTD, "zstd")):
        packed = pa.BufferReader(compress(codec, TEXT))
        assert pa.CompressedInputStream(packed, name).read() == TEXT


FORMS = {
    "gzip of several members": (
        Compression.GZIP,
        gzip.compress(TEXT) + gzip.compress(b"") + gzip.compress(TEXT),
    ),
    "snappy raw": (Compression.SNAPPY, raw_snappy(TEXT + TEXT)),
    "snappy of two blocks": (Compression.SNAPPY, xerial(raw_snappy(TEXT), raw_snappy(TEXT))),
    "snappy of two streams": (Compression.SNAPPY, xerial(raw_snappy(TEXT)) + xerial(raw_snappy(TEXT))),
    "lz4 linked": (Compression.LZ4, lz4_frame(TEXT * 2, block_linked=True)),
    "lz4 with checksum": (Compression.LZ4, lz4_frame(TEXT * 2, block_linked=False, content_checksum=True)),
    "lz4 of two frames": (Compression.LZ4, lz4_frame(TEXT) + lz4_frame(TEXT)),
    "lz4 of pyarrow": (Compression.LZ4, pa.compress(TEXT * 2, "lz4", asbytes=True)),
    "zstd without content size": (Compression.ZSTD, zstd_stream(TEXT * 2)),
    "zstd of two frames": (Compression.ZSTD, zstd_stream(TEXT) + compress(Compression.ZSTD, TEXT)),
}


@pytest.mark.parametrize(("codec", "packed"), FORMS.values(), ids=FORMS)
def test_forms_of_other_writers(codec, packed):
    assert decompress(codec, packed, 2 * len(TEXT)) == TEXT + TEXT
    with pytest.raises(ProtocolError):
        decompress(codec, packed, 2 * len(TEXT) - 1)
    for junk in (b"\x00", b"junk", b"\x00" * 30):
        with pytest.raises(ProtocolError):
            decompress(codec, packed + junk, BOUND)


@pytest.mark.parametrize(("codec", "packed"), FORMS.values(), ids=FORMS)
def test_truncated_at_every_length(codec, packed):
    for size in range(len(packed)):
        try:
            assert decompress(codec, packed[:size], BOUND) in (b"", TEXT)
        except ProtocolError:
            continue
        # Cut between two members, frames, blocks or streams there is one left, or none: nothing is cut off.


def test_the_lz4_library_writes_every_flag():
    lz4 = pytest.importorskip("lz4.frame", reason="the lz4 package is not installed: its flags go untested")
    data = TEXT * 1000
    for size in (0, 4, 5, 6, 7):
        for linked in (False, True):
            for options in ({}, {"block_checksum": True}, {"content_checksum": True}, {"store_size": False}):
                packed = lz4.compress(data, block_size=size, block_linked=linked, **options)
                assert decompress(Compression.LZ4, packed, len(data)) == data


@pytest.mark.parametrize("codec", [*PACKED])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damage_gives_protocol_errors_only(codec, data):
    packed = bytearray(data.draw(st.sampled_from([p for c, p in FORMS.values() if c is codec])))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.one_of(st.integers(0, 40), st.integers(0, len(packed) - 1))) % len(packed)
        packed[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        assert len(decompress(codec, bytes(packed), BOUND)) <= BOUND


@pytest.mark.parametrize("codec", range(-1, 9))
@given(packed=st.binary(max_size=40), magic=st.sampled_from(["", "04224d18", "28b52ffd", "1f8b08", XERIAL.hex()]))
@settings(max_examples=60, deadline=None)
def test_garbage_gives_protocol_errors_only(codec, packed, magic):
    with contextlib.suppress(ProtocolError):
        assert len(decompress(codec, bytes.fromhex(magic) + packed, BOUND)) <= BOUND


LIES = {
    "snappy announces 4 GiB": (Compression.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00" * 8),
    "snappy announces within the bound": (Compression.SNAPPY, b"\x80\x80\x40" + b"\x00" * 8),
    "xerial block longer than the data": (
        Compression.SNAPPY,
        XERIAL + b"\x7f\xff\xff\xff" + raw_snappy(b"a"),
    ),
    "xerial block of negative length": (Compression.SNAPPY, XERIAL + b"\xff\xff\xff\xff" + raw_snappy(b"a")),
    "lz4 block longer than the data": (Compression.LZ4, bytes.fromhex("04224d186040 82 ffffff7f")),
    "lz4 content size": (Compression.LZ4, bytes.fromhex("04224d186840 ffffffffffffff7f 00 00000000")),
    "zstd content size": (Compression.ZSTD, bytes.fromhex("28b52ffd e0 ffffffffffffff7f 010000")),
    "zstd window of 2 TiB": (Compression.ZSTD, bytes.fromhex("28b52ffd 00 ff 010000")),
    "zstd block of no known kind": (Compression.ZSTD, bytes.fromhex("28b52ffd 00 58 070000")),
}


@pytest.mark.parametrize(("codec", "packed"), LIES.values(), ids=LIES)
def test_lies_about_size(codec, packed):
    with pytest.raises(ProtocolError):
        decompress(codec, packed, BOUND)


def test_a_snappy_block_cannot_hold_what_it_announces():
    """Refused by arithmetic, before the library allocates what was announced."""
    with pytest.raises(ProtocolError, match="cannot decompress"):
        decompress(*LIES["snappy announces within the bound"], BOUND)


def test_gzip_members_are_counted():
    packed = gzip.compress(b"") * (GZIP_MEMBERS_MAX + 1)
    with pytest.raises(ProtocolError, match="members"):
        decompress(Compression.GZIP, packed, BOUND)
    assert decompress(Compression.GZIP, gzip.compress(b"a") * GZIP_MEMBERS_MAX, BOUND) == b"a" * GZIP_MEMBERS_MAX


# Each bomb grows to 1 GiB of zeros. Made of its format's own parts: no one has to hold the gibibyte.
BOMBS = {
    # After a full flush the same input gives the same bytes, so one flushed MiB can stand there 1024 times.
    "gzip": "packer = zlib.compressobj(9, zlib.DEFLATED, -15)\n"
    "block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)\n"
    "crc = 0\n"
    "for _ in range(1024): crc = zlib.crc32(bytes(1 << 20), crc)\n"
    "bomb = bytes.fromhex('1f8b08000000000000ff') + block * 1024 + packer.flush()\n"
    "bomb += struct.pack('<II', crc, 1 << 30)",
    "snappy": "block = bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))\n"
    "bomb = XERIAL + (struct.pack('>i', len(block)) + block) * 1024",
    "lz4": "frame = cramjam.lz4.Compressor(block_linked=False, content_checksum=False)\n"
    "frame.compress(bytes(1 << 16)); frame = bytes(frame.finish())\n"
    "bomb = frame[:7] + frame[7:-4] * 16384 + bytes(4)",
    # RLE blocks: three bytes of header and one of data make 128 KiB.
    "zstd": "block = ((128 << 10) << 3 | 2).to_bytes(3, 'little') + b'\\x00'\n"
    "bomb = bytes.fromhex('28b52ffd0058') + block * 8192 + bytes.fromhex('010000')",
}
BOMB_RUN = """
import struct, sys, zlib
import cramjam
from braidlog.codec.compression import Compression, decompress
from braidlog.codec.errors import ProtocolError
def peak_kib():
    # Not ru_maxrss: a process begins with that of the one that started it.
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
XERIAL = bytes.fromhex("82534e4150505900 00000001 00000001")
{make}
codec, bytes_max = Compression[{codec!r}], {bytes_max}
before = peak_kib()
try:
    print("grew to", len(decompress(codec, bomb, bytes_max)))
except ProtocolError:
    print("refused")
print(peak_kib() - before)
"""


def explode(name: str, bytes_max: int) -> tuple[str, int]:
    """A process of its own, so that the peak is the decompressor's and no other test's."""
    program = BOMB_RUN.format(make=BOMBS[name], codec=name.upper(), bytes_max=bytes_max)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    verdict, grown_kib = done.stdout.splitlines()
    return verdict, int(grown_kib) * 1024


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_do_not_grow_past_the_bound(name):
    bytes_max = 16 << 20
    verdict, grown = explode(name, bytes_max)
    assert verdict == "refused"
    assert grown < 3 * bytes_max, f"{grown >> 20} MiB for a bound of {bytes_max >> 20}"


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_bombs(name):
    """The test above can fail: with room for them they grow to what they say, and the peak is seen."""
    verdict, grown = explode(name, 1 << 30)
    assert verdict == f"grew to {1 << 30}"
    assert grown > 512 << 20


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_taken(codec, kind):
    data = b"some bytes " * 500
    assert decompress(codec, compress(codec, kind(data)), len(data)) == data
