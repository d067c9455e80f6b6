"""Reads from a follower (KIP-392): which replica may serve consumers, and which follower a leader prefers.

Does not handle: racks, ports, records.
Invariants: a follower serves only while it is in sync and its leader has confirmed that its log is a prefix of the
leader's log. A leader sends no consumer to a follower that does not yet know the requested offset to be committed.
"""

from collections.abc import Container

from braidlog.model.errors import Reason
from braidlog.replication.replica_state import Follower, Leader, Replica


def refusal(replica: Replica) -> Reason | None:
    """Why this replica does not serve consumers; None if it does. NOT_LEADER sends the consumer to the leader,
    OFFSET_NOT_AVAILABLE makes it retry.
    """
    match replica.role:
        case Leader():
            return None
        case Follower(agrees=agrees) if replica.node in replica.assignment.in_sync:
            return None if agrees else Reason.OFFSET_NOT_AVAILABLE
    return Reason.NOT_LEADER  # the replica was removed, is damaged, has no leader, or is not in sync


def preferred(replica: Replica, nodes: Container[int], offset: int) -> int | None:
    """The follower among `nodes` with the longest log that can serve `offset`; None if none can, or this node does not
    lead.
    """
    if not isinstance(replica.role, Leader):
        return None
    in_sync = replica.assignment.in_sync
    able = [
        each
        for each in replica.role.followers
        if each.node in nodes and each.node in in_sync and each.start <= offset <= each.watermark_sent
    ]
    return max(able, key=lambda each: (each.end, -each.node)).node if able else None
