"""The row of a Kafka request: its handler, its permissions, and its error response.

Most Kafka responses have no error code for the whole request: each topic, partition or group has its own. So every
route builds the response for a request of which nothing could be served.
"""

from collections.abc import Callable, Iterable

from braidlog.adapters import routing
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topics import named
from braidlog.adapters.routing import Need
from braidlog.broker.access.authorize import Kind, Operation
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.rows import Message

Refusal = Callable[[Request, E, str], Message]
"""refusal(request, code, text) → the response with this error in each of its items."""


def _as_it_is(_: Request, code: E) -> E:
    return code


class Route(routing.Route, frozen=True, kw_only=True):
    refusal: Refusal
    said: Callable[[Request, E], E] = _as_it_is
    """Translates the code of a whole request to one of this API."""
    before_authentication: bool = False
    """Whether unauthenticated clients may use it where authentication is required."""


def whole(response: type[Message]) -> Refusal:
    """For a response with an error code of its own, and optionally a text."""
    has_words = "error_message" in response.__struct_fields__

    def refuse(_: Request, code: E, text: str) -> Message:
        return response(error_code=code, error_message=text) if has_words else response(error_code=code)

    return refuse


def on_topics(
    handler: routing.Handler,
    operation: Operation,
    refusal: Refusal,
    find: Callable[..., Iterable[str | None]] | None = None,
    said: Callable[[Request, E], E] = _as_it_is,
    needs: tuple[Need, ...] = (),
) -> Route:
    """The row of a request whose topics are authorized one by one; without `find` each has its `name`."""
    return Route(handler, None, needs=needs, each=(Need(operation, find or topics_named),), refusal=refusal, said=said)


def on_group(operation: Operation) -> Need:
    return routing.named(operation, Kind.GROUP, lambda request: request.message.group_id)


def on_transactional_id(operation: Operation) -> Need:
    return routing.named(operation, Kind.TRANSACTIONAL_ID, lambda request: request.message.transactional_id)


def topics_named(request: Request, _: Services) -> Iterable[str]:
    """The topics of a request that names each under `name`."""
    return (topic.name for topic in request.message.topics or ())


def topics_by_id(request: Request, services: Services) -> Iterable[str]:
    """The topics of a request with names or ids."""
    return resolved(services, ((topic.name, topic.topic_id) for topic in request.message.topics or ()))


def resolved(services: Services, topics: Iterable[tuple[str | None, bytes]]) -> Iterable[str]:
    """Yield the names of topics given by name or id; unknown ids are skipped."""
    names = (named(services, *topic) for topic in topics)
    return (name for name in names if name is not None)
