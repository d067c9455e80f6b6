"""Damaged valid bytes, by the thousand, from a seed that is printed."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.damage import check_each, each_byte_changed

from .fuzz import fuzz_one
from .vectors import Vector, load

CORPUS = [vector.data for vector in load()]
SEED = 20_240_611
RUNS = 20_000


def damage(data: bytes, rng: random.Random) -> bytes:
    """A frame with a few bytes changed, inserted, lost or repeated; sometimes with its length made right again."""
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(damaged) + 1)
        match rng.randrange(6):
            case 0:
                damaged[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                damaged[place:place] = rng.choice(
                    [b"\x00", b"\xff", b'"', b"{", b"[", b"null", b"-1", b"1e9", b"\\ud800", b","]
                )
            case 2:
                del damaged[place : place + rng.randint(1, 8)]
            case 3:
                damaged[place:place] = damaged[place : place + rng.randint(1, 20)]
            case 4 if place < len(damaged):
                damaged[place] ^= 1 << rng.randrange(8)
            case _:
                other = rng.choice(CORPUS)
                damaged[place:] = other[rng.randrange(len(other) + 1) :]
    if len(damaged) >= 6 and rng.random() < 0.8:
        damaged[2:6] = (len(damaged) - 6).to_bytes(4, "big")
    return bytes(damaged)


def test_damaged_vectors_give_refusals_or_messages_only() -> None:
    rng = random.Random(SEED)
    check_each(SEED, (damage(rng.choice(CORPUS), rng) for _ in range(RUNS)), lambda _, data: fuzz_one(data))


@pytest.mark.parametrize("vector", load(), ids=str)
def test_every_damaged_byte_gives_a_refusal_or_a_message(vector: Vector) -> None:
    for data in each_byte_changed(vector.data, (0, 0x22, 0x7F, 0x80, 0xFF), (0x01, 0x20)):
        fuzz_one(data)


@given(st.binary(max_size=200))
def test_garbage_gives_refusals_only(data: bytes) -> None:
    fuzz_one(data)


@given(
    st.integers(0, 28),
    st.binary(max_size=60) | st.text('{}[]":,\\unltrefasd01-.eE +/=TopicValueOffset', max_size=60).map(str.encode),
)
def test_garbage_behind_a_sound_header_gives_refusals_or_messages_only(number: int, payload: bytes) -> None:
    fuzz_one(number.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload)
