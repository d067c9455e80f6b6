"""Forwards Cursus requests to other nodes, and merges the answers of several nodes.

Decides which requests may be sent twice. Does not handle: which node serves a request, connections.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from braidlog.adapters.contract import Conversation
from braidlog.adapters.cursus.errors import AnsweredError
from braidlog.adapters.cursus.services import Services
from braidlog.broker.forwarding import Call
from braidlog.model.errors import BrokerError, ElsewhereError, NotLeaderError
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.batch import Batch
from braidlog.wire.cursus.connection import ClientConnection
from braidlog.wire.cursus.failures import Failure
from braidlog.wire.cursus.messages import Request

DOOR = "cursus"
_PLACED = (Batch, r.Publish, r.TxnPublish)
T = TypeVar("T")


def is_repeatable(message: Any) -> bool:  # noqa: ANN401 - any request of the table
    """Return whether a sequence number makes a second append harmless."""
    return isinstance(message, r.TxnPublish) or (isinstance(message, Batch | r.Publish) and message.idempotent)


def at_partition(request: Request, number: int) -> Request:
    """Return the request for the partition that this node chose: the leader must not choose another."""
    if not isinstance(request.message, _PLACED):
        return request
    return msgspec.structs.replace(request, message=msgspec.structs.replace(request.message, partition=number))


def is_led_here(services: Services, topic: str, number: int) -> bool:
    known = services.routing.assignment(topic, number)
    return known is None or known.leader == services.routing.own_number


async def ask_leaders(
    refusals: Mapping[T, NotLeaderError],
    message_for: Callable[[list[T]], Any],
    services: Services,
    conversation: Conversation,
    serve_here: Callable[[list[T]], Awaitable[Any]],
) -> list[Any]:
    """Return the answer of each node that serves some of the keys of `refusals` (key → why this node does not serve
    it). Raises if a node does not respond.
    """
    nodes: dict[int | None, list[T]] = {}
    for wanted, refusal in refusals.items():
        nodes.setdefault(services.forwarding.serving(refusal), []).append(wanted)
    asked = [
        forward(message_for(each), refusals[each[0]], services, conversation, partial(serve_here, each))
        for each in nodes.values()
    ]
    answers = await services.forwarding.together(asked)
    for each in answers:
        if isinstance(each, BrokerError):
            raise each
    return answers


async def forward(
    message: Any,  # noqa: ANN401 - any request of the table
    refusal: ElsewhereError,
    services: Services,
    conversation: Conversation,
    serve_here: Callable[[], Awaitable[Any]],
) -> Any:  # noqa: ANN401
    """Return the answer of the node that serves the request; retries for a limited time until one does."""
    client = ClientConnection(compression=conversation.connection.compression)
    frame = client.request(message)
    topic: str | None = getattr(message, "topic", None)
    call = Call(DOOR, conversation.principal, frame, changes=isinstance(message, Batch), topic=topic)
    conversation.hold(len(frame))
    try:
        answer = await services.forwarding.forward(call, refusal, serve_here)
    finally:
        conversation.hold(-len(frame))
    if isinstance(answer, bytes):
        client.receive(answer)
        answer = client.next_event()
    if isinstance(answer, Failure):
        raise AnsweredError(answer)
    return answer
