"""What the replica of a partition is told: by the metadata, by its own log, by its peers, by clients, by the clock.

Between nodes a follower asks and a leader answers; every answer repeats the question, and counts for that one only. Two
questions with the same words are the same question: within an epoch the leader's log only grows, so both answers are true.
"""

from enum import Enum, auto

import msgspec

from braidlog.replication.assignment import Assignment, SetChange


class Refusal(Enum):
    """Why a question of a follower is not answered."""

    FENCED_EPOCH = auto()
    """It asks in an epoch that is over; it will learn of the new one from the metadata."""
    UNKNOWN_EPOCH = auto()
    """It knows a later epoch than we do, or ours has not begun: it asks again later."""
    UNKNOWN_REPLICA = auto()
    """It holds no replica, or is not the incarnation that is registered (KIP-903)."""


class Reach(Enum):
    """Whom a write, or a read, asks for beside the in-sync set."""

    IN_SYNC = auto()
    """Nobody."""
    MAJORITY = auto()
    """That the set is more than half of the assigned replicas."""
    EVERY = auto()
    """Every assigned replica, in sync or not."""


class Batch(msgspec.Struct, frozen=True):
    """Records of one epoch, opaque."""

    base: int
    end: int
    epoch: int
    records: object = None
    is_empty: bool = False
    """Compaction has removed all of its records; it may cover more offsets than a batch that was written."""


# ── Between nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Fetch(msgspec.Struct, frozen=True):
    """A follower has everything below `offset` (durably, if the topic says so) and asks for what follows."""

    node: int
    incarnation: int
    leader: int
    epoch: int
    offset: int
    last_epoch: int
    """The epoch of its last record; -1 if it has none."""
    start: int
    round: int = 0
    """Of the last answer that it had from its leader in this epoch (`ReadIndex`)."""


class Fetched(msgspec.Struct, frozen=True):
    """The logs agree below the offset that was asked for; here is what follows."""

    question: Fetch
    batches: tuple[Batch, ...]
    watermark: int
    start: int
    common_end: int = 0
    """No assigned replica ends below: tombstones below it may go."""
    round: int = 0
    """The leader's, when it sent this."""


class Diverging(msgspec.Struct, frozen=True):
    """The logs part before the offset that was asked for: in the leader's log `epoch` ended at `end`."""

    question: Fetch
    epoch: int
    end: int


class StartAnew(msgspec.Struct, frozen=True):
    """The leader's log begins beyond what was asked for, at `start`."""

    question: Fetch
    start: int


class Refused(msgspec.Struct, frozen=True):
    question: Fetch
    refusal: Refusal
    epoch: int


class Complaint(msgspec.Struct, frozen=True):
    """A follower got a batch with a wrong checksum twice, from this offset on."""

    node: int
    epoch: int
    offset: int


Answer = Fetched | Diverging | StartAnew | Refused


# ── From the metadata ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Assigned(msgspec.Struct, frozen=True):
    """The metadata of this partition, as of one entry."""

    assignment: Assignment
    incarnations: tuple[tuple[int, int], ...]
    """(node, incarnation) of every replica that is registered."""
    min_in_sync: int = 1
    external: tuple[str, ...] | None = None
    """On a node that is alone, the names of the followers that were placed: they count. None: who copies the log observes."""

    def incarnation_of(self, node: int) -> int | None:
        return next((incarnation for each, incarnation in self.incarnations if each == node), None)


class ChangeRefused(msgspec.Struct, frozen=True):
    """A change that we proposed was certainly not written. Silence is no answer: such a change stays pending."""

    change: SetChange


# ── From the log ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class EpochBegun(msgspec.Struct, frozen=True):
    """`BeginEpoch` is durable."""

    epoch: int


class Synced(msgspec.Struct, frozen=True):
    """Everything below `end` is durable. `cuts` as in the `Sync` that this answers."""

    end: int
    cuts: int


class Damaged(msgspec.Struct, frozen=True):
    """This copy cannot be read, or the log has stopped by a fault."""


class CorruptAnswer(msgspec.Struct, frozen=True):
    """A batch in the answer to this question had a wrong checksum."""

    question: Fetch


# ── From clients and the clock ────────────────────────────────────────────────────────────────────────────────────────────────


class Append(msgspec.Struct, frozen=True):
    """Write `count` records; `token` is named again in the outcome."""

    token: int
    count: int
    records: object = None
    needs_all: bool = True
    """acks=all; else what this log promises by itself is enough."""
    reach: Reach = Reach.IN_SYNC


class Await(msgspec.Struct, frozen=True):
    """Tell `token` once everything below `end` is committed: a duplicate of a batch that is in the log already."""

    token: int
    end: int
    needs_all: bool = True
    reach: Reach = Reach.IN_SYNC
    in_sync_min: int = 0
    """So many must be in sync, external followers among them."""


class ReadIndex(msgspec.Struct, frozen=True):
    """Tell `token` an end of the log by which a reader may be answered who asks now: all that was acknowledged before this is
    below it, and all below it is committed. The set is asked whether it still follows us; with `EVERY`, all replicas have it."""

    token: int
    reach: Reach = Reach.MAJORITY


class Withdraw(msgspec.Struct, frozen=True):
    """Nobody waits for `token` any more: nothing is told to it. What was written stays."""

    token: int


class DeleteBelow(msgspec.Struct, frozen=True):
    """Let the log begin at `offset`, and tell `token` when every in-sync replica does."""

    token: int
    offset: int


class ExternalFetched(msgspec.Struct, frozen=True):
    """A follower that is no node of the metadata asks from `offset` on: it has everything below."""

    node: str
    offset: int


class SetExternalInSync(msgspec.Struct, frozen=True):
    """An administrator says that a follower counts, or does not."""

    node: str
    in_sync: bool


class ExpireExternal(msgspec.Struct, frozen=True):
    """External followers that have not asked for so long count no more."""

    lag_ms_max: int


External = ExternalFetched | SetExternalInSync | ExpireExternal


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


Message = (
    Assigned
    | ChangeRefused
    | EpochBegun
    | Synced
    | Damaged
    | CorruptAnswer
    | Fetch
    | Complaint
    | Fetched
    | Diverging
    | StartAnew
    | Refused
    | Append
    | Await
    | ReadIndex
    | Withdraw
    | DeleteBelow
    | ExternalFetched
    | SetExternalInSync
    | ExpireExternal
    | Tick
)
