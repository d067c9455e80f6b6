"""Consumer groups and their committed offsets. `rows.py` explains the rows.

The data that members exchange (`metadata`, `assignment`) is opaque.
"""

from typing import Annotated

from braidlog.wire.kafka.messages.parts import PartitionOutcome, Throttled, TopicOutcome
from braidlog.wire.kafka.rows import I16, I32, I64, NO_UUID, UNASKED, Bool, Bytes, Message, Text, Uuid


class JoinGroupRequestProtocol(Message, frozen=True):
    name: Text = ""
    metadata: Bytes = b""


class JoinGroupRequest(Message, frozen=True):
    group_id: Text = ""
    session_timeout_ms: I32 = 0
    rebalance_timeout_ms: Annotated[I32, "1+"] = -1
    member_id: Text = ""
    group_instance_id: Annotated[Text | None, "5+"] = None
    protocol_type: Text = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: Annotated[Text | None, "8+"] = None


class JoinGroupResponseMember(Message, frozen=True):
    member_id: Text = ""
    group_instance_id: Annotated[Text | None, "5+"] = None
    metadata: Bytes = b""


class JoinGroupResponse(Message, frozen=True):
    throttle_time_ms: Annotated[I32, "2+"] = 0
    error_code: I16 = 0
    generation_id: I32 = -1
    protocol_type: Annotated[Text | None, "7+"] = None
    protocol_name: Annotated[Text | None, "null 7+"] = ""
    leader: Text = ""
    skip_assignment: Annotated[Bool, "9+"] = False
    member_id: Text = ""
    members: list[JoinGroupResponseMember] = []


class SyncGroupRequestAssignment(Message, frozen=True):
    member_id: Text = ""
    assignment: Bytes = b""


class SyncGroupRequest(Message, frozen=True):
    group_id: Text = ""
    generation_id: I32 = 0
    member_id: Text = ""
    group_instance_id: Annotated[Text | None, "3+"] = None
    protocol_type: Annotated[Text | None, "5+"] = None
    protocol_name: Annotated[Text | None, "5+"] = None
    assignments: list[SyncGroupRequestAssignment] = []


class SyncGroupResponse(Message, frozen=True):
    throttle_time_ms: Annotated[I32, "1+"] = 0
    error_code: I16 = 0
    protocol_type: Annotated[Text | None, "5+"] = None
    protocol_name: Annotated[Text | None, "5+"] = None
    assignment: Bytes = b""


class HeartbeatRequest(Message, frozen=True):
    group_id: Text = ""
    generation_id: I32 = 0
    member_id: Text = ""
    group_instance_id: Annotated[Text | None, "3+"] = None


class HeartbeatResponse(Message, frozen=True):
    throttle_time_ms: Annotated[I32, "1+"] = 0
    error_code: I16 = 0


class LeaveGroupRequestMember(Message, frozen=True):
    member_id: Text = ""
    group_instance_id: Text | None = None
    reason: Annotated[Text | None, "5+"] = None


class LeaveGroupRequest(Message, frozen=True):
    group_id: Text = ""
    member_id: Annotated[Text, "0-2"] = ""
    members: Annotated[list[LeaveGroupRequestMember], "3+"] = []


class LeaveGroupResponseMember(Message, frozen=True):
    member_id: Text = ""
    group_instance_id: Text | None = ""
    error_code: I16 = 0


class LeaveGroupResponse(Message, frozen=True):
    throttle_time_ms: Annotated[I32, "1+"] = 0
    error_code: I16 = 0
    members: Annotated[list[LeaveGroupResponseMember], "3+"] = []


class DescribeGroupsRequest(Message, frozen=True):
    groups: list[Text] = []
    include_authorized_operations: Annotated[Bool, "3+"] = False


class DescribeGroupsResponseMember(Message, frozen=True):
    member_id: Text = ""
    group_instance_id: Annotated[Text | None, "4+"] = None
    client_id: Text = ""
    client_host: Text = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


class DescribeGroupsResponseGroup(Message, frozen=True):
    error_code: I16 = 0
    error_message: Annotated[Text | None, "6+"] = None
    group_id: Text = ""
    group_state: Text = ""
    protocol_type: Text = ""
    protocol_data: Text = ""
    members: list[DescribeGroupsResponseMember] = []
    authorized_operations: Annotated[I32, "3+"] = UNASKED


class DescribeGroupsResponse(Message, frozen=True):
    throttle_time_ms: Annotated[I32, "1+"] = 0
    groups: list[DescribeGroupsResponseGroup] = []


class ListGroupsRequest(Message, frozen=True):
    states_filter: Annotated[list[Text], "4+"] = []
    types_filter: Annotated[list[Text], "5+"] = []


class ListGroupsResponseGroup(Message, frozen=True):
    group_id: Text = ""
    protocol_type: Text = ""
    group_state: Annotated[Text, "4+"] = ""
    group_type: Annotated[Text, "5+"] = ""


class ListGroupsResponse(Message, frozen=True):
    throttle_time_ms: Annotated[I32, "1+"] = 0
    error_code: I16 = 0
    groups: list[ListGroupsResponseGroup] = []


class DeleteGroupsRequest(Message, frozen=True):
    groups_names: list[Text] = []


class DeleteGroupsResponseResult(Message, frozen=True):
    group_id: Text = ""
    error_code: I16 = 0


class DeleteGroupsResponse(Throttled, frozen=True):
    results: list[DeleteGroupsResponseResult] = []


class OffsetCommitRequestPartition(Message, frozen=True):
    partition_index: I32 = 0
    committed_offset: I64 = 0
    committed_leader_epoch: Annotated[I32, "6+"] = -1
    committed_metadata: Text | None = ""


class OffsetCommitRequestTopic(Message, frozen=True):
    name: Annotated[Text, "2-9"] = ""
    topic_id: Annotated[Uuid, "10+"] = NO_UUID
    partitions: list[OffsetCommitRequestPartition] = []


class OffsetCommitRequest(Message, frozen=True):
    group_id: Text = ""
    generation_id_or_member_epoch: I32 = -1
    member_id: Text = ""
    group_instance_id: Annotated[Text | None, "7+"] = None
    retention_time_ms: Annotated[I64, "2-4"] = -1
    topics: list[OffsetCommitRequestTopic] = []


class OffsetCommitResponseTopic(Message, frozen=True):
    name: Annotated[Text, "2-9"] = ""
    topic_id: Annotated[Uuid, "10+"] = NO_UUID
    partitions: list[PartitionOutcome] = []


class OffsetCommitResponse(Message, frozen=True):
    throttle_time_ms: Annotated[I32, "3+"] = 0
    topics: list[OffsetCommitResponseTopic] = []


class OffsetFetchRequestTopic(Message, frozen=True):
    name: Annotated[Text, "1-9"] = ""
    topic_id: Annotated[Uuid, "10+"] = NO_UUID
    partition_indexes: list[I32] = []


class OffsetFetchRequestGroup(Message, frozen=True):
    group_id: Text = ""
    member_id: Annotated[Text | None, "9+"] = None
    member_epoch: Annotated[I32, "9+"] = -1
    topics: list[OffsetFetchRequestTopic] | None = []


class OffsetFetchRequest(Message, frozen=True):
    # One group until version 7, several from 8 on: the topics are equal and share one type here.
    group_id: Annotated[Text, "1-7"] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, "1-7 null 2-7"] = []
    groups: Annotated[list[OffsetFetchRequestGroup], "8+"] = []
    require_stable: Annotated[Bool, "7+"] = False


class OffsetFetchResponsePartition(Message, frozen=True):
    partition_index: I32 = 0
    committed_offset: I64 = 0
    committed_leader_epoch: Annotated[I32, "5+"] = -1
    metadata: Text | None = ""
    error_code: I16 = 0


class OffsetFetchResponseTopic(Message, frozen=True):
    name: Annotated[Text, "1-9"] = ""
    topic_id: Annotated[Uuid, "10+"] = NO_UUID
    partitions: list[OffsetFetchResponsePartition] = []


class OffsetFetchResponseGroup(Message, frozen=True):
    group_id: Text = ""
    topics: list[OffsetFetchResponseTopic] = []
    error_code: I16 = 0


class OffsetFetchResponse(Message, frozen=True):
    throttle_time_ms: Annotated[I32, "3+"] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], "1-7"] = []
    error_code: Annotated[I16, "2-7"] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], "8+"] = []


class OffsetDeleteRequestPartition(Message, frozen=True):
    partition_index: I32 = 0


class OffsetDeleteRequestTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[OffsetDeleteRequestPartition] = []


class OffsetDeleteRequest(Message, frozen=True):
    group_id: Text = ""
    topics: list[OffsetDeleteRequestTopic] = []


class OffsetDeleteResponse(Message, frozen=True):
    error_code: I16 = 0
    throttle_time_ms: I32 = 0
    topics: list[TopicOutcome] = []
