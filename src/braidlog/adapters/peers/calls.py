"""What other nodes ask for their clients: from a name to what serves it.

Knows: the table of what can be called, requests of a dialect as their client sent them. Refuses to know: how a call
came, and who could serve what is not served here. Invariants: what is forwarded is served here or refused, and never
handed on; who asks is authorised here, by the principal that the other node names; a refusal says that nothing was
done.
"""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from braidlog.adapters.contract import Adapter, Conversation, answer_of
from braidlog.model.errors import BrokerError, NothingDoneError, ProtocolError, Reason, StorageFault, is_elsewhere
from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.kafka.messages.calls import CallRequest, CallResponse

Serve = Callable[[Conversation, CallRequest], Coroutine[Any, Any, bytes]]
"""serve(the connection of the node that asks, what it asks) → what is answered."""

NOBODY: Mapping[str, Adapter] = {}
_NOT_KNOWN_YET = (Reason.TOPIC_NOT_FOUND, Reason.PARTITION_NOT_FOUND)
"""Of what the other node knows to be there: this one has not heard of it yet, or the other not that it has gone."""


class CallTable:
    """`rows` are what can be called."""

    def __init__(self) -> None:
        self.rows: dict[str, Serve] = {}

    async def answer(self, conversation: Conversation, call: CallRequest) -> CallResponse:
        serve = self.rows.get(call.name)
        if serve is None:
            return CallResponse(Reason.UNAVAILABLE.name, f"this node serves no call {call.name[:60]!r} yet")
        conversation.hold(len(call.body))
        try:
            return CallResponse(body=await serve(conversation, call))
        except BrokerError as error:
            return CallResponse(error.reason.name, str(error))
        finally:
            conversation.hold(-len(call.body))


def asked_for_client(answer: Callable[[bytes, str], Coroutine[Any, Any, bytes]]) -> Serve:
    """The row of what nodes ask of each other for a client: (what is asked, the principal it is counted for) → answer.
    """

    async def serve(_: Conversation, call: CallRequest) -> bytes:
        return await answer(call.body, call.principal)

    return serve


def asked(answer: Callable[[bytes], Coroutine[Any, Any, bytes]]) -> Serve:
    """The row of what nodes ask of each other, and no client does."""

    async def serve(_: Conversation, call: CallRequest) -> bytes:
        return await answer(call.body)

    return serve


class ForwardedConversation:
    """A client of another node, as a handler sees it: its request came alone, and so does its answer."""

    is_forwarded = True
    client_id = ""
    last_words: Callable[[], bytes] | None = None

    def __init__(self, link: Conversation, principal: str, connection: Any) -> None:  # noqa: ANN401 - of any dialect
        self._link = link
        self.principal = principal
        self.connection = connection
        self.address = link.address
        self.peer = f"{principal} by way of {link.peer}"

    @property
    def is_closing(self) -> bool:
        return self._link.is_closing

    def hold(self, more_bytes: int) -> None:
        self._link.hold(more_bytes)

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def answer_in_any_order(self) -> None:
        """There is one answer."""

    def end_waits(self, is_wanted: Callable[[Any], bool]) -> None:
        """Its connection is the other node's."""

    def close(self) -> None:
        """The connection is the other node's to close."""

    async def others_answered(self) -> None:
        """There are no others."""

    async def prove(self, principal: str, token: bytes) -> bool:  # noqa: ARG002 - the other node has asked for proof
        return False

    async def judge(self, holds: Callable[[], Coroutine[Any, Any, bool]]) -> bool:  # noqa: ARG002
        return False

    async def push(self, data: bytes) -> None:  # noqa: ARG002
        raise BrokerError(Reason.UNAVAILABLE, "an answer in many frames is not forwarded")


def requests_of(ordinary: Adapter, privileged: Mapping[str, Adapter] = NOBODY) -> Serve:
    """The row of a dialect: the body is a request as a client sends it, what is answered is what that client is to
    read.

    `privileged`: what serves those, by principal, whom the other node's own door has let in, and no rule speaks of.
    """

    async def serve(link: Conversation, call: CallRequest) -> bytes:
        adapter = privileged.get(call.principal, ordinary)
        connection = adapter.open()
        connection.receive(call.body)
        request = connection.next_event()
        is_one = connection.next_event() is NEED_DATA and not connection.buffered_bytes
        if request is NEED_DATA or isinstance(request, Refused) or not is_one:
            raise NothingDoneError(Reason.INVALID_RECORD, f"what was forwarded is not one request of {adapter.dialect}")
        conversation = ForwardedConversation(link, call.principal, connection)
        answer = await _answered(adapter, conversation, request)
        output = connection.respond(request, answer)
        return output if isinstance(output, bytes) else b"".join(map(_read, output))

    return serve


async def _answered(adapter: Adapter, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
    try:
        return await answer_of(adapter.handle, conversation, request)
    except BrokerError as error:
        if is_elsewhere(error) or error.reason in _NOT_KNOWN_YET:
            raise
        return adapter.failure(request, error)
    except (StorageFault, ProtocolError) as error:
        return adapter.failure(request, error)


def _read(piece: Any) -> bytes:  # noqa: ANN401 - bytes, or a slice of a file
    return piece if isinstance(piece, bytes) else piece.read()
