"""What a server reports about the nodes of a cluster and about partition changes.

Does not handle: protocols, printing.
"""

import msgspec

Place = tuple[str, int]
"""A topic and the number of a partition."""


class ClusterNode(msgspec.Struct, frozen=True):
    """A registered node. `alive`: it is not fenced, so it may lead unless it is `draining`."""

    node: int
    host: str
    port: int
    rack: str
    alive: bool
    draining: bool = False


class ClusterPartition(msgspec.Struct, frozen=True):
    """The replicas of a partition. `leader` is null if there is none; `offline`: replicas on nodes that cannot be
    reached."""

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
    """A topic with partitions that have fewer replicas than its replication factor."""

    topic: str
    replication_factor: int
    partitions: int


class ClusterInfo(msgspec.Struct, frozen=True):
    cluster_id: str
    controller: int
    nodes: tuple[ClusterNode, ...]
    partitions: tuple[ClusterPartition, ...]
    slots: int = 0
    """Key slots; 0 if one node owns all keys, or if the server does not report slots."""
    weak_slots: tuple[ClusterPartition, ...] = ()
    """Slots that lack a leader or an in-sync replica."""
    lacking: tuple[LackingTopic, ...] = ()


class PartitionOutcome(msgspec.Struct, frozen=True):
    """The result for one partition of a change of several. `error`: the name of the error code, empty on success."""

    topic: str
    partition: int
    error: str
    message: str


class ClusterEvent(msgspec.Struct, frozen=True):
    """An event in a cluster. `seq` and `index` identify the metadata log entry, and the event within the entry.
    `event` is its kind, `words` describes it for people; `node`, `topic`, `partition` are null where they do not
    apply."""

    seq: int
    index: int
    time_ms: int
    event: str
    node: int | None
    topic: str | None
    partition: int | None
    words: str


class PartitionMove(msgspec.Struct, frozen=True):
    """A partition that moves to other nodes: all its current replicas, those being added, those being removed."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class LogFolder(msgspec.Struct, frozen=True):
    """A folder in which a node keeps partitions, and the bytes of each topic in it. The sizes of its disk are null if
    the server does not report them."""

    path: str
    total_bytes: int | None
    free_bytes: int | None
    topics: dict[str, int]
