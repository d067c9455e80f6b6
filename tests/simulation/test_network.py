"""A network that delays, loses, doubles, cuts and resets."""

from tests.simulation.network import Conditions, Network
from tests.simulation.virtual_time import US_PER_SECOND, VirtualTime, stream

COUNT = 400


def sent(conditions: Conditions) -> list[object]:
    time, arrived = VirtualTime(), list[object]()
    network = Network(time, stream(1, "network"), conditions, lambda _, __, message: arrived.append(message))
    for number in range(COUNT):
        network.send(1, 2, number)
        time.run(time.now_us + 1_000)
    time.run(time.now_us + US_PER_SECOND)
    return arrived


def test_a_quiet_network_loses_nothing() -> None:
    assert sent(Conditions(delay_us=100)) == list(range(COUNT))


def test_messages_are_lost_doubled_and_overtake_each_other() -> None:
    assert 0 < len(sent(Conditions(loss_rate=0.1))) < COUNT
    doubled = sent(Conditions(twice_rate=0.1))
    assert len(doubled) > COUNT
    assert set(doubled) == set(range(COUNT))
    late = [number for number in sent(Conditions(slow_rate=0.1)) if isinstance(number, int)]
    assert len(late) == COUNT
    assert late != sorted(late)


def test_a_cut_is_one_way_and_a_reset_loses_what_is_under_way() -> None:
    time, arrived = VirtualTime(), list[tuple[int, int, object]]()
    network = Network(time, stream(1, "n"), Conditions(), lambda to, by, message: arrived.append((to, by, message)))
    network.cut(1, 2)
    network.send(1, 2, "cut off")
    network.send(2, 1, "through")
    time.run(US_PER_SECOND)
    assert arrived == [(1, 2, "through")]
    network.heal(1, 2)
    network.send(1, 2, "under way")
    network.reset(1, 2)
    network.send(1, 2, "on the next connection")
    time.run(2 * US_PER_SECOND)
    assert arrived[1:] == [(2, 1, "on the next connection")]
    network.cut(1, 2)
    network.cut(3, 1)
    network.cut(2, 3)
    network.heal_around(1)
    assert [network.is_cut(1, 2), network.is_cut(3, 1), network.is_cut(2, 3)] == [False, False, True]
    network.heal_all()
    assert not network.is_cut(2, 3)
