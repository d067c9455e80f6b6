"""The clock as an argument. Only this module reads the wall clock."""

import time
from typing import Protocol


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
