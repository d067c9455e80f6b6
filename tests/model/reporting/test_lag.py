"""Lag: what is between a commit and the end."""

import pytest

from braidlog.model.reporting.node_report import lag_of


@pytest.mark.parametrize(
    ("committed", "start", "end", "lag"),
    [(3, 0, 5, 2), (5, 0, 5, 0), (None, 0, 5, 5), (None, 2, 5, 3), (1, 2, 5, 3), (9, 0, 5, 0), (0, 0, 0, 0)],
)
def test_lag(committed: int | None, start: int, end: int, lag: int) -> None:
    assert lag_of(committed, start, end) == lag
