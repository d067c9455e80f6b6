"""How many records there are in ranges of offsets: messages of our own on Kafka's port.

Knows: rows (`rows.py` says how to read one). Refuses to know: bytes, and what serving a request means.
No foreign client knows these; they are told in ApiVersions to a client that calls itself `braidlog`.
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
    """Below it all was counted; what is behind it is asked for again, or read."""


class CountRecordsResponseTopic(Message, frozen=True):
    name: Text = ""
    partitions: list[CountRecordsResponsePartition] = []


class CountRecordsResponse(Message, frozen=True):
    topics: list[CountRecordsResponseTopic] = []
