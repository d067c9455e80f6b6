"""Writes proposals of replicas and of the controller as events, decided at the image that they follow.

Each function raises `BrokerError` if the outcome is unknown.
"""

from collections.abc import Iterator, Sequence

from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.cluster.system_topic_replicas import removals_of_node
from braidlog.model.errors import BrokerError, Reason
from braidlog.replication import assignment as sets
from braidlog.replication.control import election
from braidlog.replication.control.controller import FenceNode, PartitionKey, Propose
from braidlog.replication.ready import ReportLogEnd, Resign

Change = tuple[PartitionKey, sets.InSyncSetChange]
ReplicaReport = tuple[PartitionKey, Resign | ReportLogEnd]


async def change_sets(metadata: Metadata, changes: Sequence[Change]) -> list[Change]:
    """Change in-sync sets in one entry; returns the changes that were definitely refused although the epochs match.

    A change with outdated epochs is not returned: the metadata delivers the newer state.
    """
    refused: list[Change] = []

    def decide(image: Image) -> Sequence[e.Event]:
        refused.clear()
        events: list[e.Event] = []
        for key, change in changes:
            known = _assignment(image, key)
            if known is None:
                continue
            if sets.may_change(known, change, image.cluster.nodes()):
                events.append(e.ChangeSet(topic=key[0], partition=key[1], change=change))
            elif sets.is_current(known, change):
                refused.append((key, change))
        return events

    await metadata.change(decide)
    return refused


async def propose_reports(metadata: Metadata, said: Sequence[ReplicaReport]) -> None:
    """Write the reports of replicas about their copies in one entry: resignations and torn log ends."""

    def decide(image: Image) -> Sequence[e.Event]:
        found = [(key, each, _assignment(image, key)) for key, each in said]
        return [
            event
            for key, each, known in found
            if known is not None
            for event in (
                _resigned(key, each, known, image) if isinstance(each, Resign) else _torn_end_reported(key, each, known)
            )
        ]

    await metadata.change(decide)


def _resigned(key: PartitionKey, said: Resign, known: sets.Assignment, image: Image) -> Iterator[e.Event]:
    """Resign a replica. Has no effect in another leader epoch, or while no other replica is eligible; the replica then
    repeats it.
    """
    is_current = known.leader_epoch == said.leader_epoch
    if is_current and election.resigned(known, said.node, image.cluster.nodes()) != known:
        yield e.ResignReplica(topic=key[0], partition=key[1], node=said.node, leader_epoch=said.leader_epoch)


def _torn_end_reported(key: PartitionKey, said: ReportLogEnd, known: sets.Assignment) -> Iterator[e.Event]:
    after = election.with_torn_end(known, said.told)
    if after != known:
        epochs = {"leader_epoch": known.leader_epoch, "partition_epoch": known.partition_epoch}
        yield e.AssignPartition(topic=key[0], partition=key[1], after=after, **epochs)


def _assignment(image: Image, key: PartitionKey) -> sets.Assignment | None:
    """The partition's assignment; None if its topic was deleted."""
    topic = image.topics.get(key[0])
    return None if topic is None or key[1] >= topic.partitions else topic.assignments[key[1]]


async def write_entry(metadata: Metadata, proposal: Propose) -> bool:
    """Write a controller's proposal directly after the entry that it was computed at, or not at all."""
    events: list[e.Event] = []
    for each in proposal.events:
        if isinstance(each, FenceNode):
            events.append(e.FenceNode(node=each.node, incarnation=each.incarnation))
        else:
            events.append(
                e.AssignPartition(
                    topic=each.key[0],
                    partition=each.key[1],
                    leader_epoch=each.leader_epoch,
                    partition_epoch=each.partition_epoch,
                    after=each.after,
                )
            )
    return await metadata.write_after(events, proposal.after)


async def drain(metadata: Metadata, node: int, *, is_draining: bool = True) -> None:
    """Drain a node, or end its draining. Controllers then move its leaderships to in-sync replicas."""

    def decide(image: Image) -> Sequence[e.Event]:
        member = image.cluster.member(node)
        if member is None or member.is_fenced:
            raise BrokerError(Reason.REPLICA_NOT_FOUND, f"unknown node {node}; see `braid cluster nodes`")
        if member.is_draining is is_draining:
            return []
        return [e.DrainNode(node=node, incarnation=member.registered.incarnation, is_draining=is_draining)]

    await metadata.change(decide)


async def remove(metadata: Metadata, node: int) -> None:
    """Remove a fenced node that holds no user partition. Raises `BrokerError` otherwise."""
    await metadata.change(lambda image: [*removals_of_node(image, node), e.RemoveNode(node_id=str(node))])
