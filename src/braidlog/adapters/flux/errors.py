"""Translates reasons to Flux's error codes: one total table, and the exact texts that its clients compare.

A test keeps the table total: a new `Reason` without a row fails it.
"""

from braidlog.adapters.errors import GROUPS, KEYS, PRODUCERS, STREAMS, USERS, text_of
from braidlog.model.address import Address, show_address
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.wire.flux.messages import ErrorCode as E
from braidlog.wire.flux.messages import Failed

CODES: dict[Reason, E] = {
    **dict.fromkeys((*GROUPS, *PRODUCERS, *STREAMS, *USERS, *KEYS), E.BAD_REQUEST),
    Reason.INVALID_TOPIC_NAME: E.BAD_REQUEST,
    Reason.TOPIC_EXISTS: E.BAD_REQUEST,
    Reason.TOPIC_NOT_FOUND: E.BAD_REQUEST,
    Reason.PARTITION_NOT_FOUND: E.BAD_REQUEST,
    Reason.INVALID_PARTITION_COUNT: E.BAD_REQUEST,
    Reason.INVALID_SETTING: E.BAD_REQUEST,
    Reason.INVALID_RECORD: E.BAD_REQUEST,
    Reason.INVALID_TIMESTAMP: E.BAD_REQUEST,
    Reason.RECORD_TOO_LARGE: E.BAD_REQUEST,
    Reason.OFFSET_OUT_OF_RANGE: E.BAD_REQUEST,
    Reason.OFFSET_NOT_AVAILABLE: E.UNAVAILABLE,
    Reason.STALE_LEADER_EPOCH: E.BAD_REQUEST,
    Reason.TOO_MANY_PRODUCERS: E.UNAVAILABLE,
    Reason.FOLDER_IN_USE: E.UNAVAILABLE,
    Reason.FOLDER_NOT_FOUND: E.UNAVAILABLE,
    Reason.LOG_CLOSED: E.UNAVAILABLE,
    Reason.TIMED_OUT: E.UNAVAILABLE,
    Reason.NOT_LEADER: E.NOT_LEADER,
    Reason.NOT_COORDINATOR: E.NOT_LEADER,
    Reason.COORDINATOR_LOADING: E.UNAVAILABLE,
    Reason.REPLICA_NOT_FOUND: E.BAD_REQUEST,
    Reason.NOT_ENOUGH_REPLICAS: E.REPLICATION_TIMEOUT,
    Reason.ACKS_TIMED_OUT: E.REPLICATION_TIMEOUT,
    Reason.INVALID_ACKS: E.BAD_REQUEST,
    Reason.GROUP_NOT_FOUND: E.GENERATION_MISMATCH,
    Reason.MEMBER_NOT_FOUND: E.GENERATION_MISMATCH,
    Reason.STALE_GENERATION: E.GENERATION_MISMATCH,
    Reason.PARTITION_NOT_ASSIGNED: E.GENERATION_MISMATCH,
    Reason.REBALANCE_IN_PROGRESS: E.GENERATION_MISMATCH,
    Reason.NOT_AUTHENTICATED: E.BAD_REQUEST,
    Reason.NOT_AUTHORIZED: E.BAD_REQUEST,
    Reason.QUOTA_EXCEEDED: E.UNAVAILABLE,
    Reason.UNAVAILABLE: E.UNAVAILABLE,
    Reason.VALUE_TOO_LARGE: E.BAD_REQUEST,
    Reason.OUT_OF_MEMORY: E.UNAVAILABLE,
}

TEXTS: dict[Reason, str] = {
    Reason.GROUP_NOT_FOUND: "group not found",
    Reason.MEMBER_NOT_FOUND: "unknown member",
    Reason.STALE_GENERATION: "stale generation",
    Reason.REBALANCE_IN_PROGRESS: "stale generation",
    Reason.PARTITION_NOT_ASSIGNED: "partition not assigned to member",
}
"""Reasons that share one code (the Flux page, §3): the text distinguishes the four. All other texts are the services'
own.
"""


def failed(error: Exception, leader: Address | None = None) -> Failed:
    """`leader`: the node that serves the request; its address ends the text."""
    if isinstance(error, BrokerError):
        text = TEXTS.get(error.reason) or str(error)
        return Failed(CODES[error.reason], text if leader is None else f"{text}; leader={show_address(leader)}")
    return Failed(E.UNAVAILABLE if isinstance(error, StorageFault) else E.BAD_REQUEST, text_of(error))
