"""External followers: mlog and Flux nodes outside the metadata's replicas that copy a leader's log, known by name.

On a single node the placed followers count: the high watermark waits for those in sync. In a cluster they are
observers that never count, and the leader forgets them when its epoch ends.
"""

from typing import Final

import msgspec

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.names import node_number
from braidlog.replication.messages import Assigned, ExpireExternal, External, ExternalFetched, SetExternalInSync
from braidlog.replication.replica_state import ExternalFollower, Leader, Replica

OBSERVERS_MAX: Final = 32


def placed(assigned: Assigned, known: tuple[ExternalFollower, ...] = ()) -> tuple[ExternalFollower, ...]:
    """The external followers of a leader after this assignment."""
    if assigned.external is None:
        return known
    by_name = {each.node: each for each in known}
    return tuple(by_name.get(node) or ExternalFollower(node) for node in assigned.external)


def counted(replica: Replica, leader: Leader) -> tuple[ExternalFollower, ...]:
    """External followers that are in the in-sync set or may join it."""
    return leader.external if counts(replica) else ()


def counts(replica: Replica) -> bool:
    return replica.assigned is not None and replica.assigned.external is not None


def in_sync_count(replica: Replica, leader: Leader) -> int:
    return len(leader.members.committed) + sum(each.in_sync for each in counted(replica, leader))


def after(replica: Replica, leader: Leader, message: External, now_ms: int) -> Leader:
    """The leader after a message about external followers. Raises `BrokerError` for an invalid claim and then changes
    nothing.
    """
    match message:
        case ExternalFetched():
            return fetched(replica, leader, message, now_ms)
        case SetExternalInSync():
            return set_in_sync(replica, leader, message)
        case ExpireExternal():
            return expire_followers(replica, leader, message, now_ms)


def fetched(replica: Replica, leader: Leader, message: ExternalFetched, now_ms: int) -> Leader:
    """Record a fetch: the follower holds everything below the requested offset."""
    node, offset = message.node, message.offset
    known = next((each for each in leader.external if each.node == node), None)
    if known is None and counts(replica):
        raise unknown(node)
    if offset > replica.log.end:
        raise BrokerError(
            Reason.OFFSET_OUT_OF_RANGE,
            f"replica {node[:60]!r} claims offset {offset}, the leader ends at {replica.log.end}",
        )
    if counts(replica):
        # A follower that lost committed records (a new disk, KIP-903) does not count until it has them again.
        is_in_sync = known is not None and known.in_sync and offset >= replica.watermark
        found = ExternalFollower(node, offset, in_sync=is_in_sync or offset == replica.log.end, asked_ms=now_ms)
        return _with(leader, tuple(found if each.node == node else each for each in leader.external))
    others = tuple(each for each in leader.external if each.node != node)
    if node_number(node) in replica.assignment.replicas:
        return _with(leader, others)
    return _with(leader, (*others, ExternalFollower(node, offset))[-OBSERVERS_MAX:])


def set_in_sync(replica: Replica, leader: Leader, message: SetExternalInSync) -> Leader:
    """Set whether a follower is in sync. Raises `BrokerError` for a false claim. Cluster nodes join and leave the set
    automatically.
    """
    node, in_sync = message.node, message.in_sync
    number = node_number(node)
    if not counts(replica) and number in replica.assignment.replicas:
        if (number in replica.assignment.in_sync) != in_sync:
            raise BrokerError(
                Reason.REPLICA_NOT_FOUND,
                f"node {node} is {'not ' * in_sync}in sync: cluster nodes join and leave the set automatically",
            )
        return leader
    known = next((each for each in leader.external if each.node == node), None)
    if known is None:
        raise unknown(node)
    if in_sync and known.end < replica.watermark:
        reason = Reason.OFFSET_OUT_OF_RANGE if counts(replica) else Reason.REPLICA_NOT_FOUND
        raise BrokerError(
            reason,
            f"replica {node[:60]!r} ends at {known.end}, below the high watermark {replica.watermark}: not in sync",
        )
    if counts(replica):
        found = msgspec.structs.replace(known, in_sync=in_sync)
        return _with(leader, tuple(found if each is known else each for each in leader.external))
    return leader if in_sync else _with(leader, tuple(each for each in leader.external if each is not known))


def expire_followers(replica: Replica, leader: Leader, message: ExpireExternal, now_ms: int) -> Leader:
    """Remove followers from the in-sync set that have not fetched for `lag_ms_max`."""
    if not counts(replica):
        return leader
    since = now_ms - message.lag_ms_max
    left = [
        msgspec.structs.replace(each, in_sync=False) if each.in_sync and each.asked_ms < since else each
        for each in leader.external
    ]
    return _with(leader, tuple(left))


def _with(leader: Leader, external: tuple[ExternalFollower, ...]) -> Leader:
    return msgspec.structs.replace(leader, external=external)


def unknown(node: str) -> BrokerError:
    """The error for a follower that was not placed."""
    return BrokerError(Reason.REPLICA_NOT_FOUND, f"node {node[:60]!r} holds no replica of this partition")
