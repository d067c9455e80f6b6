"""Administration of topics and their settings. `rows.py` explains the rows."""

from typing import Annotated

from braidlog.wire.kafka.messages.parts import Outcome, Throttled, ThrottledOutcome, TopicPartitions
from braidlog.wire.kafka.rows import I8, I16, I32, I64, NO_UUID, Bool, Message, Text, Uuid


class CreateTopicsRequestAssignment(Message, frozen=True):
    partition_index: I32 = 0
    broker_ids: list[I32] = []


class ConfigValue(Message, frozen=True):
    name: Text = ""
    value: Text | None = ""


class CreateTopicsRequestTopic(Message, frozen=True):
    name: Text = ""
    num_partitions: I32 = 0
    replication_factor: I16 = 0
    assignments: list[CreateTopicsRequestAssignment] = []
    configs: list[ConfigValue] = []


class CreateTopicsRequest(Message, frozen=True):
    topics: list[CreateTopicsRequestTopic] = []
    timeout_ms: I32 = 60000
    validate_only: Bool = False


class CreateTopicsResponseConfig(ConfigValue, frozen=True):
    read_only: Bool = False
    config_source: I8 = -1
    is_sensitive: Bool = False


class CreateTopicsResponseTopic(Message, frozen=True):
    name: Text = ""
    topic_id: Annotated[Uuid, "7+"] = NO_UUID
    error_code: I16 = 0
    error_message: Text | None = None
    topic_config_error_code: Annotated[I16, "5+ tag 0"] = 0
    num_partitions: Annotated[I32, "5+"] = -1
    replication_factor: Annotated[I16, "5+"] = -1
    configs: Annotated[list[CreateTopicsResponseConfig] | None, "5+"] = []


class CreateTopicsResponse(Throttled, frozen=True):
    topics: list[CreateTopicsResponseTopic] = []


class DeleteTopicsRequestTopic(Message, frozen=True):
    name: Text | None = None
    topic_id: Uuid = NO_UUID


class DeleteTopicsRequest(Message, frozen=True):
    topics: Annotated[list[DeleteTopicsRequestTopic], "6+"] = []
    topic_names: Annotated[list[Text], "1-5"] = []
    timeout_ms: I32 = 0


class DeleteTopicsResponseTopic(Message, frozen=True):
    name: Annotated[Text | None, "null 6+"] = ""
    topic_id: Annotated[Uuid, "6+"] = NO_UUID
    error_code: I16 = 0
    error_message: Annotated[Text | None, "5+"] = None


class DeleteTopicsResponse(Throttled, frozen=True):
    responses: list[DeleteTopicsResponseTopic] = []


class CreatePartitionsRequestAssignment(Message, frozen=True):
    broker_ids: list[I32] = []


class CreatePartitionsRequestTopic(Message, frozen=True):
    name: Text = ""
    count: I32 = 0
    assignments: list[CreatePartitionsRequestAssignment] | None = []


class CreatePartitionsRequest(Message, frozen=True):
    topics: list[CreatePartitionsRequestTopic] = []
    timeout_ms: I32 = 0
    validate_only: Bool = False


class CreatePartitionsResponseResult(Message, frozen=True):
    name: Text = ""
    error_code: I16 = 0
    error_message: Text | None = None


class CreatePartitionsResponse(Throttled, frozen=True):
    results: list[CreatePartitionsResponseResult] = []


class DeleteRecordsRequestPartition(Message, frozen=True):
    partition_index: I32 = 0
    offset: I64 = 0


class DeleteRecordsRequestTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[DeleteRecordsRequestPartition] = []


class DeleteRecordsRequest(Message, frozen=True):
    topics: list[DeleteRecordsRequestTopic] = []
    timeout_ms: I32 = 0


class DeleteRecordsResponsePartition(Message, frozen=True):
    partition_index: I32 = 0
    low_watermark: I64 = 0
    error_code: I16 = 0


class DeleteRecordsResponseTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[DeleteRecordsResponsePartition] = []


class DeleteRecordsResponse(Throttled, frozen=True):
    topics: list[DeleteRecordsResponseTopic] = []


class DescribeConfigsRequestResource(Message, frozen=True):
    resource_type: I8 = 0
    resource_name: Text = ""
    configuration_keys: list[Text] | None = []


class DescribeConfigsRequest(Message, frozen=True):
    resources: list[DescribeConfigsRequestResource] = []
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, "3+"] = False


class DescribeConfigsResponseSynonym(ConfigValue, frozen=True):
    source: I8 = 0


class DescribeConfigsResponseConfig(CreateTopicsResponseConfig, frozen=True):
    synonyms: list[DescribeConfigsResponseSynonym] = []
    config_type: Annotated[I8, "3+"] = 0
    documentation: Annotated[Text | None, "3+"] = ""


class ConfiguredResource(Outcome, frozen=True):
    resource_type: I8 = 0
    resource_name: Text = ""


class DescribeConfigsResponseResult(ConfiguredResource, frozen=True):
    configs: list[DescribeConfigsResponseConfig] = []


class DescribeConfigsResponse(Throttled, frozen=True):
    results: list[DescribeConfigsResponseResult] = []


class AlterConfigsRequestResource(Message, frozen=True):
    resource_type: I8 = 0
    resource_name: Text = ""
    configs: list[ConfigValue] = []


class AlterConfigsRequest(Message, frozen=True):
    resources: list[AlterConfigsRequestResource] = []
    validate_only: Bool = False


class AlterConfigsResponse(Throttled, frozen=True):
    responses: list[ConfiguredResource] = []


class IncrementalAlterConfigsRequestConfig(Message, frozen=True):
    name: Text = ""
    config_operation: I8 = 0
    value: Text | None = ""


class IncrementalAlterConfigsRequestResource(Message, frozen=True):
    resource_type: I8 = 0
    resource_name: Text = ""
    configs: list[IncrementalAlterConfigsRequestConfig] = []


class IncrementalAlterConfigsRequest(Message, frozen=True):
    resources: list[IncrementalAlterConfigsRequestResource] = []
    validate_only: Bool = False


class IncrementalAlterConfigsResponse(AlterConfigsResponse, frozen=True):
    pass


class ListConfigResourcesRequest(Message, frozen=True):
    resource_types: Annotated[list[I8], "1+"] = []


class ListConfigResourcesResponseResource(Message, frozen=True):
    resource_name: Text = ""
    resource_type: Annotated[I8, "1+"] = 16


class ListConfigResourcesResponse(ThrottledOutcome, frozen=True):
    config_resources: list[ListConfigResourcesResponseResource] = []


class DescribeLogDirsRequest(Message, frozen=True):
    topics: list[TopicPartitions] | None = []


class DescribeLogDirsResponsePartition(Message, frozen=True):
    partition_index: I32 = 0
    partition_size: I64 = 0
    offset_lag: I64 = 0
    is_future_key: Bool = False


class DescribeLogDirsResponseTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[DescribeLogDirsResponsePartition] = []


class DescribeLogDirsResponseResult(Message, frozen=True):
    error_code: I16 = 0
    log_dir: Text = ""
    topics: list[DescribeLogDirsResponseTopic] = []
    total_bytes: Annotated[I64, "4+"] = -1
    usable_bytes: Annotated[I64, "4+"] = -1


class DescribeLogDirsResponse(Throttled, frozen=True):
    error_code: Annotated[I16, "3+"] = 0
    results: list[DescribeLogDirsResponseResult] = []
