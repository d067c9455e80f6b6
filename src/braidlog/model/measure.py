"""Histograms of durations in few integers.

Invariant: recording a duration is two additions and an index; nothing is allocated. Each thread needs its own
histogram; `added` merges them.

    bucket 0: < 1 µs    bucket n: < 2**n µs    the last one: everything longer
"""

from collections.abc import Iterable
from typing import Final

BUCKETS: Final = 26
"""The last bound is 2**24 µs, about 17 seconds."""
_MICROSECONDS: Final = 1_000_000
_LAST: Final = BUCKETS - 1


class Seconds:
    """A histogram of durations."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total = 0.0

    def note(self, seconds: float) -> None:
        index = int(seconds * _MICROSECONDS).bit_length()
        self.counts[min(_LAST, index)] += 1
        self.total += seconds


def added(several: Iterable[Seconds]) -> Seconds:
    """Return the sum of several histograms."""
    found = Seconds()
    for each in several:
        found.counts = [a + b for a, b in zip(found.counts, each.counts, strict=True)]
        found.total += each.total
    return found


def upper_bounds() -> list[float]:
    """Return the upper bound in seconds of every bucket except the last, which has none."""
    return [2.0**index / _MICROSECONDS for index in range(_LAST)]
