"""From a request's type to the few lines that serve it.

Knows: routes, and what each needs to be allowed. Refuses to know: any dialect's messages.
Invariant: a request is authorised by its row before its handler runs; a request type without a route is a defect that a test
finds.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from braidlog.adapters.contract import Conversation
from braidlog.broker.access.authorize import Authorize, Operation
from braidlog.model.errors import BrokerError, Reason

Handler = Callable[..., Coroutine[Any, Any, Any]]
"""handler(request, the dialect's services, conversation) → the dialect's answer, or None if it gives none. That of a row with
`topics` is also given the `Denied`."""


class Topics(NamedTuple):
    """For a request that names several topics, each with an answer of its own: what it needs on each, and how they are found."""

    operation: Operation
    find: Callable[[Any, Any], Iterable[str | None]]
    """find(request, the dialect's services) → names; None stands for the node itself."""


class Denied(dict[str | None, BrokerError]):
    """The topics of one request that its client may not use so, and why."""

    def check(self, *topics: str | None) -> None:
        for topic in topics:
            if topic in self:
                raise self[topic]


class Route(msgspec.Struct, frozen=True):
    """How a request is served: by whom, what it needs, and on which topic (None: on no topic in particular)."""

    handler: Handler
    operation: Operation | None
    """None: nothing is needed, or only what `topics` says."""
    topic: Callable[[Any], str | None] = lambda _: None
    topics: Topics | None = None
    of_message: bool = False
    """Whether the handler takes the `message` of a request, and not the request around it."""


class Authorized(Protocol):
    """What a dialect's services have in common: who may do what."""

    @property
    def authorize(self) -> Authorize: ...


class RoutedAdapter:
    """What every dialect's adapter has in common."""

    dialect = ""
    uses: type
    """The struct of services that it is made with."""
    ordered = True
    routes: ClassVar[Mapping[type, Route]] = {}

    def __init__(self, services: Authorized) -> None:
        self._services = services

    def operation(self, request: Any) -> str:  # noqa: ANN401
        return type(request).__name__

    def handle(self, conversation: Conversation, request: Any) -> Coroutine[Any, Any, Any]:  # noqa: ANN401
        return self.serve(self.routes[type(request)], conversation, request)

    def serve(self, route: Route, conversation: Conversation, request: Any) -> Coroutine[Any, Any, Any]:  # noqa: ANN401
        if route.operation is None and route.topics is None:
            return route.handler(request.message if route.of_message else request, self._services, conversation)
        return self._authorized(route, conversation, request)

    async def _authorized(self, route: Route, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
        if route.operation is not None:
            self._services.authorize.check(conversation.principal, route.operation, route.topic(request))
        asked = request.message if route.of_message else request
        if route.topics is None:
            return await route.handler(asked, self._services, conversation)
        denied = self._denied(conversation.principal, route.topics, request)
        return await route.handler(asked, self._services, conversation, denied)

    def _denied(self, principal: str, topics: Topics, request: Any) -> Denied:  # noqa: ANN401
        """Said alike of topics that are there and of those that are not, so that nothing is revealed."""
        is_allowed = self._services.authorize.is_allowed
        return Denied(
            (name, BrokerError(Reason.NOT_AUTHORIZED, f"{principal!r} may not {topics.operation} {_what(name)}"))
            for name in topics.find(request, self._services)
            if not is_allowed(principal, topics.operation, name)
        )


def _what(topic: str | None) -> str:
    return "this node" if topic is None else f"topic {topic[:60]!r}"
