"""Histograms of powers of two."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.model.clock import BUCKETS, DurationHistogram, added, upper_bounds


@given(st.lists(st.floats(0, 100), max_size=50))
def test_every_time_is_counted_below_its_bound_and_no_lower(times: list[float]) -> None:
    seconds = DurationHistogram()
    for time in times:
        seconds.note(time)
    assert sum(seconds.counts) == len(times)
    assert seconds.total == pytest.approx(sum(times))  # which from Python 3.12 on is more exact than adding one by one
    for bound, below in zip(upper_bounds(), accumulate(seconds.counts), strict=False):
        assert below == sum(int(time * 1_000_000) < round(bound * 1_000_000) for time in times)


def test_what_is_too_long_for_any_bound_is_in_the_last_bucket() -> None:
    seconds = DurationHistogram()
    seconds.note(1e9)
    assert seconds.counts[-1] == 1
    assert len(upper_bounds()) == BUCKETS - 1


def test_two_are_added() -> None:
    one, other = DurationHistogram(), DurationHistogram()
    one.note(0.001)
    other.note(0.001)
    other.note(2)
    both = added([one, other])
    assert sum(both.counts) == 3
    assert both.total == 2.002
    assert sum(one.counts) == 1
