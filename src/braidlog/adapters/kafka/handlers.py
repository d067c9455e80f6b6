"""The table of routes, and the adapter that uses it.

Invariants: ApiVersions returns exactly the APIs with a route (braidlog's own APIs only to its own client). Where
authentication is required, other requests are rejected before it. Requests of a connection take effect in order.
"""

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from enum import Enum, auto
from types import CoroutineType
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from braidlog.adapters.contract import Conversation, answer_of
from braidlog.adapters.errors import text_of
from braidlog.adapters.kafka import metadata
from braidlog.adapters.kafka.administration import acls, client_quotas, configs, nodes, placement, topics_admin
from braidlog.adapters.kafka.authentication import sasl
from braidlog.adapters.kafka.coordination import (
    consumer_groups,
    group_administration,
    groups,
    staged_batches,
    transactions,
)
from braidlog.adapters.kafka.errors import code_of
from braidlog.adapters.kafka.metadata import AutoCreation
from braidlog.adapters.kafka.records import count_records, fetch_requests, list_offsets, produce_requests
from braidlog.adapters.kafka.records.fetch_sessions import FetchSessions
from braidlog.adapters.kafka.routes import Route
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topic_entries import excess
from braidlog.adapters.routing import RoutedAdapter
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX
from braidlog.model.runtime.cooperative import yield_to_loop
from braidlog.model.runtime.runtime import Runtime, Wakeup
from braidlog.security.authorization import ANONYMOUS
from braidlog.wire.kafka.apis import BY_KEY, Key
from braidlog.wire.kafka.codes import ErrorCode
from braidlog.wire.kafka.connection import Request, Served, ServerConnection
from braidlog.wire.kafka.messages.data import FetchResponse
from braidlog.wire.kafka.rows import Message

TURN_SECONDS_MAX = 3600.0


class Effect(Enum):
    CHANGES = auto()
    """Changes state that any request may observe: it runs alone."""
    APPENDS = auto()
    """Appends records when it starts, so later appends may start before it is acknowledged."""
    READS = auto()
    """Changes nothing."""
    JOINS = auto()
    """Changes a group's membership when it starts, then waits for other members. A client that gives up a join sends a
    new one, which replaces it."""


EFFECTS: Mapping[Key, Effect] = {
    Key.PRODUCE: Effect.APPENDS,
    Key.FETCH: Effect.READS,
    Key.LIST_OFFSETS: Effect.READS,
    Key.COUNT_RECORDS: Effect.READS,
    Key.OFFSET_FOR_LEADER_EPOCH: Effect.READS,
    Key.JOIN_GROUP: Effect.JOINS,
    Key.SYNC_GROUP: Effect.JOINS,
    Key.HEARTBEAT: Effect.JOINS,
    Key.LEAVE_GROUP: Effect.JOINS,
    Key.CONSUMER_GROUP_HEARTBEAT: Effect.JOINS,
}
"""Effects of slow requests that are often pipelined; all others are `CHANGES`, most of which end immediately."""


class Order:
    """Orders the requests of one connection: those in progress, and those that wait to start."""

    __slots__ = ("_effect", "_is_one_woken", "_line", "_under_way")

    def __init__(self) -> None:
        self._effect = Effect.CHANGES
        self._under_way = 0
        self._is_one_woken = False
        """A request was woken and has not run yet: no request may overtake it, and it wakes the next."""
        self._line: deque[tuple[Effect, Wakeup]] = deque()

    def begin(self, effect: Effect) -> bool:
        """Return whether a request with this effect may start now: the caller must then `end` it, else `wait` first."""
        if self._under_way and (self._line or self._is_one_woken or not self._fits(effect)):
            return False  # while a request waits, another is in progress
        self._effect = effect
        self._under_way += 1
        return True

    async def wait(self, effect: Effect, runtime: Runtime) -> None:
        """Wait until earlier requests allow this one to start; the caller must then `end` it."""
        place = (effect, runtime.wakeup())
        self._line.append(place)
        woken = False
        try:
            woken = await place[1].wait(TURN_SECONDS_MAX)
        finally:
            if place in self._line:  # its client disconnected, or its time is over
                self._line.remove(place)
            else:
                self._is_one_woken = False
                self._under_way -= 0 if woken else 1
            self._wake()
        if not woken:
            raise BrokerError(Reason.TIMED_OUT, f"requests before this one took {TURN_SECONDS_MAX:g} s; try again")

    def end(self) -> None:
        self._under_way -= 1
        if self._line:
            self._wake()

    def _fits(self, effect: Effect) -> bool:
        return not self._under_way or (effect is self._effect and effect is not Effect.CHANGES)

    def _wake(self) -> None:
        """Wake only the first in line: two woken together might run in the wrong order."""
        if self._line and not self._is_one_woken and self._fits(self._line[0][0]):
            self._effect, wakeup = self._line.popleft()
            self._under_way += 1
            self._is_one_woken = True
            wakeup.wake()


log = logging.getLogger("braidlog.kafka")

SMALL_PARTS = 2
PARTS_AT_ONCE = 1000
"""A request with more parts is parsed, served and answered in separate slices of the event loop."""


def _group(request: Request) -> str | None:
    name: str = request.message.group_id
    return name


def _transaction(request: Request) -> str | None:
    name: str | None = request.message.transactional_id
    return name or None


def _sink(request: Request) -> str | None:
    name: str = request.message.sink
    return name


COORDINATED: dict[Key, Callable[[Request], str | None]] = {
    **dict.fromkeys((Key.JOIN_GROUP, Key.SYNC_GROUP, Key.HEARTBEAT, Key.LEAVE_GROUP), _group),
    Key.CONSUMER_GROUP_HEARTBEAT: _group,
    **dict.fromkeys((Key.OFFSET_COMMIT, Key.OFFSET_DELETE, Key.TXN_OFFSET_COMMIT), _group),
    **dict.fromkeys((Key.ADD_PARTITIONS_TO_TXN, Key.ADD_OFFSETS_TO_TXN, Key.END_TXN), _transaction),
    **dict.fromkeys((Key.COMMIT_BATCH, Key.ABORT_BATCH, Key.SINK_STATE), _sink),
    Key.INIT_PRODUCER_ID: _transaction,
}
"""The name whose coordinator serves a request. Requests with several names look up each; lists are per node: clients
ask every node.
"""


class KafkaAdapter(RoutedAdapter):
    """Kafka behind a listener."""

    dialect = "kafka"
    uses = Services
    ordered = True

    def __init__(
        self,
        services: Services,
        *,
        auto_create: bool = True,
        partitions: int = 1,
        session_timeout_ms_min: int = 6_000,
        reauthentication_ms: int = 0,
    ) -> None:
        super().__init__(services)
        self._sasl = sasl.Sasl(reauthentication_ms)
        self._fetches = FetchSessions()
        self._runtime = services.runtime
        self._orders: WeakKeyDictionary[Conversation, Order] = WeakKeyDictionary()
        made = AutoCreation(auto_create, partitions)
        self.table: dict[Key, Route] = {
            **metadata.routes(made, lambda: self.served),
            **produce_requests.routes(),
            **fetch_requests.ROUTES,
            **list_offsets.ROUTES,
            **count_records.ROUTES,
            **groups.routes(session_timeout_ms_min),
            **group_administration.ROUTES,
            **consumer_groups.ROUTES,
            **transactions.ROUTES,
            **staged_batches.ROUTES,
            **topics_admin.routes(made),
            **configs.routes(made, session_timeout_ms_min),
            **sasl.routes(self._sasl),
            **acls.ROUTES,
            **client_quotas.ROUTES,
            **placement.ROUTES,
            **nodes.ROUTES,
        }
        for key, state_of in COORDINATED.items():
            self.table[key] = msgspec.structs.replace(self.table[key], state_of=state_of)
        self.served: Served = {key: BY_KEY[key].versions for key in self.table}
        """The APIs that clients may use, as ApiVersions returns them."""

    def open(self) -> ServerConnection:
        return ServerConnection(self.served)

    def operation(self, request: Request) -> str:
        return request.api.name

    def has_deadlines(self, request: Request) -> bool:
        return hasattr(request.message, "timeout_ms")

    def throttled(self, answer: Any, milliseconds: int) -> Any:  # noqa: ANN401
        if "throttle_time_ms" not in getattr(answer, "__struct_fields__", ()):
            return answer
        return msgspec.structs.replace(answer, throttle_time_ms=milliseconds)

    def handle(self, conversation: Conversation, request: Request) -> Any:  # noqa: ANN401
        conversation.client_id = (request.client_id or "")[:NAME_CHARS_MAX]
        effect = EFFECTS.get(request.api.key, Effect.CHANGES)
        is_large = request.parts > PARTS_AT_ONCE and effect is not Effect.JOINS
        if is_large and effect is Effect.APPENDS:
            effect = Effect.CHANGES  # appended in slices: no other request of its connection may run in between
        order = self._orders.get(conversation)
        if order is None:
            order = self._orders[conversation] = Order()
        if is_large or not order.begin(effect):
            return self._in_turn(order, effect, conversation, request, is_large=is_large)
        try:
            served = self._serve(conversation, request)
        except BaseException:
            order.end()
            raise
        if type(served) is CoroutineType:
            return _ending(order, served)
        order.end()
        return served

    async def _in_turn(
        self, order: Order, effect: Effect, conversation: Conversation, request: Request, *, is_large: bool
    ) -> Message | None:
        """Start when earlier requests allow it. A large request yields to the event loop before and after."""
        if not order.begin(effect):
            await order.wait(effect, self._runtime)
        try:
            if is_large:
                await yield_to_loop()
            answer: Message | None = await answer_of(self._serve, conversation, request)
        finally:
            order.end()
        if is_large:
            await yield_to_loop()
        return answer

    def _serve(self, conversation: Conversation, request: Request) -> Any:  # noqa: ANN401
        return (self._fetch if request.api.key is Key.FETCH else self._handle)(conversation, request)

    async def _fetch(self, conversation: Conversation, request: Request) -> Message | None:
        """Complete a session's request first, so that all its partitions are authorized each time."""
        whole = self._fetches.begin(conversation, request.message, request.version)
        if isinstance(whole, ErrorCode):
            return FetchResponse(error_code=whole)
        asked = request if whole is request.message else msgspec.structs.replace(request, message=whole)
        answer = await answer_of(self._handle, conversation, asked)
        return self._fetches.finish(conversation, whole, answer) if isinstance(answer, FetchResponse) else answer

    def _handle(self, conversation: Conversation, request: Request) -> Any:  # noqa: ANN401
        route = self.table[request.api.key]
        if not route.before_authentication:
            if self._services.authorize.required and conversation.principal == ANONYMOUS:
                return self._turn_away(conversation, request, "before authentication")
            if self._sasl.lifetime_ms and self._sasl.is_expired(conversation, self._runtime.monotonic()):
                return self._turn_away(conversation, request, "after its session's lifetime, without re-authentication")
        # A single partition of a single topic needs no check.
        too_much = excess(request.api.key, request.message) if request.parts > SMALL_PARTS else None
        if too_much is not None:
            log.info("kafka %s: %s refused: %s", conversation.peer, request.api.name, too_much)
            return route.refusal(request, ErrorCode.INVALID_REQUEST, too_much)
        return self.serve(route, conversation, request)

    def _turn_away(self, conversation: Conversation, request: Request, why: str) -> None:
        """Close as Kafka does: most responses have no field for this error."""
        log.info("kafka %s: %s %s; closing", conversation.peer, request.api.name, why)
        conversation.close()

    def failure(self, request: Request, error: Exception) -> Message:
        route = self.table[request.api.key]
        return route.refusal(request, route.said(request, code_of(error)), text_of(error))


async def _ending(order: Order, serving: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401
    """Return the answer, then end the request's turn."""
    try:
        return await serving
    finally:
        order.end()
