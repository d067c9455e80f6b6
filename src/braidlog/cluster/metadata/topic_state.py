"""A topic in the metadata, and its changes.

Pure: `replication/` computes how registrations, elections and in-sync changes affect one partition. Cluster nodes have
numbers. A single node and its followers (mlog's peers, Flux's replicas) have names, and are no replicas of a cluster.
"""

from collections.abc import Callable, Iterable

import msgspec

from braidlog.model.names import own_number
from braidlog.model.settings import Flush, TopicSettings
from braidlog.replication import assignment as sets
from braidlog.replication.assignment import Assignment, Nodes, Registered
from braidlog.replication.control.election import may_lead

Change = Callable[[Assignment], Assignment]


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    settings: TopicSettings
    created_ms: int
    min_in_sync: int
    assignments: tuple[Assignment, ...]
    holder: str = ""
    """Name of the single node that holds the topic; empty in a cluster, where every partition has its own replicas."""
    observers: tuple[str, ...] = ()
    """Followers by name. A single node counts them; a cluster shows them and never waits for them."""
    replication_factor: int = 0
    """Desired number of replicas per partition; 0: unknown, and each partition keeps its replicas."""
    created_by: str = ""
    """The principal that created the topic."""
    unflushed: Nodes = ()
    """Nodes that have not registered since `flush` became `ack`: a machine crash may lose their earlier writes."""

    @property
    def partitions(self) -> int:
        return len(self.assignments)

    @property
    def desired_replicas(self) -> int:
        """The desired replication factor, also for new partitions."""
        return self.replication_factor or len(self.assignments[0].replicas)

    def changed(self, number: int, change: Change) -> "Topic":
        """Change one partition's assignment."""
        assignments = list(self.assignments)
        assignments[number] = change(assignments[number])
        return msgspec.structs.replace(self, assignments=tuple(assignments))

    def assigned(self, number: int, after: Assignment) -> "Topic":
        """Assign other replicas to one partition.

        The replication factor falls with a partition that moves to fewer nodes, and grows once every partition has, or
        will have, more replicas.
        """
        before, topic = self.assignments[number], self.changed(number, lambda _: after)
        if _size(after) == _size(before):
            return topic
        factor = self.replication_factor
        if _size(after) < _size(before):
            factor = min(factor, _size(after))
        return msgspec.structs.replace(topic, replication_factor=max(factor, min(map(_size, topic.assignments))))

    def lacks_replicas(self, each: Assignment) -> bool:
        """Whether a partition has fewer replicas than desired; a replica that is still being added does not count."""
        return len(each.replicas) - len(each.adding) < self.replication_factor

    def changed_everywhere(self, change: Change, **fields: object) -> "Topic":
        return msgspec.structs.replace(self, assignments=tuple(map(change, self.assignments)), **fields)

    def flushes_for(self, node: int) -> bool:
        """Whether everything that a node acknowledged since it registered was synced to its disk."""
        return self.settings.flush is Flush.ACK and node not in self.unflushed

    def altered(self, settings: TopicSettings) -> "Topic":
        unflushed = self.unflushed
        if settings.flush is Flush.ACK and self.settings.flush is not Flush.ACK:
            unflushed = tuple(sorted({node for each in self.assignments for node in each.replicas}))
        return msgspec.structs.replace(self, settings=settings, unflushed=unflushed)

    def with_observers(self, replicas: tuple[str, ...], min_in_sync: int) -> "Topic":
        """Set other observers, where the first name is the holder's, or another `min_in_sync`."""
        if not self.holder:
            return self.changed_everywhere(
                lambda each: sets.with_min_in_sync(each, min_in_sync), observers=replicas[1:], min_in_sync=min_in_sync
            )
        held = (own_number(replicas[0]),)
        return self.changed_everywhere(
            lambda each: each.with_changes(replicas=held, in_sync=held),
            holder=replicas[0],
            observers=replicas[1:],
            min_in_sync=min_in_sync,
        )


def _size(each: Assignment) -> int:
    """Number of replicas of a partition after its move."""
    return len(each.replicas) - len(each.removing)


def held_alone(holder: str, count: int, leader_epoch: int) -> tuple[Assignment, ...]:
    """First assignments of partitions on a single node."""
    held = (own_number(holder),)
    return (Assignment(replicas=held, in_sync=held, leader=held[0], leader_epoch=leader_epoch),) * count


def placed(placement: Iterable[Nodes], nodes: Registered, leader_epoch: int) -> tuple[Assignment, ...]:
    """First assignments of partitions in a cluster. They are empty, so every live replica is in sync."""
    found = []
    for replicas in placement:
        in_sync = tuple(node for node in replicas if node in nodes and not nodes[node].is_fenced)
        leader = next(iter(may_lead(nodes, in_sync)), None)
        found.append(Assignment(replicas=replicas, in_sync=in_sync, leader=leader, leader_epoch=leader_epoch))
    return tuple(found)
