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
from braidlog.cluster.topic import Change, Topic, held_alone, placed
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import PARTITIONS_PER_TOPIC_MAX
from braidlog.model.names import no_topic, node_number, own_number
from braidlog.replication import assignment as sets
from braidlog.replication import election
from braidlog.replication.assignment import Assignment, Nodes

IMAGE_VERSION = 2
"""Of what `Image` is when it is written: see `old_images.py`."""
DELETED_KEPT_MS = 7 * 24 * 3600 * 1000
FIRST_PRODUCER_ID = 1000
BROKERS_MAX = 1_000
"""Brokers that can be made known: each one is in the image for good."""
FOLLOWERS_PER_TOPIC_MAX = 32
RULES_MAX = 10_000
QUOTAS_MAX = 10_000
USERS_MAX = 100_000
GROUPS_MAX = 10_000
_ENTITY = msgspec.json.Decoder(e.QuotaEntity)


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
    """The nodes, where there are several."""
    quotas: dict[str, dict[str, float]] = {}
    """By principal: the rates that were set at run time."""
    entity_quotas: dict[str, dict[str, float]] = {}
    """Those of client ids and addresses, by the entity in JSON."""
    group_settings: dict[str, dict[str, int]] = {}
    """By consumer group: the settings that were set at run time."""
    version: int = IMAGE_VERSION

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
            dict(self.group_settings),
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
        """Refuse a list of which some event would not make sense after those before it, or is not known to all nodes."""
        membership.check_versions(self.cluster, events)
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
        self._check_placement(event.placement, event.partitions)

    def _check_placement(self, placement: tuple[Nodes, ...], count: int) -> None:
        """Of each new partition, or of none: then it is a single node's."""
        nodes = self.cluster.nodes()
        if placement and len(placement) != count:
            raise BrokerError(Reason.INVALID_SETTING, f"{count} partitions cannot be placed in {len(placement)} places")
        for replicas in placement:
            if not replicas or len(set(replicas)) != len(replicas) or any(node not in nodes for node in replicas):
                raise BrokerError(
                    Reason.INVALID_SETTING,
                    f"replicas {list(replicas)} are not different nodes of this cluster ({sorted(nodes)})",
                )
            if all(nodes[node].is_fenced for node in replicas):
                raise BrokerError(Reason.NOT_ENOUGH_REPLICAS, f"none of the nodes {list(replicas)} is there")

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
        assert bool(event.placement) is not bool(topic.holder), "a cluster places every partition"
        self._check_placement(event.placement, event.partitions - topic.partitions)

    @check.register
    def _(self, event: e.PlaceTopic) -> None:
        self.topic(event.topic, event.topic_id)
        _check_min_in_sync(event.min_in_sync)
        _check_replicas(event.replicas)

    @check.register
    def _(self, event: e.ChangeLeader) -> None:
        known = self.assignment(event.topic, event.partition)
        leader = self._number(event.topic, event.leader_id)
        if event.leader_epoch < known.leader_epoch + (leader not in (None, known.leader)):
            raise membership.stale(
                f"{event.topic}/{event.partition} is in leader epoch {known.leader_epoch}, not before {event.leader_epoch}"
            )
        if event.leader_id and leader not in known.replicas:
            raise _no_replica(event.leader_id)

    @check.register
    def _(self, event: e.ChangeInSync) -> None:
        known = self.assignment(event.topic, event.partition)
        self._check_epochs(event, event.leader_epoch, event.partition_epoch)
        if self._number(event.topic, event.replica_id) not in known.replicas:
            raise _no_replica(event.replica_id)

    def _number(self, topic: str, node: str) -> int | None:
        """Of a node by its name. The single node that has a topic has one, whatever it is called."""
        return own_number(node) if node and node == self.topics[topic].holder else node_number(node)

    def _check_epochs(self, event: e.PartitionEvent, leader_epoch: int, partition_epoch: int) -> None:
        known = self.assignment(event.topic, event.partition)
        if (leader_epoch, partition_epoch) != (known.leader_epoch, known.partition_epoch):
            raise membership.stale(f"{event.topic}/{event.partition} has changed meanwhile: look again and decide anew")

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
        member = self.cluster.members.get(event.node_id)
        if event.node_id not in self.nodes and member is None:
            raise BrokerError(Reason.REPLICA_NOT_FOUND, f"broker {event.node_id} is not registered")
        if member is not None:
            self._check_removal(int(event.node_id), member)

    def _check_removal(self, node: int, member: membership.Member) -> None:
        if not member.is_fenced:
            raise BrokerError(Reason.VERSION_CONFLICT, f"node {node} runs; stop it first: it hands over what it leads")
        topics = self.topics.values()
        held = sum(node in each.replicas for topic in topics for each in topic.assignments)
        if held:
            raise BrokerError(
                Reason.VERSION_CONFLICT,
                f"node {node} has replicas of {held} partition{'s' * (held > 1)}; move them to other nodes first",
            )

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
        membership.check_incarnation(self.cluster, event)

    @check.register
    def _(self, event: e.DrainNode) -> None:
        membership.check_incarnation(self.cluster, event)

    @check.register
    def _(self, event: e.AssignPartition) -> None:
        self._check_epochs(event, event.leader_epoch, event.partition_epoch)

    @check.register
    def _(self, event: e.ChangeSet) -> None:
        known = self.assignment(event.topic, event.partition)
        if not sets.may_change(known, event.change, self.cluster.nodes()):
            raise membership.stale(f"{event.topic}/{event.partition} has changed meanwhile: look again and ask again")

    @check.register
    def _(self, event: e.ResignReplica) -> None:
        if self.assignment(event.topic, event.partition).leader_epoch != event.leader_epoch:
            raise membership.stale(f"{event.topic}/{event.partition} has another leader by now")

    @check.register
    def _(self, event: e.SetQuota) -> None:
        if (event.principal is None) is (event.entity is None):
            raise BrokerError(Reason.INVALID_SETTING, "a quota is that of a principal or of another entity")
        rates, key = self._rates_of(event)
        if event.rates and key not in rates and len(self.quotas) + len(self.entity_quotas) >= QUOTAS_MAX:
            raise BrokerError(
                Reason.QUOTA_EXCEEDED, f"{QUOTAS_MAX} users, client ids and addresses can have quotas, and no more"
            )

    @check.register
    def _(self, event: e.SetGroup) -> None:
        if event.settings and event.group not in self.group_settings and len(self.group_settings) >= GROUPS_MAX:
            raise BrokerError(Reason.QUOTA_EXCEEDED, f"{GROUPS_MAX} groups can have settings, and no more")

    # -- apply: never refuses ----------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        self.cluster.version = max(self.cluster.version, e.version_of(event))
        self._apply(event)

    @singledispatchmethod
    def _apply(self, event: Event) -> None:
        raise AssertionError(f"cannot apply {type(event).__name__}")

    @_apply.register
    def _(self, event: e.CreateTopic) -> None:
        holder = "" if event.placement else event.replicas[0]
        self.topics[event.topic] = Topic(
            name=event.topic,
            topic_id=event.topic_id,
            settings=event.settings,
            created_ms=event.created_ms,
            min_in_sync=event.min_in_sync,
            created_by=event.created_by,
            replication_factor=event.replication_factor,
            holder=holder,
            observers=event.replicas[1:],
            assignments=self._first(holder, event.placement, event.partitions, event.leader_epoch),
        )

    def _first(
        self, holder: str, placement: tuple[Nodes, ...], count: int, leader_epoch: int
    ) -> tuple[Assignment, ...]:
        if holder:
            return held_alone(holder, count, leader_epoch)
        return placed(placement, self.cluster.nodes(), leader_epoch)

    @_apply.register
    def _(self, event: e.DeleteTopic) -> None:
        del self.topics[event.topic]
        self.deleted = {
            topic_id: at for topic_id, at in self.deleted.items() if at > event.deleted_ms - DELETED_KEPT_MS
        }
        self.deleted[event.topic_id] = event.deleted_ms
        self.made.pop(event.topic_id, None)

    @_apply.register
    def _(self, event: e.AlterTopic) -> None:
        self.topics[event.topic] = self.topics[event.topic].altered(event.settings)

    @_apply.register
    def _(self, event: e.AddPartitions) -> None:
        topic = self.topics[event.topic]
        added = self._first(topic.holder, event.placement, event.partitions - topic.partitions, e.FIRST_LEADER_EPOCH)
        self.topics[event.topic] = msgspec.structs.replace(topic, assignments=topic.assignments + added)

    @_apply.register
    def _(self, event: e.PlaceTopic) -> None:
        topic = self.topics[event.topic]
        self.topics[event.topic] = topic.followed_by(event.replicas, event.min_in_sync)
        if topic.holder:
            made = self.made.get(topic.topic_id, {})
            self.made[topic.topic_id] = {node: count for node, count in made.items() if node in event.replicas}

    @_apply.register
    def _(self, event: e.ChangeLeader) -> None:
        leader = self._number(event.topic, event.leader_id)
        self._change(
            event, lambda known: msgspec.structs.replace(known.led_by(leader), leader_epoch=event.leader_epoch)
        )

    @_apply.register
    def _(self, event: e.ChangeInSync) -> None:
        node = self._number(event.topic, event.replica_id)
        known = self.topics[event.topic].assignments[event.partition]
        if node is not None and node in known.replicas and (node in known.in_sync) is not event.isr:
            change = sets.SetChange(node, event.isr, 0, event.leader_epoch, event.partition_epoch)
            self._change_set(event, change)

    def _change(self, event: e.PartitionEvent, change: Change) -> None:
        self.topics[event.topic] = self.topics[event.topic].changed(event.partition, change)

    def _change_set(self, event: e.PartitionEvent, change: sets.SetChange) -> None:
        min_in_sync = self.topics[event.topic].min_in_sync
        self._change(event, lambda known: sets.with_change(known, change, min_in_sync))

    @_apply.register
    def _(self, event: e.AddNode) -> None:
        self.nodes[event.node_id] = Node(event.addr, event.epoch)

    @_apply.register
    def _(self, event: e.RemoveNode) -> None:
        self.nodes.pop(event.node_id, None)
        self.cluster.members.pop(event.node_id, None)

    @_apply.register
    def _(self, event: e.FolderMade) -> None:
        self.made[event.topic_id] = {**self.made.get(event.topic_id, {}), event.node_id: event.partitions}

    @_apply.register
    def _(self, event: e.IdBlock) -> None:
        self.ids_taken = event.taken

    @_apply.register
    def _(self, event: e.SetUser) -> None:
        self.users[event.user] = event.credentials

    @_apply.register
    def _(self, event: e.DropUser) -> None:
        del self.users[event.user]

    @_apply.register
    def _(self, event: e.AddRule) -> None:
        rule = Rule(**msgspec.structs.asdict(event))
        if rule not in self.rules:
            self.rules.append(rule)

    @_apply.register
    def _(self, event: e.DropRule) -> None:
        rule = Rule(**msgspec.structs.asdict(event))
        self.rules = [each for each in self.rules if each != rule]

    @_apply.register
    def _(self, event: e.RegisterNode) -> None:
        before = self.cluster.member(event.node)
        if before is not None and before.registered.life.folder_id != event.life.folder_id:
            # Another folder, with nothing in it. Nobody counts on it; what it is to hold is made, and copied from others.
            gone = {str(event.node), event.name}
            self.made = {
                topic_id: {node: count for node, count in made.items() if node not in gone}
                for topic_id, made in self.made.items()
            }
        membership.register(self.cluster, event)
        nodes = self.cluster.nodes()
        for name, topic in self.topics.items():
            self.topics[name] = membership.rejoined(topic, event, before, nodes)

    @_apply.register
    def _(self, event: e.FenceNode) -> None:
        membership.fence(self.cluster, event)

    @_apply.register
    def _(self, event: e.DrainNode) -> None:
        membership.drain(self.cluster, event)

    @_apply.register
    def _(self, event: e.AssignPartition) -> None:
        self.topics[event.topic] = self.topics[event.topic].assigned(event.partition, event.after)

    @_apply.register
    def _(self, event: e.ChangeSet) -> None:
        self._change_set(event, event.change)

    @_apply.register
    def _(self, event: e.ResignReplica) -> None:
        nodes = self.cluster.nodes()
        self._change(event, lambda known: election.resigned(known, event.node, nodes))

    @_apply.register
    def _(self, event: e.SetQuota) -> None:
        rates, key = self._rates_of(event)
        if event.rates:
            rates[key] = event.rates
        else:
            rates.pop(key, None)

    @_apply.register
    def _(self, event: e.SetGroup) -> None:
        settings = {**self.group_settings, event.group: event.settings}
        self.group_settings = {group: own for group, own in settings.items() if own}

    def _rates_of(self, event: e.SetQuota) -> tuple[dict[str, dict[str, float]], str]:
        """Where the rates of this event's entity are kept."""
        if event.entity is None:
            return self.quotas, event.principal or ""
        return self.entity_quotas, msgspec.json.encode(event.entity).decode()


def _no_replica(node: str) -> BrokerError:
    return BrokerError(Reason.REPLICA_NOT_FOUND, f"node {node[:60]!r} holds no replica of this partition")


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
