"""Transactions, and producer ids.

Translates states, and chooses between the codes for a fenced producer and an old epoch by version.
`coordinator/transactions/transactions.py` runs the transactions.
Invariant: partitions are added all together or not at all.
"""

import contextlib
from collections.abc import Callable, Mapping

from braidlog.adapters.contract import Conversation
from braidlog.adapters.errors import text_of
from braidlog.adapters.kafka.coordination.groups import checked_commit
from braidlog.adapters.kafka.coordination.offsets_topic import OFFSETS_TOPIC
from braidlog.adapters.kafka.errors import code_of, coordinator_code, coordinator_code_of, outcomes
from braidlog.adapters.kafka.routes import (
    Refusal,
    Route,
    of_cluster,
    on_group,
    on_topics,
    on_transactional_id,
    refused,
    whole,
)
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.routing import Denied, Handler, Need
from braidlog.broker.coordination.coordinator import Coordinator
from braidlog.coordinator.offsets import Commit
from braidlog.coordinator.transactions.transaction import ProducerIdentity, Transaction, TxnState
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.cooperative import YieldCounter
from braidlog.partition.hosted_log import ActiveProducer
from braidlog.security.authorization import Kind, Operation
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import transactions as t
from braidlog.wire.kafka.messages.parts import PartitionOutcome, TopicOutcome, TopicPartitions

MARKERS_MAX = 100
"""Maximum partitions of one WriteTxnMarkers."""
STATES: dict[TxnState, str] = {
    TxnState.EMPTY: "Empty",
    TxnState.ONGOING: "Ongoing",
    TxnState.COMMITTING: "PrepareCommit",
    TxnState.ABORTING: "PrepareAbort",
    TxnState.COMMITTED: "CompleteCommit",
    TxnState.ABORTED: "CompleteAbort",
}
V2_COMMITS_SINCE = 5
V2_ENDS_SINCE = 5
"""First version of TxnOffsetCommit that begins a transaction, and of EndTxn that returns the producer's next epoch."""
FENCED_SINCE: Mapping[Key, int] = {
    Key.INIT_PRODUCER_ID: 4,
    Key.ADD_PARTITIONS_TO_TXN: 2,
    Key.ADD_OFFSETS_TO_TXN: 2,
    Key.END_TXN: 2,
}
"""From these versions on clients know PRODUCER_FENCED; before, and in other APIs, INVALID_PRODUCER_EPOCH replaces it.
"""


def _said(request: Request, code: E) -> E:
    since = FENCED_SINCE.get(request.key)
    if code is E.INVALID_PRODUCER_EPOCH and since is not None and request.version >= since:
        return E.PRODUCER_FENCED
    if code is E.TOPIC_AUTHORIZATION_FAILED:
        return E.CLUSTER_AUTHORIZATION_FAILED  # a producer without transactions that may write to no topic
    return coordinator_code_of(request, code)


REFUSE_MARKERS = refused(
    t.WriteTxnMarkersResponse, {"markers": "markers", "topics": "topics", "partitions": "partition_indexes"}
)


# -- producers ---------------------------------------------------------------------------------------------------


async def init_producer_id(
    request: Request, services: Services, conversation: Conversation, coordinator: Coordinator | None
) -> t.InitProducerIdResponse:
    """A producer without transactions gets a new id with each request: it needs no state of the old one.

    No permission is needed: a producer without any is rejected when it writes to a topic.
    """
    message: t.InitProducerIdRequest = request.message
    if message.transactional_id is None:
        return t.InitProducerIdResponse(producer_id=await services.producer_ids.allocate())
    if coordinator is None or (message.producer_id < 0) != (message.producer_epoch < 0):
        return refuse_init(request, E.INVALID_REQUEST, "")
    begun = await coordinator.transactions.begin_producer(
        message.transactional_id,
        message.transaction_timeout_ms,
        expected=None if message.producer_id < 0 else (message.producer_id, message.producer_epoch),
        by=conversation.principal,
    )
    return t.InitProducerIdResponse(producer_id=begun.producer_id, producer_epoch=begun.epoch)


def refuse_init(_: Request, code: E, __: str) -> t.InitProducerIdResponse:
    return t.InitProducerIdResponse(error_code=code, producer_epoch=-1)


# -- a transaction -----------------------------------------------------------------------------------------------


async def add_partitions(
    request: Request, services: Services, _: Conversation, denied: Denied, coordinator: Coordinator
) -> t.AddPartitionsToTxnResponse:
    message: t.AddPartitionsToTxnRequest = request.message
    places = [(topic.name, number) for topic in message.topics for number in topic.partitions]
    codes = {place: _refusal(*place, services, denied) for place in places}
    if any(codes.values()):
        # If one partition fails, the others are not added: they were not attempted.
        return _added(message, lambda place: codes[place] or E.OPERATION_NOT_ATTEMPTED)
    whole = E.NONE
    try:
        await coordinator.transactions.add_partitions(
            message.transactional_id, message.producer_id, message.producer_epoch, places
        )
    except (BrokerError, StorageFault) as error:
        whole = _said(request, code_of(error))
    return _added(message, lambda _: whole)


def _refusal(topic: str, number: int, services: Services, denied: Denied) -> E:
    if topic in denied:
        return E.TOPIC_AUTHORIZATION_FAILED
    there = number in range(services.hosting.partition_count(topic))
    return E.NONE if there else E.UNKNOWN_TOPIC_OR_PARTITION


def _added(message: t.AddPartitionsToTxnRequest, code: Callable[[tuple[str, int]], E]) -> t.AddPartitionsToTxnResponse:
    return t.AddPartitionsToTxnResponse(
        results_by_topic=[
            t.AddPartitionsToTxnResponseTopic(
                topic.name,
                [
                    t.AddPartitionsToTxnResponsePartition(number, code((topic.name, number)))
                    for number in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


async def add_group(
    request: Request, _: Services, __: Conversation, coordinator: Coordinator
) -> t.AddOffsetsToTxnResponse:
    message: t.AddOffsetsToTxnRequest = request.message
    await coordinator.transactions.add_group(
        message.transactional_id, message.producer_id, message.producer_epoch, message.group_id
    )
    return t.AddOffsetsToTxnResponse()


async def commit_offsets(
    request: Request, _: Services, conversation: Conversation, denied: Denied, coordinator: Coordinator
) -> t.TxnOffsetCommitResponse:
    message: t.TxnOffsetCommitRequest = request.message
    checked = {}
    pace = YieldCounter()
    for topic in message.topics:
        for each in topic.partitions:
            await pace.step()
            wanted = Commit(
                topic.name,
                each.partition_index,
                each.committed_offset,
                each.committed_metadata or "",
                each.committed_leader_epoch,
            )
            checked[wanted.topic, wanted.partition] = checked_commit(coordinator, denied, message.group_id, wanted)
    whole = E.NONE
    try:
        await coordinator.pending_commits.stage(
            message.group_id,
            ProducerIdentity(message.transactional_id, message.producer_id, message.producer_epoch),
            [found for found in checked.values() if isinstance(found, Commit)],
            guard=lambda: coordinator.groups.commit_service_for(message.group_id).check_transactional(
                message.group_id, message.member_id, message.generation_id, message.group_instance_id
            ),
            by=conversation.principal,
            begins=request.version >= V2_COMMITS_SINCE,
        )
    except (BrokerError, StorageFault) as error:
        whole = coordinator_code(error)

    def code(place: tuple[str, int]) -> E:
        found = checked[place]
        return whole or (E.NONE if isinstance(found, Commit) else found)

    return _staged(message, code)


def _staged(message: t.TxnOffsetCommitRequest, code: Callable[[tuple[str, int]], E]) -> t.TxnOffsetCommitResponse:
    told = ((topic.name, [each.partition_index for each in topic.partitions]) for topic in message.topics)
    return t.TxnOffsetCommitResponse(topics=outcomes(told, code))


async def end(request: Request, _: Services, __: Conversation, coordinator: Coordinator) -> t.EndTxnResponse:
    message: t.EndTxnRequest = request.message
    bump = request.version >= V2_ENDS_SINCE
    over = await coordinator.transactions.end_transaction(
        message.transactional_id, message.producer_id, message.producer_epoch, commit=message.committed, bump=bump
    )
    return t.EndTxnResponse(producer_id=over.producer_id, producer_epoch=over.epoch) if bump else t.EndTxnResponse()


async def write_markers(request: Request, services: Services, _: Conversation) -> t.WriteTxnMarkersResponse:
    """Sent by `kafka-transactions abort` for one partition. Only the coordinator may commit."""
    message: t.WriteTxnMarkersRequest = request.message
    if sum(len(topic.partition_indexes) for marker in message.markers for topic in marker.topics) > MARKERS_MAX:
        return REFUSE_MARKERS(request, E.INVALID_REQUEST, "")

    async def mark(marker: t.WriteTxnMarkersRequestMarker, topic: str, number: int) -> PartitionOutcome:
        if marker.transaction_result:
            return PartitionOutcome(number, E.INVALID_TXN_STATE)
        try:
            await services.coordinators.abort_in(marker.producer_id, marker.producer_epoch, topic, number)
        except (BrokerError, StorageFault) as error:
            return PartitionOutcome(number, code_of(error))
        return PartitionOutcome(number)

    return t.WriteTxnMarkersResponse(
        markers=[
            t.WriteTxnMarkersResponseMarker(
                marker.producer_id,
                [
                    TopicOutcome(topic.name, [await mark(marker, topic.name, each) for each in topic.partition_indexes])
                    for topic in marker.topics
                ],
            )
            for marker in message.markers
        ]
    )


# -- looking -----------------------------------------------------------------------------------------------------


async def list_transactions(
    request: Request, services: Services, conversation: Conversation
) -> t.ListTransactionsResponse:
    message: t.ListTransactionsRequest = request.message
    now_ms = services.runtime.now_ms()

    def is_wanted(txn: Transaction) -> bool:
        lasts_ms = now_ms - txn.started_ms if txn.state is TxnState.ONGOING else -1
        return (
            (not message.state_filters or STATES[txn.state] in message.state_filters)
            and (not message.producer_id_filters or txn.producer_id in message.producer_id_filters)
            and (message.duration_filter < 0 or lasts_ms >= message.duration_filter)
        )

    there = {name: each for each in await services.coordinators.all_led() for name in each.transactions.names()}
    ids = services.authorize.visible(conversation.principal, sorted(there), Kind.TRANSACTIONAL_ID)
    found = ((name, there[name].transactions.find(name)) for name in ids)
    return t.ListTransactionsResponse(
        unknown_state_filters=[word for word in message.state_filters if word not in STATES.values()],
        transaction_states=[
            t.ListTransactionsResponseTransaction(name, txn.producer_id, STATES[txn.state])
            for name, txn in found
            if is_wanted(txn)
        ],
    )


async def describe_transactions(
    request: Request, services: Services, conversation: Conversation, denied: Denied
) -> t.DescribeTransactionsResponse:
    message: t.DescribeTransactionsRequest = request.message
    return t.DescribeTransactionsResponse(
        transaction_states=[
            await _described(name, services, conversation, denied) for name in dict.fromkeys(message.transactional_ids)
        ]
    )


async def _described(
    name: str, services: Services, conversation: Conversation, denied: Denied
) -> t.DescribeTransactionsResponseTransaction:
    refused = denied.get((Kind.TRANSACTIONAL_ID, name))
    if refused is not None:
        return t.DescribeTransactionsResponseTransaction(code_of(refused), name)
    try:
        async with services.coordinators.settled_after(name) as coordinator:
            txn = coordinator.transactions.find(name)
    except BrokerError as error:
        is_unknown = error.reason is Reason.TRANSACTION_NOT_FOUND
        return t.DescribeTransactionsResponseTransaction(
            E.TRANSACTIONAL_ID_NOT_FOUND if is_unknown else coordinator_code(error), name
        )
    topics: dict[str, list[int]] = {}
    for topic, number in txn.partitions:
        topics.setdefault(topic, []).append(number)
    return t.DescribeTransactionsResponseTransaction(
        transactional_id=name,
        transaction_state=STATES[txn.state],
        transaction_timeout_ms=txn.timeout_ms,
        transaction_start_time_ms=txn.started_ms or -1,
        producer_id=txn.producer_id,
        producer_epoch=txn.epoch,
        topics=[
            TopicPartitions(topic, topics[topic])
            for topic in services.authorize.visible(conversation.principal, list(topics))
        ],
    )


async def describe_producers(
    request: Request, services: Services, _: Conversation, denied: Denied
) -> t.DescribeProducersResponse:
    message: t.DescribeProducersRequest = request.message
    for topic in message.topics:
        with contextlib.suppress(BrokerError):  # each error is reported below
            denied.check(topic.name)
            await services.append.ready(topic.name, *topic.partition_indexes)

    def tell(topic: str, number: int) -> t.DescribeProducersResponsePartition:
        try:
            denied.check(topic)
            if topic == OFFSETS_TOPIC:
                return t.DescribeProducersResponsePartition(number)  # no writers; tools ask about all topics
            hosted = services.hosting.partition(topic, number)
            hosted.require_leader()
        except (BrokerError, StorageFault) as error:
            return t.DescribeProducersResponsePartition(number, code_of(error), text_of(error))
        shown = [_producer(each, hosted.leader_epoch) for each in hosted.producers()]
        return t.DescribeProducersResponsePartition(number, active_producers=shown)

    pace = YieldCounter()
    topics = []
    for topic in message.topics:
        topics.append(t.DescribeProducersResponseTopic(topic.name, []))
        for number in topic.partition_indexes:
            topics[-1].partitions.append(tell(topic.name, number))
            await pace.step(1 + len(topics[-1].partitions[-1].active_producers))
    return t.DescribeProducersResponse(topics=topics)


def _producer(each: ActiveProducer, epoch: int) -> t.DescribeProducersResponseProducer:
    return t.DescribeProducersResponseProducer(
        each.producer_id,
        each.epoch,
        -1 if each.last_sequence is None else each.last_sequence,
        each.timestamp_ms,
        epoch,
        -1 if each.open_since is None else each.open_since,
    )


_WRITE = on_transactional_id(Operation.WRITE)


def _route(handler: Handler, refusal: Refusal, *more: Need) -> Route:
    return Route(handler, None, needs=(_WRITE, *more), refusal=refusal, said=_said)


ROUTES: dict[Key, Route] = {
    Key.INIT_PRODUCER_ID: _route(init_producer_id, refuse_init),
    Key.ADD_PARTITIONS_TO_TXN: on_topics(
        add_partitions,
        Operation.WRITE,
        lambda request, code, _: _added(request.message, lambda _: code),
        said=_said,
        needs=(_WRITE,),
    ),
    Key.ADD_OFFSETS_TO_TXN: _route(add_group, whole(t.AddOffsetsToTxnResponse), on_group(Operation.READ)),
    Key.TXN_OFFSET_COMMIT: on_topics(
        commit_offsets,
        Operation.READ,
        lambda request, code, _: _staged(request.message, lambda _: code),
        said=_said,
        needs=(_WRITE, on_group(Operation.READ)),
    ),
    Key.END_TXN: _route(end, whole(t.EndTxnResponse)),
    Key.WRITE_TXN_MARKERS: of_cluster(write_markers, REFUSE_MARKERS),
    Key.LIST_TRANSACTIONS: Route(list_transactions, None, refusal=whole(t.ListTransactionsResponse), said=_said),
    Key.DESCRIBE_TRANSACTIONS: Route(
        describe_transactions,
        None,
        each=(Need(Operation.DESCRIBE, lambda request, _: request.message.transactional_ids, Kind.TRANSACTIONAL_ID),),
        refusal=refused(t.DescribeTransactionsResponse, {"transaction_states": "transactional_ids"}),
        said=_said,
    ),
    Key.DESCRIBE_PRODUCERS: on_topics(
        describe_producers,
        Operation.READ,
        refused(t.DescribeProducersResponse, {"topics": "topics", "partitions": "partition_indexes"}),
    ),
}
