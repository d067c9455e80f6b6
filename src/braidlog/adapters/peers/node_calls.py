"""Serves calls that other nodes make for their clients.

Does not handle: transport, forwarding to a third node.
Invariants: a forwarded call is served here or rejected, and never forwarded again. It is authorised here, for the
principal that the other node names. A rejection states that nothing was done.
"""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from braidlog.adapters.contract import Adapter, Conversation, answer_of
from braidlog.model.errors import BrokerError, NothingDoneError, ProtocolError, Reason, StorageFault, is_elsewhere
from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.kafka.messages.calls import CallRequest, CallResponse

Serve = Callable[[Conversation, CallRequest], Coroutine[Any, Any, bytes]]
"""serve(connection of the calling node, its request) → response body."""

NOBODY: Mapping[str, Adapter] = {}
_NOT_KNOWN_YET = (Reason.TOPIC_NOT_FOUND, Reason.PARTITION_NOT_FOUND)
"""The other node knows the topic to exist, so one of the two nodes lags behind the metadata."""


class CallTable:
    """`rows` are the available calls, by name."""

    def __init__(self) -> None:
        self.rows: dict[str, Serve] = {}

    async def handle_call(self, conversation: Conversation, call: CallRequest) -> CallResponse:
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


def client_call(answer: Callable[[bytes, str], Coroutine[Any, Any, bytes]]) -> Serve:
    """A row for calls that nodes make for a client: (body, principal to charge) → response."""

    async def serve(_: Conversation, call: CallRequest) -> bytes:
        return await answer(call.body, call.principal)

    return serve


def call_route(answer: Callable[[bytes], Coroutine[Any, Any, bytes]]) -> Serve:
    """A row for calls between nodes that no client causes."""

    async def serve(_: Conversation, call: CallRequest) -> bytes:
        return await answer(call.body)

    return serve


class ForwardedConversation:
    """A client of another node, as seen by a handler: one request, one response."""

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

    def respond_in_any_order(self) -> None:
        """Does nothing: only one response exists."""

    def end_waits(self, is_wanted: Callable[[Any], bool]) -> None:
        """Does nothing: the connection belongs to the other node."""

    def close(self) -> None:
        """Does nothing: the other node closes its connection."""

    async def on_other_responses(self) -> None:
        """Returns immediately: only one response exists."""

    async def prove(self, principal: str, token: bytes) -> bool:  # noqa: ARG002 - the other node has authenticated
        return False

    async def verify_proof(self, holds: Callable[[], Coroutine[Any, Any, bool]]) -> bool:  # noqa: ARG002
        return False

    async def push(self, data: bytes) -> None:  # noqa: ARG002
        raise BrokerError(Reason.UNAVAILABLE, "responses of several frames cannot be forwarded")


def requests_of(ordinary: Adapter, privileged: Mapping[str, Adapter] = NOBODY) -> Serve:
    """The row of a dialect: the body is a client's request, and the response is that client's response.

    `privileged`: adapters by principal, for principals that the other node's listener admitted and no rule covers.
    """

    async def serve(link: Conversation, call: CallRequest) -> bytes:
        adapter = privileged.get(call.principal, ordinary)
        connection = adapter.open()
        connection.receive(call.body)
        request = connection.next_event()
        is_one = connection.next_event() is NEED_DATA and not connection.buffered_bytes
        if request is NEED_DATA or isinstance(request, Refused) or not is_one:
            raise NothingDoneError(
                Reason.INVALID_RECORD, f"forwarded data is not exactly one {adapter.dialect} request"
            )
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
