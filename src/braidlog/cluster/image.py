"""What the metadata log says now: topics, nodes, users, rules, quotas, ids.

Knows: which event makes sense (`check`) and what it changes (`apply`). Refuses to know: where events come from, time, disks.
Invariants: both are pure functions of image and event, so all who apply the same log have the same image; an event that passed
`check` at one image is applied to that image and no other (the store sees to it); a topic id is never used twice.
"""

from collections.abc import Sequence
from functools import singledispatchmethod

import msgspec

from braidlog.cluster import events as e
from braidlog.cluster import membership
from braidlog.cluster.events import Credential, Event
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import PARTITIONS_PER_TOPIC_MAX
from braidlog.model.names import no_topic
from braidlog.model.settings import TopicSettings

DELETED_KEPT_MS = 7 * 24 * 3600 * 1000
FIRST_PRODUCER_ID = 1000
BROKERS_MAX = 1_000
"""Brokers that can be made known: each one is in the image for good."""
FOLLOWERS_PER_TOPIC_MAX = 32
RULES_MAX = 10_000
QUOTAS_MAX = 10_000
USERS_MAX = 100_000
_ENTITY = msgspec.json.Decoder(e.QuotaEntity)


class Assignment(msgspec.Struct, frozen=True):
    """Who holds one partition. `leader_epoch` counts leaders, `partition_epoch` every change."""

    replicas: tuple[str, ...]
    leader: str
    in_sync: tuple[str, ...]
    leader_epoch: int = e.FIRST_LEADER_EPOCH
    partition_epoch: int = 0

    def followers_of(self, node: str) -> list[str]:
        """The replicas besides this one."""
        return [replica for replica in self.replicas if replica != node]

    def changed(self, **fields: object) -> "Assignment":
        return msgspec.structs.replace(self, partition_epoch=self.partition_epoch + 1, **fields)


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    settings: TopicSettings
    created_ms: int
    min_in_sync: int
    replicas: tuple[str, ...]
    """What a new partition begins with."""
    assignments: tuple[Assignment, ...]
    created_by: str = ""
    """The principal whose request made it."""

    @property
    def partitions(self) -> int:
        return len(self.assignments)

    def reassigned(self, number: int, assignment: Assignment) -> "Topic":
        assignments = (*self.assignments[:number], assignment, *self.assignments[number + 1 :])
        return msgspec.structs.replace(self, assignments=assignments)


class Node(msgspec.Struct, frozen=True):
    addr: str
    epoch: int


class Rule(msgspec.Struct, frozen=True, order=True):
    principal: str
    topic: str
    operations: tuple[str, ...]
    group: str = ""
    transactional_id: str = ""
    key: str = ""
    deny: bool = False


class Image(msgspec.Struct):
    """The state that follows from the log. It changes by `apply` alone."""

    topics: dict[str, Topic] = {}
    deleted: dict[str, int] = {}
    """Ids of deleted topics, and when: a folder of one of these may be removed, one of an unknown id may not."""
    nodes: dict[str, Node] = {}
    users: dict[str, dict[str, Credential]] = {}
    rules: list[Rule] = []
    ids_taken: int = FIRST_PRODUCER_ID
    made: dict[str, dict[str, int]] = {}
    """By topic id and node: how many partitions of the topic that node has made. Of these it makes none again."""
    cluster: membership.Membership = msgspec.field(default_factory=membership.Membership)
    """Nodes and replicated partitions, where there are several."""
    quotas: dict[str, dict[str, float]] = {}
    """By principal: the rates that were set at run time."""
    entity_quotas: dict[str, dict[str, float]] = {}
    """Those of client ids and addresses, by the entity in JSON."""

    def copy(self) -> "Image":
        return Image(
            dict(self.topics),
            dict(self.deleted),
            dict(self.nodes),
            dict(self.users),
            list(self.rules),
            self.ids_taken,
            dict(self.made),
            self.cluster.copy(),
            dict(self.quotas),
            dict(self.entity_quotas),
        )

    def quota_rates(self) -> dict[e.QuotaEntity, dict[str, float]]:
        """All rates that were set at run time."""
        users = {e.QuotaEntity(name): rates for name, rates in self.quotas.items()}
        return users | {_ENTITY.decode(text): rates for text, rates in self.entity_quotas.items()}

    def made_by(self, node: str, topic: Topic) -> int:
        """How many partitions of a topic a node has made."""
        return self.made.get(topic.topic_id, {}).get(node, 0)

    def topic(self, name: str, topic_id: str | None = None) -> Topic:
        """The topic; with an id, that one and not another that got its name."""
        found = self.topics.get(name)
        if found is None or topic_id not in (None, found.topic_id):
            raise no_topic(name)
        return found

    def assignment(self, name: str, number: int) -> Assignment:
        topic = self.topic(name)
        if not 0 <= number < topic.partitions:
            raise BrokerError(
                Reason.PARTITION_NOT_FOUND, f"topic {name!r} has partitions 0 to {topic.partitions - 1}, not {number}"
            )
        return topic.assignments[number]

    def check_all(self, events: Sequence[Event]) -> None:
        """Refuse a list of which some event would not make sense after those before it."""
        trial = self.copy() if len(events) > 1 else self
        for event in events:
            trial.check(event)
            if trial is not self:
                trial.apply(event)

    # -- check: raises `BrokerError` for an event that makes no sense now --------------------------------------

    @singledispatchmethod
    def check(self, event: Event) -> None:
        raise AssertionError(f"no check for {type(event).__name__}")

    @check.register
    def _(self, event: e.CreateTopic) -> None:
        if event.topic in self.topics:
            raise BrokerError(Reason.TOPIC_EXISTS, f"topic {event.topic!r} exists")
        assert event.topic_id not in self.deleted
        _check_partitions(event.partitions)
        _check_min_in_sync(event.min_in_sync)
        _check_replicas(event.replicas)

    @check.register
    def _(self, event: e.DeleteTopic) -> None:
        self.topic(event.topic, event.topic_id)

    @check.register
    def _(self, event: e.AlterTopic) -> None:
        self.topic(event.topic, event.topic_id)

    @check.register
    def _(self, event: e.AddPartitions) -> None:
        topic = self.topic(event.topic, event.topic_id)
        _check_partitions(event.partitions)
        if event.partitions <= topic.partitions:
            raise BrokerError(
                Reason.INVALID_PARTITION_COUNT,
                f"topic {event.topic!r} has {topic.partitions} partitions; it can only get more",
            )

    @check.register
    def _(self, event: e.PlaceTopic) -> None:
        self.topic(event.topic, event.topic_id)
        _check_min_in_sync(event.min_in_sync)
        _check_replicas(event.replicas)

    @check.register
    def _(self, event: e.ChangeLeader) -> None:
        known = self.assignment(event.topic, event.partition)
        begins = event.leader_id not in ("", known.leader)
        if event.leader_epoch < known.leader_epoch + begins:
            raise BrokerError(
                Reason.STALE_LEADER_EPOCH,
                f"{event.topic}/{event.partition} is in leader epoch {known.leader_epoch}, not before {event.leader_epoch}",
            )
        if event.leader_id and event.leader_id not in known.replicas:
            raise BrokerError(
                Reason.REPLICA_NOT_FOUND, f"node {event.leader_id[:60]!r} holds no replica of this partition"
            )

    @check.register
    def _(self, event: e.ChangeInSync) -> None:
        known = self.assignment(event.topic, event.partition)
        if (event.leader_epoch, event.partition_epoch) != (known.leader_epoch, known.partition_epoch):
            raise BrokerError(
                Reason.STALE_LEADER_EPOCH,
                f"{event.topic}/{event.partition} has changed meanwhile: look again and ask again",
            )
        if event.replica_id not in known.replicas:
            raise BrokerError(
                Reason.REPLICA_NOT_FOUND, f"node {event.replica_id[:60]!r} holds no replica of this partition"
            )

    @check.register
    def _(self, event: e.AddNode) -> None:
        known = self.nodes.get(event.node_id)
        if known is not None and event.epoch < known.epoch:
            raise BrokerError(
                Reason.STALE_LEADER_EPOCH,
                f"broker {event.node_id} is registered with epoch {known.epoch}, not {event.epoch}",
            )
        if known is None and len(self.nodes) >= BROKERS_MAX:
            raise BrokerError(Reason.QUOTA_EXCEEDED, f"{BROKERS_MAX} brokers are registered, and no more can be")

    @check.register
    def _(self, event: e.RemoveNode) -> None:
        if event.node_id not in self.nodes:
            raise BrokerError(Reason.REPLICA_NOT_FOUND, f"broker {event.node_id} is not registered")

    @check.register
    def _(self, event: e.FolderMade) -> None:
        self.topic(event.topic, event.topic_id)

    @check.register
    def _(self, event: e.IdBlock) -> None:
        assert event.taken > self.ids_taken, "a block of ids is given once"

    @check.register
    def _(self, event: e.SetUser) -> None:
        if event.user not in self.users and len(self.users) >= USERS_MAX:
            raise BrokerError(Reason.QUOTA_EXCEEDED, f"{USERS_MAX} users are known, and no more can be")

    @check.register
    def _(self, event: e.DropUser) -> None:
        if event.user not in self.users:
            raise BrokerError(Reason.USER_NOT_FOUND, f"user {event.user[:60]!r} does not exist")

    @check.register
    def _(self, _: e.AddRule) -> None:
        if len(self.rules) >= RULES_MAX:
            raise BrokerError(Reason.QUOTA_EXCEEDED, f"{RULES_MAX} rules can be added, and no more")

    @check.register
    def _(self, _: e.DropRule) -> None:
        """A rule that is gone already is as the event wants it."""

    @check.register
    def _(self, event: e.RegisterNode) -> None:
        membership.check_registration(self.cluster, event)

    @check.register
    def _(self, event: e.FenceNode) -> None:
        membership.check_fence(self.cluster, event)

    @check.register
    def _(self, event: e.AssignPartition) -> None:
        membership.check_assignment(self.cluster, event)

    @check.register
    def _(self, event: e.ChangeSet) -> None:
        membership.check_change(self.cluster, event)

    @check.register
    def _(self, event: e.ResignReplica) -> None:
        membership.check_resignation(self.cluster, event)

    @check.register
    def _(self, event: e.SetQuota) -> None:
        if (event.principal is None) is (event.entity is None):
            raise BrokerError(Reason.INVALID_SETTING, "a quota is that of a principal or of another entity")
        rates, key = self._rates_of(event)
        if event.rates and key not in rates and len(self.quotas) + len(self.entity_quotas) >= QUOTAS_MAX:
            raise BrokerError(
                Reason.QUOTA_EXCEEDED, f"{QUOTAS_MAX} users, client ids and addresses can have quotas, and no more"
            )

    # -- apply: never refuses ----------------------------------------------------------------------------------

    @singledispatchmethod
    def apply(self, event: Event) -> None:
        raise AssertionError(f"cannot apply {type(event).__name__}")

    @apply.register
    def _(self, event: e.CreateTopic) -> None:
        self.topics[event.topic] = Topic(
            name=event.topic,
            topic_id=event.topic_id,
            settings=event.settings,
            created_ms=event.created_ms,
            min_in_sync=event.min_in_sync,
            created_by=event.created_by,
            replicas=event.replicas,
            assignments=(_first(event.replicas, event.leader_epoch),) * event.partitions,
        )

    @apply.register
    def _(self, event: e.DeleteTopic) -> None:
        del self.topics[event.topic]
        self.deleted = {
            topic_id: at for topic_id, at in self.deleted.items() if at > event.deleted_ms - DELETED_KEPT_MS
        }
        self.deleted[event.topic_id] = event.deleted_ms
        self.made.pop(event.topic_id, None)

    @apply.register
    def _(self, event: e.AlterTopic) -> None:
        topic = self.topics[event.topic]
        self.topics[event.topic] = msgspec.structs.replace(topic, settings=event.settings)

    @apply.register
    def _(self, event: e.AddPartitions) -> None:
        topic = self.topics[event.topic]
        added = (_first(topic.replicas, e.FIRST_LEADER_EPOCH),) * (event.partitions - topic.partitions)
        self.topics[event.topic] = msgspec.structs.replace(topic, assignments=topic.assignments + added)

    @apply.register
    def _(self, event: e.PlaceTopic) -> None:
        topic = self.topics[event.topic]
        placed = tuple(
            each.changed(
                replicas=event.replicas, in_sync=tuple(node for node in each.in_sync if node in event.replicas)
            )
            for each in topic.assignments
        )
        self.topics[event.topic] = msgspec.structs.replace(
            topic, assignments=placed, replicas=event.replicas, min_in_sync=event.min_in_sync
        )
        made = self.made.get(topic.topic_id, {})
        self.made[topic.topic_id] = {node: count for node, count in made.items() if node in event.replicas}

    @apply.register
    def _(self, event: e.ChangeLeader) -> None:
        topic = self.topics[event.topic]
        known = topic.assignments[event.partition]
        led = known.changed(leader=event.leader_id, leader_epoch=event.leader_epoch)
        self.topics[event.topic] = topic.reassigned(event.partition, led)

    @apply.register
    def _(self, event: e.ChangeInSync) -> None:
        topic = self.topics[event.topic]
        known = topic.assignments[event.partition]
        wanted = {*known.in_sync, event.replica_id} if event.isr else {*known.in_sync} - {event.replica_id}
        in_sync = tuple(node for node in known.replicas if node in wanted)
        self.topics[event.topic] = topic.reassigned(event.partition, known.changed(in_sync=in_sync))

    @apply.register
    def _(self, event: e.AddNode) -> None:
        self.nodes[event.node_id] = Node(event.addr, event.epoch)

    @apply.register
    def _(self, event: e.RemoveNode) -> None:
        del self.nodes[event.node_id]

    @apply.register
    def _(self, event: e.FolderMade) -> None:
        self.made[event.topic_id] = {**self.made.get(event.topic_id, {}), event.node_id: event.partitions}

    @apply.register
    def _(self, event: e.IdBlock) -> None:
        self.ids_taken = event.taken

    @apply.register
    def _(self, event: e.SetUser) -> None:
        self.users[event.user] = event.credentials

    @apply.register
    def _(self, event: e.DropUser) -> None:
        del self.users[event.user]

    @apply.register
    def _(self, event: e.AddRule) -> None:
        rule = Rule(**msgspec.structs.asdict(event))
        if rule not in self.rules:
            self.rules.append(rule)

    @apply.register
    def _(self, event: e.DropRule) -> None:
        rule = Rule(**msgspec.structs.asdict(event))
        self.rules = [each for each in self.rules if each != rule]

    @apply.register
    def _(self, event: e.RegisterNode) -> None:
        membership.register(self.cluster, event)

    @apply.register
    def _(self, event: e.FenceNode) -> None:
        membership.fence(self.cluster, event)

    @apply.register
    def _(self, event: e.AssignPartition) -> None:
        membership.assign(self.cluster, event)

    @apply.register
    def _(self, event: e.ChangeSet) -> None:
        membership.change_set(self.cluster, event)

    @apply.register
    def _(self, event: e.ResignReplica) -> None:
        membership.resign(self.cluster, event)

    @apply.register
    def _(self, event: e.SetQuota) -> None:
        rates, key = self._rates_of(event)
        if event.rates:
            rates[key] = event.rates
        else:
            rates.pop(key, None)

    def _rates_of(self, event: e.SetQuota) -> tuple[dict[str, dict[str, float]], str]:
        """Where the rates of this event's entity are kept."""
        if event.entity is None:
            return self.quotas, event.principal or ""
        return self.entity_quotas, msgspec.json.encode(event.entity).decode()


def _first(replicas: tuple[str, ...], leader_epoch: int) -> Assignment:
    return Assignment(replicas, replicas[0], replicas[:1], leader_epoch)


def _check_partitions(count: int) -> None:
    if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
        raise BrokerError(
            Reason.INVALID_PARTITION_COUNT, f"a topic has 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}"
        )


def _check_replicas(replicas: tuple[str, ...]) -> None:
    """How many followers one may ask for is the front ends' to say (`broker/placement.py`, Flux's own limit)."""
    assert replicas
    assert len(set(replicas)) == len(replicas)


def _check_min_in_sync(count: int) -> None:
    if not 1 <= count <= FOLLOWERS_PER_TOPIC_MAX + 1:
        raise BrokerError(
            Reason.INVALID_SETTING, f"min_in_sync must be 1 to {FOLLOWERS_PER_TOPIC_MAX + 1}, not {count}"
        )
