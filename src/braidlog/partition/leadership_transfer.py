"""What a node led when it began to leave, until the new leaders serve it.

Knows: which producers wait for an answer; from the replica here, which follows by then, how far the new leader's watermark is.
Refuses to know: who is to lead, how long is waited. Invariants: while writes are held nothing new is in the log, so that once all
who wait are answered another may lead and nobody is in doubt; a partition is handed over when its new leader has told of a
watermark at or above all that was in the log here when it began to follow: from then on that leader answers where readers end,
and acknowledges.
"""

from collections.abc import Container, Iterable

from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.replication.replica_state import Follower


class LeadershipTransfer:
    """Ask `left` until nothing is."""

    def __init__(self, partitions: Iterable[Partition]) -> None:
        self._waiting = [each for each in partitions if each.role is Role.LEADER]
        self._ends: dict[Partition, int] = {}

    def hold(self, names: Container[str]) -> None:
        """Let writes to those of them wait that others can lead, by name."""
        for each in self._waiting:
            if str(each) in names:
                each.held_writes.hold()

    @property
    def is_awaited(self) -> bool:
        """Whether producers of what is held wait for an answer."""
        return any(each.held_writes.is_holding and each.is_awaited for each in self._waiting)

    def release(self) -> None:
        """Those that nobody took over are written to again."""
        for each in self._waiting:
            each.held_writes.release()

    def left(self) -> list[Partition]:
        """What is not handed over yet."""
        self._waiting = [each for each in self._waiting if not self._is_over(each)]
        return self._waiting

    def _is_over(self, partition: Partition) -> bool:
        role = partition.replicated.replica.role
        if not isinstance(role, Follower) or not role.agrees:
            return partition.is_gone
        end = self._ends.setdefault(partition, partition.end_offset)
        return partition.high_watermark >= min(end, partition.end_offset)
