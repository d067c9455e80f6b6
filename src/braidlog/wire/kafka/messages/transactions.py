"""Idempotent producers and transactions. `rows.py` explains the rows."""

from typing import Annotated

from braidlog.wire.kafka.messages.parts import (
    Throttled,
    ThrottledOutcome,
    TopicOutcome,
    TopicPartitions,
    TransactionalProducer,
)
from braidlog.wire.kafka.rows import I16, I32, I64, Bool, Message, Text


class InitProducerIdRequest(Message, frozen=True):
    transactional_id: Text | None = ""
    transaction_timeout_ms: I32 = 0
    producer_id: Annotated[I64, "3+"] = -1
    producer_epoch: Annotated[I16, "3+"] = -1


class InitProducerIdResponse(ThrottledOutcome, frozen=True):
    producer_id: I64 = -1
    producer_epoch: I16 = 0


class WriteTxnMarkersRequestTopic(Message, frozen=True):
    name: Text = ""
    partition_indexes: list[I32] = []


class WriteTxnMarkersRequestMarker(Message, frozen=True):
    producer_id: I64 = 0
    producer_epoch: I16 = 0
    transaction_result: Bool = False
    topics: list[WriteTxnMarkersRequestTopic] = []
    coordinator_epoch: I32 = 0


class WriteTxnMarkersRequest(Message, frozen=True):
    markers: list[WriteTxnMarkersRequestMarker] = []


class WriteTxnMarkersResponseMarker(Message, frozen=True):
    producer_id: I64 = 0
    topics: list[TopicOutcome] = []


class WriteTxnMarkersResponse(Message, frozen=True):
    markers: list[WriteTxnMarkersResponseMarker] = []


class AddPartitionsToTxnRequestTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[I32] = []


class AddPartitionsToTxnRequest(TransactionalProducer, frozen=True):
    topics: list[AddPartitionsToTxnRequestTopic] = []


class AddPartitionsToTxnResponsePartition(Message, frozen=True):
    partition_index: I32 = 0
    partition_error_code: I16 = 0


class AddPartitionsToTxnResponseTopic(Message, frozen=True):
    name: Text = ""
    results_by_partition: list[AddPartitionsToTxnResponsePartition] = []


class AddPartitionsToTxnResponse(Throttled, frozen=True):
    results_by_topic: list[AddPartitionsToTxnResponseTopic] = []


class AddOffsetsToTxnRequest(TransactionalProducer, frozen=True):
    group_id: Text = ""


class AddOffsetsToTxnResponse(ThrottledOutcome, frozen=True):
    pass


class EndTxnRequest(TransactionalProducer, frozen=True):
    committed: Bool = False


class EndTxnResponse(ThrottledOutcome, frozen=True):
    producer_id: Annotated[I64, "5+"] = -1
    producer_epoch: Annotated[I16, "5+"] = -1


class TxnOffsetCommitRequestPartition(Message, frozen=True):
    partition_index: I32 = 0
    committed_offset: I64 = 0
    committed_leader_epoch: Annotated[I32, "2+"] = -1
    committed_metadata: Text | None = ""


class TxnOffsetCommitRequestTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[TxnOffsetCommitRequestPartition] = []


class TxnOffsetCommitRequest(Message, frozen=True):
    transactional_id: Text = ""
    group_id: Text = ""
    producer_id: I64 = 0
    producer_epoch: I16 = 0
    generation_id: Annotated[I32, "3+"] = -1
    member_id: Annotated[Text, "3+"] = ""
    group_instance_id: Annotated[Text | None, "3+"] = None
    topics: list[TxnOffsetCommitRequestTopic] = []


class TxnOffsetCommitResponse(Throttled, frozen=True):
    topics: list[TopicOutcome] = []


class DescribeProducersRequestTopic(Message, frozen=True):
    name: Text = ""
    partition_indexes: list[I32] = []


class DescribeProducersRequest(Message, frozen=True):
    topics: list[DescribeProducersRequestTopic] = []


class DescribeProducersResponseProducer(Message, frozen=True):
    producer_id: I64 = 0
    producer_epoch: I32 = 0
    last_sequence: I32 = -1
    last_timestamp: I64 = -1
    coordinator_epoch: I32 = 0
    current_txn_start_offset: I64 = -1


class DescribeProducersResponsePartition(Message, frozen=True):
    partition_index: I32 = 0
    error_code: I16 = 0
    error_message: Text | None = None
    active_producers: list[DescribeProducersResponseProducer] = []


class DescribeProducersResponseTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[DescribeProducersResponsePartition] = []


class DescribeProducersResponse(Throttled, frozen=True):
    topics: list[DescribeProducersResponseTopic] = []


class ListTransactionsRequest(Message, frozen=True):
    state_filters: list[Text] = []
    producer_id_filters: list[I64] = []
    duration_filter: Annotated[I64, "1+"] = -1


class ListTransactionsResponseTransaction(Message, frozen=True):
    transactional_id: Text = ""
    producer_id: I64 = 0
    transaction_state: Text = ""


class ListTransactionsResponse(ThrottledOutcome, frozen=True):
    unknown_state_filters: list[Text] = []
    transaction_states: list[ListTransactionsResponseTransaction] = []


class DescribeTransactionsRequest(Message, frozen=True):
    transactional_ids: list[Text] = []


class DescribeTransactionsResponseTransaction(Message, frozen=True):
    error_code: I16 = 0
    transactional_id: Text = ""
    transaction_state: Text = ""
    transaction_timeout_ms: I32 = 0
    transaction_start_time_ms: I64 = 0
    producer_id: I64 = 0
    producer_epoch: I16 = 0
    topics: list[TopicPartitions] = []


class DescribeTransactionsResponse(Throttled, frozen=True):
    transaction_states: list[DescribeTransactionsResponseTransaction] = []
