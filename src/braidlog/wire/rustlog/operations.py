"""The table of operations: what readers, writers, the page in docs/dialects and the tests are made from.

Knows: which request has which number, answers and errors. Refuses to know: bytes, and services.
Invariant: a request type, a response type and a type byte each occur in one row only.

The document numbers its messages 0x01 to 0x0A, answers at +0x80 and Error 0xFF, but never writes the numbers: in JSON the name
is the type. On the wire of the published clients an answer repeats its request's byte, Ping is FF and Error is FE (the RustLog
page, §3).
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.messages import BinaryErrorCode as B
from braidlog.wire.rustlog.messages import ErrorCode as E

ERROR_BYTE: Final = 0xFE


class Operation(msgspec.Struct, frozen=True):
    """One row: a request, its answer in either form, and how it can fail."""

    type_byte: int
    request: type[m.Message]
    response: type[m.Message]
    purpose: str
    errors: tuple[E, ...] = ()
    binary_errors: tuple[B, ...] = ()
    brief: type[msgspec.Struct] | None = None
    narrow: Callable[[Any], Any] | None = None
    """Makes the binary answer of the JSON one, where they differ. What the binary form cannot carry is left out."""

    @property
    def name(self) -> str:
        return self.request.__name__

    @property
    def binary_response(self) -> type[msgspec.Struct]:
        return self.brief or self.response


def _brief_fetch(answer: m.FetchResponse) -> m.BriefFetchResponse:
    return m.BriefFetchResponse([record.payload for record in answer.records], answer.next_offset)


def _brief_create(answer: m.CreateTopicResponse) -> m.BriefCreateTopicResponse:
    return m.BriefCreateTopicResponse(answer.success)


def _brief_topic(answer: m.DescribeTopicResponse) -> m.BriefDescribeTopicResponse:
    partitions = [m.BriefPartition(each.partition, each.high_watermark) for each in answer.partitions]
    return m.BriefDescribeTopicResponse(answer.topic, len(partitions), partitions)


def _brief_partition(answer: m.DescribePartitionResponse) -> m.BriefDescribePartitionResponse:
    return m.BriefDescribePartitionResponse(answer.topic, answer.partition, answer.high_watermark)


_ABSENT = (E.TOPIC_NOT_FOUND, E.PARTITION_NOT_FOUND)
_DISK = (E.STORAGE_ERROR, E.INSUFFICIENT_SPACE)

OPERATIONS: Final = (
    Operation(
        0x01,
        m.Produce,
        m.ProduceResponse,
        "append records to a partition",
        (E.INVALID_REQUEST, *_ABSENT, E.RECORD_TOO_LARGE, E.INTERNAL_SERVER_ERROR, *_DISK),
        (B.DECODE, B.DOES_NOT_EXIST, B.INTERNAL),
    ),
    Operation(
        0x02,
        m.Fetch,
        m.FetchResponse,
        "read records from an offset on",
        (E.INVALID_REQUEST, *_ABSENT, E.RECORD_TOO_LARGE, E.OFFSET_OUT_OF_RANGE, E.STORAGE_ERROR),
        (B.DECODE, B.FETCH_FAILED, B.DOES_NOT_EXIST),
        m.BriefFetchResponse,
        _brief_fetch,
    ),
    Operation(
        0x03,
        m.OffsetCommit,
        m.OffsetCommitResponse,
        "store the next offset a group reads",
        (E.INVALID_REQUEST, E.OFFSET_OUT_OF_RANGE, *_DISK),
        (B.DECODE, B.COMMIT_FAILED),
    ),
    Operation(
        0x04,
        m.OffsetFetch,
        m.OffsetFetchResponse,
        "the offset a group has stored, or null",
        (E.INVALID_REQUEST, E.TOPIC_NOT_FOUND),
        (B.DECODE, B.DOES_NOT_EXIST, B.INTERNAL),
    ),
    Operation(
        0x05,
        m.CreateTopic,
        m.CreateTopicResponse,
        "create a topic",
        (E.INVALID_REQUEST, *_DISK),
        (B.DECODE, B.ALREADY_EXISTS, B.BAD_PARTITION_COUNT, B.INTERNAL),
        m.BriefCreateTopicResponse,
        _brief_create,
    ),
    Operation(
        0x06,
        m.ListTopics,
        m.ListTopicsResponse,
        "all topics and their partition counts",
        (E.INVALID_REQUEST, E.INTERNAL_SERVER_ERROR),
        (B.DECODE, B.INTERNAL),
    ),
    Operation(
        0x07,
        m.DescribeTopic,
        m.DescribeTopicResponse,
        "the partitions of a topic",
        (E.INVALID_REQUEST, E.TOPIC_NOT_FOUND, E.STORAGE_ERROR),
        (B.DECODE, B.DESCRIBE_TOPIC_FAILED),
        m.BriefDescribeTopicResponse,
        _brief_topic,
    ),
    Operation(
        0x08,
        m.DescribePartition,
        m.DescribePartitionResponse,
        "one partition of a topic",
        (E.INVALID_REQUEST, *_ABSENT, E.STORAGE_ERROR),
        (B.DECODE, B.DESCRIBE_PARTITION_FAILED),
        m.BriefDescribePartitionResponse,
        _brief_partition,
    ),
    Operation(
        0x09,
        m.MetricsFetch,
        m.MetricsFetchResponse,
        "the server's metrics as Prometheus text",
        (E.INVALID_REQUEST, E.INTERNAL_SERVER_ERROR),
        (B.INTERNAL,),  # its byte is a tab: with anything behind it, it is JSON, and fails as such
    ),
    Operation(0xFF, m.Ping, m.Pong, "is anyone there", (E.INVALID_REQUEST,), (B.DECODE,)),
)

BY_REQUEST: Final[dict[type[Any], Operation]] = {row.request: row for row in OPERATIONS}
BY_TYPE_BYTE: Final[dict[int, Operation]] = {row.type_byte: row for row in OPERATIONS}
