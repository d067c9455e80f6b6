"""What mlog's clients cannot look for is asked of the node that knows it; leaders they look for themselves."""

from typing import Any

import pytest
from tests.adapters.peers.linked_nodes import LinkedNode, linked
from tests.broker.three_nodes import TOPIC

from braidlog.cluster.metadata import events as e
from braidlog.model.errors import NotCoordinatorError
from braidlog.wire.mlog import messages as m
from braidlog.wire.mlog.connection import ClientConnection
from braidlog.wire.mlog.errors import ErrorCode as E

LEADER, COORDINATOR = 3, 1


def mlog(node: LinkedNode, message: m.Request) -> Any:
    connection = ClientConnection()
    connection.receive(node.ask("mlog", connection.request(message)))
    return connection.next_event()


def produced() -> dict[int, LinkedNode]:
    nodes = linked(LEADER, "mlog")
    assert mlog(nodes[LEADER], m.ProduceBatchRequest(TOPIC, (b"a", b"b", b"c"), 1)).count == 3
    return nodes


def test_commits_are_kept_by_one_node_and_known_on_all() -> None:
    nodes = produced()
    assert mlog(nodes[LEADER], m.CommitOffsetRequest(TOPIC, "c", 2)).success
    assert (
        nodes[COORDINATOR].node.services.coordinators.coordinator_for("c").offsets.committed("c", TOPIC, 0) is not None
    )
    with pytest.raises(NotCoordinatorError):
        nodes[LEADER].node.services.coordinators.coordinator_for("c")
    for node in nodes.values():
        assert mlog(node, m.FetchOffsetRequest(TOPIC, "c")).offset == 2
    assert mlog(nodes[LEADER], m.FetchRequest(TOPIC, "c")).entry == m.LogEntry(2, b"c")
    assert [each.offset for each in mlog(nodes[LEADER], m.FetchBatchRequest(TOPIC, "new", 0, 9)).entries] == [0, 1, 2]
    assert nodes[COORDINATOR].called == ["mlog"] * 5


def test_leaders_are_not_asked_for_clients_that_look_for_them() -> None:
    nodes = produced()
    assert mlog(nodes[2], m.ProduceRequest(TOPIC, b"v", 1)).code == E.NOT_TOPIC_LEADER
    assert mlog(nodes[2], m.FetchRequest(TOPIC, "", 1)).code == E.TOPIC_NOT_FOUND
    assert nodes[LEADER].called == []


def test_a_consumer_looks_again_while_the_node_that_keeps_commits_is_away() -> None:
    nodes = produced()
    node = nodes[LEADER]
    node.node.services.metadata.change_exclusively([e.FenceNode(node=COORDINATOR, incarnation=1)])
    assert mlog(node, m.FetchRequest(TOPIC, "c")).code == E.TOPIC_NOT_FOUND
    assert mlog(node, m.FetchOffsetRequest(TOPIC, "c")).code == E.RECOVER_OFFSETS
    assert mlog(node, m.CommitOffsetRequest(TOPIC, "c", 1)).code == E.COMMIT_OFFSET
    assert mlog(node, m.FetchRequest(TOPIC, "c", 1)).entry == m.LogEntry(1, b"b"), "where it says itself"


def test_every_leader_is_asked_how_far_its_replicas_are() -> None:
    nodes = produced()
    for node in nodes.values():
        (topic,) = mlog(node, m.ListTopicsRequest()).topics
        assert (topic.leader_node_id, topic.replicas[0]) == ("3", m.ReplicaInfo("3", True, 3))
    assert nodes[LEADER].called == ["mlog"] * 2
    nodes[2].others.clear()
    (topic,) = mlog(nodes[2], m.ListTopicsRequest()).topics
    assert topic.replicas[0] == m.ReplicaInfo("3", True, -1)
