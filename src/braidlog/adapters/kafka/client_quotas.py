"""Quotas in Kafka's terms: what a principal may produce and fetch in a second.

Knows: Kafka's words for entities and rates. Refuses to know: how anybody is slowed down.
Invariant: quotas stand in the node's configuration; they are shown here, and a change is refused with the name of the setting.
"""

from collections.abc import Iterator

from braidlog.adapters.contract import Conversation
from braidlog.adapters.kafka.errors import said_of_cluster
from braidlog.adapters.kafka.routes import Route, whole
from braidlog.adapters.kafka.services import Services
from braidlog.broker.access.authorize import Operation
from braidlog.broker.quotas import Direction, Rates
from braidlog.model.settings import UNLIMITED
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import security as s

USER = "user"
EXACT, DEFAULT, ANY = 0, 1, 2
"""How a filter means an entity: by its name, the one that stands for all others, whichever has a name of that type."""
KEYS = {Direction.APPEND: "producer_byte_rate", Direction.FETCH: "consumer_byte_rate"}
REFUSED = (
    "quotas are not changed over Kafka's protocol; set quotas.append_bytes_per_second, quotas.fetch_bytes_per_second or "
    "[quotas.principals.<name>] in the node's configuration, and start it again"
)


async def describe(request: Request, services: Services, _: Conversation) -> s.DescribeClientQuotasResponse:
    message: s.DescribeClientQuotasRequest = request.message
    found = services.quotas.limited().items()
    return s.DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            s.DescribeClientQuotasResponseEntry([s.QuotaEntity(USER, name)], list(_values(rates)))
            for name, rates in found
            if all(_matches(each, name) for each in message.components)
        ],
    )


def _matches(wanted: s.DescribeClientQuotasRequestComponent, name: str | None) -> bool:
    if wanted.entity_type != USER:
        return False
    return wanted.match_type == ANY or name == (wanted.match if wanted.match_type == EXACT else None)


def _values(rates: Rates) -> Iterator[s.DescribeClientQuotasResponseValue]:
    for direction, key in KEYS.items():
        if rates.of(direction) != UNLIMITED:
            yield s.DescribeClientQuotasResponseValue(key, float(rates.of(direction)))


async def alter(request: Request, _: Services, __: Conversation) -> s.AlterClientQuotasResponse:
    return refuse(request, E.INVALID_REQUEST, REFUSED)


def refuse(request: Request, code: E, text: str) -> s.AlterClientQuotasResponse:
    entries = request.message.entries
    return s.AlterClientQuotasResponse(
        entries=[s.AlterClientQuotasResponseEntry(code, text, each.entity) for each in entries]
    )


ROUTES: dict[Key, Route] = {
    Key.DESCRIBE_CLIENT_QUOTAS: Route(
        describe, Operation.CLUSTER, refusal=whole(s.DescribeClientQuotasResponse), said=said_of_cluster
    ),
    Key.ALTER_CLIENT_QUOTAS: Route(alter, Operation.CLUSTER, refusal=refuse, said=said_of_cluster),
}
