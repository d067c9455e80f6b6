"""Elections, moves of replicas, nodes that are gone, and who agrees on it: what Kafka's tools ask a cluster for.

Knows: Kafka's words and codes for them. Refuses to know: how a move goes on (`broker/replica_moves.py`).
Invariant: every partition of a request has an answer of its own.
"""

from collections.abc import Iterable
from itertools import groupby

from braidlog.adapters.contract import Conversation
from braidlog.adapters.errors import text_of
from braidlog.adapters.kafka.errors import code_of, said_of_cluster
from braidlog.adapters.kafka.routes import Route, whole
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topics import DOOR
from braidlog.broker.access.authorize import Operation
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.slices import Pace
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import placement as r

PREFERRED = 0
METADATA_TOPIC = "__cluster_metadata"
"""The one topic that DescribeQuorum is asked about."""
NO_UNCLEAN = "kafka does not support unclean elections; supported: 0 (preferred)"


# -- elections -----------------------------------------------------------------------------------------------------


async def elect_leaders(request: Request, services: Services, _: Conversation) -> r.ElectLeadersResponse:
    message: r.ElectLeadersRequest = request.message
    asked = message.topic_partitions
    places: Iterable[tuple[str, int]]
    if asked is None:
        names = services.hosting.names()
        places = [(name, number) for name in names for number in range(services.hosting.meta(name).partitions)]
    else:
        places = dict.fromkeys((topic.topic, number) for topic in asked for number in topic.partitions)
    pace = Pace()
    told: dict[str, list[r.ElectLeadersResponsePartition]] = {}
    for name, number in places:
        await pace.step()
        code, text = await _elect_one(name, number, message.election_type, services)
        if asked is None and code is E.ELECTION_NOT_NEEDED:
            continue  # of all partitions those are told of which something has become
        told.setdefault(name, []).append(r.ElectLeadersResponsePartition(number, code, text))
    return r.ElectLeadersResponse(
        replica_election_results=[r.ElectLeadersResponseTopic(name, found) for name, found in told.items()]
    )


async def _elect_one(name: str, number: int, kind: int, services: Services) -> tuple[E, str | None]:
    if kind != PREFERRED:
        return E.ELIGIBLE_LEADERS_NOT_AVAILABLE, NO_UNCLEAN
    try:
        is_other = await services.replica_moves.elect(name, number)
    except BrokerError as error:
        away = error.reason is Reason.REPLICA_NOT_FOUND
        return E.PREFERRED_LEADER_NOT_AVAILABLE if away else code_of(error), text_of(error)
    except StorageFault as fault:
        return code_of(fault), text_of(fault)
    return (E.NONE, None) if is_other else (E.ELECTION_NOT_NEEDED, "the preferred replica leads")


def refuse_to_elect(request: Request, code: E, text: str) -> r.ElectLeadersResponse:
    topics = request.message.topic_partitions or []
    results = [
        r.ElectLeadersResponseTopic(
            each.topic, [r.ElectLeadersResponsePartition(number, code, text) for number in each.partitions]
        )
        for each in topics
    ]
    return r.ElectLeadersResponse(error_code=code, replica_election_results=results)


# -- moves ---------------------------------------------------------------------------------------------------------


async def alter_reassignments(
    request: Request, services: Services, _: Conversation
) -> r.AlterPartitionReassignmentsResponse:
    message: r.AlterPartitionReassignmentsRequest = request.message
    pace = Pace()
    responses = []
    for topic in message.topics:
        told = []
        for each in topic.partitions:
            await pace.step()
            code, text = await _moved(topic.name, each, services)
            told.append(r.AlterPartitionReassignmentsResponsePartition(each.partition_index, code, text))
        responses.append(r.AlterPartitionReassignmentsResponseTopic(topic.name, told))
    return r.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=message.allow_replication_factor_change, responses=responses
    )


async def _moved(
    name: str, wanted: r.AlterPartitionReassignmentsRequestPartition, services: Services
) -> tuple[E, str | None]:
    """Without replicas a move is given up."""
    moves, number = services.replica_moves, wanted.partition_index
    try:
        if wanted.replicas is not None:
            await moves.move(name, number, tuple(wanted.replicas))
        elif not await moves.cancel(name, number):
            return E.NO_REASSIGNMENT_IN_PROGRESS, f"{name}/{number} is not on the move"
    except (BrokerError, StorageFault) as error:
        return code_of(error), text_of(error)
    return E.NONE, None


async def list_reassignments(
    request: Request, services: Services, _: Conversation
) -> r.ListPartitionReassignmentsResponse:
    message: r.ListPartitionReassignmentsRequest = request.message
    asked = None
    if message.topics is not None:
        asked = {(topic.name, number) for topic in message.topics for number in topic.partition_indexes}
    found = [
        (place, each) for place, each in services.replica_moves.under_way().items() if asked is None or place in asked
    ]
    topics = [
        r.ListPartitionReassignmentsResponseTopic(
            name,
            [
                r.ListPartitionReassignmentsResponsePartition(
                    number, list(each.replicas), list(each.adding), list(each.removing)
                )
                for (_, number), each in moving
            ],
        )
        for name, moving in groupby(found, key=lambda entry: entry[0][0])
    ]
    return r.ListPartitionReassignmentsResponse(topics=topics)


# -- nodes that are gone -------------------------------------------------------------------------------------------


async def unregister_broker(request: Request, services: Services, _: Conversation) -> r.UnregisterBrokerResponse:
    """Refused while it runs or has replicas."""
    message: r.UnregisterBrokerRequest = request.message
    try:
        await services.replica_moves.remove_node(message.broker_id)
    except BrokerError as error:
        is_unknown = error.reason is Reason.REPLICA_NOT_FOUND
        code = E.BROKER_ID_NOT_REGISTERED if is_unknown else code_of(error)
        return r.UnregisterBrokerResponse(error_code=code, error_message=text_of(error))
    return r.UnregisterBrokerResponse()


# -- who agrees ----------------------------------------------------------------------------------------------------


async def describe_quorum(request: Request, services: Services, conversation: Conversation) -> r.DescribeQuorumResponse:
    """The metadata is in etcd, whose members no client sees: the nodes that follow it are told, each as far as this one is."""
    message: r.DescribeQuorumRequest = request.message
    routing, reached = services.routing, services.metadata.seq
    voters = [r.DescribeQuorumResponseReplica(number, log_end_offset=reached) for number in routing.numbers]

    def tell(topic: str, number: int) -> r.DescribeQuorumResponsePartition:
        if (topic, number) != (METADATA_TOPIC, 0):
            return r.DescribeQuorumResponsePartition(number, E.UNKNOWN_TOPIC_OR_PARTITION)
        leader, epoch = routing.controller, routing.epoch
        return r.DescribeQuorumResponsePartition(
            number, leader_id=leader, leader_epoch=epoch, high_watermark=reached, current_voters=voters
        )

    return r.DescribeQuorumResponse(
        topics=[
            r.DescribeQuorumResponseTopic(
                topic.topic_name, [tell(topic.topic_name, each.partition_index) for each in topic.partitions]
            )
            for topic in message.topics
        ],
        nodes=[
            r.DescribeQuorumResponseNode(
                each.number, [r.DescribeQuorumResponseListener(DOOR.upper(), each.host, each.port)]
            )
            for each in routing.brokers(DOOR, conversation.address)
        ],
    )


ROUTES: dict[Key, Route] = {
    Key.ELECT_LEADERS: Route(elect_leaders, Operation.CLUSTER, refusal=refuse_to_elect, said=said_of_cluster),
    Key.ALTER_PARTITION_REASSIGNMENTS: Route(
        alter_reassignments,
        Operation.CLUSTER,
        refusal=whole(r.AlterPartitionReassignmentsResponse),
        said=said_of_cluster,
    ),
    Key.LIST_PARTITION_REASSIGNMENTS: Route(
        list_reassignments,
        Operation.DESCRIBE,
        refusal=whole(r.ListPartitionReassignmentsResponse),
        said=said_of_cluster,
    ),
    Key.UNREGISTER_BROKER: Route(
        unregister_broker, Operation.CLUSTER, refusal=whole(r.UnregisterBrokerResponse), said=said_of_cluster
    ),
    Key.DESCRIBE_QUORUM: Route(
        describe_quorum, Operation.DESCRIBE, refusal=whole(r.DescribeQuorumResponse), said=said_of_cluster
    ),
}
"""Served among several nodes only: a node that is alone has nowhere to move a partition to."""
