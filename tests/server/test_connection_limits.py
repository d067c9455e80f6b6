"""How fast one address may open connections."""

from braidlog.broker.quotas import CONNECTIONS, DEFAULT_ADDRESS, Quotas
from braidlog.cluster.events import QuotaEntity
from braidlog.server.connection_limits import BURST_SECONDS, ConnectionLimits


def test_one_address_opens_so_many_a_second_and_others_are_not_in_its_way() -> None:
    limits = ConnectionLimits(quotas=Quotas(address_connections_per_second=2))
    burst = int(2 * BURST_SECONDS)
    assert [limits.enter("a", 0.0) for _ in range(burst + 3)] == [True] * burst + [False] * 3
    assert limits.enter("b", 0.0)
    assert not limits.enter("a", 0.4)
    assert limits.enter("a", 0.5), "who was turned away has taken nothing from who comes later"
    assert not limits.enter("a", 0.6)
    assert len(limits) == burst + 7, "all of them have to leave, also who was turned away"


def test_without_a_rate_nobody_is_counted() -> None:
    limits = ConnectionLimits()
    assert all(limits.enter("a", 0.0) for _ in range(1000))


def test_a_rate_set_at_run_time_takes_the_place_of_the_configurations() -> None:
    quotas = Quotas(address_connections_per_second=1)
    limits = ConnectionLimits(quotas=quotas)
    assert [limits.enter("a", 0.0) for _ in range(11)] == [True] * 10 + [False]
    quotas.administer({DEFAULT_ADDRESS: {CONNECTIONS: 2.0}, QuotaEntity(address="b"): {CONNECTIONS: 3.0}})
    assert [limits.enter("a", 0.0) for _ in range(21)] == [True] * 20 + [False]
    assert [limits.enter("b", 0.0) for _ in range(31)] == [True] * 30 + [False]
    assert quotas.is_unlimited, "bytes and time are not counted for it"
    quotas.administer({})
    assert [limits.enter("b", 0.0) for _ in range(11)] == [True] * 10 + [False]
