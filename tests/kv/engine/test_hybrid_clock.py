"""The hybrid logical clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.kv.engine.hybrid_clock import COUNTER_MAX, DRIFT_MS_MAX, HybridClock, Stamp, unpack_stamp
from braidlog.model.errors import BrokerError

NODE = bytes.fromhex("a1b2c3d4000000000000000000000001")
OTHER = bytes.fromhex("a1b2c3d4000000000000000000000002")


def test_the_bytes_of_the_document() -> None:
    # Source: the Mayfly document, "Causality": wall clock 8 bytes (2026-03-01 12:34:56),
    # counter 4 bytes (7), node UUID 16 bytes; 28 in all.
    stamp = Stamp(1772368496000, 7, NODE)
    assert stamp.pack() == bytes.fromhex("0000019ca9650580 00000007 a1b2c3d4000000000000000000000001")
    assert unpack_stamp(stamp.pack()) == stamp
    assert len(stamp.pack()) == 28


def test_wall_then_counter_then_node() -> None:
    stamps = [Stamp(1, 9, OTHER), Stamp(2, 0, OTHER), Stamp(2, 1, NODE), Stamp(2, 1, OTHER)]
    shuffled = [stamps[place] for place in (2, 0, 3, 1)]
    assert sorted(shuffled) == stamps
    assert sorted(shuffled, key=Stamp.pack) == stamps, "packed, they sort alike"


def test_a_clock_set_back_goes_on_counting() -> None:
    clock = HybridClock(NODE)
    stamps = []
    for now_ms in (100, 100, 50, 101, 3):
        clock.tick(now_ms)
        stamps.append(clock.stamp[:2])
    assert stamps == [(100, 0), (100, 1), (100, 2), (101, 0), (101, 1)]


def test_a_counter_that_is_full_moves_the_wall() -> None:
    clock = HybridClock(NODE, 100, COUNTER_MAX)
    clock.tick(100)
    assert clock.stamp[:2] == (101, 0)


def test_a_peer_far_ahead_is_refused() -> None:
    clock = HybridClock(NODE, 100, 0)
    with pytest.raises(BrokerError):
        clock.observe(Stamp(1_000 + DRIFT_MS_MAX + 1, 0, OTHER), 1_000)
    assert clock.stamp == Stamp(100, 0, NODE), "and changes nothing"


times = st.integers(0, 50)


@given(st.lists(times))
def test_a_log_of_walls_gives_back_the_stamps(nows: list[int]) -> None:
    clock, again = HybridClock(NODE), HybridClock(NODE)
    for now_ms in nows:
        wall_ms = clock.tick(now_ms)
        again.tick(wall_ms)
        assert again.stamp == clock.stamp


@given(st.lists(st.tuples(times, st.none() | st.tuples(times, st.integers(0, 3)))))
def test_stamps_only_grow_and_exceed_what_was_seen(steps: list[tuple[int, tuple[int, int] | None]]) -> None:
    clock = HybridClock(NODE)
    last = clock.stamp
    for now_ms, seen in steps:
        if seen is None:
            clock.tick(now_ms)
        else:
            other = Stamp(*seen, OTHER)
            assert clock.observe(other, now_ms)[:2] > other[:2]
        assert clock.stamp > last
        last = clock.stamp
