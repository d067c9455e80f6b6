"""Followers outside the metadata's replicas, by name: nodes of mlog and Flux that copy the log from its leader.

A node alone counts those that were placed: the watermark waits for those in sync. Where nodes replicate they are observers:
remembered, and never counted; what is known of observers ends with the leader's epoch.
"""

from typing import Final

import msgspec

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.names import node_number
from braidlog.replication.messages import Assigned, ExpireExternal, External, ExternalFetched, SetExternalInSync
from braidlog.replication.replica_state import ExternalFollower, Leader, Replica

OBSERVERS_MAX: Final = 32


def placed(assigned: Assigned, known: tuple[ExternalFollower, ...] = ()) -> tuple[ExternalFollower, ...]:
    """The external followers of a leader that hears of this assignment."""
    if assigned.external is None:
        return known
    by_name = {each.node: each for each in known}
    return tuple(by_name.get(node) or ExternalFollower(node) for node in assigned.external)


def counted(replica: Replica, leader: Leader) -> tuple[ExternalFollower, ...]:
    """Those that are members of the in-sync set, or may become members."""
    return leader.external if counts(replica) else ()


def counts(replica: Replica) -> bool:
    return replica.assigned is not None and replica.assigned.external is not None


def in_sync_count(replica: Replica, leader: Leader) -> int:
    return len(leader.members.committed) + sum(each.in_sync for each in counted(replica, leader))


def after(replica: Replica, leader: Leader, message: External, now_ms: int) -> Leader:
    """The leader after a message about external followers. Raises what cannot be true, and changes nothing then."""
    match message:
        case ExternalFetched():
            return fetched(replica, leader, message, now_ms)
        case SetExternalInSync():
            return set_in_sync(replica, leader, message)
        case ExpireExternal():
            return expired(replica, leader, message, now_ms)


def fetched(replica: Replica, leader: Leader, message: ExternalFetched, now_ms: int) -> Leader:
    """A follower asks from an offset on: it has everything below."""
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
        # One that lost committed records (a new disk, KIP-903) counts for nothing until it has them again.
        is_in_sync = known is not None and known.in_sync and offset >= replica.watermark
        found = ExternalFollower(node, offset, in_sync=is_in_sync or offset == replica.log.end, asked_ms=now_ms)
        return _with(leader, tuple(found if each.node == node else each for each in leader.external))
    others = tuple(each for each in leader.external if each.node != node)
    if node_number(node) in replica.assignment.replicas:
        return _with(leader, others)
    return _with(leader, (*others, ExternalFollower(node, offset))[-OBSERVERS_MAX:])


def set_in_sync(replica: Replica, leader: Leader, message: SetExternalInSync) -> Leader:
    """Refuse what is not so. Nodes of a cluster join and leave the set by themselves."""
    node, in_sync = message.node, message.in_sync
    number = node_number(node)
    if not counts(replica) and number in replica.assignment.replicas:
        if (number in replica.assignment.in_sync) != in_sync:
            raise BrokerError(
                Reason.REPLICA_NOT_FOUND,
                f"node {node} is {'not ' * in_sync}in sync: the cluster's nodes join and leave the set by themselves",
            )
        return leader
    known = next((each for each in leader.external if each.node == node), None)
    if known is None:
        raise unknown(node)
    if in_sync and known.end < replica.watermark:
        reason = Reason.OFFSET_OUT_OF_RANGE if counts(replica) else Reason.REPLICA_NOT_FOUND
        raise BrokerError(
            reason,
            f"replica {node[:60]!r} has what is below {known.end}; below {replica.watermark} is committed, so it is not in sync",
        )
    if counts(replica):
        found = msgspec.structs.replace(known, in_sync=in_sync)
        return _with(leader, tuple(found if each is known else each for each in leader.external))
    return leader if in_sync else _with(leader, tuple(each for each in leader.external if each is not known))


def expired(replica: Replica, leader: Leader, message: ExpireExternal, now_ms: int) -> Leader:
    """Those that have not asked for so long count no more."""
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
    """The refusal of a follower that was not placed."""
    return BrokerError(Reason.REPLICA_NOT_FOUND, f"node {node[:60]!r} holds no replica of this partition")
