"""The replicas of a partition of a cluster as a single node's are shown: for doors, pages and metrics.

Knows: what the replica here knows of the others, and who observes. Refuses to know: who leads next.
Observers are shown, and never counted.
"""

import msgspec

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.names import node_number
from braidlog.partition.replicated import ReplicatedPartition
from braidlog.replication import replicas as observers
from braidlog.replication.messages import Assigned
from braidlog.replication.replica_state import Leader, Replica

OBSERVERS_MAX = 32


class ReplicasShown(observers.ReplicaSet):
    """The replicas of a partition in the words of a single node's: for whoever shows them. Who counts is not changed here."""

    def __init__(self, replicated: ReplicatedPartition) -> None:
        super().__init__(str(replicated.replica.node))
        self._replicated = replicated
        self._assigned: Assigned | None = None
        self._observers: dict[str, observers.Replica] = {}

    def follow(self, replica: Replica) -> None:
        """The metadata may have changed."""
        if replica.assigned is None or replica.assigned is self._assigned:
            return
        self._assigned = replica.assigned
        leader = replica.assignment.leader
        self.leader = "" if leader is None else str(leader)
        if leader != replica.node:
            self._observers.clear()
        self.min_in_sync = replica.min_in_sync
        self.version = replica.assignment.partition_epoch

    @property
    def followers(self) -> list[observers.Replica]:
        replica = self._replicated.replica
        if replica.assigned is None:
            return []
        known = {each.node: each for each in replica.role.followers} if isinstance(replica.role, Leader) else {}
        assignment = replica.assignment
        return [
            observers.Replica(str(node), known[node].end if node in known else -1, node in assignment.in_sync)
            for node in assignment.replicas
            if node != assignment.leader
        ]

    @property
    def observers(self) -> list[observers.Replica]:
        """Who copies the log from outside, as far as it has asked since this node leads; `in_sync`: it has what is committed."""
        watermark = self.high_watermark
        return [
            msgspec.structs.replace(each, in_sync=each.end_offset >= watermark) for each in self._observers.values()
        ]

    def observed(self, node: str, offset: int, end: int) -> None:
        """An observer asks from `offset` on. So many are remembered, the ones that asked last."""
        if offset > end:
            raise BrokerError(
                Reason.OFFSET_OUT_OF_RANGE, f"replica {node[:60]!r} claims offset {offset}, the leader ends at {end}"
            )
        self._observers.pop(node, None)
        if not self._is_node(node):
            self._observers[node] = observers.Replica(node, offset)
        if len(self._observers) > OBSERVERS_MAX:
            del self._observers[next(iter(self._observers))]

    def told_in_sync(self, node: str, *, in_sync: bool) -> None:
        """Somebody says that a node has everything, or has not. Refused if it is not so; nothing is counted by it."""
        found = next((each for each in (*self.followers, *self.observers) if each.node == node), None)
        if found is None:
            raise BrokerError(Reason.REPLICA_NOT_FOUND, f"node {node[:60]!r} has not asked for records here")
        if self._is_node(node):
            if found.in_sync != in_sync:
                raise BrokerError(
                    Reason.REPLICA_NOT_FOUND,
                    f"node {node} is {'not ' * in_sync}in sync: the cluster's nodes join and leave the set by themselves",
                )
        elif not in_sync:
            del self._observers[node]
        elif not found.in_sync:
            raise BrokerError(
                Reason.REPLICA_NOT_FOUND,
                f"observer {node[:60]!r} has what is below {found.end_offset}; below {self.high_watermark} is committed",
            )

    def _is_node(self, name: str) -> bool:
        number = node_number(name)
        return self._assigned is not None and number in self._assigned.assignment.replicas

    @property
    def in_sync(self) -> list[str]:
        replica = self._replicated.replica
        if replica.assigned is None:
            return []
        leader = replica.assignment.leader
        others = sorted(node for node in replica.assignment.in_sync if node != leader)
        return [str(node) for node in (leader, *others) if node is not None]

    @property
    def replication_factor(self) -> int:
        replica = self._replicated.replica
        return 1 if replica.assigned is None else len(replica.assignment.replicas)

    @property
    def high_watermark(self) -> int:
        return self._replicated.watermark

    @property
    def common_end(self) -> int:
        return self._replicated.log.common_end

    def advance(self, leader_offset: int) -> int:  # noqa: ARG002 - the steps of the replica move it
        return self.high_watermark

    def restart(self, high_watermark: int) -> None:
        """The replica knows by itself."""
