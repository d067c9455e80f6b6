"""Translates reasons to mlog's error codes: one total table.

A reason lists its possible codes, best first. The first one that the operation's row documents is sent, or UNKNOWN:
so no operation returns a code that its row does not list. A test keeps the table total: a new `Reason` without a row
fails it.
"""

from braidlog.adapters.errors import GROUPS, KEYS, PRODUCERS, STREAMS, USERS, text_of
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.wire.mlog.errors import ErrorCode as E
from braidlog.wire.mlog.errors import RPCErrorResponse
from braidlog.wire.mlog.messages import Request
from braidlog.wire.mlog.operations import BY_REQUEST

CODES: dict[Reason, tuple[E, ...]] = {
    **dict.fromkeys((*GROUPS, *PRODUCERS, *STREAMS, *USERS, *KEYS), ()),
    Reason.INVALID_TOPIC_NAME: (E.TOPIC_REQUIRED, E.TOPIC_NAME_REQUIRED),
    Reason.TOPIC_EXISTS: (E.TOPIC_EXISTS,),
    Reason.TOPIC_NOT_FOUND: (E.TOPIC_NOT_FOUND,),
    Reason.PARTITION_NOT_FOUND: (E.TOPIC_NOT_FOUND,),
    Reason.INVALID_PARTITION_COUNT: (),  # several partitions: after code 3, clients would look again forever
    Reason.INVALID_SETTING: (E.REPLICA_COUNT_INVALID,),
    Reason.INVALID_RECORD: (E.VALUES_REQUIRED,),
    Reason.INVALID_TIMESTAMP: (E.VALUES_REQUIRED,),
    Reason.RECORD_TOO_LARGE: (),
    Reason.OFFSET_OUT_OF_RANGE: (E.READ_OFFSET, E.COMMIT_OFFSET),
    Reason.OFFSET_NOT_AVAILABLE: (E.RAFT_LEADER_UNAVAILABLE,),
    Reason.STALE_LEADER_EPOCH: (),
    Reason.TOO_MANY_PRODUCERS: (),
    Reason.FOLDER_IN_USE: (),
    Reason.FOLDER_NOT_FOUND: (),
    Reason.LOG_CLOSED: (),
    Reason.TIMED_OUT: (),
    # A producer gets 4, FindTopicLeader 10, a metadata change 11, a consumer 3: after each, its client looks for the
    # leader again.
    Reason.NOT_LEADER: (E.NOT_TOPIC_LEADER, E.LEADER_ADDR_REQUIRED, E.RAFT_LEADER_UNAVAILABLE, E.TOPIC_NOT_FOUND),
    # A consumer that continues at its commit gets 3, so that it looks for the leader again.
    Reason.NOT_COORDINATOR: (E.COMMIT_OFFSET, E.RECOVER_OFFSETS, E.TOPIC_NOT_FOUND),
    Reason.COORDINATOR_LOADING: (E.COMMIT_OFFSET, E.RECOVER_OFFSETS, E.TOPIC_NOT_FOUND),
    Reason.REPLICA_NOT_FOUND: (),
    Reason.NOT_ENOUGH_REPLICAS: (E.NOT_ENOUGH_NODES, E.TIMEOUT_CATCH_UP),
    Reason.ACKS_TIMED_OUT: (E.TIMEOUT_CATCH_UP,),
    Reason.INVALID_ACKS: (E.INVALID_ACK_MODE,),
    Reason.GROUP_FULL: (E.COMMIT_OFFSET, E.RECOVER_OFFSETS),
    Reason.WRONG_GROUP_KIND: (E.COMMIT_OFFSET, E.RECOVER_OFFSETS),
    Reason.INCONSISTENT_PROTOCOLS: (E.COMMIT_OFFSET, E.RECOVER_OFFSETS),
    Reason.INVALID_SESSION_TIMEOUT: (E.COMMIT_OFFSET, E.RECOVER_OFFSETS),
    Reason.METADATA_TOO_LARGE: (E.COMMIT_OFFSET,),
    Reason.INVALID_GROUP: (E.COMMIT_OFFSET, E.RECOVER_OFFSETS),
    Reason.OFFSET_REGRESSION: (E.COMMIT_OFFSET,),
    Reason.NOT_AUTHENTICATED: (),
    Reason.NOT_AUTHORIZED: (),
    Reason.QUOTA_EXCEEDED: (),
    Reason.UNAVAILABLE: (E.RAFT_LEADER_UNAVAILABLE,),
    Reason.VALUE_TOO_LARGE: (),
    Reason.OUT_OF_MEMORY: (),
}

_FAULT = (E.COMMIT_OFFSET, E.RECOVER_OFFSETS)
"""A damaged disk. Not READ_OFFSET: clients would poll forever."""


def rpc_error(request: Request, error: Exception) -> RPCErrorResponse:
    if isinstance(error, BrokerError):
        return RPCErrorResponse(documented_code(request, CODES[error.reason]), str(error))
    return RPCErrorResponse(documented_code(request, _FAULT if isinstance(error, StorageFault) else ()), text_of(error))


def documented_code(request: Request, codes: tuple[E, ...]) -> E:
    """Return the first code that the operation's row documents."""
    documented = BY_REQUEST[type(request)].errors
    return next((code for code in codes if code in documented), E.UNKNOWN)
