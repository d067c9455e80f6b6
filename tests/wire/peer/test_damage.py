"""Bytes that no node should send: garbage, and valid frames with bytes changed. Events only."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.damage import each_byte_changed
from tests.wire.peer.fuzz import fuzz_one
from tests.wire.peer.vectors import MESSAGES, REFUSED, Vector


@given(st.binary(max_size=100))
def test_garbage(data: bytes) -> None:
    fuzz_one(data)


@given(st.binary(max_size=100))
def test_garbage_behind_a_good_beginning(data: bytes) -> None:
    fuzz_one(MESSAGES[0].data[:3] + data)


@pytest.mark.parametrize("vector", MESSAGES, ids=lambda each: each.name)
def test_every_byte_damaged(vector: Vector) -> None:
    for data in each_byte_changed(vector.data, (0x00, 0xFF), (0x01, 0x80)):
        fuzz_one(data)


def test_damaged_frames_in_a_row() -> None:
    chance = random.Random("nodes")
    frames = [each.data for each in MESSAGES + REFUSED]
    for _ in range(500):
        data = bytearray(b"".join(chance.choices(frames, k=3)))
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        fuzz_one(bytes(data))
