"""Track a node's leadership transfer at shutdown, until the new leaders serve its partitions.

Does not handle: the choice of the new leaders, and timeouts. Invariants: while writes are held, the log gets no new
records. So once all producers have their answers, another node may lead without a doubt about any record. A
partition is transferred when its new leader reports a high watermark at or above the log end at which this node
began to follow. From then on the new leader serves consumers and acknowledges producers.
"""

from collections.abc import Container, Iterable

from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.replication.replica_state import Follower


class LeadershipTransfer:
    """The partitions that this node leads and transfers. Poll `left` until it is empty."""

    def __init__(self, partitions: Iterable[Partition]) -> None:
        self._waiting = [each for each in partitions if each.role is Role.LEADER]
        self._ends: dict[Partition, int] = {}

    def hold(self, names: Container[str]) -> None:
        """Hold writes to the named partitions, which other nodes can lead."""
        for each in self._waiting:
            if str(each) in names:
                each.held_writes.hold()

    @property
    def is_awaited(self) -> bool:
        """Whether producers of held partitions wait for an answer."""
        return any(each.held_writes.is_holding and each.is_awaited for each in self._waiting)

    def release(self) -> None:
        """Accept writes again on the partitions that no other node took over."""
        for each in self._waiting:
            each.held_writes.release()

    def left(self) -> list[Partition]:
        """Return the partitions that are not transferred yet."""
        self._waiting = [each for each in self._waiting if not self._is_over(each)]
        return self._waiting

    def _is_over(self, partition: Partition) -> bool:
        role = partition.replicated.replica.role
        if not isinstance(role, Follower) or not role.agrees:
            return partition.is_gone
        end = self._ends.setdefault(partition, partition.end_offset)
        return partition.high_watermark >= min(end, partition.end_offset)
