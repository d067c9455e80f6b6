"""The events of the metadata log: everything that nodes must agree on, one change each.

Invariant: an event says what became true, never how; it is applied by `image.py` alone.

    {"event_type":3,"data":{"topic":"orders","partition":0,"replica_id":"n2","isr":false,…}}

Numbers below 100, and the field names of those events, are those of mlog's published events; ours begin at 100.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from braidlog.model.settings import TopicSettings
from braidlog.replication.assignment import Assignment, Nodes, SetChange
from braidlog.replication.registration import Life

FIRST_LEADER_EPOCH = 1
FIRST_VERSION: Final = 1
CLUSTER_VERSION: Final = 2
"""Up to which version this program knows the events there are. One of a later version is written once all nodes know it."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One change."""


class TopicEvent(Event, frozen=True, kw_only=True):
    """A change of one topic, after which what a node does for it may have to change."""

    topic: str


class PartitionEvent(TopicEvent, frozen=True, kw_only=True):
    """A change of one partition."""

    partition: int


class CreateTopic(TopicEvent, frozen=True, kw_only=True):
    """In a cluster each partition begins with the nodes that `placement` names, the preferred leader first. Without a placement
    the first of `replicas` is the name of the single node that has them, and the others follow it as observers."""

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
    """How many replicas each partition should have, though `placement` may have fewer now; 0: those of `placement`."""


class DeleteTopic(TopicEvent, frozen=True, kw_only=True):
    topic_id: str
    deleted_ms: int


class ChangeLeader(PartitionEvent, frozen=True, kw_only=True):
    """An empty `leader_id`: another node leads, which is not known by name."""

    leader_id: str
    leader_epoch: int


class AddNode(Event, frozen=True, kw_only=True):
    """A node is known, or its new address."""

    node_id: str
    addr: str
    epoch: int = 0


class RemoveNode(Event, frozen=True, kw_only=True):
    """A node is gone for good: it holds nothing, and its number is free."""

    node_id: str


class AlterTopic(TopicEvent, frozen=True, kw_only=True):
    topic_id: str
    settings: TopicSettings


class AddPartitions(TopicEvent, frozen=True, kw_only=True):
    """`partitions` is how many there are afterwards; the new ones begin as those of a new topic do."""

    topic_id: str
    partitions: int
    placement: tuple[Nodes, ...] = ()
    """Of the new ones, in a cluster."""


class PlaceTopic(TopicEvent, frozen=True, kw_only=True):
    """Others follow a topic from now on, by name: the first of `replicas` is the single node that has it, the rest observe."""

    topic_id: str
    replicas: tuple[str, ...]
    min_in_sync: int


class FolderMade(Event, frozen=True, kw_only=True):
    """A node has made its folder of a topic, with so many partitions: from now on it is missed if it is not there."""

    topic: str
    topic_id: str
    node_id: str
    partitions: int


class IdBlock(Event, frozen=True, kw_only=True):
    """Every producer id below `taken` was given or wasted."""

    taken: int


class Credential(msgspec.Struct, frozen=True):
    """What proves a password without being one (RFC 5802)."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class SetUser(Event, frozen=True, kw_only=True):
    """All credentials of a user, by the name of the hash."""

    user: str
    credentials: dict[str, Credential]


class DropUser(Event, frozen=True, kw_only=True):
    user: str


class AddRule(Event, frozen=True, kw_only=True):
    """What a rule does not name is empty."""

    principal: str
    topic: str
    operations: tuple[str, ...]
    group: str = ""
    transactional_id: str = ""
    key: str = ""
    deny: bool = False


class DropRule(AddRule, frozen=True, kw_only=True):
    """The rule in the same words."""


class RegisterNode(Event, frozen=True, kw_only=True):
    """A node has started, or was fenced and comes back. `incarnation` is the number of the entry that holds this event."""

    node: int
    incarnation: int
    life: Life
    damaged: tuple[str, ...] = ()
    """The partitions whose copy here did not open whole."""
    addresses: dict[str, tuple[str, int]] = {}
    """Host and port of each of its doors, by the protocol's name, as others should dial them."""
    rack: str = ""
    name: str = ""
    versions: tuple[int, int] = (FIRST_VERSION, CLUSTER_VERSION)
    """The range of cluster versions that it can follow."""


class FenceNode(Event, frozen=True, kw_only=True):
    """This incarnation counts as dead until the node registers again."""

    node: int
    incarnation: int


class DrainNode(Event, frozen=True, kw_only=True):
    """This incarnation is to lead nothing any more, or may lead again. It keeps its place in the sets."""

    node: int
    incarnation: int
    is_draining: bool


class AssignPartition(PartitionEvent, frozen=True, kw_only=True):
    """Who holds a partition from now on, and who leads it; void in other epochs than these."""

    leader_epoch: int
    partition_epoch: int
    after: Assignment


class ChangeSet(PartitionEvent, frozen=True, kw_only=True):
    """A follower joins or leaves the in-sync set (KIP-497)."""

    change: SetChange


class ResignReplica(PartitionEvent, frozen=True, kw_only=True):
    """A node gives up its copy of a partition, and its leadership if it has it."""

    node: int
    leader_epoch: int


class QuotaEntity(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Whom a quota is for: a user, a client id, a client id of a user, or an address. None: whichever; empty: those not named."""

    user: str | None = None
    client_id: str | None = None
    address: str | None = None


class SetQuota(Event, frozen=True, kw_only=True):
    """All rates that were set at run time for an entity, by name; none: those of the configuration.

    An entity that is more than a user has no `principal`: a version that knows only users stops there.
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
    """All settings that were set at run time for a consumer group, by name; none: those of the configuration."""

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
"""The cluster version that an event came with, if that is not the first."""
_NUMBERS: Final = {event: number for number, event in EVENTS.items()}


class Envelope(msgspec.Struct, frozen=True):
    """An event as it is written."""

    event_type: int
    data: msgspec.Raw


def version_of(event: Event) -> int:
    return SINCE.get(type(event), FIRST_VERSION)


def pack(events: Sequence[Event]) -> list[Envelope]:
    return [Envelope(_NUMBERS[type(event)], msgspec.Raw(msgspec.json.encode(event))) for event in events]


def unpack(envelopes: Sequence[Envelope]) -> list[Event]:
    """`msgspec.ValidationError` for an event that this version does not know."""
    found = []
    for envelope in envelopes:
        kind = EVENTS.get(envelope.event_type)
        if kind is None:
            raise msgspec.ValidationError(
                f"event {envelope.event_type} was written by a later version of braidlog; this one knows cluster version "
                f"{CLUSTER_VERSION}, and stops before it: upgrade this node"
            )
        found.append(msgspec.json.decode(envelope.data, type=kind))
    return found
