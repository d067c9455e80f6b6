"""Resolves topics by name or id, and reports what a client may do with a topic and which node leads it.

Produce and Fetch add the leader to an error, so that a client need not fetch metadata first (KIP-951).
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from braidlog.adapters.contract import Conversation
from braidlog.adapters.kafka.coordination.offsets_topic import OFFSETS_TOPIC, OFFSETS_TOPIC_ID
from braidlog.adapters.kafka.services import Services
from braidlog.replication.assignment import Assignment
from braidlog.security.authorization import Kind, Operation
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages.parts import CurrentLeader, NodeEndpoint
from braidlog.wire.kafka.rows import NO_UUID

OPERATION_BITS: dict[Operation, int] = {
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.CLUSTER: 9,
}
"""Kafka's operation numbers, which are also the bits in `authorized_operations`."""


DOOR = "kafka"
"""The name under which a node registers this protocol's listener."""
CLUSTER_BITS = {Operation.CREATE: (5,), Operation.DESCRIBE: (8,), Operation.CLUSTER: (7, 9, 10, 11, 12)}
"""The operations on the cluster: Alter, ClusterAction, DescribeConfigs, AlterConfigs and IdempotentWrite are one
permission here.
"""
REDIRECTED = (E.NOT_LEADER_OR_FOLLOWER, E.FENCED_LEADER_EPOCH)
GROUP_OPERATIONS = (Operation.READ, Operation.DELETE, Operation.DESCRIBE)


def is_allowed(services: Services, conversation: Conversation, operation: Operation, topic: str | None) -> bool:
    return services.authorize.is_allowed(conversation.principal, operation, topic)


def operations(services: Services, conversation: Conversation, name: str | None, kind: Kind = Kind.TOPIC) -> int:
    """Return the operations that this client may do on a topic, a group or (None) the cluster, as Kafka's bits."""
    is_allowed = services.authorize.is_allowed
    if name is None and kind is Kind.TOPIC:
        allowed = (bits for each, bits in CLUSTER_BITS.items() if is_allowed(conversation.principal, each, None))
        return sum(1 << bit for bits in allowed for bit in bits)
    wanted = GROUP_OPERATIONS if kind is Kind.GROUP else OPERATION_BITS
    return sum(1 << OPERATION_BITS[each] for each in wanted if is_allowed(conversation.principal, each, name, kind))


def named(services: Services, name: str | None, topic_id: bytes) -> str | None:
    """Return the topic's name, given by name or id; None for an unknown id."""
    if topic_id == OFFSETS_TOPIC_ID:
        return OFFSETS_TOPIC
    return services.hosting.name_of(topic_id.hex()) if topic_id != NO_UUID else name


def id_of(services: Services, name: str) -> bytes:
    if name == OFFSETS_TOPIC:
        return OFFSETS_TOPIC_ID
    return bytes.fromhex(services.hosting.meta(name).topic_id) if services.hosting.exists(name) else NO_UUID


def unknown(topic_id: bytes) -> E:
    """Return the code of an unknown topic: it differs for an id and a name."""
    return E.UNKNOWN_TOPIC_OR_PARTITION if topic_id == NO_UUID else E.UNKNOWN_TOPIC_ID


def cluster_id(services: Services) -> str:
    """Return the cluster's id, or a single node's, which is that of its data folder; in Kafka's format."""
    return base64.urlsafe_b64encode(bytes.fromhex(services.hosting.cluster_id)).rstrip(b"=").decode()


# -- leaders -------------------------------------------------------------------------------------------------------


def add_to_produce(answer: d.ProduceResponse, services: Services, conversation: Conversation) -> d.ProduceResponse:
    leaders = set()
    for topic in answer.responses:
        for at, each in enumerate(topic.partition_responses):
            if each.error_code in REDIRECTED and (known := _known(services, topic.name, topic.topic_id, each.index)):
                topic.partition_responses[at] = msgspec.structs.replace(each, current_leader=_leader(known))
                leaders.add(known.leader)
    return (
        msgspec.structs.replace(answer, node_endpoints=_where(leaders, services, conversation)) if leaders else answer
    )


def add_to_fetch(answer: d.FetchResponse, services: Services, conversation: Conversation) -> d.FetchResponse:
    leaders = set()
    for topic in answer.responses:
        for at, each in enumerate(topic.partitions):
            if each.error_code in REDIRECTED and (
                known := _known(services, topic.topic, topic.topic_id, each.partition_index)
            ):
                topic.partitions[at] = msgspec.structs.replace(each, current_leader=_leader(known))
                leaders.add(known.leader)
    return (
        msgspec.structs.replace(answer, node_endpoints=_where(leaders, services, conversation)) if leaders else answer
    )


def _known(services: Services, name: str, topic_id: bytes, number: int) -> Assignment | None:
    topic = named(services, name, topic_id)
    return None if topic is None else services.routing.assignment(topic, number)


def _leader(known: Assignment) -> CurrentLeader:
    """Return the epoch even without a leader: the client then waits for a later epoch."""
    return CurrentLeader(-1 if known.leader is None else known.leader, known.leader_epoch)


def _where(leaders: Iterable[int | None], services: Services, conversation: Conversation) -> list[NodeEndpoint]:
    return [
        NodeEndpoint(each.number, each.host, each.port, each.rack or None)
        for each in services.routing.brokers(DOOR, conversation.address)
        if each.number in leaders
    ]


PARTITIONS_MAX = 20_000

Partition = tuple[object, int]
"""Return the request's topic name or id, and the partition's number."""

LOOKING_UP: Mapping[Key, Callable[[Any, Any], Partition]] = MappingProxyType(
    {
        Key.FETCH: lambda topic, each: (topic.topic or topic.topic_id, each.partition),
        Key.LIST_OFFSETS: lambda topic, each: (topic.name, each.partition_index),
        Key.COUNT_RECORDS: lambda topic, each: (topic.name, each.partition_index),
        Key.OFFSET_FOR_LEADER_EPOCH: lambda topic, each: (topic.topic, each.partition),
    }
)
"""Requests with a lookup per partition. In other requests, a partition costs no more than its bytes."""


def excess(key: Key, message: Any) -> str | None:  # noqa: ANN401 - each API has its own message
    """Return how a request exceeds the limits; None if it does not."""
    partition = LOOKING_UP.get(key)
    if partition is None:
        return None
    topics = message.topics
    count = len(topics[0].partitions) if len(topics) == 1 else sum(len(topic.partitions) for topic in topics)
    if count <= 1 and len(topics) <= 1:
        return None
    if max(count, len(topics)) > PARTITIONS_MAX:
        return f"names {max(count, len(topics))} partitions, the limit is {PARTITIONS_MAX}"
    if len({partition(topic, each) for topic in topics for each in topic.partitions}) < count:
        return "names a partition more than once"
    return None
