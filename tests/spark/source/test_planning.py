"""Caps and cuts, without Spark: what always holds, on random numbers too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.spark.source.planning import Cuts, Range, backlog_rows, capped, split

P0, P1, P2 = ("t", 0), ("t", 1), ("t", 2)


def one(_: object) -> float:
    return 1.0


def test_all_is_taken_where_the_cap_allows_it() -> None:
    assert capped({P0: 0, P1: 5}, {P0: 10, P1: 5}, 10, one) == {P0: 10, P1: 5}


def test_a_cap_is_shared_out_by_backlog() -> None:
    assert capped({P0: 0, P1: 0, P2: 7}, {P0: 900, P1: 100, P2: 7}, 100, one) == {P0: 90, P1: 10, P2: 7}


def test_a_small_backlog_beside_a_large_one_gets_its_turn() -> None:
    start, end = {P0: 0, P1: 0}, {P0: 100, P1: 1}
    seen = 0
    while start != end:
        after = capped(start, end, 10, one)
        assert after != start
        assert backlog_rows(start, after) <= 10
        start, seen = after, seen + 1
    assert seen <= 12


def test_bytes_are_weighed() -> None:
    found = capped({P0: 0, P1: 0}, {P0: 100, P1: 100}, 1000, {P0: 90.0, P1: 10.0}.__getitem__)
    assert found[P0] * 90 + found[P1] * 10 <= 1000
    assert found[P0] == found[P1]  # in proportion: both are as far behind


def test_one_large_record_does_not_stop_a_query() -> None:
    assert capped({P0: 4}, {P0: 6}, 10, lambda _: 1e6) == {P0: 5}


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.floats(0.5, 500)), min_size=1, max_size=8),
    st.integers(1, 5000),
)
def test_a_cap_holds_and_something_is_always_taken(places: list[tuple[int, int, float]], limit: int) -> None:
    start = {("t", at): first for at, (first, _, _) in enumerate(places)}
    end = {("t", at): first + rows for at, (first, rows, _) in enumerate(places)}
    weights = {("t", at): weight for at, (_, _, weight) in enumerate(places)}
    found = capped(start, end, limit, weights.__getitem__)
    assert set(found) == set(end)
    assert all(start[place] <= found[place] <= end[place] for place in end)
    taken = backlog_rows(start, found)
    assert taken > 0 or backlog_rows(start, end) == 0
    weight = sum((found[place] - start[place]) * weights[place] for place in end)
    assert weight <= limit + 1e-6 or taken == 1


def test_cuts_by_bytes_rows_and_number() -> None:
    ranges = [Range("t", 0, 0, 1000, 100.0), Range("t", 1, 50, 51, 100.0), Range("t", 2, 9, 9)]
    assert split(ranges, Cuts(10**9)) == ranges[:2]
    by_bytes = split(ranges, Cuts(25_000))
    assert [(each.partition, each.start, each.end) for each in by_bytes] == [
        (0, 0, 250),
        (0, 250, 500),
        (0, 500, 750),
        (0, 750, 1000),
        (1, 50, 51),
    ]
    assert len(split(ranges, Cuts(10**9, rows_max=300))) == 5
    assert len(split(ranges, Cuts(10**9, partitions_min=8))) == 9
    assert split([], Cuts(1, partitions_min=8)) == []


@pytest.mark.parametrize("partitions_min", [None, 1, 7, 100])
@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5000), st.floats(0, 1e4)), max_size=6),
    st.integers(1, 10**6),
    st.one_of(st.none(), st.integers(1, 1000)),
)
def test_pieces_are_the_whole(
    partitions_min: int | None, places: list[tuple[int, int, float]], target: int, rows_max: int | None
) -> None:
    ranges = [Range("t", at, first, first + rows, each) for at, (first, rows, each) in enumerate(places)]
    pieces = split(ranges, Cuts(target, partitions_min, rows_max))
    assert all(piece.rows > 0 for piece in pieces)
    for whole in ranges:
        mine = [piece for piece in pieces if piece.place == whole.place]
        offsets = [offset for piece in mine for offset in (piece.start, piece.end)]
        assert offsets == sorted(offsets)
        assert sum(piece.rows for piece in mine) == whole.rows
        assert rows_max is None or all(piece.rows <= rows_max for piece in mine)


def test_no_more_tasks_than_run_at_a_time_unless_they_would_be_too_large() -> None:
    two = [Range("t", 0, 0, 300, 1.0), Range("t", 1, 0, 290, 1.0)]
    cuts = Cuts(256, bytes_max=1024)
    assert len(split(two, cuts)) == 4, "nobody told how many run at a time"
    for at_a_time, tasks in ((1, 2), (2, 2), (3, 4), (8, 4), (1000, 4)):
        told = Cuts(256, at_a_time=at_a_time, bytes_max=1024)
        assert len(split(two, told)) == tasks, at_a_time
    assert len(split([Range("t", 0, 0, 10_000, 1.0)], Cuts(256, at_a_time=2, bytes_max=1024))) == 10
