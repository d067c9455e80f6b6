"""The clock as an argument. Only this module reads the wall clock."""

import time
from collections.abc import Iterable
from typing import Final, Protocol


class Clock(Protocol):
    """Wall time stamps records; monotonic time measures waits. Mixing them breaks whenever the clock steps."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...


class SteadyClock:
    """Wall time at creation plus elapsed monotonic time: time-outs and TTLs do not jump with the machine's clock."""

    def __init__(self, clock: Clock, *, not_before_ms: int = 0) -> None:
        self._monotonic = clock.monotonic
        self._base_ms = max(clock.now_ms(), not_before_ms) - round(clock.monotonic() * 1000)

    def now_ms(self) -> int:
        return self._base_ms + round(self._monotonic() * 1000)


class SystemClock:
    """The machine's clocks."""

    def now_ns(self) -> int:
        return time.time_ns()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


BUCKETS: Final = 26
"""The last bound is 2**24 µs, about 17 seconds."""
_MICROSECONDS: Final = 1_000_000
_LAST: Final = BUCKETS - 1


class DurationHistogram:
    """A histogram of durations."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total = 0.0

    def note(self, seconds: float) -> None:
        index = int(seconds * _MICROSECONDS).bit_length()
        self.counts[min(_LAST, index)] += 1
        self.total += seconds


def added(several: Iterable[DurationHistogram]) -> DurationHistogram:
    """All of them as one."""
    found = DurationHistogram()
    for each in several:
        found.counts = [a + b for a, b in zip(found.counts, each.counts, strict=True)]
        found.total += each.total
    return found


def upper_bounds() -> list[float]:
    """In seconds, of every bucket but the last, which has none."""
    return [2.0**index / _MICROSECONDS for index in range(_LAST)]
