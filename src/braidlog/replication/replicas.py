"""The replicas of one partition as its leader sees them: who is in sync, and what is therefore committed.

Knows: how far each replica has got. Refuses to know: how it got there, where it is, what the records are.
Invariants: the leader is in sync with itself; the high watermark never goes back within an epoch and never passes the slowest
member of the in-sync set; a change of the set is fenced by its version (KIP-497), which never goes back.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from braidlog.model.errors import BrokerError, Reason


class ReplicaFetched(NamedTuple):
    """A follower asks from `offset` on: it has everything below."""

    node: str
    offset: int


class SetInSync(NamedTuple):
    """Someone asks that a follower count, or count no more; with `version`, only if nobody changed the set meanwhile."""

    node: str
    in_sync: bool
    version: int | None = None


class Placed(NamedTuple):
    """Other nodes follow from now on."""

    followers: Iterable[str]
    min_in_sync: int


class Expire(NamedTuple):
    """Who has not fetched for so long counts no more."""

    lag_ms_max: int


Message = ReplicaFetched | SetInSync | Placed | Expire


class LeaderLog(NamedTuple):
    """The leader's own log: where it ends, and how far it counts (what is durable, if that is the promise)."""

    end_offset: int
    counted_offset: int


class Ready(NamedTuple):
    """What follows from a message, in the order in which it is done."""

    changed: tuple[tuple[str, bool], ...]
    """Who came into the in-sync set (True) or left it (False)."""
    high_watermark: int
    """Everything below is committed now."""
    wakes: bool
    """Whether those who wait for the partition have something to look at."""


class Replica(msgspec.Struct):
    """One replica besides the leader. `end_offset` is the next offset it asked for: it has everything below."""

    node: str
    end_offset: int = 0
    in_sync: bool = False
    last_fetch_ms: int = 0


class ReplicaSet:
    """Messages in, `Ready` out; `advance` alone is called for every append, and makes no value of it."""

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
    def observers(self) -> list[Replica]:
        """Those that copy and never count; here every follower does."""
        return []

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
        return self.in_sync_count >= self.min_in_sync

    @property
    def in_sync_count(self) -> int:
        followers = self._followers
        return 1 + sum(each.in_sync for each in followers.values()) if followers else 1

    def step(self, message: Message, log: LeaderLog, now_ms: int) -> Ready:
        """Take a message in; refuse (`BrokerError`) one that cannot be true, and then change nothing."""
        before, watermark = self._members(), self._high_watermark
        match message:
            case ReplicaFetched(node, offset):
                self._fetched(self._find(node), offset, log.end_offset, now_ms)
            case SetInSync(node, in_sync, version):
                self._set_in_sync(self._find(node), in_sync=in_sync, version=version)
            case Placed(followers, min_in_sync):
                self._followers = {node: self._followers.get(node) or Replica(node) for node in followers}
                self.min_in_sync = min_in_sync
                self.version += 1
            case Expire(lag_ms_max):
                for replica in self._followers.values():
                    if replica.in_sync and replica.last_fetch_ms < now_ms - lag_ms_max:
                        self._change(replica, in_sync=False)
        after = self._members()
        changed = tuple(
            (node, node in after) for node in sorted({**before, **after}) if (node in before) != (node in after)
        )
        moved = self.advance(log.counted_offset) != watermark
        return Ready(changed, self._high_watermark, bool(changed) or moved or isinstance(message, Placed))

    def _members(self) -> dict[str, Replica]:
        return {node: replica for node, replica in self._followers.items() if replica.in_sync}

    def _fetched(self, replica: Replica, offset: int, leader_end: int, now_ms: int) -> None:
        if offset > leader_end:
            raise BrokerError(
                Reason.OFFSET_OUT_OF_RANGE,
                f"replica {replica.node} claims offset {offset}, the leader ends at {leader_end}",
            )
        replica.end_offset = offset
        replica.last_fetch_ms = now_ms
        if offset == leader_end:
            self._change(replica, in_sync=True)
        elif offset < self._high_watermark:
            # It lost committed records (a new disk, KIP-903): until it has them again it must not count for anything.
            self._change(replica, in_sync=False)

    def _set_in_sync(self, replica: Replica, *, in_sync: bool, version: int | None) -> None:
        if version is not None and version != self.version:
            raise BrokerError(Reason.STALE_LEADER_EPOCH, f"the in-sync set is at version {self.version}, not {version}")
        if in_sync and replica.end_offset < self._high_watermark:
            raise BrokerError(
                Reason.OFFSET_OUT_OF_RANGE,
                f"replica {replica.node} has what is below {replica.end_offset}; below {self._high_watermark} is committed, "
                "so it is not in sync",
            )
        self._change(replica, in_sync=in_sync)

    def _change(self, replica: Replica, *, in_sync: bool) -> None:
        if replica.in_sync != in_sync:
            replica.in_sync = in_sync
            self.version += 1

    def advance(self, leader_offset: int) -> int:
        """The high watermark, given how far the leader itself may count (what is durable, if that is the promise)."""
        slowest = leader_offset
        for replica in self._followers.values():
            if replica.in_sync and replica.end_offset < slowest:
                slowest = replica.end_offset
        if slowest > self._high_watermark:  # noqa: PLR1730 - for every append: a call less
            self._high_watermark = slowest
        return self._high_watermark

    @property
    def high_watermark(self) -> int:
        """Everything below is committed."""
        return self._high_watermark

    @property
    def common_end(self) -> int:
        """Every replica besides the leader, also one that is away, has asked for everything below."""
        return min((replica.end_offset for replica in self._followers.values()), default=self._high_watermark)

    def restart(self, high_watermark: int) -> None:
        """Begin anew from a known watermark: at opening, after a truncation, in a new epoch."""
        self._high_watermark = high_watermark

    def _find(self, node: str) -> Replica:
        replica = self._followers.get(node)
        if replica is None:
            raise BrokerError(Reason.REPLICA_NOT_FOUND, f"node {node[:60]!r} holds no replica of this partition")
        return replica
