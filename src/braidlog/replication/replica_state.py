"""What a replica remembers between two steps, as values that can be compared, hashed and printed."""

import msgspec

from braidlog.replication.assignment import Assignment
from braidlog.replication.in_sync import InSyncSet
from braidlog.replication.log_summary import LogSummary
from braidlog.replication.messages import Assigned, Fetch, Reach
from braidlog.replication.ready import Ready

UNKNOWN_END = -1
UNREGISTERED = 1 << 62
"""The incarnation of a replica whose node does not know yet as which it is registered: no metadata can name it."""
LAG_MS_MAX = 10_000
FETCH_WAIT_MS_MAX = 500
"""So long a question of a follower waits that has everything."""
QUIET_WAIT_MS_MAX = 2_000
"""The same while nobody waits for the followers; by asking they tell that they follow, so a quarter of `lag_ms_max` at most."""
WAITING_MAX = 10_000
"""Appends and deletions of one partition that wait for its followers."""


class Progress(msgspec.Struct, frozen=True):
    """A follower, as its leader sees it in this epoch."""

    node: int
    incarnation: int | None
    end: int = UNKNOWN_END
    """It has everything below, durably if the topic says so. Unknown until it has asked in this epoch."""
    start: int = 0
    caught_up_ms: int = 0
    """When it last had all that there was at the time."""
    asked_ms: int = 0
    leader_end: int = 0
    """Where our log ended when it last asked."""
    watermark_sent: int = UNKNOWN_END
    round_sent: int = 0
    round: int = 0
    """The latest round that it has answered: it followed us after we had begun it."""
    parked: Fetch | None = None
    """A question that has no answer yet: nothing was written since."""
    parked_ms: int = 0
    """When it was first asked: asking again in the same words does not make it younger."""


class ExternalFollower(msgspec.Struct, frozen=True):
    """A follower that the metadata does not assign, by name. `end` is the next offset it asked for."""

    node: str
    end: int = 0
    in_sync: bool = False
    asked_ms: int = 0


class Waiter(msgspec.Struct, frozen=True):
    """Who is told once everything below `end` is committed, or safe on this node if that is enough."""

    token: int
    end: int
    needs_all: bool = True
    reach: Reach = Reach.IN_SYNC
    in_sync_min: int = 0


class Read(msgspec.Struct, frozen=True):
    """Who is told `end` once it is certain that we led when he asked."""

    token: int
    end: int
    round: int
    """Begun when he asked or later: whoever has answered it had not applied another leader's election by then."""
    reach: Reach
    is_settled: bool = False
    """The set has answered; what is missing are the other replicas."""


class Leader(msgspec.Struct, frozen=True):
    start: int
    """Where this epoch begins."""
    members: InSyncSet
    followers: tuple[Progress, ...]
    external: tuple[ExternalFollower, ...] = ()
    has_begun: bool = False
    """Whether the epoch is durable: before that nothing is written and nobody is served."""
    waiting: tuple[Waiter, ...] = ()
    deleting: tuple[Waiter, ...] = ()
    reads: tuple[Read, ...] = ()
    round: int = 0
    """Grows when somebody reads and the present one is on its way already: readers share one."""

    def progress(self, node: int) -> Progress | None:
        return next((each for each in self.followers if each.node == node), None)

    def with_progress(self, progress: Progress) -> "Leader":
        followers = tuple(progress if each.node == progress.node else each for each in self.followers)
        return msgspec.structs.replace(self, followers=followers)


class Follower(msgspec.Struct, frozen=True):
    leader: int
    agrees: bool = False
    """Whether the leader of this epoch has found our log to be a beginning of its own."""
    asked: Fetch | None = None
    """The question that is under way; its answer counts, and no other."""
    corrupt_answers: int = 0
    round: int = 0
    """The leader's, by its last answer in this epoch."""


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. A node that starts makes one from its log, with `epoch` 0 and no role."""

    node: int
    incarnation: int
    log: LogSummary
    watermark: int = 0
    """As last known: kept beside the log, then learned from the leader or from the followers. Never the log's end by itself."""
    flush_on_ack: bool = True
    is_watermark_urgent: bool = True
    """Whether followers are told at once of a watermark that has moved. Else with the next records, or by the next tick."""
    lag_ms_max: int = LAG_MS_MAX
    """A follower that has not had all that there was for so long is asked to leave the in-sync set."""
    epoch: int = 0
    """The latest leader epoch that this incarnation has taken part in."""
    assigned: Assigned | None = None
    is_damaged: bool = False
    """This copy cannot be read, or takes no writes: it counts for nothing, and is copied anew once the metadata says so."""
    role: Leader | Follower | None = None
    external: tuple[ExternalFollower, ...] = ()
    """Those that counted when this replica last led, on a node that is alone."""

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
        """The node was taken for dead and registers again: another life, over the same log."""
        return self.now(incarnation=incarnation, epoch=0, assigned=None, role=None)


def opened(node: int, incarnation: int, log: LogSummary, saved_watermark: int, *, flush_on_ack: bool) -> Replica:
    """A replica over a log that was just opened. What is above the kept watermark may be committed or not."""
    watermark = first_watermark(log, saved_watermark)
    return Replica(node=node, incarnation=incarnation, log=log, watermark=watermark, flush_on_ack=flush_on_ack)


def first_watermark(log: LogSummary, saved: int) -> int:
    return min(saved, log.end)


Stepped = tuple[Replica, Ready]


def counted_end(replica: Replica) -> int:
    """How far our own copy counts: what is durable, if that is the topic's promise."""
    return replica.log.durable if replica.flush_on_ack else replica.log.end
