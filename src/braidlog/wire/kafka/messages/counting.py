"""Counts the records in ranges of offsets: braidlog's own messages on Kafka's port. `rows.py` explains the rows.

Foreign clients do not know them; ApiVersions lists them only for a client that calls itself `braidlog`.
"""

from braidlog.wire.kafka.rows import I8, I16, I32, I64, Message, Text


class CountRecordsRequestPartition(Message, frozen=True):
    partition_index: I32 = 0
    start_offset: I64 = 0
    end_offset: I64 = 0


class CountRecordsRequestTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[CountRecordsRequestPartition] = []


class CountRecordsRequest(Message, frozen=True):
    isolation_level: I8 = 0
    topics: list[CountRecordsRequestTopic] = []


class CountRecordsResponsePartition(Message, frozen=True):
    partition_index: I32 = 0
    error_code: I16 = 0
    records: I64 = 0
    next_offset: I64 = -1
    """Everything below this offset was counted; request or read the rest."""


class CountRecordsResponseTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[CountRecordsResponsePartition] = []


class CountRecordsResponse(Message, frozen=True):
    topics: list[CountRecordsResponseTopic] = []
