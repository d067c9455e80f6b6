"""Nodes of a cluster and the partitions they replicate, as the metadata has them: what makes sense, and what it changes.

Knows: registrations, fences, changes of sets and leaders, each fenced by the epochs that the proposer knew. Refuses to know: who
proposes, and when. Pure: `replication/` says what a registration, an election, a change of the set makes of an assignment.
"""

import msgspec

from braidlog.cluster import events as e
from braidlog.model.errors import BrokerError, Reason
from braidlog.replication import assignment as sets
from braidlog.replication import election, registration
from braidlog.replication.assignment import Assignment, Node
from braidlog.replication.controller import Partition, View


class Member(msgspec.Struct, frozen=True):
    """A node as it last registered."""

    registered: registration.Registration
    is_fenced: bool = False
    addresses: dict[str, tuple[str, int]] = {}
    """Host and port of each door, by the protocol's name."""
    rack: str = ""

    @property
    def node(self) -> Node:
        return Node(incarnation=self.registered.incarnation, is_fenced=self.is_fenced)


class Replicated(msgspec.Struct, frozen=True):
    """One partition. `flush_on_ack` as the topic has it."""

    assignment: Assignment
    min_in_sync: int = 1
    flush_on_ack: bool = True


class Membership(msgspec.Struct):
    """The part of the image that is about several nodes."""

    members: dict[str, Member] = {}
    """By number: keys are written in order, which JSON can do with text only."""
    partitions: dict[str, Replicated] = {}

    def copy(self) -> "Membership":
        return Membership(dict(self.members), dict(self.partitions))

    def member(self, node: int) -> Member | None:
        return self.members.get(str(node))

    def nodes(self) -> dict[int, Node]:
        return {int(number): member.node for number, member in self.members.items()}

    def incarnations(self) -> tuple[tuple[int, int], ...]:
        return tuple((number, node.incarnation) for number, node in sorted(self.nodes().items()))

    def view(self, seq: int) -> View:
        """As the controller's steps want it."""
        found = {_key(name): Partition(each.assignment, each.min_in_sync) for name, each in self.partitions.items()}
        return View(seq, self.nodes(), found)


def name_of(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


def _key(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("/")
    return topic, int(number)


# ── Whether an event makes sense now ──────────────────────────────────────────────────────────────────────────────────────────


def check_registration(known: Membership, event: e.RegisterNode) -> None:
    before = known.member(event.node)
    if before is not None and event.incarnation <= before.registered.incarnation:
        raise _stale(f"node {event.node} is registered as incarnation {before.registered.incarnation}")


def check_fence(known: Membership, event: e.FenceNode) -> None:
    member = known.member(event.node)
    if member is None or member.is_fenced or member.registered.incarnation != event.incarnation:
        raise _stale(f"incarnation {event.incarnation} of node {event.node} is not there any more")


def check_assignment(known: Membership, event: e.AssignPartition) -> None:
    there = known.partitions.get(event.name)
    if there is not None and _epochs(there.assignment) != (event.leader_epoch, event.partition_epoch):
        raise _stale(f"{event.name} has changed meanwhile: look again and decide anew")


def check_change(known: Membership, event: e.ChangeSet) -> None:
    there = known.partitions.get(event.name)
    if there is None or not sets.may_change(there.assignment, event.change, known.nodes()):
        raise _stale(f"{event.name} has changed meanwhile: look again and ask again")


def check_resignation(known: Membership, event: e.ResignReplica) -> None:
    there = known.partitions.get(event.name)
    if there is None or there.assignment.leader_epoch != event.leader_epoch:
        raise _stale(f"{event.name} has another leader by now")


def _epochs(known: Assignment) -> tuple[int, int]:
    return known.leader_epoch, known.partition_epoch


def _stale(text: str) -> BrokerError:
    return BrokerError(Reason.STALE_LEADER_EPOCH, text)


# ── What it changes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def register(known: Membership, event: e.RegisterNode) -> None:
    """Its leaderships end in this event; it stays in sync or eligible only where it came back whole."""
    before = known.member(event.node)
    known.members[str(event.node)] = Member(
        registration.Registration(event.incarnation, event.life), addresses=event.addresses, rack=event.rack
    )
    nodes = known.nodes()
    for name, each in known.partitions.items():
        if event.node not in each.assignment.replicas:
            continue
        is_whole = registration.is_whole(
            before.registered if before else None,
            event.life,
            flush_on_ack=each.flush_on_ack,
            is_damaged=name in event.damaged,
        )
        after = election.registered(each.assignment, event.node, nodes, each.min_in_sync, is_whole=is_whole)
        known.partitions[name] = msgspec.structs.replace(each, assignment=after)


def fence(known: Membership, event: e.FenceNode) -> None:
    known.members[str(event.node)] = msgspec.structs.replace(known.members[str(event.node)], is_fenced=True)


def assign(known: Membership, event: e.AssignPartition) -> None:
    there = known.partitions.get(event.name)
    if there is None:
        known.partitions[event.name] = Replicated(event.after, event.min_in_sync, event.flush_on_ack)
    else:
        known.partitions[event.name] = msgspec.structs.replace(there, assignment=event.after)


def change_set(known: Membership, event: e.ChangeSet) -> None:
    there = known.partitions[event.name]
    after = sets.with_change(there.assignment, event.change, there.min_in_sync)
    known.partitions[event.name] = msgspec.structs.replace(there, assignment=after)


def resign(known: Membership, event: e.ResignReplica) -> None:
    there = known.partitions[event.name]
    after = election.resigned(there.assignment, event.node, known.nodes())
    known.partitions[event.name] = msgspec.structs.replace(there, assignment=after)
