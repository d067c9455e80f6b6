"""Batches that count once: our own three requests on Kafka's port.

Knows: who may decide about stages. Refuses to know: what a decision means (`coordinator/staging.py`).
Invariant: whoever commits may write to every topic that the stages hold records of.
"""

from braidlog.adapters.contract import Conversation
from braidlog.adapters.kafka.errors import said_by_coordinator
from braidlog.adapters.kafka.routes import Route
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topics import require
from braidlog.adapters.kafka.transactions import require_writer
from braidlog.broker.access.authorize import Operation
from braidlog.coordinator.transactions import Producing
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import staging as s


def _stages(told: list[s.BatchStage] | None, services: Services, conversation: Conversation) -> list[Producing] | None:
    require_writer(services, conversation)
    if told is None:
        return None
    for topic in services.transactions.topics_of(each.transactional_id for each in told):
        require(services, conversation, Operation.WRITE, topic)
    return [Producing(each.transactional_id, each.producer_id, each.producer_epoch) for each in told]


async def commit(request: Request, services: Services, conversation: Conversation) -> s.CommitBatchResponse:
    message: s.CommitBatchRequest = request.message
    decided = await services.staging.commit(
        message.sink,
        message.batch_id,
        _stages(message.stages, services, conversation) or [],
        owner=conversation.principal,
        writer=message.writer,
    )
    return s.CommitBatchResponse(last_batch=decided.last_batch, already=decided.already)


async def abort(request: Request, services: Services, conversation: Conversation) -> s.AbortBatchResponse:
    message: s.AbortBatchRequest = request.message
    decided = await services.staging.abort(
        message.sink,
        message.batch_id,
        _stages(message.stages, services, conversation),
        owner=conversation.principal,
    )
    return s.AbortBatchResponse(last_batch=decided.last_batch, already=decided.already)


async def state(request: Request, services: Services, conversation: Conversation) -> s.SinkStateResponse:
    message: s.SinkStateRequest = request.message
    require_writer(services, conversation)
    last = services.staging.last_batch(message.sink, owner=conversation.principal, writer=message.writer)
    return s.SinkStateResponse(last_batch=last)


def refuse_commit(_: Request, code: E, text: str) -> s.CommitBatchResponse:
    return s.CommitBatchResponse(_said(code), text)


def refuse_abort(_: Request, code: E, text: str) -> s.AbortBatchResponse:
    return s.AbortBatchResponse(_said(code), text)


def refuse_state(_: Request, code: E, text: str) -> s.SinkStateResponse:
    return s.SinkStateResponse(_said(code), text)


def _said(code: E) -> E:
    return code if code is E.TOPIC_AUTHORIZATION_FAILED else said_by_coordinator(code)


ROUTES: dict[Key, Route] = {
    Key.COMMIT_BATCH: Route(commit, refuse_commit),
    Key.ABORT_BATCH: Route(abort, refuse_abort),
    Key.SINK_STATE: Route(state, refuse_state),
}
