"""Versions, brokers, topics, coordinators. `rows.py` explains the rows."""

from typing import Annotated

from braidlog.wire.kafka.messages.parts import Throttled, ThrottledOutcome
from braidlog.wire.kafka.rows import I8, I16, I32, I64, NO_UUID, UNASKED, Bool, Message, Text, Uuid


class ApiVersionsRequest(Message, frozen=True):
    client_software_name: Annotated[Text, "3+"] = ""
    client_software_version: Annotated[Text, "3+"] = ""


class ApiVersionsResponseApi(Message, frozen=True):
    api_key: I16 = 0
    min_version: I16 = 0
    max_version: I16 = 0


class ApiVersionsResponseSupportedFeature(Message, frozen=True):
    name: Text = ""
    min_version: I16 = 0
    max_version: I16 = 0


class ApiVersionsResponseFinalizedFeature(Message, frozen=True):
    name: Text = ""
    max_version_level: I16 = 0
    min_version_level: I16 = 0


class ApiVersionsResponse(Message, frozen=True):
    error_code: I16 = 0
    api_keys: list[ApiVersionsResponseApi] = []
    throttle_time_ms: Annotated[I32, "1+"] = 0
    supported_features: Annotated[list[ApiVersionsResponseSupportedFeature], "3+ tag 0"] = []
    finalized_features_epoch: Annotated[I64, "3+ tag 1"] = -1
    finalized_features: Annotated[list[ApiVersionsResponseFinalizedFeature], "3+ tag 2"] = []
    zk_migration_ready: Annotated[Bool, "3+ tag 3"] = False


class MetadataRequestTopic(Message, frozen=True):
    topic_id: Annotated[Uuid, "10+"] = NO_UUID
    name: Annotated[Text | None, "null 10+"] = ""


class MetadataRequest(Message, frozen=True):
    topics: Annotated[list[MetadataRequestTopic] | None, "null 1+"] = []
    allow_auto_topic_creation: Annotated[Bool, "4+"] = True
    include_cluster_authorized_operations: Annotated[Bool, "8-10"] = False
    include_topic_authorized_operations: Annotated[Bool, "8+"] = False


class MetadataResponseBroker(Message, frozen=True):
    node_id: I32 = 0
    host: Text = ""
    port: I32 = 0
    rack: Annotated[Text | None, "1+"] = None


class MetadataResponsePartition(Message, frozen=True):
    error_code: I16 = 0
    partition_index: I32 = 0
    leader_id: I32 = 0
    leader_epoch: Annotated[I32, "7+"] = -1
    replica_nodes: list[I32] = []
    isr_nodes: list[I32] = []
    offline_replicas: Annotated[list[I32], "5+"] = []


class MetadataResponseTopic(Message, frozen=True):
    error_code: I16 = 0
    name: Annotated[Text | None, "null 12+"] = ""
    topic_id: Annotated[Uuid, "10+"] = NO_UUID
    is_internal: Annotated[Bool, "1+"] = False
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: Annotated[I32, "8+"] = UNASKED


class MetadataResponse(Message, frozen=True):
    throttle_time_ms: Annotated[I32, "3+"] = 0
    brokers: list[MetadataResponseBroker] = []
    cluster_id: Annotated[Text | None, "2+"] = None
    controller_id: Annotated[I32, "1+"] = -1
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: Annotated[I32, "8-10"] = UNASKED
    error_code: Annotated[I16, "13+"] = 0


class FindCoordinatorRequest(Message, frozen=True):
    key: Annotated[Text, "0-3"] = ""
    key_type: Annotated[I8, "1+"] = 0
    coordinator_keys: Annotated[list[Text], "4+"] = []


class FindCoordinatorResponseCoordinator(Message, frozen=True):
    key: Text = ""
    node_id: I32 = 0
    host: Text = ""
    port: I32 = 0
    error_code: I16 = 0
    error_message: Text | None = None


class FindCoordinatorResponse(Message, frozen=True):
    throttle_time_ms: Annotated[I32, "1+"] = 0
    error_code: Annotated[I16, "0-3"] = 0
    error_message: Annotated[Text | None, "1-3"] = None
    node_id: Annotated[I32, "0-3"] = 0
    host: Annotated[Text, "0-3"] = ""
    port: Annotated[I32, "0-3"] = 0
    coordinators: Annotated[list[FindCoordinatorResponseCoordinator], "4+"] = []


class DescribeClusterRequest(Message, frozen=True):
    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[I8, "1+"] = 1
    include_fenced_brokers: Annotated[Bool, "2+"] = False


class DescribeClusterResponseBroker(Message, frozen=True):
    broker_id: I32 = 0
    host: Text = ""
    port: I32 = 0
    rack: Text | None = None
    is_fenced: Annotated[Bool, "2+"] = False


class DescribeClusterResponse(ThrottledOutcome, frozen=True):
    error_message: Text | None = None
    endpoint_type: Annotated[I8, "1+"] = 1
    cluster_id: Text = ""
    controller_id: I32 = -1
    brokers: list[DescribeClusterResponseBroker] = []
    cluster_authorized_operations: I32 = UNASKED


class DescribeTopicPartitionsRequestTopic(Message, frozen=True):
    name: Text = ""


class TopicPartitionCursor(Message, frozen=True):
    topic_name: Text = ""
    partition_index: I32 = 0


class DescribeTopicPartitionsRequest(Message, frozen=True):
    topics: list[DescribeTopicPartitionsRequestTopic] = []
    response_partition_limit: I32 = 2000
    cursor: TopicPartitionCursor | None = None


class DescribeTopicPartitionsResponsePartition(Message, frozen=True):
    error_code: I16 = 0
    partition_index: I32 = 0
    leader_id: I32 = 0
    leader_epoch: I32 = -1
    replica_nodes: list[I32] = []
    isr_nodes: list[I32] = []
    eligible_leader_replicas: list[I32] | None = None
    last_known_elr: list[I32] | None = None
    offline_replicas: list[I32] = []


class DescribeTopicPartitionsResponseTopic(Message, frozen=True):
    error_code: I16 = 0
    name: Text | None = ""
    topic_id: Uuid = NO_UUID
    is_internal: Bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    topic_authorized_operations: I32 = UNASKED


class DescribeTopicPartitionsResponse(Throttled, frozen=True):
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: TopicPartitionCursor | None = None
