"""Token buckets: the rate is kept over any time, a pause is exactly as long as it must be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refusals import refused_with

from braidlog.cluster.metadata.events import QuotaEntity
from braidlog.model.errors import BrokerError, Reason
from braidlog.security.quotas import BUCKETS_MAX, PAUSE_SECONDS_MAX, Direction, Quotas, Rates, TokenBucket


def test_unlimited_by_default() -> None:
    quotas = Quotas()
    assert quotas.is_unlimited
    assert quotas.charge("a", Direction.APPEND, 10**12, 0.0) == 0.0
    assert not Quotas(principals={"a": Rates(1)}).is_unlimited


def test_a_burst_is_free_and_what_is_over_is_waited_for() -> None:
    bucket = TokenBucket(1000, now=0.0)
    assert bucket.consume(1000, 0.0) == 0.0
    assert bucket.consume(500, 0.0) == 0.5
    assert bucket.consume(0, 0.5) == 0.0
    assert bucket.consume(100, 0.5) == pytest.approx(0.1)


def test_idle_time_is_not_saved_up() -> None:
    bucket = TokenBucket(1000, now=0.0)
    bucket.consume(1000, 0.0)
    assert bucket.consume(2000, 1_000_000.0) == 1.0


def test_a_clock_that_stands_or_steps_back_gives_nothing() -> None:
    bucket = TokenBucket(1000, now=100.0)
    bucket.consume(1000, 100.0)
    assert bucket.consume(100, 50.0) == pytest.approx(0.1)
    assert bucket.consume(0, 100.0) == pytest.approx(0.1)


def test_one_huge_request_does_not_close_the_door_for_hours() -> None:
    bucket = TokenBucket(10, now=0.0)
    assert bucket.consume(10**9, 0.0) == PAUSE_SECONDS_MAX


@given(st.integers(1, 10**6), st.lists(st.tuples(st.floats(0, 3), st.integers(0, 10**6)), max_size=50))
def test_who_pauses_as_told_keeps_the_rate(rate: int, requests: list[tuple[float, int]]) -> None:
    bucket = TokenBucket(rate, now=0.0)
    now, moved, largest = 0.0, 0, 0
    for idle, wish in requests:
        count = min(wish, rate * 5)
        now += idle
        moved, largest = moved + count, max(largest, count)
        now += bucket.consume(count, now)
        assert moved <= rate * (now + 1.0) + largest + 1e-3 * rate


def test_principals_and_directions_have_their_own() -> None:
    quotas = Quotas(Rates(append_bytes_per_second=10), {"bulk": Rates(1000, 2000)})
    assert quotas.charge("a", Direction.APPEND, 20, 0.0) == 1.0
    assert quotas.charge("b", Direction.APPEND, 10, 0.0) == 0.0
    assert quotas.charge("a", Direction.FETCH, 10**9, 0.0) == 0.0
    assert quotas.charge("bulk", Direction.APPEND, 1500, 0.0) == 0.5
    assert quotas.charge("bulk", Direction.FETCH, 4000, 0.0) == 1.0


def test_the_buckets_are_bounded() -> None:
    quotas = Quotas(Rates(append_bytes_per_second=10))
    for number in range(BUCKETS_MAX + 10):
        quotas.charge(str(number), Direction.APPEND, 1, 0.0)
    assert len(quotas._buckets) == BUCKETS_MAX


@pytest.mark.parametrize("rate", [0, -2])
def test_bad_rates(rate: int) -> None:
    with refused_with(Reason.INVALID_SETTING):
        Rates(fetch_bytes_per_second=rate)


def test_shares_of_time_are_of_principals_and_of_addresses() -> None:
    quotas = Quotas(Rates(request_percent=10), {"free": Rates()}, address_request_percent=50)
    assert quotas.counts_time
    assert not quotas.is_unlimited
    assert quotas.take_time("a", "1.1.1.1", 0.1, now=0.0) == 0, "a burst is a second's worth"
    assert quotas.take_time("a", "2.2.2.2", 0.05, now=0.0) == pytest.approx(0.5), (
        "all connections of a principal together"
    )
    assert quotas.take_time("free", "1.1.1.1", 0.4, now=0.0) == 0
    assert quotas.take_time("free", "1.1.1.1", 0.25, now=0.0) == pytest.approx(0.5), (
        "all principals of an address together"
    )
    assert quotas.take_time("a", "3.3.3.3", 0.01, now=10.0) == 0
    assert not Quotas(Rates(append_bytes_per_second=1)).counts_time


@pytest.mark.parametrize("percent", [0, 0.05, 101, -2])
def test_a_share_is_part_of_the_whole(percent: float) -> None:
    with pytest.raises(BrokerError, match="share of the loop's time"):
        Rates(request_percent=percent)


LEVELS = [
    QuotaEntity("ann", "app"),
    QuotaEntity("ann", ""),
    QuotaEntity("ann"),
    QuotaEntity("", "app"),
    QuotaEntity("", ""),
    QuotaEntity(""),
    QuotaEntity(client_id="app"),
    QuotaEntity(client_id=""),
]
"""Kafka's order of precedence."""
SHARED = {"ann app": (0, 1, 3, 4), "ann": (2, 5), "app": (6, 7)}
"""Who keeps the rate of a level together."""


@pytest.mark.parametrize("level", range(8))
def test_the_most_special_entity_decides_in_kafkas_order(level: int) -> None:
    quotas = Quotas()
    rates = {entity: {"append_bytes_per_second": 10.0 * (number + 1)} for number, entity in enumerate(LEVELS)}
    quotas.administer(dict(reversed(list(rates.items())[level:])))
    rate = 10 * (level + 1)
    assert quotas.charge("ann", Direction.APPEND, 2 * rate, 0.0, "app") == 1.0
    shared = next(who for who, levels in SHARED.items() if level in levels)
    same_user = quotas.charge("ann", Direction.APPEND, 0, 0.0, "other")
    same_program = quotas.charge("bob", Direction.APPEND, 0, 0.0, "app")
    assert (same_user == 1.0, same_program == 1.0) == (shared == "ann", shared == "app")


def test_each_rate_is_decided_by_itself() -> None:
    quotas = Quotas()
    quotas.administer(
        {
            QuotaEntity("ann", "app"): {"request_percent": 50.0},
            QuotaEntity("ann"): {"append_bytes_per_second": 10.0},
            QuotaEntity(client_id=""): {"fetch_bytes_per_second": 5.0, "append_bytes_per_second": 1.0},
        }
    )
    assert quotas.charge("ann", Direction.APPEND, 20, 0.0, "app") == 1.0
    assert quotas.charge("ann", Direction.FETCH, 10, 0.0, "app") == 1.0
    assert quotas.take_time("ann", "1.1.1.1", 1.0, 0.0, "app") == 1.0
    assert quotas.charge("bob", Direction.APPEND, 2, 0.0) == 1.0, "who has no id is one of the others"


def test_the_configurations_rates_are_those_of_users() -> None:
    quotas = Quotas(principals={"ann": Rates(10), "free": Rates()})
    quotas.administer({QuotaEntity(client_id="app"): {"append_bytes_per_second": 1.0}})
    assert quotas.charge("ann", Direction.APPEND, 20, 0.0, "app") == 1.0
    assert quotas.charge("free", Direction.APPEND, 20, 0.0, "app") == 0.0
    assert quotas.charge("bob", Direction.APPEND, 2, 0.0, "app") == 1.0
    quotas.administer({QuotaEntity("free", "app"): {"append_bytes_per_second": 1.0}})
    assert quotas.charge("free", Direction.APPEND, 2, 0.0, "app") == 1.0


def test_ids_that_clients_choose_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidlog.security.quotas.CLIENTS_KEPT_MAX", 10)
    quotas = Quotas(Rates(append_bytes_per_second=10))
    for number in range(50):
        quotas.charge("ann", Direction.APPEND, 1, 0.0, str(number))
        assert len(quotas._found) <= 10
    assert quotas.charge("ann", Direction.APPEND, 0, 0.0) == 4.0
