"""Quotas set at run time: they hold at once and after a crash, before those of the configuration."""

import pytest
from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.cluster.metadata import image_checks
from braidlog.cluster.metadata.events import QuotaEntity
from braidlog.model.errors import BrokerError, Reason
from braidlog.security.quota_changes import QuotaChanges
from braidlog.security.quotas import CONNECTIONS, Direction, Quotas, Rates

APPEND, FETCH, PERCENT = "append_bytes_per_second", "fetch_bytes_per_second", "request_percent"
APP, LOCAL = QuotaEntity(client_id="app"), QuotaEntity(address="127.0.0.1")
ANN, BOB, BULK, OTHERS = (QuotaEntity(name) for name in ("ann", "bob", "bulk", ""))


def changes_of(node: Node, quotas: Quotas | None = None) -> tuple[QuotaChanges, Quotas]:
    quotas = quotas or Quotas(Rates(append_bytes_per_second=10), {"bulk": Rates(1000)})
    return QuotaChanges(node.services.metadata, quotas), quotas


def pause(quotas: Quotas, principal: str, count: float, direction: Direction = Direction.APPEND) -> float:
    return quotas.charge(principal, direction, count, 0.0)


def test_a_rate_holds_at_once_and_after_a_restart() -> None:
    node = Node()
    changes, quotas = changes_of(node)
    node.run(changes.change({ANN: {APPEND: 100.0, FETCH: 50.0}, OTHERS: {APPEND: 20.0}, BULK: {PERCENT: 10.0}}))
    for each in (quotas, changes_of(node.restarted())[1]):
        assert pause(each, "ann", 300) == 2.0
        assert pause(each, "ann", 100, Direction.FETCH) == 1.0
        assert pause(each, "bob", 40) == 1.0, "what all others may"
        assert pause(each, "bulk", 2000) == 1.0, "the configuration names it, which goes before what all others may"
        assert pause(each, "bulk", 0.2, Direction.TIME) == pytest.approx(1.0)


def test_a_rate_that_is_removed_is_the_configurations_again() -> None:
    node = Node()
    changes, quotas = changes_of(node)
    node.run(changes.change({ANN: {APPEND: 100.0, FETCH: 50.0}, OTHERS: {APPEND: 20.0}, BULK: {APPEND: 5.0}}))
    node.run(changes.change({ANN: {APPEND: None}, OTHERS: {APPEND: None}, BULK: {APPEND: None}}))
    for each in (quotas, changes_of(node.restarted())[1]):
        assert pause(each, "ann", 20) == 1.0
        assert pause(each, "ann", 100, Direction.FETCH) == 1.0
        assert pause(each, "bulk", 2000) == 1.0
    node.run(changes.change({ANN: {FETCH: None}}))
    assert node.services.metadata.image.quotas == {}


def test_a_changed_rate_forgives_debts_and_counts_anew() -> None:
    node = Node()
    changes, quotas = changes_of(node)
    assert pause(quotas, "ann", 1000) == 30.0
    node.run(changes.change({ANN: {APPEND: 1000.0}}))
    assert pause(quotas, "ann", 1000) == 0.0


def test_a_node_without_limits_gets_its_first_at_run_time() -> None:
    node = Node()
    changes, quotas = changes_of(node, Quotas())
    assert quotas.is_unlimited
    node.run(changes.change({ANN: {APPEND: 1.0}}))
    assert not quotas.is_unlimited
    assert not quotas.counts_time
    node.run(changes.change({ANN: {APPEND: None, PERCENT: 5.0}}))
    assert quotas.counts_time
    node.run(changes.change({ANN: {PERCENT: None}}))
    assert quotas.is_unlimited


def test_what_changes_nothing_is_not_written() -> None:
    node = Node()
    changes, _ = changes_of(node)
    node.run(changes.change({ANN: {APPEND: 1.0}}))
    seq = node.services.metadata.seq
    node.run(changes.change({ANN: {APPEND: 1.0}, BOB: {APPEND: None}}))
    assert node.services.metadata.seq == seq


def test_principals_with_quotas_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_checks, "QUOTAS_MAX", 2)
    node = Node()
    changes, _ = changes_of(node)
    node.run(changes.change({QuotaEntity("a"): {APPEND: 1.0}, APP: {APPEND: 1.0}}))
    with refused_with(Reason.QUOTA_EXCEEDED):
        node.run(changes.change({QuotaEntity("a"): {APPEND: 2.0}, ANN: {APPEND: 1.0}}))
    found = node.services.metadata.image.quota_rates()
    assert found == {QuotaEntity("a"): {APPEND: 1.0}, APP: {APPEND: 1.0}}, "all or none"
    with pytest.raises(BrokerError):
        node.run(changes.change({LOCAL: {CONNECTIONS: 1.0}}))
    node.run(changes.change({APP: {APPEND: 2.0}}))
    node.run(changes.change({QuotaEntity("a"): {APPEND: None}}))
    node.run(changes.change({ANN: {APPEND: 1.0}}))


@pytest.mark.parametrize("rate", [0.0, -1.0, 0.5, float("nan"), float("inf"), 2.0**63])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    node = Node()
    changes, _ = changes_of(node)
    with refused_with(Reason.INVALID_SETTING):
        node.run(changes.change({ANN: {APPEND: rate}}))


def test_rates_of_client_ids_and_addresses_hold_at_once_and_after_a_restart() -> None:
    node = Node()
    changes, quotas = changes_of(node, Quotas())
    both = QuotaEntity("ann", "app")
    node.run(changes.change({APP: {APPEND: 10.0}, both: {FETCH: 5.0}, LOCAL: {CONNECTIONS: 3.0}}))
    for each in (quotas, changes_of(node.restarted(), Quotas())[1]):
        assert each.charge("bob", Direction.APPEND, 20, 0.0, "app") == 1.0
        assert each.charge("ann", Direction.FETCH, 10, 0.0, "app") == 1.0
        assert each.charge("ann", Direction.FETCH, 10, 0.0, "other") == 0.0
        assert each.connections_per_second("127.0.0.1") == 3.0
    node.run(changes.change({APP: {APPEND: None}, both: {FETCH: None}, LOCAL: {CONNECTIONS: None}}))
    assert quotas.is_unlimited
    assert node.services.metadata.image.entity_quotas == {}


def test_a_change_of_something_else_forgives_nobody() -> None:
    node = Node()
    changes, quotas = changes_of(node, Quotas())
    node.run(changes.change({APP: {APPEND: 10.0}}))
    assert quotas.charge("ann", Direction.APPEND, 110, 0.0, "app") == 10.0
    node.create("orders")
    changes.apply()
    node.run(changes.change({BOB: {APPEND: 10.0}, APP: {FETCH: 10.0}}))
    assert quotas.charge("ann", Direction.APPEND, 0, 0.0, "app") == 10.0


@pytest.mark.parametrize(
    ("entity", "rates", "text"),
    [
        (APP, {CONNECTIONS: 1.0}, "only they have it"),
        (LOCAL, {APPEND: 1.0}, "no other"),
        (LOCAL, {CONNECTIONS: 0.5}, "connections per second"),
        (QuotaEntity(address="localhost"), {CONNECTIONS: 1.0}, "no address"),
        (QuotaEntity(address="0:0::1"), {CONNECTIONS: 1.0}, "no address"),
        (QuotaEntity("ann", "a\n"), {APPEND: 1.0}, "printable"),
        (QuotaEntity(), {APPEND: 1.0}, "a quota needs either a principal or an entity"),
    ],
)
def test_what_is_no_entity_and_no_rate_of_it_is_refused(
    entity: QuotaEntity, rates: dict[str, float], text: str
) -> None:
    node = Node()
    changes, _ = changes_of(node)
    with pytest.raises(BrokerError, match=text):
        node.run(changes.change({entity: rates}))
