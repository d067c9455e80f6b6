"""Elections and moves that an administrator asks for, on the image of three nodes."""

import pytest
from tests.broker.node import Node
from tests.broker.three_nodes import TOPIC, registered, three_nodes
from tests.refusals import refused_with

from braidlog.cluster.metadata import events as e
from braidlog.model.errors import BrokerError, Reason


def moved(node: Node, target: tuple[int, ...] | None, topic: str = TOPIC) -> bool:
    """Whether anything has changed."""
    outcome = node.run(node.services.replica_moves.move(topic, {0: target}))[0]
    if isinstance(outcome, BrokerError):
        raise outcome
    return outcome


def test_the_preferred_replica_leads_once_it_is_asked_for() -> None:
    node = three_nodes(leader=2)
    moves = node.services.replica_moves
    assert node.run(moves.elect(TOPIC, 0))
    known = node.services.routing.assignment(TOPIC, 0)
    assert known is not None
    assert (known.leader, known.leader_epoch, known.in_sync) == (3, 8, (3, 2))
    assert not node.run(moves.elect(TOPIC, 0))


def test_a_preferred_replica_that_is_fenced_is_not_elected() -> None:
    node = three_nodes(leader=2)
    node.services.metadata.change_exclusively([e.FenceNode(node=3, incarnation=1)])
    with pytest.raises(BrokerError, match="node 3, which should lead orders/0, is not in sync or not there"):
        node.run(node.services.replica_moves.elect(TOPIC, 0))


def test_a_move_adds_before_it_removes_and_can_be_given_up() -> None:
    node = three_nodes(leader=3)
    moves = node.services.replica_moves
    node.services.metadata.change_exclusively([registered(4)])
    assert moves.under_way() == {}
    assert moved(node, (4, 3, 2))
    ((place, known),) = moves.under_way().items()
    assert (place, known.replicas, known.adding, known.removing) == ((TOPIC, 0), (4, 3, 2, 1), (4,), (1,))
    assert (known.in_sync, known.leader) == ((3, 2), 3)
    assert not moved(node, (4, 3, 2))
    assert moved(node, None)
    assert moves.under_way() == {}
    assert not moved(node, None)


def test_a_move_is_not_given_up_while_only_the_new_nodes_are_in_sync() -> None:
    node = three_nodes(leader=3)
    node.services.metadata.change_exclusively([registered(4)])
    moved(node, (4,))
    known = node.services.replica_moves.under_way()[TOPIC, 0]
    after = known.with_leader(4, in_sync=(4,))
    epochs = {"leader_epoch": known.leader_epoch, "partition_epoch": known.partition_epoch}
    node.services.metadata.change_exclusively([e.AssignPartition(topic=TOPIC, partition=0, after=after, **epochs)])
    with refused_with(Reason.NOT_ENOUGH_REPLICAS):
        moved(node, None)


@pytest.mark.parametrize("target", [(), (3, 3), (7,), (-1,)])
def test_where_a_partition_cannot_go(target: tuple[int, ...]) -> None:
    node = three_nodes()
    with refused_with(Reason.REPLICA_NOT_FOUND):
        moved(node, target)


def test_a_node_that_is_alone_has_nowhere_to_move_to() -> None:
    node = Node(name="5")
    node.create(TOPIC)
    moves = node.services.replica_moves
    assert not node.run(moves.elect(TOPIC, 0))
    assert not moved(node, (5,))
    with pytest.raises(BrokerError, match="no node 6"):
        moved(node, (6,))


def test_topics_of_the_node_itself_stay_where_they_are() -> None:
    node = three_nodes()
    with pytest.raises(BrokerError, match="broker's own"):
        moved(node, (1,), "__kv")


def test_many_partitions_are_changed_by_one_entry_and_each_has_its_own_outcome() -> None:
    node = three_nodes(leader=2)
    services = node.services
    before = services.metadata.seq
    elected = node.run(services.replica_moves.elect_all(TOPIC, [0, 0, 9]))
    assert elected[0] is True
    assert isinstance(elected[9], BrokerError)
    assert services.metadata.seq == before + 1
    assert node.run(services.replica_moves.elect_all(TOPIC, [])) == {}
