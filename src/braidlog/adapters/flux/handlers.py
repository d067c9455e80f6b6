"""Handlers of Flux's requests: translate, call the service, translate back.

Flux's conventions (the Flux page, §4): inclusive watermarks, generations that begin at two, numbered replicas of
which 0 is the leader, topics created on first use. Does not handle: lines, sockets.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import msgspec

from braidlog.adapters.contract import Conversation
from braidlog.adapters.flux.errors import failed
from braidlog.adapters.flux.services import Services
from braidlog.adapters.routing import ForwardingAdapter, Route, named
from braidlog.broker.coordination.coordinator import Coordinator
from braidlog.broker.topics import Placed
from braidlog.cluster.metadata.events import FIRST_LEADER_EPOCH
from braidlog.codec.batch.records import encode_batch
from braidlog.coordinator.groups.assignors import Assignor
from braidlog.coordinator.groups.group import Membership
from braidlog.coordinator.offsets import Commit
from braidlog.model.errors import BrokerError, NotLeaderError, Reason
from braidlog.model.names import node_number
from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.partition.produce.append import Acks
from braidlog.security.authorization import Kind, Operation
from braidlog.wire.flux import messages as m
from braidlog.wire.flux.connection import ServerConnection
from braidlog.wire.flux.lines import write_request
from braidlog.wire.flux.operations import REPLICAS_MAX
from braidlog.wire.flux.partitioner import partition_for_key
from braidlog.wire.flux.records import LINE_BYTES_MAX, answer_records

PARTITIONS = 3
"""Partitions of a topic that is created on first use (the Flux page, §4)."""

RECORDS_PER_ANSWER_MAX = 50_000
"""Records of a CONSUME without `max`: as many as fit one slice of the event loop; a client takes twice as many."""
COPIED_PER_ANSWER = 100
"""Records of a BROKER_FETCH without a count."""
MIN_IN_SYNC = 2
ACKS_TIMEOUT_MS = 2_000
SESSION_TIMEOUT_MS = 10_000

_GENERATION_SHIFT = 1
"""Flux counts generations from a group's creation, braidlog from its first member: the first JOIN of a new group
gives 2.
"""

_LEADER = 0
_ACKS = {m.Acks.NONE: Acks.NONE, m.Acks.LEADER: Acks.LEADER, m.Acks.ALL: Acks.ALL}
_ASSIGNORS = {m.Assignor.ROUND_ROBIN: Assignor.ROUND_ROBIN, m.Assignor.RANGE: Assignor.RANGE, None: None}
_ROLES = {m.Role.LEADER: Role.LEADER, m.Role.FOLLOWER: Role.FOLLOWER}
_METADATA_OVERHEAD_BYTES = 64 * 1024  # the id, the brokers' numbers and the text around them


# --- records ----------------------------------------------------------------------------------------------------------------


async def produce(
    request: m.Produce, services: Services, conversation: Conversation, *, replicas: int = 1
) -> m.Produced:
    partitions = await _first_use(request.topic, services, conversation, replicas)
    partition = partition_for_key(request.key or b"", partitions)
    hosted = services.hosting.partition(request.topic, partition)
    hosted.require_leader()  # before anything is created
    batch = encode_batch([request.value], keys=[request.key], base_timestamp=services.runtime.now_ms())
    appended = await services.append.append(
        request.topic,
        partition,
        batch,
        acks=_ACKS[request.acks],
        timeout_ms=ACKS_TIMEOUT_MS,
        in_sync_min=min(MIN_IN_SYNC, hosted.replicas.replication_factor),
    )
    return m.Produced(partition, appended.base_offset, _inclusive(hosted.high_watermark))


async def consume(request: m.Consume, services: Services, conversation: Conversation, *, replicas: int = 1) -> m.Answer:
    await _first_use(request.topic, services, conversation, replicas)
    found = await services.fetch.records(
        request.topic,
        request.partition,
        request.offset,
        bytes_max=LINE_BYTES_MAX,
        records_max=min(request.records_max or RECORDS_PER_ANSWER_MAX, RECORDS_PER_ANSWER_MAX),
        wait_ms=request.wait_ms,
        leader_only=True,
        beyond_end=True,
    )
    return answer_records(request, found.records, _inclusive(found.high_watermark))


async def _first_use(topic: str, services: Services, conversation: Conversation, replicas: int) -> int:
    """Return the topic's number of partitions; create it if it does not exist and the client may create topics.

    It gets min.insync.replicas=1: the stricter acks=all is Flux's own rule and does not apply to other protocols.
    """
    if not services.hosting.exists(topic):
        services.authorize.check(conversation.principal, Operation.CREATE, topic)
    return (await services.topics.use(topic, PARTITIONS, _followers(replicas), by=conversation.principal)).partitions


def _followers(replicas: int) -> list[str]:
    return [str(number) for number in range(1, replicas)]


def _inclusive(high_watermark: int) -> int:
    """Return the last committed offset; -1 if there is none."""
    return high_watermark - 1


# --- groups -----------------------------------------------------------------------------------------------------------------


async def join(
    request: m.Join, services: Services, conversation: Conversation, coordinator: Coordinator, *, replicas: int = 1
) -> m.Joined:
    await _first_use(request.topic, services, conversation, replicas)
    membership = await coordinator.groups.join(
        request.group,
        request.consumer_id,
        [request.topic],
        assignor=_ASSIGNORS[request.assignor],
        default_assignor=Assignor.ROUND_ROBIN,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        by=conversation.principal,
    )
    return m.Joined(membership.generation + _GENERATION_SHIFT, _assigned_partitions(membership, request.topic))


def sync(request: m.Sync, _: Services, __: Conversation, coordinator: Coordinator) -> m.Synced:
    membership = _member(request, coordinator)
    return m.Synced(membership.generation + _GENERATION_SHIFT, _assigned_partitions(membership, request.topic))


def heartbeat(request: m.Heartbeat, _: Services, __: Conversation, coordinator: Coordinator) -> m.HeartbeatAccepted:
    _member(request, coordinator)
    return m.HeartbeatAccepted()


async def leave(request: m.Leave, _: Services, __: Conversation, coordinator: Coordinator) -> m.Left:
    membership = _member(request, coordinator)
    await coordinator.groups.leave(request.group, request.consumer_id, membership.generation)
    return m.Left()


async def commit(request: m.Commit, _: Services, __: Conversation, coordinator: Coordinator) -> m.Committed:
    membership = _member(request, coordinator)
    # The published clients commit the offset after the last processed one, as the services store it.
    commits = [Commit(request.topic, request.partition, request.offset)]
    await coordinator.groups.commit(request.group, request.consumer_id, membership.generation, commits)
    return m.Committed()


def committed(request: m.ReadOffset, _: Services, __: Conversation, coordinator: Coordinator) -> m.OffsetRead:
    found = coordinator.offsets.committed(request.group, request.topic, request.partition)
    return m.OffsetRead(0 if found is None else found.offset)


def _member(request: m.Sync | m.Heartbeat | m.Leave | m.Commit, coordinator: Coordinator) -> Membership:
    """Return the membership of a request, if its generation is current."""
    membership = coordinator.groups.sync(request.group, request.consumer_id, request.generation - _GENERATION_SHIFT)
    _assigned_partitions(membership, request.topic)
    return membership


def _assigned_partitions(membership: Membership, topic: str) -> tuple[int, ...]:
    """Return a member's partitions of a topic. In Flux a group has one topic: with another, the group does not exist."""
    if topic not in membership.assignment:
        raise BrokerError(Reason.GROUP_NOT_FOUND, f"member {membership.member!r} does not read topic {topic!r}")
    return tuple(membership.assignment[topic])


# --- replicas ---------------------------------------------------------------------------------------------------------------


def replica_fetch(request: m.ReplicaFetch, services: Services, _: Conversation) -> m.ReplicaFetched:
    return m.ReplicaFetched(request.replica_id, *_acknowledged(request, request.replica_id, services))


def broker_replica_ack(request: m.BrokerReplicaAck, services: Services, _: Conversation) -> m.BrokerReplicaAcked:
    told = _acknowledged(request, request.follower_id, services)
    return m.BrokerReplicaAcked(request.topic, request.partition, request.follower_id, *told)


def _acknowledged(
    request: m.ReplicaFetch | m.BrokerReplicaAck, follower: int, services: Services
) -> tuple[int, int, tuple[int, ...], bool]:
    """Report a follower's last offset, inclusive, to the services, which expect its next offset.

    In a cluster the follower is an observer: listed, but never counted.
    """
    hosted = services.fetch.replica_fetched(request.topic, request.partition, str(follower), request.offset + 1)
    watermark, is_under_replicated = _inclusive(hosted.high_watermark), hosted.replicas.is_under_replicated
    return request.offset, watermark, _in_sync(request.topic, hosted, services), is_under_replicated


async def broker_fetch(request: m.BrokerFetch, services: Services, _: Conversation) -> m.Answer:
    """A follower also copies uncommitted records: they become committed once followers have them."""
    found = await services.fetch.records(
        request.topic,
        request.partition,
        request.offset,
        bytes_max=LINE_BYTES_MAX,
        records_max=min(request.records_max or COPIED_PER_ANSWER, RECORDS_PER_ANSWER_MAX),
        committed_only=False,
        replica=str(request.follower_id),
        leader_only=True,
        beyond_end=True,
    )
    return answer_records(request, found.records, _inclusive(found.high_watermark))


def _in_sync(topic: str, hosted: Partition, services: Services) -> tuple[int, ...]:
    """Return the numbers of the in-sync replicas, the leader's first; a replica with a name from another protocol has
    none.
    """
    numbers = map(node_number, hosted.replicas.in_sync[1:])
    leader = _LEADER if services.routing.is_held_alone(topic) else services.routing.own_number
    return (leader, *sorted(number for number in numbers if number is not None))


async def set_partition_role(
    request: m.SetPartitionRole, services: Services, conversation: Conversation, *, replicas: int = 1
) -> m.PartitionRoleSet:
    await _first_use(request.topic, services, conversation, replicas)
    if not services.routing.is_held_alone(request.topic):
        await _assume(request, services)
        watermark = services.hosting.partition(request.topic, request.partition).high_watermark
        return m.PartitionRoleSet(request.topic, request.partition, request.role, _inclusive(watermark))
    hosted = await services.placement.set_role(request.topic, request.partition, _ROLES[request.role])
    return m.PartitionRoleSet(request.topic, request.partition, request.role, _inclusive(hosted.high_watermark))


async def _assume(request: m.SetPartitionRole, services: Services) -> None:
    """Where the cluster replicates a partition, roles follow the metadata: this node is elected if it is in sync, and
    follows after another node becomes leader.
    """
    own = services.routing.own_number
    if request.role is m.Role.LEADER:
        await services.replica_moves.elect(request.topic, request.partition, own)
    elif services.metadata.image.assignment(request.topic, request.partition).leader == own:
        raise BrokerError(
            Reason.UNAVAILABLE,
            f"node {own} leads {request.topic}/{request.partition}; use ADMIN_SET_PARTITION_LEADER to elect another",
        )


# --- administration ---------------------------------------------------------------------------------------------------------


async def create_topic(request: m.CreateTopic, services: Services, conversation: Conversation) -> m.TopicCreated:
    replicas = request.replication_factor
    if replicas > REPLICAS_MAX:
        raise BrokerError(Reason.INVALID_SETTING, f"a topic must have 1 to {REPLICAS_MAX} replicas, not {replicas}")
    followers, min_in_sync = _followers(replicas), min(MIN_IN_SYNC, replicas)
    meta = await services.topics.create(
        request.topic,
        request.partitions,
        followers=followers,
        min_in_sync=min_in_sync,
        placed=Placed(replicas),
        by=conversation.principal,
    )
    return m.TopicCreated(request.topic, meta.partitions, replicas, FIRST_LEADER_EPOCH, _index(services))


async def register_broker(request: m.RegisterBroker, services: Services, _: Conversation) -> m.BrokerRegistered:
    await services.brokers.register(request.broker_id, request.host, request.port, request.epoch)
    return m.BrokerRegistered(request.broker_id, request.host, request.port, FIRST_LEADER_EPOCH, _index(services))


def broker_heartbeat(request: m.BrokerHeartbeat, services: Services, _: Conversation) -> m.BrokerHeartbeatAccepted:
    services.brokers.heartbeat(request.broker_id)
    return m.BrokerHeartbeatAccepted(request.broker_id, FIRST_LEADER_EPOCH, _index(services))


async def fence_broker(request: m.FenceBroker, services: Services, _: Conversation) -> m.BrokerFenced:
    """Drain a node of the cluster until ADMIN_UNFENCE_BROKER or its next start. A node that is down is fenced
    already.
    """
    number = request.broker_id
    if not services.brokers.is_node(number):
        services.brokers.fence(number)
    elif services.routing.is_live(number):
        await services.replica_moves.drain(number, is_draining=True)
    return m.BrokerFenced(number, FIRST_LEADER_EPOCH, _index(services))


async def unfence_broker(request: m.UnfenceBroker, services: Services, _: Conversation) -> m.BrokerUnfenced:
    if not services.brokers.is_node(request.broker_id):
        services.brokers.unfence(request.broker_id)
    else:
        await services.replica_moves.drain(request.broker_id, is_draining=False)
    return m.BrokerUnfenced(request.broker_id, FIRST_LEADER_EPOCH, _index(services))


def reconcile_broker_health(
    request: m.ReconcileBrokerHealth, services: Services, _: Conversation
) -> m.BrokerHealthReconciled:
    """Fence other brokers only: nodes of a cluster watch each other."""
    return m.BrokerHealthReconciled(services.brokers.fence_silent(request.timeout_ms))


async def elect_topic_leaders(request: m.ElectTopicLeaders, services: Services, _: Conversation) -> m.LeadersChanged:
    """Elect the preferred leader of each replicated partition, if it is in sync. For unreplicated partitions that
    follow, this node becomes leader again unless another broker may lead them.
    """
    topic, numbers = request.topic, range(services.hosting.meta(request.topic).partitions)
    if not services.routing.is_held_alone(topic):
        outcomes = await services.replica_moves.elect_all(topic, numbers)
        return m.LeadersChanged(topic, sum(outcome is True for outcome in outcomes.values()))
    following = [n for n in numbers if services.hosting.partition(topic, n).role is not Role.LEADER]
    changed = following if services.brokers.is_only_one else []
    for number in changed:
        await services.placement.set_role(topic, number, Role.LEADER)
    return m.LeadersChanged(topic, len(changed))


async def set_partition_leader(
    request: m.SetPartitionLeader, services: Services, _: Conversation
) -> m.PartitionLeaderSet:
    if not services.routing.is_held_alone(request.topic):
        return await _elect(request, services)
    _require_all((request.leader, *request.in_sync), services)
    role = Role.LEADER if request.leader == services.brokers.own_number else Role.FOLLOWER
    hosted = await services.placement.set_role(request.topic, request.partition, role)
    return m.PartitionLeaderSet(
        request.topic, request.partition, request.leader, request.in_sync, hosted.leader_epoch, _index(services)
    )


async def _elect(request: m.SetPartitionLeader, services: Services) -> m.PartitionLeaderSet:
    """Elect an in-sync replica. The request's list of in-sync replicas is checked, not applied."""
    await services.replica_moves.elect(request.topic, request.partition, request.leader)
    known = services.metadata.image.assignment(request.topic, request.partition)
    return m.PartitionLeaderSet(
        request.topic, request.partition, request.leader, known.in_sync, known.leader_epoch, _index(services)
    )


def _require_all(numbers: Iterable[int], services: Services) -> None:
    for number in set(numbers):
        services.brokers.require(number)


def get_metadata(_: m.GetMetadata, services: Services, conversation: Conversation) -> m.Metadata:
    topics = services.authorize.visible(conversation.principal, services.hosting.names())
    if sum(len(topic) + 1 for topic in topics) > LINE_BYTES_MAX - _METADATA_OVERHEAD_BYTES:
        raise BrokerError(Reason.UNAVAILABLE, f"the names of {len(topics)} topics do not fit a line")
    return m.Metadata(tuple(topics), tuple(services.brokers.numbers()), tuple(services.brokers.fenced))


def _index(services: Services) -> int:
    """Return the metadata version: earlier decisions have a lower one."""
    return services.metadata.seq


def ping(_: m.Ping, __: Services, ___: Conversation) -> m.Pong:
    return m.Pong()


# --- routes -----------------------------------------------------------------------------------------------------------------


def _topic(request: Any) -> str | None:  # noqa: ANN401 - those with a topic have it under this name
    topic: str = request.topic
    return topic


def _group(request: Any) -> str:  # noqa: ANN401
    group: str = request.group
    return group


_GROUP_READ = (named(Operation.READ, Kind.GROUP, lambda request: request.group),)
_GROUP_DESCRIBE = (named(Operation.DESCRIBE, Kind.GROUP, lambda request: request.group),)


class FluxAdapter(ForwardingAdapter):
    """Flux behind a listener. Answers have their request's id, so a slow request delays no other.

    Keys choose partitions, so one client's records have many leaders: they are forwarded, unless `forward` is off.
    """

    dialect = "flux"
    uses = Services
    ordered = False
    routes: ClassVar[Mapping[type, Route]] = {
        m.Produce: Route(produce, Operation.WRITE, _topic),
        m.Consume: Route(consume, Operation.READ, _topic),
        m.Join: Route(join, Operation.READ, _topic, needs=_GROUP_READ, state_of=_group),
        m.Sync: Route(sync, Operation.READ, _topic, needs=_GROUP_READ, state_of=_group),
        m.Heartbeat: Route(heartbeat, Operation.READ, _topic, needs=_GROUP_READ, state_of=_group),
        m.Leave: Route(leave, Operation.READ, _topic, needs=_GROUP_READ, state_of=_group),
        m.Commit: Route(commit, Operation.READ, _topic, needs=_GROUP_READ, state_of=_group),
        m.ReadOffset: Route(committed, Operation.READ, _topic, needs=_GROUP_DESCRIBE, state_of=_group),
        m.ReplicaFetch: Route(replica_fetch, Operation.CLUSTER, _topic),
        m.BrokerFetch: Route(broker_fetch, Operation.CLUSTER, _topic),
        m.BrokerReplicaAck: Route(broker_replica_ack, Operation.CLUSTER, _topic),
        m.SetPartitionRole: Route(set_partition_role, Operation.CLUSTER, _topic),
        m.CreateTopic: Route(create_topic, Operation.CREATE, _topic),
        m.RegisterBroker: Route(register_broker, Operation.CLUSTER),
        m.BrokerHeartbeat: Route(broker_heartbeat, Operation.CLUSTER),
        m.ReconcileBrokerHealth: Route(reconcile_broker_health, Operation.CLUSTER),
        m.FenceBroker: Route(fence_broker, Operation.CLUSTER),
        m.UnfenceBroker: Route(unfence_broker, Operation.CLUSTER),
        m.ElectTopicLeaders: Route(elect_topic_leaders, Operation.CLUSTER, _topic),
        m.SetPartitionLeader: Route(set_partition_leader, Operation.CLUSTER, _topic),
        m.GetMetadata: Route(get_metadata, Operation.DESCRIBE),
        m.Ping: Route(ping, None),
    }

    def __init__(self, services: Services, *, replication_factor: int = 1, forward: bool = True) -> None:
        super().__init__(services)
        self._is_forwarding = forward
        self._services: Services = services
        using = {kind: self.routes[kind] for kind in (m.Produce, m.Consume, m.Join, m.SetPartitionRole)}
        self._routes = dict(self.routes) | {
            kind: msgspec.structs.replace(route, handler=partial(route.handler, replicas=replication_factor))
            for kind, route in using.items()
        }

    def open(self) -> ServerConnection:
        return ServerConnection()

    def frame_of(self, request: m.Request) -> bytes:
        return write_request(request)

    def may_forward(self, request: m.Request) -> bool:
        return self._is_forwarding and super().may_forward(request)

    def wait_ms(self, request: m.Request) -> int:
        return request.wait_ms if isinstance(request, m.Consume) else 0

    def handle(self, conversation: Conversation, request: m.Request) -> Any:  # noqa: ANN401
        return self.serve(self._routes[type(request)], conversation, request)

    def failure(self, request: m.Request, error: Exception) -> m.Failed:
        leader = None
        stays = self._routes[type(request)].operation is Operation.CLUSTER or not self.may_forward(request)
        if isinstance(error, NotLeaderError) and stays:
            leader = self._services.routing.leader_address(error.topic, error.number, self.dialect)
        return failed(error, leader)
