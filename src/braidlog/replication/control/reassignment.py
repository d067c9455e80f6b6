"""Reassign a partition to other nodes: added replicas join the in-sync set, then replace the removed ones in one
entry.

Until then `min_in_sync` and elections count old and added replicas together. A cancel reverts to the old replicas in
one entry.
"""

from braidlog.replication.assignment import Assignment, Nodes, Registered
from braidlog.replication.control.election import may_lead


def reassign(known: Assignment, target: Nodes) -> Assignment:
    """Begin a move to `target`, the preferred leader first. Another move may be in progress."""
    assert target
    original = tuple(node for node in known.replicas if node not in known.adding)
    removing = tuple(node for node in known.replicas if node not in target)
    adding = tuple(node for node in target if node not in original)
    replicas = target + removing
    if (replicas, adding, removing) == (known.replicas, known.adding, known.removing):
        return known
    return known.with_changes(replicas=replicas, adding=adding, removing=removing)


def finish(known: Assignment, nodes: Registered, min_in_sync: int) -> Assignment:
    """Finish the move if every added replica is in the committed in-sync set; unchanged if it is too early."""
    if not (known.adding or known.removing) or any(node not in known.in_sync for node in known.adding):
        return known
    return _cut_to(known, tuple(node for node in known.replicas if node not in known.removing), nodes, min_in_sync)


def cancel(known: Assignment, nodes: Registered, min_in_sync: int) -> Assignment:
    """Return to the replicas from before the move; unchanged if too few of them are in sync now."""
    if not (known.adding or known.removing):
        return known
    return _cut_to(known, tuple(node for node in known.replicas if node not in known.adding), nodes, min_in_sync)


def _cut_to(known: Assignment, replicas: Nodes, nodes: Registered, min_in_sync: int) -> Assignment:
    """Change replicas, sets and, if necessary, leader and epoch in one entry."""
    in_sync = tuple(node for node in replicas if node in known.in_sync)
    if len(in_sync) < min(min_in_sync, len(replicas)):
        # A removed replica may be eligible and hold records that a single disk failure would take from the rest.
        return known
    fields = {
        "replicas": replicas,
        "adding": (),
        "removing": (),
        "in_sync": in_sync,
        "eligible": tuple(node for node in replicas if node in known.eligible),
        "torn": tuple(node for node in replicas if node in known.torn),
    }
    if known.leader is None:
        return known.with_changes(**fields)
    if known.leader in replicas:
        # The epoch still grows: reports about a removed copy must not count when its node returns.
        return known.with_leader(known.leader, **fields)
    candidates = may_lead(nodes, in_sync)
    return known.with_leader(candidates[0], **fields) if candidates else known
