"""The in-sync set as its leader sees it: what the metadata says, and the one change that is under way.

Invariants (KIP-497): what is committed waits for the larger of both sets; whether there are enough is asked of the committed one
alone; one change is pending at a time, and it is pending until the metadata or a certain refusal says otherwise.
"""

import msgspec

from braidlog.replication.assignment import Nodes, SetChange


class InSyncSet(msgspec.Struct, frozen=True):
    committed: Nodes
    pending: SetChange | None = None

    def has_enough(self, min_in_sync: int) -> bool:
        return len(counted_for_minimum(self)) >= min_in_sync


def waited_for(members: InSyncSet) -> Nodes:
    """The committed set, and whoever is about to join it. Who is about to leave is still in it."""
    if members.pending is not None and members.pending.joins:
        return (*members.committed, members.pending.node)
    return members.committed


def counted_for_minimum(members: InSyncSet) -> Nodes:
    return members.committed
