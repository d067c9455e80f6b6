"""Input messages of a partition's replica: from the metadata, its log, other nodes, clients and the clock.

Between nodes a follower fetches and a leader responds. Every response repeats its fetch and counts for that fetch
only. Two equal fetches are interchangeable: within an epoch the leader's log only grows, so both responses are valid.
"""

from enum import Enum, auto

import msgspec

from braidlog.replication.assignment import Assignment, InSyncSetChange


class Refusal(Enum):
    """Why a leader refuses a follower's fetch."""

    FENCED_EPOCH = auto()
    """The fetch is from an earlier epoch; the follower learns the new one from the metadata."""
    UNKNOWN_EPOCH = auto()
    """The fetch is from a later epoch, or this epoch has not started yet; the follower retries later."""
    UNKNOWN_REPLICA = auto()
    """The node holds no replica, or its incarnation is not the registered one (KIP-903)."""


class Reach(Enum):
    """Replicas that a write or read requires beyond the in-sync set."""

    IN_SYNC = auto()
    """No further replica."""
    MAJORITY = auto()
    """The in-sync set is more than half of the assigned replicas."""
    EVERY = auto()
    """Every assigned replica, in sync or not."""


class Batch(msgspec.Struct, frozen=True):
    """Records of one epoch, as opaque data."""

    base: int
    end: int
    epoch: int
    records: object = None
    is_empty: bool = False
    """Compaction removed all of the batch's records; it may cover more offsets than any written batch."""


# ── Between nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Fetch(msgspec.Struct, frozen=True):
    """A follower holds everything below `offset` (durably, if the topic requires it) and requests what follows."""

    node: int
    incarnation: int
    leader: int
    epoch: int
    offset: int
    last_epoch: int
    """The epoch of the follower's last record; -1 if it has none."""
    start: int
    round: int = 0
    """The round of the last response that the follower received from its leader in this epoch (`ReadIndex`)."""


class Fetched(msgspec.Struct, frozen=True):
    """Response: the logs match below the requested offset; these batches follow."""

    question: Fetch
    batches: tuple[Batch, ...]
    watermark: int
    start: int
    common_end: int = 0
    """No assigned replica ends below this offset, so tombstones below it may be removed."""
    round: int = 0
    """The leader's round when it sent this response."""


class Diverging(msgspec.Struct, frozen=True):
    """Response: the logs diverge below the requested offset; in the leader's log `epoch` ended at `end`."""

    question: Fetch
    epoch: int
    end: int


class ResetLog(msgspec.Struct, frozen=True):
    """Response: the follower must reset its log to `start`, the leader's log start."""

    question: Fetch
    start: int


class Refused(msgspec.Struct, frozen=True):
    question: Fetch
    refusal: Refusal
    epoch: int


class Complaint(msgspec.Struct, frozen=True):
    """A follower received a batch with a wrong checksum twice, from this offset on."""

    node: int
    epoch: int
    offset: int


Answer = Fetched | Diverging | ResetLog | Refused


# ── From the metadata ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Assigned(msgspec.Struct, frozen=True):
    """The metadata of this partition as of one entry."""

    assignment: Assignment
    incarnations: tuple[tuple[int, int], ...]
    """Pairs of node and incarnation, for every registered replica."""
    min_in_sync: int = 1
    external: tuple[str, ...] | None = None
    """On a single node, the names of the placed external followers, which count. None: external followers are
    observers.
    """

    def incarnation_of(self, node: int) -> int | None:
        return next((incarnation for each, incarnation in self.incarnations if each == node), None)


class ChangeRefused(msgspec.Struct, frozen=True):
    """A proposed change was definitely not written. Without this message the change stays pending."""

    change: InSyncSetChange


# ── From the log ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class EpochStarted(msgspec.Struct, frozen=True):
    """The epoch start requested by `BeginEpoch` is durable."""

    epoch: int


class Synced(msgspec.Struct, frozen=True):
    """Everything below `end` is durable. `cuts` repeats the value of the `Sync` that requested this."""

    end: int
    cuts: int


class Damaged(msgspec.Struct, frozen=True):
    """This copy is unreadable, or the log stopped after a storage fault."""


class CorruptAnswer(msgspec.Struct, frozen=True):
    """A batch in the response to this fetch had a wrong checksum."""

    question: Fetch


# ── From clients and the clock ────────────────────────────────────────────────────────────────────────────────────────────────


class Append(msgspec.Struct, frozen=True):
    """Append `count` records; the outcome names `token`."""

    token: int
    count: int
    records: object = None
    needs_all: bool = True
    """acks=all; otherwise the durability of the local log suffices."""
    reach: Reach = Reach.IN_SYNC


class Await(msgspec.Struct, frozen=True):
    """Complete `token` once everything below `end` is committed. Used for a duplicate of a batch that is already in
    the log.
    """

    token: int
    end: int
    needs_all: bool = True
    reach: Reach = Reach.IN_SYNC
    in_sync_min: int = 0
    """Minimum number of in-sync replicas, external followers included."""


class ReadIndex(msgspec.Struct, frozen=True):
    """Complete `token` with a log end for a linearizable read: everything acknowledged before this message is below
    it.

    Everything below it is committed. The leader confirms with its in-sync set that it still leads; with `EVERY`, all
    replicas hold the records.
    """

    token: int
    reach: Reach = Reach.MAJORITY


class Withdraw(msgspec.Struct, frozen=True):
    """Cancel the wait of `token`. Written records stay."""

    token: int


class DeleteBelow(msgspec.Struct, frozen=True):
    """Move the log start to `offset`, and complete `token` once every in-sync replica has done so."""

    token: int
    offset: int


class ExternalFetched(msgspec.Struct, frozen=True):
    """A follower outside the metadata fetches from `offset`: it holds everything below."""

    node: str
    offset: int


class SetExternalInSync(msgspec.Struct, frozen=True):
    """An operator sets whether a follower is in sync."""

    node: str
    in_sync: bool


class ExpireExternal(msgspec.Struct, frozen=True):
    """Remove external followers from the in-sync set that have not fetched for `lag_ms_max`."""

    lag_ms_max: int


External = ExternalFetched | SetExternalInSync | ExpireExternal


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


Message = (
    Assigned
    | ChangeRefused
    | EpochStarted
    | Synced
    | Damaged
    | CorruptAnswer
    | Fetch
    | Complaint
    | Fetched
    | Diverging
    | ResetLog
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
