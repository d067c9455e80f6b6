"""Garbage, and valid frames with something wrong in them: a refusal or another message, never another exception."""

import gzip
import random

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.conversation import feed
from tests.wire.cursus.drive import ROWS, asked, client_that_asked
from tests.wire.cursus.fuzz import fuzz_one
from tests.wire.cursus.vectors import VECTORS, Vector
from tests.wire.damage import each_byte_changed, framed, measured

from braidlog.wire.contract import Refused
from braidlog.wire.cursus.compressors import COMPRESSORS
from braidlog.wire.cursus.connection import ClientConnection, ServerConnection
from braidlog.wire.cursus.messages import Request

MUTATIONS = 20_000
SEED = 20_240_603


def read(vector: Vector, data: bytes) -> list[object]:
    if vector.from_client:
        return feed(ServerConnection(), data)
    return feed(client_that_asked(ROWS[vector.operation]), data)


@given(st.binary(max_size=200))
def test_garbage(data: bytes) -> None:
    fuzz_one(data)
    for choice in range(5):
        fuzz_one(bytes([choice]) + framed(data))


@given(st.sampled_from(["", "\x00\x00", "\x00\x05admin"]), st.sampled_from(sorted(ROWS)), st.binary(max_size=60))
def test_a_command_with_garbage_behind_it(envelope: str, name: str, data: bytes) -> None:
    body = envelope.encode() + name.encode() + b" " + data
    fuzz_one(b"\x00" + len(body).to_bytes(4, "big") + body)


@pytest.mark.parametrize("vector", VECTORS, ids=[v.name for v in VECTORS])
def test_every_byte_damaged(vector: Vector) -> None:
    for data in each_byte_changed(vector.data, (0x00, 0x20, 0x3D, 0x7F, 0xFF), (0x01, 0x80)):
        read(vector, data)


def test_seeded_mutations() -> None:
    source = random.Random(SEED)
    frames = [vector.data for vector in VECTORS]
    for run in range(MUTATIONS):
        data = bytearray(source.choice(frames))
        for _ in range(source.randrange(1, 4)):
            at = source.randrange(len(data) + 1)
            match source.randrange(5):
                case 0 if at < len(data):
                    data[at] = source.randrange(256)
                case 1:
                    data[at:at] = source.randbytes(source.randrange(1, 5))
                case 2:
                    del data[at : at + source.randrange(1, 5)]
                case 3:
                    other = source.choice(frames)
                    data[at:] = other[source.randrange(len(other)) :]
                case _:
                    data[at : at + 4] = source.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00"])
        # Most damage makes the length wrong and dies there; half of the runs get a right one.
        if run % 2:
            data[:4] = (len(data) - 4 if len(data) > 4 else 0).to_bytes(4, "big")
        try:
            fuzz_one(bytes([run % 251]) + bytes(data))
        except Exception as error:
            raise AssertionError(f"seed {SEED}, run {run}: {bytes(data)!r}") from error


def refused_peak_bytes(server: ServerConnection, data: bytes) -> int:
    reading = measured(server, data)
    assert reading.events == 1
    assert isinstance(reading.last, Refused), reading.last
    return reading.peak_bytes


@pytest.mark.parametrize(
    "lie",
    [
        b"\x04\x00\x00\x01",
        framed(b"\xba\x7c\x00\x01t\x00\x00\x00\x00\x011\x00" + bytes(16) + b"\x7f\xff\xff\xff" + bytes(40)),
        framed(b"\xba\x7c\xff\xfft"),
        framed(b"CREATE " + b"a=b " * 100_000),
        framed(b"CREATE " + b"a " * 100_000),
        framed(b"BATCH_COMMIT topic=t group=g member=m generation=1 " + b"," * 400_000),
        framed(b"APPEND_STREAM topic=t key=k version=1 metadata=" + b"[" * 400_000),
        framed(b"LIST " + b"x" * 400_000),
    ],
    ids=["frame", "count", "topic", "arguments", "words", "offsets", "nesting", "word"],
)
def test_memory_follows_the_bytes_that_came(lie: bytes) -> None:
    assert refused_peak_bytes(ServerConnection(), lie) < 12 * len(lie) + 100_000


@pytest.mark.parametrize("name", sorted(COMPRESSORS))
def test_a_bomb_is_refused_at_the_limit(name: str) -> None:
    limit = 4 * 1024 * 1024
    bomb = COMPRESSORS[name].compress(bytes(16 * limit))
    assert len(bomb) < limit
    # Twice: zlib gathers pieces and then joins them.
    server = ServerConnection(compression=name, frame_bytes_max=limit)
    assert refused_peak_bytes(server, framed(bomb)) < 2 * limit + 12 * len(bomb)
    (event,) = feed(
        ServerConnection(compression=name, frame_bytes_max=limit),
        framed(COMPRESSORS[name].compress(b"PUBLISH topic=t message=" + bytes(limit - 24))),
    )
    assert isinstance(event, Request)


def test_gzip_inside_gzip_is_opened_once() -> None:
    (event,) = feed(ServerConnection(), framed(gzip.compress(gzip.compress(b"LIST"))))
    assert isinstance(event, Refused)
    (event,) = feed(ServerConnection(), framed(gzip.compress(b"LIST")))
    assert isinstance(event, Request)


def test_what_is_not_configured_is_not_opened() -> None:
    for name in ("snappy", "lz4", "zstd"):
        (event,) = feed(ServerConnection(), framed(COMPRESSORS[name].compress(b"LIST")))
        assert isinstance(event, Refused), name
        (event,) = feed(ServerConnection(compression=name), framed(COMPRESSORS[name].compress(b"LIST")))
        assert isinstance(event, Request), name
        # Commands are not compressed by any client, so they are taken as they are too.
        (event,) = feed(ServerConnection(compression=name), framed(b"\x00\x00LIST"))
        assert isinstance(event, Request), name


@given(st.binary(max_size=300))
@settings(max_examples=30)
def test_raw_snappy_blocks(payload: bytes) -> None:
    batch = asked(ROWS["CONSUME"]).message
    body = b"CONSUME topic=x partition=1 offset=1 group=" + payload.hex().encode()
    (event,) = feed(ServerConnection(compression="snappy"), framed(bytes(cramjam.snappy.compress_raw(body))))
    assert isinstance(event, Request)
    assert event.message.topic == batch.topic


def test_an_answer_nobody_asked_for() -> None:
    (event,) = feed(ClientConnection(), b"\x00\x00\x00\x02OK")
    assert isinstance(event, Refused)
    assert event.close
