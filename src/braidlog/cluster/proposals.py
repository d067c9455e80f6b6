"""What replicas and the controller ask of the metadata, as events: decided at the very image that they are written after.

Knows: which event a proposal is. Refuses to know: when it is made. Each raises `BrokerError` if what became of it is not known.
"""

from collections.abc import Sequence

from braidlog.cluster import events as e
from braidlog.cluster.image import Image
from braidlog.cluster.membership import name_of
from braidlog.cluster.store import Metadata
from braidlog.replication import assignment as sets
from braidlog.replication.controller import FenceNode, Propose
from braidlog.replication.ready import Resign


async def change_set(metadata: Metadata, name: str, change: sets.SetChange) -> bool:
    """A follower joins or leaves. False: it is certainly refused, though nothing has changed since it was asked for."""
    is_refused = False

    def decide(image: Image) -> Sequence[e.Event]:
        nonlocal is_refused
        known = image.cluster.partitions[name].assignment
        if sets.may_change(known, change, image.cluster.nodes()):
            return [e.ChangeSet(name=name, change=change)]
        is_refused = sets.is_current(known, change)
        return []

    await metadata.change(decide)
    return not is_refused


async def resign(metadata: Metadata, name: str, proposal: Resign) -> None:
    """A replica gives up; void in another epoch than the one it found its damage in."""

    def decide(image: Image) -> Sequence[e.Event]:
        known = image.cluster.partitions[name].assignment
        if known.leader_epoch != proposal.leader_epoch:
            return []
        return [e.ResignReplica(name=name, node=proposal.node, leader_epoch=proposal.leader_epoch)]

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
                    name=name_of(*each.key),
                    leader_epoch=each.leader_epoch,
                    partition_epoch=each.partition_epoch,
                    after=each.after,
                )
            )
    return await metadata.write_after(events, proposal.after)
