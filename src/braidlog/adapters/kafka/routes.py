"""How a request is served: by whom, and what is said if that fails as a whole.

Knows: the shape of a route. Refuses to know: any API.
Most Kafka responses have no place for an error of the whole request: each topic, partition or group in it has its own. So every
route says how its response looks when nothing in it could be served.
"""

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from braidlog.adapters.contract import Conversation
from braidlog.adapters.kafka.services import Services
from braidlog.wire.kafka.codes import ErrorCode
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.rows import Message

Handler = Callable[[Request, Services, Conversation], Coroutine[Any, Any, Message | None]]
"""handler(request, services, conversation) → the response, or None if there is none (Produce with acks 0)."""

Refusal = Callable[[Request, ErrorCode, str], Message]
"""refusal(request, code, text) → the response that says so in every place it has."""


class Route(NamedTuple):
    handler: Handler
    refusal: Refusal
    before_authentication: bool = False
    """Whether it is served to a client that has not said who it is, where clients must."""
