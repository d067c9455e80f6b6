"""When a leader may answer who reads the latest: it asks its in-sync set, in rounds, whether it still leads.

Knows: who has answered which round. Refuses to know: what is read.
Why it is enough: a new leader is one of the set, or was left eligible when the set fell below `min_in_sync`. It sends no question
in the old epoch once it has applied its election, and acknowledges nothing before. A follower names the round of the last answer
that it had: one begun after a read had come tells that it had not been elected when the read came, so nothing was acknowledged by
then that this log does not hold. A question that was under way meanwhile names an earlier round, and tells nothing.
Invariants: what is told is committed, the epoch's start included; while the set is no majority or too small nobody is told.
"""

import msgspec

from braidlog.replication.in_sync import waited_for
from braidlog.replication.messages import Fetch, Reach
from braidlog.replication.replica_state import Leader, Progress, Read, Replica


def in_new_round(leader: Leader) -> Leader:
    """One that nobody has been sent yet: what has been may be answered by something that was sent before."""
    if leader.round and all(each.round_sent < leader.round for each in leader.followers):
        return leader
    return msgspec.structs.replace(leader, round=leader.round + 1)


def echoed(progress: Progress, fetch: Fetch) -> int:
    return max(progress.round, fetch.round)


def settled(replica: Replica, leader: Leader) -> tuple[Leader, tuple[Read, ...]]:
    """Who may be answered now; the others wait on."""
    done, waiting = list[Read](), list[Read]()
    for each in leader.reads:
        read = each
        if read.reach is Reach.EVERY and not read.is_settled and is_answered(replica, leader, read):
            # All replicas are to know that it is committed: a round of its own tells them so.
            leader = in_new_round(leader)
            read = msgspec.structs.replace(read, round=leader.round, is_settled=True)
        (done if is_answered(replica, leader, read) else waiting).append(read)
    return msgspec.structs.replace(leader, reads=tuple(waiting)), tuple(done)


def is_answered(replica: Replica, leader: Leader, read: Read) -> bool:
    """Whether those have answered whom it waits for now."""
    if read.is_settled:
        return all(each.round >= read.round and each.end >= read.end for each in leader.followers)
    return is_committed(replica, read) and may_answer(replica, leader) and has_confirmed(leader, read)


def is_committed(replica: Replica, read: Read) -> bool:
    """A log that ends where the epoch began has to be committed, too: earlier leaders may have acknowledged all of it."""
    return replica.watermark >= read.end


def may_answer(replica: Replica, leader: Leader) -> bool:
    """Below `min_in_sync` somebody may be elected who is not in the set."""
    return leader.members.has_enough(replica.min_in_sync) and has_majority(replica, leader)


def has_majority(replica: Replica, leader: Leader) -> bool:
    return 2 * len(leader.members.committed) > len(replica.assignment.replicas)


def has_confirmed(leader: Leader, read: Read) -> bool:
    members = waited_for(leader.members)
    return all(each.round >= read.round for each in leader.followers if each.node in members)
