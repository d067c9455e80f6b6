"""Time as an argument.

Knows: how to ask for it. Refuses to know: anything else; this module is the only place that reads the wall clock.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time stamps records; monotonic time measures waits. Mixing them breaks on every clock step."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...


class SteadyClock:
    """Wall time when it was made, and what has passed since: time-outs and time to live do not jump with the machine's clock."""

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
