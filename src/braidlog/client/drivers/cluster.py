"""What a server tells of the nodes of a cluster, and of partitions that are to change.

Knows: the shape of it. Refuses to know: which protocol it came by, how it is printed.
"""

import msgspec

Place = tuple[str, int]
"""A topic and the number of a partition."""


class ClusterNode(msgspec.Struct, frozen=True):
    """A node as it registered. `alive`: it is not fenced, so it may lead, unless it is `draining`."""

    node: int
    host: str
    port: int
    rack: str
    alive: bool
    draining: bool = False


class ClusterPartition(msgspec.Struct, frozen=True):
    """Who holds a partition. `leader` is null while there is none; `offline`: replicas on nodes that cannot be reached."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]

    @property
    def is_under_replicated(self) -> bool:
        return self.leader is None or len(self.in_sync) < len(self.replicas)


class LackingTopic(msgspec.Struct, frozen=True):
    """A topic of which some partitions have fewer replicas than its replication factor."""

    topic: str
    replication_factor: int
    partitions: int


class ClusterInfo(msgspec.Struct, frozen=True):
    cluster_id: str
    controller: int
    nodes: tuple[ClusterNode, ...]
    partitions: tuple[ClusterPartition, ...]
    slots: int = 0
    """Of keys; 0 if one node has all of them, or the server does not tell."""
    weak_slots: tuple[ClusterPartition, ...] = ()
    """Those that lack a leader or an in-sync replica."""
    lacking: tuple[LackingTopic, ...] = ()


class PartitionOutcome(msgspec.Struct, frozen=True):
    """What became of one partition of several that were to change. `error`: the code's name, empty if it was done."""

    topic: str
    partition: int
    error: str
    message: str


class ClusterEvent(msgspec.Struct, frozen=True):
    """Something that happened to a cluster. `seq` and `index`: the entry of the metadata log that says it, and which of the
    entry's. `event` is its kind, `words` the same for people; `node`, `topic`, `partition` are null where it is about none."""

    seq: int
    index: int
    time_ms: int
    event: str
    node: int | None
    topic: str | None
    partition: int | None
    words: str


class PartitionMove(msgspec.Struct, frozen=True):
    """A partition on its way to other nodes: all that hold it meanwhile, those that it comes to, those that it leaves."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class LogFolder(msgspec.Struct, frozen=True):
    """A folder in which a node keeps partitions, and the bytes of each topic in it. Those of its disk are null where the server
    does not tell."""

    path: str
    total_bytes: int | None
    free_bytes: int | None
    topics: dict[str, int]
