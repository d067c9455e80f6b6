"""The brokers that an administrator made known: who is silent, who may lead."""

import pytest
from tests.broker.node import Node
from tests.broker.three_nodes import three_nodes

from braidlog.cluster.metadata import events as e
from braidlog.model.errors import BrokerError


def test_a_silent_broker_is_fenced_until_its_next_word() -> None:
    node = Node()
    brokers = node.services.brokers
    for number in (1, 2):
        node.run(brokers.register(number, "h", 1))
    assert not brokers.is_only_one
    node.runtime.advance(5_000)
    brokers.heartbeat(2)
    assert brokers.fence_silent(10_000) == 0
    assert (brokers.fence_silent(1_000), brokers.fence_silent(1_000)) == (1, 0)
    assert (brokers.fenced, brokers.is_only_one) == ([1], False)
    node.runtime.advance(5_000)
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
    for number, text in ((brokers.own_number, "it is the only one"), (7, "not registered")):
        with pytest.raises(BrokerError, match=text):
            brokers.fence(number)


def test_a_node_of_the_cluster_is_fenced_by_the_metadata_and_not_by_silence() -> None:
    node = three_nodes()
    brokers = node.services.brokers
    node.run(brokers.register(7, "h", 1))
    assert (brokers.numbers(), brokers.is_node(3), brokers.is_node(7)) == ([1, 2, 3, 7], True, False)
    node.runtime.advance(5_000)
    assert (brokers.fence_silent(1_000), brokers.fenced) == (1, [7])
    node.services.metadata.change_exclusively([e.FenceNode(node=1, incarnation=1)])
    assert brokers.fenced == [1, 7]
