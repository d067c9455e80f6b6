"""Routes a request to its handler, checks its permissions, and limits the time of administrative requests.

Does not handle: any dialect's messages.
Invariant: a request is authorized by its row before its handler runs. A request type without a route is a bug that a
test detects.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from itertools import islice
from types import CoroutineType
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import msgspec

from braidlog.adapters.contract import Conversation, Relayed, answer_of
from braidlog.adapters.services import CommonServices
from braidlog.broker.coordination.coordinator import Coordinator
from braidlog.broker.forwarding import Call
from braidlog.model.actor import Actor, audit, audited_as
from braidlog.model.errors import BrokerError, ElsewhereError, NotLeaderError, Reason
from braidlog.model.runtime.runtime import Runtime
from braidlog.security.authorization import Kind, NotAuthorizedError, Operation

T = TypeVar("T")

SECONDS_USUAL: Final = 60.0
"""Time limit of a request that names none."""
SECONDS_MAX: Final = 300.0


class Deadline:
    """The deadline of one request: all its items share it."""

    def __init__(self, runtime: Runtime, timeout_ms: int = 0) -> None:
        self._runtime = runtime
        self._until = runtime.monotonic() + (min(timeout_ms / 1000, SECONDS_MAX) if timeout_ms > 0 else SECONDS_USUAL)

    async def of(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Raises TIMED_OUT after the deadline; the outcome may then be unknown."""
        return await self._runtime.within(self._until - self._runtime.monotonic(), work)


Handler = Callable[..., Any]
"""handler(request, the dialect's services, conversation) → the dialect's answer, None if it has none, or a coroutine
if it may have to wait. The handler of a row with `each` also gets the `Denied`; with `state_of`, as the last
argument, the `Coordinator`.
"""


class Need(NamedTuple):
    """A permission on the resources that a request names, and how to find them in it."""

    operation: Operation
    find: Callable[[Any, Any], Iterable[str | None]]
    """find(request, the dialect's services) → names; None means the node itself, or any resource of that kind."""
    kind: Kind = Kind.TOPIC


DENIED_MAX = 5
"""Maximum names in one audit line."""
ADMINISTERS = frozenset({Operation.CREATE, Operation.DELETE, Operation.ALTER})
"""A request with one of these operations always has an audit line. Requests with `CLUSTER`, which replicas send
constantly, have one only for changes.
"""
TO_BE_KNOWN = Need(Operation.DESCRIBE, lambda _, __: ())
"""The only operations of clients that are not authenticated where authentication is required."""
Resource = str | None | tuple[Kind, str | None]
"""A topic by its name (None: the node itself), any other resource with its kind."""


class Denied(dict[Resource, BrokerError]):
    """Resources of one request that its client may not use, and the error for each."""

    def check(self, *resources: Resource) -> None:
        for resource in resources:
            if resource in self:
                raise self[resource].with_traceback(
                    None
                )  # raised once per entry that names it: its traceback would only grow


class Route(msgspec.Struct, frozen=True):
    """How a request is served: handler, permissions, and topic (None: no single topic)."""

    handler: Handler
    operation: Operation | None
    """None: no permission is needed, or only those of `needs` and `each`."""
    topic: Callable[[Any], str | None] = lambda _: None
    needs: tuple[Need, ...] = ()
    """Permissions of the whole request: a denied one rejects the whole request."""
    each: tuple[Need, ...] = ()
    """Permissions per name: each name has its own result."""
    state_of: Callable[[Any], str | None] | None = None
    """state_of(request) → the group, transactional id or sink whose coordinator the handler gets; None: any node
    serves it, without a coordinator.
    """
    of_message: bool = False
    """Whether the handler takes the request's `message` instead of the request."""
    is_bounded: bool = True
    """Whether an audited request without a time-out gets the default time-out of administration."""
    is_audited: bool = False
    """Whether the audit log records changes by it."""
    is_told: bool = False
    """Whether it has an audit line even without a change. Both follow from its operation."""
    is_plain: bool = False
    """Whether a permission on the topic is all it needs: no audit, no coordinator, no permissions per name."""

    def __post_init__(self) -> None:
        needed = {self.operation, *(need.operation for need in (*self.needs, *self.each))}
        is_told = not ADMINISTERS.isdisjoint(needed)
        msgspec.structs.force_setattr(self, "is_told", is_told)
        is_audited = is_told or Operation.CLUSTER in needed
        msgspec.structs.force_setattr(self, "is_audited", is_audited)
        is_plain = not (is_audited or self.state_of is not None or self.each)
        msgspec.structs.force_setattr(self, "is_plain", is_plain)


class RoutedAdapter:
    """Base of every dialect's adapter."""

    dialect = ""
    uses: type
    """The dialect's struct of services."""
    ordered = True
    routes: ClassVar[Mapping[type, Route]] = {}

    def __init__(self, services: CommonServices) -> None:
        self._services = services

    def operation(self, request: Any) -> str:  # noqa: ANN401
        return type(request).__name__

    def throttled(self, answer: Any, milliseconds: int) -> Any:  # noqa: ANN401, ARG002 - most dialects have no word for it
        return answer

    def has_deadlines(self, request: Any) -> bool:  # noqa: ANN401, ARG002 - most dialects have no word for it
        """Whether the request has its own time-out: its handler then limits each of its items."""
        return False

    def handle(self, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
        return self.serve(self.routes[type(request)], conversation, request)

    def serve(self, route: Route, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
        """Return the handler's answer, or a coroutine for it. Requests without permission are rejected before."""
        services = self._services
        if route.operation is None and not route.needs and not route.each:
            return route.handler(request.message if route.of_message else request, services, conversation)
        authorize = services.authorize
        if authorize.required:
            authorize.require_known(conversation.principal)
        if route.is_plain:
            topic = route.topic(request)
            if not authorize.is_free:
                self._check(route, conversation, request, topic)
            return route.handler(request.message if route.of_message else request, services, conversation)
        serve = self._serve_audited if route.is_audited else self._allow
        return serve(route, conversation, request)

    def _serve_audited(self, route: Route, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
        """Attribute the changes of this request to its client, including later ones."""
        actor = Actor(conversation.principal, conversation.peer, self._services.authorize.door or self.dialect)
        with audited_as(actor, self.operation(request), is_told=route.is_told):
            served = self._allow(route, conversation, request)
        if type(served) is CoroutineType:
            return self._answer_audited(actor, route, request, served)
        self._tell_of(actor, route, request)
        return served

    async def _answer_audited(
        self,
        actor: Actor,
        route: Route,
        request: Any,  # noqa: ANN401
        serving: Coroutine[Any, Any, Any],
    ) -> Any:  # noqa: ANN401
        with audited_as(actor, self.operation(request), is_told=route.is_told):
            bounds = route.is_bounded and not self.has_deadlines(request)
            answer = await (Deadline(self._services.runtime).of(serving) if bounds else serving)
        self._tell_of(actor, route, request)
        return answer

    def _tell_of(self, actor: Actor, route: Route, request: Any) -> None:  # noqa: ANN401
        if route.is_told and not actor.lines:
            actor.write(f"{self.operation(request)} changed nothing")

    def _allow(self, route: Route, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
        services = self._services
        topic = route.topic(request)  # for every client: a request without its topic is rejected
        if not services.authorize.is_free:
            self._check(route, conversation, request, topic)
        if route.state_of is not None and (name := route.state_of(request)) is not None:
            return self._settled(route, conversation, request, name)
        return self._served(route, conversation, request)

    def _check(self, route: Route, conversation: Conversation, request: Any, topic: str | None) -> None:  # noqa: ANN401
        check, principal = self._services.authorize.check, conversation.principal
        if route.operation is not None:
            check(principal, route.operation, topic)
        for need in route.needs:
            for name in need.find(request, self._services):
                check(principal, need.operation, name, need.kind)

    async def _settled(self, route: Route, conversation: Conversation, request: Any, name: str) -> Any:  # noqa: ANN401
        """Let a name's coordinator serve the request, and answer after its changes are replicated."""
        async with self._services.coordinators.settled_after(name) as coordinator:
            return await answer_of(self._served, route, conversation, request, coordinator)

    def _served(
        self,
        route: Route,
        conversation: Conversation,
        request: Any,  # noqa: ANN401
        coordinator: Coordinator | None = None,
    ) -> Any:  # noqa: ANN401
        asked = request.message if route.of_message else request
        given: tuple[object, ...] = () if route.state_of is None else (coordinator,)
        if route.each:
            is_free = self._services.authorize.is_free
            denied = Denied() if is_free else self._denied(route, conversation, request)
            if denied and route.is_told:
                refused = "; ".join(map(str, islice(denied.values(), DENIED_MAX)))
                audit(f"{self.operation(request)} is refused ({refused})")
            given = (denied, *given)
        return route.handler(asked, self._services, conversation, *given)

    def _denied(self, route: Route, conversation: Conversation, request: Any) -> Denied:  # noqa: ANN401
        """The error is the same for existing and unknown names, so that it reveals nothing."""
        principal, is_allowed = conversation.principal, self._services.authorize.is_allowed
        return Denied(
            (name if kind is Kind.TOPIC else (kind, name), NotAuthorizedError(principal, operation, name, kind))
            for operation, find, kind in route.each
            for name in find(request, self._services)
            if not is_allowed(principal, operation, name, kind)
        )


class ForwardingAdapter(RoutedAdapter):
    """Adapter of a dialect whose clients cannot find the right node: any node accepts their requests and forwards
    them.
    """

    def __init__(self, services: CommonServices) -> None:
        super().__init__(services)
        self._forwarding = services.forwarding
        self._forwarding.names |= {self.dialect, *self.calls}

    @property
    def calls(self) -> Mapping[str, Callable[[bytes], Coroutine[Any, Any, bytes]]]:
        """Calls between this dialect's adapters on different nodes, beside forwarded requests, by name."""
        return {}

    def frame_of(self, request: Any) -> bytes:  # noqa: ANN401
        """Return the client's request as a frame, so that the answer to it is the client's. Raises ValueError if it
        does not fit a frame.
        """
        raise NotImplementedError

    def may_forward(self, request: Any) -> bool:  # noqa: ANN401, ARG002 - nearly all of those that do
        """Return whether a request is forwarded if another node serves it."""
        return self._forwarding.calls is not None

    def should_forward(self, request: Any, error: ElsewhereError) -> bool:  # noqa: ANN401, ARG002 - nearly all of them alike
        """Return whether a request rejected with this error is forwarded; not if clients find the other node
        themselves.
        """
        return True

    def wait_ms(self, request: Any) -> int:  # noqa: ANN401, ARG002 - most wait for nothing
        """Return how long the answer to a request may take by its own fields."""
        return 0

    def may_repeat(self, route: Route, request: Any, refusal: BrokerError) -> bool:  # noqa: ANN401, ARG002 - most decide by the row
        """Return whether a request may be sent again although its outcome is unknown."""
        return route.operation in (Operation.READ, Operation.DESCRIBE) and isinstance(refusal, NotLeaderError)

    def serve(self, route: Route, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
        stays = self._forwarding.calls is None or route.operation is Operation.CLUSTER or conversation.is_forwarded
        if stays or not self.may_forward(request):
            return super().serve(route, conversation, request)
        try:
            served = super().serve(route, conversation, request)
        except ElsewhereError as error:
            if not self.should_forward(request, error):
                raise
            return self._forward(route, conversation, request, error.with_traceback(None))
        is_waiting = type(served) is CoroutineType
        return self._anywhere(route, conversation, request, served) if is_waiting else served

    async def _anywhere(
        self,
        route: Route,
        conversation: Conversation,
        request: Any,  # noqa: ANN401
        serving: Coroutine[Any, Any, Any],
    ) -> Any:  # noqa: ANN401
        try:
            return await serving
        except ElsewhereError as error:
            if not self.should_forward(request, error):
                raise
            refusal = error.with_traceback(None)
        return await self._forward(route, conversation, request, refusal)

    async def _forward(self, route: Route, conversation: Conversation, request: Any, refusal: ElsewhereError) -> Any:  # noqa: ANN401
        try:
            frame = self.frame_of(request)
        except ValueError as error:
            raise BrokerError(
                Reason.RECORD_TOO_LARGE, f"the request cannot be forwarded to the node that serves it: {error}"
            ) from None
        seconds = self.wait_ms(request) / 1000
        changes = not self.may_repeat(route, request, refusal)
        topic = route.topic(request)
        call = Call(self.dialect, conversation.principal, frame, seconds, changes=changes, topic=topic)
        conversation.hold(len(frame))
        try:
            serve_here = partial(answer_of, super().serve, route, conversation, request)
            answer = await self._forwarding.forward(call, refusal, serve_here)
        finally:
            conversation.hold(-len(frame))
        return Relayed(answer) if isinstance(answer, bytes) else answer


def then(served: Any, follow: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    """Apply `follow` to a handler's answer, now or after its coroutine."""
    return _follow_later(served, follow) if type(served) is CoroutineType else follow(served)


async def _follow_later(serving: Coroutine[Any, Any, Any], follow: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    return await answer_of(follow, await serving)


def named(operation: Operation, kind: Kind, find: Callable[[Any], str | None]) -> Need:
    """The permission of a request that names one such resource; if it names none, no permission is needed."""

    def names(request: Any, _: Any) -> Iterable[str]:  # noqa: ANN401
        name = find(request)
        return (name,) if name else ()

    return Need(operation, names, kind)
