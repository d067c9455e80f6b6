"""Cluster events, drained nodes, weak slots, backups, node descriptions: braidlog's own requests on Kafka's port.

`cluster/metadata/history.py` has the events.
"""

from itertools import islice
from typing import Final

import msgspec

from braidlog.adapters.contract import Conversation
from braidlog.adapters.kafka.routes import Route, of_cluster, whole
from braidlog.adapters.kafka.services import Services
from braidlog.cluster.metadata.history import Cursor, HistoryEvent
from braidlog.model.runtime.cooperative import YieldCounter
from braidlog.replication.assignment import Assignment
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import nodes as n

LACKING_MAX: Final = 1_000
"""Maximum topics below their replication factor in one answer."""
EVENTS_MAX: Final = 500
"""Maximum events of one answer: request more from the last one on."""


async def cluster_events(request: Request, services: Services, _: Conversation) -> n.ClusterEventsResponse:
    message: n.ClusterEventsRequest = request.message
    history = services.metadata.history
    found = history.after(Cursor(message.after_seq, message.after_index), message.since_ms)
    slots = services.routing.slots()
    weak = [_weak_slot(number, each) for number, each in enumerate(slots) if not each.is_whole]
    draining = [number for number, node in services.metadata.image.cluster.nodes().items() if node.is_draining]
    events = list(map(_event, islice(found, EVENTS_MAX)))
    lacking = await _lacking(services)
    return n.ClusterEventsResponse(draining=draining, events=events, slots=len(slots), weak_slots=weak, lacking=lacking)


async def _lacking(services: Services) -> list[n.UnderReplicatedTopic]:
    found, pace = list[n.UnderReplicatedTopic](), YieldCounter()
    for topic in list(services.metadata.image.topics.values()):
        await pace.step(topic.partitions)
        if (count := sum(map(topic.lacks_replicas, topic.assignments))) and len(found) < LACKING_MAX:
            found.append(n.UnderReplicatedTopic(topic.name, topic.replication_factor, count))
    return found


def _event(each: HistoryEvent) -> n.ClusterEvent:
    change = each.change
    topic, partition = change[:2] if change else (getattr(each.event, "topic", None) or None, -1)
    node = -1 if each.node is None else each.node
    return n.ClusterEvent(*each.at, each.time_ms, type(each.event).__name__, node, topic, partition, each.words)


def _weak_slot(number: int, each: Assignment) -> n.WeakSlot:
    leader = -1 if each.leader is None else each.leader
    return n.WeakSlot(number, leader, each.leader_epoch, list(each.replicas), list(each.in_sync))


async def drain_node(request: Request, services: Services, _: Conversation) -> n.DrainNodeResponse:
    message: n.DrainNodeRequest = request.message
    await services.replica_moves.drain(message.node, is_draining=message.is_draining)
    return n.DrainNodeResponse()


async def backup_cut(request: Request, services: Services, _: Conversation) -> n.BackupSnapshotResponse:
    message: n.BackupSnapshotRequest = request.message
    if message.is_taken:
        return n.BackupSnapshotResponse(path=await services.cuts.create())
    await services.cuts.drop()
    return n.BackupSnapshotResponse()


async def describe_node(request: Request, services: Services, _: Conversation) -> n.DescribeNodeResponse:
    message: n.DescribeNodeRequest = request.message
    found = await services.describe(message.in_full)
    return n.DescribeNodeResponse(version=found.version, description=msgspec.json.encode(found))


ROUTES: dict[Key, Route] = {
    Key.BACKUP_SNAPSHOT: of_cluster(backup_cut, whole(n.BackupSnapshotResponse), is_bounded=False),
    Key.CLUSTER_EVENTS: of_cluster(cluster_events, whole(n.ClusterEventsResponse)),
    Key.DESCRIBE_NODE: of_cluster(describe_node, whole(n.DescribeNodeResponse)),
    Key.DRAIN_NODE: of_cluster(drain_node, whole(n.DrainNodeResponse)),
}
