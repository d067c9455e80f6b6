"""State of a replica between two steps, as values that can be compared, hashed and printed."""

import msgspec

from braidlog.replication.assignment import Assignment, InSyncSetChange, Nodes
from braidlog.replication.log_summary import LogSummary
from braidlog.replication.messages import Assigned, Fetch, Reach
from braidlog.replication.ready import Ready


class InSyncSet(msgspec.Struct, frozen=True):
    committed: Nodes
    pending: InSyncSetChange | None = None

    def has_enough(self, min_in_sync: int) -> bool:
        return len(counted_for_minimum(self)) >= min_in_sync


def waited_for(members: InSyncSet) -> Nodes:
    """The committed set plus a replica that is about to join. A replica about to leave still belongs to it."""
    if members.pending is not None and members.pending.joins:
        return (*members.committed, members.pending.node)
    return members.committed


def counted_for_minimum(members: InSyncSet) -> Nodes:
    return members.committed


UNKNOWN_END = -1
UNREGISTERED = 1 << 62
"""The incarnation of a replica before its node is registered; no metadata entry can name it."""
LAG_MS_MAX = 10_000
FETCH_WAIT_MS_MAX = 500
"""How long the leader holds a fetch from a caught-up follower."""
QUIET_WAIT_MS_MAX = 2_000
"""The same while no client waits for followers. Fetches also show that followers are alive, so at most a quarter of
`lag_ms_max`.
"""
WAITING_MAX = 10_000
"""Maximum number of waiting appends, deletions and reads per partition."""


class Progress(msgspec.Struct, frozen=True):
    """A follower's progress, as its leader sees it in this epoch."""

    node: int
    incarnation: int | None
    end: int = UNKNOWN_END
    """The follower holds everything below, durably if the topic requires it. Unknown until its first fetch in this
    epoch.
    """
    start: int = 0
    caught_up_ms: int = 0
    """When the follower last held the complete log of that time."""
    asked_ms: int = 0
    leader_end: int = 0
    """The leader's log end at the follower's last fetch."""
    watermark_sent: int = UNKNOWN_END
    round_sent: int = 0
    round: int = 0
    """The latest round that the follower confirmed: it followed this leader after that round began."""
    parked: Fetch | None = None
    """A fetch without a response yet, because nothing was written since."""
    parked_ms: int = 0
    """When the parked fetch first arrived; an identical repeat keeps this time."""


class ExternalFollower(msgspec.Struct, frozen=True):
    """A follower outside the metadata, known by name. `end` is the next offset that it requested."""

    node: str
    end: int = 0
    in_sync: bool = False
    asked_ms: int = 0


class Waiter(msgspec.Struct, frozen=True):
    """A caller that waits until everything below `end` is committed, or safe on this node if that suffices."""

    token: int
    end: int
    needs_all: bool = True
    reach: Reach = Reach.IN_SYNC
    in_sync_min: int = 0


class Read(msgspec.Struct, frozen=True):
    """A reader that receives `end` once the leader has confirmed that it led when the read arrived."""

    token: int
    end: int
    round: int
    """This round began at or after the read. A follower that confirms it had not applied another election before the
    read.
    """
    reach: Reach
    is_settled: bool = False
    """The in-sync set has confirmed; the other replicas have not."""


class Leader(msgspec.Struct, frozen=True):
    start: int
    """The log offset where this epoch starts."""
    members: InSyncSet
    followers: tuple[Progress, ...]
    external: tuple[ExternalFollower, ...] = ()
    has_begun: bool = False
    """Whether the epoch is durable. Before that, nothing is written and no client is served."""
    waiting: tuple[Waiter, ...] = ()
    deleting: tuple[Waiter, ...] = ()
    reads: tuple[Read, ...] = ()
    round: int = 0
    """Grows when a read arrives and the current round was already sent; concurrent reads share a round."""

    def progress(self, node: int) -> Progress | None:
        return next((each for each in self.followers if each.node == node), None)

    def with_progress(self, progress: Progress) -> "Leader":
        followers = tuple(progress if each.node == progress.node else each for each in self.followers)
        return msgspec.structs.replace(self, followers=followers)


class Follower(msgspec.Struct, frozen=True):
    leader: int
    agrees: bool = False
    """Whether the leader of this epoch has confirmed that this log is a prefix of its own."""
    asked: Fetch | None = None
    """The fetch in flight; only its response counts."""
    corrupt_answers: int = 0
    round: int = 0
    """The round in the leader's last response in this epoch."""


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """Complete state of a replica. A starting node creates one from its log, with `epoch` 0 and no role."""

    node: int
    incarnation: int
    log: LogSummary
    watermark: int = 0
    """The last known high watermark: read from beside the log, then learned from the leader or the followers. The log
    end alone never sets it.
    """
    flush_on_ack: bool = True
    is_watermark_urgent: bool = True
    """Whether the leader sends a new high watermark to followers immediately. Otherwise it goes with the next records
    or the next tick.
    """
    lag_ms_max: int = LAG_MS_MAX
    """The leader proposes to remove a follower from the in-sync set that was not caught up for this time."""
    epoch: int = 0
    """The latest leader epoch that this incarnation joined."""
    assigned: Assigned | None = None
    is_damaged: bool = False
    """This copy is unreadable or read-only. It counts for nothing, and is copied again once the metadata permits it."""
    role: Leader | Follower | None = None
    external: tuple[ExternalFollower, ...] = ()
    """External followers that counted when this replica last led on a single node."""

    @property
    def assignment(self) -> Assignment:
        assert self.assigned is not None
        return self.assigned.assignment

    @property
    def min_in_sync(self) -> int:
        return 1 if self.assigned is None else self.assigned.min_in_sync

    def now(self, **fields: object) -> "Replica":
        return msgspec.structs.replace(self, **fields)

    def registered_as(self, incarnation: int) -> "Replica":
        """The state after the node was fenced and registered again: a new incarnation over the same log."""
        return self.now(incarnation=incarnation, epoch=0, assigned=None, role=None)


def opened(node: int, incarnation: int, log: LogSummary, saved_watermark: int, *, flush_on_ack: bool) -> Replica:
    """A replica over a newly opened log. Records above the saved high watermark may or may not be committed."""
    watermark = first_watermark(log, saved_watermark)
    return Replica(node=node, incarnation=incarnation, log=log, watermark=watermark, flush_on_ack=flush_on_ack)


def first_watermark(log: LogSummary, saved: int) -> int:
    return min(saved, log.end)


Stepped = tuple[Replica, Ready]


def counted_end(replica: Replica) -> int:
    """How far this node's copy counts: the durable end if the topic requires a sync, else the log end."""
    return replica.log.durable if replica.flush_on_ack else replica.log.end
