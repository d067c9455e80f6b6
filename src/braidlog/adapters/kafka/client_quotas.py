"""Quotas in Kafka's terms: what a principal may produce and fetch in a second, and how much of the loop's time it may take.

Knows: Kafka's words for entities and rates. Refuses to know: how anybody is slowed down.
Invariant: what is set here goes before the node's configuration, rate by rate; what is removed here is as the configuration says.
"""

from collections.abc import Iterator, Sequence

from braidlog.adapters.contract import Conversation
from braidlog.adapters.errors import text_of
from braidlog.adapters.kafka.errors import Refusal, code_of, outcome_of, said_of_cluster
from braidlog.adapters.kafka.routes import Route, whole
from braidlog.adapters.kafka.services import Services
from braidlog.broker.access.authorize import Operation
from braidlog.broker.quota_changes import Changes
from braidlog.broker.quotas import Rates
from braidlog.model.errors import BrokerError
from braidlog.model.settings import UNLIMITED
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import security as s
from braidlog.wire.kafka.messages.parts import Outcome

USER = "user"
EXACT, DEFAULT, ANY = 0, 1, 2
"""How a filter means an entity: by its name, the one that stands for all others, whichever has a name of that type."""
FIELDS = {
    "producer_byte_rate": "append_bytes_per_second",
    "consumer_byte_rate": "fetch_bytes_per_second",
    "request_percentage": "request_percent",
}
"""Kafka's names of rates, and those of the configuration."""
NO_SUCH_ENTITY = (
    "quotas are those of a user, or of all others (the default user); there are none of client ids and addresses: for addresses "
    "set quotas.address_request_percent or limits.connections_per_peer_per_second in the node's configuration"
)


async def describe(request: Request, services: Services, _: Conversation) -> s.DescribeClientQuotasResponse:
    message: s.DescribeClientQuotasRequest = request.message
    found = services.quota_changes.limited().items()
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
    for key, field in FIELDS.items():
        rate = getattr(rates, field)
        if rate != UNLIMITED:
            yield s.DescribeClientQuotasResponseValue(key, float(rate))


async def alter(request: Request, services: Services, _: Conversation) -> s.AlterClientQuotasResponse:
    """What makes sense is set together; the rest is refused, each with its reason."""
    message: s.AlterClientQuotasRequest = request.message
    wanted: dict[str | None, Changes] = {}
    refusals: list[Outcome | None] = []
    for entry in message.entries:
        try:
            name, changes = _user(entry.entity), _changes(entry.ops)
            services.quota_changes.check(name, changes)
            if name in wanted:
                raise Refusal(E.INVALID_REQUEST, "a request changes the quotas of a user once")
        except BrokerError as error:
            refusals.append(Outcome(code_of(error), text_of(error)))
        else:
            wanted[name] = changes
            refusals.append(None)
    done = Outcome()
    if wanted and not message.validate_only:
        done = Outcome(*await outcome_of(services.quota_changes.change(wanted)))
    said = [done if refused is None else refused for refused in refusals]
    return s.AlterClientQuotasResponse(
        entries=[
            s.AlterClientQuotasResponseEntry(each.error_code, each.error_message, entry.entity)
            for each, entry in zip(said, message.entries, strict=True)
        ]
    )


def _user(entity: Sequence[s.QuotaEntity]) -> str | None:
    if [each.entity_type for each in entity] != [USER]:
        raise Refusal(E.INVALID_REQUEST, NO_SUCH_ENTITY)
    return entity[0].entity_name


def _changes(ops: Sequence[s.AlterClientQuotasRequestOp]) -> Changes:
    unknown = next((op.key for op in ops if op.key not in FIELDS), None)
    if unknown is not None:
        raise Refusal(E.INVALID_REQUEST, f"there is no quota {unknown[:60]!r}; there are {', '.join(FIELDS)}")
    return {FIELDS[op.key]: None if op.remove else op.value for op in ops}


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
