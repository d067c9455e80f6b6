"""The flux messages as frozen types: the fields of each request and answer, and the error codes.

operations.py spells them, lines.py reads and writes them.
Invariant: an existing request is well formed: its reader has checked every argument.

Sources: the Flux document, "Supported Commands", "Command Payloads", "Error Codes"; the Flux page, §2 and §6, for the
BROKER_ and ADMIN_ commands and the options `enc`, `max`, `wait_ms`.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec


class ErrorCode(StrEnum):
    """The document's five codes, and one more for a valid request that cannot be served."""

    BAD_REQUEST = "BAD_REQUEST"
    UNKNOWN_COMMAND = "UNKNOWN_COMMAND"
    REPLICATION_TIMEOUT = "REPLICATION_TIMEOUT"
    NOT_LEADER = "NOT_LEADER"
    GENERATION_MISMATCH = "GENERATION_MISMATCH"
    UNAVAILABLE = "UNAVAILABLE"


class Acks(StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"


class Assignor(StrEnum):
    ROUND_ROBIN = "round_robin"
    RANGE = "range"


class Role(StrEnum):
    LEADER = "leader"
    FOLLOWER = "follower"


class Encoding(StrEnum):
    """`enc=`: the encoding of keys and values on the line. PLAIN is the default; it is never written."""

    PLAIN = "plain"
    BASE64 = "b64"


# --- requests ---------------------------------------------------------------------------------------------------------------


class Request(msgspec.Struct, frozen=True, gc=False):
    """The field of all requests: the id that their answer repeats."""

    correlation_id: str


class Produce(Request, frozen=True, gc=False):
    topic: str
    key: bytes | None
    value: bytes | None
    acks: Acks = Acks.LEADER
    encoding: Encoding = Encoding.PLAIN


class Consume(Request, frozen=True, gc=False):
    topic: str
    partition: int
    offset: int
    encoding: Encoding = Encoding.PLAIN
    records_max: int | None = None
    wait_ms: int = 0


class OfMember(Request, frozen=True, gc=False):
    group: str
    topic: str
    consumer_id: str


class OfGeneration(OfMember, frozen=True, gc=False):
    generation: int


class OfPartition(Request, frozen=True, gc=False):
    topic: str
    partition: int


class Join(OfMember, frozen=True, gc=False):
    assignor: Assignor | None = None


class Sync(OfGeneration, frozen=True, gc=False):
    pass


class Heartbeat(OfGeneration, frozen=True, gc=False):
    pass


class Leave(OfGeneration, frozen=True, gc=False):
    pass


class Commit(OfGeneration, frozen=True, gc=False):
    partition: int
    offset: int


class ReadOffset(Request, frozen=True, gc=False):
    """The command OFFSET: reads a committed offset."""

    group: str
    topic: str
    partition: int


class ReplicaFetch(OfPartition, frozen=True, gc=False):
    """Has no records: a follower only reports its log end."""

    replica_id: int
    offset: int


class BrokerFetch(OfPartition, frozen=True, gc=False):
    """Copies the log to another Flux broker. It reports its progress with BrokerReplicaAck, not with this."""

    follower_id: int
    offset: int
    records_max: int | None = None
    encoding: Encoding = Encoding.PLAIN


class BrokerReplicaAck(OfPartition, frozen=True, gc=False):
    """`offset` is the last offset that the broker has."""

    follower_id: int
    offset: int


class SetPartitionRole(OfPartition, frozen=True, gc=False):
    role: Role


class CreateTopic(Request, frozen=True, gc=False):
    topic: str
    partitions: int
    replication_factor: int


class RegisterBroker(Request, frozen=True, gc=False):
    broker_id: int
    host: str
    port: int
    epoch: int | None = None


class BrokerHeartbeat(Request, frozen=True, gc=False):
    broker_id: int


class ReconcileBrokerHealth(Request, frozen=True, gc=False):
    timeout_ms: int


class FenceBroker(Request, frozen=True, gc=False):
    broker_id: int


class UnfenceBroker(Request, frozen=True, gc=False):
    broker_id: int


class ElectTopicLeaders(Request, frozen=True, gc=False):
    topic: str


class SetPartitionLeader(OfPartition, frozen=True, gc=False):
    leader: int
    in_sync: tuple[int, ...]


class GetMetadata(Request, frozen=True, gc=False):
    pass


class Ping(Request, frozen=True, gc=False):
    pass


# --- answers ----------------------------------------------------------------------------------------------------------------


class ShownRecord(Protocol):
    """The fields of a record that CONSUME returns. `model.record.Record` has them, so an adapter passes it unchanged."""

    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


class ConsumedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record as a client reads it. A plain answer has no keys: `key` is None then."""

    offset: int
    key: bytes | None
    value: bytes | None


class Answer(msgspec.Struct, frozen=True):
    """Base of all answers. The id is the request's."""


class Failed(Answer, frozen=True):
    """`ERR|<code>|<message>`. A client may receive codes that are not in this table; a server sends only these."""

    code: str
    message: str


class Produced(Answer, frozen=True):
    partition: int
    offset: int
    high_watermark: int


class Consumed(Answer, frozen=True):
    """`high_watermark` is inclusive: the offset of the last committed record, -1 when there is none (the Flux page, §2)."""

    records: Sequence[ShownRecord]
    high_watermark: int


class Joined(Answer, frozen=True):
    generation: int
    assigned: tuple[int, ...]


class Synced(Joined, frozen=True):
    pass


class HeartbeatAccepted(Answer, frozen=True):
    pass


class Left(Answer, frozen=True):
    pass


class Committed(Answer, frozen=True):
    pass


class OffsetRead(Answer, frozen=True):
    offset: int


class ReplicaFetched(Answer, frozen=True):
    replica_id: int
    acked_offset: int
    high_watermark: int
    in_sync: tuple[int, ...]
    under_replicated: bool


class BrokerFetched(Answer, frozen=True):
    topic: str
    partition: int
    follower_id: int
    high_watermark: int
    records: Sequence[ShownRecord]


class BrokerReplicaAcked(Answer, frozen=True):
    topic: str
    partition: int
    follower_id: int
    acked_offset: int
    high_watermark: int
    in_sync: tuple[int, ...]
    under_replicated: bool


class PartitionRoleSet(Answer, frozen=True):
    topic: str
    partition: int
    role: Role
    high_watermark: int


class TopicCreated(Answer, frozen=True):
    topic: str
    partitions: int
    replication_factor: int
    term: int
    index: int


class BrokerRegistered(Answer, frozen=True):
    broker_id: int
    host: str
    port: int
    term: int
    index: int


class BrokerHeartbeatAccepted(Answer, frozen=True):
    broker_id: int
    term: int
    index: int


class BrokerHealthReconciled(Answer, frozen=True):
    """The number of brokers that were fenced."""

    reconciled: int


class BrokerFenced(Answer, frozen=True):
    broker_id: int
    term: int
    index: int


class BrokerUnfenced(BrokerFenced, frozen=True):
    pass


class LeadersChanged(Answer, frozen=True):
    """The number of partitions whose leader changed."""

    topic: str
    elected_changes: int


class PartitionLeaderSet(Answer, frozen=True):
    topic: str
    partition: int
    leader: int
    in_sync: tuple[int, ...]
    term: int
    index: int


class Metadata(Answer, frozen=True):
    """`fenced` is a later addition: a broker that omits it has none."""

    topics: tuple[str, ...]
    brokers: tuple[int, ...]
    fenced: tuple[int, ...] = ()


class Pong(Answer, frozen=True):
    pass


RecordsAsked = Consume | BrokerFetch
RecordsShown = Consumed | BrokerFetched
"""Requests and answers with records on their line."""


class Response(msgspec.Struct, frozen=True):
    """An answer with its request's id; id `0` answers an unreadable line (the Flux page, §1)."""

    correlation_id: str
    answer: Answer
