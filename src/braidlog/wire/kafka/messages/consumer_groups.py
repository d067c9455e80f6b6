"""Consumer groups with server-side assignment (KIP-848): heartbeat and describe. `rows.py` explains the rows."""

from typing import Annotated

from braidlog.wire.kafka.messages.parts import Throttled, ThrottledOutcome
from braidlog.wire.kafka.rows import I8, I16, I32, NO_UUID, UNASKED, Bool, Message, Text, Uuid


class TopicIdPartitions(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: list[I32] = []


class ConsumerGroupHeartbeatRequest(Message, frozen=True):
    """A field that is null or -1 has not changed since the previous heartbeat."""

    group_id: Text = ""
    member_id: Text = ""
    member_epoch: I32 = 0
    instance_id: Text | None = None
    rack_id: Text | None = None
    rebalance_timeout_ms: I32 = -1
    subscribed_topic_names: list[Text] | None = None
    subscribed_topic_regex: Annotated[Text | None, "1+"] = None
    server_assignor: Text | None = None
    topic_partitions: list[TopicIdPartitions] | None = None


class ConsumerGroupHeartbeatResponseAssignment(Message, frozen=True):
    topic_partitions: list[TopicIdPartitions] = []


class ConsumerGroupHeartbeatResponse(ThrottledOutcome, frozen=True):
    error_message: Text | None = None
    member_id: Text | None = None
    member_epoch: I32 = 0
    heartbeat_interval_ms: I32 = 0
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = None


class ConsumerGroupDescribeRequest(Message, frozen=True):
    group_ids: list[Text] = []
    include_authorized_operations: Bool = False


class ConsumerGroupDescribeResponseTopic(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    topic_name: Text = ""
    partitions: list[I32] = []


class ConsumerGroupDescribeResponseAssignment(Message, frozen=True):
    topic_partitions: list[ConsumerGroupDescribeResponseTopic] = []


class ConsumerGroupDescribeResponseMember(Message, frozen=True):
    member_id: Text = ""
    instance_id: Text | None = None
    rack_id: Text | None = None
    member_epoch: I32 = 0
    client_id: Text = ""
    client_host: Text = ""
    subscribed_topic_names: list[Text] = []
    subscribed_topic_regex: Text | None = None
    assignment: ConsumerGroupDescribeResponseAssignment = ConsumerGroupDescribeResponseAssignment()
    target_assignment: ConsumerGroupDescribeResponseAssignment = ConsumerGroupDescribeResponseAssignment()
    member_type: Annotated[I8, "1+"] = -1


class ConsumerGroupDescribeResponseGroup(Message, frozen=True):
    error_code: I16 = 0
    error_message: Text | None = None
    group_id: Text = ""
    group_state: Text = ""
    group_epoch: I32 = 0
    assignment_epoch: I32 = 0
    assignor_name: Text = ""
    members: list[ConsumerGroupDescribeResponseMember] = []
    authorized_operations: I32 = UNASKED


class ConsumerGroupDescribeResponse(Throttled, frozen=True):
    groups: list[ConsumerGroupDescribeResponseGroup] = []
