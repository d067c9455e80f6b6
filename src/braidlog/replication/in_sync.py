"""The in-sync set in the leader's view: the committed set from the metadata, and one pending change.

Invariants (KIP-497): a commit waits for the larger of both sets. Only the committed set counts for `min_in_sync`. At
most one change is pending, until the metadata or a definite refusal settles it.
"""

import msgspec

from braidlog.replication.assignment import Nodes, SetChange


class InSyncSet(msgspec.Struct, frozen=True):
    committed: Nodes
    pending: SetChange | None = None

    def has_enough(self, min_in_sync: int) -> bool:
        return len(counted_for_minimum(self)) >= min_in_sync


def waited_for(members: InSyncSet) -> Nodes:
    """The committed set plus a replica that is about to join. A replica about to leave still belongs to it."""
    if members.pending is not None and members.pending.joins:
        return (*members.committed, members.pending.node)
    return members.committed


def counted_for_minimum(members: InSyncSet) -> Nodes:
    return members.committed
