"""From a request's type to the few lines that serve it.

Knows: routes, and what each needs to be allowed. Refuses to know: any dialect's messages.
Invariant: a request is authorised before its handler runs; a request type without a route is a defect that a test finds.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from braidlog.adapters.contract import Conversation
from braidlog.broker.access.authorize import Authorize, Operation

Handler = Callable[[Any, Any, Conversation], Coroutine[Any, Any, Any]]
"""handler(request, the dialect's services, conversation) → the dialect's answer, or None if it gives none."""


class Route(NamedTuple):
    """How a request is served: by whom, what it needs, and on which topic (None: on no topic in particular)."""

    handler: Handler
    operation: Operation | None
    """None: allowed before authentication (ping, authentication itself)."""
    topic: Callable[[Any], str | None] = lambda _: None


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
        if route.operation is None:
            return route.handler(request, self._services, conversation)
        return self._authorized(route, conversation, request)

    async def _authorized(self, route: Route, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
        assert route.operation is not None
        self._services.authorize.check(conversation.principal, route.operation, route.topic(request))
        return await route.handler(request, self._services, conversation)
