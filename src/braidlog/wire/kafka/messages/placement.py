"""Placement and leaders of partitions: elections, reassignments, the metadata quorum. `rows.py` explains the rows."""

from typing import Annotated

from braidlog.wire.kafka.messages.parts import Throttled, ThrottledOutcome, TopicPartitions
from braidlog.wire.kafka.rows import I8, I16, I32, I64, NO_UUID, U16, Bool, Message, Text, Uuid


class ElectLeadersRequest(Message, frozen=True):
    election_type: Annotated[I8, "1+"] = 0
    topic_partitions: list[TopicPartitions] | None = []
    timeout_ms: I32 = 60_000


class ElectLeadersResponsePartition(Message, frozen=True):
    partition_id: I32 = 0
    error_code: I16 = 0
    error_message: Text | None = None


class ElectLeadersResponseTopic(Message, frozen=True):
    topic: Text = ""
    partition_result: list[ElectLeadersResponsePartition] = []


class ElectLeadersResponse(Throttled, frozen=True):
    error_code: Annotated[I16, "1+"] = 0
    replica_election_results: list[ElectLeadersResponseTopic] = []


class AlterPartitionReassignmentsRequestPartition(Message, frozen=True):
    partition_index: I32 = 0
    replicas: list[I32] | None = None


class AlterPartitionReassignmentsRequestTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[AlterPartitionReassignmentsRequestPartition] = []


class AlterPartitionReassignmentsRequest(Message, frozen=True):
    timeout_ms: I32 = 60_000
    allow_replication_factor_change: Annotated[Bool, "1+"] = True
    topics: list[AlterPartitionReassignmentsRequestTopic] = []


class AlterPartitionReassignmentsResponsePartition(Message, frozen=True):
    partition_index: I32 = 0
    error_code: I16 = 0
    error_message: Text | None = None


class AlterPartitionReassignmentsResponseTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[AlterPartitionReassignmentsResponsePartition] = []


class AlterPartitionReassignmentsResponse(Throttled, frozen=True):
    allow_replication_factor_change: Annotated[Bool, "1+"] = True
    error_code: I16 = 0
    error_message: Text | None = None
    responses: list[AlterPartitionReassignmentsResponseTopic] = []


class ListPartitionReassignmentsRequestTopic(Message, frozen=True):
    name: Text = ""
    partition_indexes: list[I32] = []


class ListPartitionReassignmentsRequest(Message, frozen=True):
    timeout_ms: I32 = 60_000
    topics: list[ListPartitionReassignmentsRequestTopic] | None = None


class ListPartitionReassignmentsResponsePartition(Message, frozen=True):
    partition_index: I32 = 0
    replicas: list[I32] = []
    adding_replicas: list[I32] = []
    removing_replicas: list[I32] = []


class ListPartitionReassignmentsResponseTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[ListPartitionReassignmentsResponsePartition] = []


class ListPartitionReassignmentsResponse(ThrottledOutcome, frozen=True):
    error_message: Text | None = None
    topics: list[ListPartitionReassignmentsResponseTopic] = []


class DescribeQuorumRequestPartition(Message, frozen=True):
    partition_index: I32 = 0


class DescribeQuorumRequestTopic(Message, frozen=True):
    topic_name: Text = ""
    partitions: list[DescribeQuorumRequestPartition] = []


class DescribeQuorumRequest(Message, frozen=True):
    topics: list[DescribeQuorumRequestTopic] = []


class DescribeQuorumResponseReplica(Message, frozen=True):
    replica_id: I32 = 0
    replica_directory_id: Annotated[Uuid, "2+"] = NO_UUID
    log_end_offset: I64 = 0
    last_fetch_timestamp: Annotated[I64, "1+"] = -1
    last_caught_up_timestamp: Annotated[I64, "1+"] = -1


class DescribeQuorumResponsePartition(Message, frozen=True):
    partition_index: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Text | None, "2+"] = None
    leader_id: I32 = 0
    leader_epoch: I32 = 0
    high_watermark: I64 = 0
    current_voters: list[DescribeQuorumResponseReplica] = []
    observers: list[DescribeQuorumResponseReplica] = []


class DescribeQuorumResponseTopic(Message, frozen=True):
    topic_name: Text = ""
    partitions: list[DescribeQuorumResponsePartition] = []


class DescribeQuorumResponseListener(Message, frozen=True):
    name: Text = ""
    host: Text = ""
    port: U16 = 0


class DescribeQuorumResponseNode(Message, frozen=True):
    node_id: I32 = 0
    listeners: list[DescribeQuorumResponseListener] = []


class DescribeQuorumResponse(Message, frozen=True):
    error_code: I16 = 0
    error_message: Annotated[Text | None, "2+"] = None
    topics: list[DescribeQuorumResponseTopic] = []
    nodes: Annotated[list[DescribeQuorumResponseNode], "2+"] = []


class UnregisterBrokerRequest(Message, frozen=True):
    broker_id: I32 = 0


class UnregisterBrokerResponse(ThrottledOutcome, frozen=True):
    error_message: Text | None = None
