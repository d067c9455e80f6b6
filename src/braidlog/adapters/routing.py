"""From a request's type to the few lines that serve it; and the deadline of an administrative request.

Knows: routes, and what each needs to be allowed: on topics, groups, transactional ids, keys. Refuses to know: any dialect's
messages.
Invariant: a request is authorised by its row before its handler runs; a request type without a route is a defect that a test
finds.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from itertools import islice
from types import CoroutineType
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import msgspec

from braidlog.adapters.contract import Conversation, Relayed, answer_of
from braidlog.adapters.services import CommonServices
from braidlog.broker.access.authorize import Kind, NotAuthorizedError, Operation
from braidlog.broker.coordinator import Coordinator
from braidlog.broker.forwarding import Call
from braidlog.model.actor import Actor, acting, audit
from braidlog.model.errors import BrokerError, ElsewhereError, NotLeaderError, Reason
from braidlog.model.world import World

T = TypeVar("T")

SECONDS_USUAL: Final = 60.0
"""Of a request that names no time."""
SECONDS_MAX: Final = 300.0


class Deadline:
    """Of one request: all its items share it."""

    def __init__(self, world: World, timeout_ms: int = 0) -> None:
        self._world = world
        self._until = world.monotonic() + (min(timeout_ms / 1000, SECONDS_MAX) if timeout_ms > 0 else SECONDS_USUAL)

    async def of(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. `BrokerError` TIMED_OUT: the time is over, and what became of it may be unknown."""
        return await self._world.within(self._until - self._world.monotonic(), work)


Handler = Callable[..., Any]
"""handler(request, the dialect's services, conversation) → the dialect's answer, or None if it gives none; a coroutine that gives
it, where it may have to wait. That of a row with `each` is also given the `Denied`, and that of a row with `state_of`, last of
all, the `Coordinator`."""


class Need(NamedTuple):
    """What a request needs on the resources that it names, and how they are found in it."""

    operation: Operation
    find: Callable[[Any, Any], Iterable[str | None]]
    """find(request, the dialect's services) → names; None stands for the node itself, or for some resource of that kind."""
    kind: Kind = Kind.TOPIC


DENIED_MAX = 5
"""Names that one audit line tells of."""
ADMINISTERS = frozenset({Operation.CREATE, Operation.DELETE, Operation.ALTER})
"""A request that needs one of these has an audit line, whatever becomes of it. Of those that need `CLUSTER`, which replicas send
all the time, only what they change has one."""
TO_BE_KNOWN = Need(Operation.DESCRIBE, lambda _, __: ())
"""Nothing but that, where clients must say who they are, this one has."""
Resource = str | None | tuple[Kind, str | None]
"""A topic by its name (None: the node itself), anything else with its kind."""


class Denied(dict[Resource, BrokerError]):
    """What one request names and its client may not use so, and why."""

    def check(self, *resources: Resource) -> None:
        for resource in resources:
            if resource in self:
                raise self[resource].with_traceback(
                    None
                )  # raised for each entry that names it: its trace would only grow


class Route(msgspec.Struct, frozen=True):
    """How a request is served: by whom, what it needs, and on which topic (None: on no topic in particular)."""

    handler: Handler
    operation: Operation | None
    """None: nothing is needed, or only what `needs` and `each` say."""
    topic: Callable[[Any], str | None] = lambda _: None
    needs: tuple[Need, ...] = ()
    """What the request as a whole needs besides: without it nothing of it is served."""
    each: tuple[Need, ...] = ()
    """What is allowed or refused for each name by itself, because each has an answer of its own."""
    state_of: Callable[[Any], str | None] | None = None
    """state_of(request) → the name of the group, transactional id or sink whose coordinator its handler is given; None: any node
    serves it, and it is given none."""
    of_message: bool = False
    """Whether the handler takes the `message` of a request, and not the request around it."""
    is_bounded: bool = True
    """Whether it is answered within the usual time of administration if it is audited and names no time."""
    is_audited: bool = False
    """Whether the log says who has changed something by it."""
    is_told: bool = False
    """Whether it has a line even if nothing was changed. Both follow from what it needs."""
    is_plain: bool = False
    """Whether it is allowed or not, and that is all there is to it: no audit, no coordinator, nothing name by name."""

    def __post_init__(self) -> None:
        needed = {self.operation, *(need.operation for need in (*self.needs, *self.each))}
        is_told = not ADMINISTERS.isdisjoint(needed)
        msgspec.structs.force_setattr(self, "is_told", is_told)
        is_audited = is_told or Operation.CLUSTER in needed
        msgspec.structs.force_setattr(self, "is_audited", is_audited)
        is_plain = not (is_audited or self.state_of is not None or self.each)
        msgspec.structs.force_setattr(self, "is_plain", is_plain)


class RoutedAdapter:
    """What every dialect's adapter has in common."""

    dialect = ""
    uses: type
    """The struct of services that it is made with."""
    ordered = True
    routes: ClassVar[Mapping[type, Route]] = {}

    def __init__(self, services: CommonServices) -> None:
        self._services = services

    def operation(self, request: Any) -> str:  # noqa: ANN401
        return type(request).__name__

    def throttled(self, answer: Any, milliseconds: int) -> Any:  # noqa: ANN401, ARG002 - most dialects have no word for it
        return answer

    def has_deadlines(self, request: Any) -> bool:  # noqa: ANN401, ARG002 - most dialects have no word for it
        """Whether a request says how long it may take: its handler then ends each of its items in time."""
        return False

    def handle(self, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
        return self.serve(self.routes[type(request)], conversation, request)

    def serve(self, route: Route, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
        """What its handler gives: the answer, or a coroutine for it. What is not allowed is refused before."""
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
        """What is changed for this request, at once or later, is known to be its client's wish."""
        actor = Actor(conversation.principal, conversation.peer, self._services.authorize.door or self.dialect)
        with acting(actor, self.operation(request), is_told=route.is_told):
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
        with acting(actor, self.operation(request), is_told=route.is_told):
            bounds = route.is_bounded and not self.has_deadlines(request)
            answer = await (Deadline(self._services.world).of(serving) if bounds else serving)
        self._tell_of(actor, route, request)
        return answer

    def _tell_of(self, actor: Actor, route: Route, request: Any) -> None:  # noqa: ANN401
        if route.is_told and not actor.lines:
            actor.write(f"{self.operation(request)} has changed nothing")

    def _allow(self, route: Route, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
        services = self._services
        topic = route.topic(request)  # asked of everybody: a request that has to name one and does not is refused
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
        """Served by the coordinator of a name, and answered once what that has changed is replicated."""
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
        """Said alike of what is there and of what is not, so that nothing is revealed."""
        principal, is_allowed = conversation.principal, self._services.authorize.is_allowed
        return Denied(
            (name if kind is Kind.TOPIC else (kind, name), NotAuthorizedError(principal, operation, name, kind))
            for operation, find, kind in route.each
            for name in find(request, self._services)
            if not is_allowed(principal, operation, name, kind)
        )


class ForwardingAdapter(RoutedAdapter):
    """A dialect whose clients cannot find the node that serves them: any node takes their requests, and asks that one."""

    def __init__(self, services: CommonServices) -> None:
        super().__init__(services)
        self._forwarding = services.forwarding
        self._forwarding.names |= {self.dialect, *self.calls}

    @property
    def calls(self) -> Mapping[str, Callable[[bytes], Coroutine[Any, Any, bytes]]]:
        """What this dialect's adapters ask each other beside requests of clients, by the name of the call."""
        return {}

    def frame_of(self, request: Any) -> bytes:  # noqa: ANN401
        """The request as its client sent it, so that the answer to it is the client's. ValueError if it does not fit a frame."""
        raise NotImplementedError

    def forwards(self, request: Any) -> bool:  # noqa: ANN401, ARG002 - nearly all of those that do
        """Whether a request is handed on if another node serves it."""
        return self._forwarding.calls is not None

    def hands_on(self, request: Any, error: ElsewhereError) -> bool:  # noqa: ANN401, ARG002 - nearly all of them alike
        """Whether what was refused so is asked of another node; not what clients look for themselves."""
        return True

    def wait_ms(self, request: Any) -> int:  # noqa: ANN401, ARG002 - most wait for nothing
        """How long a request says that its answer may take."""
        return 0

    def may_repeat(self, route: Route, request: Any, refusal: BrokerError) -> bool:  # noqa: ANN401, ARG002 - most look at the row
        """Whether a request may be sent again although its outcome is unknown."""
        return route.operation in (Operation.READ, Operation.DESCRIBE) and isinstance(refusal, NotLeaderError)

    def serve(self, route: Route, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
        stays = self._forwarding.calls is None or route.operation is Operation.CLUSTER or conversation.is_forwarded
        if stays or not self.forwards(request):
            return super().serve(route, conversation, request)
        try:
            served = super().serve(route, conversation, request)
        except ElsewhereError as error:
            if not self.hands_on(request, error):
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
            if not self.hands_on(request, error):
                raise
            refusal = error.with_traceback(None)
        return await self._forward(route, conversation, request, refusal)

    async def _forward(self, route: Route, conversation: Conversation, request: Any, refusal: ElsewhereError) -> Any:  # noqa: ANN401
        try:
            frame = self.frame_of(request)
        except ValueError as error:
            raise BrokerError(
                Reason.RECORD_TOO_LARGE, f"it cannot be handed to the node that serves it: {error}"
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
    """What `follow` makes of a handler's answer: at once, or a coroutine where the answer is one."""
    return _follow_later(served, follow) if type(served) is CoroutineType else follow(served)


async def _follow_later(serving: Coroutine[Any, Any, Any], follow: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    return await answer_of(follow, await serving)


def named(operation: Operation, kind: Kind, find: Callable[[Any], str | None]) -> Need:
    """The need of a request that names one such resource, or none: then nothing is needed."""

    def names(request: Any, _: Any) -> Iterable[str]:  # noqa: ANN401
        name = find(request)
        return (name,) if name else ()

    return Need(operation, names, kind)
