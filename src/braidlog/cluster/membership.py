"""Nodes of a cluster in the metadata: registration, fencing, draining, and their effect on topics. Pure."""

from collections.abc import Sequence

import msgspec

from braidlog.cluster.metadata.events import (
    CLUSTER_VERSION,
    FIRST_VERSION,
    DrainNode,
    Event,
    FenceNode,
    RegisterNode,
    version_of,
)
from braidlog.cluster.metadata.topic_state import Topic
from braidlog.model.errors import BrokerError, Reason
from braidlog.replication.assignment import Assignment, Node, Registered
from braidlog.replication.control import election, incarnation


class Member(msgspec.Struct, frozen=True):
    """A node as it last registered."""

    registered: incarnation.Registration
    is_fenced: bool = False
    addresses: dict[str, tuple[str, int]] = {}
    """Host and port of each listener, by protocol name."""
    rack: str = ""
    name: str = ""
    versions: tuple[int, int] = (FIRST_VERSION, CLUSTER_VERSION)
    is_draining: bool = False

    @property
    def node(self) -> Node:
        return Node(incarnation=self.registered.incarnation, is_fenced=self.is_fenced, is_draining=self.is_draining)


class Membership(msgspec.Struct):
    """The cluster's nodes and version in the image."""

    members: dict[str, Member] = {}
    """By node number as text, because JSON keys are text."""
    version: int = FIRST_VERSION
    """The latest cluster version of any event so far. A node that does not know this version cannot follow."""

    def copy(self) -> "Membership":
        return Membership(dict(self.members), self.version)

    def member(self, node: int) -> Member | None:
        return self.members.get(str(node))

    def nodes(self) -> dict[int, Node]:
        return {int(number): member.node for number, member in self.members.items()}

    def responding_nodes(self) -> set[int]:
        """Nodes whose responses may still arrive: live nodes, and nodes that drain. A draining node answers its
        callers before it closes connections.
        """
        return {number for number, node in self.nodes().items() if not node.is_fenced or node.is_draining}

    def incarnations(self) -> tuple[tuple[int, int], ...]:
        return tuple((number, node.incarnation) for number, node in sorted(self.nodes().items()))


def name_of(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


# ── Checks ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_registration(known: Membership, event: RegisterNode) -> None:
    before = known.member(event.node)
    if before is not None and event.incarnation <= before.registered.incarnation:
        raise stale(f"node {event.node} is registered as incarnation {before.registered.incarnation}")
    oldest, latest = event.versions
    if not oldest <= known.version <= latest:
        raise BrokerError(
            Reason.VERSION_CONFLICT,
            f"node {event.node} supports cluster versions {oldest} to {latest}, this cluster has {known.version}: "
            f"start it with a braidlog version that supports {known.version}",
        )


def check_versions(known: Membership, events: Sequence[Event]) -> None:
    """Check that every member knows the events. A fenced node may return, so it counts until it is removed."""
    needed = max(map(version_of, events), default=FIRST_VERSION)
    behind = [number for number, member in sorted(known.members.items()) if member.versions[1] < needed]
    if behind:
        raise BrokerError(
            Reason.VERSION_CONFLICT,
            f"the change needs cluster version {needed}, which node {', '.join(behind)} does not know: upgrade it, or "
            f"remove it if it is lost permanently (braid cluster remove {behind[0]})",
        )


def check_incarnation(known: Membership, event: FenceNode | DrainNode) -> None:
    member = known.member(event.node)
    if member is None or member.is_fenced or member.registered.incarnation != event.incarnation:
        raise stale(f"incarnation {event.incarnation} of node {event.node} is no longer registered")


def stale(text: str) -> BrokerError:
    return BrokerError(Reason.STALE_LEADER_EPOCH, text)


# ── Changes ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def register(known: Membership, event: RegisterNode) -> None:
    registered = incarnation.Registration(event.incarnation, event.life)
    said = {name: getattr(event, name) for name in ("addresses", "rack", "name", "versions")}
    known.members[str(event.node)] = Member(registered, **said)


def fence(known: Membership, event: FenceNode) -> None:
    known.members[str(event.node)] = msgspec.structs.replace(known.members[str(event.node)], is_fenced=True)


def drain(known: Membership, event: DrainNode) -> None:
    member = known.members[str(event.node)]
    known.members[str(event.node)] = msgspec.structs.replace(member, is_draining=event.is_draining)


def with_node_registered(topic: Topic, event: RegisterNode, before: Member | None, nodes: Registered) -> Topic:
    """Apply a node's start to a topic: its leaderships end, and it stays in sync or eligible only with a complete log.

    A topic of a single node becomes the cluster's. No other copy exists, so that copy counts as complete.
    """
    if not any(event.node in each.replicas for each in topic.assignments):
        return topic
    flush_on_ack = topic.flushes_for(event.node)
    registered = before.registered if before else None

    def changed(number: int, each: Assignment) -> Assignment:
        if event.node not in each.replicas:
            return each
        is_damaged = name_of(topic.name, number) in event.damaged
        is_whole = bool(topic.holder) or incarnation.is_whole(
            registered, event.life, flush_on_ack=flush_on_ack, is_damaged=is_damaged
        )
        return election.registered(each, event.node, nodes, topic.min_in_sync, is_whole=is_whole)

    return msgspec.structs.replace(
        topic,
        assignments=tuple(changed(number, each) for number, each in enumerate(topic.assignments)),
        holder="",
        unflushed=tuple(node for node in topic.unflushed if node != event.node),
    )
