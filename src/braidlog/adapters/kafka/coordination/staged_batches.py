"""Exactly-once batches of sinks: three requests of braidlog's own on Kafka's port.

`coordinator/transactions/staged_batches.py` defines the decisions.
Invariant: the committing client must have permission for the stages' transactional ids, and to write to every topic
with staged records.
"""

from collections.abc import Iterable

from braidlog.adapters.contract import Conversation
from braidlog.adapters.kafka.errors import coordinator_code_of
from braidlog.adapters.kafka.routes import Route, whole
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.routing import Denied, Need
from braidlog.broker.coordination.coordinator import Coordinator
from braidlog.coordinator.transactions.transaction import ProducerIdentity
from braidlog.model.stage_ids import PREFIX
from braidlog.security.authorization import Kind, Operation
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import staging as s
from braidlog.wire.kafka.messages.parts import TransactionalProducer


def _topics(request: Request, services: Services) -> Iterable[str]:
    transactions = services.coordinators.coordinator_for(request.message.sink).transactions
    return transactions.topics_of(each.transactional_id for each in request.message.stages or ())


def _sink(request: Request, _: Services) -> Iterable[str]:
    """The common prefix of a sink's transactional ids: clients with permission for it may query the sink and abort
    its open stages.
    """
    return (f"{PREFIX}{request.message.sink}/",)


def _ids(request: Request, _: Services) -> Iterable[str]:
    return (each.transactional_id for each in request.message.stages or ())


def _stages(told: list[TransactionalProducer]) -> list[ProducerIdentity]:
    return [ProducerIdentity(each.transactional_id, each.producer_id, each.producer_epoch) for each in told]


async def commit(
    request: Request, _: Services, conversation: Conversation, denied: Denied, coordinator: Coordinator
) -> s.CommitBatchResponse:
    message: s.CommitBatchRequest = request.message
    denied.check(*denied)
    decided = await coordinator.staging.commit(
        message.sink,
        message.batch_id,
        _stages(message.stages),
        owner=conversation.principal,
        writer=message.writer,
    )
    return s.CommitBatchResponse(last_batch=decided.last_batch, already=decided.already)


async def abort(
    request: Request, _: Services, conversation: Conversation, denied: Denied, coordinator: Coordinator
) -> s.AbortBatchResponse:
    message: s.AbortBatchRequest = request.message
    denied.check(*denied)
    decided = await coordinator.staging.abort(
        message.sink,
        message.batch_id,
        None if message.stages is None else _stages(message.stages),
        owner=conversation.principal,
    )
    return s.AbortBatchResponse(last_batch=decided.last_batch, already=decided.already)


def state(request: Request, _: Services, conversation: Conversation, coordinator: Coordinator) -> s.SinkStateResponse:
    message: s.SinkStateRequest = request.message
    last = coordinator.staging.last_batch(message.sink, owner=conversation.principal, writer=message.writer)
    return s.SinkStateResponse(last_batch=last)


def _said(request: Request, code: E) -> E:
    return code if code is E.TOPIC_AUTHORIZATION_FAILED else coordinator_code_of(request, code)


_ON_SINK = Need(Operation.WRITE, _sink, Kind.TRANSACTIONAL_ID)
_NEEDS = (_ON_SINK, Need(Operation.WRITE, _ids, Kind.TRANSACTIONAL_ID))
_ON_TOPICS = (Need(Operation.WRITE, _topics),)
ROUTES: dict[Key, Route] = {
    Key.COMMIT_BATCH: Route(
        commit, Operation.WRITE, needs=_NEEDS, each=_ON_TOPICS, refusal=whole(s.CommitBatchResponse), said=_said
    ),
    Key.ABORT_BATCH: Route(
        abort, Operation.WRITE, needs=_NEEDS, each=_ON_TOPICS, refusal=whole(s.AbortBatchResponse), said=_said
    ),
    Key.SINK_STATE: Route(state, Operation.WRITE, needs=(_ON_SINK,), refusal=whole(s.SinkStateResponse), said=_said),
}
