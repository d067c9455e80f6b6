"""The messages of mlog: fields and number of each.

operations.py pairs requests with answers, connection.py has the frames, gojson.py the JSON. Attributes have
braidlog's names; on the wire they have Go field names (`consumer_id` is `Id`). None is Go's nil, where Go
distinguishes it from empty.
"""

from enum import IntEnum
from typing import Final

import msgspec

from braidlog.codec.batch.row_layout import Kind, Packed, Part
from braidlog.wire.mlog.gojson import I32, I64, U32, U64, GoStruct


class MessageType(IntEnum):
    """Types by position in the protocol document, "Message type enumeration"."""

    REPLICATE_STREAM = 0
    REPLICATE_RESP = 1
    PRODUCE = 2
    PRODUCE_RESP = 3
    PRODUCE_BATCH = 4
    PRODUCE_BATCH_RESP = 5
    FETCH = 6
    FETCH_RESP = 7
    FETCH_BATCH = 8
    FETCH_BATCH_RESP = 9
    FETCH_STREAM = 10
    FETCH_STREAM_RESP = 11
    COMMIT_OFFSET = 12
    COMMIT_OFFSET_RESP = 13
    FETCH_OFFSET = 14
    FETCH_OFFSET_RESP = 15
    CREATE_TOPIC = 16
    CREATE_TOPIC_RESP = 17
    DELETE_TOPIC = 18
    DELETE_TOPIC_RESP = 19
    RPC_ERROR = 20
    FIND_TOPIC_LEADER = 21
    FIND_TOPIC_LEADER_RESP = 22
    FIND_RAFT_LEADER = 23
    FIND_RAFT_LEADER_RESP = 24
    LIST_TOPICS = 25
    LIST_TOPICS_RESP = 26
    APPLY_ISR_UPDATE_EVENT = 27
    APPLY_ISR_UPDATE_EVENT_RESP = 28

    @property
    def title(self) -> str:
        """Return the name: `2` is `Produce`."""
        return "".join(word if word == "RPC" else word.capitalize() for word in self.name.split("_"))


class AckMode(IntEnum):
    """What a produce waits for. A message may have any int32: an unknown one gets INVALID_ACK_MODE."""

    NONE = 0
    LEADER = 1
    ALL = 2


class Request(GoStruct, frozen=True):
    """Base of a client's requests."""


class Response(GoStruct, frozen=True):
    """Base of a server's answers, except `RPCErrorResponse`."""


class LogEntry(GoStruct, frozen=True, gc=False):
    offset: U64 = 0
    value: bytes | None = None


class ReplicateRequest(Request, frozen=True):
    """The fields that clients send; the protocol document does not have them (the mlog page, §8)."""

    topic: str = ""
    offset: U64 = 0
    batch_size: U32 = 0
    replica_node_id: str = ""


class ReplicateResponse(Response, frozen=True):
    """One of 1..n answers: `raw_chunk` is a replication batch (replication.py). The last has `end_of_stream`."""

    topic: str = ""
    raw_chunk: bytes | None = None
    end_of_stream: bool = False
    leader_leo: I64 = 0


class ProduceRequest(Request, frozen=True):
    topic: str = ""
    value: bytes | None = None
    acks: I32 = AckMode.NONE


class ProduceResponse(Response, frozen=True):
    offset: U64 = 0


class ProduceBatchRequest(Request, frozen=True):
    topic: str = ""
    values: tuple[bytes | None, ...] | None = None
    acks: I32 = AckMode.NONE


class ProduceBatchResponse(Response, frozen=True):
    base_offset: U64 = 0
    last_offset: U64 = 0
    count: U32 = 0


class FetchRequest(Request, frozen=True):
    """A request with `replica_node_id` comes from a replica: it reads uncommitted records, and its offset is its log
    end offset.
    """

    topic: str = ""
    consumer_id: str = ""
    offset: U64 = 0
    replica_node_id: str = ""


class FetchResponse(Response, frozen=True):
    entry: LogEntry | None = None


class FetchBatchRequest(Request, frozen=True):
    topic: str = ""
    consumer_id: str = ""
    offset: U64 = 0
    max_count: U32 = 0
    replica_node_id: str = ""


class FetchBatchResponse(Response, frozen=True):
    # nil, not []: Go writes `{"Entries":null}` for an empty answer.
    entries: tuple[LogEntry | None, ...] | None = None


ENTRY_ROW: Final = (
    Part(Kind.LITERAL, b'{"Offset":'),
    Part(Kind.OFFSET_DECIMAL),
    Part(Kind.LITERAL, b',"Value":'),
    Part(Kind.VALUE_BASE64, b"null"),
    Part(Kind.LITERAL, b"}"),
)
"""A `LogEntry` as Go's json.Marshal spells it; rows are separated by commas."""


class PackedEntries(msgspec.Struct, frozen=True):
    """A FetchBatchResponse whose entries are already encoded as `ENTRY_ROW`s."""

    rows: Packed


class FetchStreamRequest(FetchRequest, frozen=True):
    """The protocol document defines no body; we use that of FetchRequest (the mlog page, §2)."""


class FetchStreamResponse(FetchResponse, frozen=True):
    """The body of FetchResponse, pushed for each record as it is committed."""


class CommitOffsetRequest(Request, frozen=True):
    topic: str = ""
    consumer_id: str = ""
    offset: U64 = 0


class CommitOffsetResponse(Response, frozen=True):
    success: bool = False


class FetchOffsetRequest(Request, frozen=True):
    topic: str = ""
    consumer_id: str = ""


class FetchOffsetResponse(Response, frozen=True):
    offset: U64 = 0


class CreateTopicRequest(Request, frozen=True):
    """`replica_count` does not count the leader; `designated_leader_node_id` is set when a Raft leader forwards the
    request.
    """

    topic: str = ""
    replica_count: U32 = 0
    designated_leader_node_id: str = ""


class CreateTopicResponse(Response, frozen=True):
    topic: str = ""
    replica_node_ids: tuple[str, ...] | None = None


class DeleteTopicRequest(Request, frozen=True):
    topic: str = ""


class DeleteTopicResponse(Response, frozen=True):
    topic: str = ""


class FindTopicLeaderRequest(Request, frozen=True):
    topic: str = ""


class FindTopicLeaderResponse(Response, frozen=True):
    leader_addr: str = ""


class FindRaftLeaderRequest(Request, frozen=True):
    pass


class FindRaftLeaderResponse(Response, frozen=True):
    raft_leader_addr: str = ""


class ListTopicsRequest(Request, frozen=True):
    pass


class ReplicaInfo(GoStruct, frozen=True):
    node_id: str = ""
    is_isr: bool = False
    leo: I64 = 0


class TopicInfo(GoStruct, frozen=True):
    name: str = ""
    leader_node_id: str = ""
    leader_epoch: I64 = 0
    replicas: tuple[ReplicaInfo, ...] | None = None


class ListTopicsResponse(Response, frozen=True):
    topics: tuple[TopicInfo, ...] | None = None


class ApplyIsrUpdateEventRequest(Request, frozen=True):
    """Has neither epoch nor version: the receiver must fence it by its own state."""

    topic: str = ""
    replica_node_id: str = ""
    isr: bool = False


class ApplyIsrUpdateEventResponse(Response, frozen=True):
    pass


Pushed = ReplicateResponse | FetchStreamResponse
