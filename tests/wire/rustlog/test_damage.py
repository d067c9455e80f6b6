"""Bytes that nobody should send: garbage, damaged frames, lengths and counts that lie. Events only, and little memory."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.conversation import feed
from tests.wire.damage import check_each, each_byte_changed, framed, framed_damage, measured
from tests.wire.rustlog.fuzz import fuzz_one
from tests.wire.rustlog.vectors import ANSWERS, REFUSED, REQUESTS, Vector

from braidlog.wire.contract import Refused
from braidlog.wire.rustlog.connection import ClientConnection, RefusedFrame, Request, ServerConnection
from braidlog.wire.rustlog.messages import FRAME_BYTES_MAX, Form

FRAMES = [each.data for each in REQUESTS + ANSWERS + REFUSED]
RUNS = 20_000
MIB = 1024 * 1024


@given(st.binary(max_size=200))
def test_garbage(data: bytes) -> None:
    fuzz_one(data)
    fuzz_one(framed(data))


@given(st.sampled_from(sorted({each.data[4] for each in REQUESTS + ANSWERS})), st.binary(max_size=60))
def test_garbage_after_a_good_first_byte(first: int, rest: bytes) -> None:
    fuzz_one(framed(bytes((first,)) + rest))


@pytest.mark.parametrize("vector", REQUESTS + ANSWERS, ids=lambda each: f"{each.form.value} {each.name}")
def test_every_byte_damaged(vector: Vector) -> None:
    for data in each_byte_changed(vector.data, (0x00, 0xFF, 0x22, 0x7B), (0x01, 0x80), start=4):
        fuzz_one(data)


@pytest.mark.parametrize("vector", REQUESTS + ANSWERS, ids=lambda each: f"{each.form.value} {each.name}")
def test_every_payload_cut_short_within_its_frame(vector: Vector) -> None:
    payload = vector.data[4:]
    for size in range(1, len(payload)):
        fuzz_one(framed(payload[:size]))
        fuzz_one(framed(payload[size:]))


def test_twenty_thousand_damaged_frames() -> None:
    """A server's side of `fuzz_one` for each, the clients' for some: they cost a connection per vector."""
    seed = 20240611
    check_each(seed, framed_damage(random.Random(seed), FRAMES, RUNS), fuzz_some)


def fuzz_some(number: int, data: bytes) -> None:
    if number % 20 == 0:
        fuzz_one(data)
        return
    server = ServerConnection()
    for event in feed(server, data):
        assert isinstance(event, Request | RefusedFrame)
        if isinstance(event, RefusedFrame):
            server.respond(event, event.answer)


@pytest.mark.parametrize(
    "data",
    [
        bytes.fromhex("00A00000"),
        bytes.fromhex("FFFFFFFF"),
        framed(b"\x01\x00\x01t\x00\x00\x00\x00\xff\xff\xff\xff"),
        framed(b"\x01\x00\x01t\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff"),
        framed(b"\x01\x00\x01t\x00\x00\x00\x00\x00\x00\x00\x02\x7f\xff\xff\xff\x00\x00\x00\x00"),
        framed(b"\x07\xff\xff"),
    ],
    ids=["frame of 10 MiB", "frame of 4 GiB", "count", "last length", "first length", "name"],
)
def test_a_length_that_lies_costs_nothing(data: bytes) -> None:
    assert measured(ServerConnection(), data).peak_bytes < MIB // 4


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type":"Ping","x":[' + b"[]," * 3_000_000 + b"[]]}",
        b'{"type":"Ping","x":' + b"[" * 4_000_000 + b"]" * 4_000_000 + b"}",
        b'{"type":"Produce","topic":"t","partition":0,"records":[' + b'"",' * 3_000_000 + b'""]}',
        b'{"type":"Produce","topic":"t","partition":0,"records":[],"keys":[' + b"null," * 2_000_000 + b"null]}",
        b"\x01\x00\x01t\x00\x00\x00\x00" + (2_600_000).to_bytes(4, "big") + bytes(4 * 2_600_000),
    ],
    ids=["many lists", "deep lists", "many records", "many keys", "many binary records"],
)
def test_a_frame_grows_by_a_small_factor_only(payload: bytes) -> None:
    assert len(payload) <= FRAME_BYTES_MAX
    assert measured(ServerConnection(), framed(payload)).peak_bytes < 8 * FRAME_BYTES_MAX


def test_a_request_of_too_many_values_is_refused_before_it_is_decoded() -> None:
    def ping(values: int) -> bytes:
        return framed(b'{"type":"Ping","x":[' + b"1," * (values - 1) + b"1]}")

    server = ServerConnection()
    server.receive(ping(200_000))
    assert isinstance(server.next_event(), Request)
    (event,) = feed(server, ping(200_001))
    assert isinstance(event, RefusedFrame)
    assert (event.close, event.answer.code) == (True, 400)
    assert "200001 values" in event.answer.message


@pytest.mark.parametrize(
    "details",
    [
        b'{"a":[' + b"[]," * 3_000_000 + b"[]]}",
        b'{"a":' + b"[" * 40 + b"]" * 40 + b"}",
        b'{"a":"' + b"x" * 70_000 + b'"}',
    ],
    ids=["many lists", "deep lists", "long"],
)
def test_the_details_of_an_error_are_bounded(details: bytes) -> None:
    payload = b'{"type":"Error","code":500,"message":"","details":' + details + b"}"
    client = ClientConnection()
    client.request(ANSWERS[0].asked)
    assert measured(client, framed(payload)).peak_bytes < 8 * FRAME_BYTES_MAX
    client = ClientConnection()
    client.receive(framed(payload))
    assert isinstance(client.next_event(), Refused)


@pytest.mark.parametrize("form", list(Form))
def test_the_largest_frame_is_read_and_one_more_byte_is_not(form: Form) -> None:
    server = ServerConnection()
    if form is Form.JSON:
        payload = b'{"type":"Ping"}' + b" " * (FRAME_BYTES_MAX - 15)
    else:
        head = b"\x01\x00\x01t\x00\x00\x00\x00\x00\x00\x00\x01"
        body = FRAME_BYTES_MAX - len(head) - 4
        payload = head + body.to_bytes(4, "big") + bytes(body)
    assert len(payload) == FRAME_BYTES_MAX
    server.receive(framed(payload))
    assert isinstance(server.next_event(), Request)
    (event,) = feed(server, (FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
    assert isinstance(event, RefusedFrame)
    assert event.close
    assert (event.form, event.answer.code) == ((Form.JSON, 400) if form is Form.JSON else (Form.BINARY, 1))
