"""Translates reasons to Kafka's error codes: one total table.

A test keeps the table total: a new `Reason` without a row fails it.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable

from braidlog.adapters.errors import text_of
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.security.authorization import Kind, NotAuthorizedError
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages.parts import PartitionOutcome, TopicOutcome

log = logging.getLogger("braidlog.kafka")

CODES: dict[Reason, E] = {
    Reason.INVALID_TOPIC_NAME: E.INVALID_TOPIC,
    Reason.TOPIC_EXISTS: E.TOPIC_ALREADY_EXISTS,
    Reason.TOPIC_NOT_FOUND: E.UNKNOWN_TOPIC_OR_PARTITION,
    Reason.PARTITION_NOT_FOUND: E.UNKNOWN_TOPIC_OR_PARTITION,
    Reason.INVALID_PARTITION_COUNT: E.INVALID_PARTITIONS,
    Reason.INVALID_SETTING: E.INVALID_CONFIG,
    Reason.INVALID_RECORD: E.INVALID_RECORD,
    Reason.INVALID_TIMESTAMP: E.INVALID_TIMESTAMP,
    Reason.RECORD_TOO_LARGE: E.MESSAGE_TOO_LARGE,
    Reason.OFFSET_OUT_OF_RANGE: E.OFFSET_OUT_OF_RANGE,
    Reason.OFFSET_NOT_AVAILABLE: E.OFFSET_NOT_AVAILABLE,
    Reason.STALE_LEADER_EPOCH: E.FENCED_LEADER_EPOCH,
    Reason.OUT_OF_ORDER_SEQUENCE: E.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Reason.STALE_PRODUCER_EPOCH: E.INVALID_PRODUCER_EPOCH,
    Reason.TOO_MANY_PRODUCERS: E.POLICY_VIOLATION,
    Reason.INVALID_TRANSACTION_STATE: E.INVALID_TXN_STATE,
    Reason.FOLDER_IN_USE: E.KAFKA_STORAGE_ERROR,
    Reason.FOLDER_NOT_FOUND: E.KAFKA_STORAGE_ERROR,
    Reason.LOG_CLOSED: E.NOT_LEADER_OR_FOLLOWER,
    Reason.TIMED_OUT: E.REQUEST_TIMED_OUT,
    Reason.NOT_LEADER: E.NOT_LEADER_OR_FOLLOWER,
    Reason.NOT_COORDINATOR: E.NOT_COORDINATOR,
    Reason.COORDINATOR_LOADING: E.COORDINATOR_LOAD_IN_PROGRESS,
    Reason.REPLICA_NOT_FOUND: E.INVALID_REPLICA_ASSIGNMENT,
    Reason.NOT_ENOUGH_REPLICAS: E.NOT_ENOUGH_REPLICAS,
    Reason.ACKS_TIMED_OUT: E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Reason.INVALID_ACKS: E.INVALID_REQUIRED_ACKS,
    Reason.GROUP_NOT_FOUND: E.GROUP_ID_NOT_FOUND,
    Reason.GROUP_NOT_EMPTY: E.NON_EMPTY_GROUP,
    Reason.GROUP_FULL: E.GROUP_MAX_SIZE_REACHED,
    Reason.GROUP_SUBSCRIBED: E.GROUP_SUBSCRIBED_TO_TOPIC,
    Reason.WRONG_GROUP_KIND: E.INCONSISTENT_GROUP_PROTOCOL,
    Reason.INCONSISTENT_PROTOCOLS: E.INCONSISTENT_GROUP_PROTOCOL,
    Reason.INVALID_SESSION_TIMEOUT: E.INVALID_SESSION_TIMEOUT,
    Reason.MEMBER_ID_REQUIRED: E.MEMBER_ID_REQUIRED,
    Reason.FENCED_INSTANCE: E.FENCED_INSTANCE_ID,
    Reason.METADATA_TOO_LARGE: E.OFFSET_METADATA_TOO_LARGE,
    Reason.INVALID_GROUP: E.INVALID_GROUP_ID,
    Reason.MEMBER_NOT_FOUND: E.UNKNOWN_MEMBER_ID,
    Reason.STALE_GENERATION: E.ILLEGAL_GENERATION,
    Reason.STALE_MEMBER_EPOCH: E.STALE_MEMBER_EPOCH,
    Reason.UNRELEASED_INSTANCE: E.UNRELEASED_INSTANCE_ID,
    Reason.UNSUPPORTED_ASSIGNOR: E.UNSUPPORTED_ASSIGNOR,
    Reason.INVALID_PATTERN: E.INVALID_REGULAR_EXPRESSION,
    Reason.PARTITION_NOT_ASSIGNED: E.UNKNOWN_TOPIC_OR_PARTITION,
    Reason.OFFSET_REGRESSION: E.INVALID_REQUEST,
    Reason.REBALANCE_IN_PROGRESS: E.REBALANCE_IN_PROGRESS,
    Reason.VERSION_CONFLICT: E.INVALID_REQUEST,
    Reason.STREAM_NOT_FOUND: E.INVALID_REQUEST,
    Reason.TRANSACTION_NOT_FOUND: E.INVALID_PRODUCER_ID_MAPPING,
    Reason.INVALID_TRANSACTION_TIMEOUT: E.INVALID_TRANSACTION_TIMEOUT,
    Reason.CONCURRENT_TRANSACTIONS: E.CONCURRENT_TRANSACTIONS,
    Reason.PRODUCER_ID_MISMATCH: E.INVALID_PRODUCER_ID_MAPPING,
    Reason.USER_NOT_FOUND: E.RESOURCE_NOT_FOUND,
    Reason.INVALID_USER: E.UNACCEPTABLE_CREDENTIAL,
    Reason.RULE_NOT_SUPPORTED: E.SECURITY_DISABLED,
    Reason.NOT_AUTHENTICATED: E.SASL_AUTHENTICATION_FAILED,
    Reason.NOT_AUTHORIZED: E.TOPIC_AUTHORIZATION_FAILED,
    Reason.QUOTA_EXCEEDED: E.POLICY_VIOLATION,
    Reason.UNAVAILABLE: E.COORDINATOR_NOT_AVAILABLE,
    Reason.KEY_NOT_FOUND: E.INVALID_REQUEST,
    Reason.INVALID_KEY: E.INVALID_REQUEST,
    Reason.KEY_TOO_LONG: E.INVALID_REQUEST,
    Reason.VALUE_TOO_LARGE: E.MESSAGE_TOO_LARGE,
    Reason.WRONG_TYPE: E.INVALID_REQUEST,
    Reason.NOT_A_NUMBER: E.INVALID_REQUEST,
    Reason.NUMBER_OVERFLOW: E.INVALID_REQUEST,
    Reason.OUT_OF_MEMORY: E.POLICY_VIOLATION,
}


NOT_AUTHORIZED: dict[Kind, E] = {
    Kind.TOPIC: CODES[Reason.NOT_AUTHORIZED],
    Kind.GROUP: E.GROUP_AUTHORIZATION_FAILED,
    Kind.TRANSACTIONAL_ID: E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Kind.KEY: E.INVALID_REQUEST,
}
"""The authorization error by kind of resource. Kafka's listener has no key-value keys."""


class Refusal(BrokerError):  # noqa: N818 - an answer to a client, not a fault
    """An error that exists only in this dialect, with its code."""

    def __init__(self, code: E, text: str) -> None:
        super().__init__(Reason.INVALID_SETTING, text)
        self.code = code


def code_of(error: Exception) -> E:
    """Return the code of an error of the services. A disk fault is also logged: the client gets only a number."""
    if isinstance(error, Refusal):
        return error.code
    if isinstance(error, NotAuthorizedError):
        return NOT_AUTHORIZED[error.kind]
    if isinstance(error, BrokerError):
        return CODES[error.reason]
    if isinstance(error, StorageFault):
        if not error.is_full:  # a full disk is logged where it is detected
            log.error("%s: %s", error.place or "kafka", error)
        return E.KAFKA_STORAGE_ERROR
    if isinstance(error, ProtocolError):
        return E.CORRUPT_MESSAGE
    raise error


async def outcome_of(work: Awaitable[object]) -> tuple[E, str | None]:
    """Return the code and the text for one item of a request."""
    try:
        await work
    except (BrokerError, StorageFault) as error:
        return code_of(error), text_of(error)
    return E.NONE, None


def outcomes(topics: Iterable[tuple[str, Iterable[int]]], code: Callable[[tuple[str, int]], E]) -> list[TopicOutcome]:
    """Return a code for each partition that a request names."""
    return [
        TopicOutcome(topic, [PartitionOutcome(number, code((topic, number))) for number in numbers])
        for topic, numbers in topics
    ]


COORDINATOR: dict[E, E] = {
    E.KAFKA_STORAGE_ERROR: E.COORDINATOR_NOT_AVAILABLE,
    E.REQUEST_TIMED_OUT: E.COORDINATOR_NOT_AVAILABLE,
    E.NOT_LEADER_OR_FOLLOWER: E.COORDINATOR_NOT_AVAILABLE,
    E.BROKER_NOT_AVAILABLE: E.COORDINATOR_NOT_AVAILABLE,
}
"""Codes that clients expect from a coordinator: they would treat the original ones as a partition's, and not retry."""


def coordinator_code(error: Exception) -> E:
    """Return the code of an error in an answer of a group's or a transaction's coordinator."""
    code = code_of(error)
    return COORDINATOR.get(code, code)


def coordinator_code_of(_: Request, code: E) -> E:
    return COORDINATOR.get(code, code)


def cluster_code_of(_: Request, code: E) -> E:
    return E.CLUSTER_AUTHORIZATION_FAILED if code is E.TOPIC_AUTHORIZATION_FAILED else code
