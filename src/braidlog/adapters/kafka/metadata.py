"""ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions.

docs/dialects/kafka.md lists the fields that clients rely on.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from braidlog.adapters.contract import Conversation
from braidlog.adapters.kafka.coordination.offsets_topic import OFFSETS_PARTITIONS, OFFSETS_TOPIC
from braidlog.adapters.kafka.errors import code_of
from braidlog.adapters.kafka.routes import Route, on_topics, refused, topics_by_id, whole
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topic_entries import DOOR, cluster_id, id_of, is_allowed, named, operations
from braidlog.adapters.routing import Deadline, Denied
from braidlog.broker.routing import Broker
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.names import check_topic_name
from braidlog.model.runtime.cooperative import YieldCounter
from braidlog.partition.hosted_log import Role
from braidlog.security.authorization import Operation
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request, Served, advertised_versions
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.rows import NO_UUID, UNASKED

PARTITIONS_TOLD_MAX = 2000
"""Maximum partitions of DescribeTopicPartitions, regardless of the request: Kafka's own limit."""
MAKING_MS = 10_000
"""Maximum time that one Metadata request may spend on creating topics, in total."""
NO_LEADER = -1
_VERSION_OF_TRANSACTIONS = "transaction.version"
_SUPPORTED = [c.ApiVersionsResponseSupportedFeature(_VERSION_OF_TRANSACTIONS, 0, 2)]
_FINALIZED = [c.ApiVersionsResponseFinalizedFeature(_VERSION_OF_TRANSACTIONS, 2, 2)]
_FEATURES_FROM_ZERO_SINCE = 4
"""The first version of ApiVersions whose clients accept a feature that begins at 0."""


class AutoCreation(msgspec.Struct, frozen=True):
    """Whether topics are created on request, and their number of partitions."""

    enabled: bool = True
    partitions: int = 1


class PartitionState(msgspec.Struct, frozen=True):
    """Fields of a partition that both answers share."""

    number: int
    error: E
    leader: int
    epoch: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
    offline: Sequence[int] = ()
    eligible: Sequence[int] = ()


class _Where(msgspec.Struct, frozen=True):
    """The nodes that clients of this listener can reach."""

    named: list[Broker]
    numbers: frozenset[int]
    """The live nodes among them."""

    @classmethod
    def of(cls, services: Services, conversation: Conversation) -> "_Where":
        found = services.routing.named(DOOR, conversation.address, services.runtime.monotonic())
        return cls(found, frozenset(each.number for each in found if not each.is_fenced))


# -- versions --------------------------------------------------------------------------------------------------


def api_versions(request: Request, _: Services, __: Conversation, *, served: Served) -> c.ApiVersionsResponse:
    message: c.ApiVersionsRequest = request.message
    return c.ApiVersionsResponse(
        api_keys=advertised_versions(served, message.client_software_name),
        supported_features=_SUPPORTED if request.version >= _FEATURES_FROM_ZERO_SINCE else [],
        finalized_features_epoch=0,
        finalized_features=_FINALIZED,
    )


# -- metadata --------------------------------------------------------------------------------------------------


async def metadata(
    request: Request, services: Services, conversation: Conversation, denied: Denied, *, creating: AutoCreation
) -> c.MetadataResponse:
    message: c.MetadataRequest = request.message
    pace = YieldCounter()
    where = _Where.of(services, conversation)
    make = partial(_create, message, services, conversation, creating, Deadline(services.runtime, MAKING_MS))
    topics = []
    for asked in _asked(request, services, conversation):
        topics.append(await _topic(asked, message, services, conversation, denied, make, where))
        await pace.step(1 + len(topics[-1].partitions))
    return c.MetadataResponse(
        brokers=[
            c.MetadataResponseBroker(each.number, each.host, each.port, each.rack or None) for each in where.named
        ],
        cluster_id=cluster_id(services),
        controller_id=services.routing.controller,
        topics=topics,
        cluster_authorized_operations=(
            operations(services, conversation, None) if message.include_cluster_authorized_operations else UNASKED
        ),
    )


def _asked(request: Request, services: Services, conversation: Conversation) -> Sequence[c.MetadataRequestTopic]:
    """Return the requested topics, each once: a short name may mean many partitions.

    For all topics (a null list, in version 0 an empty one), return those that the client may describe.
    """
    topics: list[c.MetadataRequestTopic] | None = request.message.topics
    if topics is None or (request.version == 0 and not topics):
        return [c.MetadataRequestTopic(name=name) for name in _visible(services, conversation)]
    return list(dict.fromkeys(topics))


def _visible(services: Services, conversation: Conversation) -> list[str]:
    """In a new cluster, `__consumer_offsets` does not exist before the first group, as in Kafka."""
    internal = [OFFSETS_TOPIC] if services.routing.has_shards else []
    return services.authorize.visible(conversation.principal, [*internal, *services.hosting.names()])


async def _topic(
    asked: c.MetadataRequestTopic,
    message: c.MetadataRequest,
    services: Services,
    conversation: Conversation,
    denied: Denied,
    make: Callable[[str], Awaitable[E]],
    where: _Where,
) -> c.MetadataResponseTopic:
    name = named(services, asked.name, asked.topic_id)
    if name is None:
        return c.MetadataResponseTopic(E.UNKNOWN_TOPIC_ID, None, asked.topic_id)
    if name in denied:
        shown = None if asked.topic_id != NO_UUID else name  # a client that knows only the id does not learn the name
        return c.MetadataResponseTopic(E.TOPIC_AUTHORIZATION_FAILED, shown, asked.topic_id)
    if name != OFFSETS_TOPIC and not services.hosting.exists(name):
        code = await make(name)
        if code is not E.NONE:
            return c.MetadataResponseTopic(code, name)
    if name == OFFSETS_TOPIC and not services.routing.has_shards:
        await services.coordinators.ensure_shards()
    return c.MetadataResponseTopic(
        name=name,
        topic_id=id_of(services, name),
        is_internal=name == OFFSETS_TOPIC,
        partitions=[_partition(_state(name, number, services, where)) for number in range(_count(name, services))],
        topic_authorized_operations=(
            operations(services, conversation, name) if message.include_topic_authorized_operations else UNASKED
        ),
    )


async def _create(
    message: c.MetadataRequest,
    services: Services,
    conversation: Conversation,
    creating: AutoCreation,
    deadline: Deadline,
    name: str,
) -> E:
    """Create a requested topic, if both the client and the node allow it."""
    try:
        check_topic_name(name)
        if not (creating.enabled and message.allow_auto_topic_creation):
            return E.UNKNOWN_TOPIC_OR_PARTITION
        if not is_allowed(services, conversation, Operation.CREATE, name):
            return E.TOPIC_AUTHORIZATION_FAILED
        await deadline.of(services.topics.use(name, creating.partitions, by=conversation.principal))
    except (BrokerError, StorageFault) as error:
        code = code_of(error)
        # Too many topics, or too little time: after this code clients assume that the topic is being created, and
        # retry.
        return E.LEADER_NOT_AVAILABLE if code in (E.COORDINATOR_NOT_AVAILABLE, E.REQUEST_TIMED_OUT) else code
    return E.NONE


def _count(name: str, services: Services) -> int:
    return OFFSETS_PARTITIONS if name == OFFSETS_TOPIC else services.hosting.meta(name).partitions


def _state(name: str, number: int, services: Services, where: _Where) -> PartitionState:
    """Return a replicated partition's state from the metadata; an unreplicated partition's from this node."""
    routing = services.routing
    known = routing.shard(number) if name == OFFSETS_TOPIC else routing.assignment(name, number)
    if known is None:
        return (_shard_state if name == OFFSETS_TOPIC else partial(_own_state, name))(number, services)
    error, leader = E.NONE, known.leader
    if leader is None:
        error = E.LEADER_NOT_AVAILABLE
    elif leader not in where.numbers:
        error = E.LISTENER_NOT_FOUND
    return PartitionState(
        number,
        error,
        NO_LEADER if leader is None or error is not E.NONE else leader,
        known.leader_epoch,
        known.replicas,
        known.in_sync,
        [node for node in known.replicas if node not in where.numbers],
        known.eligible,
    )


def _shard_state(number: int, services: Services) -> PartitionState:
    """Return the state of a shard of a single node, or of one whose log is created with the first coordinator."""
    leader = services.routing.leader_of_shard(number)
    if leader is None:
        return PartitionState(number, E.LEADER_NOT_AVAILABLE, NO_LEADER, -1, [], [])
    return PartitionState(number, E.NONE, leader, 0, [leader], [leader])


def _own_state(name: str, number: int, services: Services) -> PartitionState:
    """Return a partition without a leader if it cannot be opened, or if another node leads it."""
    own = services.brokers.own_number
    try:
        hosted = services.hosting.partition(name, number)
    except StorageFault as fault:
        return PartitionState(number, code_of(fault), NO_LEADER, -1, [own], [own])
    if hosted.role is not Role.LEADER:
        return PartitionState(number, E.LEADER_NOT_AVAILABLE, NO_LEADER, hosted.leader_epoch, [own], [own])
    return PartitionState(number, E.NONE, own, hosted.leader_epoch, [own], [own])


def _partition(state: PartitionState) -> c.MetadataResponsePartition:
    return c.MetadataResponsePartition(
        state.error,
        state.number,
        state.leader,
        state.epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.in_sync),
        offline_replicas=list(state.offline),
    )


def refuse_metadata(request: Request, code: E, _: str) -> c.MetadataResponse:
    topics = request.message.topics or []
    return c.MetadataResponse(
        topics=[c.MetadataResponseTopic(code, topic.name or "", topic.topic_id) for topic in topics], error_code=code
    )


# -- cluster ---------------------------------------------------------------------------------------------------

BROKERS = 1
REFUSE_CLUSTER = whole(c.DescribeClusterResponse)


def describe_cluster(request: Request, services: Services, conversation: Conversation) -> c.DescribeClusterResponse:
    message: c.DescribeClusterRequest = request.message
    if message.endpoint_type != BROKERS:
        # Controllers are no nodes of their own here, and have no address.
        return REFUSE_CLUSTER(request, E.UNSUPPORTED_ENDPOINT_TYPE, "this node describes brokers only")
    found = services.routing.brokers(DOOR, conversation.address)
    return c.DescribeClusterResponse(
        cluster_id=cluster_id(services),
        controller_id=services.routing.controller,
        brokers=[
            c.DescribeClusterResponseBroker(each.number, each.host, each.port, each.rack or None, each.is_fenced)
            for each in found
            if message.include_fenced_brokers or not each.is_fenced
        ],
        cluster_authorized_operations=(
            operations(services, conversation, None) if message.include_cluster_authorized_operations else UNASKED
        ),
    )


# -- topics, a page at a time ----------------------------------------------------------------------------------


async def describe_topic_partitions(
    request: Request, services: Services, conversation: Conversation, denied: Denied
) -> c.DescribeTopicPartitionsResponse:
    message: c.DescribeTopicPartitionsRequest = request.message
    names = sorted({topic.name for topic in message.topics})
    if OFFSETS_TOPIC in names and OFFSETS_TOPIC not in denied and not services.routing.has_shards:
        await services.coordinators.ensure_shards()
    if not names:
        names = _visible(services, conversation)
    first = 0
    if message.cursor is not None:
        names = [name for name in names if name >= message.cursor.topic_name]
        first = max(message.cursor.partition_index, 0)
    room = min(max(message.response_partition_limit, 1), PARTITIONS_TOLD_MAX)
    topics: list[c.DescribeTopicPartitionsResponseTopic] = []
    where = _Where.of(services, conversation)
    for name in names:
        if not room:
            return c.DescribeTopicPartitionsResponse(topics=topics, next_cursor=_cursor(name, 0))
        start = first if message.cursor is not None and name == message.cursor.topic_name else 0
        if name in denied:
            topics.append(c.DescribeTopicPartitionsResponseTopic(E.TOPIC_AUTHORIZATION_FAILED, name))
            continue
        topic = _described(name, start, room, services, conversation, where)
        topics.append(topic)
        room -= len(topic.partitions)
        reached = start + len(topic.partitions)
        if not topic.error_code and reached < _count(name, services):
            return c.DescribeTopicPartitionsResponse(topics=topics, next_cursor=_cursor(name, reached))
    return c.DescribeTopicPartitionsResponse(topics=topics)


def _cursor(name: str, partition: int) -> c.TopicPartitionCursor:
    return c.TopicPartitionCursor(name, partition)


def _described(
    name: str, start: int, room: int, services: Services, conversation: Conversation, where: _Where
) -> c.DescribeTopicPartitionsResponseTopic:
    if name != OFFSETS_TOPIC and not services.hosting.exists(name):
        return c.DescribeTopicPartitionsResponseTopic(E.UNKNOWN_TOPIC_OR_PARTITION, name)
    count = _count(name, services)
    return c.DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=id_of(services, name),
        is_internal=name == OFFSETS_TOPIC,
        partitions=[
            c.DescribeTopicPartitionsResponsePartition(
                state.error,
                state.number,
                state.leader,
                state.epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.in_sync),
                eligible_leader_replicas=list(state.eligible),  # the Java client does not accept null
                last_known_elr=[],
                offline_replicas=list(state.offline),
            )
            for state in (_state(name, number, services, where) for number in range(start, min(start + room, count)))
        ],
        topic_authorized_operations=operations(services, conversation, name),
    )


def routes(creating: AutoCreation, served: Callable[[], Served]) -> dict[Key, Route]:
    """`served` is called per request: the table of all routes includes this one."""

    def tell_versions(request: Request, services: Services, conversation: Conversation) -> c.ApiVersionsResponse:
        return api_versions(request, services, conversation, served=served())

    return {
        Key.API_VERSIONS: Route(tell_versions, None, refusal=whole(c.ApiVersionsResponse), before_authentication=True),
        Key.METADATA: on_topics(
            partial(metadata, creating=creating), Operation.DESCRIBE, refuse_metadata, topics_by_id
        ),
        Key.DESCRIBE_CLUSTER: Route(describe_cluster, None, refusal=REFUSE_CLUSTER),
        Key.DESCRIBE_TOPIC_PARTITIONS: on_topics(
            describe_topic_partitions,
            Operation.DESCRIBE,
            refused(c.DescribeTopicPartitionsResponse, {"topics": "topics"}),
        ),
    }
