"""Error codes, the message with an error, and the codes after which a client should look for the leader again.

The document's 17 codes and its ShouldReconnect. The adapter translates the broker's reasons into these codes.
"""

from enum import IntEnum
from typing import Final

from braidlog.wire.mlog.gojson import I32, GoStruct


class ErrorCode(IntEnum):
    """Codes by position in the protocol document, "Error codes and response types"."""

    UNKNOWN = 0
    TOPIC_REQUIRED = 1
    TOPIC_NAME_REQUIRED = 2
    TOPIC_NOT_FOUND = 3
    NOT_TOPIC_LEADER = 4
    VALUES_REQUIRED = 5
    READ_OFFSET = 6
    COMMIT_OFFSET = 7
    RECOVER_OFFSETS = 8
    REPLICA_COUNT_INVALID = 9
    LEADER_ADDR_REQUIRED = 10
    RAFT_LEADER_UNAVAILABLE = 11
    TOPIC_EXISTS = 12
    NOT_ENOUGH_NODES = 13
    CANNOT_REACH_LEADER = 14
    INVALID_ACK_MODE = 15
    TIMEOUT_CATCH_UP = 16


# The document's ShouldReconnect. It omits CANNOT_REACH_LEADER, so a client that gets 14 does not look again.
RECONNECT_CODES: Final = frozenset(
    {ErrorCode.NOT_TOPIC_LEADER, ErrorCode.TOPIC_NOT_FOUND, ErrorCode.RAFT_LEADER_UNAVAILABLE}
)


class RPCErrorResponse(GoStruct, frozen=True, rename={"code": "code", "message": "message"}):
    """Message 20: replaces any answer. The only message with JSON tags, hence lower-case keys."""

    # Any int32, not only known codes: a newer server may have more.
    code: I32 = ErrorCode.UNKNOWN
    message: str = ""


def should_reconnect(error: RPCErrorResponse) -> bool:
    """Return whether a client should look for the leader again and reconnect."""
    return error.code in RECONNECT_CODES
