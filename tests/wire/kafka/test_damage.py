"""Bytes that nobody should send: garbage, damaged frames, lengths and counts that lie. Events only, and little memory."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.conversation import feed
from tests.wire.damage import check_each, each_byte_changed, framed, framed_damage, measured
from tests.wire.kafka.drive import client_at
from tests.wire.kafka.fuzz import fuzz_one, fuzz_response, fuzz_server
from tests.wire.kafka.vectors import REFUSED, REQUESTS, RESPONSES, Vector

from braidlog.wire.contract import Refused
from braidlog.wire.kafka.apis import APIS, FRAME_BYTES_MAX, OWN, PARTITION_PARTS_MAX, SMALL_BYTES_MAX, Api
from braidlog.wire.kafka.connection import RefusedRequest, Request, ServerConnection

FRAMES = [each.data for each in REQUESTS + REFUSED]
RUNS = 20_000
MIB = 1024 * 1024


def request(key: int, version: int, body: bytes) -> bytes:
    return framed(struct.pack(">hhih", key, version, 1, -1) + body)


@given(st.binary(max_size=200))
def test_garbage(data: bytes) -> None:
    fuzz_one(data)
    fuzz_one(framed(data))


@pytest.mark.parametrize("api", [*APIS, *OWN], ids=lambda api: api.name)
@given(data=st.data())
def test_garbage_behind_a_good_header(api: Api, data: st.DataObject) -> None:
    version = data.draw(st.integers(*api.versions))
    tags = b"\0" if api.is_flexible(version) else b""
    fuzz_server(request(api.key, version, tags + data.draw(st.binary(max_size=120))))
    fuzz_response(framed(bytes(4) + data.draw(st.binary(max_size=120))), api.key, version)


@pytest.mark.parametrize("vector", REQUESTS, ids=lambda each: each.name)
def test_every_byte_of_a_request_damaged(vector: Vector) -> None:
    for data in each_byte_changed(vector.data, (0x00, 0xFF, 0x7F), (0x01, 0x80), start=4):
        fuzz_server(data)


@pytest.mark.parametrize("vector", RESPONSES, ids=lambda each: each.name)
def test_every_byte_of_a_response_damaged(vector: Vector) -> None:
    assert vector.api is not None
    for data in each_byte_changed(vector.data, (0x00, 0xFF, 0x7F), (0x01, 0x80), start=8):
        fuzz_response(data, vector.api.key, vector.version)


@pytest.mark.parametrize("vector", REQUESTS + RESPONSES, ids=lambda each: f"{each.name} {len(each.data)}")
def test_every_payload_cut_short_within_its_frame(vector: Vector) -> None:
    payload = vector.data[4:]
    assert vector.api is not None
    for size in range(1, len(payload)):
        fuzz_server(framed(payload[:size]))
        if size >= 4:
            fuzz_response(framed(payload[:size]), vector.api.key, vector.version)


def test_twenty_thousand_damaged_frames() -> None:
    seed = 20240611
    check_each(seed, framed_damage(random.Random(seed), FRAMES, RUNS), lambda _, data: fuzz_one(data))


# -- lies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bytes.fromhex("7FFFFFFF"), "announces 2147483647 bytes"),
        (request(3, 1, b"\x7f\xff\xff\xff"), "2147483647 topics do not fit the remaining 0 bytes"),
        (request(3, 9, b"\0" + b"\xff\xff\xff\xff\x0f"), "4294967294 topics do not fit the remaining 0 bytes"),
        (request(3, 1, b"\x00\x00\x00\x01\x7f\xff"), "name announces 32767 bytes, 0 are left"),
        (
            request(0, 9, b"\0\0\0\1\0\0\0\0\2\2t\2\0\0\0\0\xff\xff\xff\xff\x07"),
            "records announces 2147483646 bytes, 0 are left",
        ),
        (request(24, 0, struct.pack(">hqhih1si", -1, 0, 0, 1, 1, b"t", 2**31 - 1)), "transactional_id may not be null"),
        (
            request(24, 0, struct.pack(">hqhih1si", 0, 0, 0, 1, 1, b"t", 2**31 - 1)),
            "2147483647 partitions do not fit the remaining 0 bytes",
        ),
    ],
    ids=["frame", "count", "compact count", "text", "records", "null", "numbers"],
)
def test_a_length_that_lies_costs_nothing(data: bytes, why: str) -> None:
    (event,) = feed(ServerConnection(), data)
    assert isinstance(event, RefusedRequest)
    assert event.close
    assert why in str(event.error)
    assert measured(ServerConnection(), data).peak_bytes < MIB // 4


def test_small_parts_may_not_become_many_objects() -> None:
    """A topic of Metadata 1 takes two bytes, and an object of a hundred."""
    count = 4_000_000
    body = struct.pack(">i", count) + bytes(2 * count)
    assert len(body) < SMALL_BYTES_MAX
    assert measured(ServerConnection(), request(3, 1, body)).peak_bytes < 4 * len(body)
    (event,) = feed(ServerConnection(), request(3, 1, body))
    assert isinstance(event, Refused)
    assert str(PARTITION_PARTS_MAX) in str(event.error)
    (event,) = feed(ServerConnection(), request(3, 1, struct.pack(">i", 1000) + bytes(2 * 1000)))
    assert len(event.message.topics) == 1000


def test_parts_within_parts_are_counted_together() -> None:
    topic = b"\2t" + bytes([0xFF, 0x7F]) + bytes(6 * 0x3FFE)  # 16,382 partitions without records
    topics = 40
    (event,) = feed(
        ServerConnection(), request(0, 9, b"\0\0\0\1\0\0\0\0" + bytes([topics + 1]) + (topic + b"\0") * topics + b"\0")
    )
    assert isinstance(event, Refused)
    assert "parts" in str(event.error)


def test_a_request_says_how_many_parts_it_has() -> None:
    (event,) = feed(ServerConnection(), request(3, 1, struct.pack(">i", 1000) + bytes(2 * 1000)))
    assert isinstance(event, Request)
    assert event.parts == 1000


def test_a_small_request_may_not_be_large_and_a_produce_may() -> None:
    """It is refused by its first eight bytes; a Produce of the same size is awaited."""
    for key, awaited in ((3, False), (0, True)):
        assert (feed(ServerConnection(), (64 * MIB).to_bytes(4, "big") + struct.pack(">hh", key, 9)) == []) is awaited


def test_the_largest_frame_is_awaited_and_one_more_byte_is_not() -> None:
    for more, awaited in ((0, True), (1, False)):
        assert (feed(ServerConnection(), (FRAME_BYTES_MAX + more).to_bytes(4, "big")) == []) is awaited


def test_a_response_that_nobody_awaits_ends_a_client() -> None:
    client = client_at(5)
    client.request(APIS[3].request(), 0)
    (event,) = feed(client, framed(struct.pack(">i", 6)))
    assert isinstance(event, Refused)
    assert event.close
    assert feed(client, framed(struct.pack(">i", 5))) == []


@pytest.mark.parametrize("version", [0, 9], ids=["plain", "flexible"])
def test_a_whole_stream_survives_a_refusal_of_nothing(version: int) -> None:
    """ApiVersions of an unknown version is answered, and the connection goes on."""
    first, second = feed(ServerConnection(), request(18, 99, b"\0\0") + request(3, version, bytes(6 if version else 4)))
    assert isinstance(first, RefusedRequest)
    assert isinstance(second, Request)
    assert second.key == 3
