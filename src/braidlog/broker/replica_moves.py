"""Changes leaders and replicas of partitions for an administrator, and adds missing replicas automatically.

Does not handle: copying records, the end of a move (the controller completes it).
Invariants: each change is decided on the image that it is written after. No change loses a committed record: a
preferred leader is in sync, and a move adds replicas before it removes any.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from braidlog.broker.routing import Routing
from braidlog.cluster.metadata.events import AssignPartition, Event
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.local_store import INTERNAL_PREFIX
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.cluster.metadata.proposals import drain, remove
from braidlog.cluster.system_topic_replicas import missing_replicas
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.cooperative import YieldCounter
from braidlog.partition.partition_registry import refuse_internal
from braidlog.partition.reconciler import Reconciler
from braidlog.replication.assignment import Assignment, Nodes
from braidlog.replication.control.election import may_lead
from braidlog.replication.control.reassignment import cancel, reassign

log = logging.getLogger("braidlog.cluster")

CHANGED_AT_ONCE: Final = 200
"""Partitions in one metadata entry."""

Outcome = bool | BrokerError
"""The outcome for one partition: whether it was changed, or why it was refused."""
Change = Callable[[Image, int, Assignment], Assignment]
"""change(image, partition, current assignment) → new assignment."""
Removed = Callable[[str], Awaitable[None]]
"""Called with the name of each removed node."""


class ReplicaMoves:
    """Elects leaders, moves replicas, drains and removes nodes."""

    def __init__(
        self, metadata: Metadata, reconciler: Reconciler, routing: Routing, removed: Removed | None = None
    ) -> None:
        self._metadata = metadata
        self._reconciler = reconciler
        self._routing = routing
        self._removed = removed

    async def elect(self, topic: str, number: int, node: int | None = None) -> bool:
        """Make a node the leader of a partition, by default its preferred leader; False: it leads already."""
        return _only(await self.elect_all(topic, [number], node))

    async def elect_all(self, topic: str, numbers: Iterable[int], node: int | None = None) -> dict[int, Outcome]:
        """Elect leaders of several partitions of a topic."""

        def led(image: Image, number: int, known: Assignment) -> Assignment:
            wanted = known.replicas[0] if node is None else node
            if known.leader == wanted:
                return known
            if wanted not in may_lead(image.cluster.nodes(), known.in_sync):
                raise BrokerError(
                    Reason.REPLICA_NOT_FOUND,
                    f"node {wanted}, which should lead {topic}/{number}, is not in sync or not there",
                )
            return known.with_leader(wanted)

        return await self._change(topic, numbers, led)

    async def move(self, topic: str, targets: Mapping[int, Nodes | None]) -> dict[int, Outcome]:
        """Start to move partitions to these nodes, the preferred leader first; False: the move is under way or done.

        None as target cancels a move; False: no move exists.
        """

        def moved(image: Image, number: int, known: Assignment) -> Assignment:
            target = targets[number]
            if target is None:
                return _cancelled(image, topic, number, known)
            self._check_target(image, target)
            return reassign(known, target)

        return await self._change(topic, targets, moved)

    async def remove_node(self, node: int) -> None:
        """Remove a fenced node that holds no replicas from the cluster. Raise if it is not fenced or holds replicas."""
        member = self._metadata.image.cluster.member(node)
        await remove(self._metadata, node)
        if member is not None and self._removed is not None:
            await self._removed(member.name or str(node))

    async def drain(self, node: int, *, is_draining: bool) -> None:
        """Drain a node or end its draining. The controller moves the leadership of a draining node to other in-sync
        replicas."""
        if is_draining and not self._routing.has_other_nodes:
            raise BrokerError(
                Reason.NOT_ENOUGH_REPLICAS, "this node is the only one: no other node can lead its partitions"
            )
        await drain(self._metadata, node, is_draining=is_draining)

    async def complete(self) -> None:
        """Add missing replicas, as far as live nodes can hold them. Called periodically; the controller does it."""
        own, pace = self._routing.own_number, YieldCounter()
        for topic in list(self._metadata.image.topics.values()) if self._routing.controller == own else ():
            await pace.step(topic.partitions)
            if topic.name.startswith(INTERNAL_PREFIX) or any(map(topic.lacks_replicas, topic.assignments)):
                try:
                    await self._reconciler.change(topic.name, partial(missing_replicas, name=topic.name, node=str(own)))
                except StorageFault as fault:
                    log.warning("replicas of topic %s not added: %s", topic.name, fault)
                except BrokerError as error:
                    log.info("replicas of topic %s not added: %s; trying again later", topic.name, error)
                    return

    def under_way(self) -> dict[tuple[str, int], Assignment]:
        """Return every partition that is being moved."""
        return {
            (name, number): each
            for name, topic in sorted(self._metadata.image.topics.items())
            for number, each in enumerate(topic.assignments)
            if each.adding or each.removing
        }

    async def _change(self, topic: str, numbers: Iterable[int], change: Change) -> dict[int, Outcome]:
        """Change many partitions in few metadata entries: each entry costs a round trip to etcd."""
        outcomes: dict[int, Outcome] = {}

        def decide(some: Sequence[int], image: Image) -> list[Event]:
            events: list[Event] = []
            for number in some:
                try:
                    known = image.assignment(topic, number)
                    after = change(image, number, known)
                except BrokerError as error:
                    outcomes[number] = error.with_traceback(None)
                    continue
                outcomes[number] = after != known
                if after != known:
                    epochs = {"leader_epoch": known.leader_epoch, "partition_epoch": known.partition_epoch}
                    events.append(AssignPartition(topic=topic, partition=number, after=after, **epochs))
            return events

        refuse_internal(topic)
        left = list(dict.fromkeys(numbers))
        while left:
            some, left = left[:CHANGED_AT_ONCE], left[CHANGED_AT_ONCE:]
            await self._reconciler.change(topic, partial(decide, some))
        return outcomes

    def _check_target(self, image: Image, target: Nodes) -> None:
        if not target or len(set(target)) != len(target) or min(target) < 0:
            raise BrokerError(Reason.REPLICA_NOT_FOUND, "replicas are different nodes, one at least")
        known = image.cluster.nodes() if image.cluster.members else {self._routing.own_number}
        unknown = [node for node in target if node not in known]
        if unknown:
            raise BrokerError(Reason.REPLICA_NOT_FOUND, f"no node {unknown[0]}; `braid cluster nodes` lists the nodes")


def _only(outcomes: dict[int, Outcome]) -> bool:
    (outcome,) = outcomes.values()
    if isinstance(outcome, BrokerError):
        raise outcome
    return outcome


def _cancelled(image: Image, topic: str, number: int, known: Assignment) -> Assignment:
    after = cancel(known, image.cluster.nodes(), image.topic(topic).min_in_sync)
    if after == known and (known.adding or known.removing):
        raise BrokerError(
            Reason.NOT_ENOUGH_REPLICAS, f"too few of the nodes that had {topic}/{number} before are in sync"
        )
    return after
