"""Bytes that nobody should send: garbage, damaged frames, lengths and counts that lie. Events only, and little memory."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.conversation import feed
from tests.wire.damage import check_each, damaged, each_byte_changed, measured
from tests.wire.mayfly.fuzz import fuzz_one
from tests.wire.mayfly.vectors import ANSWERS, REFUSED, REQUESTS, Vector

from braidlog.model.limits import KV_COLLECTION_ITEMS_MAX
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.mayfly.connection import RefusedFrame, Request, ServerConnection
from braidlog.wire.mayfly.messages import MANY_BYTES_MAX, Set, Status
from braidlog.wire.mayfly.operations import OPERATIONS

FRAMES = [each.data for each in REQUESTS + ANSWERS + REFUSED]
RUNS = 20_000


def frame(number: int, payload: bytes, version: int = 1) -> bytes:
    consistency = b"\x02" if version == 2 else b""
    head = b"\xca\xfe" + bytes((version, number)) + b"\x00\x00\x00\x07"
    return head + len(payload).to_bytes(4, "big") + consistency + payload


@given(st.binary(max_size=200))
def test_garbage(data: bytes) -> None:
    fuzz_one(data)


@given(st.sampled_from([row.number for row in OPERATIONS]), st.sampled_from([1, 2]), st.binary(max_size=60))
def test_garbage_in_a_good_frame(number: int, version: int, payload: bytes) -> None:
    fuzz_one(frame(number, payload, version))


@pytest.mark.parametrize("vector", REQUESTS + ANSWERS, ids=lambda each: each.name)
def test_every_byte_damaged(vector: Vector) -> None:
    for data in each_byte_changed(vector.data, (0x00, 0xFF), (0x01, 0x80)):
        fuzz_one(data)


@pytest.mark.parametrize("vector", REQUESTS + ANSWERS, ids=lambda each: each.name)
def test_every_payload_cut_short_within_its_frame(vector: Vector) -> None:
    payload = vector.data[12:]
    for size in range(len(payload)):
        fuzz_one(vector.data[:8] + size.to_bytes(4, "big") + payload[:size])


def frames_with_damage(chance: random.Random) -> Iterator[bytes]:
    for data in damaged(chance, FRAMES, RUNS, header_bytes=8):
        if chance.random() < 0.9 and len(data) > 12:
            data[8:12] = (len(data) - 12).to_bytes(4, "big")
        yield bytes(data)


def test_twenty_thousand_damaged_frames() -> None:
    seed = 20251115
    check_each(seed, frames_with_damage(random.Random(seed)), fuzz_some)


def fuzz_some(number: int, data: bytes) -> None:
    if number % 20 == 0:
        fuzz_one(data)
    else:
        assert all(isinstance(event, Request | RefusedFrame) for event in feed(ServerConnection(), data))


@pytest.mark.parametrize(
    "data",
    [
        bytes.fromhex("CAFE0101 00000001 FFFFFFFF"),
        bytes.fromhex("CAFE0110 00000001 00100000"),
        frame(0x10, b"\x00\x01l\xff\xff\xff\xff"),
        frame(0x30, b"\x00\x01h\x7f\xff\xff\xff\x00\x01f"),
        frame(0x01, b"\x00\x01k\xff\xff\xff\xff"),
        frame(0x00, b"\xff\xff"),
    ],
    ids=["4 GiB", "the largest", "count of values", "count of pairs", "value", "token"],
)
def test_a_length_that_lies_costs_nothing(data: bytes) -> None:
    assert measured(ServerConnection(), data).peak_bytes < 64 * 1024


def test_a_push_of_as_many_values_as_fit_grows_by_a_small_factor_only() -> None:
    count = KV_COLLECTION_ITEMS_MAX
    pushed = b"\x00\x01l" + count.to_bytes(4, "big") + bytes(4 * count)
    reading = measured(ServerConnection(), frame(0x10, pushed))
    assert reading.events == 1
    assert isinstance(reading.last, Request)
    assert reading.peak_bytes < 8 * 4 * count


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_each_command_has_its_own_maximum(row: Any) -> None:
    """One byte more is refused by the length alone; the bytes are passed over, in pieces, and the connection stays."""
    server = ServerConnection()
    size = row.payload_bytes_max + 1
    (event,) = feed(
        server, bytes.fromhex("CAFE01") + bytes((row.number,)) + b"\x00\x00\x00\x07" + size.to_bytes(4, "big")
    )
    assert isinstance(event, RefusedFrame)
    assert event.close is (size > MANY_BYTES_MAX)
    assert event.answer.status in (Status.KEY_TOO_LONG, Status.VALUE_TOO_LARGE, Status.BAD_PAYLOAD)
    if event.close:
        return
    assert server.buffered_bytes
    for start in range(0, size, 100):
        assert server.next_event() is NEED_DATA
        server.receive(bytes(min(100, size - start)))
    assert server.next_event() is NEED_DATA
    assert server.buffered_bytes == 0
    assert feed(server, REQUESTS[0].data) == [REQUESTS[0].request]


def test_the_largest_set_is_read_and_one_more_byte_is_not() -> None:
    server = ServerConnection()
    key, value = b"k" * 256, b"v" * 65536
    assert feed(server, frame(0x01, b"\x01\x00" + key + b"\x00\x01\x00\x00" + value + b"\x00\x00\x00\x3c")) == [
        Request(7, Set(key, value, 60))
    ]
    (event,) = feed(server, frame(0x01, b"\x01\x00" + key + b"\x00\x01\x00\x01" + value + b"v"))
    assert isinstance(event, RefusedFrame)
    assert (event.close, event.answer.status) == (False, Status.VALUE_TOO_LARGE)


def test_more_items_than_any_list_may_have_are_not_read() -> None:
    """A million of them take a tenth of a second to read, and nothing could take them."""
    server = ServerConnection()
    for count in (KV_COLLECTION_ITEMS_MAX, KV_COLLECTION_ITEMS_MAX + 1):
        server.receive(frame(0x11, b"\x00\x01k" + count.to_bytes(4, "big") + bytes(4 * count)))
    assert isinstance(server.next_event(), Request)
    event = server.next_event()
    assert isinstance(event, RefusedFrame)
    assert (event.close, event.answer.status) == (False, Status.VALUE_TOO_LARGE)
    assert "65537" in str(event.error)
