"""The assignment of one partition in the cluster metadata, and the in-sync set changes that its leader may request.

An assignment holds the in-sync set, the eligible leader replicas (KIP-966) and the torn replicas.
Invariants: in_sync, eligible and torn are disjoint subsets of replicas. Eligible replicas exist only while in_sync is
smaller than `min_in_sync`. leader_epoch grows whenever the leader changes, partition_epoch with every change.
"""

from collections.abc import Mapping

import msgspec

Nodes = tuple[int, ...]


class TornEnd(msgspec.Struct, frozen=True, array_like=True):
    """Log end of a torn replica, reported by one incarnation of its node."""

    node: int
    incarnation: int
    epoch: int
    end: int


class Assignment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One partition's entry in the metadata."""

    replicas: Nodes
    """The preferred leader comes first. During a reassignment: the old replicas, then the added ones."""
    in_sync: Nodes
    """These replicas hold every committed record, and the next commit waits for them."""
    leader: int | None
    leader_epoch: int = 1
    partition_epoch: int = 0
    eligible: Nodes = ()
    """Replicas that left the in-sync set with a complete log after it fell below `min_in_sync`. Nothing was committed
    since, so they hold every committed record.
    """
    torn: Nodes = ()
    """Replicas that were in sync or eligible, and restarted without proof that their log is complete."""
    torn_ends: tuple[TornEnd, ...] = ()
    """Log ends reported by torn replicas when no complete replica remains; the longest log becomes leader."""
    adding: Nodes = ()
    removing: Nodes = ()
    last_leader: int | None = None
    unclean_epoch: int = 0
    """The latest leader epoch that may have lost committed records; 0 if none did."""

    @property
    def is_whole(self) -> bool:
        """Whether the partition has a leader and all of its replicas are in sync."""
        return self.leader is not None and len(self.in_sync) == len(self.replicas)

    def with_changes(self, **fields: object) -> "Assignment":
        return msgspec.structs.replace(self, partition_epoch=self.partition_epoch + 1, **fields)

    def with_leader(self, leader: int | None, **fields: object) -> "Assignment":
        """Set another leader, or none, and start a new leader epoch."""
        return self.with_changes(
            leader=leader,
            leader_epoch=self.leader_epoch + 1,
            last_leader=self.last_leader if self.leader is None else self.leader,
            **fields,
        )

    def ordered(self, nodes: Nodes) -> Nodes:
        return tuple(node for node in self.replicas if node in nodes)


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a registered node that partition decisions need."""

    incarnation: int
    """Sequence number of the metadata entry that registered the node."""
    is_fenced: bool = False
    is_draining: bool = False

    @property
    def may_lead(self) -> bool:
        return not (self.is_fenced or self.is_draining)


Registered = Mapping[int, Node]


class InSyncSetChange(msgspec.Struct, frozen=True):
    """A leader's request to add a follower to the in-sync set or remove it, fenced by the epochs the leader knew
    (KIP-497).
    """

    node: int
    joins: bool
    incarnation: int
    leader_epoch: int
    partition_epoch: int


def may_change(known: Assignment, change: InSyncSetChange, nodes: Registered) -> bool:
    """Whether the change is valid in this state of the metadata. Check it only where the entry is written, never
    earlier.
    """
    if not is_current(known, change):
        return False
    if not change.joins:
        return change.node in known.in_sync and len(known.in_sync) > 1 and change.node != known.leader
    node = nodes.get(change.node)
    return (
        change.node in known.replicas
        and change.node not in known.in_sync
        and node is not None
        and node.may_lead
        and node.incarnation == change.incarnation
    )


def is_current(known: Assignment, change: InSyncSetChange) -> bool:
    return (change.leader_epoch, change.partition_epoch) == (known.leader_epoch, known.partition_epoch)


def with_change(known: Assignment, change: InSyncSetChange, min_in_sync: int) -> Assignment:
    if change.joins:
        return joined(known, change.node, min_in_sync)
    return left(known, change.node, min_in_sync)


def joined(known: Assignment, node: int, min_in_sync: int) -> Assignment:
    """Add a node that has caught up to the in-sync set. The node is then neither eligible nor torn."""
    in_sync = known.ordered((*known.in_sync, node))
    return known.with_changes(
        in_sync=in_sync,
        eligible=_still_eligible(_without(known.eligible, node), in_sync, min_in_sync),
        torn=_without(known.torn, node),
    )


def left(known: Assignment, node: int, min_in_sync: int) -> Assignment:
    """Remove a node with a complete log from the in-sync set. The last member stays: no other replica holds every
    committed record.
    """
    in_sync = _without(known.in_sync, node)
    if not in_sync or node not in known.in_sync:
        return known
    eligible = known.eligible
    if len(in_sync) < min_in_sync:
        eligible = known.ordered((*known.eligible, node))
    return known.with_changes(in_sync=in_sync, eligible=eligible)


def with_torn_replica(known: Assignment, node: int) -> Assignment:
    """Mark a node's log as incomplete. The node leaves the in-sync and eligible sets, even as their last member."""
    if node not in known.in_sync + known.eligible:
        return known
    return known.with_changes(
        in_sync=_without(known.in_sync, node),
        eligible=_without(known.eligible, node),
        torn=known.ordered((*known.torn, node)),
    )


def with_min_in_sync(known: Assignment, min_in_sync: int) -> Assignment:
    """Apply a change of the topic's `min_in_sync`."""
    eligible = _still_eligible(known.eligible, known.in_sync, min_in_sync)
    return known if eligible == known.eligible else known.with_changes(eligible=eligible)


def _still_eligible(eligible: Nodes, in_sync: Nodes, min_in_sync: int) -> Nodes:
    """With enough members in sync the high watermark advances again, so replicas outside the set miss new commits."""
    return () if len(in_sync) >= min_in_sync else eligible


def _without(nodes: Nodes, node: int) -> Nodes:
    return tuple(each for each in nodes if each != node)
