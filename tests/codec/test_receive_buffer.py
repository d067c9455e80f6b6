"""Frames come out as they went in, however the stream was cut and whoever looked meanwhile; large ones are joined once."""

import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.codec import receive_buffer as module
from braidlog.codec.receive_buffer import ReceiveBuffer

LOOKS = {
    "nothing": lambda _: None,
    "length": len,
    "u32": lambda inbox: inbox.peek_u32(),
    "peek": lambda inbox: inbox.peek(9, at=3),
    "window": lambda inbox: inbox.window(),
    "as_bytes": lambda inbox: inbox.as_bytes(),
    "line": lambda inbox: inbox.take_line(0) if not len(inbox) else None,
}
"""What whoever reads headers does between two reads."""


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4) + payload


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """Payloads, and the reads that bring them."""
    sizes = draw(st.lists(st.integers(0, 60), max_size=8))
    payloads = [bytes((number * 31 + at) % 256 for at in range(size)) for number, size in enumerate(sizes)]
    stream = b"".join(map(framed, payloads))
    cuts = sorted({0, len(stream), *draw(st.lists(st.integers(0, len(stream)), max_size=30))})
    return payloads, [stream[start:end] for start, end in pairwise(cuts)]


@given(streams(), st.lists(st.sampled_from(sorted(LOOKS)), min_size=1, max_size=8), st.booleans())
def test_frames_come_out_as_they_went_in(
    given_stream: tuple[list[bytes], list[bytes]],
    looks: list[str],
    takes_late: bool,
) -> None:
    """With limits so small that every way is gone: a frame of 20 bytes is large, a read of 7 is kept as it came."""
    payloads, reads = given_stream
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGE_BYTES", 20)
        patch.setattr(module, "_PART_BYTES_MIN", 7)
        patch.setattr(module, "_COMPACT_BYTES", 16)
        inbox, taken, fed = ReceiveBuffer(), [], 0
        for number, read in enumerate(reads):
            inbox.feed(read if number % 2 else memoryview(read))
            fed += len(read)
            LOOKS[looks[number % len(looks)]](inbox)  # type: ignore[no-untyped-call]
            while not (takes_late and number % 4) and (frame := inbox.take_frame(1000)) is not None:
                taken.append(frame)  # late: there is no room for more, and reads come before anything is taken
            assert len(inbox) == fed - sum(4 + len(each) for each in taken)
        while (frame := inbox.take_frame(1000)) is not None:
            taken.append(frame)
    assert taken == payloads
    assert all(type(each) is bytes for each in taken)
    assert len(inbox) == 0


@pytest.mark.parametrize("step", [100, 20_000, 65_536, 256_000, 1_500_000])
def test_a_large_frame_between_small_ones(step: int) -> None:
    payloads = [b"a", bytes(range(256)) * 4000, b"b" * 70_000, b"", b"c" * 65_536, b"d"]
    stream = b"".join(map(framed, payloads))
    inbox, taken = ReceiveBuffer(), []
    for at in range(0, len(stream), step):
        inbox.feed(stream[at : at + step])
        while (frame := inbox.take_frame(2_000_000)) is not None:
            taken.append(frame)
    assert taken == payloads


def held_memory(inbox: Any) -> int:
    return sum(map(sys.getsizeof, (inbox._data, inbox._behind, *inbox._behind)))


def test_a_frame_that_comes_byte_by_byte_costs_its_bytes() -> None:
    """The list of what came is not a way to make a few bytes cost a lot."""
    inbox, size = ReceiveBuffer(), 200_000
    inbox.feed((1_000_000).to_bytes(4))
    for at in range(size):
        inbox.feed(b"x")
        if at % 50_000 == 0:
            assert inbox.take_frame(2_000_000) is None
    assert len(inbox) == size + 4
    assert held_memory(inbox) < 1.5 * size


def test_reads_of_a_large_frame_are_kept_as_they_came() -> None:
    inbox, read = ReceiveBuffer(), bytes(256_000)
    inbox.feed(framed(bytes(1_000_000))[:256_000])
    assert inbox.take_frame(2_000_000) is None
    inbox.feed(read)
    assert inbox._behind[-1] is read


def test_reads_that_come_before_anything_is_taken() -> None:
    payloads = [bytes([number]) * (90_000 + number) for number in range(5)]
    stream = b"".join(map(framed, payloads))
    inbox = ReceiveBuffer()
    inbox.feed(stream[:50_000])
    assert inbox.take_frame(100_000) is None
    for at in range(50_000, len(stream), 20_000):
        inbox.feed(stream[at : at + 20_000])
    for left, payload in enumerate(payloads, 1):
        assert inbox.take_frame(100_000) == payload
        assert len(inbox) == sum(4 + len(each) for each in payloads[left:])
    assert inbox.take_frame(100_000) is None
