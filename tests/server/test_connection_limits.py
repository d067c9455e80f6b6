"""How fast one address may open connections."""

from braidlog.server.connection_limits import BURST_SECONDS, ConnectionLimits


def test_one_address_opens_so_many_a_second_and_others_are_not_in_its_way() -> None:
    limits = ConnectionLimits(per_peer_per_second=2)
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
