"""The brokers that an administrator made known: who is silent, who may lead."""

import pytest
from tests.broker.node import Node

from braidlog.model.errors import BrokerError


def test_a_silent_broker_is_fenced_until_its_next_word() -> None:
    node = Node()
    brokers = node.services.brokers
    for number in (1, 2):
        node.run(brokers.register(number, "h", 1))
    assert not brokers.is_only_one
    node.world.advance(5_000)
    brokers.heartbeat(2)
    assert brokers.fence_silent(10_000) == 0
    assert (brokers.fence_silent(1_000), brokers.fence_silent(1_000)) == (1, 0)
    assert (brokers.fenced, brokers.is_only_one) == ([1], False)
    node.world.advance(5_000)
    assert brokers.fence_silent(1_000) == 1
    assert (brokers.fenced, brokers.is_only_one) == ([1, 2], True)
    brokers.heartbeat(1)
    node.run(brokers.register(2, "h", 1))
    assert brokers.fenced == []


def test_who_was_fenced_by_name_is_fenced_until_that_is_undone() -> None:
    node = Node()
    brokers = node.services.brokers
    node.run(brokers.register(1, "h", 1))
    brokers.fence(1)
    brokers.heartbeat(1)
    assert brokers.fenced == [1]
    brokers.unfence(1)
    assert brokers.fenced == []
    for number, text in ((brokers.own_number, "it is alone"), (7, "not registered")):
        with pytest.raises(BrokerError, match=text):
            brokers.fence(number)
