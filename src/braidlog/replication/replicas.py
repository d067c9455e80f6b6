"""The replicas of one partition as its leader sees them: who is in sync, and what is therefore committed.

Knows: how far each replica has got. Refuses to know: how it got there, where it is, what the records are.
Invariants: the leader is in sync with itself; the high watermark never goes back within an epoch and never passes the slowest
member of the in-sync set; a change of the set is fenced by its version (KIP-497), which never goes back.
"""

from collections.abc import Iterable

import msgspec

from braidlog.model.errors import BrokerError, Reason


class Replica(msgspec.Struct):
    """One replica besides the leader. `end_offset` is the next offset it asked for: it has everything below."""

    node: str
    end_offset: int = 0
    in_sync: bool = False
    last_fetch_ms: int = 0


class ReplicaSet:
    """Offsets in, high watermark out."""

    def __init__(self, leader: str, followers: Iterable[str] = (), min_in_sync: int = 1) -> None:
        self.leader = leader
        self.min_in_sync = min_in_sync
        self.version = 0
        self._followers = {node: Replica(node) for node in followers}
        self._high_watermark = 0

    @property
    def followers(self) -> list[Replica]:
        return [self._followers[node] for node in sorted(self._followers)]

    @property
    def in_sync(self) -> list[str]:
        return [self.leader, *(r.node for r in self.followers if r.in_sync)]

    @property
    def replication_factor(self) -> int:
        return 1 + len(self._followers)

    @property
    def is_under_replicated(self) -> bool:
        return len(self.in_sync) < self.replication_factor

    @property
    def has_enough(self) -> bool:
        return len(self.in_sync) >= self.min_in_sync

    def fetched(self, node: str, offset: int, leader_end: int, now_ms: int) -> Replica:
        """A follower asks from `offset` on: it has everything below. One that has caught up is in sync from then on."""
        replica = self._find(node)
        if offset > leader_end:
            raise BrokerError(
                Reason.OFFSET_OUT_OF_RANGE, f"replica {node} claims offset {offset}, the leader ends at {leader_end}"
            )
        replica.end_offset = offset
        replica.last_fetch_ms = now_ms
        if offset == leader_end:
            self._change(replica, in_sync=True)
        elif offset < self._high_watermark:
            # It lost committed records (a new disk, KIP-903): until it has them again it must not count for anything.
            self._change(replica, in_sync=False)
        return replica

    def set_in_sync(self, node: str, *, in_sync: bool, version: int | None = None) -> None:
        """Change the set on request; with `version`, only if nobody changed it meanwhile."""
        if version is not None and version != self.version:
            raise BrokerError(Reason.STALE_LEADER_EPOCH, f"the in-sync set is at version {self.version}, not {version}")
        replica = self._find(node)
        if in_sync and replica.end_offset < self._high_watermark:
            raise BrokerError(
                Reason.OFFSET_OUT_OF_RANGE,
                f"replica {node} has what is below {replica.end_offset}; below {self._high_watermark} is committed, "
                "so it is not in sync",
            )
        self._change(replica, in_sync=in_sync)

    def reshape(self, followers: Iterable[str], min_in_sync: int) -> None:
        """Other nodes follow from now on; those that stay keep their progress, and the version goes on."""
        self._followers = {node: self._followers.get(node) or Replica(node) for node in followers}
        self.min_in_sync = min_in_sync
        self.version += 1

    def _change(self, replica: Replica, *, in_sync: bool) -> None:
        if replica.in_sync != in_sync:
            replica.in_sync = in_sync
            self.version += 1

    def expire(self, before_ms: int) -> list[str]:
        """Take followers that have not fetched since `before_ms` out of the in-sync set."""
        gone = [r for r in self._followers.values() if r.in_sync and r.last_fetch_ms < before_ms]
        for replica in gone:
            self._change(replica, in_sync=False)
        return [replica.node for replica in gone]

    def advance(self, leader_offset: int) -> int:
        """The high watermark, given how far the leader itself may count (what is durable, if that is the promise)."""
        slowest = leader_offset
        for replica in self._followers.values():
            if replica.in_sync and replica.end_offset < slowest:
                slowest = replica.end_offset
        self._high_watermark = max(self._high_watermark, slowest)
        return self._high_watermark

    @property
    def high_watermark(self) -> int:
        """Everything below is committed."""
        return self._high_watermark

    def restart(self, high_watermark: int) -> None:
        """Begin anew from a known watermark: at opening, after a truncation, in a new epoch."""
        self._high_watermark = high_watermark

    def _find(self, node: str) -> Replica:
        replica = self._followers.get(node)
        if replica is None:
            raise BrokerError(Reason.REPLICA_NOT_FOUND, f"node {node[:60]!r} holds no replica of this partition")
        return replica
