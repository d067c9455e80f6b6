"""Every flux message as a frozen type.

Knows: what each request asks and each answer tells, and the error codes. Refuses to know: how they are spelled (operations.py has
the table), lines and bytes (lines.py), what a command does (the broker's services).
Invariant: a request that exists is well formed: its reader has checked every argument.

Sources: the Flux document, "Supported Commands", "Command Payloads", "Error Codes"; the Flux page, §2 and §6, for the BROKER_
and ADMIN_ commands and the options `enc`, `max`, `wait_ms`.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec


class ErrorCode(StrEnum):
    """The document's five, and one of ours for a request that is right and cannot be served: none of the five would be true."""

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
    """`enc=`: how keys and values stand on the line. PLAIN is what the absence of the option means; it is never written."""

    PLAIN = "plain"
    BASE64 = "b64"


# --- requests ---------------------------------------------------------------------------------------------------------------


class Request(msgspec.Struct, frozen=True, gc=False):
    """What all requests share: the id that their answer repeats."""

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
    """OFFSET: the word alone names no act."""

    group: str
    topic: str
    partition: int


class ReplicaFetch(OfPartition, frozen=True, gc=False):
    """Carries no records: a follower only reports how far it has come."""

    replica_id: int
    offset: int


class BrokerFetch(OfPartition, frozen=True, gc=False):
    """A broker of Flux's own copies the log. It tells how far it has come by BrokerReplicaAck, not by this."""

    follower_id: int
    offset: int
    records_max: int | None = None
    encoding: Encoding = Encoding.PLAIN


class BrokerReplicaAck(OfPartition, frozen=True, gc=False):
    """`offset` is the last one that the broker has."""

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
    """What CONSUME shows of a record. `model.record.Record` is one, so an adapter passes what it read as it is."""

    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


class ConsumedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record as a client reads it. A plain answer has no keys: `key` is None there."""

    offset: int
    key: bytes | None
    value: bytes | None


class Answer(msgspec.Struct, frozen=True):
    """What all answers share: nothing. The id is the request's."""


class Failed(Answer, frozen=True):
    """`ERR|<code>|<message>`. A client may meet codes that this table does not know; a server writes only those it knows."""

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


class HeartbeatTaken(Answer, frozen=True):
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


class BrokerHeartbeatTaken(Answer, frozen=True):
    broker_id: int
    term: int
    index: int


class BrokerHealthReconciled(Answer, frozen=True):
    """How many brokers were fenced by it."""

    reconciled: int


class BrokerFenced(Answer, frozen=True):
    broker_id: int
    term: int
    index: int


class BrokerUnfenced(BrokerFenced, frozen=True):
    pass


class LeadersChanged(Answer, frozen=True):
    """How many partitions have another leader by it."""

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
    """`fenced` came later: a broker that does not tell it tells of none."""

    topics: tuple[str, ...]
    brokers: tuple[int, ...]
    fenced: tuple[int, ...] = ()


class Pong(Answer, frozen=True):
    pass


RecordsAsked = Consume | BrokerFetch
RecordsShown = Consumed | BrokerFetched
"""Requests and answers with records on their line."""


class Response(msgspec.Struct, frozen=True):
    """An answer with the id it answers; id `0` answers a line that could not be read (the Flux page, §1)."""

    correlation_id: str
    answer: Answer
