"""Translates reasons to RustLog's error codes: one total table for JSON, one for the published clients' binary form.

A test keeps the table total: a new `Reason` without a row fails it.
"""

from collections.abc import Sequence

from braidlog.adapters.errors import GROUPS, KEYS, PRODUCERS, STREAMS, USERS, text_of
from braidlog.model.errors import BrokerError, NothingDoneError, Reason, StorageFault, is_elsewhere
from braidlog.partition.fetch.fetch import OffsetOutOfRange
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.connection import Request
from braidlog.wire.rustlog.messages import BinaryErrorCode as B
from braidlog.wire.rustlog.messages import ErrorCode as E
from braidlog.wire.rustlog.messages import Form
from braidlog.wire.rustlog.operations import BY_REQUEST

CODES: dict[Reason, E] = {
    **dict.fromkeys((*GROUPS, *PRODUCERS, *STREAMS, *USERS, *KEYS), E.INVALID_REQUEST),
    Reason.INVALID_TOPIC_NAME: E.INVALID_REQUEST,
    Reason.TOPIC_EXISTS: E.INVALID_REQUEST,
    Reason.TOPIC_NOT_FOUND: E.TOPIC_NOT_FOUND,
    Reason.PARTITION_NOT_FOUND: E.PARTITION_NOT_FOUND,
    Reason.INVALID_PARTITION_COUNT: E.INVALID_REQUEST,
    Reason.INVALID_SETTING: E.INVALID_REQUEST,
    Reason.INVALID_RECORD: E.INVALID_REQUEST,
    Reason.INVALID_TIMESTAMP: E.INVALID_REQUEST,
    Reason.RECORD_TOO_LARGE: E.RECORD_TOO_LARGE,
    Reason.OFFSET_OUT_OF_RANGE: E.OFFSET_OUT_OF_RANGE,
    Reason.OFFSET_NOT_AVAILABLE: E.INTERNAL_SERVER_ERROR,
    Reason.STALE_LEADER_EPOCH: E.INVALID_REQUEST,
    Reason.TOO_MANY_PRODUCERS: E.INVALID_REQUEST,
    Reason.FOLDER_IN_USE: E.STORAGE_ERROR,
    Reason.FOLDER_NOT_FOUND: E.STORAGE_ERROR,
    Reason.LOG_CLOSED: E.STORAGE_ERROR,
    Reason.TIMED_OUT: E.INTERNAL_SERVER_ERROR,
    Reason.NOT_LEADER: E.INTERNAL_SERVER_ERROR,
    Reason.NOT_COORDINATOR: E.INTERNAL_SERVER_ERROR,
    Reason.COORDINATOR_LOADING: E.INTERNAL_SERVER_ERROR,
    Reason.REPLICA_NOT_FOUND: E.INVALID_REQUEST,
    Reason.NOT_ENOUGH_REPLICAS: E.INTERNAL_SERVER_ERROR,
    Reason.ACKS_TIMED_OUT: E.INTERNAL_SERVER_ERROR,
    Reason.INVALID_ACKS: E.INVALID_REQUEST,
    Reason.NOT_AUTHENTICATED: E.INVALID_REQUEST,
    Reason.NOT_AUTHORIZED: E.INVALID_REQUEST,
    Reason.QUOTA_EXCEEDED: E.INTERNAL_SERVER_ERROR,
    Reason.UNAVAILABLE: E.INTERNAL_SERVER_ERROR,
    Reason.VALUE_TOO_LARGE: E.RECORD_TOO_LARGE,
    Reason.OUT_OF_MEMORY: E.INTERNAL_SERVER_ERROR,
}

FAILED: dict[type, B] = {
    m.Produce: B.INTERNAL,
    m.Fetch: B.FETCH_FAILED,
    m.OffsetCommit: B.COMMIT_FAILED,
    m.OffsetFetch: B.INTERNAL,
    m.CreateTopic: B.INTERNAL,
    m.ListTopics: B.INTERNAL,
    m.DescribeTopic: B.DESCRIBE_TOPIC_FAILED,
    m.DescribePartition: B.DESCRIBE_PARTITION_FAILED,
    m.MetricsFetch: B.INTERNAL,
    m.Ping: B.INTERNAL,
}
"""The published clients expect a failure code by operation."""

NAMED: dict[Reason, B] = {
    Reason.TOPIC_EXISTS: B.ALREADY_EXISTS,
    Reason.INVALID_PARTITION_COUNT: B.BAD_PARTITION_COUNT,
    Reason.TOPIC_NOT_FOUND: B.DOES_NOT_EXIST,
    Reason.PARTITION_NOT_FOUND: B.DOES_NOT_EXIST,
}
"""A few reasons have their own codes, in the operations whose row of the table lists the code."""

_ABSENT = (Reason.TOPIC_NOT_FOUND, Reason.PARTITION_NOT_FOUND)
_LATE = (Reason.TIMED_OUT, Reason.ACKS_TIMED_OUT)

WORDS: dict[B, str] = {
    B.DOES_NOT_EXIST: "does not exist",
    B.ALREADY_EXISTS: "already exists",
    B.DESCRIBE_TOPIC_FAILED: "failed",
    B.DESCRIBE_PARTITION_FAILED: "failed",
}
"""The text that clients search for in the message: it is always included."""


class TopicMissing(BrokerError):  # noqa: N818 - one of the reasons, with the existing topics
    def __init__(self, error: BrokerError, available: Sequence[str]) -> None:
        super().__init__(error.reason, str(error))
        self.available = list(available)


def failure(request: Request, error: Exception) -> m.Answer:
    """Return the answer to a request that could not be served."""
    kind = type(request.message)
    if kind is m.OffsetCommit and isinstance(error, BrokerError) and error.reason in _ABSENT:
        return m.OffsetCommitResponse(success=False)  # the protocol document answers this way, not with an Error
    return binary_error(kind, error) if request.form is Form.BINARY else json_error(error)


def json_error(error: Exception) -> m.Error:
    if isinstance(error, BrokerError):
        return m.Error(code=int(CODES[error.reason]), message=str(error), details=_details(error))
    if isinstance(error, StorageFault):
        # After 507 clients send again: it is used only where nothing was stored.
        code = E.INSUFFICIENT_SPACE if error.is_full and not error.left_remains else E.STORAGE_ERROR
        return m.Error(code=int(code), message=text_of(error), details=None)
    return m.Error(code=int(E.INVALID_REQUEST), message=str(error), details=None)


def _details(error: BrokerError) -> dict[str, object] | None:
    if isinstance(error, OffsetOutOfRange):
        valid = {"start": error.start_offset, "end": error.high_watermark}
        return {"valid_range": valid, "high_watermark": error.high_watermark}
    if error.reason is Reason.TOPIC_EXISTS:
        return {"success": False}
    if is_elsewhere(error) or isinstance(error, NothingDoneError) or error.reason is Reason.NOT_ENOUGH_REPLICAS:
        return dict(m.RETRIABLE)
    if error.reason in _LATE:
        return dict(m.OUTCOME_UNKNOWN)
    return {"available_topics": error.available} if isinstance(error, TopicMissing) else None


def binary_error(request: type, error: Exception) -> m.Error:
    code = FAILED[request]
    if isinstance(error, BrokerError):
        named = NAMED.get(error.reason)
        if named in BY_REQUEST[request].binary_errors:
            code = B(named)
    words = WORDS.get(code, "")
    text = text_of(error)
    message = text if words in text else f"{text} ({words})"
    return m.Error(code=int(code), message=message[:1000], details=None)
