"""Translates reasons to Cursus's error codes: one total table, and the fields of each code.

A test keeps the table total: a new `Reason` without a row fails it.
"""

from typing import Any

from braidlog.adapters.errors import KEYS, USERS, text_of
from braidlog.coordinator.event_streams import VersionConflict
from braidlog.coordinator.groups.group import StaleGeneration
from braidlog.model.address import Address, show_address
from braidlog.model.errors import BrokerError, NotLeaderError, ProtocolError, Reason
from braidlog.partition.fetch.fetch import OffsetOutOfRange
from braidlog.security.authorization import Kind, NotAuthorizedError
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.batch import Batch, Spelling
from braidlog.wire.cursus.failures import ErrorCode as E
from braidlog.wire.cursus.failures import Failure, echo, failure_line
from braidlog.wire.cursus.messages import Request

CODES: dict[Reason, E] = {
    **dict.fromkeys((*USERS, *KEYS), E.COMMAND_FAILED),
    Reason.INVALID_TOPIC_NAME: E.INVALID_TOPIC,
    Reason.TOPIC_EXISTS: E.CREATE_TOPIC_FAILED,
    Reason.TOPIC_NOT_FOUND: E.TOPIC_NOT_FOUND,
    Reason.PARTITION_NOT_FOUND: E.PARTITION_NOT_FOUND,
    Reason.INVALID_PARTITION_COUNT: E.INVALID_PARTITIONS,
    Reason.INVALID_SETTING: E.CREATE_TOPIC_FAILED,
    Reason.INVALID_RECORD: E.COMMAND_FAILED,
    Reason.INVALID_TIMESTAMP: E.COMMAND_FAILED,
    Reason.RECORD_TOO_LARGE: E.RECORD_TOO_LARGE,
    Reason.OFFSET_OUT_OF_RANGE: E.OFFSET_OUT_OF_RANGE,
    Reason.OFFSET_NOT_AVAILABLE: E.COMMAND_FAILED,
    Reason.STALE_LEADER_EPOCH: E.NOT_LEADER,
    Reason.OUT_OF_ORDER_SEQUENCE: E.IDEMPOTENCY_GAP,
    Reason.STALE_PRODUCER_EPOCH: E.STALE_PRODUCER_EPOCH,
    Reason.TOO_MANY_PRODUCERS: E.COMMAND_FAILED,
    Reason.INVALID_TRANSACTION_STATE: E.INVALID_TRANSACTION_STATE,
    Reason.FOLDER_IN_USE: E.COMMAND_FAILED,
    Reason.FOLDER_NOT_FOUND: E.COMMAND_FAILED,
    Reason.LOG_CLOSED: E.COMMAND_FAILED,
    Reason.TIMED_OUT: E.TIMED_OUT,
    Reason.NOT_LEADER: E.NOT_LEADER,
    Reason.NOT_COORDINATOR: E.NOT_COORDINATOR,
    Reason.COORDINATOR_LOADING: E.COMMAND_FAILED,
    Reason.REPLICA_NOT_FOUND: E.COMMAND_FAILED,
    Reason.NOT_ENOUGH_REPLICAS: E.NOT_ENOUGH_REPLICAS,
    Reason.ACKS_TIMED_OUT: E.TIMED_OUT,
    Reason.INVALID_ACKS: E.INVALID_ACKS,
    Reason.GROUP_NOT_FOUND: E.GROUP_NOT_FOUND,
    Reason.GROUP_NOT_EMPTY: E.REBALANCE_REQUIRED,
    Reason.GROUP_FULL: E.COMMAND_FAILED,
    Reason.GROUP_SUBSCRIBED: E.REBALANCE_REQUIRED,
    Reason.WRONG_GROUP_KIND: E.COMMAND_FAILED,
    Reason.INCONSISTENT_PROTOCOLS: E.COMMAND_FAILED,
    Reason.INVALID_SESSION_TIMEOUT: E.COMMAND_FAILED,
    Reason.MEMBER_ID_REQUIRED: E.MEMBER_NOT_FOUND,
    Reason.FENCED_INSTANCE: E.MEMBER_NOT_FOUND,
    Reason.METADATA_TOO_LARGE: E.COMMAND_FAILED,
    Reason.INVALID_GROUP: E.COMMAND_FAILED,
    Reason.MEMBER_NOT_FOUND: E.MEMBER_NOT_FOUND,
    Reason.STALE_GENERATION: E.GEN_MISMATCH,
    Reason.STALE_MEMBER_EPOCH: E.GEN_MISMATCH,
    Reason.UNRELEASED_INSTANCE: E.MEMBER_NOT_FOUND,
    Reason.UNSUPPORTED_ASSIGNOR: E.COMMAND_FAILED,
    Reason.INVALID_PATTERN: E.COMMAND_FAILED,
    Reason.PARTITION_NOT_ASSIGNED: E.NOT_OWNER,
    Reason.OFFSET_REGRESSION: E.OFFSET_REGRESSION,
    Reason.REBALANCE_IN_PROGRESS: E.REBALANCE_REQUIRED,
    Reason.VERSION_CONFLICT: E.VERSION_CONFLICT,
    Reason.STREAM_NOT_FOUND: E.EVENT_SOURCING_NOT_ENABLED,
    Reason.TRANSACTION_NOT_FOUND: E.TRANSACTION_NOT_FOUND,
    Reason.INVALID_TRANSACTION_TIMEOUT: E.INVALID_TRANSACTION_STATE,
    Reason.CONCURRENT_TRANSACTIONS: E.INVALID_TRANSACTION_STATE,
    Reason.PRODUCER_ID_MISMATCH: E.STALE_PRODUCER_EPOCH,
    Reason.NOT_AUTHENTICATED: E.AUTHENTICATION_REQUIRED,
    Reason.NOT_AUTHORIZED: E.NOT_AUTHORIZED_FOR_OPERATION,
    Reason.QUOTA_EXCEEDED: E.COMMAND_FAILED,
    Reason.UNAVAILABLE: E.COMMAND_FAILED,
    Reason.VALUE_TOO_LARGE: E.RECORD_TOO_LARGE,
    Reason.OUT_OF_MEMORY: E.COMMAND_FAILED,
}

FENCED = (Reason.STALE_PRODUCER_EPOCH, Reason.OUT_OF_ORDER_SEQUENCE)
"""Reasons that a client must receive in a JSON acknowledgement of its batch; any other text makes it retry."""

_ABOUT_TOPIC = (Reason.TOPIC_NOT_FOUND, Reason.STREAM_NOT_FOUND)


class AnsweredError(BrokerError):
    """Another node rejected a part of a request, with this text for the client."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(Reason.UNAVAILABLE, failure_line(failure))
        self.failure = failure


def answer_error(
    request: Request, error: Exception, permission: str, elsewhere: Address | None = None
) -> Failure | a.Ack:
    """Return the answer to a rejected request. `permission`: the operation that the request needed. `elsewhere`: the
    node that serves it.
    """
    if elsewhere is not None and isinstance(error, NotLeaderError):
        return Failure.of(E.NOT_LEADER, LEADER_IS=show_address(elsewhere))
    if elsewhere is not None:
        host, port = elsewhere
        return Failure.of(E.NOT_COORDINATOR, host=host, port=port)
    failure = failure_of(request, error, permission)
    if isinstance(request.message, Batch) and isinstance(error, BrokerError) and error.reason in FENCED:
        return refused_ack(request.message, failure)
    return failure


def refused_ack(batch: Batch, failure: Failure) -> a.Ack:
    producer = batch.records[0] if batch.records else None
    return a.Ack(
        status="ERROR",
        last_offset=-1,
        producer_epoch=producer.epoch if producer else 0,
        producer_id=producer.producer_id if producer else "",
        seq_start=batch.sequence_start,
        seq_end=batch.sequence_end,
        error=failure_line(failure),
    )


def failure_of(request: Request, error: Exception, permission: str = "") -> Failure:
    if isinstance(error, AnsweredError):
        return error.failure
    if isinstance(error, BrokerError):
        return Failure.of(_code(request, error), **_fields(request, error, permission))
    code = E.DECODE_FAILED if isinstance(error, ProtocolError) else E.COMMAND_FAILED
    return Failure.of(code, reason=text_of(error))


def _code(request: Request, error: BrokerError) -> E:
    message = request.message
    if _is_about_topic(request, error):
        return E.NOT_AUTHORIZED_FOR_TOPIC
    if error.reason is Reason.NOT_ENOUGH_REPLICAS and isinstance(message, r.Create):
        return E.CREATE_TOPIC_FAILED
    if error.reason is Reason.VERSION_CONFLICT and isinstance(message, r.SaveSnapshot):
        return E.SNAPSHOT_VERSION_EXCEEDS_STREAM
    if error.reason is Reason.STALE_GENERATION and isinstance(message, r.Heartbeat):
        # The document's clients know this answer of a heartbeat; the published ones parse the numbers of the other.
        return E.REBALANCE_REQUIRED if request.spelling is Spelling.DOCUMENT else E.GEN_MISMATCH
    return CODES[error.reason]


def _is_about_topic(request: Request, error: BrokerError) -> bool:
    """Return whether the client lacks a permission on the request's topic."""
    return isinstance(error, NotAuthorizedError) and error.kind is Kind.TOPIC and hasattr(request.message, "topic")


def _fields(request: Request, error: BrokerError, permission: str) -> dict[str, Any]:
    """Return the fields that clients parse from an error line; without such fields, the message."""
    message = request.message
    match error:
        case OffsetOutOfRange():
            return {"requested": error.requested, "earliest": error.start_offset, "latest": error.high_watermark}
        case StaleGeneration():
            group, member = echo(message.group), echo(message.member)
            return {"current": error.current, "requested": error.requested, "group": group, "member": member}
        case VersionConflict():
            # The version that the writer expected next, or the version of its snapshot.
            asked = "expected" if isinstance(message, r.AppendStream) else "version"
            return {"current": error.current, asked: message.version}
    topic = {"topic": echo(message.topic)} if hasattr(message, "topic") else {}
    if _is_about_topic(request, error):
        return {**topic, "operation": permission}
    if isinstance(error, NotAuthorizedError):
        return {"command": request.operation.name, "permission": error.permission}
    if topic and error.reason in _ABOUT_TOPIC:
        return topic
    return {"reason": error}
