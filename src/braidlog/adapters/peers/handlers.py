"""Serving side of the replica port: fetches of followers, and calls of nodes.

Does not handle: the decisions on a fetch. A fetch becomes a replication message, and `send` delivers its response;
`node_calls.py` serves calls.
Invariants: a connection belongs to one follower, as proven by its certificate if certificates are required. One
request per follower waits at a time: a newer one ends the wait of the previous one, so that new fetches are not
delayed.
"""

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from braidlog.adapters.contract import Conversation
from braidlog.adapters.peers.follower_sessions import FollowerSession, InSync, Throttle, node_of
from braidlog.adapters.peers.node_calls import CallTable
from braidlog.adapters.peers.replica_messages import NOTHING, Place, in_response, read_question
from braidlog.broker.partition_reports import ReplicationRate
from braidlog.model.errors import Reason
from braidlog.model.runtime.cooperative import yield_to_loop
from braidlog.model.runtime.runtime import Runtime
from braidlog.replication.messages import Answer, Complaint, Fetch
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request, ServerConnection
from braidlog.wire.kafka.messages.calls import END_WAIT, CallRequest, CallResponse
from braidlog.wire.kafka.messages.replicas import ReplicaFetchRequest, ReplicaFetchResponse
from braidlog.wire.kafka.replica_fetch import leader_connection

log = logging.getLogger("braidlog.peers")

WAIT_SECONDS_MAX: Final = 5.0
QUESTIONS_AT_ONCE: Final = 50
FIRST: Final = 0

Received = Callable[[int, Place, Fetch | Complaint], None]
"""received(node, place, message): handles a follower's message."""


class PeersAdapter:
    """Serves replica fetches and calls, behind a listener."""

    dialect = "peers"
    ordered = True

    def __init__(
        self,
        node: int,
        runtime: Runtime,
        received: Received,
        *,
        needs_certificate: bool,
        in_sync: InSync = lambda _, __: True,
        rate: ReplicationRate | None = None,
    ) -> None:
        self.node = node
        self._runtime = runtime
        self._received = received
        self._needs_certificate = needs_certificate
        self._in_sync = in_sync
        self._throttle = Throttle(rate or ReplicationRate())
        self.calls = CallTable()
        self._last = 0
        self._sessions: WeakKeyDictionary[Conversation, FollowerSession] = WeakKeyDictionary()
        self._followers: WeakValueDictionary[int, FollowerSession] = WeakValueDictionary()
        """The newest session of each follower, while its connection lasts."""

    def open(self) -> ServerConnection:
        return leader_connection()

    def operation(self, request: Request) -> str:
        return request.api.name

    def throttled(self, answer: ReplicaFetchResponse | CallResponse, _: int) -> ReplicaFetchResponse | CallResponse:
        return answer

    def failure(self, request: Request, error: Exception) -> ReplicaFetchResponse | CallResponse:
        if isinstance(request.message, CallRequest):
            return CallResponse(Reason.UNAVAILABLE.name, str(error))
        log.error("replica fetch failed: %s", error)
        return ReplicaFetchResponse(error_code=E.UNKNOWN_SERVER_ERROR)

    def send(self, node: int, place: Place, answer: Answer) -> None:
        """Send a response to a follower; dropped if its fetch is no longer pending."""
        session = self._followers.get(node)
        if session is not None and session.answered(place, answer, self._runtime.monotonic()):
            session.wake()

    def handle(
        self, conversation: Conversation, request: Request
    ) -> Coroutine[Any, Any, ReplicaFetchResponse | CallResponse | None]:
        if isinstance(request.message, CallRequest):
            return self._call(conversation, request.message)
        return self._fetch(conversation, request.message)

    async def _call(self, conversation: Conversation, message: CallRequest) -> CallResponse | None:
        caller = node_of(conversation.principal)
        if conversation in self._sessions or (self._needs_certificate and caller in (None, self.node)):
            log.warning("peers %s: %r may not call here; closing", conversation.peer, conversation.principal)
            conversation.close()
            return None
        if message.name == END_WAIT:
            ended = int.from_bytes(message.body[:4], "big")
            conversation.end_waits(lambda asked: asked.correlation_id == ended)
            return CallResponse()
        conversation.respond_in_any_order()
        return await self.calls.handle_call(conversation, message)

    async def _fetch(self, conversation: Conversation, message: ReplicaFetchRequest) -> ReplicaFetchResponse | None:
        node = message.replica_state.replica_id
        if not self._is_node(conversation, node):
            log.warning("peers %s: %r may not act as node %d; closing", conversation.peer, conversation.principal, node)
            conversation.close()
            return None
        session = self._session(conversation, node, message)
        if isinstance(session, E):
            return ReplicaFetchResponse(error_code=session)
        session.wake()
        if not self._take(session, message):
            return ReplicaFetchResponse(error_code=E.FETCH_SESSION_ID_NOT_FOUND)
        await self._wait(session, min(max(message.max_wait_ms / 1000, 0.0), WAIT_SECONDS_MAX))
        return ReplicaFetchResponse(session_id=session.number, responses=in_response(session.take_answers()))

    def _is_node(self, conversation: Conversation, node: int) -> bool:
        if node < 0 or node == self.node:
            return False
        return not self._needs_certificate or node_of(conversation.principal) == node

    def _session(self, conversation: Conversation, node: int, message: ReplicaFetchRequest) -> FollowerSession | E:
        session = self._sessions.get(conversation)
        if message.session_epoch == FIRST:
            self._last += 1
            session = FollowerSession(node, self._last, self._in_sync, self._throttle)
            self._sessions[conversation] = self._followers[node] = session
        if session is None or session.node != node or message.session_id not in (session.number, FIRST):
            return E.FETCH_SESSION_ID_NOT_FOUND
        if message.session_epoch != session.epoch:
            return E.INVALID_FETCH_SESSION_EPOCH
        session.epoch += 1
        return session

    def _take(self, session: FollowerSession, message: ReplicaFetchRequest) -> bool:
        for topic in message.topics:
            for each in topic.partitions:
                place = topic.topic_id, each.partition
                if each.complaint >= 0:
                    complaint = Complaint(session.node, each.current_leader_epoch, each.complaint)
                    self._received(session.node, place, complaint)
                if each.question != NOTHING and not session.ask(
                    place, each.question, read_question(each, message.replica_state, self.node)
                ):
                    return False
        return True

    async def _wait(self, session: FollowerSession, seconds: float) -> None:
        """Wait for a response, the time limit, or a newer request."""

        def give(place: Place, question: Fetch) -> None:
            self._received(session.node, place, question)

        until, next_request = self._runtime.monotonic() + seconds, session.epoch
        while session.epoch == next_request:  # includes a request that arrived while fetches were being delivered
            now = self._runtime.monotonic()
            pause = session.hand_on(give, now, QUESTIONS_AT_ONCE)
            if pause == 0.0:
                await yield_to_loop()
                continue
            if session.has_answers or now >= until:
                return
            wakeup = session.waits = self._runtime.wakeup()
            if await wakeup.wait(until - now if pause is None else min(until - now, pause)):
                return
