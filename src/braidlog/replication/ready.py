"""What follows from a step, as values: to be carried out by whoever has the disk, the network and the waiters.

The order is the promise: first all of `persist`, then all of `send`, then all of `apply`. A crash between any two of them must be
harmless; a crash cannot come between the step and its state, because the state is in memory only.
"""

import msgspec

from braidlog.model.errors import Reason
from braidlog.replication.assignment import SetChange, TornEnd
from braidlog.replication.messages import Answer, Batch, Complaint, Fetch


class BeginEpoch(msgspec.Struct, frozen=True):
    """Make it durable that this log is in `epoch` from its end on; answered by `EpochBegun`. May be gathered for many logs."""

    epoch: int


class Write(msgspec.Struct, frozen=True):
    """Append a batch. Written, not synced."""

    batch: Batch


class Sync(msgspec.Struct, frozen=True):
    """Make everything below `end` durable; answered by `Synced`. Later messages do not wait for it."""

    end: int
    cuts: int


class Truncate(msgspec.Struct, frozen=True):
    """Cut the log to `end`, and forget epochs that began there or above. Done, durably, before anything is sent."""

    end: int


class RestartAt(msgspec.Struct, frozen=True):
    """Forget the whole log and begin at `offset`. Done, durably, before anything is sent."""

    offset: int


class CopyAnew(msgspec.Struct, frozen=True):
    """Give up this damaged copy and begin an empty log. Done, durably, before anything is sent."""


class Trim(msgspec.Struct, frozen=True):
    """The log begins at `start` now."""

    start: int


class CheckFile(msgspec.Struct, frozen=True):
    """Read what is stored from `offset` on; answered by `Damaged` if it cannot be."""

    offset: int


class Respond(msgspec.Struct, frozen=True):
    """Answer with `Fetched`: the whole batches that hold the offset asked for and what follows, below `end`."""

    question: Fetch
    end: int
    watermark: int
    start: int
    common_end: int
    round: int = 0


class ProposeChange(msgspec.Struct, frozen=True):
    """To the metadata. The same proposal may be sent again; it is written once."""

    change: SetChange


class Resign(msgspec.Struct, frozen=True):
    """To the metadata: this copy is to leave all sets, and somebody else to lead."""

    node: int
    leader_epoch: int


class TellEnd(msgspec.Struct, frozen=True):
    """To the metadata: how far this torn copy reaches, where nobody has a whole one."""

    told: TornEnd


class Done(msgspec.Struct, frozen=True):
    """What `token` waited for has come true; `end` is the offset behind it."""

    token: int
    end: int


class Failed(msgspec.Struct, frozen=True):
    token: int
    reason: Reason


class Watermark(msgspec.Struct, frozen=True):
    """Everything below is committed: wake readers; keep it beside the log now and then."""

    offset: int


class DropAbove(msgspec.Struct, frozen=True):
    """Whatever was computed from records at or above `offset` is void."""

    offset: int


class LossPossible(msgspec.Struct, frozen=True):
    """After an unclean election records were cut that had been committed: from `offset` to `until`. To be said loudly."""

    offset: int
    until: int


class UncleanLeader(msgspec.Struct, frozen=True):
    """This copy, the longest that was left, leads from `offset` on: what was acknowledged last may be lost. To be said loudly."""

    offset: int


class Stopped(msgspec.Struct, frozen=True):
    """This node's number is registered by another process: stop the node."""


Effect = BeginEpoch | Write | Sync | Truncate | RestartAt | CopyAnew | Trim | CheckFile
Proposal = ProposeChange | Resign | TellEnd
"""What goes to the metadata."""
Send = Fetch | Respond | Answer | Complaint | Proposal
Apply = Done | Failed | Watermark | DropAbove | LossPossible | UncleanLeader | Stopped


class Ready(msgspec.Struct, frozen=True):
    """One step's outcome."""

    persist: tuple[Effect, ...] = ()
    """First, in this order, on the log."""
    send: tuple[Send, ...] = ()
    """Second: to peers and to the metadata. What is said here may rely on what was persisted."""
    apply: tuple[Apply, ...] = ()
    """Last: to those who wait on this node."""

    def then(self, other: "Ready") -> "Ready":
        """Both, as one step."""
        return Ready(self.persist + other.persist, self.send + other.send, self.apply + other.apply)


NOTHING = Ready()
