"""The port that each dialect's driver implements, and what a driver declares that it can do.

Knows: the questions a client asks of any server. Refuses to know: bytes, sockets, retries; a driver's method is one attempt.
Invariant: a driver raises `ClientError`s only, and what it cannot do it has declared: `require` refuses before anything is sent.

Offsets are the next to read, ranges half-open, whatever the dialect counts.
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
    """Who must have a record before it is acknowledged."""

    LEADER = "leader"
    ALL = "all"


class Headers(StrEnum):
    """Which headers a dialect carries."""

    NONE = "no"
    SHOWN = "read only"
    EVENT = "eventType, schemaVersion, aggregateVersion, metadata"
    ANY = "yes"


class Commits(StrEnum):
    """Who may commit an offset."""

    MEMBERS = "members of the group only"
    ANYONE = "yes"


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a dialect can say, each by its title. A client refuses the rest by name instead of dropping it."""

    keys: Annotated[bool, "keys"] = False
    null_values: Annotated[bool, "null values"] = False
    empty_values: Annotated[bool, "empty values"] = True
    headers: Annotated[Headers, "headers"] = Headers.NONE
    timestamps: Annotated[bool, "timestamps shown to readers"] = False
    stamps: Annotated[bool, "timestamps chosen by writers"] = False
    """The writer may say a record's time itself."""
    partitions: Annotated[bool, "topics of several partitions"] = True
    places: Annotated[bool, "choosing the partition in the client"] = True
    """The client says which partition a record goes to; else the server decides by the key."""
    batches: Annotated[bool, "many records in one request"] = True
    """Many records in one request; else one each, sent together."""
    idempotence: Annotated[bool, "retries that never store twice"] = False
    acks: Annotated[tuple[Acks, ...], "acks"] = (Acks.LEADER, Acks.ALL)
    waits: Annotated[bool, "fetches that wait for records"] = True
    """The server holds a fetch until there is something; else the client asks again and again."""
    commits: Annotated[Commits, "committed offsets"] = Commits.ANYONE
    tells_uncommitted: Annotated[bool, "telling never committed from committed 0"] = False
    """"Nothing committed" is not the same answer as "committed 0"."""
    finds_times: Annotated[bool, "finding an offset by its time"] = False
    """The server tells an offset by its time."""
    groups: Annotated[bool, "groups that share out partitions"] = False
    many_topics: Annotated[bool, "group members that read several topics"] = False
    static_members: Annotated[bool, "group members that keep their share over a restart"] = False
    group_admin: Annotated[bool, "listing and describing groups"] = False
    group_offsets: Annotated[bool, "listing a group's commits, deleting groups"] = False
    """All commits of a group are told at once, whatever topics they are of; and groups can be deleted."""
    deletes: Annotated[bool, "deleting topics"] = False
    settings: Annotated[bool, "reading and changing topic settings, adding partitions"] = False
    """A topic's settings are told and changed, and partitions are added to it."""
    trims: Annotated[bool, "deleting the oldest records"] = False
    rules: Annotated[bool, "reading and changing rules"] = False
    users: Annotated[bool, "reading and changing users with passwords"] = False
    quotas: Annotated[bool, "reading and changing quotas"] = False
    transactions: Annotated[bool, "transactions: writing, listing, aborting"] = False
    cluster: Annotated[bool, "telling of the nodes of a cluster"] = False


TITLES = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Capabilities, include_extras=True).items()
    if name in Capabilities.__struct_fields__
}
"""The rows of the table in docs/guides/client.md, by field."""


class ConsumedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record and where it stands. `timestamp_ms` is None where the dialect does not show it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Where an acknowledged record is."""

    topic: str
    partition: int
    offset: int


class Identity(msgspec.Struct, frozen=True):
    """Who writes to a partition, for the server to recognise a retry. `sequence` is the first record's, from 1 on."""

    producer: str
    sequence: int
    transaction: TransactionalProducer | None = None
    """The server's own name of who writes, if it writes in a transaction."""


class Batch(msgspec.Struct, frozen=True):
    """Records of one produce request. Sent again it is the very same, or a server could not recognise it.

    `partition` is -1 where the server chooses.
    """

    topic: str
    partition: int
    records: Sequence[NewRecord]
    acks: Acks
    identity: Identity | None = None


class BatchLimits(msgspec.Struct, frozen=True):
    """What fits one request: `weigh` counts the bytes of a record, and of a request their sum."""

    bytes_max: int
    records_max: int
    record_bytes_max: int


class Fetched(msgspec.Struct, frozen=True):
    """`high_watermark` is None where the dialect's answer does not tell it."""

    records: Sequence[ConsumedRecord]
    next_offset: int
    high_watermark: int | None = None


class FetchRequest(msgspec.Struct, frozen=True):
    """Records from `offset` on. Fetches of one slot may hold each other up, those of different slots do not."""

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
    """The offsets that a partition has: `[earliest, latest)`."""

    earliest: int
    latest: int


class Membership(msgspec.Struct, frozen=True):
    """One member's share of one generation. `instance` is its lasting name, if it has one."""

    group: str
    topics: tuple[str, ...]
    member: str
    generation: int
    places: tuple[Place, ...]
    instance: str | None = None


class MemberName(msgspec.Struct, frozen=True):
    """Who joins: a name that lives as long as the member, and one that the group knows over restarts, if it has one."""

    name: str
    instance: str | None = None


class GroupMember(msgspec.Struct, frozen=True, omit_defaults=True):
    """`client_id`, `host` and `shares` (partitions by topic) are empty where the server does not tell them."""

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
    """`classic` or `consumer` (who divides the work: a member or the coordinator); empty where there is one kind only."""


class Setting(msgspec.Struct, frozen=True):
    """One setting of a topic. `value` is None where the server does not tell it."""

    name: str
    value: str | None
    is_default: bool
    is_fixed: bool = False
    text: str = ""


class AccessRule(msgspec.Struct, frozen=True, order=True):
    """Who may do one thing with what, or (`deny`) may not. `name`: a name, a prefix with `*`, or `*`.

    `resource`: topic, group, transactional_id, key or cluster. `operation`: describe, read, write, create, delete, alter, cluster
    or `*`.
    """

    principal: str
    resource: str
    name: str
    operation: str
    deny: bool = False


class Driver(TransactionPort):
    """One dialect. Every method is one attempt: it does what it says, or raises a `ClientError` that says how far it came."""

    name: ClassVar[str]
    capabilities: Capabilities

    # -- topics ----------------------------------------------------------------------------------------------

    @abstractmethod
    async def create_topic(self, topic: str, partitions: int) -> None:
        """`RefusedError(TOPIC_EXISTS)` if it is there."""

    async def create_topic_with(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:  # noqa: ARG002 - a port's signature
        """As `create_topic`, with settings that are not the server's defaults."""
        raise self.missing("settings")

    async def delete_topic(self, topic: str) -> None:  # noqa: ARG002 - a port's signature
        self.require("deletes")

    async def settings_of(self, topic: str) -> list[Setting]:  # noqa: ARG002 - a port's signature
        raise self.missing("settings")

    async def change_settings(self, topic: str, changes: Mapping[str, str | None]) -> None:  # noqa: ARG002 - a port's signature
        """All of them or none; None is back to the default."""
        raise self.missing("settings")

    async def add_partitions(self, topic: str, partitions: int) -> None:  # noqa: ARG002 - a port's signature
        """So that there are `partitions` then; there are never fewer than before."""
        raise self.missing("settings")

    async def trim(self, topic: str, partition: int, offset: int) -> int:  # noqa: ARG002 - a port's signature
        """Delete the records before `offset`; what is the earliest then."""
        raise self.missing("trims")

    @abstractmethod
    async def list_topics(self) -> list[str]: ...

    @abstractmethod
    async def partitions(self, topic: str) -> int:
        """How many partitions the topic has; `RefusedError(TOPIC_NOT_FOUND)` if it is not there."""

    async def partition_count(self, topic: str) -> int:
        """As `partitions`, and the refusal says how to make the topic."""
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
        """Offsets of all partitions of each topic."""
        counts = {topic: await self.partition_count(topic) for topic in topics}
        return {topic: tuple([await self.span(topic, n) for n in range(count)]) for topic, count in counts.items()}

    async def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:  # noqa: ARG002 - a port's signature
        """Of the first record at or after a time; None if there is none."""
        raise self.missing("finds_times")

    # -- records ---------------------------------------------------------------------------------------------

    @abstractmethod
    def limits(self, topic: str) -> BatchLimits: ...

    @abstractmethod
    def weigh(self, record: NewRecord) -> int:
        """Bytes that a record adds to a request, at most."""

    def check(self, topic: str, record: NewRecord) -> int:
        """What the record weighs; `RecordError` if the dialect cannot carry it."""
        able = self.capabilities
        lacking = (
            ("keys", record.key is not None),
            ("null_values", record.value is None),
            ("empty_values", record.value == b""),
            ("stamps", record.timestamp_ms is not None),
        )
        for field, wanted in lacking:
            if wanted and not getattr(able, field):
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
        """One result for each record, in order. A dialect whose batches are all or nothing raises instead."""

    @abstractmethod
    async def fetch(self, wanted: FetchRequest) -> Fetched: ...

    # -- offsets ---------------------------------------------------------------------------------------------

    @abstractmethod
    async def commit(self, group: str, topic: str, offsets: dict[int, int], member: Membership | None) -> None:
        """As a member it is fenced: `RefusedError(REJOIN)` when its generation is over."""

    @abstractmethod
    async def committed(self, group: str, topic: str, partition: int) -> int | None: ...

    # -- groups ----------------------------------------------------------------------------------------------

    async def join(self, group: str, topics: Sequence[str], who: MemberName) -> Membership:  # noqa: ARG002 - a port's signature
        """Topics may be none for now; one where the dialect cannot name several."""
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
        """All that a group has committed, by topic and partition."""
        raise self.missing("group_offsets")

    async def delete_offsets(self, group: str, places: Sequence[Place]) -> None:  # noqa: ARG002 - a port's signature
        raise self.missing("group_offsets")

    async def delete_group(self, group: str) -> None:  # noqa: ARG002 - a port's signature
        """With its commits; refused while it has members."""
        raise self.missing("group_offsets")

    # -- rules -----------------------------------------------------------------------------------------------

    async def list_rules(self) -> list[AccessRule]:
        raise self.missing("rules")

    async def add_rule(self, rule: AccessRule) -> None:  # noqa: ARG002 - a port's signature
        raise self.missing("rules")

    async def delete_rule(self, rule: AccessRule) -> int:  # noqa: ARG002 - a port's signature
        """How many there were: rules of the server's own settings are not among them."""
        raise self.missing("rules")

    # -- users -----------------------------------------------------------------------------------------------

    async def list_users(self, user: str | None = None) -> list[UserCredential]:  # noqa: ARG002 - a port's signature
        """Of one user, which may have none; of all if None."""
        raise self.missing("users")

    async def set_password(self, user: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:  # noqa: ARG002
        raise self.missing("users")

    async def delete_user(self, user: str) -> None:  # noqa: ARG002 - a port's signature
        raise self.missing("users")

    # -- quotas ----------------------------------------------------------------------------------------------

    async def list_quotas(self) -> list[Quota]:
        raise self.missing("quotas")

    async def set_quota(self, quota: Quota) -> None:  # noqa: ARG002 - a port's signature
        """Rates that are None stay as they are."""
        raise self.missing("quotas")

    async def remove_quota(self, quota: Quota) -> None:  # noqa: ARG002 - a port's signature
        """Every rate of whose it is."""
        raise self.missing("quotas")

    # -- nodes -----------------------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterInfo:
        raise self.missing("cluster")

    async def elect_preferred(self, places: Sequence[Place] | None) -> list[PartitionOutcome]:  # noqa: ARG002
        """None: all partitions, of which those are told that something has become of."""
        raise self.missing("cluster")

    async def move_partitions(self, targets: Mapping[Place, Sequence[int] | None]) -> list[PartitionOutcome]:  # noqa: ARG002
        """None in place of nodes gives a move up."""
        raise self.missing("cluster")

    async def list_moves(self) -> list[PartitionMove]:
        raise self.missing("cluster")

    async def remove_node(self, node: int) -> None:  # noqa: ARG002 - a port's signature
        """For good; refused while it lives or holds replicas."""
        raise self.missing("cluster")

    async def cluster_events(self, after: tuple[int, int], since_ms: int) -> list[ClusterEvent]:  # noqa: ARG002
        """Those that follow the event with this `seq` and `index`, oldest first; not all of them at once."""
        raise self.missing("cluster")

    async def drain_node(self, node: int, *, is_draining: bool) -> None:  # noqa: ARG002 - a port's signature
        """A node is to lead nothing any more, or may lead again."""
        raise self.missing("cluster")

    async def create_snapshot(self) -> str:
        """Of the node that is asked: where the files are that a back-up copies."""
        raise self.missing("cluster")

    async def drop_snapshot(self) -> None:
        raise self.missing("cluster")

    async def log_folders(self, node: int) -> list[LogFolder]:  # noqa: ARG002 - a port's signature
        raise self.missing("cluster")

    async def describe_node(self, node: int, *, in_full: bool) -> NodeDescription:  # noqa: ARG002 - a port's signature
        """What a node says of itself; `UnsupportedError` if it is no braidlog, or of another version."""
        raise self.missing("cluster")

    # -- life ------------------------------------------------------------------------------------------------

    @abstractmethod
    async def connect(self) -> None:
        """See that somebody is there."""

    async def asked_for(self) -> list[str]:
        """How the server wants to be told who asks, where it ends the conversation of somebody who has not said. Else nothing."""
        return []

    @abstractmethod
    def close(self) -> None: ...

    # -- capabilities ----------------------------------------------------------------------------------------

    def require(self, field: str) -> None:
        if not getattr(self.capabilities, field):
            raise self.missing(field)

    def missing(self, field: str) -> UnsupportedError:
        from braidlog.client.schemes import dialects_with  # noqa: PLC0415 - it knows all drivers, and is asked in need only

        able = ", ".join(dialects_with(field)) or "no dialect of this version"
        return UnsupportedError(f"{self.name} does not support {TITLES[field]}; supported by: {able}")
