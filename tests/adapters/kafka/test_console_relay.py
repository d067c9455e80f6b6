"""Kafka of another node for a console: which requests are relayed, who judges them, what is said when nobody is reached."""

from typing import Any

import msgspec
import pytest
from tests.adapters.peers.linked_nodes import Client, LinkedNode, linked
from tests.broker.three_nodes import OWN, TOPIC

from braidlog.adapters.kafka.console_relay import CALL, RelayAdapter
from braidlog.security.authorization import CONSOLE, Authorize, OnBehalf, Operation, Rule
from braidlog.server.adapters import ConsoleRouting, console_calls
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import ClientConnection, Response
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.rows import Message

READER = "vera"


def consoles(leader: int = 3) -> dict[int, LinkedNode]:
    """Three nodes whose consoles find node 3 at a relay; one user may read, and nothing else."""
    allowed = Authorize({"vera": "0" * 64}, [Rule(READER, [Operation.READ, Operation.DESCRIBE], topic="*")])
    nodes = linked(leader, authorize=allowed)
    for each in nodes.values():
        each.table.rows[CALL] = console_calls(each.node.services)
        routing = ConsoleRouting(each.node.services, lambda number: 50_000 + number)
        services = msgspec.structs.replace(each.node.services, authorize=OnBehalf(allowed, "secret"), routing=routing)
        each.adapters["kafka"] = RelayAdapter(services.only(RelayAdapter.uses), 3)
    return nodes


def asked(node: LinkedNode, message: Message, principal: str = CONSOLE) -> Any:
    client, connection = Client(), ClientConnection("console")
    client.principal = principal
    connection.receive(node.ask("kafka", connection.request(message), client))
    answer = connection.next_event()
    assert isinstance(answer, Response)
    return answer.message


def list_offsets() -> d.ListOffsetsRequest:
    return d.ListOffsetsRequest(
        -1, 0, [d.ListOffsetsRequestTopic(TOPIC, [d.ListOffsetsRequestPartition(0, timestamp=-1)])]
    )


def produce() -> d.ProduceRequest:
    part = d.ProduceRequestPartition(0, b"")
    return d.ProduceRequest(None, -1, 1000, [d.ProduceRequestTopic(TOPIC, partition_data=[part])])


@pytest.mark.parametrize("principal", [CONSOLE, READER])
def test_the_other_node_serves_what_is_relayed(principal: str) -> None:
    nodes = consoles()
    nodes[3].node.append(TOPIC, b"a", b"b")
    (topic,) = asked(nodes[1], list_offsets(), principal).topics
    assert [(each.error_code, each.offset) for each in topic.partitions] == [(0, 2)]
    assert nodes[3].called == [CALL]


def test_the_other_node_judges_by_the_principal() -> None:
    nodes = consoles()
    (topic,) = asked(nodes[1], produce(), READER).responses
    assert [each.error_code for each in topic.partition_responses] == [E.TOPIC_AUTHORIZATION_FAILED]
    (topic,) = asked(nodes[1], list_offsets(), "nick").topics
    assert [each.error_code for each in topic.partitions] == [E.TOPIC_AUTHORIZATION_FAILED]
    assert nodes[3].called == [CALL, CALL]


def test_where_nodes_are_is_answered_here_with_the_consoles_own_listeners() -> None:
    nodes = consoles()
    told = asked(nodes[1], c.MetadataRequest([c.MetadataRequestTopic(name=TOPIC)]))
    assert [(each.node_id, each.host, each.port) for each in told.brokers] == [
        (number, "127.0.0.1", 50_000 + number) for number in (1, 2, 3)
    ]
    assert told.controller_id == 1
    assert told.topics[0].partitions[0].leader_id == 3
    found = asked(nodes[1], c.FindCoordinatorRequest("billing", 0, ["billing"])).coordinators[0]
    assert (found.node_id, found.host, found.port) == (1, "127.0.0.1", 50_001)
    assert nodes[3].called == []
    assert OWN not in {(each.host, each.port) for each in told.brokers}


def test_a_node_that_cannot_be_reached_is_refused_with_a_code_that_makes_clients_look_again() -> None:
    nodes = consoles()
    nodes[1].others = {}
    (topic,) = asked(nodes[1], list_offsets()).topics
    assert [each.error_code for each in topic.partitions] == [E.BROKER_NOT_AVAILABLE]
    (topic,) = asked(nodes[1], produce()).responses
    assert [each.error_message for each in topic.partition_responses] == ["node 3 cannot be reached"]
    assert asked(nodes[1], g.ListGroupsRequest()).error_code == E.COORDINATOR_NOT_AVAILABLE
