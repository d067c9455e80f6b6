"""What Kafka's port says of other nodes: a hand-made cluster of three, asked in bytes at node 2."""

import uuid
from typing import Any

import msgspec
import pytest
from tests.adapters.one_of_three import kafka
from tests.broker.node import Node, batch_of
from tests.broker.three_nodes import OWN, TOPIC, addresses, assign, registered, three_nodes

from braidlog.adapters.kafka.administration.configs import RATE
from braidlog.adapters.kafka.coordination.offsets_topic import OFFSETS_TOPIC
from braidlog.adapters.kafka.errors import code_of
from braidlog.cluster.metadata import events as e
from braidlog.coordinator.shards import STATE_TOPIC
from braidlog.model.errors import BrokerError, Reason
from braidlog.replication.assignment import Assignment
from braidlog.security.authorization import ANONYMOUS, Authorize, Operation, Rule
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.messages import nodes, topics
from braidlog.wire.kafka.messages import placement as p
from braidlog.wire.kafka.messages import transactions as t
from braidlog.wire.kafka.messages.parts import CurrentLeader, NodeEndpoint, TopicPartitions


def test_kafka_metadata_names_the_nodes_their_racks_and_the_leader() -> None:
    node = three_nodes()
    told = kafka(node, c.MetadataRequest([c.MetadataRequestTopic(name=TOPIC)]))
    assert [(each.node_id, each.host, each.port, each.rack) for each in told.brokers] == [
        (1, *addresses(1)["kafka"], "r1"),
        (2, *OWN, "r2"),
        (3, *addresses(3)["kafka"], "r3"),
    ]
    assert told.controller_id == 1
    (partition,) = told.topics[0].partitions
    assert partition == c.MetadataResponsePartition(0, 0, 3, 7, [3, 1, 2], [3, 2], [])
    node.services.metadata.change_exclusively([e.FenceNode(node=1, incarnation=1)])
    told = kafka(node, c.MetadataRequest([c.MetadataRequestTopic(name=TOPIC)]))
    assert [each.node_id for each in told.brokers] == [1, 2, 3], (
        "a client that forgot node 1 could wait for it for long"
    )
    assert told.controller_id == 2
    assert told.topics[0].partitions[0].offline_replicas == [1]
    node.runtime.advance(30_001)
    told = kafka(node, c.MetadataRequest([c.MetadataRequestTopic(name=TOPIC)]))
    assert [each.node_id for each in told.brokers] == [2, 3], "it may not come back"
    node.services.metadata.change_exclusively(
        [registered(1, 2, doors=addresses(1)), e.FenceNode(node=1, incarnation=2)]
    )
    told = kafka(node, c.MetadataRequest([c.MetadataRequestTopic(name=TOPIC)]))
    assert [each.node_id for each in told.brokers] == [1, 2, 3], "it was there again meanwhile"


def test_the_topic_of_groups_tells_who_leads_each_shard_of_the_coordinators() -> None:
    node = three_nodes()
    asked = c.MetadataRequest([c.MetadataRequestTopic(name=OFFSETS_TOPIC)])
    after = Assignment(replicas=(1, 2, 3), in_sync=(3, 2), leader=3, leader_epoch=5)
    known = node.services.metadata.image.assignment(STATE_TOPIC, 9)
    epochs = {"leader_epoch": known.leader_epoch, "partition_epoch": known.partition_epoch}
    node.services.metadata.change_exclusively(
        [e.AssignPartition(topic=STATE_TOPIC, partition=9, **epochs, after=after)]
    )
    shards = kafka(node, asked).topics[0].partitions
    assert [each.leader_id for each in shards] == [1] * 9 + [3] + [1] * 6
    assert shards[9] == c.MetadataResponsePartition(0, 9, 3, 5, [1, 2, 3], [3, 2], [])
    described = c.DescribeTopicPartitionsRequest([c.DescribeTopicPartitionsRequestTopic(OFFSETS_TOPIC)], 2000)
    assert [each.leader_id for each in kafka(node, described).topics[0].partitions] == [1] * 9 + [3] + [1] * 6
    node.services.metadata.change_exclusively([e.FenceNode(node=1, incarnation=1)])
    led_by_none = kafka(node, asked).topics[0].partitions[0]
    assert (led_by_none.leader_id, led_by_none.offline_replicas) == (-1, [1])


@pytest.mark.parametrize("asked", [g.ListGroupsRequest(), t.ListTransactionsRequest()])
def test_lists_are_refused_while_a_shard_is_loading(asked: Any) -> None:
    """They would lack what is in it; clients ask again."""
    node = three_nodes(name="1")
    assert kafka(node, asked).error_code == 0
    shards = node.services.coordinators._shards
    assert shards is not None
    shards._led[9].content = None
    assert kafka(node, asked).error_code == E.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize(
    "asked",
    [
        c.MetadataRequest([c.MetadataRequestTopic(name=OFFSETS_TOPIC)]),
        c.DescribeTopicPartitionsRequest([c.DescribeTopicPartitionsRequestTopic(OFFSETS_TOPIC)], 2000),
    ],
)
def test_the_topic_of_groups_is_made_when_it_is_first_asked_for(asked: Any) -> None:
    """As in Kafka it is not listed before the first group; who names it sees leaders, and never partitions without one."""
    node = three_nodes()
    deleted = e.DeleteTopic(topic=STATE_TOPIC, topic_id=uuid.UUID(int=7).hex, deleted_ms=1)
    node.services.metadata.change_exclusively([deleted])
    assert not node.run(node.services.reconciler.apply_metadata())
    for every in (c.MetadataRequest(None), c.DescribeTopicPartitionsRequest([], 2000)):
        assert [each.name for each in kafka(node, every).topics] == [TOPIC]
    shards = kafka(node, asked).topics[0].partitions
    assert {each.leader_id for each in shards} == {1, 2, 3}
    assert {each.error_code for each in shards} == {E.NONE}


def test_the_settings_of_the_topic_of_groups_are_the_clusters() -> None:
    asked = topics.DescribeConfigsRequest([topics.DescribeConfigsRequestResource(2, OFFSETS_TOPIC)])
    shown = {each.name: each.value for each in kafka(three_nodes(), asked).results[0].configs}
    assert shown["min.insync.replicas"] == "2"


def test_producers_are_described_by_the_leader() -> None:
    asked = t.DescribeProducersRequest([t.DescribeProducersRequestTopic(TOPIC, [0])])
    assert kafka(three_nodes(), asked).topics[0].partitions[0].error_code == E.NOT_LEADER_OR_FOLLOWER


def test_kafka_topics_are_placed_as_they_are_asked_for() -> None:
    node = three_nodes()

    def asked(**fields: Any) -> topics.CreateTopicsRequest:
        return topics.CreateTopicsRequest([topics.CreateTopicsRequestTopic("placed", **fields)])

    def assigned(*places: list[int]) -> dict[str, Any]:
        return {"assignments": [topics.CreateTopicsRequestAssignment(at, each) for at, each in enumerate(places)]}

    as_default = {"num_partitions": -1, "replication_factor": -1}
    for fields, code in (
        ({"num_partitions": 1, "replication_factor": 4}, E.INVALID_REPLICATION_FACTOR),
        ({**as_default, **assigned([1, 9])}, E.INVALID_REPLICA_ASSIGNMENT),
        ({**as_default, **assigned([1, 1])}, E.INVALID_REPLICA_ASSIGNMENT),
        ({**as_default, **assigned([1, 2], [3])}, E.INVALID_REPLICA_ASSIGNMENT),
    ):
        assert kafka(node, asked(**fields)).topics[0].error_code == code
    made = kafka(node, asked(**as_default, **assigned([3, 2], [1, 3]))).topics[0]
    assert (made.error_code, made.num_partitions, made.replication_factor) == (E.NONE, 2, 2)
    grown = topics.CreatePartitionsRequestTopic("placed", 3, [topics.CreatePartitionsRequestAssignment([2, 1])])
    assert kafka(node, topics.CreatePartitionsRequest([grown])).results[0].error_code == E.NONE
    assert [each.replicas for each in node.services.hosting.meta("placed").assignments] == [(3, 2), (1, 3), (2, 1)]


def test_a_topic_of_three_replicas_is_created_while_a_node_is_away_and_completed_after_a_drain() -> None:
    node = three_nodes(name="1")
    fence = [e.FenceNode(node=3, incarnation=1)]
    node.services.metadata.change_exclusively(fence)

    def made(name: str, factor: int) -> list[tuple[set[int], tuple[int, ...]]]:
        topic = topics.CreateTopicsRequestTopic(name, num_partitions=4, replication_factor=factor)
        told = kafka(node, topics.CreateTopicsRequest([topic])).topics[0]
        assert (told.error_code, told.replication_factor) == (E.NONE, 3)
        assert node.services.hosting.meta(name).min_in_sync == 2
        found = node.services.hosting.meta(name).assignments
        assert all(each.leader in each.in_sync for each in found)
        return [({*each.replicas}, tuple(sorted(each.in_sync))) for each in found]

    assert made("three", 3) == made("usual", -1) == [({1, 2, 3}, (1, 2))] * 4
    drain = [registered(3, 2), e.DrainNode(node=3, incarnation=2, is_draining=True)]
    node.services.metadata.change_exclusively(drain)
    assert made("later", 3) == [({1, 2}, (1, 2))] * 4
    (told,) = kafka(node, nodes.ClusterEventsRequest()).lacking
    assert told == nodes.UnderReplicatedTopic("later", 3, 4)
    grown = topics.CreatePartitionsRequestTopic("later", 5)
    assert kafka(node, topics.CreatePartitionsRequest([grown])).results[0].error_code == E.NONE
    node.run(node.services.replica_moves.complete())
    assert kafka(node, nodes.ClusterEventsRequest()).lacking == [nodes.UnderReplicatedTopic("later", 3, 5)], (
        "it drains yet"
    )
    node.services.metadata.change_exclusively([registered(3, 3)])
    node.run(node.services.replica_moves.complete())
    found = node.services.hosting.meta("later").assignments
    assert [({*each.replicas}, each.adding) for each in found] == [({1, 2, 3}, (3,))] * 5


def test_too_few_nodes_for_a_topic_and_too_few_replicas_for_a_record_are_told_apart() -> None:
    node = three_nodes()
    for number in (1, 3):
        node.services.metadata.change_exclusively([e.FenceNode(node=number, incarnation=1)])
    topic = topics.CreateTopicsRequestTopic("placed", num_partitions=1, replication_factor=1)
    assigned = [topics.CreateTopicsRequestAssignment(0, [1, 3])]
    nowhere = topics.CreateTopicsRequestTopic("placed", num_partitions=-1, replication_factor=-1, assignments=assigned)
    assert kafka(node, topics.CreateTopicsRequest([nowhere])).topics[0].error_code == E.INVALID_REPLICA_ASSIGNMENT
    assert kafka(node, topics.CreateTopicsRequest([topic])).topics[0].error_code == E.NONE
    refused = BrokerError(Reason.NOT_ENOUGH_REPLICAS, "1 of 3 replicas are in sync, 2 must be")
    assert code_of(refused) is E.NOT_ENOUGH_REPLICAS, "a producer tries that again"


def test_kafka_metadata_of_a_partition_without_a_leader_and_of_one_whose_leader_has_no_such_door() -> None:
    asked = c.MetadataRequest([c.MetadataRequestTopic(name=TOPIC)])
    (partition,) = kafka(three_nodes(leader=None), asked).topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (E.LEADER_NOT_AVAILABLE, -1)
    node = three_nodes()
    node.services.metadata.change_exclusively([registered(3, 2, doors={})])
    assign(node, 3)
    (partition,) = kafka(node, asked).topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (E.LISTENER_NOT_FOUND, -1)


def test_kafka_describes_cluster_and_topics_alike() -> None:
    node = three_nodes()
    node.services.metadata.change_exclusively([e.FenceNode(node=1, incarnation=1)])
    told = kafka(node, c.DescribeClusterRequest())
    assert ([each.broker_id for each in told.brokers], told.controller_id) == ([2, 3], 2)
    told = kafka(node, c.DescribeClusterRequest(include_fenced_brokers=True))
    assert [(each.broker_id, each.is_fenced) for each in told.brokers] == [(1, True), (2, False), (3, False)]
    told = kafka(node, c.DescribeTopicPartitionsRequest([c.DescribeTopicPartitionsRequestTopic(TOPIC)]))
    (partition,) = told.topics[0].partitions
    assert (partition.leader_id, partition.isr_nodes, partition.offline_replicas) == (3, [3, 2], [1])


def test_kafka_tells_one_cluster_id_on_all_nodes() -> None:
    node = three_nodes()
    alone = kafka(node, c.DescribeClusterRequest()).cluster_id
    node.folder.join_cluster("ab" * 16)
    told = kafka(node, c.DescribeClusterRequest()).cluster_id
    assert told == "q6urq6urq6urq6urq6urqw" != alone
    assert kafka(node, c.MetadataRequest()).cluster_id == told


def test_kafka_finds_the_coordinator_on_its_node_and_says_when_that_is_away() -> None:
    node = three_nodes()
    (found,) = kafka(node, c.FindCoordinatorRequest(coordinator_keys=["g"])).coordinators
    assert (found.node_id, found.host, found.port) == (1, *addresses(1)["kafka"])
    node.services.metadata.change_exclusively([e.FenceNode(node=1, incarnation=1)])
    (found,) = kafka(node, c.FindCoordinatorRequest(coordinator_keys=["g"])).coordinators
    assert found.error_code == E.COORDINATOR_NOT_AVAILABLE


def test_kafka_produce_and_fetch_name_the_leader_and_its_address_in_a_refusal() -> None:
    node = three_nodes(partitions=2)
    endpoint = NodeEndpoint(3, *addresses(3)["kafka"], "r3")
    batch = d.ProduceRequestPartition(0, batch_of(b"v"))
    told = kafka(node, d.ProduceRequest(None, -1, 1000, [d.ProduceRequestTopic(TOPIC, partition_data=[batch])]), 12)
    (partition,) = told.responses[0].partition_responses
    assert (partition.error_code, partition.current_leader) == (E.NOT_LEADER_OR_FOLLOWER, CurrentLeader(3, 7))
    assert told.node_endpoints == [endpoint]
    topic_id = bytes.fromhex(node.services.hosting.meta(TOPIC).topic_id)
    wanted = [d.FetchRequestPartition(number, partition_max_bytes=1000) for number in (0, 1)]
    told = kafka(node, d.FetchRequest(topics=[d.FetchRequestTopic(topic_id=topic_id, partitions=wanted)]), 17)
    assert [each.error_code for each in told.responses[0].partitions] == [E.NOT_LEADER_OR_FOLLOWER] * 2
    assert [each.current_leader for each in told.responses[0].partitions] == [CurrentLeader(3, 7)] * 2
    assert told.node_endpoints == [endpoint]


def test_kafka_fetch_in_an_epoch_that_is_over_is_told_the_one_in_force() -> None:
    node = three_nodes(leader=2)
    topic_id = bytes.fromhex(node.services.hosting.meta(TOPIC).topic_id)
    wanted = d.FetchRequestPartition(0, current_leader_epoch=0, partition_max_bytes=1000)
    told = kafka(node, d.FetchRequest(topics=[d.FetchRequestTopic(topic_id=topic_id, partitions=[wanted])]), 17)
    (partition,) = told.responses[0].partitions
    assert (partition.error_code, partition.current_leader) == (E.FENCED_LEADER_EPOCH, CurrentLeader(2, 7))
    assert told.node_endpoints == [NodeEndpoint(2, *OWN, "r2")]


def test_kafka_tells_no_leader_of_what_was_served() -> None:
    node = three_nodes(leader=2)
    batch = d.ProduceRequestPartition(0, batch_of(b"v"))
    told = kafka(node, d.ProduceRequest(None, 1, 1000, [d.ProduceRequestTopic(TOPIC, partition_data=[batch])]), 12)
    assert (told.responses[0].partition_responses[0].error_code, told.node_endpoints) == (E.NONE, [])


def test_kafka_elects_moves_and_tells_the_quorum() -> None:
    node = three_nodes(leader=2)
    told = kafka(node, p.ElectLeadersRequest(0, [TopicPartitions(TOPIC, [0, 5])]))
    results = told.replica_election_results[0].partition_result
    assert [each.error_code for each in results] == [E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert kafka(node, p.ElectLeadersRequest(0, None)).replica_election_results == []
    told = kafka(node, p.ElectLeadersRequest(1, [TopicPartitions(TOPIC, [0])]))
    assert told.replica_election_results[0].partition_result[0].error_code == E.ELIGIBLE_LEADERS_NOT_AVAILABLE
    for replicas, code in (([1, 2], E.NONE), ([9], E.INVALID_REPLICA_ASSIGNMENT)):
        wanted = p.AlterPartitionReassignmentsRequestPartition(0, replicas)
        asked = [p.AlterPartitionReassignmentsRequestTopic(TOPIC, [wanted])]
        told = kafka(node, p.AlterPartitionReassignmentsRequest(topics=asked))
        assert told.responses[0].partitions[0].error_code == code
    (moving,) = kafka(node, p.ListPartitionReassignmentsRequest()).topics
    assert moving.partitions == [p.ListPartitionReassignmentsResponsePartition(0, [1, 2, 3], [], [3])]
    named = [p.ListPartitionReassignmentsRequestTopic(TOPIC, [1])]
    assert kafka(node, p.ListPartitionReassignmentsRequest(topics=named)).topics == []
    known = node.services
    for topic, visible in (("others", []), (TOPIC, [moving])):
        rules = [Rule(ANONYMOUS, [Operation.READ], topic)]
        node.services = msgspec.structs.replace(known, authorize=Authorize({}, rules))
        assert kafka(node, p.ListPartitionReassignmentsRequest()).topics == visible, "of topics that it may describe"
    node.services = known
    given_up = p.AlterPartitionReassignmentsRequestTopic(
        TOPIC, [p.AlterPartitionReassignmentsRequestPartition(0, None)]
    )
    twice = [kafka(node, p.AlterPartitionReassignmentsRequest(topics=[given_up])) for _ in range(2)]
    codes = [told.responses[0].partitions[0].error_code for told in twice]
    assert codes == [E.NONE, E.NO_REASSIGNMENT_IN_PROGRESS]
    asked_of = p.DescribeQuorumRequestTopic("__cluster_metadata", [p.DescribeQuorumRequestPartition(0)])
    told = kafka(node, p.DescribeQuorumRequest([asked_of]))
    (partition,) = told.topics[0].partitions
    assert (partition.leader_id, [each.replica_id for each in partition.current_voters]) == (1, [1, 2, 3])
    assert [(each.node_id, each.listeners[0].host) for each in told.nodes][2] == (3, "fd00::3")


def test_kafka_speaks_of_moves_on_one_node_and_on_three() -> None:
    for node in (Node(), three_nodes()):
        assert {43, 45, 46, 55, 64} <= {each.api_key for each in kafka(node, c.ApiVersionsRequest()).api_keys}


def test_kafka_answers_for_a_lone_node_as_for_a_cluster_of_one() -> None:
    """The preferred replica leads, nothing is on the move, a move to the same node is done, another node is unknown."""
    node = Node(name="5")
    node.create(TOPIC)
    asked = p.ElectLeadersRequest(0, [TopicPartitions(TOPIC, [0])], 1000)
    (found,) = kafka(node, asked, 2).replica_election_results
    assert found.partition_result[0].error_code == E.ELECTION_NOT_NEEDED
    assert kafka(node, p.ListPartitionReassignmentsRequest()).topics == []
    for target, code in (([5], E.NONE), ([6], E.INVALID_REPLICA_ASSIGNMENT)):
        moved = p.AlterPartitionReassignmentsRequestTopic(
            TOPIC, [p.AlterPartitionReassignmentsRequestPartition(0, target)]
        )
        told = kafka(node, p.AlterPartitionReassignmentsRequest(topics=[moved]))
        assert told.responses[0].partitions[0].error_code == code
    quorum = p.DescribeQuorumRequest(
        [p.DescribeQuorumRequestTopic("__cluster_metadata", [p.DescribeQuorumRequestPartition(0)])]
    )
    voted = kafka(node, quorum, 2).topics[0].partitions[0]
    assert (voted.leader_id, [each.replica_id for each in voted.current_voters]) == (5, [5])
    assert kafka(node, p.UnregisterBrokerRequest(6)).error_code == E.BROKER_ID_NOT_REGISTERED


def test_kafka_groups_and_transactions_are_served_by_their_coordinator_alone() -> None:
    for node, code in ((three_nodes(), E.NOT_COORDINATOR), (three_nodes(name="1"), E.NONE)):
        topic = g.OffsetCommitRequestTopic(TOPIC, partitions=[g.OffsetCommitRequestPartition(0, 0)])
        told = kafka(node, g.OffsetCommitRequest("g", topics=[topic]), 8)
        assert told.topics[0].partitions[0].error_code == code
        asked = g.OffsetFetchRequestGroup("g", topics=[g.OffsetFetchRequestTopic(TOPIC, partition_indexes=[0])])
        assert kafka(node, g.OffsetFetchRequest(groups=[asked]), 8).groups[0].error_code == code
        assert kafka(node, t.InitProducerIdRequest("id", 60_000)).error_code == code
        assert kafka(node, t.InitProducerIdRequest(None, 60_000)).error_code == E.NONE


def test_kafka_unregisters_a_broker_that_is_fenced_and_holds_nothing() -> None:
    removed: list[str] = []

    async def note(name: str) -> None:
        removed.append(name)

    node = three_nodes(member_removed=note)

    def asked(number: int) -> tuple[int, str | None]:
        told = kafka(node, p.UnregisterBrokerRequest(number))
        return told.error_code, told.error_message

    assert asked(9) == (E.BROKER_ID_NOT_REGISTERED, "broker 9 is not registered")
    assert asked(1) == (E.INVALID_REQUEST, "node 1 is running; stop it first")
    node.services.metadata.change_exclusively([e.FenceNode(node=1, incarnation=1)])
    assert asked(1) == (E.INVALID_REQUEST, "node 1 has replicas of 1 partition; move them to other nodes first")
    image = node.services.metadata.image
    gone = [e.DeleteTopic(topic=name, topic_id=topic.topic_id, deleted_ms=1) for name, topic in image.topics.items()]
    node.services.metadata.change_exclusively(gone)
    assert asked(1) == (E.NONE, None)
    assert removed == ["1"], "its member of etcd is removed as well"
    assert sorted(node.services.metadata.image.cluster.nodes()) == [2, 3]
    assert asked(1)[0] == E.BROKER_ID_NOT_REGISTERED


def test_kafka_throttles_a_move_as_its_tool_asks_and_takes_it_back() -> None:
    """On the node that is asked, and nothing else of a node's settings is changed so."""
    node = three_nodes()
    rate = node.services.replication_rate

    def asked(name: str, value: str | None, *, kind: int = 0, broker: str = "2", only_check: bool = False) -> int:
        change = topics.IncrementalAlterConfigsRequestConfig(name, kind, value)
        resource = topics.IncrementalAlterConfigsRequestResource(4, broker, [change])
        told = kafka(node, topics.IncrementalAlterConfigsRequest([resource], validate_only=only_check))
        return int(told.responses[0].error_code)

    def shown() -> list[str | None]:
        resource = topics.DescribeConfigsRequestResource(4, "2", [RATE])
        told = kafka(node, topics.DescribeConfigsRequest([resource]))
        return [each.value for each in told.results[0].configs]

    assert (asked(RATE, "5000", only_check=True), rate.asked, shown()) == (E.NONE, None, [])
    assert (asked(RATE, "5000"), rate.bytes_per_second, shown()) == (E.NONE, 5000, ["5000"])
    assert asked("follower.replication.throttled.rate", "9") == E.NONE
    assert rate.asked == 5000
    for wrong in ("0", "-1", "x", str(2**41)):
        assert asked(RATE, wrong) == E.INVALID_CONFIG
    assert (
        asked("log.retention.ms", "5")
        == asked(RATE, "5", broker="3")
        == asked(RATE, "5", broker="")
        == (E.INVALID_REQUEST)
    )
    assert asked(RATE, None, kind=1) == E.NONE
    assert shown() == []
    alone = topics.AlterConfigsRequest([topics.AlterConfigsRequestResource(4, "2")])
    assert kafka(node, alone).responses[0].error_code == E.INVALID_REQUEST
