"""A partition moves to other nodes: they are added, fetch their way into the in-sync set, and then take over in one entry.

Until then minimum and elections go by old and added replicas together. A cancel is the same entry the other way.
"""

from braidlog.replication.assignment import Assignment, Nodes, Registered
from braidlog.replication.election import may_lead


def reassign(known: Assignment, target: Nodes) -> Assignment:
    """Begin to move to `target`, the preferred leader first; also from the middle of another move."""
    assert target
    original = tuple(node for node in known.replicas if node not in known.adding)
    removing = tuple(node for node in known.replicas if node not in target)
    adding = tuple(node for node in target if node not in original)
    replicas = target + removing
    if (replicas, adding, removing) == (known.replicas, known.adding, known.removing):
        return known
    return known.changed(replicas=replicas, adding=adding, removing=removing)


def finish(known: Assignment, nodes: Registered, min_in_sync: int) -> Assignment:
    """Swap, if everyone who is added is in the committed set; unchanged if it is too early."""
    if not (known.adding or known.removing) or any(node not in known.in_sync for node in known.adding):
        return known
    return _cut_to(known, tuple(node for node in known.replicas if node not in known.removing), nodes, min_in_sync)


def cancel(known: Assignment, nodes: Registered, min_in_sync: int) -> Assignment:
    """Back to the nodes before the move; unchanged if too few of them are in sync now."""
    if not (known.adding or known.removing):
        return known
    return _cut_to(known, tuple(node for node in known.replicas if node not in known.adding), nodes, min_in_sync)


def _cut_to(known: Assignment, replicas: Nodes, nodes: Registered, min_in_sync: int) -> Assignment:
    """One entry: replicas, sets and, if it must, the leader with a new epoch."""
    in_sync = tuple(node for node in replicas if node in known.in_sync)
    if len(in_sync) < min(min_in_sync, len(replicas)):
        # Whoever would go may be eligible, and have what one lost disk takes from the rest.
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
        return known.changed(**fields)
    if known.leader in replicas:
        # A new epoch all the same: what a node said of the copy that it removes now must not count when it comes back.
        return known.led_by(known.leader, **fields)
    candidates = may_lead(nodes, in_sync)
    return known.led_by(candidates[0], **fields) if candidates else known
