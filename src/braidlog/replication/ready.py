"""Effects of a step, as values. The caller with access to disk, network and waiters carries them out.

The order is guaranteed: all of `persist`, then all of `send`, then all of `apply`. A crash between any two effects
must be harmless. A crash cannot separate the step from its state, because the state is only in memory.
"""

import msgspec

from braidlog.model.errors import Reason
from braidlog.replication.assignment import InSyncSetChange, TornEnd
from braidlog.replication.messages import Answer, Batch, Complaint, Fetch


class BeginEpoch(msgspec.Struct, frozen=True):
    """Durably start `epoch` at the log end; answered by `EpochStarted`. Effects of many logs may be combined."""

    epoch: int


class Write(msgspec.Struct, frozen=True):
    """Append a batch without a sync."""

    batch: Batch


class Sync(msgspec.Struct, frozen=True):
    """Make everything below `end` durable; answered by `Synced`. Later messages do not wait for it."""

    end: int
    cuts: int


class Truncate(msgspec.Struct, frozen=True):
    """Truncate the log to `end`, and drop epochs that began there or above. Durable before anything is sent."""

    end: int


class ResetLogTo(msgspec.Struct, frozen=True):
    """Drop the whole log and start it at `offset`. Durable before anything is sent."""

    offset: int


class Resync(msgspec.Struct, frozen=True):
    """Give up this damaged copy and start an empty log. Durable before anything is sent."""


class Trim(msgspec.Struct, frozen=True):
    """Move the log start to `start`."""

    start: int


class CheckFile(msgspec.Struct, frozen=True):
    """Read the stored records from `offset` on; answered by `Damaged` if that fails."""

    offset: int


class Respond(msgspec.Struct, frozen=True):
    """Answer with `Fetched`: the whole batches below `end`, from the one that holds the requested offset."""

    question: Fetch
    end: int
    watermark: int
    start: int
    common_end: int
    round: int = 0


class ProposeChange(msgspec.Struct, frozen=True):
    """Propose an in-sync set change to the metadata. A repeated proposal is written once."""

    change: InSyncSetChange


class Resign(msgspec.Struct, frozen=True):
    """Request in the metadata that this copy leaves all sets and that another replica leads."""

    node: int
    leader_epoch: int


class ReportLogEnd(msgspec.Struct, frozen=True):
    """Report this torn copy's log end to the metadata when no complete copy remains."""

    told: TornEnd


class Done(msgspec.Struct, frozen=True):
    """The condition that `token` waited for is met; `end` is the offset after the last record."""

    token: int
    end: int


class Failed(msgspec.Struct, frozen=True):
    token: int
    reason: Reason


class Watermark(msgspec.Struct, frozen=True):
    """Everything below `offset` is committed: wake readers, and persist the value beside the log from time to time."""

    offset: int


class DiscardAbove(msgspec.Struct, frozen=True):
    """Discard everything computed from records at or above `offset`."""

    offset: int


class LossPossible(msgspec.Struct, frozen=True):
    """After an unclean election, committed records from `offset` to `until` were truncated. Logged as an error."""

    offset: int
    until: int


class UncleanLeader(msgspec.Struct, frozen=True):
    """This copy, the longest remaining one, leads from `offset` on. Acknowledged records may be lost; the caller logs
    an error.
    """

    offset: int


class Stopped(msgspec.Struct, frozen=True):
    """Another process registered this node's number: stop this node."""


Effect = BeginEpoch | Write | Sync | Truncate | ResetLogTo | Resync | Trim | CheckFile
Proposal = ProposeChange | Resign | ReportLogEnd
"""Effects that go to the metadata."""
Send = Fetch | Respond | Answer | Complaint | Proposal
Apply = Done | Failed | Watermark | DiscardAbove | LossPossible | UncleanLeader | Stopped


class Ready(msgspec.Struct, frozen=True):
    """The effects of one step."""

    persist: tuple[Effect, ...] = ()
    """First: effects on the log, in this order."""
    send: tuple[Send, ...] = ()
    """Second: messages to peers and to the metadata. They may rely on everything persisted."""
    apply: tuple[Apply, ...] = ()
    """Last: results for waiters on this node."""

    def then(self, other: "Ready") -> "Ready":
        """Combine two steps into one."""
        return Ready(self.persist + other.persist, self.send + other.send, self.apply + other.apply)


NOTHING = Ready()
