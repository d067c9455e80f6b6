"""How many connections there may be, who gives way to a new one, and how fast one address may open them."""

from braidlog.cluster.metadata.events import QuotaEntity
from braidlog.security.quotas import CONNECTIONS, DEFAULT_ADDRESS, Quotas
from braidlog.server.net.connection_limits import AT_ONCE_FRACTION, BURST_SECONDS, LOOK_SECONDS, ConnectionLimits


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


class Crowd:
    """Connections of a listener: host and silence of each."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.members: list[Crowded] = []
        limits.crowds.append(self.members)

    def enter(self, host: str, silent_since: float | None, now: float = 0.0) -> "Crowded | None":
        member = Crowded(self, host, silent_since)
        self.members.append(member)
        if self.limits.enter(host, now):
            return member
        member.give_way()
        return None


class Crowded:
    looks = 0

    def __init__(self, crowd: Crowd, host: str, silent_since: float | None) -> None:
        self.host = host
        self._crowd, self._silent_since = crowd, silent_since
        self.is_gone = False

    @property
    def silent_since(self) -> float | None:
        Crowded.looks += 1
        return self._silent_since

    def give_way(self) -> None:
        self.is_gone = True
        self._crowd.members.remove(self)
        self._crowd.limits.leave(self.host)


def test_at_the_limit_the_connection_that_waits_for_longest_gives_way() -> None:
    crowd = Crowd(ConnectionLimits(3, 10, idle_seconds_min=2.0))
    busy, late, first = crowd.enter("a", None), crowd.enter("a", 5.0), crowd.enter("b", 4.0)
    assert crowd.enter("c", None, now=5.9) is None, "nobody is silent for long enough"
    newcomer = crowd.enter("c", None, now=5.9 + LOOK_SECONDS)
    assert newcomer is not None
    assert [each.is_gone for each in (busy, late, first) if each] == [False, False, True]
    assert len(crowd.limits) == 3


def test_an_address_at_its_limit_pushes_out_its_own_connections() -> None:
    crowd = Crowd(ConnectionLimits(10, 2))
    other, own = crowd.enter("b", 0.0), crowd.enter("a", 50.0)
    crowd.enter("a", None)
    assert crowd.enter("a", None, now=100.0)
    assert [each.is_gone for each in (other, own) if each] == [False, True]


def test_a_crowd_at_the_limit_is_looked_through_seldom() -> None:
    count = 10 * AT_ONCE_FRACTION
    idle, busy = Crowd(ConnectionLimits(count, count)), Crowd(ConnectionLimits(count, count))
    for number in range(count):
        idle.enter("a", number / count)
        busy.enter("a", None)
    for crowd, let_in in ((idle, 100), (busy, 0)):
        Crowded.looks = 0
        assert sum(crowd.enter("b", None, now=10.0) is not None for _ in range(100)) == let_in
        assert Crowded.looks <= 12 * count
