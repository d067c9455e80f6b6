"""Serves key requests of other nodes: forwarded client requests, salvaged records, replica comparisons.

Does not handle: sockets, key storage and location.
Invariants: a connection from outside the cluster is closed, by the sender id in each message, and by its certificate
if certificates are required. A request from another node is served here or rejected, and never forwarded again.
TOPOLOGY_CHANGED states that nothing was done.
"""

import logging
import struct
from collections.abc import Coroutine
from typing import Any, Final

from braidlog.adapters.contract import Conversation
from braidlog.adapters.peers.follower_sessions import node_of
from braidlog.adapters.peers.node_calls import CallTable
from braidlog.broker.forwarding import Call
from braidlog.broker.keys.kv_peer_service import KeyPeerService, anti_entropy, salvaged
from braidlog.broker.routing import Routing
from braidlog.model.errors import BrokerError, NothingDoneError, Reason
from braidlog.wire.kafka.messages.calls import CallRequest
from braidlog.wire.mayfly.connection import HEADER_2_BYTES, HEADER_BYTES, write_frame
from braidlog.wire.mayfly.hot import FIRST
from braidlog.wire.mayfly.messages import Consistency, Failure, Status
from braidlog.wire.peer import messages as m
from braidlog.wire.peer.asking import ServingConnection
from braidlog.wire.peer.connection import Frame, write

log = logging.getLogger("braidlog.peers")

MAYFLY = "mayfly"


class NodePortAdapter:
    """Serves keys between nodes, behind a listener. Responses are sent in completion order."""

    dialect = "peer"
    ordered = False

    def __init__(
        self,
        sender: bytes,
        routing: Routing,
        exchange: KeyPeerService,
        calls: CallTable,
        *,
        needs_certificate: bool,
    ) -> None:
        self._sender = sender
        self._routing = routing
        self._exchange = exchange
        self._calls = calls
        self._needs_certificate = needs_certificate

    def open(self) -> ServingConnection:
        return ServingConnection(self._sender)

    def operation(self, request: Frame) -> str:
        return type(request.message).__name__

    def throttled(self, answer: Any, _: int) -> Any:  # noqa: ANN401
        return answer

    def failure(self, request: Frame, error: Exception) -> m.Message | None:
        """The response to a disk fault or an unexpected error."""
        log.error("a node's %s failed: %s", self.operation(request), error)
        match request.message:
            case m.Forward():
                return _failed(request.message, str(error))
            case m.Replicate(request=number):
                return self._not_here(number)
        return None

    def handle(self, conversation: Conversation, request: Frame) -> Coroutine[Any, Any, m.Message | None]:
        if not self._is_node(conversation, request.sender):
            return self._refuse(conversation, request)
        match request.message:
            case m.Forward():
                return self._forwarded(conversation, request.message)
            case m.Replicate():
                return self._replicated(request.message)
            case m.SyncRequest():
                return self._compared(conversation, request.message)
        raise AssertionError(f"{request.message} is not a request of a node")

    def _is_node(self, conversation: Conversation, sender: bytes) -> bool:
        node = self._routing.node_with(sender.hex())
        if node is None or node == self._routing.own_number:
            return False
        return not self._needs_certificate or node_of(conversation.principal) == node

    async def _refuse(self, conversation: Conversation, request: Frame) -> None:
        log.warning(
            "%s (%r) is not the node of this cluster that it claims to be (%s); closing",
            conversation.peer,
            conversation.principal,
            request.sender.hex(),
        )
        conversation.close()

    # -- forwarded requests ----------------------------------------------------------------------------------

    async def _forwarded(self, conversation: Conversation, forward: m.Forward) -> m.Message:
        """Serve a forwarded request, or reject it: it is not forwarded again."""
        if forward.hops != FIRST_HOP:
            return self._not_here(forward.request)
        try:
            self._exchange.observe(forward.stamp)
        except BrokerError as error:
            return _failed(forward, str(error))
        serve = self._calls.rows.get(MAYFLY)
        if serve is None:  # this node is still starting
            return self._not_here(forward.request)
        try:
            frame = await serve(conversation, CallRequest(MAYFLY, forward.principal, request_of(forward)))
        except BrokerError:
            return self._not_here(forward.request)
        return answer_of(forward, frame)

    def _not_here(self, request: int) -> m.TopologyChanged:
        return m.TopologyChanged(request, self._routing.epoch)

    # -- salvaged records ------------------------------------------------------------------------------------

    async def _replicated(self, message: m.Replicate) -> m.Message:
        try:
            is_settled = await self._exchange.replicate(
                message.log,
                salvaged(
                    message.operation,
                    message.key,
                    message.argument,
                    message.ttl_seconds,
                    message.stamp,
                    (message.origin_epoch, message.origin_offset),
                ),
            )
        except BrokerError:  # another node leads it, or the commit is unknown: a repeat counts once
            return self._not_here(message.request)
        return m.Replicated(message.request, is_settled)

    # -- comparisons -----------------------------------------------------------------------------------------

    async def _compared(self, conversation: Conversation, asked: m.SyncRequest) -> m.Message:
        """Compare a leaf of keys. The keys are sent one by one, as fast as the other node reads them."""
        among = asked.first_leaf, asked.next_leaf
        ask = anti_entropy.Ask(asked.epoch, asked.offset, among, asked.digest)
        reply = await self._exchange.comparing.answer(asked.log, ask)
        place = asked.log, asked.epoch
        if isinstance(reply, anti_entropy.Same):
            return m.SyncOk(*place, asked.offset, *among)
        if not isinstance(reply, anti_entropy.LeafState):
            is_known = isinstance(reply, anti_entropy.Narrower)
            verdict = m.Verdict.NARROWER if is_known else m.Verdict.UNKNOWN
            return m.SyncEnd(*place, asked.offset, *among, 0, verdict)
        for each in reply.keys:
            diff = m.SyncDiff(*place, reply.offset, each.stamp, each.deadline_ms, each.kind, each.key, each.value)
            await conversation.push(write(self._sender, diff))
        return m.SyncEnd(*place, reply.offset, *among, len(reply.keys), m.Verdict.TOLD)


def _failed(forward: m.Forward, text: str) -> m.Answer:
    return answer_of(forward, write_frame(forward.request, Failure(Status.SERVER_ERROR, text)))


FIRST_HOP: Final = 1
"""Hop count from the node that the client reached; a second hop is not allowed."""
_VERSION_2: Final = FIRST + 0x100
_HEADER: Final = struct.Struct(">III")


def to_forward(call: Call, stamp: bytes) -> m.Forward:
    """The forwarded form of a client's frame."""
    first, _, size = _HEADER.unpack_from(call.body)
    begin = HEADER_BYTES if first & 0xFFFFFF00 == FIRST else HEADER_2_BYTES
    assert begin + size == len(call.body), "one request at a time"
    consistency = Consistency.QUORUM if begin == HEADER_BYTES else call.body[HEADER_BYTES]
    return m.Forward(0, first & 0xFF, consistency, FIRST_HOP, stamp, call.principal, call.body[begin:])


def client_frame(call: Call, answer: m.Answer | m.TopologyChanged) -> bytes:
    """The frame for the client. Raises `NothingDoneError` if the other node does not hold the key."""
    if isinstance(answer, m.TopologyChanged):
        raise NothingDoneError(Reason.NOT_LEADER, f"the other node does not lead the key (epoch {answer.epoch})")
    _, number, _ = _HEADER.unpack_from(call.body)
    return _HEADER.pack(FIRST | answer.status, number, len(answer.body)) + answer.body


def request_of(forward: m.Forward) -> bytes:
    """The frame as the client would have sent it here."""
    head = _HEADER.pack(_VERSION_2 | forward.command, forward.request, len(forward.body))
    return head + bytes((forward.consistency,)) + forward.body


def answer_of(forward: m.Forward, frame: bytes) -> m.Answer:
    return m.Answer(forward.request, frame[3], frame[HEADER_BYTES:])
