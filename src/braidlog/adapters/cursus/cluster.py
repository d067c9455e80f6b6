"""Cursus's requests about a cluster: nodes, leaders, leader election. `broker/replica_moves.py` chooses leaders."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from braidlog.adapters.contract import Conversation
from braidlog.adapters.cursus.forwarding import DOOR, ask_leaders, is_led_here
from braidlog.adapters.cursus.reading import COMMIT_SECONDS_MAX, is_pattern
from braidlog.adapters.cursus.services import Services
from braidlog.adapters.errors import text_of
from braidlog.broker.forwarding import Call, read_asked
from braidlog.broker.routing import Broker
from braidlog.cluster.metadata.topic_state import Topic
from braidlog.coordinator.shards import SHARDS
from braidlog.model.address import show_address
from braidlog.model.errors import BrokerError, NotLeaderError, Reason
from braidlog.model.names import node_number
from braidlog.model.runtime.cooperative import YieldCounter
from braidlog.partition.fetch.long_polls import wait_committed
from braidlog.partition.hosted_log import Role
from braidlog.replication.assignment import Assignment
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.connection import ClientConnection
from braidlog.wire.cursus.failures import ErrorCode as E
from braidlog.wire.cursus.failures import Failure, echo
from braidlog.wire.cursus.messages import Request

NO_LEADER = "none"
"""Replaces an unknown address: no value in a list is empty."""
UNKNOWN_END = -1
"""Replaces a log end offset that this node does not know."""
ELSEWHERE = "another node serves it"
GROUPS_CALL = "cursus-groups"


def list_cluster(_: Request, services: Services, conversation: Conversation) -> a.BrokerList | Failure:
    if not services.routing.has_other_nodes:
        return Failure.of(E.DISTRIBUTION_NOT_ENABLED)
    return a.BrokerList(_brokers(services, conversation))


def _brokers(services: Services, conversation: Conversation) -> tuple[a.BrokerStatus, ...]:
    return tuple(map(_broker, services.routing.brokers(DOOR, conversation.address)))


def _broker(found: Broker) -> a.BrokerStatus:
    at = show_address((found.host, found.port))
    return a.BrokerStatus(str(found.number), at, "inactive" if found.is_fenced else "active", at)


async def cluster_status(request: Request, services: Services, conversation: Conversation) -> a.ClusterReport | Failure:
    if not services.routing.has_other_nodes:
        return _alone(request)
    brokers = _brokers(services, conversation)
    partitions: list[a.PartitionStatus] = []
    pace = YieldCounter()
    for name in services.authorize.visible(conversation.principal, services.hosting.names()):
        topic = services.metadata.image.topics.get(name)
        if topic is not None and not topic.holder:
            await pace.step(topic.partitions)
            partitions += [_partition(topic, number, known) for number, known in enumerate(topic.assignments)]
    leader = services.routing.address(services.routing.controller, DOOR, conversation.address)
    active = sum(each.status == "active" for each in brokers)
    return a.ClusterReport(
        a.ClusterStatus(
            raft_leader="" if leader is None else show_address(leader),
            raft_applied_index=services.metadata.seq,
            broker_count=len(brokers),
            active_brokers=active,
            inactive_brokers=len(brokers) - active,
            partition_count=len(partitions),
            leaderless_partitions=sum(not each.leader_available for each in partitions),
            under_replicated_partitions=sum(each.under_replicated for each in partitions),
            min_isr_unsatisfied_partitions=sum(each.min_isr_unsatisfied for each in partitions),
            healthy=all(each.healthy for each in partitions),
            brokers=brokers,
            partitions=tuple(partitions),
        )
    )


def _partition(topic: Topic, number: int, known: Assignment) -> a.PartitionStatus:
    is_led, in_sync = known.leader is not None, len(known.in_sync)
    is_under, is_below = in_sync < len(known.replicas), in_sync < topic.min_in_sync
    return a.PartitionStatus(
        key=f"{topic.name}-{number}",
        topic=topic.name,
        partition=number,
        leader=_named(known.leader),
        leader_epoch=known.leader_epoch,
        replicas=tuple(map(str, known.replicas)),
        isr=tuple(map(str, known.in_sync)),
        expected_replicas=len(known.replicas),
        in_sync_replicas=in_sync,
        min_in_sync_replicas=topic.min_in_sync,
        leader_available=is_led,
        under_replicated=is_under,
        min_isr_unsatisfied=is_below,
        healthy=is_led and not is_under and not is_below,
    )


def leader_of(topic: str, number: int, services: Services, conversation: Conversation) -> tuple[str, int]:
    """Return the leader's address, and its epoch. A single node that follows a partition does not know its leader."""
    known = services.routing.assignment(topic, number)
    if known is None:
        hosted = services.hosting.partition(topic, number)
        at = conversation.address if hosted.role is Role.LEADER else None
        return NO_LEADER if at is None else show_address(at), hosted.leader_epoch
    own = None if conversation.is_forwarded else conversation.address
    at = services.routing.leader_address(topic, number, DOOR, own)
    return NO_LEADER if at is None else show_address(at), known.leader_epoch


def is_of_several_nodes(message: Any) -> bool:  # noqa: ANN401 - any request of the table
    """Return whether this node must merge answers of several nodes for the request."""
    match message:
        case r.ListOffsets():
            return message.partition is None
        case r.Consume():
            return is_pattern(message.topic)
    return False


async def list_offsets(message: r.ListOffsets, services: Services, conversation: Conversation) -> a.OffsetList:
    """Return offsets of one partition, or of all, each from its leader."""
    topic = message.topic
    if message.partition is not None:
        return await _own_offsets(topic, [message.partition], services)
    numbers = range(services.hosting.meta(topic).partitions)
    led = {number for number in numbers if is_led_here(services, topic, number)}
    own = await _own_offsets(topic, sorted(led), services)
    if conversation.is_forwarded:
        return own
    away = {number: NotLeaderError(topic, number, ELSEWHERE) for number in numbers if number not in led}
    here = partial(_own_offsets, topic, services=services)
    answers = await ask_leaders(away, lambda _: message, services, conversation, here)
    found = {each.partition: each for answer in (own, *answers) for each in answer.offsets}
    for number in numbers:
        if number not in found:
            raise NotLeaderError(topic, number, f"the leader of {topic}/{number} has just changed; retry")
    return a.OffsetList(topic, len(numbers), tuple(found[number] for number in numbers))


async def _own_offsets(topic: str, numbers: Sequence[int], services: Services) -> a.OffsetList:
    hosted = [services.hosting.partition(topic, number) for number in numbers]
    for partition in hosted:
        partition.require_leader()
    await wait_committed(hosted, services.runtime, COMMIT_SECONDS_MAX)
    shown = [a.OffsetRange(h.number, h.start_offset, h.high_watermark, h.end_offset, h.high_watermark) for h in hosted]
    return a.OffsetList(topic, len(shown), tuple(shown))


async def group_names(services: Services) -> set[str]:
    """Return all groups, each shard's from its coordinator. Raises if a coordinator does not respond."""
    shards = range(SHARDS) if services.coordinators.has_shards else ()
    answers = await services.forwarding.together([_groups_of_shard(number, services) for number in shards])
    names = set[str]()
    for each in answers:
        if isinstance(each, BrokerError):
            raise each
        names.update(each)
    return names


async def _groups_of_shard(number: int, services: Services) -> list[str]:
    async def here() -> list[str]:
        return list(services.coordinators.in_shard(number).groups.names())

    return await services.forwarding.at_owner(GROUPS_CALL, number, list[str], here)


async def answer_groups(body: bytes, services: Services) -> bytes:
    """Return the groups of one shard to another node."""
    number = read_asked(body, int)
    return msgspec.msgpack.encode(list(services.coordinators.in_shard(number).groups.names()))


async def describe_at_leaders(
    message: r.Describe, shown: dict[int, a.PartitionDescription], services: Services, principal: str
) -> None:
    """Fetch the offsets of partitions that other nodes lead from their leaders. If a leader does not respond, this
    node's values stay.
    """
    routing, led = services.routing, dict[int, list[int]]()
    for number in shown:
        known = routing.assignment(message.topic, number)
        if known is not None and known.leader not in (None, routing.own_number):
            led.setdefault(known.leader, []).append(number)
    for leader in sorted(filter(routing.is_live, led)):
        client = ClientConnection()
        call = Call(DOOR, principal, client.request(message), changes=False)
        try:
            client.receive(await services.forwarding.ask(leader, call))
        except BrokerError:
            continue
        told = client.next_event()
        found = {each.id: each for each in told.partitions} if isinstance(told, a.TopicDescription) else {}
        for number in led[leader]:
            if number in found:
                at = found[number]
                shown[number] = msgspec.structs.replace(shown[number], leo=at.leo, hwm=at.hwm)


async def elect_leader(request: Request, services: Services, _: Conversation) -> a.LeaderChosen | Failure:
    message: r.ElectLeader = request.message
    number, before = node_number(message.broker), services.metadata.image.assignment(message.topic, message.partition)
    if not services.routing.has_other_nodes:
        return _alone(request)
    if number is None:
        return _rejected(message, "a node must be given by its number; LIST_CLUSTER lists them")
    try:
        changed = await services.replica_moves.elect(message.topic, message.partition, number)
    except BrokerError as error:
        if error.reason is not Reason.REPLICA_NOT_FOUND:
            raise
        return _rejected(message, text_of(error))
    after = services.metadata.image.assignment(message.topic, message.partition)
    return a.LeaderChosen(
        message.topic,
        message.partition,
        previous_leader=_named(before.leader),
        leader=_named(after.leader),
        leader_epoch=after.leader_epoch,
        changed=changed,
    )


def _rejected(message: r.ElectLeader, reason: str) -> Failure:
    place = {"topic": echo(message.topic), "partition": message.partition, "broker": echo(message.broker)}
    return Failure.of(E.LEADER_ELECTION_REJECTED, **place, reason=reason)


def _named(node: int | None) -> str:
    return "" if node is None else str(node)


def _alone(request: Request) -> Failure:
    return Failure.of(E.DISTRIBUTION_REQUIRED, command=request.operation.name)
