"""Produce, Fetch, and the offsets of a log. `rows.py` explains the rows.

Batches are opaque here: `records` is everything between its length and the next field.
"""

from typing import Annotated

from braidlog.wire.kafka.messages.parts import CurrentLeader, NodeEndpoint, Throttled
from braidlog.wire.kafka.rows import I8, I16, I32, I64, NO_UUID, Message, Records, Sliced, Text, Uuid


class ProduceRequestPartition(Message, frozen=True):
    index: I32 = 0
    records: Records | None = None


class ProduceRequestTopic(Message, frozen=True):
    name: Annotated[Text, "3-12"] = ""
    topic_id: Annotated[Uuid, "13+"] = NO_UUID
    partition_data: list[ProduceRequestPartition] = []


class ProduceRequest(Message, frozen=True):
    transactional_id: Text | None = None
    acks: I16 = 0
    timeout_ms: I32 = 0
    topic_data: list[ProduceRequestTopic] = []


class ProduceResponseRecordError(Message, frozen=True):
    batch_index: I32 = 0
    batch_index_error_message: Text | None = None


class ProduceResponsePartition(Message, frozen=True):
    index: I32 = 0
    error_code: I16 = 0
    base_offset: I64 = 0
    log_append_time_ms: I64 = -1
    log_start_offset: Annotated[I64, "5+"] = -1
    record_errors: Annotated[list[ProduceResponseRecordError], "8+"] = []
    error_message: Annotated[Text | None, "8+"] = None
    current_leader: Annotated[CurrentLeader, "10+ tag 0"] = CurrentLeader()


class ProduceResponseTopic(Message, frozen=True):
    name: Annotated[Text, "3-12"] = ""
    topic_id: Annotated[Uuid, "13+"] = NO_UUID
    partition_responses: list[ProduceResponsePartition] = []


class ProduceResponse(Message, frozen=True):
    responses: list[ProduceResponseTopic] = []
    throttle_time_ms: I32 = 0
    node_endpoints: Annotated[list[NodeEndpoint], "10+ tag 0"] = []


class FetchRequestReplicaState(Message, frozen=True):
    replica_id: I32 = -1
    replica_epoch: I64 = -1


class FetchRequestPartition(Message, frozen=True):
    partition: I32 = 0
    current_leader_epoch: Annotated[I32, "9+"] = -1
    fetch_offset: I64 = 0
    last_fetched_epoch: Annotated[I32, "12+"] = -1
    log_start_offset: Annotated[I64, "5+"] = -1
    partition_max_bytes: I32 = 0
    replica_directory_id: Annotated[Uuid, "17+ tag 0"] = NO_UUID
    high_watermark: Annotated[I64, "18+ tag 1"] = 2**63 - 1


class FetchRequestTopic(Message, frozen=True):
    topic: Annotated[Text, "4-12"] = ""
    topic_id: Annotated[Uuid, "13+"] = NO_UUID
    partitions: list[FetchRequestPartition] = []


class FetchRequestForgotten(Message, frozen=True):
    topic: Annotated[Text, "7-12"] = ""
    topic_id: Annotated[Uuid, "13+"] = NO_UUID
    partitions: list[I32] = []


class FetchRequest(Message, frozen=True):
    cluster_id: Annotated[Text | None, "12+ tag 0"] = None
    replica_id: Annotated[I32, "4-14"] = -1
    replica_state: Annotated[FetchRequestReplicaState, "15+ tag 1"] = FetchRequestReplicaState()
    max_wait_ms: I32 = 0
    min_bytes: I32 = 0
    max_bytes: I32 = 2**31 - 1
    isolation_level: I8 = 0
    session_id: Annotated[I32, "7+"] = 0
    session_epoch: Annotated[I32, "7+"] = -1
    topics: list[FetchRequestTopic] = []
    forgotten_topics_data: Annotated[list[FetchRequestForgotten], "7+"] = []
    rack_id: Annotated[Text, "11+"] = ""
    bare: Annotated[I8, "12+ tag 25211"] = 0
    """braidlog's own field, which foreign clients never send and other servers ignore. Batches may be returned as
    blocks of columns: 1, without values and headers; 2, without keys as well.
    """


class FetchResponseDivergingEpoch(Message, frozen=True):
    epoch: I32 = -1
    end_offset: I64 = -1


class FetchResponseSnapshotId(Message, frozen=True):
    end_offset: I64 = -1
    epoch: I32 = -1


class FetchResponseAborted(Message, frozen=True):
    producer_id: I64 = 0
    first_offset: I64 = 0


class FetchResponsePartition(Message, frozen=True):
    partition_index: I32 = 0
    error_code: I16 = 0
    high_watermark: I64 = 0
    last_stable_offset: I64 = -1
    log_start_offset: Annotated[I64, "5+"] = -1
    diverging_epoch: Annotated[FetchResponseDivergingEpoch, "12+ tag 0"] = FetchResponseDivergingEpoch()
    current_leader: Annotated[CurrentLeader, "12+ tag 1"] = CurrentLeader()
    snapshot_id: Annotated[FetchResponseSnapshotId, "12+ tag 2"] = FetchResponseSnapshotId()
    aborted_transactions: list[FetchResponseAborted] | None = []
    preferred_read_replica: Annotated[I32, "11+"] = -1
    records: Sliced | None = b""  # empty, not null: a null one breaks kafka-python


class FetchResponseTopic(Message, frozen=True):
    topic: Annotated[Text, "4-12"] = ""
    topic_id: Annotated[Uuid, "13+"] = NO_UUID
    partitions: list[FetchResponsePartition] = []


class FetchResponse(Throttled, frozen=True):
    error_code: Annotated[I16, "7+"] = 0
    session_id: Annotated[I32, "7+"] = 0
    responses: list[FetchResponseTopic] = []
    node_endpoints: Annotated[list[NodeEndpoint], "16+ tag 0"] = []


class ListOffsetsRequestPartition(Message, frozen=True):
    partition_index: I32 = 0
    current_leader_epoch: Annotated[I32, "4+"] = -1
    timestamp: I64 = 0


class ListOffsetsRequestTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[ListOffsetsRequestPartition] = []


class ListOffsetsRequest(Message, frozen=True):
    replica_id: I32 = 0
    isolation_level: Annotated[I8, "2+"] = 0
    topics: list[ListOffsetsRequestTopic] = []
    timeout_ms: Annotated[I32, "10+"] = 0


class ListOffsetsResponsePartition(Message, frozen=True):
    partition_index: I32 = 0
    error_code: I16 = 0
    timestamp: I64 = -1
    offset: I64 = -1
    leader_epoch: Annotated[I32, "4+"] = -1


class ListOffsetsResponseTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[ListOffsetsResponsePartition] = []


class ListOffsetsResponse(Message, frozen=True):
    throttle_time_ms: Annotated[I32, "2+"] = 0
    topics: list[ListOffsetsResponseTopic] = []


class OffsetForLeaderEpochRequestPartition(Message, frozen=True):
    partition: I32 = 0
    current_leader_epoch: I32 = -1
    leader_epoch: I32 = 0


class OffsetForLeaderEpochRequestTopic(Message, frozen=True):
    topic: Text = ""
    partitions: list[OffsetForLeaderEpochRequestPartition] = []


class OffsetForLeaderEpochRequest(Message, frozen=True):
    replica_id: Annotated[I32, "3+"] = -2
    topics: list[OffsetForLeaderEpochRequestTopic] = []


class OffsetForLeaderEpochResponsePartition(Message, frozen=True):
    error_code: I16 = 0
    partition: I32 = 0
    leader_epoch: I32 = -1
    end_offset: I64 = -1


class OffsetForLeaderEpochResponseTopic(Message, frozen=True):
    topic: Text = ""
    partitions: list[OffsetForLeaderEpochResponsePartition] = []


class OffsetForLeaderEpochResponse(Throttled, frozen=True):
    topics: list[OffsetForLeaderEpochResponseTopic] = []
