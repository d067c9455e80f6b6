"""A topic as the metadata has it, and what each change makes of it.

Pure: `replication/` says what a registration, an election, a change of the set makes of one partition's assignment. Nodes have
numbers; a single node and those that follow it (mlog's peers, Flux's replicas) have names, and are no replicas of a cluster.
"""

from collections.abc import Callable, Iterable

import msgspec

from braidlog.model.names import own_number
from braidlog.model.settings import Flush, TopicSettings
from braidlog.replication import assignment as sets
from braidlog.replication.assignment import Assignment, Nodes, Registered
from braidlog.replication.election import may_lead

Change = Callable[[Assignment], Assignment]


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    settings: TopicSettings
    created_ms: int
    min_in_sync: int
    assignments: tuple[Assignment, ...]
    holder: str = ""
    """The name of the single node that has it; empty in a cluster, where every partition has replicas of its own."""
    observers: tuple[str, ...] = ()
    """Who follows it by name. A single node counts them; in a cluster they are shown, and never waited for."""
    replication_factor: int = 0
    """How many replicas each partition should have; 0: unknown, and each partition keeps those that it has."""
    created_by: str = ""
    """The principal whose request made it."""
    unflushed: Nodes = ()
    """Nodes that have not registered since `flush` became `ack`: what they wrote before may be lost with their machine."""

    @property
    def partitions(self) -> int:
        return len(self.assignments)

    @property
    def copies(self) -> int:
        """How many replicas its partitions should have, and the next ones get."""
        return self.replication_factor or len(self.assignments[0].replicas)

    def changed(self, number: int, change: Change) -> "Topic":
        """One partition's assignment is another."""
        assignments = list(self.assignments)
        assignments[number] = change(assignments[number])
        return msgspec.structs.replace(self, assignments=tuple(assignments))

    def assigned(self, number: int, after: Assignment) -> "Topic":
        """One partition has other replicas. The replication factor follows a partition that is moved to fewer nodes, and grows
        once every partition has, or will have, more."""
        before, topic = self.assignments[number], self.changed(number, lambda _: after)
        if _size(after) == _size(before):
            return topic
        factor = self.replication_factor
        if _size(after) < _size(before):
            factor = min(factor, _size(after))
        return msgspec.structs.replace(topic, replication_factor=max(factor, min(map(_size, topic.assignments))))

    def lacks_replicas(self, each: Assignment) -> bool:
        """Whether a partition of this topic has fewer replicas than it should have; one that is being added does not count."""
        return len(each.replicas) - len(each.adding) < self.replication_factor

    def changed_everywhere(self, change: Change, **fields: object) -> "Topic":
        return msgspec.structs.replace(self, assignments=tuple(map(change, self.assignments)), **fields)

    def flushes_for(self, node: int) -> bool:
        """Whether all that a node has acknowledged since it registered was on its disk."""
        return self.settings.flush is Flush.ACK and node not in self.unflushed

    def altered(self, settings: TopicSettings) -> "Topic":
        unflushed = self.unflushed
        if settings.flush is Flush.ACK and self.settings.flush is not Flush.ACK:
            unflushed = tuple(sorted({node for each in self.assignments for node in each.replicas}))
        return msgspec.structs.replace(self, settings=settings, unflushed=unflushed)

    def followed_by(self, replicas: tuple[str, ...], min_in_sync: int) -> "Topic":
        """Other observers, the first name being the holder's; or another `min_in_sync`."""
        if not self.holder:
            return self.changed_everywhere(
                lambda each: sets.with_min_in_sync(each, min_in_sync), observers=replicas[1:], min_in_sync=min_in_sync
            )
        held = (own_number(replicas[0]),)
        return self.changed_everywhere(
            lambda each: each.changed(replicas=held, in_sync=held),
            holder=replicas[0],
            observers=replicas[1:],
            min_in_sync=min_in_sync,
        )


def _size(each: Assignment) -> int:
    """How many replicas a partition has once its move is finished."""
    return len(each.replicas) - len(each.removing)


def held_alone(holder: str, count: int, leader_epoch: int) -> tuple[Assignment, ...]:
    """The first assignments of partitions that a single node has."""
    held = (own_number(holder),)
    return (Assignment(replicas=held, in_sync=held, leader=held[0], leader_epoch=leader_epoch),) * count


def placed(placement: Iterable[Nodes], nodes: Registered, leader_epoch: int) -> tuple[Assignment, ...]:
    """The first assignments of partitions in a cluster. Nothing is in them yet: all who are there have all of it."""
    found = []
    for replicas in placement:
        in_sync = tuple(node for node in replicas if node in nodes and not nodes[node].is_fenced)
        leader = next(iter(may_lead(nodes, in_sync)), None)
        found.append(Assignment(replicas=replicas, in_sync=in_sync, leader=leader, leader_epoch=leader_epoch))
    return tuple(found)
