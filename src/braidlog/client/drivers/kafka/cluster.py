"""What brokers tell of themselves: nodes, and who holds which partition; and how that is changed.

Knows: which requests do it, which answers say it. Refuses to know: whether that is as it should be.
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
"""Each partition is a change of the metadata: of so many an answer comes in time."""

AFTER_ALL = 2**63 - 1


class ClusterDriver(Router):
    """What a driver asks brokers."""

    async def describe_cluster(self) -> ClusterInfo:
        told: c.DescribeClusterResponse = await self.ask_checked(c.DescribeClusterRequest(include_fenced_brokers=True))
        answer, now = await self.metadata(None), await self._state_of_nodes()
        nodes = [
            ClusterNode(
                each.broker_id,
                each.host,
                each.port,
                each.rack or "",
                not each.is_fenced,
                each.broker_id in now.draining,
            )
            for each in told.brokers
        ]
        partitions = [
            ClusterPartition(
                topic.name or "",
                each.partition_index,
                None if each.leader_id < 0 else each.leader_id,
                each.leader_epoch,
                tuple(each.replica_nodes),
                tuple(each.isr_nodes),
                tuple(each.offline_replicas),
            )
            for topic in answer.topics
            for each in topic.partitions
            if topic.topic_id != OFFSETS_TOPIC_ID
        ]
        return ClusterInfo(
            told.cluster_id,
            told.controller_id,
            tuple(sorted(nodes, key=lambda each: each.node)),
            tuple(sorted(partitions, key=lambda each: (each.topic, each.partition))),
            now.slots,
            tuple(map(_weak_slot, now.weak_slots)),
            tuple(LackingTopic(each.name, each.replication_factor, each.partitions) for each in now.lacking),
        )

    async def _state_of_nodes(self) -> n.ClusterEventsResponse:
        """As far as the server tells: brokers of others do not, and not everybody may ask."""
        try:
            answer: n.ClusterEventsResponse = await self.ask(n.ClusterEventsRequest(after_seq=AFTER_ALL))
        except UnsupportedError:
            return n.ClusterEventsResponse()
        return answer

    async def elect_preferred(self, places: Sequence[Place] | None) -> list[PartitionOutcome]:
        if places is None:
            return await self._elect(None)
        told: list[PartitionOutcome] = []
        for some in _portions(places):
            told += await self._elect(
                [
                    TopicPartitions(topic, [number for _, number in named])
                    for topic, named in groupby(some, key=lambda place: place[0])
                ]
            )
        return told

    async def _elect(self, asked: list[TopicPartitions] | None) -> list[PartitionOutcome]:
        answer: p.ElectLeadersResponse = await self._change(p.ElectLeadersRequest(0, asked, self._timeout_ms))
        return [
            _outcome(topic.topic, each.partition_id, each.error_code, each.error_message)
            for topic in answer.replica_election_results
            for each in topic.partition_result
        ]

    async def move_partitions(self, targets: Mapping[Place, Sequence[int] | None]) -> list[PartitionOutcome]:
        told: list[PartitionOutcome] = []
        for some in _portions(targets):
            topics = [
                p.AlterPartitionReassignmentsRequestTopic(topic, [_wanted(place, targets[place]) for place in places])
                for topic, places in groupby(some, key=lambda place: place[0])
            ]
            answer: p.AlterPartitionReassignmentsResponse = await self._change(
                p.AlterPartitionReassignmentsRequest(self._timeout_ms, topics=topics)
            )
            told += [
                _outcome(topic.name, each.partition_index, each.error_code, each.error_message)
                for topic in answer.responses
                for each in topic.partitions
            ]
        return told

    async def list_moves(self) -> list[PartitionMove]:
        answer: p.ListPartitionReassignmentsResponse = await self._change(
            p.ListPartitionReassignmentsRequest(self._timeout_ms)
        )
        return [
            PartitionMove(
                topic.name,
                each.partition_index,
                tuple(each.replicas),
                tuple(each.adding_replicas),
                tuple(each.removing_replicas),
            )
            for topic in answer.topics
            for each in topic.partitions
        ]

    async def remove_node(self, node: int) -> None:
        await self._change(p.UnregisterBrokerRequest(node))

    async def cluster_events(self, after: tuple[int, int], since_ms: int) -> list[ClusterEvent]:
        answer: n.ClusterEventsResponse = await self.ask_checked(n.ClusterEventsRequest(*after, since_ms))
        return [
            ClusterEvent(
                each.seq,
                each.index,
                each.time_ms,
                each.event,
                each.node if each.node >= 0 else None,
                each.topic,
                each.partition if each.partition >= 0 else None,
                each.words,
            )
            for each in answer.events
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
        for each in answer.results:
            self.check_code(each.error_code, about=each.log_dir)
        return [
            LogFolder(
                each.log_dir,
                None if each.total_bytes < 0 else each.total_bytes,
                None if each.usable_bytes < 0 else each.usable_bytes,
                {topic.name: sum(some.partition_size for some in topic.partitions) for topic in each.topics},
            )
            for each in answer.results
        ]

    async def describe_node(self, node: int, *, in_full: bool) -> NodeDescription:
        answer: n.DescribeNodeResponse = await self._ask_node(node, n.DescribeNodeRequest(in_full))
        try:
            return msgspec.json.decode(answer.description, type=NodeDescription)
        except msgspec.ValidationError as error:
            words = f"node {node} has version {answer.version} and tells other things of itself than this one knows: {error}"
            raise UnsupportedError(words) from error

    async def _ask_node(self, node: int, message: Message) -> Any:  # noqa: ANN401 - any answer
        if node not in self._brokers:
            await self.metadata([])
        if node not in self._brokers:
            raise ConnectError(f"node {node} is not there; `braid cluster nodes` lists those that are")
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


def _weak_slot(each: n.WeakSlot) -> ClusterPartition:
    leader = None if each.leader < 0 else each.leader
    return ClusterPartition(
        LOG_TOPIC, each.slot, leader, each.leader_epoch, tuple(each.replicas), tuple(each.in_sync), ()
    )
