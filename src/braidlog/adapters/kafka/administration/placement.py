"""Elections, reassignments, removed nodes and the metadata quorum, for Kafka's tools.

`broker/replica_moves.py` runs the moves.
Invariant: every partition of a request has its own result.
"""

from collections.abc import Coroutine, Iterable
from itertools import groupby
from typing import Any

from braidlog.adapters.contract import Conversation
from braidlog.adapters.errors import text_of
from braidlog.adapters.kafka.errors import code_of
from braidlog.adapters.kafka.routes import Route, of_cluster, refused, whole
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topic_entries import DOOR
from braidlog.adapters.routing import Deadline
from braidlog.broker.replica_moves import Outcome
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.cooperative import yield_to_loop
from braidlog.security.authorization import Operation
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import placement as r

PREFERRED = 0
METADATA_TOPIC = "__cluster_metadata"
"""The one topic of DescribeQuorum."""
Said = tuple[E, str | None]
"""The result of one partition: a code, and a text."""
NO_UNCLEAN = "kafka does not support unclean elections; supported: 0 (preferred)"


# -- elections -----------------------------------------------------------------------------------------------------


async def elect_leaders(request: Request, services: Services, _: Conversation) -> r.ElectLeadersResponse:
    message: r.ElectLeadersRequest = request.message
    asked = message.topic_partitions
    places: dict[str, Iterable[int]] = {}
    if asked is None:
        places |= {name: range(services.hosting.meta(name).partitions) for name in services.hosting.names()}
    for topic in asked or ():
        places[topic.topic] = dict.fromkeys((*places.get(topic.topic, ()), *topic.partitions))
    told: dict[str, list[r.ElectLeadersResponsePartition]] = {}
    deadline = Deadline(services.runtime, message.timeout_ms)
    for name, numbers in places.items():
        await yield_to_loop()
        results = await _election_results(name, numbers, message.election_type, services, deadline)
        for number, (code, text) in results.items():
            # For all partitions, only those that changed or failed are listed.
            if asked is not None or code is not E.ELECTION_NOT_NEEDED:
                told.setdefault(name, []).append(r.ElectLeadersResponsePartition(number, code, text))
    return r.ElectLeadersResponse(
        replica_election_results=[r.ElectLeadersResponseTopic(name, found) for name, found in told.items()]
    )


async def _election_results(
    name: str, numbers: Iterable[int], kind: int, services: Services, deadline: Deadline
) -> dict[int, Said]:
    if kind != PREFERRED:
        return dict.fromkeys(numbers, (E.ELIGIBLE_LEADERS_NOT_AVAILABLE, NO_UNCLEAN))
    outcomes = await _outcomes(deadline.of(services.replica_moves.elect_all(name, numbers)), numbers)
    return {
        number: (E.PREFERRED_LEADER_NOT_AVAILABLE, text_of(outcome))
        if isinstance(outcome, BrokerError) and outcome.reason is Reason.REPLICA_NOT_FOUND
        else _said(outcome, (E.ELECTION_NOT_NEEDED, "the preferred replica leads"))
        for number, outcome in outcomes.items()
    }


async def _outcomes(
    changing: Coroutine[Any, Any, dict[int, Outcome]], numbers: Iterable[int]
) -> dict[int, Outcome | StorageFault]:
    try:
        return {**await changing}
    except (BrokerError, StorageFault) as error:
        return dict.fromkeys(numbers, error)


def _said(outcome: Outcome | StorageFault, unchanged: Said) -> Said:
    if isinstance(outcome, BrokerError | StorageFault):
        return code_of(outcome), text_of(outcome)
    return (E.NONE, None) if outcome else unchanged


# -- moves ---------------------------------------------------------------------------------------------------------


async def alter_reassignments(
    request: Request, services: Services, _: Conversation
) -> r.AlterPartitionReassignmentsResponse:
    message: r.AlterPartitionReassignmentsRequest = request.message
    responses, deadline = [], Deadline(services.runtime, message.timeout_ms)
    for topic in message.topics:
        await yield_to_loop()
        told = await _move_results(topic, services, deadline)
        responses.append(
            r.AlterPartitionReassignmentsResponseTopic(
                topic.name,
                [
                    r.AlterPartitionReassignmentsResponsePartition(each.partition_index, *told[each.partition_index])
                    for each in topic.partitions
                ],
            )
        )
    return r.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=message.allow_replication_factor_change, responses=responses
    )


async def _move_results(
    topic: r.AlterPartitionReassignmentsRequestTopic, services: Services, deadline: Deadline
) -> dict[int, Said]:
    """Start moves; without replicas, cancel them."""
    targets = {
        each.partition_index: None if each.replicas is None else tuple(each.replicas) for each in topic.partitions
    }
    tried = await _outcomes(deadline.of(services.replica_moves.move(topic.name, targets)), targets)

    def unchanged(number: int) -> Said:
        if targets[number] is not None:
            return E.NONE, None
        return E.NO_REASSIGNMENT_IN_PROGRESS, f"{topic.name}/{number} has no reassignment in progress"

    return {number: _said(outcome, unchanged(number)) for number, outcome in tried.items()}


def list_reassignments(
    request: Request, services: Services, conversation: Conversation
) -> r.ListPartitionReassignmentsResponse:
    """List the moves of partitions of topics that the caller may describe."""
    message: r.ListPartitionReassignmentsRequest = request.message
    moves = services.replica_moves.under_way()
    visible = set(services.authorize.visible(conversation.principal, sorted({name for name, _ in moves})))
    asked = None
    if message.topics is not None:
        asked = {(topic.name, number) for topic in message.topics for number in topic.partition_indexes}
    found = [
        (place, each) for place, each in moves.items() if place[0] in visible and (asked is None or place in asked)
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


# -- removed nodes ------------------------------------------------------------------------------------------------


async def unregister_broker(request: Request, services: Services, _: Conversation) -> r.UnregisterBrokerResponse:
    """Remove a node's registration. Fails while it runs or has replicas."""
    message: r.UnregisterBrokerRequest = request.message
    try:
        await services.replica_moves.remove_node(message.broker_id)
    except BrokerError as error:
        is_unknown = error.reason is Reason.REPLICA_NOT_FOUND
        code = E.BROKER_ID_NOT_REGISTERED if is_unknown else code_of(error)
        return r.UnregisterBrokerResponse(error_code=code, error_message=text_of(error))
    return r.UnregisterBrokerResponse()


# -- metadata quorum ----------------------------------------------------------------------------------------------


def describe_quorum(request: Request, services: Services, conversation: Conversation) -> r.DescribeQuorumResponse:
    """The metadata is in etcd, whose members clients cannot see: list the nodes as observers, all at this node's
    offset.
    """
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
    Key.ELECT_LEADERS: of_cluster(
        elect_leaders,
        refused(
            r.ElectLeadersResponse, {"replica_election_results": "topic_partitions", "partition_result": "partitions"}
        ),
    ),
    Key.ALTER_PARTITION_REASSIGNMENTS: of_cluster(alter_reassignments, whole(r.AlterPartitionReassignmentsResponse)),
    Key.LIST_PARTITION_REASSIGNMENTS: of_cluster(
        list_reassignments, whole(r.ListPartitionReassignmentsResponse), Operation.DESCRIBE
    ),
    Key.UNREGISTER_BROKER: of_cluster(unregister_broker, whole(r.UnregisterBrokerResponse)),
    Key.DESCRIBE_QUORUM: of_cluster(describe_quorum, whole(r.DescribeQuorumResponse), Operation.DESCRIBE),
}
