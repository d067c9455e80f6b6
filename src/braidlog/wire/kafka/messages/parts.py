"""Rows that several messages share. `rows.py` explains the rows."""

from braidlog.wire.kafka.rows import I16, I32, I64, Message, Text


class Throttled(Message, frozen=True):
    """A response that begins with the throttle time in every version."""

    throttle_time_ms: I32 = 0


class ThrottledOutcome(Throttled, frozen=True):
    error_code: I16 = 0


class Outcome(Message, frozen=True):
    error_code: I16 = 0
    error_message: Text | None = None


class TopicPartitions(Message, frozen=True):
    topic: Text = ""
    partitions: list[I32] = []


class PartitionOutcome(Message, frozen=True):
    partition_index: I32 = 0
    error_code: I16 = 0


class TopicOutcome(Message, frozen=True):
    name: Text = ""
    partitions: list[PartitionOutcome] = []


class CurrentLeader(Message, frozen=True):
    leader_id: I32 = -1
    leader_epoch: I32 = -1


class NodeEndpoint(Message, frozen=True):
    node_id: I32 = 0
    host: Text = ""
    port: I32 = 0
    rack: Text | None = None


class TransactionalProducer(Message, frozen=True):
    """An open transaction, as its producer identifies itself."""

    transactional_id: Text = ""
    producer_id: I64 = 0
    producer_epoch: I16 = 0
