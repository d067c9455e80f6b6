"""Leader election of one partition: the order of candidates, and the events that trigger an election.

The preferred in-sync replica leads, else another in-sync replica, else an eligible one. Otherwise the partition stays
offline until one of them returns. If all of them returned torn, the longest log leads, and the election records a
possible loss.
The metadata at the written entry decides which nodes may lead; failure detection only decides when to propose.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from braidlog.replication.assignment import Assignment, Nodes, Registered, TornEnd, left, with_torn_replica


class LogEnd(NamedTuple):
    """Log end of a replica; compared by epoch first."""

    epoch: int
    end: int


def may_lead(nodes: Registered, candidates: Iterable[int]) -> Nodes:
    return tuple(node for node in candidates if (found := nodes.get(node)) is not None and found.may_lead)


def elect(known: Assignment, nodes: Registered) -> Assignment:
    """Elect a new leader by the candidate order, or none. Callers exclude the current leader first if it must leave."""
    in_sync = may_lead(nodes, known.ordered(known.in_sync))
    if in_sync:
        return known.with_leader(in_sync[0])
    eligible = may_lead(nodes, known.ordered(known.eligible))
    if eligible:
        return elect_eligible(known, eligible[0])
    return known if known.leader is None else known.with_leader(None)


def elect_eligible(known: Assignment, node: int) -> Assignment:
    """Elect an eligible replica. The old in-sync set also holds every committed record, so its members become
    eligible.
    """
    others = tuple(each for each in known.in_sync + known.eligible if each != node)
    return known.with_leader(node, in_sync=(node,), eligible=known.ordered(others))


def fenced(known: Assignment, node: int, nodes: Registered, min_in_sync: int) -> Assignment:
    """Remove a dead node, which `nodes` already marks as fenced, from leadership and from every set that has another
    member.
    """
    if known.leader == node:
        others = [each for each in known.in_sync if each != node]
        if may_lead(nodes, others):
            return _merged(known, elect(left(known, node, min_in_sync), nodes))
        return elect(known, nodes)
    return left(known, node, min_in_sync) if known.leader is not None else known


def moved(known: Assignment, nodes: Registered, away_from: int) -> Assignment:
    """Move leadership to another in-sync replica that may lead, if one exists; the sets stay unchanged."""
    for node in may_lead(nodes, known.ordered(known.in_sync)):
        if node != away_from:
            return known.with_leader(node)
    return known


def resigned(known: Assignment, node: int, nodes: Registered) -> Assignment:
    """Remove a replica with a damaged copy from all sets, if another replica can lead.

    The leader epoch always grows: reports about the damaged copy must not count for the copy that replaces it.
    """
    others = may_lead(nodes, [each for each in known.in_sync + known.eligible if each != node])
    if not others or known.leader is None:
        return known
    cleared = with_torn_replica(known, node)
    cleared = cleared.with_changes(torn=tuple(each for each in cleared.torn if each != node))
    return _merged(known, elect(cleared, nodes) if known.leader == node else cleared.with_leader(known.leader))


def registered(known: Assignment, node: int, nodes: Registered, min_in_sync: int, *, is_whole: bool) -> Assignment:
    """Apply a node's start; `nodes` already holds its new incarnation.

    The node's leadership ends in this event: no log is ever led twice in one epoch.
    """
    without_leader = known.with_leader(None) if known.leader == node else known
    if not is_whole or node in known.torn:
        return _merged(known, _elect_other(with_torn_replica(without_leader, node), nodes, node))
    after = _elect_other(without_leader, nodes, node)
    if after.leader is not None:
        after = left(after, node, min_in_sync)
    return _merged(known, after)


def elect_unclean(known: Assignment, ends: dict[int, LogEnd]) -> Assignment:
    """Elect the longest log among the nodes that reported one. Records it lacks are lost; `unclean_epoch` records
    that.
    """
    candidates = known.ordered(tuple(ends))
    assert candidates
    winner = max(candidates, key=lambda node: (ends[node], -known.replicas.index(node)))
    torn = tuple(node for node in known.torn if node != winner)
    return known.with_leader(
        winner, in_sync=(winner,), eligible=(), torn=torn, torn_ends=(), unclean_epoch=known.leader_epoch + 1
    )


def needs_torn_election(known: Assignment) -> bool:
    """Whether no replica surely holds every committed record, because all candidates returned torn."""
    return known.leader is None and not (known.in_sync or known.eligible) and bool(known.torn)


def with_torn_end(known: Assignment, report: TornEnd) -> Assignment:
    """Record a torn replica's log end; unchanged if the partition does not need it or already has it."""
    if not needs_torn_election(known) or report.node not in known.torn or report in known.torn_ends:
        return known
    others = tuple(each for each in known.torn_ends if each.node != report.node)
    return known.with_changes(torn_ends=(*others, report))


def elect_torn(known: Assignment, nodes: Registered, *, waits: bool) -> Assignment:
    """Elect the longest torn log, once all torn replicas reported their end. If it no longer `waits`, the known ends
    suffice.
    """
    if not needs_torn_election(known):
        return known
    there = may_lead(nodes, known.torn)
    ends = {
        each.node: LogEnd(each.epoch, each.end)
        for each in known.torn_ends
        if each.node in there and nodes[each.node].incarnation == each.incarnation
    }
    if not ends or (waits and len(ends) < len(known.torn)):
        return known
    return elect_unclean(known, ends)


def _elect_other(known: Assignment, nodes: Registered, besides: int) -> Assignment:
    """Elect another node in the event that registers this one. The registering node may lead only after it follows the
    metadata log.
    """
    if known.leader is not None:
        return known
    others = {number: node for number, node in nodes.items() if number != besides}
    found = elect(known, others)
    return known if found.leader is None else found


def _merged(before: Assignment, after: Assignment) -> Assignment:
    """Merge several steps into one event: both epochs grow by at most one."""
    if after == before:
        return before
    leader_epoch = before.leader_epoch + (after.leader_epoch > before.leader_epoch)
    return msgspec.structs.replace(after, partition_epoch=before.partition_epoch + 1, leader_epoch=leader_epoch)
