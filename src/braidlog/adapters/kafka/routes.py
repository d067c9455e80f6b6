"""How a request is served: by whom, what it needs, and what is said if that fails as a whole.

Knows: the shape of a route. Refuses to know: any API.
Most Kafka responses have no place for an error of the whole request: each topic, partition or group in it has its own. So every
route says how its response looks when nothing in it could be served.
"""

from collections.abc import Callable, Iterable

from braidlog.adapters import routing
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topics import named
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.rows import Message

Refusal = Callable[[Request, E, str], Message]
"""refusal(request, code, text) → the response that says so in every place it has."""


class Route(routing.Route, frozen=True, kw_only=True):
    refusal: Refusal
    said: Callable[[Request, E], E] = lambda _, code: code
    """What a code of the whole request is called in this API's answers."""
    before_authentication: bool = False
    """Whether it is served to a client that has not said who it is, where clients must."""


def topics_named(request: Request, _: Services) -> Iterable[str]:
    """The topics of a request that names each under `name`."""
    return (topic.name for topic in request.message.topics or ())


def topics_by_id(request: Request, services: Services) -> Iterable[str]:
    """The same where an id may stand for the name."""
    return resolved(services, ((topic.name, topic.topic_id) for topic in request.message.topics or ()))


def resolved(services: Services, topics: Iterable[tuple[str | None, bytes]]) -> Iterable[str]:
    """The names of topics that are named or have an id; an id that no topic has is nobody's."""
    names = (named(services, *topic) for topic in topics)
    return (name for name in names if name is not None)
