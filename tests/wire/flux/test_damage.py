"""Garbage, and valid lines with damage: only requests, responses and refusals come out, and memory stays with what was sent."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.damage import measured
from tests.wire.flux.conversation import ask, serve
from tests.wire.flux.fuzz import fuzz_client, fuzz_one, fuzz_server
from tests.wire.flux.vectors import ANSWERED, VECTORS, Vector

from braidlog.wire.contract import Refused
from braidlog.wire.flux.connection import ClientConnection, ServerConnection
from braidlog.wire.flux.messages import GetMetadata, Request, Response

SEED = 20_240_607
RUNS = 20_000


@given(st.binary(max_size=300))
def test_garbage(data: bytes) -> None:
    fuzz_one(data)
    assert all(isinstance(event, Refused) for event in serve(data + b"\n") if b"V1|" not in data)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_a_request_with_any_byte_damaged_is_refused_or_is_another_request(vector: Vector) -> None:
    for damaged in damages(vector.sent.data):
        fuzz_server(damaged)
        assert all(isinstance(event, Request | Refused) for event in serve(damaged))


@pytest.mark.parametrize("vector", ANSWERED, ids=lambda vector: vector.name)
def test_an_answer_with_any_byte_damaged_is_refused_or_is_another_answer(vector: Vector) -> None:
    for damaged in damages(vector.answered.data):
        fuzz_client(damaged)
        assert all(isinstance(event, Response | Refused) for event in ask(vector.request, damaged))


def damages(data: bytes) -> list[bytes]:
    """Every byte with one bit flipped, replaced by marks that the dialect knows, left out, and doubled."""
    found = []
    for at in range(len(data)):
        head, byte, tail = data[:at], data[at], data[at + 1 :]
        found += [head + bytes((byte ^ 1 << bit,)) + tail for bit in range(8)]
        found += [
            head + mark + tail
            for mark in (b"|", b" ", b"\n", b"=", b":", b",", b"[", b"\x00", b"\xff", b"", bytes((byte, byte)))
        ]
    return found


def test_many_mutations_of_valid_lines() -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    corpus = [vector.sent.data for vector in VECTORS] + [vector.answered.data for vector in ANSWERED]
    for _ in range(RUNS):
        fuzz_one(mutate(rng, corpus))


def mutate(rng: random.Random, corpus: list[bytes]) -> bytes:
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = bytes((rng.randrange(256),))
            case 1:
                del data[at : at + rng.randint(1, 8)]
            case 2:
                data[at:at] = rng.choice(
                    (b"|", b" ", b"=", b":", b",", b"-", b"9" * 25, b"enc=b64 ", b"\xe2\x80\xa8", b"[", b"]")
                )
            case 3:
                other = rng.choice(corpus)
                data[at:] = other[rng.randrange(len(other)) :]
            case _:
                data[at:at] = data[rng.randrange(len(data) + 1) : at]
    return bytes(data)


HOSTILE = {
    "short lines": b"ab\n" * 100_000,
    "empty lines": b"\n" * 300_000,
    "words": b"V1|1|PRODUCE|" + b"a " * 500_000 + b"\n",
    "bars": b"|" * 1_000_000 + b"\n",
    "commas": b"V1|1|ADMIN_SET_PARTITION_LEADER|t 0 0 " + b"," * 1_000_000 + b"\n",
    "digits": b"V1|1|CONSUME|t 0 " + b"9" * 1_000_000 + b"\n",
    "colons": b"V1|1|PRODUCE|t " + b":" * 1_000_000 + b" enc=b64\n",
    "a long name": b"V1|1|OFFSET|" + b"g" * 1_000_000 + b" t 0\n",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_servers_memory_stays_with_what_was_sent(data: bytes) -> None:
    assert measured(ServerConnection(), data).peak_bytes < 4 * len(data) + 2_000_000


@pytest.mark.parametrize(
    "payload",
    [
        b"a=" * 300_000,
        b"".join(b"%b= " % (b"a" * at) for at in range(1, 1400)),
        b"topics=[" + b"a " * 400_000 + b"] brokers=[]",
    ],
    ids=["one field", "many fields", "a long list"],
)
def test_a_clients_memory_stays_with_what_was_sent(payload: bytes) -> None:
    client = ClientConnection()
    client.request(GetMetadata("1"))
    line = b"V1|1|OK|" + payload[:1_000_000] + b"\n"
    reading = measured(client, line)
    assert reading.events == 1
    assert reading.peak_bytes < 60 * len(line) + 2_000_000
