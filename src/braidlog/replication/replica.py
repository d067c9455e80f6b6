"""The replica of one partition on one node: `step(replica, message, now_ms)` returns its next state and the effects.

Invariants: a replica ignores metadata from before its own registration. The high watermark never falls while the node
runs, except after an unclean election. A replica never returns to an ended epoch.
"""

from braidlog.model.errors import Reason
from braidlog.replication import external
from braidlog.replication import follower as following
from braidlog.replication import leader as leading
from braidlog.replication.assignment import Assignment, TornEnd
from braidlog.replication.control.election import with_torn_end
from braidlog.replication.messages import (
    Append,
    Assigned,
    Await,
    ChangeRefused,
    Complaint,
    CorruptAnswer,
    Damaged,
    DeleteBelow,
    Diverging,
    EpochStarted,
    ExpireExternal,
    ExternalFetched,
    Fetch,
    Fetched,
    Message,
    ReadIndex,
    Refusal,
    Refused,
    ResetLog,
    SetExternalInSync,
    Synced,
    Tick,
    Withdraw,
)
from braidlog.replication.ready import NOTHING, Failed, Ready, ReportLogEnd, Resign, Resync, Stopped
from braidlog.replication.replica_state import Follower, Leader, Replica, Stepped

__all__ = ["readable_end", "step"]


def step(replica: Replica, message: Message, now_ms: int) -> Stepped:
    """Apply a message. Pure: equal arguments give equal results."""
    match message:
        case Assigned():
            return _assigned(replica, message, now_ms)
        case Synced():
            return _synced(replica, message)
        case Damaged():
            return _damaged(replica)
        case _ if isinstance(replica.role, Leader):
            return _lead(replica, replica.role, message, now_ms)
        case _ if isinstance(replica.role, Follower):
            return _follow(replica, replica.role, message)
    return replica, _rejected(replica, message)


def readable_end(replica: Replica) -> int:
    """The offset below which readers may read, on a leader and on a follower."""
    return replica.watermark


def _assigned(replica: Replica, message: Assigned, now_ms: int) -> Stepped:
    registered = message.incarnation_of(replica.node)
    if not is_own_registration(replica, registered):
        is_replaced = registered is not None and registered > replica.incarnation
        return replica, Ready(apply=(Stopped(),)) if is_replaced else NOTHING
    assignment, known = message.assignment, replica.assigned
    if known is not None and assignment.partition_epoch < known.assignment.partition_epoch:
        return replica, NOTHING
    replica = replica.now(assigned=message)
    if assignment.leader_epoch == replica.epoch and replica.role is not None:
        if isinstance(replica.role, Leader):
            is_led = assignment.leader == replica.node
            return (leading.reassigned if is_led else leading.deposed)(replica, replica.role, message)
        return replica.now(role=replica.role if replica.node in assignment.replicas else None), NOTHING
    if assignment.leader_epoch <= replica.epoch:
        return following.become_follower(replica, message) if _has_returned(replica, assignment) else (replica, NOTHING)
    ended, over = leading.ended(replica, replica.role) if isinstance(replica.role, Leader) else (replica, NOTHING)
    ended = ended.now(epoch=assignment.leader_epoch, role=None)
    if replica.node not in assignment.replicas or assignment.leader is None:
        return ended, over.then(_torn_end_reported(ended))
    if assignment.leader == replica.node:
        after, ready = leading.become_leader(ended, message, now_ms)
    elif replica.is_damaged:
        after, ready = _resynced(ended, message)
    else:
        after, ready = following.become_follower(ended, message)
    return after, over.then(ready)


def _has_returned(replica: Replica, assignment: Assignment) -> bool:
    """Whether the replica was removed and re-added within one leader epoch.

    The epoch's own leader does not restart in it, and neither does a damaged copy.
    """
    is_led = assignment.leader not in (None, replica.node)
    return (
        assignment.leader_epoch == replica.epoch
        and is_led
        and replica.node in assignment.replicas
        and not replica.is_damaged
    )


def is_own_registration(replica: Replica, registered: int | None) -> bool:
    """Whether the metadata names this incarnation. Earlier metadata would resume an epoch with a shorter log."""
    return registered == replica.incarnation


def _damaged(replica: Replica) -> Stepped:
    """Mark this copy as damaged. A leader becomes read-only until the metadata names another leader."""
    role = replica.role if isinstance(replica.role, Leader) else None
    return replica.now(is_damaged=True, role=role), _resigned(replica)


def _resigned(replica: Replica) -> Ready:
    return Ready(send=(Resign(replica.node, replica.epoch),)) if replica.epoch else NOTHING


def _torn_end_reported(replica: Replica) -> Ready:
    """Report this copy's log end while no complete copy remains, and repeat it until the metadata has it."""
    if replica.assigned is None or replica.is_damaged:
        return NOTHING
    log = replica.log
    torn_end = TornEnd(replica.node, replica.incarnation, log.last_record_epoch, log.end)
    is_news = with_torn_end(replica.assignment, torn_end) != replica.assignment
    return Ready(send=(ReportLogEnd(torn_end),)) if is_news else NOTHING


def _resynced(replica: Replica, message: Assigned) -> Stepped:
    """Replace a damaged copy in an epoch in which it reported nothing and belongs to no set, so its old data does not
    count.
    """
    if replica.node in message.assignment.in_sync + message.assignment.eligible:
        return replica, _resigned(replica)
    empty = replica.now(log=replica.log.reset_to(0), watermark=0, is_damaged=False)
    after, ready = following.become_follower(empty, message)
    return after, Ready((Resync(),)).then(ready)


def _synced(replica: Replica, message: Synced) -> Stepped:
    if message.cuts != replica.log.cuts:
        return replica, NOTHING
    replica = replica.now(log=replica.log.synced(message.end))
    match replica.role:
        case Leader():
            return leading.advanced(replica, replica.role)
        case Follower():
            return following.fetch_request(replica, replica.role)
    return replica, NOTHING


def _lead(replica: Replica, leader: Leader, message: Message, now_ms: int) -> Stepped:
    match message:
        case Fetch():
            return leading.fetched(replica, leader, message, now_ms)
        case EpochStarted():
            return leading.epoch_started(replica, leader, message)
        case ChangeRefused():
            return leading.change_refused(replica, leader, message)
        case Tick():
            return leading.tick(replica, leader, now_ms)
        case Complaint():
            return leading.handle_complaint(replica, leader, message)
    return _serve(replica, leader, message, now_ms)


def _serve(replica: Replica, leader: Leader, message: Message, now_ms: int) -> Stepped:
    match message:
        case Append():
            return leading.append(replica, leader, message)
        case Await():
            return leading.await_commit(replica, leader, message)
        case ReadIndex():
            return leading.read(replica, leader, message)
        case Withdraw(token):
            return leading.cancel_wait(replica, leader, token)
        case DeleteBelow():
            return leading.delete_below(replica, leader, message)
        case ExternalFetched() | SetExternalInSync() | ExpireExternal():
            return leading.advanced(replica, external.after(replica, leader, message, now_ms))
    return replica, NOTHING


def _follow(replica: Replica, follower: Follower, message: Message) -> Stepped:
    match message:
        case Fetched() | Diverging() | ResetLog() | Refused():
            return following.on_fetch_response(replica, follower, message)
        case CorruptAnswer():
            return following.corrupt(replica, follower, message)
        case Tick():
            return following.retry_fetch(replica, follower)
    return replica, _rejected(replica, message)


def _rejected(replica: Replica, message: Message) -> Ready:
    """Reject messages that only a leader can serve."""
    match message:
        case Fetch():
            refusal = Refusal.FENCED_EPOCH if message.epoch < replica.epoch else Refusal.UNKNOWN_EPOCH
            return Ready(send=(Refused(message, refusal, replica.epoch),))
        case Tick():
            return _resigned(replica) if replica.is_damaged else _torn_end_reported(replica)
        case Append(token) | Await(token) | ReadIndex(token) | DeleteBelow(token):
            return Ready(apply=(Failed(token, Reason.NOT_LEADER),))
    return NOTHING
