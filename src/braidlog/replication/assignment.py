"""Who holds one partition, as all nodes agree on it; and the changes of its in-sync set that a leader may ask for.

Knows: the in-sync set, the eligible replicas (KIP-966), the torn ones. Refuses to know: how far anybody's log reaches.
Invariants: in_sync, eligible and torn are parts of replicas and have no node in common; there are eligible replicas only while
in_sync is smaller than `min_in_sync`; leader_epoch grows whenever the leader changes, partition_epoch with every change.
"""

from collections.abc import Mapping

import msgspec

Nodes = tuple[int, ...]


class TornEnd(msgspec.Struct, frozen=True, array_like=True):
    """How far the log of a torn replica reaches, as that incarnation of its node found it."""

    node: int
    incarnation: int
    epoch: int
    end: int


class Assignment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One partition's entry in the metadata."""

    replicas: Nodes
    """The preferred leader first. While it is being reassigned: the old ones, then those that are added."""
    in_sync: Nodes
    """They have all that is committed, and what is committed next waits for them."""
    leader: int | None
    leader_epoch: int = 1
    partition_epoch: int = 0
    eligible: Nodes = ()
    """They left the in-sync set whole when it fell below `min_in_sync`: nothing was committed since, so they have all that is."""
    torn: Nodes = ()
    """They were in sync or eligible, and came back without being able to promise that their log is whole."""
    torn_ends: tuple[TornEnd, ...] = ()
    """What the torn ones have said of themselves, where nobody else is left: the longest will lead."""
    adding: Nodes = ()
    removing: Nodes = ()
    last_leader: int | None = None
    unclean_epoch: int = 0
    """The latest leader epoch that may have lost committed records; 0 if there was none."""

    @property
    def is_whole(self) -> bool:
        """Whether it is led, and all of its replicas are in sync."""
        return self.leader is not None and len(self.in_sync) == len(self.replicas)

    def changed(self, **fields: object) -> "Assignment":
        return msgspec.structs.replace(self, partition_epoch=self.partition_epoch + 1, **fields)

    def led_by(self, leader: int | None, **fields: object) -> "Assignment":
        """Another leader, or none: always another epoch."""
        return self.changed(
            leader=leader,
            leader_epoch=self.leader_epoch + 1,
            last_leader=self.last_leader if self.leader is None else self.leader,
            **fields,
        )

    def ordered(self, nodes: Nodes) -> Nodes:
        return tuple(node for node in self.replicas if node in nodes)


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A registered node, as far as decisions about partitions need it."""

    incarnation: int
    """The number of the metadata entry that registered it."""
    is_fenced: bool = False
    is_draining: bool = False

    @property
    def may_lead(self) -> bool:
        return not (self.is_fenced or self.is_draining)


Registered = Mapping[int, Node]


class SetChange(msgspec.Struct, frozen=True):
    """A leader asks that a follower join or leave the in-sync set; fenced by the epochs that it knew (KIP-497)."""

    node: int
    joins: bool
    incarnation: int
    leader_epoch: int
    partition_epoch: int


def may_change(known: Assignment, change: SetChange, nodes: Registered) -> bool:
    """Whether the change makes sense at this state of the metadata: checked where it is written, never earlier."""
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


def is_current(known: Assignment, change: SetChange) -> bool:
    return (change.leader_epoch, change.partition_epoch) == (known.leader_epoch, known.partition_epoch)


def with_change(known: Assignment, change: SetChange, min_in_sync: int) -> Assignment:
    if change.joins:
        return joined(known, change.node, min_in_sync)
    return left(known, change.node, min_in_sync)


def joined(known: Assignment, node: int, min_in_sync: int) -> Assignment:
    """A node has fetched its way into the set: whatever it was before, it is whole now."""
    in_sync = known.ordered((*known.in_sync, node))
    return known.changed(
        in_sync=in_sync,
        eligible=_still_eligible(_without(known.eligible, node), in_sync, min_in_sync),
        torn=_without(known.torn, node),
    )


def left(known: Assignment, node: int, min_in_sync: int) -> Assignment:
    """A whole node leaves the set. The last one never does: nobody else has everything."""
    in_sync = _without(known.in_sync, node)
    if not in_sync or node not in known.in_sync:
        return known
    eligible = known.eligible
    if len(in_sync) < min_in_sync:
        eligible = known.ordered((*known.eligible, node))
    return known.changed(in_sync=in_sync, eligible=eligible)


def torn_out(known: Assignment, node: int) -> Assignment:
    """A node that is not whole: it is neither in sync nor eligible any more, even if nobody else is."""
    if node not in known.in_sync + known.eligible:
        return known
    return known.changed(
        in_sync=_without(known.in_sync, node),
        eligible=_without(known.eligible, node),
        torn=known.ordered((*known.torn, node)),
    )


def with_min_in_sync(known: Assignment, min_in_sync: int) -> Assignment:
    """The topic's `min_in_sync` has changed."""
    eligible = _still_eligible(known.eligible, known.in_sync, min_in_sync)
    return known if eligible == known.eligible else known.changed(eligible=eligible)


def _still_eligible(eligible: Nodes, in_sync: Nodes, min_in_sync: int) -> Nodes:
    """With enough in sync the watermark moves again, and who is not among them misses what is committed next."""
    return () if len(in_sync) >= min_in_sync else eligible


def _without(nodes: Nodes, node: int) -> Nodes:
    return tuple(each for each in nodes if each != node)
