"""A clock that moves only when the test advances it.

Wall time and monotonic time move together and never backwards, unless the test steps the wall clock.
"""


class ManualClock:
    """A `Clock` that moves only by `advance` and `step`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        return self._start_ms + self._elapsed_ms

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000

    def advance(self, ms: int) -> None:
        if ms < 0:
            raise ValueError(f"time does not run backwards: {ms} ms")
        self._elapsed_ms += ms

    def step(self, ms: int) -> None:
        """Set the wall clock forward or back, as an administrator or a time server does."""
        self._start_ms += ms
