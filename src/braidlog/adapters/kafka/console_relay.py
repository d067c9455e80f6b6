"""Relays Kafka requests of this node's console to another node over the nodes' port.

This node answers requests for node addresses itself.
Invariants: the other node authorizes a request, for the principal that signed in here; a request is relayed once; a
request that cannot be relayed is refused with the code that makes a client look for the leader or the coordinator
again.
"""

from typing import Any, Final

from braidlog.adapters.contract import Conversation, Relayed
from braidlog.adapters.kafka.errors import Refusal
from braidlog.adapters.kafka.handlers import EFFECTS, Effect, KafkaAdapter
from braidlog.adapters.kafka.routes import Route
from braidlog.adapters.kafka.services import Services
from braidlog.broker.forwarding import Call
from braidlog.model.errors import BrokerError, NothingDoneError, Reason
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode
from braidlog.wire.kafka.connection import Request, request_pieces

CALL: Final = "console"
ANSWERED_HERE: Final = frozenset(
    {
        Key.API_VERSIONS,
        Key.SASL_HANDSHAKE,
        Key.SASL_AUTHENTICATE,
        Key.METADATA,
        Key.DESCRIBE_CLUSTER,
        Key.DESCRIBE_TOPIC_PARTITIONS,
        Key.FIND_COORDINATOR,
    }
)


class RelayAdapter(KafkaAdapter):
    """The adapter for one other node."""

    def __init__(self, services: Services, node: int) -> None:
        super().__init__(services, auto_create=False)
        self._forwarding = services.forwarding
        self._node = node

    def serve(self, route: Route, conversation: Conversation, request: Request) -> Any:  # type: ignore[override]  # noqa: ANN401
        if request.api.key in ANSWERED_HERE:
            return super().serve(route, conversation, request)
        return self._relay(conversation, request)

    async def _relay(self, conversation: Conversation, request: Request) -> Relayed:
        frame = b"".join(request_pieces(request))
        changes = EFFECTS.get(request.api.key) is not Effect.READS
        conversation.hold(len(frame))
        try:
            answer = await self._forwarding.ask(self._node, Call(CALL, conversation.principal, frame, changes=changes))
        except NothingDoneError as error:
            if error.reason is Reason.UNAVAILABLE:
                raise Refusal(ErrorCode.BROKER_NOT_AVAILABLE, str(error)) from None
            raise BrokerError(error.reason, str(error)) from None
        finally:
            conversation.hold(-len(frame))
        return Relayed(answer)
