"""What replicas and the controller ask of the metadata, as events: decided at the very image that they are written after.

Knows: which event a proposal is. Refuses to know: when it is made. Each raises `BrokerError` if what became of it is not known.
"""

from collections.abc import Sequence

from braidlog.cluster import events as e
from braidlog.cluster.image import Image
from braidlog.cluster.store import Metadata
from braidlog.replication import assignment as sets
from braidlog.replication.controller import FenceNode, PartitionKey, Propose
from braidlog.replication.ready import Resign


async def change_set(metadata: Metadata, key: PartitionKey, change: sets.SetChange) -> bool:
    """A follower joins or leaves. False: it is certainly refused, though nothing has changed since it was asked for."""
    is_refused = False

    def decide(image: Image) -> Sequence[e.Event]:
        nonlocal is_refused
        known = image.assignment(*key)
        if sets.may_change(known, change, image.cluster.nodes()):
            return [e.ChangeSet(topic=key[0], partition=key[1], change=change)]
        is_refused = sets.is_current(known, change)
        return []

    await metadata.change(decide)
    return not is_refused


async def resign(metadata: Metadata, key: PartitionKey, proposal: Resign) -> None:
    """A replica gives up; void in another epoch than the one it found its damage in."""

    def decide(image: Image) -> Sequence[e.Event]:
        known = image.assignment(*key)
        if known.leader_epoch != proposal.leader_epoch:
            return []
        return [e.ResignReplica(topic=key[0], partition=key[1], node=proposal.node, leader_epoch=proposal.leader_epoch)]

    await metadata.change(decide)


async def write_entry(metadata: Metadata, proposal: Propose) -> bool:
    """What a controller decided: right after the entry that it decided at, or not at all."""
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
