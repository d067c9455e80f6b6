"""The table of operations: number, answers and errors of each. Readers, writers, the page in docs/dialects and the
tests are derived from it.

Invariant: a request type, a response type and a type byte each occur in one row only.

The document numbers its messages 0x01 to 0x0A, answers at +0x80 and Error 0xFF, but never writes the numbers: in JSON
the name is the type. In the published clients an answer repeats its request's byte, Ping is FF and Error is FE (the
RustLog page, §3).
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.messages import BinaryErrorCode as B
from braidlog.wire.rustlog.messages import ErrorCode as E

ERROR_BYTE: Final = 0xFE


class Operation(msgspec.Struct, frozen=True):
    """One row: a request, its answer in either form, and its errors."""

    type_byte: int
    request: type[m.Message]
    response: type[m.Message]
    purpose: str
    errors: tuple[E, ...] = ()
    binary_errors: tuple[B, ...] = ()
    brief: type[msgspec.Struct] | None = None
    narrow: Callable[[Any], Any] | None = None
    """Converts the JSON answer to the binary one, where they differ. Fields that the binary form lacks are omitted."""

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
        "commit a group's offset",
        (E.INVALID_REQUEST, E.OFFSET_OUT_OF_RANGE, *_DISK),
        (B.DECODE, B.COMMIT_FAILED),
    ),
    Operation(
        0x04,
        m.OffsetFetch,
        m.OffsetFetchResponse,
        "get a group's committed offset, or null",
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
        "list topics and their partition counts",
        (E.INVALID_REQUEST, E.INTERNAL_SERVER_ERROR),
        (B.DECODE, B.INTERNAL),
    ),
    Operation(
        0x07,
        m.DescribeTopic,
        m.DescribeTopicResponse,
        "describe the partitions of a topic",
        (E.INVALID_REQUEST, E.TOPIC_NOT_FOUND, E.STORAGE_ERROR),
        (B.DECODE, B.DESCRIBE_TOPIC_FAILED),
        m.BriefDescribeTopicResponse,
        _brief_topic,
    ),
    Operation(
        0x08,
        m.DescribePartition,
        m.DescribePartitionResponse,
        "describe one partition of a topic",
        (E.INVALID_REQUEST, *_ABSENT, E.STORAGE_ERROR),
        (B.DECODE, B.DESCRIBE_PARTITION_FAILED),
        m.BriefDescribePartitionResponse,
        _brief_partition,
    ),
    Operation(
        0x09,
        m.MetricsFetch,
        m.MetricsFetchResponse,
        "get the server's metrics as Prometheus text",
        (E.INVALID_REQUEST, E.INTERNAL_SERVER_ERROR),
        (B.INTERNAL,),  # its byte is a tab: with more bytes it is parsed, and rejected, as JSON
    ),
    Operation(0xFF, m.Ping, m.Pong, "check that the server responds", (E.INVALID_REQUEST,), (B.DECODE,)),
)

BY_REQUEST: Final[dict[type[Any], Operation]] = {row.request: row for row in OPERATIONS}
BY_TYPE_BYTE: Final[dict[int, Operation]] = {row.type_byte: row for row in OPERATIONS}
