"""The table of mlog's operations: request, answer, purpose and errors of each.

Invariant: reader, writer, the page in docs/ and the test parameters are derived from `OPERATIONS`; no other list of
messages exists.
"""

from typing import Final

import msgspec

from braidlog.wire.mlog import messages as m
from braidlog.wire.mlog.errors import ErrorCode, RPCErrorResponse
from braidlog.wire.mlog.gojson import GoStruct
from braidlog.wire.mlog.messages import MessageType


class Operation(msgspec.Struct, frozen=True):
    """One row. With `streams`, `push` answers it any number of times."""

    number: MessageType
    request: type[m.Request]
    response: type[m.Response]
    purpose: str
    errors: tuple[ErrorCode, ...]
    streams: bool = False

    @property
    def response_number(self) -> MessageType:
        return MessageType(self.number + 1)  # in the document's list, each response follows its request

    @property
    def name(self) -> str:
        return self.number.title


def _row(number: MessageType, purpose: str, *errors: ErrorCode) -> Operation:
    """Derive the types from the number's name; the request that streams batches uses only the first word."""
    name = "Replicate" if number is MessageType.REPLICATE_STREAM else number.title
    request, response = getattr(m, f"{name}Request"), getattr(m, f"{name}Response")
    return Operation(number, request, response, purpose, errors, number.name.endswith("_STREAM"))


_E = ErrorCode
_T = MessageType
_TOPIC = (_E.TOPIC_REQUIRED, _E.TOPIC_NOT_FOUND)
_PRODUCE = (*_TOPIC, _E.NOT_TOPIC_LEADER, _E.VALUES_REQUIRED, _E.INVALID_ACK_MODE, _E.TIMEOUT_CATCH_UP)
_CREATE = (_E.TOPIC_NAME_REQUIRED, _E.REPLICA_COUNT_INVALID, _E.TOPIC_EXISTS, _E.NOT_ENOUGH_NODES)
# Not CANNOT_REACH_LEADER: after it, a client does not look for the leader again.
_METADATA = _E.RAFT_LEADER_UNAVAILABLE

OPERATIONS: Final = (
    _row(
        _T.REPLICATE_STREAM,
        "fetch records as replication batches, by a replica; 1..n answers",
        *(*_TOPIC, _E.NOT_TOPIC_LEADER, _E.READ_OFFSET),
    ),
    _row(_T.PRODUCE, "append one record", *_PRODUCE),
    _row(_T.PRODUCE_BATCH, "append records", *_PRODUCE),
    _row(_T.FETCH, "read one record", *_TOPIC, _E.READ_OFFSET),
    _row(_T.FETCH_BATCH, "read records; an empty answer for a consumer is not an error", *_TOPIC, _E.READ_OFFSET),
    _row(_T.FETCH_STREAM, "push records as they are committed, until the client closes", *_TOPIC, _E.READ_OFFSET),
    _row(_T.COMMIT_OFFSET, "commit a consumer's offset", *_TOPIC, _E.COMMIT_OFFSET),
    _row(_T.FETCH_OFFSET, "get a consumer's committed offset", *_TOPIC, _E.RECOVER_OFFSETS),
    _row(_T.CREATE_TOPIC, "create a topic; N replicas need N+1 nodes", *_CREATE, _METADATA),
    _row(_T.DELETE_TOPIC, "delete a topic", _E.TOPIC_NAME_REQUIRED, _E.TOPIC_NOT_FOUND, _METADATA),
    _row(_T.FIND_TOPIC_LEADER, "find the address of a topic's leader", *_TOPIC, _E.LEADER_ADDR_REQUIRED),
    _row(_T.FIND_RAFT_LEADER, "find the address of the metadata leader", _METADATA),
    _row(_T.LIST_TOPICS, "list topics with their replicas"),
    _row(
        _T.APPLY_ISR_UPDATE_EVENT,
        "report that a replica joined or left the ISR, by a topic's leader",
        *(*_TOPIC, _METADATA),
    ),
)
"""Every operation may also return UNKNOWN."""

BY_REQUEST: Final[dict[type[m.Request], Operation]] = {row.request: row for row in OPERATIONS}

NUMBER_OF: Final[dict[type[GoStruct], MessageType]] = {
    RPCErrorResponse: MessageType.RPC_ERROR,
    **{row.request: row.number for row in OPERATIONS},
    **{row.response: row.response_number for row in OPERATIONS},
}
"""Message type → its number on the wire, as in the document's type switch."""
