"""Who leads next: the election's order, and the events that make one necessary.

Order: an in-sync replica (the preferred one first), then an eligible one, else nobody: offline until one of them is back. Where
all of them have come back torn, the longest of their logs leads, and says that records may be missing.
Who may lead is what the metadata says at the entry that is written; failure detection only decides when to ask.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from braidlog.replication.assignment import Assignment, Nodes, Registered, TornEnd, left, torn_out


class LogEnd(NamedTuple):
    """How far a replica's log reaches; compared by epoch first."""

    epoch: int
    end: int


def may_lead(nodes: Registered, candidates: Iterable[int]) -> Nodes:
    return tuple(node for node in candidates if (found := nodes.get(node)) is not None and found.may_lead)


def elect(known: Assignment, nodes: Registered) -> Assignment:
    """Another leader, if the order has one; else none. The present leader is not asked: exclude it before, if it must go."""
    in_sync = may_lead(nodes, known.ordered(known.in_sync))
    if in_sync:
        return known.led_by(in_sync[0])
    eligible = may_lead(nodes, known.ordered(known.eligible))
    if eligible:
        return elect_eligible(known, eligible[0])
    return known if known.leader is None else known.led_by(None)


def elect_eligible(known: Assignment, node: int) -> Assignment:
    """It has all that is committed, and so has the old in-sync set: that one becomes eligible."""
    others = tuple(each for each in known.in_sync + known.eligible if each != node)
    return known.led_by(node, in_sync=(node,), eligible=known.ordered(others))


def fenced(known: Assignment, node: int, nodes: Registered, min_in_sync: int) -> Assignment:
    """A node counts as dead (`nodes` says so already): it leads nothing, and leaves every set in which somebody else is left."""
    if known.leader == node:
        others = [each for each in known.in_sync if each != node]
        if may_lead(nodes, others):
            return _merged(known, elect(left(known, node, min_in_sync), nodes))
        return elect(known, nodes)
    return left(known, node, min_in_sync) if known.leader is not None else known


def moved(known: Assignment, nodes: Registered, away_from: int) -> Assignment:
    """Leadership goes to another in-sync member that may lead, if there is one; the sets stay as they are."""
    for node in may_lead(nodes, known.ordered(known.in_sync)):
        if node != away_from:
            return known.led_by(node)
    return known


def resigned(known: Assignment, node: int, nodes: Registered) -> Assignment:
    """A replica whose copy is damaged leaves all sets, if anybody else is eligible. Always another epoch: what it said of
    that copy must not count for the one that takes its place."""
    others = may_lead(nodes, [each for each in known.in_sync + known.eligible if each != node])
    if not others or known.leader is None:
        return known
    cleared = torn_out(known, node)
    cleared = cleared.changed(torn=tuple(each for each in cleared.torn if each != node))
    return _merged(known, elect(cleared, nodes) if known.leader == node else cleared.led_by(known.leader))


def registered(known: Assignment, node: int, nodes: Registered, min_in_sync: int, *, is_whole: bool) -> Assignment:
    """A node has started (`nodes` has its new incarnation). Its leadership ends in this event, whatever it is now:
    no log is ever led twice in one epoch."""
    without_leader = known.led_by(None) if known.leader == node else known
    if not is_whole or node in known.torn:
        return _merged(known, _elect_other(torn_out(without_leader, node), nodes, node))
    after = _elect_other(without_leader, nodes, node)
    if after.leader is not None:
        after = left(after, node, min_in_sync)
    return _merged(known, after)


def elect_unclean(known: Assignment, ends: dict[int, LogEnd]) -> Assignment:
    """The longest log of those that answered leads, and what it does not have is lost: said by `unclean_epoch`."""
    candidates = known.ordered(tuple(ends))
    assert candidates
    winner = max(candidates, key=lambda node: (ends[node], -known.replicas.index(node)))
    torn = tuple(node for node in known.torn if node != winner)
    return known.led_by(
        winner, in_sync=(winner,), eligible=(), torn=torn, torn_ends=(), unclean_epoch=known.leader_epoch + 1
    )


def is_torn_apart(known: Assignment) -> bool:
    """Nobody is left who certainly has all that is committed; those who had it have come back without a proof."""
    return known.leader is None and not (known.in_sync or known.eligible) and bool(known.torn)


def with_torn_end(known: Assignment, told: TornEnd) -> Assignment:
    """What a torn replica says of its log; unchanged where that is not asked for, or known."""
    if not is_torn_apart(known) or told.node not in known.torn or told in known.torn_ends:
        return known
    others = tuple(each for each in known.torn_ends if each.node != told.node)
    return known.changed(torn_ends=(*others, told))


def elect_torn(known: Assignment, nodes: Registered, *, waits: bool) -> Assignment:
    """The longest of the torn logs leads: once all of them are known, or whichever are, if it no longer `waits`."""
    if not is_torn_apart(known):
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
    """In the event that registers a node somebody else may be elected; the node itself only later, when it follows the log."""
    if known.leader is not None:
        return known
    others = {number: node for number, node in nodes.items() if number != besides}
    found = elect(known, others)
    return known if found.leader is None else found


def _merged(before: Assignment, after: Assignment) -> Assignment:
    """One event, however many steps it was made of: both epochs grow by one at most."""
    if after == before:
        return before
    leader_epoch = before.leader_epoch + (after.leader_epoch > before.leader_epoch)
    return msgspec.structs.replace(after, partition_epoch=before.partition_epoch + 1, leader_epoch=leader_epoch)
