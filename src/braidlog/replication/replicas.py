"""The replicas of a partition as a value, for protocol adapters, pages and metrics."""

import msgspec

from braidlog.replication.messages import Assigned
from braidlog.replication.replica_state import UNKNOWN_END, ExternalFollower, Leader, Replica


class ReplicaInfo(msgspec.Struct, frozen=True):
    """One replica other than the leader. `end_offset` is the next offset it requested, so it holds everything below;
    -1 if unknown.
    """

    node: str
    end_offset: int = 0
    in_sync: bool = False


class Replicas(msgspec.Struct, frozen=True):
    """The replicas as this node knows them. Observers copy the log without being members; an observer that holds every
    committed record is shown as in sync.
    """

    leader: str = ""
    min_in_sync: int = 1
    followers: tuple[ReplicaInfo, ...] = ()
    observers: tuple[ReplicaInfo, ...] = ()

    @property
    def in_sync(self) -> list[str]:
        leader = [self.leader] if self.leader else []
        return [*leader, *(each.node for each in self.followers if each.in_sync)]

    @property
    def replication_factor(self) -> int:
        return 1 + len(self.followers)

    @property
    def is_under_replicated(self) -> bool:
        return len(self.in_sync) < self.replication_factor


def described(assigned: Assigned | None, replica: Replica | None, own_name: str) -> Replicas:
    """Describe the replicas. `replica` is None while the log is closed; the replica is then the only one. `own_name`
    is the name of a single node.
    """
    if assigned is None:
        return Replicas()
    assignment = assigned.assignment
    role = None if replica is None else replica.role
    leader = role if isinstance(role, Leader) else None
    if assigned.external is not None:
        known = {} if leader is None else {each.node: each for each in leader.external}
        outside = [known.get(node) or ExternalFollower(node) for node in sorted(assigned.external)]
        shown = tuple(ReplicaInfo(each.node, each.end, each.in_sync) for each in outside)
        return Replicas(own_name, assigned.min_in_sync, shown)
    ends = {} if leader is None else {each.node: each.end for each in leader.followers}
    followers = tuple(
        ReplicaInfo(str(node), ends.get(node, UNKNOWN_END), node in assignment.in_sync)
        for node in assignment.replicas
        if node != assignment.leader
    )
    watermark = 0 if replica is None else replica.watermark
    observers = () if leader is None else leader.external
    return Replicas(
        "" if assignment.leader is None else str(assignment.leader),
        assigned.min_in_sync,
        followers,
        tuple(ReplicaInfo(each.node, each.end, in_sync=each.end >= watermark) for each in observers),
    )
