import pytest

from braidlog.model.clock import Clock
from braidlog.testing.clock import ManualClock


def test_time_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(now_ms=5_000)
    as_clock: Clock = clock
    assert (as_clock.now_ms(), as_clock.monotonic()) == (5_000, 0.0)
    clock.advance(250)
    assert (as_clock.now_ms(), as_clock.monotonic()) == (5_250, 0.25)


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        ManualClock().advance(-1)
