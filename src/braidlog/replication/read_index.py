"""Linearizable reads at the leader: before it serves a read, it confirms with its in-sync set, in rounds, that it
still leads.

Why this is sufficient: a new leader was in the set, or became eligible when the set fell below `min_in_sync`. After it
applies its election, it sends no fetch in the old epoch, and it acknowledges nothing before. A fetch names the round
of the last response that the follower received. A round that started after a read arrived proves that the follower was
not elected before that read. So no record outside this log was acknowledged by then. A fetch that was already in
flight names an earlier round and proves nothing.

Invariants: a completed read sees committed records only, the epoch's start included. While the set is no majority or
is below `min_in_sync`, no read completes.
"""

import msgspec

from braidlog.replication.messages import Fetch, Reach
from braidlog.replication.replica_state import Leader, Progress, Read, Replica, waited_for


def with_unsent_round(leader: Leader) -> Leader:
    """Start a round that no follower has received. A round already sent may be confirmed by a fetch from before the
    read.
    """
    if leader.round and all(each.round_sent < leader.round for each in leader.followers):
        return leader
    return msgspec.structs.replace(leader, round=leader.round + 1)


def confirmed_round(progress: Progress, fetch: Fetch) -> int:
    return max(progress.round, fetch.round)


def completed(replica: Replica, leader: Leader) -> tuple[Leader, tuple[Read, ...]]:
    """Split the reads into those that complete now and those that keep waiting."""
    done, waiting = list[Read](), list[Read]()
    for each in leader.reads:
        read = each
        if read.reach is Reach.EVERY and not read.is_settled and is_answered(replica, leader, read):
            # All replicas must learn that the read is committed, which takes another round.
            leader = with_unsent_round(leader)
            read = msgspec.structs.replace(read, round=leader.round, is_settled=True)
        (done if is_answered(replica, leader, read) else waiting).append(read)
    return msgspec.structs.replace(leader, reads=tuple(waiting)), tuple(done)


def is_answered(replica: Replica, leader: Leader, read: Read) -> bool:
    """Whether the replicas that the read currently waits for have confirmed it."""
    if read.is_settled:
        return all(each.round >= read.round and each.end >= read.end for each in leader.followers)
    return is_committed(replica, read) and may_answer(replica, leader) and has_confirmed(leader, read)


def is_committed(replica: Replica, read: Read) -> bool:
    """Whether the log up to the read's end is committed, the epoch's start included: earlier leaders may have
    acknowledged all of it.
    """
    return replica.watermark >= read.end


def may_answer(replica: Replica, leader: Leader) -> bool:
    """Whether no replica outside the in-sync set can be elected, which takes `min_in_sync` members and a majority."""
    return leader.members.has_enough(replica.min_in_sync) and has_majority(replica, leader)


def has_majority(replica: Replica, leader: Leader) -> bool:
    return 2 * len(leader.members.committed) > len(replica.assignment.replicas)


def has_confirmed(leader: Leader, read: Read) -> bool:
    members = waited_for(leader.members)
    return all(each.round >= read.round for each in leader.followers if each.node in members)
