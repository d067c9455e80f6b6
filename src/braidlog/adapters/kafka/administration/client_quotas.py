"""Client quotas in Kafka's terms: produce, fetch and request rates of a user or client id, and connection rates of an
address.

Invariant: each rate set here overrides the node's configuration; a removed rate falls back to the configuration.
"""

from collections.abc import Mapping, Sequence

from braidlog.adapters.contract import Conversation
from braidlog.adapters.errors import text_of
from braidlog.adapters.kafka.errors import Refusal, code_of, outcome_of
from braidlog.adapters.kafka.routes import Route, of_cluster, refused, whole
from braidlog.adapters.kafka.services import Services
from braidlog.cluster.metadata.events import QuotaEntity
from braidlog.model.errors import BrokerError
from braidlog.security.quota_changes import Changes
from braidlog.security.quotas import CONNECTIONS
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import security as s
from braidlog.wire.kafka.messages.parts import Outcome

TYPES = {"user": "user", "client-id": "client_id", "ip": "address"}
"""Kafka's entity types, and the fields of ours."""
EXACT, DEFAULT, ANY = 0, 1, 2
"""A filter's match types: by name, the default entity, or any entity with a name of that type."""
FIELDS = {
    "producer_byte_rate": "append_bytes_per_second",
    "consumer_byte_rate": "fetch_bytes_per_second",
    "request_percentage": "request_percent",
    "connection_creation_rate": CONNECTIONS,
}
"""Kafka's names of rates, and those of the configuration."""
NO_SUCH_ENTITY = "a quota entity must be a user, a client id, a user and a client id, or an ip; each at most once"


def _check_types(types: Sequence[str]) -> None:
    if not set(types) <= set(TYPES) or len(set(types)) < len(types) or ("ip" in types and len(types) > 1):
        raise Refusal(E.INVALID_REQUEST, NO_SUCH_ENTITY)


def describe(request: Request, services: Services, _: Conversation) -> s.DescribeClientQuotasResponse:
    message: s.DescribeClientQuotasRequest = request.message
    _check_types([each.entity_type for each in message.components])
    entries = []
    for entity, rates in services.quota_changes.limited().items():
        names = _names(entity)
        if message.strict and len(names) != len(message.components):
            continue
        if all(_matches(each, names) for each in message.components):
            told = [s.QuotaEntity(kind, name or None) for kind, name in names.items()]
            entries.append(s.DescribeClientQuotasResponseEntry(told, _values(rates)))
    return s.DescribeClientQuotasResponse(error_message=None, entries=entries)


def _names(entity: QuotaEntity) -> dict[str, str]:
    """Return the names by Kafka's types; empty: the default."""
    names = ((kind, getattr(entity, field)) for kind, field in TYPES.items())
    return {kind: name for kind, name in names if name is not None}


def _matches(wanted: s.DescribeClientQuotasRequestComponent, names: Mapping[str, str]) -> bool:
    name = names.get(wanted.entity_type)
    if name is None or wanted.match_type == ANY:
        return name is not None
    return name == (wanted.match if wanted.match_type == EXACT else "")


def _values(rates: Mapping[str, float]) -> list[s.DescribeClientQuotasResponseValue]:
    return [
        s.DescribeClientQuotasResponseValue(key, float(rates[field])) for key, field in FIELDS.items() if field in rates
    ]


async def alter(request: Request, services: Services, _: Conversation) -> s.AlterClientQuotasResponse:
    """Apply all valid changes together; reject the others, each with its reason."""
    message: s.AlterClientQuotasRequest = request.message
    wanted: dict[QuotaEntity, Changes] = {}
    refusals: list[Outcome | None] = []
    for entry in message.entries:
        try:
            entity, changes = _entity(entry.entity), _changes(entry.ops)
            services.quota_changes.check(entity, changes)
            if entity in wanted:
                raise Refusal(E.INVALID_REQUEST, "a request may change the quotas of an entity only once")
        except BrokerError as error:
            refusals.append(Outcome(code_of(error), text_of(error)))
        else:
            wanted[entity] = changes
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


def _entity(named: Sequence[s.QuotaEntity]) -> QuotaEntity:
    _check_types([each.entity_type for each in named])
    if not named:
        raise Refusal(E.INVALID_REQUEST, NO_SUCH_ENTITY)
    if any(each.entity_name == "" for each in named):
        raise Refusal(E.INVALID_REQUEST, "an entity name cannot be empty; omit it for the default entity")
    return QuotaEntity(**{TYPES[each.entity_type]: each.entity_name or "" for each in named})


def _changes(ops: Sequence[s.AlterClientQuotasRequestOp]) -> Changes:
    unknown = next((op.key for op in ops if op.key not in FIELDS), None)
    if unknown is not None:
        raise Refusal(E.INVALID_REQUEST, f"unknown quota {unknown[:60]!r}; use one of {', '.join(FIELDS)}")
    return {FIELDS[op.key]: None if op.remove else op.value for op in ops}


ROUTES: dict[Key, Route] = {
    Key.DESCRIBE_CLIENT_QUOTAS: of_cluster(describe, whole(s.DescribeClientQuotasResponse)),
    Key.ALTER_CLIENT_QUOTAS: of_cluster(alter, refused(s.AlterClientQuotasResponse, {"entries": "entries"})),
}
