"""Administration that takes longer than its request allows is answered item by item; what waits in line is not done later."""

from typing import Any

import pytest
from tests.adapters.one_of_three import CONVERSATION
from tests.broker.node import Node
from tests.broker.three_nodes import TOPIC, three_nodes
from tests.model.manual_world import Job

from braidlog.adapters.contract import answer_of
from braidlog.adapters.deadline import SECONDS_USUAL
from braidlog.adapters.kafka.errors import code_of
from braidlog.adapters.kafka.metadata import MAKING_MS
from braidlog.cluster.events import FenceNode
from braidlog.model.errors import BrokerError, Reason
from braidlog.server.doors import make_adapter
from braidlog.wire.cursus import requests as cursus
from braidlog.wire.cursus.batch import Spelling
from braidlog.wire.cursus.messages import BY_REQUEST, Request
from braidlog.wire.flux import messages as flux
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import ClientConnection, ServerConnection
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import nodes
from braidlog.wire.kafka.messages import placement as p
from braidlog.wire.kafka.messages import security as s
from braidlog.wire.kafka.messages import topics as t
from braidlog.wire.kafka.messages.parts import TopicPartitions
from braidlog.wire.kafka.rows import Message
from braidlog.wire.mlog import messages as mlog

TIMEOUT_MS = 5_000


def asked(node: Node, message: Message) -> Job[Any]:
    """A request of Kafka's, under way."""
    adapter = make_adapter("kafka", node.services)
    connection = adapter.open()
    assert isinstance(connection, ServerConnection)
    connection.receive(ClientConnection("c").request(message))
    return node.spawn(answer_of(adapter.handle, CONVERSATION, connection.next_event()))


def creating(*names: str) -> t.CreateTopicsRequest:
    return t.CreateTopicsRequest([t.CreateTopicsRequestTopic(name, 1, -1) for name in names], TIMEOUT_MS)


REQUESTS = {
    "CreateTopics": creating("one", "two"),
    "DeleteTopics": t.DeleteTopicsRequest([t.DeleteTopicsRequestTopic(TOPIC)], timeout_ms=TIMEOUT_MS),
    "CreatePartitions": t.CreatePartitionsRequest([t.CreatePartitionsRequestTopic(TOPIC, 3)], TIMEOUT_MS),
    "ElectLeaders": p.ElectLeadersRequest(0, [TopicPartitions(TOPIC, [0])], TIMEOUT_MS),
    "AlterPartitionReassignments": p.AlterPartitionReassignmentsRequest(
        TIMEOUT_MS,
        topics=[
            p.AlterPartitionReassignmentsRequestTopic(TOPIC, [p.AlterPartitionReassignmentsRequestPartition(0, [1, 2])])
        ],
    ),
}


def codes(answer: Any) -> list[int]:
    """Of the items of an answer."""
    if isinstance(answer, p.ElectLeadersResponse):
        return [each.error_code for topic in answer.replica_election_results for each in topic.partition_result]
    if isinstance(answer, p.AlterPartitionReassignmentsResponse):
        return [each.error_code for topic in answer.responses for each in topic.partitions]
    fields = ("topics", "responses", "results")
    return [each.error_code for name in fields for each in getattr(answer, name, ())]


@pytest.mark.parametrize("name", REQUESTS)
def test_what_waits_in_line_is_timed_out_item_by_item_and_never_done(name: str) -> None:
    node = three_nodes(leader=2)
    before = node.services.metadata.image.topics[TOPIC]
    with node.world.holding_syncs():
        first = node.spawn(node.services.topics.create("ahead", 1))
        job = asked(node, REQUESTS[name])
        node.world.advance(TIMEOUT_MS - 1)
        assert not job.is_done
        node.world.advance(1)
        assert {*codes(job.result())} == {E.REQUEST_TIMED_OUT}
    assert first.is_done
    node.world.settle()
    assert node.services.metadata.image.topics[TOPIC] == before
    assert not node.services.hosting.exists("one")


def test_what_has_begun_is_timed_out_and_may_be_done_later() -> None:
    node = three_nodes()
    with node.world.holding_syncs():
        job = asked(node, creating("one", "two"))
        node.world.advance(TIMEOUT_MS)
        one, two = job.result().topics
        assert (one.error_code, two.error_code) == (E.REQUEST_TIMED_OUT, E.REQUEST_TIMED_OUT)
        assert "it may still complete: check the result before you retry" in one.error_message
        assert "nothing was changed" in two.error_message
    node.world.settle()
    assert node.services.hosting.exists("one")
    assert not node.services.hosting.exists("two")


def test_what_is_done_in_time_is_answered_as_done() -> None:
    node = three_nodes()
    job = asked(node, creating("one", "two"))
    node.world.advance(TIMEOUT_MS - 1)
    assert codes(job.result()) == [E.NONE, E.NONE]


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_request_that_names_no_time_has_the_usual_one(timeout_ms: int) -> None:
    node = three_nodes()
    with node.world.holding_syncs():
        job = asked(node, t.CreateTopicsRequest([t.CreateTopicsRequestTopic("one", 1, -1)], timeout_ms))
        node.world.advance(int(SECONDS_USUAL * 1000) - 1)
        assert not job.is_done
        node.world.advance(1)
        assert codes(job.result()) == [E.REQUEST_TIMED_OUT]


def test_topics_that_one_metadata_request_makes_share_a_time_and_are_asked_for_again() -> None:
    node = three_nodes()
    with node.world.holding_syncs():
        topics = [c.MetadataRequestTopic(name=name) for name in ("one", "two")]
        job = asked(node, c.MetadataRequest(topics, allow_auto_topic_creation=True))
        node.world.advance(MAKING_MS)
        assert codes(job.result()) == [E.LEADER_NOT_AVAILABLE, E.LEADER_NOT_AVAILABLE]


QUOTA = s.AlterClientQuotasRequestEntry(
    [s.QuotaEntity("user", "ann")], [s.AlterClientQuotasRequestOp("producer_byte_rate", 1.0)]
)
UNTIMED = [
    p.UnregisterBrokerRequest(3),
    nodes.DrainNodeRequest(2),
    s.AlterUserScramCredentialsRequest(
        upsertions=[s.AlterUserScramCredentialsRequestUpsertion("ann", 1, 4096, bytes(16), bytes(32))]
    ),
    s.AlterClientQuotasRequest([QUOTA]),
]


@pytest.mark.parametrize("message", UNTIMED, ids=lambda message: type(message).__name__)
def test_what_has_no_field_for_a_time_has_the_usual_one(message: Message) -> None:
    node = three_nodes()
    node.services.metadata.change_alone([FenceNode(node=3, incarnation=1)])
    job = asked(node, t.DeleteTopicsRequest([t.DeleteTopicsRequestTopic(TOPIC)]))
    node.world.settle()
    assert codes(job.result()) == [E.NONE], "node 3 holds nothing but its share of the coordinators' topic"
    with node.world.holding_syncs():
        job = asked(node, message)
        node.world.advance(int(SECONDS_USUAL * 1000) - 1)
        assert not job.is_done
        node.world.advance(1)
        try:
            found = codes(job.result())
        except BrokerError as error:  # the adapter makes an answer of it
            found = [code_of(error)]
        assert {*found} == {E.REQUEST_TIMED_OUT}


@pytest.mark.parametrize(
    ("dialect", "request_"),
    [
        ("flux", flux.CreateTopic(correlation_id="1", topic="one", partitions=1, replication_factor=1)),
        ("mlog", mlog.CreateTopicRequest("one", 0, "")),
        ("flux", flux.ElectTopicLeaders(correlation_id="1", topic=TOPIC)),
        ("flux", flux.FenceBroker(correlation_id="1", broker_id=3)),
        ("cursus", Request(BY_REQUEST[cursus.ElectLeader], cursus.ElectLeader(TOPIC, 0, "3"), Spelling.CLIENTS)),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_administration_in_a_protocol_without_a_time_has_a_bound(dialect: str, request_: object) -> None:
    node = three_nodes(leader=2)
    adapter = make_adapter(dialect, node.services)
    with node.world.holding_syncs():
        job = node.spawn(answer_of(adapter.handle, CONVERSATION, request_))
        node.world.advance(int(SECONDS_USUAL * 1000))
        with pytest.raises(BrokerError, match="not done within 60 s") as caught:
            job.result()
        assert caught.value.reason is Reason.TIMED_OUT
