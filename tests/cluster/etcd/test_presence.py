"""A node's number: taken, kept through outages, lost to a later start of the same folder, refused to another folder."""

import pytest
from tests.model.manual_world import Job, ManualRuntime
from tests.simulation.etcd import Fate, ModelClient, ModelEtcd

from braidlog.cluster.etcd.entries import Keys
from braidlog.cluster.etcd.presence import LEASE_FACTOR_MAX, LEASE_SECONDS, Life, Presence
from braidlog.model.errors import BrokerError
from braidlog.testing.clock import ManualClock

KEYS = Keys("p")


class Etcd:
    def __init__(self) -> None:
        self.runtime = ManualRuntime(ManualClock())
        self.model = ModelEtcd(self.runtime)

    def node(self, folder: str, start: str) -> tuple[Presence, ModelClient]:
        client = ModelClient(self.model)
        return Presence(client, self.runtime, KEYS, node="1", life=Life(folder, start)), client

    def run(self, coroutine: object) -> None:
        job: Job[object] = self.runtime.spawn(coroutine)  # type: ignore[arg-type]
        self.runtime.advance(100)
        job.result()

    def value(self) -> bytes | None:
        found = self.model.read(KEYS.alive, 0, 0, keys_only=False).items
        return found[0].value if found else None


def test_a_number_is_there_while_its_node_is() -> None:
    etcd = Etcd()
    presence, _ = etcd.node("f", "1")
    etcd.run(presence.register())
    job = etcd.runtime.spawn(presence.keep_registered())
    etcd.runtime.advance(20_000)
    assert etcd.value() == b'{"folder":"f","start":"1"}'
    etcd.run(presence.leave())
    assert etcd.value() is None
    etcd.runtime.advance(5_000)
    job.result()
    assert etcd.value() is None


def test_a_node_that_died_leaves_its_number_free_after_its_lease() -> None:
    etcd = Etcd()
    dead, _ = etcd.node("f", "1")
    etcd.run(dead.register())
    other, _ = etcd.node("g", "1")
    with pytest.raises(BrokerError, match=r"node '1' already runs with another data folder \(f\)"):
        etcd.run(other.register())
    etcd.runtime.advance(LEASE_SECONDS * 1000)
    etcd.run(other.register())


def test_a_later_start_of_the_folder_has_the_number_and_the_first_stops() -> None:
    etcd = Etcd()
    first, _ = etcd.node("f", "1")
    etcd.run(first.register())
    job = etcd.runtime.spawn(first.keep_registered())
    second, _ = etcd.node("f", "2")
    etcd.run(second.register())
    etcd.runtime.advance(2_000)
    with pytest.raises(BrokerError, match="was started by another process"):
        job.result()
    assert etcd.value() == b'{"folder":"f","start":"2"}'


@pytest.mark.parametrize("fate", [Fate.NOT_ARRIVED, Fate.NOT_ANSWERED])
def test_an_outage_proves_nothing_and_afterwards_the_number_is_there_again(fate: Fate) -> None:
    etcd = Etcd()
    presence, client = etcd.node("f", "1")
    etcd.run(presence.register())
    job = etcd.runtime.spawn(presence.keep_registered())
    client.fate = lambda _: fate
    etcd.runtime.advance(30_000)
    assert not job.is_done
    client.fate = lambda _: Fate.DONE
    etcd.runtime.advance(3_000)
    assert etcd.value() == b'{"folder":"f","start":"1"}'
    assert not job.is_done
    job.cancel()


def test_a_lease_is_longer_after_renewals_that_failed() -> None:
    """A starved etcd answers some calls: the next ones may fail for as long."""
    etcd = Etcd()
    presence, client = etcd.node("f", "1")
    etcd.run(presence.register())
    etcd.runtime.spawn(presence.keep_registered())
    client.fate = lambda call: Fate.NOT_ARRIVED
    etcd.runtime.advance(6_000)
    client.fate = lambda call: Fate.DONE
    etcd.runtime.advance(2_000)
    client.fate = lambda call: Fate.NOT_ARRIVED
    etcd.runtime.advance(6_000)
    assert etcd.value() is not None
    client.fate = lambda call: Fate.DONE
    etcd.runtime.advance(int(LEASE_FACTOR_MAX * LEASE_SECONDS * 2_000))
    assert {each.seconds for each in etcd.model._leases.values()} == {LEASE_SECONDS}


def test_a_node_that_renews_late_has_a_longer_lease_until_it_is_on_time_again() -> None:
    etcd = Etcd()
    presence, client = etcd.node("f", "1")
    etcd.run(presence.register())
    etcd.runtime.spawn(presence.keep_registered())
    client._seconds = lambda: 1.0  # there and back: two seconds for a call, and two calls for a renewal
    etcd.runtime.advance(30_000)
    assert etcd.value() is not None
    lease = max(each.seconds for each in etcd.model._leases.values())
    assert LEASE_SECONDS < lease <= LEASE_FACTOR_MAX * LEASE_SECONDS
    client._seconds = lambda: 0.001
    etcd.runtime.advance(int(LEASE_FACTOR_MAX * LEASE_SECONDS * 2_000))
    assert {each.seconds for each in etcd.model._leases.values()} == {LEASE_SECONDS}
    assert etcd.value() is not None
