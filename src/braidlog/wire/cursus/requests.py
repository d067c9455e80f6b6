"""Request messages: one frozen type per command, with its arguments and their names on the wire.

`commands.py` spells them, `messages.py` lists their answers. The binary batch is a request too; it is in `batch.py`.
Invariant: an argument without a default is required; None as the default means that the argument was omitted.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
ChosenPartition = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
"""-1 leaves the choice to the broker; the published transactional clients send it."""
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class Acks(StrEnum):
    """The replicas whose storage a producer waits for. Both spellings of "all" are in use."""

    NONE = "0"
    LEADER = "1"
    ALL = "-1"
    ALL_WORD = "all"


class PartitionOffset(msgspec.Struct, frozen=True):
    """`P<partition>:<offset>`; a committed offset is the next offset to read."""

    partition: PartitionNumber
    offset: Natural


class Credentials(msgspec.Struct, frozen=True):
    """`principal=` and `auth_token=`, which any command of the clients' spelling may have."""

    principal: str
    token: str

    def __repr__(self) -> str:
        return f"Credentials(principal={self.principal!r}, token=<hidden>)"


# --- shared fields


class OfTopic(msgspec.Struct, frozen=True):
    topic: str


class OfGroup(OfTopic, frozen=True):
    group: str


class OfMember(OfGroup, frozen=True):
    member: str


class OfGeneration(OfMember, frozen=True):
    generation: Integer | None = None


class OfStream(OfTopic, frozen=True):
    key: str


class OfTransactionalId(msgspec.Struct, frozen=True):
    transactional_id: str


class OfTransaction(OfTransactionalId, frozen=True):
    producer_id: str = msgspec.field(name="producerId")
    epoch: Integer


# --- topics


class Create(msgspec.Struct, frozen=True):
    topic: str
    partitions: Count | None = None
    event_sourcing: bool = False
    idempotent: bool | None = None
    replication_factor: Count | None = None
    cleanup_policy: str | None = None
    partitioner: str | None = None
    auth_policy: str | None = None
    read_acl: str | None = None
    write_acl: str | None = None
    retention_hours: Natural | None = None
    retention_bytes: Natural | None = None


class Delete(OfTopic, frozen=True):
    if_exists: bool = False


class ListTopics(msgspec.Struct, frozen=True):
    pass


class Describe(OfTopic, frozen=True):
    pass


class GetMetadata(OfTopic, frozen=True):
    pass


class ListOffsets(OfTopic, frozen=True):
    partition: PartitionNumber | None = None


# --- records


class Publish(msgspec.Struct, frozen=True):
    topic: str
    message: bytes
    acks: Acks = Acks.LEADER
    producer_id: str = msgspec.field(default="", name="producerId")
    partition: ChosenPartition | None = None
    key: bytes = b""
    sequence: Natural = msgspec.field(default=0, name="seqNum")
    epoch: Integer = 0
    idempotent: bool = msgspec.field(default=False, name="isIdempotent")


class Consume(msgspec.Struct, frozen=True):
    topic: str
    partition: PartitionNumber
    offset: Natural
    member: str = ""
    group: str = ""
    generation: Integer | None = None
    records_max: Count | None = msgspec.field(default=None, name="batch")
    wait_ms: Natural = 0
    isolation_level: str = ""
    auto_offset_reset: str = msgspec.field(default="", name="autoOffsetReset")


class Stream(msgspec.Struct, frozen=True):
    topic: str
    partition: PartitionNumber
    group: str = ""
    member: str = ""
    generation: Integer | None = None
    offset: Natural | None = None
    records_max: Count | None = msgspec.field(default=None, name="batch")
    isolation_level: str = ""
    auto_offset_reset: str = msgspec.field(default="", name="autoOffsetReset")


# --- groups


class Subscribe(OfGroup, frozen=True):
    pass


class RegisterGroup(OfGroup, frozen=True):
    pass


class JoinGroup(OfMember, frozen=True):
    pass


class SyncGroup(OfGeneration, frozen=True):
    pass


class Heartbeat(OfGeneration, frozen=True):
    """The protocol document sends both a consumer id and a member id; the clients send the member only."""

    consumer: str = ""


class LeaveGroup(OfGeneration, frozen=True):
    pass


class Commit(OfGroup, frozen=True):
    """The document's commit: without member and generation, so it is not fenced."""

    partition: PartitionNumber
    offset: Natural


class CommitOffset(msgspec.Struct, frozen=True):
    topic: str
    partition: PartitionNumber
    group: str
    offset: Natural
    generation: Integer | None = None
    member: str = ""


class BatchCommit(OfMember, frozen=True):
    generation: Integer
    offsets: tuple[PartitionOffset, ...]


class FetchOffset(msgspec.Struct, frozen=True):
    topic: str
    partition: PartitionNumber
    group: str


class ListGroups(msgspec.Struct, frozen=True):
    pass


class GroupStatus(msgspec.Struct, frozen=True):
    group: str


class FindCoordinator(msgspec.Struct, frozen=True):
    group: str = ""
    transactional_id: str = ""


# --- several nodes


class ListCluster(msgspec.Struct, frozen=True):
    pass


class GetClusterStatus(msgspec.Struct, frozen=True):
    pass


class ElectLeader(OfTopic, frozen=True):
    partition: PartitionNumber
    broker: str


# --- event store


class AppendStream(OfStream, frozen=True):
    version: Natural
    message: bytes
    event_type: str = ""
    schema_version: Natural | None = None
    producer_id: str = msgspec.field(default="", name="producerId")
    metadata: str = ""


class ReadStream(OfStream, frozen=True):
    from_version: Natural | None = None


class StreamVersion(OfStream, frozen=True):
    pass


class SaveSnapshot(OfStream, frozen=True):
    version: Natural
    message: bytes


class ReadSnapshot(OfStream, frozen=True):
    pass


# --- transactions


class InitProducerId(OfTransactionalId, frozen=True):
    pass


class BeginTxn(OfTransaction, frozen=True):
    pass


class TxnPublish(msgspec.Struct, frozen=True):
    transactional_id: str
    topic: str
    producer_id: str = msgspec.field(name="producerId")
    sequence: Count = msgspec.field(name="seqNum")
    epoch: Integer
    message: bytes
    partition: ChosenPartition | None = None
    key: bytes = b""


class SendOffsetsToTxn(OfTransaction, frozen=True):
    topic: str
    group: str
    member: str
    generation: Integer
    offsets: tuple[PartitionOffset, ...]


class EndTxn(OfTransaction, frozen=True):
    result: str


class TxnStatus(OfTransactionalId, frozen=True):
    pass


# --- the connection itself


class Auth(msgspec.Struct, frozen=True):
    principal: str
    token: str

    def __repr__(self) -> str:
        return f"Auth(principal={self.principal!r}, token=<hidden>)"


class Help(msgspec.Struct, frozen=True):
    pass


class GetProtocolInfo(msgspec.Struct, frozen=True):
    pass


class Exit(msgspec.Struct, frozen=True):
    pass
