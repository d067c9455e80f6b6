"""Cluster requests: nodes, replicas, elections, reassignments, events.

Does not handle: judging the cluster's health.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from braidlog.client.drivers.cluster import (
    ClusterEvent,
    ClusterInfo,
    ClusterNode,
    ClusterPartition,
    LackingTopic,
    LogFolder,
    PartitionMove,
    PartitionOutcome,
    Place,
)
from braidlog.client.drivers.kafka.routing import Router
from braidlog.client.drivers.kafka.rules import name_of
from braidlog.client.errors import ConnectError, UnsupportedError
from braidlog.kv.replicated.slots import LOG_TOPIC
from braidlog.model.reporting.node_report import NodeDescription
from braidlog.wire.kafka.apis import OFFSETS_TOPIC_ID
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import nodes as n
from braidlog.wire.kafka.messages import placement as p
from braidlog.wire.kafka.messages import topics as t
from braidlog.wire.kafka.messages.parts import TopicPartitions
from braidlog.wire.kafka.rows import Message

CHANGES_AT_ONCE = 100
"""Partitions per request: each is a metadata change, and this many are answered in time."""

AFTER_ALL = 2**63 - 1


class ClusterDriver(Router):
    """Describes and changes the cluster by requests to brokers."""

    async def describe_cluster(self) -> ClusterInfo:
        described: c.DescribeClusterResponse = await self.ask_checked(
            c.DescribeClusterRequest(include_fenced_brokers=True)
        )
        answer, now = await self.metadata(None), await self._state_of_nodes()
        nodes = [
            ClusterNode(
                broker.broker_id,
                broker.host,
                broker.port,
                broker.rack or "",
                not broker.is_fenced,
                broker.broker_id in now.draining,
            )
            for broker in described.brokers
        ]
        partitions = [
            ClusterPartition(
                topic.name or "",
                partition.partition_index,
                None if partition.leader_id < 0 else partition.leader_id,
                partition.leader_epoch,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
                tuple(partition.offline_replicas),
            )
            for topic in answer.topics
            for partition in topic.partitions
            if topic.topic_id != OFFSETS_TOPIC_ID
        ]
        return ClusterInfo(
            described.cluster_id,
            described.controller_id,
            tuple(sorted(nodes, key=lambda each: each.node)),
            tuple(sorted(partitions, key=lambda each: (each.topic, each.partition))),
            now.slots,
            tuple(map(_weak_slot, now.weak_slots)),
            tuple(LackingTopic(each.name, each.replication_factor, each.partitions) for each in now.lacking),
        )

    async def _state_of_nodes(self) -> n.ClusterEventsResponse:
        """Return braidlog's extra state; empty from other brokers, or without the permission."""
        try:
            answer: n.ClusterEventsResponse = await self.ask(n.ClusterEventsRequest(after_seq=AFTER_ALL))
        except UnsupportedError:
            return n.ClusterEventsResponse()
        return answer

    async def elect_preferred(self, places: Sequence[Place] | None) -> list[PartitionOutcome]:
        if places is None:
            return await self._elect(None)
        outcomes: list[PartitionOutcome] = []
        for some in _portions(places):
            outcomes += await self._elect(
                [
                    TopicPartitions(topic, [number for _, number in named])
                    for topic, named in groupby(some, key=lambda place: place[0])
                ]
            )
        return outcomes

    async def _elect(self, asked: list[TopicPartitions] | None) -> list[PartitionOutcome]:
        answer: p.ElectLeadersResponse = await self._change(p.ElectLeadersRequest(0, asked, self._timeout_ms))
        return [
            _outcome(topic.topic, each.partition_id, each.error_code, each.error_message)
            for topic in answer.replica_election_results
            for each in topic.partition_result
        ]

    async def move_partitions(self, targets: Mapping[Place, Sequence[int] | None]) -> list[PartitionOutcome]:
        outcomes: list[PartitionOutcome] = []
        for some in _portions(targets):
            topics = [
                p.AlterPartitionReassignmentsRequestTopic(topic, [_wanted(place, targets[place]) for place in places])
                for topic, places in groupby(some, key=lambda place: place[0])
            ]
            answer: p.AlterPartitionReassignmentsResponse = await self._change(
                p.AlterPartitionReassignmentsRequest(self._timeout_ms, topics=topics)
            )
            outcomes += [
                _outcome(topic.name, partition.partition_index, partition.error_code, partition.error_message)
                for topic in answer.responses
                for partition in topic.partitions
            ]
        return outcomes

    async def list_moves(self) -> list[PartitionMove]:
        answer: p.ListPartitionReassignmentsResponse = await self._change(
            p.ListPartitionReassignmentsRequest(self._timeout_ms)
        )
        return [
            PartitionMove(
                topic.name,
                partition.partition_index,
                tuple(partition.replicas),
                tuple(partition.adding_replicas),
                tuple(partition.removing_replicas),
            )
            for topic in answer.topics
            for partition in topic.partitions
        ]

    async def remove_node(self, node: int) -> None:
        await self._change(p.UnregisterBrokerRequest(node))

    async def cluster_events(self, after: tuple[int, int], since_ms: int) -> list[ClusterEvent]:
        answer: n.ClusterEventsResponse = await self.ask_checked(n.ClusterEventsRequest(*after, since_ms))
        return [
            ClusterEvent(
                event.seq,
                event.index,
                event.time_ms,
                event.event,
                event.node if event.node >= 0 else None,
                event.topic,
                event.partition if event.partition >= 0 else None,
                event.words,
            )
            for event in answer.events
        ]

    async def drain_node(self, node: int, *, is_draining: bool) -> None:
        await self._change(n.DrainNodeRequest(node, is_draining))

    async def create_snapshot(self) -> str:
        answer: n.BackupSnapshotResponse = await self.ask_checked(n.BackupSnapshotRequest())
        return answer.path

    async def drop_snapshot(self) -> None:
        await self.ask_checked(n.BackupSnapshotRequest(is_taken=False))

    async def log_folders(self, node: int) -> list[LogFolder]:
        answer: t.DescribeLogDirsResponse = await self._ask_node(node, t.DescribeLogDirsRequest(None))
        for result in answer.results:
            self.check_code(result.error_code, about=result.log_dir)
        return [
            LogFolder(
                result.log_dir,
                None if result.total_bytes < 0 else result.total_bytes,
                None if result.usable_bytes < 0 else result.usable_bytes,
                {topic.name: sum(some.partition_size for some in topic.partitions) for topic in result.topics},
            )
            for result in answer.results
        ]

    async def describe_node(self, node: int, *, in_full: bool) -> NodeDescription:
        answer: n.DescribeNodeResponse = await self._ask_node(node, n.DescribeNodeRequest(in_full))
        try:
            return msgspec.json.decode(answer.description, type=NodeDescription)
        except msgspec.ValidationError as error:
            words = f"node {node} has version {answer.version}, which describes itself in an unknown format: {error}"
            raise UnsupportedError(words) from error

    async def _ask_node(self, node: int, message: Message) -> Any:  # noqa: ANN401 - any answer
        if node not in self._brokers:
            await self.metadata([])
        if node not in self._brokers:
            raise ConnectError(f"unknown node {node}; see `braid cluster nodes`")
        return await self.ask_checked(message, self._brokers[node])

    async def _change(self, message: Message) -> Any:  # noqa: ANN401 - any answer
        return self.checked(await self.ask_controller(message, self._timeout_ms))


def _portions(places: Iterable[Place]) -> Iterator[list[Place]]:
    ordered = sorted(set(places))
    return (ordered[at : at + CHANGES_AT_ONCE] for at in range(0, len(ordered), CHANGES_AT_ONCE))


def _wanted(place: Place, nodes: Sequence[int] | None) -> p.AlterPartitionReassignmentsRequestPartition:
    return p.AlterPartitionReassignmentsRequestPartition(place[1], None if nodes is None else list(nodes))


def _outcome(topic: str, number: int, code: int, words: str | None) -> PartitionOutcome:
    return PartitionOutcome(topic, number, name_of(code) if code else "", words or "")


def _weak_slot(slot: n.WeakSlot) -> ClusterPartition:
    leader = None if slot.leader < 0 else slot.leader
    return ClusterPartition(
        LOG_TOPIC, slot.slot, leader, slot.leader_epoch, tuple(slot.replicas), tuple(slot.in_sync), ()
    )
