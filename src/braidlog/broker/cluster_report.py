"""The cluster report of one node: nodes, leaders, under-replicated partitions, recent events.

It is computed from the metadata and from this node's replicas. Each partition is counted by its leader, so that
the counts of all nodes can be added. Every node reports the partitions without a leader.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final

from braidlog.broker.forwarding import Forwarding
from braidlog.broker.routing import Routing
from braidlog.cluster.membership import Member
from braidlog.cluster.metadata.history import History, HistoryEvent
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.cluster.metadata.topic_state import Topic
from braidlog.coordinator.shards import STATE_TOPIC
from braidlog.kv.replicated.slots import FEED_TOPIC, LOG_TOPIC, slots_in
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.reporting import node_report as r
from braidlog.model.reporting.node_report import NodeDescription
from braidlog.model.runtime.cooperative import YieldCounter
from braidlog.partition.partition_registry import PartitionRegistry
from braidlog.replication.assignment import Assignment

EVENTS_TOLD: Final = 200


class _Counts:
    """Counts of one pass over all partitions."""

    def __init__(self, own: int) -> None:
        self.own = own
        self.leads: Counter[int] = Counter()
        self.holds: Counter[int] = Counter()
        self.in_sync: Counter[int] = Counter()
        self.coordinates: Counter[int] = Counter()
        self.of_own: Counter[str] = Counter()
        self.partitions = self.leaderless = self.weak_count = 0
        self.weak: list[r.UnderReplicatedPartition] = []
        self.without_leader: list[r.UnderReplicatedPartition] = []

    def add(self, found: Topic, number: int, each: Assignment) -> None:
        topic, min_in_sync = found.name, found.min_in_sync
        self.partitions += 1
        self.holds.update(each.replicas)
        self.in_sync.update(each.in_sync)
        if each.leader is None:
            self.leaderless += 1
        else:
            self.leads[each.leader] += 1
            self.coordinates[each.leader] += topic == STATE_TOPIC
        if each.leader == self.own:
            self.of_own["under"] += not each.is_whole
            if topic == LOG_TOPIC and not each.is_whole:
                self.of_own["slots"] += slots_in(number, found.partitions)
            self.of_own["lacking"] += found.lacks_replicas(each)
            self.of_own["below_min"] += len(each.in_sync) < min_in_sync
        if not each.is_whole:
            self.weak_count += 1
            # Slots of keys have a separate count.
            rows = self.without_leader if each.leader is None else self.weak
            if topic not in (LOG_TOPIC, FEED_TOPIC) and len(rows) < r.WEAK_MAX:
                rows.append(
                    r.UnderReplicatedPartition(topic, number, each.leader, each.replicas, each.in_sync, min_in_sync)
                )


async def cluster_report(
    metadata: Metadata, routing: Routing, hosting: PartitionRegistry, forwarding: Forwarding, etcd: r.EtcdReport
) -> r.ClusterReport:
    counts, pace = _Counts(routing.own_number), YieldCounter()
    for topic in list(metadata.image.topics.values()):
        for number, each in enumerate(topic.assignments):
            counts.add(topic, number, each)
            await pace.step()
    behind = await _behind(hosting)
    weak = [*counts.without_leader, *counts.weak][: r.WEAK_MAX]
    members = metadata.image.cluster.members
    rows = [_node(int(number), member, counts, behind) for number, member in members.items()]
    if not rows:
        own = counts.own
        rows = [r.NodeReport(own, "alive", "", {}, counts.leads[own], counts.holds[own], counts.in_sync[own])]
    return r.ClusterReport(
        is_alone=not routing.has_other_nodes,
        own=counts.own,
        controller=routing.controller,
        nodes=sorted(rows, key=lambda row: row.node),
        partitions=counts.partitions,
        under_replicated=counts.of_own["under"],
        below_replication_factor=counts.of_own["lacking"],
        below_min=counts.of_own["below_min"],
        leaderless=counts.leaderless,
        weak_slots=counts.of_own["slots"],
        weak=weak,
        weak_left_out=counts.weak_count - len(weak),
        leader_changes=dict(metadata.history.leader_changes),
        forwarded=[
            (name, node, forwarding.counts[name, node])
            for name in sorted({*forwarding.names, *forwarding.answers, *forwarding.client_answers})
            for node in routing.numbers
        ],
        etcd=etcd,
    )


def _node(number: int, member: Member, counts: _Counts, behind: Counter[str]) -> r.NodeReport:
    return r.NodeReport(
        number,
        r.FENCED if member.is_fenced else "draining" if member.is_draining else "alive",
        member.rack,
        {door: f"{host}:{port}" for door, (host, port) in sorted(member.addresses.items())},
        counts.leads[number],
        counts.holds[number],
        counts.in_sync[number],
        behind[str(number)],
        counts.coordinates[number],
    )


async def _behind(hosting: PartitionRegistry) -> Counter[str]:
    """Return the records that each follower lacks, for partitions led here. A follower that has not fetched yet is
    left out."""
    found: Counter[str] = Counter()
    pace = YieldCounter()
    for hosted in list(hosting.opened()):
        for follower in hosted.replicas.followers:
            if follower.end_offset >= 0:
                found[follower.node] += max(hosted.end_offset - follower.end_offset, 0)
        await pace.step()
    return found


def events(history: History, topic: str = "", partition: int = -1) -> list[r.EventReport]:
    """Return the latest events, newest first: all, or those of one partition and of the nodes that have held it."""
    if not topic:
        return [_event(each) for each in reversed(history.last(EVENTS_TOLD))]
    story = reversed(history.partition_history(topic, partition))
    return [_event(each) for each in islice(story, EVENTS_TOLD)]


def _event(each: HistoryEvent) -> r.EventReport:
    change = each.change
    topic, partition = (change.topic, change.partition) if change else (getattr(each.event, "topic", ""), -1)
    is_turn = change is not None and change.before.leader_epoch != change.after.leader_epoch
    return r.EventReport(*each.at, each.time_ms, type(each.event).__name__, topic, partition, is_turn, each.words)


Describe = Callable[[bool], Awaitable[NodeDescription]]
"""describe(in full) → this node's description."""


async def no_description(_: bool) -> NodeDescription:  # noqa: FBT001 - a port's signature
    """Raise UNAVAILABLE: a node embedded in another program has no description."""
    raise BrokerError(Reason.UNAVAILABLE, "this node was not started by `braid serve` and does not describe itself")
