"""Who answers for what among three nodes, and where."""

import pytest
from tests.broker.node import Node
from tests.broker.three_nodes import DOORS, OWN, TOPIC, addresses, assign, registered, three_nodes

from braidlog.broker.routing import Broker
from braidlog.cluster.metadata import events as e
from braidlog.coordinator.shards import SHARDS


def test_a_node_that_is_alone_answers_for_everything_where_the_client_dialled() -> None:
    routing = Node(name="5").services.routing
    assert not routing.has_other_nodes
    assert {routing.leader_of_shard(shard) for shard in range(SHARDS)} == {5}
    assert (routing.controller, routing.numbers) == (5, [5])
    assert routing.brokers("kafka", OWN) == [Broker(5, *OWN)]
    assert routing.address(5, "kafka", OWN) == OWN
    assert routing.assignment(TOPIC, 0) is None


@pytest.mark.parametrize("door", DOORS)
def test_each_node_is_told_with_the_address_of_the_door_that_was_asked(door: str) -> None:
    routing = three_nodes().services.routing
    expected = [
        Broker(1, *addresses(1)[door], "r1"),
        Broker(2, *OWN, "r2"),
        Broker(3, *addresses(3)[door], "r3"),
    ]
    assert routing.brokers(door, OWN) == expected
    assert routing.leader_address(TOPIC, 0, door, OWN) == addresses(3)[door]


def test_without_the_address_that_a_client_dialled_a_node_tells_its_registered_one() -> None:
    routing = three_nodes(leader=2).services.routing
    assert routing.leader_address(TOPIC, 0, "kafka") == addresses(2)["kafka"]
    assert routing.leader_address(TOPIC, 0, "kafka", OWN) == OWN


def test_a_fenced_node_is_no_controller_and_has_no_address() -> None:
    node = three_nodes()
    node.services.metadata.change_exclusively([e.FenceNode(node=1, incarnation=1)])
    routing = node.services.routing
    assert routing.controller == 2
    assert routing.address(1, "kafka", OWN) is None
    assert [each.number for each in routing.brokers("kafka", OWN) if each.is_fenced] == [1]


def test_a_node_without_the_door_is_left_out() -> None:
    node = three_nodes()
    node.services.metadata.change_exclusively([registered(3, 2, doors={"mlog": ("h", 1)})])
    assign(node, 3)
    routing = node.services.routing
    assert [each.number for each in routing.brokers("kafka", OWN)] == [1, 2]
    assert routing.leader_address(TOPIC, 0, "kafka", OWN) is None


def test_a_partition_without_a_leader_has_no_address() -> None:
    assert three_nodes(leader=None).services.routing.leader_address(TOPIC, 0, "kafka", OWN) is None


def test_clients_of_a_rack_are_sent_to_its_nodes_that_live_and_have_the_door() -> None:
    node = three_nodes()
    routing = node.services.routing
    assert routing.nodes_in("r3", "kafka") == (3,)
    assert routing.nodes_in("r9", "kafka") == routing.nodes_in("r3", "x") == ()
    assert routing.nodes_in("r2", "kafka") == (), "this node is in the rack itself"
    node.services.metadata.change_exclusively([e.DrainNode(node=3, incarnation=1, is_draining=True)])
    assert routing.nodes_in("r3", "kafka") == ()
    assert Node(name="5").services.routing.nodes_in("r1", "kafka") == ()
