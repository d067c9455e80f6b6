"""The port that each dialect's driver implements, and the capabilities that a driver declares.

Does not handle: bytes, sockets, retries; each driver method makes one attempt.
A driver raises only `ClientError`s. `require` refuses what the dialect cannot do before anything is sent.

An offset is that of the next record to read, and ranges are half-open, even in dialects that count differently.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, ClassVar, get_type_hints

import msgspec

from braidlog.client.drivers.cluster import (
    ClusterEvent,
    ClusterInfo,
    LogFolder,
    PartitionMove,
    PartitionOutcome,
    Place,
)
from braidlog.client.drivers.quotas import Quota
from braidlog.client.drivers.transactions import TransactionalProducer, TransactionPort
from braidlog.client.drivers.users import UserCredential
from braidlog.client.errors import ClientError, RecordError, Refusal, RefusedError, UnsupportedError
from braidlog.model.record import Header, NewRecord
from braidlog.model.reporting.node_report import NodeDescription


class Acks(StrEnum):
    """Which replicas must have a record before it is acknowledged."""

    LEADER = "leader"
    ALL = "all"


class Headers(StrEnum):
    """Which headers a dialect carries."""

    NONE = "no"
    SHOWN = "read only"
    EVENT = "eventType, schemaVersion, aggregateVersion, metadata"
    ANY = "yes"


class Commits(StrEnum):
    """Which clients may commit an offset."""

    MEMBERS = "members of the group only"
    ANYONE = "yes"


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a dialect supports; each field has a title. A client rejects unsupported requests by this title."""

    keys: Annotated[bool, "keys"] = False
    null_values: Annotated[bool, "null values"] = False
    empty_values: Annotated[bool, "empty values"] = True
    headers: Annotated[Headers, "headers"] = Headers.NONE
    timestamps: Annotated[bool, "timestamps shown to readers"] = False
    stamps: Annotated[bool, "timestamps chosen by writers"] = False
    """The producer may set a record's timestamp."""
    partitions: Annotated[bool, "topics of several partitions"] = True
    places: Annotated[bool, "choosing the partition in the client"] = True
    """The client chooses the partition of a record; otherwise the server chooses by key."""
    batches: Annotated[bool, "many records in one request"] = True
    """Many records in one request; otherwise one request per record, sent together."""
    idempotence: Annotated[bool, "retries that never store twice"] = False
    acks: Annotated[tuple[Acks, ...], "acks"] = (Acks.LEADER, Acks.ALL)
    waits: Annotated[bool, "fetches that wait for records"] = True
    """The server holds a fetch until records arrive; otherwise the client polls."""
    commits: Annotated[Commits, "committed offsets"] = Commits.ANYONE
    tells_uncommitted: Annotated[bool, "distinguishing never committed from committed 0"] = False
    """The server answers "nothing committed" differently from "committed 0"."""
    finds_times: Annotated[bool, "finding an offset by its time"] = False
    """The server finds the offset of the first record at or after a time."""
    groups: Annotated[bool, "groups that share out partitions"] = False
    many_topics: Annotated[bool, "group members that read several topics"] = False
    static_members: Annotated[bool, "group members that keep their share over a restart"] = False
    group_admin: Annotated[bool, "listing and describing groups"] = False
    group_offsets: Annotated[bool, "listing a group's commits, deleting groups"] = False
    """One request lists all commits of a group, of all topics. Groups can be deleted."""
    deletes: Annotated[bool, "deleting topics"] = False
    settings: Annotated[bool, "reading and changing topic settings, adding partitions"] = False
    """The server describes and changes a topic's settings, and adds partitions to it."""
    trims: Annotated[bool, "deleting the oldest records"] = False
    rules: Annotated[bool, "reading and changing rules"] = False
    users: Annotated[bool, "reading and changing users with passwords"] = False
    quotas: Annotated[bool, "reading and changing quotas"] = False
    transactions: Annotated[bool, "transactions: writing, listing, aborting"] = False
    cluster: Annotated[bool, "describing the nodes of a cluster"] = False


TITLES = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Capabilities, include_extras=True).items()
    if name in Capabilities.__struct_fields__
}
"""The rows of the table in docs/guides/client.md, by field."""


class ConsumedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record with its topic, partition and offset. `timestamp_ms` is None if the dialect does not show it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None


class Placed(msgspec.Struct, frozen=True, gc=False):
    """The topic, partition and offset of an acknowledged record."""

    topic: str
    partition: int
    offset: int


class Identity(msgspec.Struct, frozen=True):
    """Identifies the producer to a partition, so that the server recognizes a retry. `sequence` is that of the first
    record; it starts at 1."""

    producer: str
    sequence: int
    transaction: TransactionalProducer | None = None
    """The server's id and epoch of the producer, if it writes in a transaction."""


class Batch(msgspec.Struct, frozen=True):
    """Records of one produce request. A retry must carry the same bytes, or the server does not recognize it.

    `partition` is -1 if the server chooses.
    """

    topic: str
    partition: int
    records: Sequence[NewRecord]
    acks: Acks
    identity: Identity | None = None


class BatchLimits(msgspec.Struct, frozen=True):
    """The limit of a request: `weigh` counts the bytes of one record, and a request weighs the sum."""

    bytes_max: int
    records_max: int
    record_bytes_max: int


class Fetched(msgspec.Struct, frozen=True):
    """`high_watermark` is None if the dialect's answer does not contain it."""

    records: Sequence[ConsumedRecord]
    next_offset: int
    high_watermark: int | None = None


class FetchRequest(msgspec.Struct, frozen=True):
    """Fetch records from `offset` on. Fetches in one slot may block each other; those in different slots do not."""

    topic: str
    partition: int
    offset: int
    bytes_max: int
    wait_ms: int
    slot: int = 0
    member: "Membership | None" = None

    @property
    def place(self) -> tuple[str, int]:
        return self.topic, self.partition


class Span(msgspec.Struct, frozen=True):
    """The offsets of a partition: `[earliest, latest)`."""

    earliest: int
    latest: int


class Membership(msgspec.Struct, frozen=True):
    """One member's share of one generation. `instance` is its static name, if it has one."""

    group: str
    topics: tuple[str, ...]
    member: str
    generation: int
    places: tuple[Place, ...]
    instance: str | None = None


class MemberName(msgspec.Struct, frozen=True):
    """The names of a joining member: one for its lifetime and, for a static member, one that survives restarts."""

    name: str
    instance: str | None = None


class GroupMember(msgspec.Struct, frozen=True, omit_defaults=True):
    """`client_id`, `host` and `shares` (partitions by topic) are empty if the server does not report them."""

    member: str
    partitions: tuple[int, ...]
    client_id: str = ""
    host: str = ""
    shares: dict[str, tuple[int, ...]] = {}


class GroupInfo(msgspec.Struct, frozen=True):
    """A group as the server describes it."""

    group: str
    state: str
    generation: int
    topics: tuple[str, ...]
    members: tuple[GroupMember, ...]
    kind: str = ""
    """`classic` (a member assigns partitions) or `consumer` (the coordinator assigns them); empty if the server has
    one kind."""


class Setting(msgspec.Struct, frozen=True):
    """One setting of a topic. `value` is None if the server does not report it."""

    name: str
    value: str | None
    is_default: bool
    is_fixed: bool = False
    text: str = ""


class AccessRule(msgspec.Struct, frozen=True, order=True):
    """Allows, or with `deny` forbids, a principal one operation on a resource. `name`: a name, a prefix with `*`, or
    `*`.

    `resource`: topic, group, transactional_id, key or cluster. `operation`: describe, read, write, create, delete,
    alter, cluster or `*`.
    """

    principal: str
    resource: str
    name: str
    operation: str
    deny: bool = False


class Driver(TransactionPort):
    """One dialect. Every method makes one attempt and raises a `ClientError` that says whether the request was
    sent."""

    name: ClassVar[str]
    capabilities: Capabilities

    # -- topics ----------------------------------------------------------------------------------------------

    @abstractmethod
    async def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic; `RefusedError(TOPIC_EXISTS)` if it exists."""

    async def create_topic_with(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:  # noqa: ARG002 - a port's signature
        """Create a topic with settings that differ from the server's defaults."""
        raise self.missing("settings")

    async def delete_topic(self, topic: str) -> None:  # noqa: ARG002 - a port's signature
        self.require("deletes")

    async def settings_of(self, topic: str) -> list[Setting]:  # noqa: ARG002 - a port's signature
        raise self.missing("settings")

    async def change_settings(self, topic: str, changes: Mapping[str, str | None]) -> None:  # noqa: ARG002 - a port's signature
        """Change all of these settings or none; None resets a setting to its default."""
        raise self.missing("settings")

    async def add_partitions(self, topic: str, partitions: int) -> None:  # noqa: ARG002 - a port's signature
        """Increase the partition count to `partitions`; it cannot be reduced."""
        raise self.missing("settings")

    async def trim(self, topic: str, partition: int, offset: int) -> int:  # noqa: ARG002 - a port's signature
        """Delete the records before `offset`; return the new earliest offset."""
        raise self.missing("trims")

    @abstractmethod
    async def list_topics(self) -> list[str]: ...

    @abstractmethod
    async def partitions(self, topic: str) -> int:
        """Return the topic's partition count; `RefusedError(TOPIC_NOT_FOUND)` if the topic does not exist."""

    async def partition_count(self, topic: str) -> int:
        """Return `partitions(topic)`; the error for a missing topic names the command that creates it."""
        try:
            return await self.partitions(topic)
        except RefusedError as error:
            if error.reason is not Refusal.TOPIC_NOT_FOUND:
                raise
            words = f"no topic {topic!r}; create it with `braid topic create {topic}`"
            raise RefusedError(error.reason, self.name, error.code, words) from error

    @abstractmethod
    async def span(self, topic: str, partition: int) -> Span: ...

    async def spans(self, topics: Sequence[str]) -> dict[str, tuple[Span, ...]]:
        """Return the offsets of all partitions of each topic."""
        counts = {topic: await self.partition_count(topic) for topic in topics}
        return {topic: tuple([await self.span(topic, n) for n in range(count)]) for topic, count in counts.items()}

    async def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:  # noqa: ARG002 - a port's signature
        """Return the offset of the first record at or after a time, or None."""
        raise self.missing("finds_times")

    # -- records ---------------------------------------------------------------------------------------------

    @abstractmethod
    def limits(self, topic: str) -> BatchLimits: ...

    @abstractmethod
    def weigh(self, record: NewRecord) -> int:
        """Return the maximum number of bytes that a record adds to a request."""

    def check(self, topic: str, record: NewRecord) -> int:
        """Return the record's weight; `RecordError` if the dialect cannot carry it."""
        able = self.capabilities
        lacking = (
            ("keys", record.key is not None),
            ("null_values", record.value is None),
            ("empty_values", record.value == b""),
            ("stamps", record.timestamp_ms is not None),
        )
        for field, is_used in lacking:
            if is_used and not getattr(able, field):
                raise RecordError(str(self.missing(field)))
        if record.headers and able.headers not in (Headers.EVENT, Headers.ANY):
            raise RecordError(
                f"{self.name} does not support headers; supported by: kafka (any), cursus (those of events)"
            )
        size, largest = self.weigh(record), self.limits(topic).record_bytes_max
        if size > largest:
            raise RecordError(f"the record takes {size} bytes of a request; {self.name} has room for {largest}")
        return size

    @abstractmethod
    async def produce(self, batch: Batch) -> Sequence[Placed | ClientError]:
        """Return one result per record, in order. A dialect with all-or-nothing batches raises instead."""

    @abstractmethod
    async def fetch(self, request: FetchRequest) -> Fetched: ...

    # -- offsets ---------------------------------------------------------------------------------------------

    @abstractmethod
    async def commit(self, group: str, topic: str, offsets: dict[int, int], member: Membership | None) -> None:
        """Commit offsets. With `member`, `RefusedError(REJOIN)` if its generation is over."""

    @abstractmethod
    async def committed(self, group: str, topic: str, partition: int) -> int | None: ...

    # -- groups ----------------------------------------------------------------------------------------------

    async def join(self, group: str, topics: Sequence[str], who: MemberName) -> Membership:  # noqa: ARG002 - a port's signature
        """Join a group. `topics` may be empty; it has one entry in dialects that support only one."""
        raise self.missing("groups")

    async def heartbeat(self, membership: Membership) -> None:  # noqa: ARG002 - a port's signature
        self.require("groups")

    async def leave(self, membership: Membership) -> None:  # noqa: ARG002 - a port's signature
        self.require("groups")

    async def list_groups(self) -> list[str]:
        raise self.missing("group_admin")

    async def describe_group(self, group: str) -> GroupInfo:  # noqa: ARG002 - a port's signature
        raise self.missing("group_admin")

    async def group_offsets(self, group: str) -> dict[tuple[str, int], int]:  # noqa: ARG002 - a port's signature
        """Return all commits of a group, by topic and partition."""
        raise self.missing("group_offsets")

    async def delete_offsets(self, group: str, places: Sequence[Place]) -> None:  # noqa: ARG002 - a port's signature
        raise self.missing("group_offsets")

    async def delete_group(self, group: str) -> None:  # noqa: ARG002 - a port's signature
        """Delete the group and its commits; refused while it has members."""
        raise self.missing("group_offsets")

    # -- rules -----------------------------------------------------------------------------------------------

    async def list_rules(self) -> list[AccessRule]:
        raise self.missing("rules")

    async def add_rule(self, rule: AccessRule) -> None:  # noqa: ARG002 - a port's signature
        raise self.missing("rules")

    async def delete_rule(self, rule: AccessRule) -> int:  # noqa: ARG002 - a port's signature
        """Return the number of deleted rules. Rules from the server's settings are not deleted."""
        raise self.missing("rules")

    # -- users -----------------------------------------------------------------------------------------------

    async def list_users(self, user: str | None = None) -> list[UserCredential]:  # noqa: ARG002 - a port's signature
        """Return the credentials of one user (possibly none), or of all users if None."""
        raise self.missing("users")

    async def set_password(self, user: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:  # noqa: ARG002
        raise self.missing("users")

    async def delete_user(self, user: str) -> None:  # noqa: ARG002 - a port's signature
        raise self.missing("users")

    # -- quotas ----------------------------------------------------------------------------------------------

    async def list_quotas(self) -> list[Quota]:
        raise self.missing("quotas")

    async def set_quota(self, quota: Quota) -> None:  # noqa: ARG002 - a port's signature
        """Set rates; a rate of None keeps its value."""
        raise self.missing("quotas")

    async def remove_quota(self, quota: Quota) -> None:  # noqa: ARG002 - a port's signature
        """Remove every rate of this entity."""
        raise self.missing("quotas")

    # -- nodes -----------------------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterInfo:
        raise self.missing("cluster")

    async def elect_preferred(self, places: Sequence[Place] | None) -> list[PartitionOutcome]:  # noqa: ARG002
        """Elect the preferred leaders. None: of all partitions; the result then lists only partitions with a
        result."""
        raise self.missing("cluster")

    async def move_partitions(self, targets: Mapping[Place, Sequence[int] | None]) -> list[PartitionOutcome]:  # noqa: ARG002
        """Reassign partitions; None in place of nodes cancels a move."""
        raise self.missing("cluster")

    async def list_moves(self) -> list[PartitionMove]:
        raise self.missing("cluster")

    async def remove_node(self, node: int) -> None:  # noqa: ARG002 - a port's signature
        """Remove a node for good; refused while it is alive or holds replicas."""
        raise self.missing("cluster")

    async def cluster_events(self, after: tuple[int, int], since_ms: int) -> list[ClusterEvent]:  # noqa: ARG002
        """Return events after the one with this `seq` and `index`, oldest first. One call may return only a part."""
        raise self.missing("cluster")

    async def drain_node(self, node: int, *, is_draining: bool) -> None:  # noqa: ARG002 - a port's signature
        """Make a node give up leadership and not lead again, or allow it to lead again."""
        raise self.missing("cluster")

    async def create_snapshot(self) -> str:
        """Create a snapshot on the contacted node; return the folder that lists the files to back up."""
        raise self.missing("cluster")

    async def drop_snapshot(self) -> None:
        raise self.missing("cluster")

    async def log_folders(self, node: int) -> list[LogFolder]:  # noqa: ARG002 - a port's signature
        raise self.missing("cluster")

    async def describe_node(self, node: int, *, in_full: bool) -> NodeDescription:  # noqa: ARG002 - a port's signature
        """Return a node's description of itself; `UnsupportedError` if it is not braidlog or has another version."""
        raise self.missing("cluster")

    # -- life ------------------------------------------------------------------------------------------------

    @abstractmethod
    async def connect(self) -> None:
        """Check that a server answers."""

    async def asked_for(self) -> list[str]:
        """Return the authentication methods that the server requires if it closes unauthenticated connections;
        otherwise none."""
        return []

    @abstractmethod
    def close(self) -> None: ...

    # -- capabilities ----------------------------------------------------------------------------------------

    def require(self, field: str) -> None:
        if not getattr(self.capabilities, field):
            raise self.missing(field)

    def missing(self, field: str) -> UnsupportedError:
        from braidlog.client.schemes import dialects_with  # noqa: PLC0415 - it imports all drivers, and is needed only for this error

        able = ", ".join(dialects_with(field)) or "no dialect of this version"
        return UnsupportedError(f"{self.name} does not support {TITLES[field]}; supported by: {able}")
