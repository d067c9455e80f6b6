"""What each reason is called in RustLog: one total table for JSON, one for what the published clients' binary form tells apart.

Knows: codes. Refuses to know: why. A test holds the table total: a new `Reason` without a row here does not pass.
"""

from braidlog.broker.fetch import OffsetOutOfRange
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.messages import BinaryErrorCode as B
from braidlog.wire.rustlog.messages import ErrorCode as E

CODES: dict[Reason, E] = {
    Reason.INVALID_TOPIC_NAME: E.INVALID_REQUEST,
    Reason.TOPIC_EXISTS: E.INVALID_REQUEST,
    Reason.TOPIC_NOT_FOUND: E.TOPIC_NOT_FOUND,
    Reason.PARTITION_NOT_FOUND: E.PARTITION_NOT_FOUND,
    Reason.INVALID_PARTITION_COUNT: E.INVALID_REQUEST,
    Reason.INVALID_SETTING: E.INVALID_REQUEST,
    Reason.INVALID_RECORD: E.INVALID_REQUEST,
    Reason.RECORD_TOO_LARGE: E.RECORD_TOO_LARGE,
    Reason.OFFSET_OUT_OF_RANGE: E.OFFSET_OUT_OF_RANGE,
    Reason.STALE_LEADER_EPOCH: E.INVALID_REQUEST,
    Reason.OUT_OF_ORDER_SEQUENCE: E.INVALID_REQUEST,
    Reason.STALE_PRODUCER_EPOCH: E.INVALID_REQUEST,
    Reason.TOO_MANY_PRODUCERS: E.INVALID_REQUEST,
    Reason.INVALID_TRANSACTION_STATE: E.INVALID_REQUEST,
    Reason.FOLDER_IN_USE: E.STORAGE_ERROR,
    Reason.FOLDER_NOT_FOUND: E.STORAGE_ERROR,
    Reason.LOG_CLOSED: E.STORAGE_ERROR,
    Reason.TIMED_OUT: E.INTERNAL_SERVER_ERROR,
    Reason.NOT_LEADER: E.INTERNAL_SERVER_ERROR,
    Reason.REPLICA_NOT_FOUND: E.INVALID_REQUEST,
    Reason.NOT_ENOUGH_REPLICAS: E.INTERNAL_SERVER_ERROR,
    Reason.ACKS_TIMED_OUT: E.INTERNAL_SERVER_ERROR,
    Reason.INVALID_ACKS: E.INVALID_REQUEST,
    Reason.GROUP_NOT_FOUND: E.INVALID_REQUEST,
    Reason.INVALID_GROUP: E.INVALID_REQUEST,
    Reason.MEMBER_NOT_FOUND: E.INVALID_REQUEST,
    Reason.STALE_GENERATION: E.INVALID_REQUEST,
    Reason.PARTITION_NOT_ASSIGNED: E.INVALID_REQUEST,
    Reason.OFFSET_REGRESSION: E.INVALID_REQUEST,
    Reason.REBALANCE_IN_PROGRESS: E.INVALID_REQUEST,
    Reason.VERSION_CONFLICT: E.INVALID_REQUEST,
    Reason.STREAM_NOT_FOUND: E.INVALID_REQUEST,
    Reason.TRANSACTION_NOT_FOUND: E.INVALID_REQUEST,
    Reason.NOT_AUTHENTICATED: E.INVALID_REQUEST,
    Reason.NOT_AUTHORIZED: E.INVALID_REQUEST,
    Reason.QUOTA_EXCEEDED: E.INTERNAL_SERVER_ERROR,
    Reason.UNAVAILABLE: E.INTERNAL_SERVER_ERROR,
}

BINARY_CODES: dict[type, B] = {
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
"""The published clients tell failures apart by what was asked; a few reasons have codes of their own."""

_BINARY_REASONS: dict[Reason, tuple[B, str]] = {
    Reason.TOPIC_EXISTS: (B.ALREADY_EXISTS, "already exists"),
    Reason.INVALID_PARTITION_COUNT: (B.BAD_PARTITION_COUNT, ""),
    Reason.TOPIC_NOT_FOUND: (B.DOES_NOT_EXIST, "does not exist"),
    Reason.PARTITION_NOT_FOUND: (B.DOES_NOT_EXIST, "does not exist"),
}


def json_error(error: Exception) -> m.Error:
    if isinstance(error, BrokerError):
        return m.Error(code=int(CODES[error.reason]), message=str(error), details=_details(error))
    code = E.STORAGE_ERROR if isinstance(error, StorageFault) else E.INVALID_REQUEST
    return m.Error(code=int(code), message=str(error), details=None)


def _details(error: BrokerError) -> dict[str, object] | None:
    if isinstance(error, OffsetOutOfRange):
        valid = {"start": error.start_offset, "end": error.high_watermark}
        return {"valid_range": valid, "high_watermark": error.high_watermark}
    if error.reason is Reason.TOPIC_EXISTS:
        return {"success": False}
    return None


def binary_error(request: type, error: Exception) -> m.Error:
    """The clients look for certain words in the message: they are there, whatever else it says."""
    code, words = BINARY_CODES[request], ""
    if isinstance(error, BrokerError) and error.reason in _BINARY_REASONS:
        named, words = _BINARY_REASONS[error.reason]
        described = request in (m.DescribeTopic, m.DescribePartition)
        code = code if described else named
        words = "failed" if described else words
    message = str(error) if words in str(error) else f"{error} ({words})"
    return m.Error(code=int(code), message=message[:1000], details=None)
