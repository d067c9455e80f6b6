"""Consumers that read from a follower (KIP-392): who may serve them, and whom a leader sends them to. Pure.

Knows: what a replica knows of itself and of its followers. Refuses to know: racks, nodes' ports, records.
Invariant: a follower serves only while it is a member of the in-sync set whose log its leader has found to be a beginning of its
own; a leader sends nobody to a follower that it has not told everything below the wanted offset to be committed.
"""

from collections.abc import Container

from braidlog.model.errors import Reason
from braidlog.replication.replica_state import Follower, Leader, Replica


def refusal(replica: Replica) -> Reason | None:
    """Why consumers are not served here: they are to go back to the leader (NOT_LEADER), or to wait; None if they are."""
    match replica.role:
        case Leader():
            return None
        case Follower(agrees=agrees) if replica.node in replica.assignment.in_sync:
            return None if agrees else Reason.OFFSET_NOT_AVAILABLE
    return Reason.NOT_LEADER  # it holds none any more, is damaged, has no leader, or lags


def preferred(replica: Replica, nodes: Container[int], offset: int) -> int | None:
    """The follower among `nodes` that can serve from `offset` on, and has most; None if there is none, or we do not lead."""
    if not isinstance(replica.role, Leader):
        return None
    in_sync = replica.assignment.in_sync
    able = [
        each
        for each in replica.role.followers
        if each.node in nodes and each.node in in_sync and each.start <= offset <= each.watermark_sent
    ]
    return max(able, key=lambda each: (each.end, -each.node)).node if able else None
