"""Valid frames with damage, and the memory that bytes cost: what the tests of several dialects share."""

import random
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from braidlog.wire.contract import NEED_DATA


def damaged(chance: random.Random, frames: Sequence[bytes], runs: int, header_bytes: int) -> Iterator[bytearray]:
    """Frames with one to four changes behind their first bytes: a byte, some left out, some put in, the end of another."""
    for _ in range(runs):
        data = bytearray(chance.choice(frames))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(header_bytes, max(len(data), header_bytes + 1))
            match chance.randrange(4):
                case 0:
                    data[at : at + 1] = bytes((chance.randrange(256),))
                case 1:
                    data[at : at + chance.randint(1, 8)] = b""
                case 2:
                    data[at:at] = chance.randbytes(chance.randint(1, 8))
                case _:
                    other = chance.choice(frames)
                    data[at:] = other[chance.randrange(len(other)) :]
        yield data


def framed(payload: bytes) -> bytes:
    """Behind its length in four bytes."""
    return len(payload).to_bytes(4, "big") + payload


def framed_damage(chance: random.Random, frames: Sequence[bytes], runs: int) -> Iterator[bytes]:
    """`damaged` frames of `framed` payloads: most with a length that is right again."""
    for data in damaged(chance, frames, runs, header_bytes=4):
        yield framed(bytes(data[4:])) if chance.random() < 0.9 else bytes(data)


def each_byte_changed(data: bytes, values: Sequence[int], flips: Sequence[int], start: int = 0) -> Iterator[bytes]:
    """The bytes with each one from `start` on replaced by each value, and with each of these bits flipped."""
    for at in range(start, len(data)):
        for value in (*values, *(data[at] ^ flip for flip in flips)):
            yield data[:at] + bytes((value,)) + data[at + 1 :]


def check_each(seed: int, runs: Iterable[bytes], check: Callable[[int, bytes], object]) -> None:
    """Check every run; a failure names its seed, its number and its bytes."""
    for number, data in enumerate(runs):
        try:
            check(number, data)
        except BaseException as error:
            error.add_note(f"seed {seed}, run {number}: {data.hex(' ')}")
            raise


class Reading(NamedTuple):
    peak_bytes: int
    events: int
    last: Any


def measured(connection: Any, data: bytes) -> Reading:
    """The most memory that reading the data takes, while no event but the last is kept."""
    tracemalloc.start()
    try:
        connection.receive(data)
        events, last = 0, None
        while (event := connection.next_event()) is not NEED_DATA:
            events, last = events + 1, event
        return Reading(tracemalloc.get_traced_memory()[1], events, last)
    finally:
        tracemalloc.stop()
