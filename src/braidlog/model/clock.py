"""Time as an argument.

Knows: how to ask for it. Refuses to know: anything else; this module is the only place that reads the wall clock.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time stamps records; monotonic time measures waits. Mixing them breaks on every clock step."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def now_ns(self) -> int:
        return time.time_ns()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
