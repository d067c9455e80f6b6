"""Translates reasons to Mayfly's statuses: one total table.

A test keeps the table total: a new `Reason` without a row fails it.
"""

from typing import Final

from braidlog.adapters.errors import GROUPS, PRODUCERS, STREAMS, USERS, text_of
from braidlog.model.address import Address
from braidlog.model.errors import BrokerError, Reason
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.messages import Status

STATUSES: Final[dict[Reason, Status]] = {
    Reason.KEY_NOT_FOUND: Status.NOT_FOUND,
    Reason.INVALID_KEY: Status.BAD_PAYLOAD,
    Reason.KEY_TOO_LONG: Status.KEY_TOO_LONG,
    Reason.VALUE_TOO_LARGE: Status.VALUE_TOO_LARGE,
    Reason.WRONG_TYPE: Status.WRONG_TYPE,
    Reason.NOT_A_NUMBER: Status.WRONG_TYPE,
    Reason.NUMBER_OVERFLOW: Status.VALUE_TOO_LARGE,
    Reason.OUT_OF_MEMORY: Status.OUT_OF_MEMORY,
    Reason.TIMED_OUT: Status.TIMEOUT,
    Reason.ACKS_TIMED_OUT: Status.TIMEOUT,
    Reason.NOT_ENOUGH_REPLICAS: Status.TIMEOUT,
    Reason.NOT_LEADER: Status.TOPOLOGY_CHANGED,
    Reason.NOT_COORDINATOR: Status.TOPOLOGY_CHANGED,
    Reason.COORDINATOR_LOADING: Status.SERVER_ERROR,
    Reason.NOT_AUTHENTICATED: Status.AUTH_REQUIRED,
    Reason.NOT_AUTHORIZED: Status.AUTH_REQUIRED,
    Reason.INVALID_SETTING: Status.BAD_PAYLOAD,
    Reason.INVALID_RECORD: Status.BAD_PAYLOAD,
    Reason.INVALID_TIMESTAMP: Status.BAD_PAYLOAD,
    Reason.RECORD_TOO_LARGE: Status.VALUE_TOO_LARGE,
    Reason.UNAVAILABLE: Status.SERVER_ERROR,
    Reason.LOG_CLOSED: Status.SERVER_ERROR,
    Reason.QUOTA_EXCEEDED: Status.SERVER_ERROR,
    Reason.FOLDER_IN_USE: Status.SERVER_ERROR,
    Reason.FOLDER_NOT_FOUND: Status.SERVER_ERROR,
    # The following concern topics, groups and transactions, which this protocol does not have.
    **dict.fromkeys((*GROUPS, *PRODUCERS, *STREAMS, *USERS), Status.SERVER_ERROR),
    Reason.TOPIC_NOT_FOUND: Status.SERVER_ERROR,
    Reason.INVALID_TOPIC_NAME: Status.SERVER_ERROR,
    Reason.TOPIC_EXISTS: Status.SERVER_ERROR,
    Reason.PARTITION_NOT_FOUND: Status.SERVER_ERROR,
    Reason.INVALID_PARTITION_COUNT: Status.SERVER_ERROR,
    Reason.OFFSET_OUT_OF_RANGE: Status.SERVER_ERROR,
    Reason.OFFSET_NOT_AVAILABLE: Status.SERVER_ERROR,
    Reason.STALE_LEADER_EPOCH: Status.SERVER_ERROR,
    Reason.TOO_MANY_PRODUCERS: Status.SERVER_ERROR,
    Reason.REPLICA_NOT_FOUND: Status.SERVER_ERROR,
    Reason.INVALID_ACKS: Status.SERVER_ERROR,
}


def failure(
    error: Exception, moved: Address | None = None, epoch: int | None = None
) -> m.Failure | m.TopologyChanged | m.Moved:
    """Return the answer to a request that could not be served; the node at `moved` serves it. A disk fault is a
    SERVER_ERROR.

    `epoch`: this node's metadata epoch.
    """
    if moved is not None:
        return m.Moved(*moved)
    status = STATUSES[error.reason] if isinstance(error, BrokerError) else Status.SERVER_ERROR
    if status is Status.NOT_FOUND:
        return m.MISSING  # short, because it is frequent
    if status is Status.TOPOLOGY_CHANGED:
        return m.TopologyChanged(epoch, str(error))
    return m.Failure(status, text_of(error))
