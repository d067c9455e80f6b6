"""Metadata changes that one node proposes for the cluster: fencing, leader elections, finished reassignments.

Decides from the metadata that this node applied and its own failure verdicts.
Safety does not need a single controller. Each proposal names the entry that it follows and is computed at exactly that
state; of two such proposals only one is written. The live node with the lowest number proposes first and the others
later, which only avoids duplicate work.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from braidlog.replication.assignment import Assignment, Node, left
from braidlog.replication.control.election import elect, elect_torn, fenced, may_lead, moved, needs_torn_election
from braidlog.replication.control.reassignment import finish
from braidlog.replication.control.swim import Verdict

STAGGER_MS = 150
PROPOSAL_MS_MAX = 250
"""An unanswered proposal is sent again after this time. It names the same preceding entry, so it is written once."""
PARTITIONS_PER_ENTRY_MAX = 3_000
FENCED_AGAIN_MS = 60_000
PENALTY_MS = 10_000
PENALTY_MS_MAX = 160_000
TORN_WAIT_MS = 30_000
"""After this time without a node joining or leaving, an election no longer waits for absent torn replicas."""
PREFERRED_LEADER_DELAY_MS = 300_000
"""Preferred leaders take over again after this time without a node joining or leaving."""

NEVER_MS = 2**62

PartitionKey = tuple[str, int]


class Partition(msgspec.Struct, frozen=True):
    assignment: Assignment
    min_in_sync: int = 1


class View(msgspec.Struct, frozen=True):
    """The metadata as of entry `seq`."""

    seq: int
    nodes: Mapping[int, Node]
    partitions: Mapping[PartitionKey, Partition]


# ── Messages ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Applied(msgspec.Struct, frozen=True):
    view: View
    changed: tuple[PartitionKey, ...] | None = None
    """Partitions that changed or were deleted since the previous view; None means any partition may have changed."""


class NotWritten(msgspec.Struct, frozen=True):
    """The proposal lost the race; the winning entry will be applied first."""

    after: int


class LeaseLost(msgspec.Struct, frozen=True):
    """A node's lease expired, but the node answers pings; `holders` still hold their leases."""

    node: int
    incarnation: int
    holders: tuple[int, ...]


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


ControllerMessage = Applied | Verdict | LeaseLost | NotWritten | Tick


# ── What follows ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class FenceNode(msgspec.Struct, frozen=True):
    node: int
    incarnation: int


class ChangePartition(msgspec.Struct, frozen=True):
    """Has no effect if the partition's epochs changed since the proposal."""

    key: PartitionKey
    leader_epoch: int
    partition_epoch: int
    after: Assignment


class Propose(msgspec.Struct, frozen=True):
    """One entry, to be written directly after entry `after` or not at all."""

    after: int
    events: tuple[FenceNode | ChangePartition, ...]


# ── State ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Suspect(msgspec.Struct, frozen=True):
    node: int
    incarnation: int
    since_ms: int
    holders: tuple[int, ...] | None = None
    """None: the node is dead. Otherwise the node only lost its lease, and its leaderships move to one of these nodes.
    """


class Penalty(msgspec.Struct, frozen=True):
    """The leadership ban of a node that was fenced repeatedly."""

    node: int
    fenced_ms: int
    until_ms: int = 0
    length_ms: int = 0


class PendingProposal(NamedTuple):
    after: int
    sent_ms: int


class Controller(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    view: View | None = None
    suspects: tuple[Suspect, ...] = ()
    penalties: tuple[Penalty, ...] = ()
    in_flight: PendingProposal | None = None
    noticed_ms: int | None = None
    """Since when changes other than for suspects are due."""
    changed_ms: int = 0
    """When a node last joined or left."""
    unseen: tuple[PartitionKey, ...] | None = None
    """Partitions that upkeep must examine; None means all."""
    look_again_ms: int = 0
    """When upkeep must examine all partitions again although the metadata is unchanged."""

    def now(self, **fields: object) -> "Controller":
        return msgspec.structs.replace(self, **fields)


Controlled = tuple[Controller, Propose | None]


def step(controller: Controller, message: ControllerMessage, now_ms: int) -> Controlled:
    match message:
        case Applied():
            controller = _applied(controller, message, now_ms)
        case Verdict(node, incarnation):
            controller = _suspected(controller, Suspect(node, incarnation, now_ms))
        case LeaseLost(node, incarnation, holders):
            controller = _suspected(controller, Suspect(node, incarnation, now_ms, holders))
        case NotWritten(after):
            if controller.in_flight is not None and controller.in_flight.after == after:
                # This view lost: apply the winning entry before computing anything else.
                controller = controller.now(in_flight=PendingProposal(after, now_ms))
            return controller, None
        case Tick():
            pass
    return _proposed(controller, now_ms)


def _applied(controller: Controller, message: Applied, now_ms: int) -> Controller:
    before, view = controller.view, message.view
    if before is not None and view.seq <= before.seq:
        return controller
    changed = before is None or dict(before.nodes) != dict(view.nodes)
    suspects = tuple(each for each in controller.suspects if _is_open(view, each))
    return controller.now(
        view=view,
        suspects=suspects,
        penalties=_penalties(controller, view, now_ms),
        in_flight=None,
        noticed_ms=None,
        changed_ms=now_ms if changed else controller.changed_ms,
        unseen=_unseen(controller, message),
        look_again_ms=0 if changed else controller.look_again_ms,
    )


def _unseen(controller: Controller, message: Applied) -> tuple[PartitionKey, ...] | None:
    if controller.unseen is None or message.changed is None:
        return None
    return tuple(dict.fromkeys((*controller.unseen, *message.changed)))


def _is_open(view: View, suspect: Suspect) -> bool:
    """Whether the suspect is neither fenced nor registered again since the suspicion."""
    node = view.nodes.get(suspect.node)
    if node is None or node.is_fenced or node.incarnation != suspect.incarnation:
        return False
    return suspect.holders is None or any(each.assignment.leader == suspect.node for each in view.partitions.values())


def _suspected(controller: Controller, suspect: Suspect) -> Controller:
    view = controller.view
    if view is None or not _is_open(view, suspect):
        return controller
    others = tuple(each for each in controller.suspects if each.node != suspect.node)
    known = next((each for each in controller.suspects if each.node == suspect.node), None)
    if known is not None and known.holders is None:
        return controller
    return controller.now(suspects=(*others, suspect))


def _penalties(controller: Controller, view: View, now_ms: int) -> tuple[Penalty, ...]:
    """Ban a node that is fenced twice within a minute from leading, each time for twice as long."""
    before = {} if controller.view is None else controller.view.nodes
    found = {each.node: each for each in controller.penalties}
    for number, node in view.nodes.items():
        known = before.get(number)
        if not node.is_fenced or known is None or known.is_fenced:
            continue
        last = found.get(number)
        if last is None or now_ms - last.fenced_ms > max(FENCED_AGAIN_MS, last.length_ms):
            found[number] = Penalty(number, now_ms)
        else:
            length = min(max(last.length_ms * 2, PENALTY_MS), PENALTY_MS_MAX)
            found[number] = Penalty(number, now_ms, now_ms + length, length)
    return tuple(found[number] for number in sorted(found))


# ── Decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _proposed(controller: Controller, now_ms: int) -> Controlled:
    view = controller.view
    if view is None or not _may_propose(controller, view, now_ms):
        return controller, None
    due = tuple(each for each in controller.suspects if now_ms - each.since_ms >= _stagger(controller, view))
    events = tuple(_fail_over(controller, view, due, now_ms)) if due else ()
    if not events:
        if now_ms >= controller.look_again_ms:
            controller = controller.now(unseen=None, look_again_ms=_next_full_check_ms(controller, now_ms))
        changes, waits = _upkeep(controller, view, now_ms)
        if not changes:
            look_again_ms = min(controller.look_again_ms, controller.changed_ms + TORN_WAIT_MS if waits else NEVER_MS)
            return controller.now(noticed_ms=None, unseen=(), look_again_ms=look_again_ms), None
        noticed_ms = now_ms if controller.noticed_ms is None else controller.noticed_ms
        controller = controller.now(noticed_ms=noticed_ms)
        if now_ms - noticed_ms < _stagger(controller, view):
            return controller, None
        events = changes[:PARTITIONS_PER_ENTRY_MAX]
    return controller.now(in_flight=PendingProposal(view.seq, now_ms)), Propose(view.seq, events)


def _next_full_check_ms(controller: Controller, now_ms: int) -> int:
    """When upkeep may find work in an unchanged view: a penalty ends, or the calm period is over."""
    moments = [controller.changed_ms + PREFERRED_LEADER_DELAY_MS, *(each.until_ms for each in controller.penalties)]
    return min((moment for moment in moments if moment > now_ms), default=NEVER_MS)


def _may_propose(controller: Controller, view: View, now_ms: int) -> bool:
    """Whether this node may propose: one proposal at a time, and never while it is fenced."""
    flight = controller.in_flight
    if flight is not None and now_ms - flight.sent_ms < PROPOSAL_MS_MAX:
        return False
    me = view.nodes.get(controller.node)
    return me is not None and not me.is_fenced


def _stagger(controller: Controller, view: View) -> int:
    """Delay before this node proposes: 0 for the lowest live node number, 150 ms more for each following one."""
    away = tuple(each.node for each in controller.suspects if each.holders is None)
    ahead = [number for number, node in view.nodes.items() if not node.is_fenced and number not in away]
    return STAGGER_MS * sum(1 for number in ahead if number < controller.node)


def _fail_over(
    controller: Controller, view: View, due: tuple[Suspect, ...], now_ms: int
) -> Iterator[FenceNode | ChangePartition]:
    """Fence all dead nodes in one entry, then change as many partitions as the entry holds. Upkeep changes the rest."""
    dead = [each for each in due if each.holders is None]
    nodes = dict(view.nodes)
    for each in dead:
        yield FenceNode(each.node, each.incarnation)
        nodes[each.node] = msgspec.structs.replace(nodes[each.node], is_fenced=True)
    leaders = _leaders(controller, nodes, now_ms)
    count = 0
    for key in sorted(view.partitions):
        known = view.partitions[key]
        after = _without(known, due, leaders)
        if after.leader is None:
            after = _without(known, due, nodes)
        if after != known.assignment and count < PARTITIONS_PER_ENTRY_MAX:
            count += 1
            yield _change(key, known.assignment, after)


def _without(known: Partition, due: tuple[Suspect, ...], nodes: Mapping[int, Node]) -> Assignment:
    after = known.assignment
    for each in due:
        if each.holders is None:
            after = fenced(after, each.node, nodes, known.min_in_sync)
    for each in due:
        if each.holders is not None and after.leader == each.node:
            holders = {number: nodes[number] for number in each.holders if number in nodes}
            after = moved(after, holders, each.node)
    return after


def _change(key: PartitionKey, before: Assignment, after: Assignment) -> ChangePartition:
    """Merge all changes of a partition into one, however many nodes died together."""
    once = msgspec.structs.replace(
        after,
        partition_epoch=before.partition_epoch + 1,
        leader_epoch=before.leader_epoch + (after.leader_epoch > before.leader_epoch),
    )
    return ChangePartition(key, before.leader_epoch, before.partition_epoch, once)


def _leaders(controller: Controller, nodes: Mapping[int, Node], now_ms: int) -> dict[int, Node]:
    """Nodes with the banned ones marked as draining. A banned node is elected only if no other candidate exists."""
    barred = tuple(each.node for each in controller.penalties if now_ms < each.until_ms)
    return {
        number: msgspec.structs.replace(node, is_draining=True) if number in barred else node
        for number, node in nodes.items()
    }


def _upkeep(controller: Controller, view: View, now_ms: int) -> tuple[tuple[ChangePartition, ...], bool]:
    """Elect missing leaders, replace leaders that must leave, finish reassignments, restore preferred leaders.

    Also returns whether a partition still waits for torn replicas.
    """
    changes, waits = list[ChangePartition](), False
    nodes = _leaders(controller, view.nodes, now_ms)
    calm_ms = now_ms - controller.changed_ms
    for key in sorted(view.partitions if controller.unseen is None else controller.unseen):
        known = view.partitions.get(key)
        if known is None:
            continue  # its topic was deleted
        after = _maintained(known, nodes, view.nodes, calm_ms)
        if after != known.assignment:
            changes.append(_change(key, known.assignment, after))
        elif needs_torn_election(after):
            waits = waits or calm_ms < TORN_WAIT_MS
    return tuple(changes), waits


def _maintained(known: Partition, leaders: Mapping[int, Node], nodes: Mapping[int, Node], calm_ms: int) -> Assignment:
    """`leaders` marks the nodes that were fenced too often as not electable."""
    before = known.assignment
    if before.leader is None:
        torn = elect_torn(before, nodes, waits=calm_ms < TORN_WAIT_MS)
        return next((after for each in (leaders, nodes) if (after := elect(before, each)).leader is not None), torn)
    leader = leaders.get(before.leader)
    if leader is None or leader.is_fenced:
        after = fenced(before, before.leader, leaders, known.min_in_sync)
        return after if after.leader is not None else fenced(before, before.leader, nodes, known.min_in_sync)
    if leader.is_draining and (after := moved(before, leaders, before.leader)) != before:
        return after
    lost = next((node for node in before.in_sync if node not in nodes or nodes[node].is_fenced), None)
    if lost is not None and len(before.in_sync) > 1:
        return left(before, lost, known.min_in_sync)
    for each in (leaders, nodes):
        if (after := finish(before, each, known.min_in_sync)) != before:
            return after
    preferred = before.replicas[0]
    if (
        calm_ms >= PREFERRED_LEADER_DELAY_MS
        and before.leader != preferred
        and preferred in may_lead(leaders, before.in_sync)
    ):
        return before.with_leader(preferred)
    return before


__all__: Final = [
    "Applied",
    "ChangePartition",
    "Controller",
    "FenceNode",
    "LeaseLost",
    "NotWritten",
    "Partition",
    "Propose",
    "Tick",
    "View",
    "step",
]
