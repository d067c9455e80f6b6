"""Quotas set at run time: they hold at once and after a crash, before those of the configuration."""

import pytest
from tests.broker.node import Node

from braidlog.broker.quota_changes import QuotaChanges
from braidlog.broker.quotas import Direction, Quotas, Rates
from braidlog.cluster import image
from braidlog.model.errors import BrokerError, Reason

APPEND, FETCH, PERCENT = "append_bytes_per_second", "fetch_bytes_per_second", "request_percent"


def changes_of(node: Node, quotas: Quotas | None = None) -> tuple[QuotaChanges, Quotas]:
    quotas = quotas or Quotas(Rates(append_bytes_per_second=10), {"bulk": Rates(1000)})
    return QuotaChanges(node.services.metadata, quotas), quotas


def pause(quotas: Quotas, principal: str, count: float, direction: Direction = Direction.APPEND) -> float:
    return quotas.take(principal, direction, count, 0.0)


def test_a_rate_holds_at_once_and_after_a_restart() -> None:
    node = Node()
    changes, quotas = changes_of(node)
    node.run(changes.change({"ann": {APPEND: 100.0, FETCH: 50.0}, None: {APPEND: 20.0}, "bulk": {PERCENT: 10.0}}))
    for each in (quotas, changes_of(node.restarted())[1]):
        assert pause(each, "ann", 300) == 2.0
        assert pause(each, "ann", 100, Direction.FETCH) == 1.0
        assert pause(each, "bob", 40) == 1.0, "what all others may"
        assert pause(each, "bulk", 2000) == 1.0, "the configuration names it, which goes before what all others may"
        assert pause(each, "bulk", 0.2, Direction.TIME) == pytest.approx(1.0)


def test_a_rate_that_is_removed_is_the_configurations_again() -> None:
    node = Node()
    changes, quotas = changes_of(node)
    node.run(changes.change({"ann": {APPEND: 100.0, FETCH: 50.0}, None: {APPEND: 20.0}, "bulk": {APPEND: 5.0}}))
    node.run(changes.change({"ann": {APPEND: None}, None: {APPEND: None}, "bulk": {APPEND: None}}))
    for each in (quotas, changes_of(node.restarted())[1]):
        assert pause(each, "ann", 20) == 1.0
        assert pause(each, "ann", 100, Direction.FETCH) == 1.0
        assert pause(each, "bulk", 2000) == 1.0
    node.run(changes.change({"ann": {FETCH: None}}))
    assert node.services.metadata.image.quotas == {}


def test_a_changed_rate_forgives_debts_and_counts_anew() -> None:
    node = Node()
    changes, quotas = changes_of(node)
    assert pause(quotas, "ann", 1000) == 30.0
    node.run(changes.change({"ann": {APPEND: 1000.0}}))
    assert pause(quotas, "ann", 1000) == 0.0


def test_a_node_without_limits_gets_its_first_at_run_time() -> None:
    node = Node()
    changes, quotas = changes_of(node, Quotas())
    assert quotas.is_unlimited
    node.run(changes.change({"ann": {APPEND: 1.0}}))
    assert not quotas.is_unlimited
    assert not quotas.counts_time
    node.run(changes.change({"ann": {APPEND: None, PERCENT: 5.0}}))
    assert quotas.counts_time
    node.run(changes.change({"ann": {PERCENT: None}}))
    assert quotas.is_unlimited


def test_what_changes_nothing_is_not_written() -> None:
    node = Node()
    changes, _ = changes_of(node)
    node.run(changes.change({"ann": {APPEND: 1.0}}))
    seq = node.services.metadata.seq
    node.run(changes.change({"ann": {APPEND: 1.0}, "bob": {APPEND: None}}))
    assert node.services.metadata.seq == seq


def test_principals_with_quotas_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "QUOTAS_MAX", 2)
    node = Node()
    changes, _ = changes_of(node)
    node.run(changes.change({"a": {APPEND: 1.0}, "b": {APPEND: 1.0}}))
    with pytest.raises(BrokerError) as caught:
        node.run(changes.change({"a": {APPEND: 2.0}, "c": {APPEND: 1.0}}))
    assert caught.value.reason is Reason.QUOTA_EXCEEDED
    assert node.services.metadata.image.quotas == {"a": {APPEND: 1.0}, "b": {APPEND: 1.0}}, "all or none"
    node.run(changes.change({"a": {APPEND: None}}))
    node.run(changes.change({"c": {APPEND: 1.0}}))


@pytest.mark.parametrize("rate", [0.0, -1.0, 0.5, float("nan"), float("inf"), 2.0**63])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    node = Node()
    changes, _ = changes_of(node)
    with pytest.raises(BrokerError) as caught:
        node.run(changes.change({"ann": {APPEND: rate}}))
    assert caught.value.reason is Reason.INVALID_SETTING
