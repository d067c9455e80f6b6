"""Events of the metadata log: every change that nodes must agree on.

Invariant: an event states the new fact, not how it came about; only `image.py` applies events.

    {"event_type":3,"data":{"topic":"orders","partition":0,"replica_id":"n2","isr":false,…}}

Event numbers below 100 and their field names are those of mlog's published events; braidlog's own start at 100.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from braidlog.model.settings import TopicSettings
from braidlog.replication.assignment import Assignment, InSyncSetChange, Nodes
from braidlog.replication.control.incarnation import Life

FIRST_LEADER_EPOCH = 1
FIRST_VERSION: Final = 1
CLUSTER_VERSION: Final = 2
"""The latest cluster version whose events this program knows. Events of a later version are written once all nodes
know it.
"""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One metadata change."""


class TopicEvent(Event, frozen=True, kw_only=True):
    """A change of one topic; nodes must reconcile the topic after it."""

    topic: str


class PartitionEvent(TopicEvent, frozen=True, kw_only=True):
    """A change of one partition."""

    partition: int


class CreateTopic(TopicEvent, frozen=True, kw_only=True):
    """Create a topic. In a cluster `placement` names each partition's nodes, the preferred leader first.

    Without a placement the first of `replicas` is the single node that holds the topic, and the rest observe it.
    """

    topic_id: str
    partitions: int
    settings: TopicSettings
    created_ms: int
    replicas: tuple[str, ...]
    leader_epoch: int = FIRST_LEADER_EPOCH
    min_in_sync: int = 1
    created_by: str = ""
    placement: tuple[Nodes, ...] = ()
    replication_factor: int = 0
    """Desired number of replicas per partition, though `placement` may have fewer now; 0: the number in `placement`."""


class DeleteTopic(TopicEvent, frozen=True, kw_only=True):
    topic_id: str
    deleted_ms: int


class ChangeLeader(PartitionEvent, frozen=True, kw_only=True):
    """An empty `leader_id` means that another node leads, whose name is unknown."""

    leader_id: str
    leader_epoch: int


class AddNode(Event, frozen=True, kw_only=True):
    """Add a broker, or change its address."""

    node_id: str
    addr: str
    epoch: int = 0


class RemoveNode(Event, frozen=True, kw_only=True):
    """Remove a node permanently: it holds nothing, and its number is free."""

    node_id: str


class AlterTopic(TopicEvent, frozen=True, kw_only=True):
    topic_id: str
    settings: TopicSettings


class AddPartitions(TopicEvent, frozen=True, kw_only=True):
    """Set the partition count to `partitions`; the new ones start like those of a new topic."""

    topic_id: str
    partitions: int
    placement: tuple[Nodes, ...] = ()
    """Placement of the new partitions, in a cluster."""


class PlaceTopic(TopicEvent, frozen=True, kw_only=True):
    """Set the observers of a topic, by name: the first of `replicas` is the single node that holds it, the rest
    observe.
    """

    topic_id: str
    replicas: tuple[str, ...]
    min_in_sync: int


class FolderMade(Event, frozen=True, kw_only=True):
    """A node created its folder of a topic with this many partitions. From now on a missing folder is an error."""

    topic: str
    topic_id: str
    node_id: str
    partitions: int


class IdBlock(Event, frozen=True, kw_only=True):
    """All producer ids below `taken` are used up."""

    taken: int


class Credential(msgspec.Struct, frozen=True):
    """Data that verifies a password without containing it (RFC 5802)."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class SetUser(Event, frozen=True, kw_only=True):
    """Set all credentials of a user, by hash name."""

    user: str
    credentials: dict[str, Credential]


class DropUser(Event, frozen=True, kw_only=True):
    user: str


class AddRule(Event, frozen=True, kw_only=True):
    """Add an access rule. Fields that the rule does not name are empty."""

    principal: str
    topic: str
    operations: tuple[str, ...]
    group: str = ""
    transactional_id: str = ""
    key: str = ""
    deny: bool = False


class DropRule(AddRule, frozen=True, kw_only=True):
    """Drop the rule with equal fields."""


class RegisterNode(Event, frozen=True, kw_only=True):
    """A node started, or returns after it was fenced. `incarnation` is the number of this event's entry."""

    node: int
    incarnation: int
    life: Life
    damaged: tuple[str, ...] = ()
    """Partitions whose copy on this node is damaged."""
    addresses: dict[str, tuple[str, int]] = {}
    """Advertised host and port of each listener, by protocol name."""
    rack: str = ""
    name: str = ""
    versions: tuple[int, int] = (FIRST_VERSION, CLUSTER_VERSION)
    """The range of cluster versions that the node can follow."""


class FenceNode(Event, frozen=True, kw_only=True):
    """This incarnation counts as dead until the node registers again."""

    node: int
    incarnation: int


class DrainNode(Event, frozen=True, kw_only=True):
    """Stop this incarnation from leading, or allow it again. The node keeps its place in the in-sync sets."""

    node: int
    incarnation: int
    is_draining: bool


class AssignPartition(PartitionEvent, frozen=True, kw_only=True):
    """Set a partition's replicas and leader; has no effect if the epochs differ from these."""

    leader_epoch: int
    partition_epoch: int
    after: Assignment


class ChangeSet(PartitionEvent, frozen=True, kw_only=True):
    """A follower joins or leaves the in-sync set (KIP-497)."""

    change: InSyncSetChange


class ResignReplica(PartitionEvent, frozen=True, kw_only=True):
    """A node gives up its copy of a partition, and its leadership if it leads."""

    node: int
    leader_epoch: int


class QuotaEntity(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Target of a quota: a user, a client id, a client id of a user, or an address. None matches any; empty is the
    default.
    """

    user: str | None = None
    client_id: str | None = None
    address: str | None = None


class SetQuota(Event, frozen=True, kw_only=True):
    """Set all run-time rates of an entity, by name; without rates the configuration applies.

    Entities other than a plain user have no `principal`, so a version that knows only users stops at the event.
    """

    principal: str | None
    rates: dict[str, float]
    entity: QuotaEntity | None = None

    @classmethod
    def of(cls, entity: QuotaEntity, rates: dict[str, float]) -> "SetQuota":
        if entity == QuotaEntity(entity.user):
            return cls(principal=entity.user, rates=rates)
        return cls(principal=None, rates=rates, entity=entity)


class SetGroup(Event, frozen=True, kw_only=True):
    """Set all run-time settings of a consumer group, by name; without settings the configuration applies."""

    group: str
    settings: dict[str, int]


EVENTS: Final[dict[int, type[Event]]] = {
    0: CreateTopic,
    1: DeleteTopic,
    2: ChangeLeader,
    4: AddNode,
    5: RemoveNode,
    100: AlterTopic,
    101: AddPartitions,
    102: PlaceTopic,
    103: IdBlock,
    104: SetUser,
    105: DropUser,
    106: AddRule,
    107: DropRule,
    108: FolderMade,
    109: RegisterNode,
    110: FenceNode,
    111: AssignPartition,
    112: ChangeSet,
    113: ResignReplica,
    114: SetQuota,
    115: DrainNode,
    116: SetGroup,
}
SINCE: Final[dict[type[Event], int]] = {SetGroup: 2}
"""The cluster version that introduced an event, if it is not the first."""
_NUMBERS: Final = {event: number for number, event in EVENTS.items()}


class Envelope(msgspec.Struct, frozen=True):
    """An event as stored."""

    event_type: int
    data: msgspec.Raw


def version_of(event: Event) -> int:
    return SINCE.get(type(event), FIRST_VERSION)


def pack(events: Sequence[Event]) -> list[Envelope]:
    return [Envelope(_NUMBERS[type(event)], msgspec.Raw(msgspec.json.encode(event))) for event in events]


def unpack(envelopes: Sequence[Envelope]) -> list[Event]:
    """Decode events. Raises `msgspec.ValidationError` for an event that this version does not know."""
    found = []
    for envelope in envelopes:
        kind = EVENTS.get(envelope.event_type)
        if kind is None:
            raise msgspec.ValidationError(
                f"event {envelope.event_type} was written by a later version of braidlog; this one knows version "
                f"{CLUSTER_VERSION}: upgrade this node"
            )
        found.append(msgspec.json.decode(envelope.data, type=kind))
    return found
