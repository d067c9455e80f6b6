"""What another node knows of a topic is asked of it; for the rest Cursus's clients look for that node themselves."""

from typing import Any

from tests.adapters.peers.linked_nodes import LinkedNode, linked
from tests.broker.three_nodes import TOPIC

from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.batch import Batch, BatchRecord
from braidlog.wire.cursus.connection import ClientConnection
from braidlog.wire.cursus.failures import Failure

LEADER = 3


def cursus(node: LinkedNode, message: Any) -> Any:
    connection = ClientConnection()
    connection.receive(node.ask("cursus", connection.request(message)))
    return connection.next_event()


def test_every_leader_is_asked_how_far_its_partitions_reach() -> None:
    nodes = linked(LEADER, "cursus")
    assert cursus(nodes[LEADER], Batch(TOPIC, 0, [BatchRecord(b"a"), BatchRecord(b"b")])).status == "OK"
    shown = {}
    for number, node in nodes.items():
        (shown[number],) = cursus(node, r.Describe(TOPIC)).partitions
        assert (shown[number].leo, shown[number].hwm) == (2, 2), number
    assert shown[1].leader == shown[2].leader == "[fd00::3]:9013", "where its clients reach it"
    assert nodes[LEADER].called == ["cursus"] * 2
    nodes[2].others.clear()
    (alone,) = cursus(nodes[2], r.Describe(TOPIC)).partitions
    assert (alone.leo, alone.hwm) == (0, 0), "of the copy here"


def test_nothing_is_handed_on_for_clients_that_look_for_leaders() -> None:
    nodes = linked(LEADER, "cursus")
    answer = cursus(nodes[2], Batch(TOPIC, 0, [BatchRecord(b"a")]))
    assert "NOT_LEADER" in str(answer)
    assert isinstance(answer, Failure | a.Ack)
    assert nodes[LEADER].called == []
