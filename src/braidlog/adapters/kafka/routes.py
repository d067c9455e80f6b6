"""The row of a Kafka request: its handler, its permissions, and its error response.

Most Kafka responses have no error code for the whole request: each topic, partition or group has its own. So every
route builds the response for a request of which nothing could be served.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from braidlog.adapters import routing
from braidlog.adapters.kafka.errors import cluster_code_of
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topic_entries import named
from braidlog.adapters.routing import Need
from braidlog.security.authorization import Kind, Operation
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.rows import Message, fields_of

Refusal = Callable[[Request, E, str], Message]
"""refusal(request, code, text) → the response with this error in each of its items."""
R = TypeVar("R", bound=Message)
Places = Mapping[str, str | Callable[[Any], Iterable[Any]]]
"""A list in the response → the matching list in the request: its name, or a function that finds it."""
OF_PARTITIONS: Final[Places] = MappingProxyType({"topics": "topics", "partitions": "partitions"})
_OF_TOPICS = ("name", "topic", "topic_id", "partition_index", "partition", "index")
_NAMES = frozenset((*_OF_TOPICS, "resource_type", "resource_name", "producer_id", "entity"))
"""Fields that identify an entry, in requests and in responses."""


def _as_it_is(_: Request, code: E) -> E:
    return code


class Route(routing.Route, frozen=True, kw_only=True):
    refusal: Refusal
    said: Callable[[Request, E], E] = _as_it_is
    """Translates the code of a whole request to one of this API."""
    before_authentication: bool = False
    """Whether unauthenticated clients may use it where authentication is required."""


def whole(response: type[R]) -> Callable[[Request, E, str], R]:
    """Build refusals for a response with one error code for the whole request, and optionally a text."""
    has_words = "error_message" in response.__struct_fields__

    def refuse(_: Request, code: E, text: str) -> R:
        return response(error_code=code, error_message=text) if has_words else response(error_code=code)

    return refuse


def refused(
    response: type[R], places: Places = OF_PARTITIONS, others: Mapping[str, object] = MappingProxyType({})
) -> Callable[[Request, E, str], R]:
    """Build refusals for a response with an entry per item. `others`: fields with a fixed value in a refusal."""

    def refuse(request: Request, code: E, text: str) -> R:
        said = {"error_code": code, "error_message": text, **others}
        return _refused_entry(response, request.message, said, places)

    return refuse


def _refused_entry(kind: type[R], asked: Any, said: Mapping[str, Any], places: Places) -> R:  # noqa: ANN401 - each API has its own
    """Build the refusal of one entry of a request: a struct, whose fields have the same names, or a name or number."""
    told: dict[str, Any] = {}
    for field in fields_of(kind):
        if field.name in said:
            told[field.name] = said[field.name]
        elif field.name in places and field.struct is not None:
            find = places[field.name]
            entries = getattr(asked, find) if isinstance(find, str) else find(asked)
            told[field.name] = [_refused_entry(field.struct, each, said, places) for each in entries or ()]
        elif field.name in _NAMES and isinstance(asked, Message):
            told[field.name] = getattr(asked, field.name, field.default)
        elif told.keys() <= said.keys() and not isinstance(asked, Message):
            told[field.name] = asked
    return kind(**told)


def of_cluster(
    handler: routing.Handler,
    refusal: Refusal,
    operation: Operation = Operation.CLUSTER,
    *,
    each: tuple[Need, ...] = (),
    is_bounded: bool = True,
) -> Route:
    """The row of a request about the cluster as a whole, which needs that operation on it."""
    return Route(handler, operation, each=each, refusal=refusal, said=cluster_code_of, is_bounded=is_bounded)


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
