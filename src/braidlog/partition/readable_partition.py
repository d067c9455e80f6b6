"""What readers, pages and metrics ask of a partition on this node.

Knows: what is committed, whom this node serves. Refuses to know: who wrote, and what is asked of the replica.
Invariant: a consumer reads below the high watermark only, and of a follower only what its leader has told it to be committed.
"""

from collections.abc import Sequence

from braidlog.model.errors import BrokerError, NotLeaderError, Reason
from braidlog.partition.hosted_log import HostedLog, Opener, Role
from braidlog.partition.partition_node import PartitionNode
from braidlog.partition.replicated import ReplicatedPartition
from braidlog.replication import follower_reads
from braidlog.replication.messages import Assigned, Message
from braidlog.replication.replica_state import Leader
from braidlog.replication.replicas import Replicas, described
from braidlog.storage.partition import PartitionLog
from braidlog.storage.rest import Rest


class ReadablePartition(HostedLog):
    """A hosted log with its replica."""

    __slots__ = ("_assigned", "_inbox", "_refusal", "_replicated", "node")

    def __init__(self, topic: str, number: int, held: PartitionLog | Rest, opener: Opener, node: PartitionNode) -> None:
        super().__init__(topic, number, held, opener)
        self.node = node
        self._assigned: Assigned | None = None
        self._inbox: list[Message] | None = None
        """What came while an epoch begins, or the log is cut, on a thread: nothing may be written meanwhile."""
        self._refusal: Reason | None = Reason.NOT_LEADER
        """Why consumers are not served here."""
        self._replicated: ReplicatedPartition | None = None
        """None while the log is closed: the only replica leads then."""

    @property
    def replicated(self) -> ReplicatedPartition:
        """The replica; of a log that is open."""
        assert self._replicated is not None, f"the log of {self} is closed"
        return self._replicated

    @property
    def high_watermark(self) -> int:
        """The next offset after the last committed record."""
        replicated = self._replicated
        return self._held.end_offset if replicated is None else replicated.watermark

    @property
    def last_stable_offset(self) -> int:
        held = self._held
        return self.high_watermark if isinstance(held, Rest) else held.stable_below(self.high_watermark)

    @property
    def replicas(self) -> Replicas:
        """The replicas as this node knows them now."""
        replica = None if self._replicated is None else self._replicated.replica
        return described(self._assigned if replica is None else replica.assigned, replica, self.node.name)

    @property
    def is_sole(self) -> bool:
        """Whether this node leads and has the only replica: its log is written then without a message, and no step."""
        replicated = self._replicated
        return (
            replicated is not None
            and replicated.is_sole
            and self._inbox is None
            and not (self.is_gone or self._is_leaving)
        )

    @property
    def is_cutting(self) -> bool:
        """Something is done to the log beside the loop: it is not read meanwhile."""
        return self._inbox is not None

    @property
    def is_settled(self) -> bool:
        """Whether all that earlier leaders have committed is known to be: until then a new one cannot say where readers end."""
        replicated = self._replicated
        role = None if replicated is None else replicated.replica.role
        return not isinstance(role, Leader) or self.high_watermark >= role.start

    def require_settled(self) -> None:
        if not self.is_settled:
            raise BrokerError(
                Reason.OFFSET_NOT_AVAILABLE, f"the new leader of {self} does not know yet what is committed; ask again"
            )

    def require_in_sync(self) -> None:
        """Refuse a consumer that does not insist on the leader, unless this replica may serve it."""
        self.require_there()
        if self._refusal is Reason.NOT_LEADER:
            raise NotLeaderError(
                self.topic, self.number, f"this node neither leads {self} nor follows it in sync: read from its leader"
            )

    def lag(self, offset: int) -> BrokerError | None:
        """A follower has what its leader has told it to be committed, and is not read while its log may be cut."""
        if self.role is Role.LEADER or (
            self._refusal is None and self._inbox is None and offset <= self.high_watermark
        ):
            return None
        return BrokerError(
            Reason.OFFSET_NOT_AVAILABLE,
            f"this node follows {self} and has records below {self.high_watermark} now, not yet at {offset}; ask again",
        )

    def preferred_replica(self, nodes: Sequence[int], offset: int) -> int | None:
        return follower_reads.preferred(self.replicated.replica, nodes, offset)
