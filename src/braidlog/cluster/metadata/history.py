"""Recent events of the metadata log, each with the change that it made.

Invariants: an event is recorded while it is applied, each entry once; at most `KEPT_MAX` events are kept. Texts are
formatted on request, so a failover of thousands of partitions costs only memory. The texts contain no secrets.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.topic_state import Topic
from braidlog.replication.assignment import Assignment, Nodes

KEPT_MAX: Final = 5_000
HIDDEN_EVENTS: Final = (e.IdBlock, e.FolderMade)
"""Internal bookkeeping events of nodes, which are not shown."""


class Cursor(NamedTuple):
    """Position of an event: its entry, and its index within the entry."""

    seq: int
    number: int


START: Final = Cursor(0, -1)


class PartitionChange(NamedTuple):
    """Change of one partition by an event."""

    topic: str
    partition: int
    before: Assignment
    after: Assignment


class HistoryEvent(NamedTuple):
    """An applied event, with the partition change if it changed exactly one partition."""

    at: Cursor
    time_ms: int
    """Clock of the node that wrote the entry; 0 if unknown."""
    event: e.Event
    change: PartitionChange | None = None

    @property
    def node(self) -> int | None:
        number = getattr(self.event, "node", None)
        return number if isinstance(number, int) else None

    @property
    def words(self) -> str:
        change = self.change
        if change is None:
            return description_of(self.event)
        return f"{change.topic}/{change.partition}: {changes(change.before, change.after)}"


class History:
    """Event history of one metadata log."""

    def __init__(self) -> None:
        self._kept: deque[HistoryEvent] = deque(maxlen=KEPT_MAX)
        self._seq = 0
        self._number = 0
        self._noted = 0
        self.leader_changes: dict[str, int] = dict.fromkeys(CAUSES, 0)
        """Leader changes by cause, of the entries that this node followed."""

    def finish(self, seq: int) -> None:
        """Mark an entry as recorded, so that applying it to another image records nothing."""
        self._noted = max(self._noted, seq)

    def apply(self, image: Image, event: e.Event, seq: int, time_ms: int) -> None:
        """Apply an event to an image, and record it if its entry was not recorded before."""
        if seq <= self._noted or isinstance(event, HIDDEN_EVENTS):
            image.apply(event)
            return
        if isinstance(event, e.PartitionEvent):
            place = event.topic, event.partition
            before = image.assignment(*place)
            image.apply(event)
            after = image.assignment(*place)
            if before.leader_epoch != after.leader_epoch:
                self.leader_changes[_cause(image, event, before)] += 1
            self._note(seq, time_ms, event, PartitionChange(*place, before, after))
        elif isinstance(event, e.RegisterNode):
            topics = dict(image.topics)
            image.apply(event)
            self._note(seq, time_ms, event)
            for name, topic in image.topics.items():
                if topics[name] is not topic:
                    self._note_leaders(seq, time_ms, event, topics[name], topic)
        else:
            image.apply(event)
            self._note(seq, time_ms, event)

    def _note_leaders(self, seq: int, time_ms: int, event: e.Event, before: Topic, after: Topic) -> None:
        """Record leaderships that a registration ended."""
        for number, (old, new) in enumerate(zip(before.assignments, after.assignments, strict=True)):
            if old.leader != new.leader:
                self.leader_changes["restarted"] += old.leader is not None
                self._note(seq, time_ms, event, PartitionChange(after.name, number, old, new))

    def _note(self, seq: int, time_ms: int, event: e.Event, change: PartitionChange | None = None) -> None:
        if seq > self._seq:
            self._seq, self._number = seq, 0
        self._kept.append(HistoryEvent(Cursor(seq, self._number), time_ms, event, change))
        self._number += 1

    def after(self, cursor: Cursor = START, since_ms: int = 0) -> Iterator[HistoryEvent]:
        """The kept events after a cursor, oldest first."""
        return (each for each in self._kept if each.at > cursor and each.time_ms >= since_ms)

    def partition_history(self, topic: str, partition: int) -> list[HistoryEvent]:
        """The kept events of one partition and of the nodes that held it, oldest first."""
        place = topic, partition
        changes = [each.change for each in self._kept if each.change is not None and each.change[:2] == place]
        nodes = {node for change in changes for node in change.before.replicas + change.after.replicas}
        return [
            each
            for each in self._kept
            if (_is_about(each, topic, nodes) if each.change is None else each.change[:2] == place)
        ]

    def last(self, count: int) -> list[HistoryEvent]:
        return [self._kept[at] for at in range(max(len(self._kept) - count, 0), len(self._kept))]


CAUSES: Final = ("fenced", "drained", "restarted", "resigned", "returned", "moved")


def _cause(image: Image, event: e.Event, before: Assignment) -> str:
    """Why a partition's leader changed."""
    if isinstance(event, e.ResignReplica):
        return "resigned"
    if before.leader is None:
        return "returned"
    member = image.cluster.member(before.leader)
    if member is None or member.is_fenced:
        return "fenced"
    return "drained" if member.is_draining else "moved"


def _is_about(each: HistoryEvent, topic: str, nodes: set[int]) -> bool:
    return each.node in nodes or getattr(each.event, "topic", "") == topic


def format_nodes(nodes: Nodes) -> str:
    return ", ".join(map(str, nodes)) or "none"


def changes(old: Assignment, after: Assignment) -> str:
    """Describe the change of a partition."""
    parts = []
    if old.leader_epoch != after.leader_epoch:
        loss = "; records may be lost" if after.unclean_epoch == after.leader_epoch else ""
        parts.append(f"{_leader(after.leader)} leads, epoch {after.leader_epoch} (was {_leader(old.leader)}){loss}")
    if set(old.in_sync) != set(after.in_sync):
        parts.append(f"in sync: {format_nodes(after.in_sync)} (was {format_nodes(old.in_sync)})")
    if after.adding or after.removing:
        parts.append(f"moves to {format_nodes(tuple(node for node in after.replicas if node not in after.removing))}")
    elif set(old.replicas) != set(after.replicas) or old.adding or old.removing:
        parts.append(f"is on {format_nodes(after.replicas)}")
    return "; ".join(parts) or f"in sync: {format_nodes(after.in_sync)}"


def _leader(node: int | None) -> str:
    return "no node" if node is None else f"node {node}"


def description_of(event: e.Event) -> str:
    """Describe an event that concerns no single partition."""
    return WORDS[type(event)](event)


def _topic_created_text(event: e.CreateTopic) -> str:
    count = len(event.placement[0]) if event.placement else 1
    return f"topic {event.topic} created (partitions: {event.partitions}, replicas: {count})"


def _registered_text(event: e.RegisterNode) -> str:
    how = "after a clean stop" if event.life.stopped_cleanly else "after an unclean stop"
    how = how if event.life.remembers else "for the first time"
    damaged = f"; damaged: {', '.join(event.damaged[:10])}" if event.damaged else ""
    return f"node {event.node} registered {how}{damaged}"


def _rule_text(event: e.AddRule) -> str:
    named = (event.topic, event.group, event.transactional_id, event.key)
    what = " ".join(name for name in named if name) or "the cluster"
    done = "dropped" if isinstance(event, e.DropRule) else "added"
    may = "may not" if event.deny else "may"
    return f"rule {done}: {event.principal} {may} {', '.join(event.operations)} {what}"


def _quota_text(event: e.SetQuota) -> str:
    entity = event.entity or e.QuotaEntity(event.principal)
    named = (("user", entity.user), ("client id", entity.client_id), ("address", entity.address))
    whose = ", ".join(f"{name} {value or 'any'}" for name, value in named if value is not None)
    return f"quotas of {whose or 'all users'} {'set' if event.rates else 'dropped'}"


WORDS: Final[Mapping[type[e.Event], Callable[[Any], str]]] = {
    e.CreateTopic: _topic_created_text,
    e.DeleteTopic: lambda event: f"topic {event.topic} deleted",
    e.AlterTopic: lambda event: f"topic {event.topic} settings changed",
    e.AddPartitions: lambda event: f"topic {event.topic}: partitions increased to {event.partitions}",
    e.PlaceTopic: lambda event: f"topic {event.topic} observers set to {', '.join(event.replicas[1:]) or 'none'}",
    e.AddNode: lambda event: f"broker {event.node_id} registered at {event.addr}",
    e.RemoveNode: lambda event: f"node {event.node_id} removed permanently",
    e.RegisterNode: _registered_text,
    e.FenceNode: lambda event: f"node {event.node} fenced: other nodes do not hear it",
    e.DrainNode: lambda event: (
        f"node {event.node} {'drains: it must not lead' if event.is_draining else 'may lead again'}"
    ),
    e.SetUser: lambda event: f"user {event.user} password changed",
    e.DropUser: lambda event: f"user {event.user} deleted",
    e.AddRule: _rule_text,
    e.DropRule: _rule_text,
    e.SetQuota: _quota_text,
    e.SetGroup: lambda event: f"settings of group {event.group} {'set' if event.settings else 'dropped'}",
}
