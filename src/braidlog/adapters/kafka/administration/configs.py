"""Describes and changes the settings of topics, groups and nodes.

Has Kafka's numbers of resource types and operations; `config_table.py` has the settings of topics.
Invariant: a resource is changed as a whole or not at all, and has its own result.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import partial
from itertools import starmap
from typing import Any

import msgspec

from braidlog.adapters.contract import Conversation
from braidlog.adapters.errors import text_of
from braidlog.adapters.kafka.administration import config_table
from braidlog.adapters.kafka.administration.config_table import Kind, Shown, Source
from braidlog.adapters.kafka.coordination.offsets_topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from braidlog.adapters.kafka.errors import Refusal, cluster_code_of, code_of, outcome_of
from braidlog.adapters.kafka.metadata import AutoCreation
from braidlog.adapters.kafka.routes import Refusal as Refused
from braidlog.adapters.kafka.routes import Route, of_cluster, refused, whole
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.routing import Denied, Handler, Need
from braidlog.adapters.routing import Resource as Needed
from braidlog.cluster.replica_placement import REPLICAS
from braidlog.coordinator.groups.group import SESSION_TIMEOUT_MS_MAX
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.cooperative import YieldCounter
from braidlog.security.authorization import Kind as Permitted
from braidlog.security.authorization import Operation
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import topics as m

Config = m.DescribeConfigsResponseConfig
NODE_SETTINGS = (
    "node settings cannot be changed over Kafka's protocol; set them in the node's file, environment or with --set, and "
    "restart it (`braid config` shows them)"
)
OURS = {
    "broker.id": "node",
    "advertised.listeners": "listeners.kafka.advertised_host",
    "auto.create.topics.enable": "listeners.kafka.auto_create",
    "num.partitions": "listeners.kafka.partitions",
    "log.dirs": "data_dir",
    "log.cleanup.policy": "topics.compact",
    "log.retention.ms": "topics.retention_ms",
    "log.retention.bytes": "topics.retention_bytes",
    "log.segment.bytes": "topics.segment_bytes",
    "message.max.bytes": "topics.batch_bytes_max",
    "max.connections": "limits.connections_max",
    "max.connections.per.ip": "limits.connections_per_address_max",
    "max.connection.creation.rate": "limits.connections_per_address_per_second",
    "group.min.session.timeout.ms": "listeners.kafka.session_timeout_ms_min",
}
"""Kafka's broker settings, and the node settings that determine them."""
OF_GROUPS = {
    "consumer.session.timeout.ms": "session_timeout_ms",
    "consumer.heartbeat.interval.ms": "heartbeat_interval_ms",
}
"""Kafka's group settings, and ours."""
RATE = "leader.replication.throttled.rate"
THROTTLES = (RATE, "follower.replication.throttled.rate", "replica.alter.log.dirs.io.max.bytes.per.second")
"""Replication throttles that `kafka-reassign-partitions` sets on each node and removes again. The leader's applies to
all.
"""
RATE_MAX = 2**40
DIGITS_MAX = 10
Held = Callable[[Services, Conversation], list[Config]]
"""The settings of this node that this client may see."""
Incremental = m.IncrementalAlterConfigsRequestResource


class Resource(IntEnum):
    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


class Change(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


# -- describe ----------------------------------------------------------------------------------------------------


def describe(
    request: Request,
    services: Services,
    conversation: Conversation,
    denied: Denied,
    *,
    held: Held,
) -> m.DescribeConfigsResponse:
    message: m.DescribeConfigsRequest = request.message
    results = []
    for resource in {(each.resource_type, each.resource_name): each for each in message.resources}.values():
        code, text, configs = E.NONE, None, []
        try:
            denied.check(_needed(resource))
            configs = _configs(resource, message, services, held(services, conversation))
        except (BrokerError, StorageFault) as error:
            code, text = _code(resource.resource_type, error), text_of(error)
        results.append(
            m.DescribeConfigsResponseResult(code, text, resource.resource_type, resource.resource_name, configs)
        )
    return m.DescribeConfigsResponse(results=results)


def _configs(
    resource: m.DescribeConfigsRequestResource,
    message: m.DescribeConfigsRequest,
    services: Services,
    node: list[Config],
) -> list[Config]:
    if resource.resource_type == Resource.TOPIC and resource.resource_name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        shown = config_table.show(services.configs.of_coordinators())
        told = [msgspec.structs.replace(_to_message(each, message), read_only=True) for each in shown]
    elif resource.resource_type == Resource.TOPIC:
        shown = config_table.show(services.configs.describe(resource.resource_name))
        told = [_to_message(each, message) for each in shown] + _of_table(services, resource.resource_name)
    elif resource.resource_type == Resource.BROKER and not resource.resource_name:
        told = []  # shared by all nodes: none can be changed over this protocol
    elif resource.resource_type == Resource.BROKER and resource.resource_name == str(services.brokers.own_number):
        told = node
    elif resource.resource_type == Resource.GROUP:
        told = _of_group(services, resource.resource_name)
    elif resource.resource_type == Resource.CLIENT_METRICS:
        told = []  # none exist; ListConfigResources returns none either
    else:
        raise _unknown(resource.resource_type, resource.resource_name)
    wanted = resource.configuration_keys
    return [each for each in told if not wanted or each.name in wanted]


def _of_table(services: Services, topic: str) -> list[Config]:
    """Return the state of the topic's table, if it has one, as read-only settings."""
    state = services.hosting.tables.get(services.hosting.meta(topic).topic_id)
    if state is None:
        return []
    rows = (
        ("braidlog.table.metadata", state.metadata, Kind.STRING),
        ("braidlog.table.committed.ms", str(state.committed_ms), Kind.LONG),
        ("braidlog.table.lag", str(state.lag), Kind.LONG),
        ("braidlog.table.lag.bytes", str(state.lag_bytes), Kind.LONG),
        ("braidlog.table.rows", str(state.rows), Kind.LONG),
        ("braidlog.table.files", str(state.files), Kind.LONG),
        ("braidlog.table.bytes", str(state.bytes), Kind.LONG),
        ("braidlog.table.undecoded", str(state.undecoded), Kind.LONG),
        ("braidlog.table.error", state.error, Kind.STRING),
    )
    return [Config(name, value, True, Source.TOPIC, config_type=kind) for name, value, kind in rows if value]  # noqa: FBT003 - a row


def _to_message(shown: Shown, message: m.DescribeConfigsRequest) -> Config:
    row = shown.row
    own = [m.DescribeConfigsResponseSynonym(row.name, shown.value, Source.TOPIC)] * (shown.source is Source.TOPIC)
    default = m.DescribeConfigsResponseSynonym(row.name, shown.default, Source.DEFAULT)
    return Config(
        row.name,
        shown.value,
        row.is_fixed,
        shown.source,
        synonyms=[*own, default] if message.include_synonyms else [],
        config_type=row.kind,
        documentation=row.text if message.include_documentation else None,
    )


def _of_node(
    services: Services, conversation: Conversation, *, creating: AutoCreation, session_timeout_ms_min: int
) -> list[Config]:
    """Return the broker settings that Kafka's tools read; all are set in this node's configuration."""
    defaults = services.configs.defaults()
    rows = (
        ("broker.id", str(services.brokers.own_number), Kind.INT),
        ("advertised.listeners", "KAFKA://{}:{}".format(*conversation.address), Kind.LIST),
        ("auto.create.topics.enable", str(creating.enabled).lower(), Kind.BOOLEAN),
        ("num.partitions", str(creating.partitions), Kind.INT),
        ("default.replication.factor", str(min(REPLICAS, len(services.routing.numbers))), Kind.INT),
        ("log.dirs", services.hosting.data_dir, Kind.STRING),
        ("log.cleanup.policy", config_table.ROWS["cleanup.policy"].show(defaults), Kind.LIST),
        ("log.retention.ms", str(defaults["retention_ms"]), Kind.LONG),
        ("log.retention.bytes", str(defaults["retention_bytes"]), Kind.LONG),
        ("log.segment.bytes", str(defaults["segment_bytes"]), Kind.INT),
        ("message.max.bytes", str(defaults["batch_bytes_max"]), Kind.INT),
        ("min.insync.replicas", str(defaults["min_in_sync"]), Kind.INT),
        ("group.min.session.timeout.ms", str(session_timeout_ms_min), Kind.INT),
        ("group.max.session.timeout.ms", str(SESSION_TIMEOUT_MS_MAX), Kind.INT),
    )
    told = [Config(name, value, True, Source.STATIC_BROKER, config_type=kind) for name, value, kind in rows]  # noqa: FBT003 - a row
    if (rate := services.replication_rate.asked) is not None:
        told.append(Config(RATE, str(rate), False, Source.DYNAMIC_BROKER, config_type=Kind.LONG))  # noqa: FBT003 - a row
    return told


def _of_group(services: Services, group: str) -> list[Config]:
    """Return the settings of a group with `group.protocol=consumer`."""
    known, own = services.group_settings.settings_of(group), services.group_settings.changed(group)
    rows = ((name, str(getattr(known, field)), field in own) for name, field in OF_GROUPS.items())
    return [
        Config(name, value, False, Source.GROUP if is_own else Source.STATIC_BROKER, config_type=Kind.INT)  # noqa: FBT003 - a row
        for name, value, is_own in rows
    ]


def list_resources(request: Request, services: Services, conversation: Conversation) -> m.ListConfigResourcesResponse:
    """List the resources with settings. Version 0 requests only client metrics resources, of which there are none."""
    message: m.ListConfigResourcesRequest = request.message
    wanted = set(message.resource_types) or (set(Resource) if request.version else set())
    if not wanted <= set(Resource):
        raise Refusal(E.UNSUPPORTED_VERSION, f"resource type {min(wanted - set(Resource))} has no settings")
    topics = services.authorize.visible(conversation.principal, services.hosting.names())
    groups = services.authorize.visible(
        conversation.principal, services.group_settings.changed_groups(), Permitted.GROUP
    )
    names: dict[int, list[str]] = {
        Resource.TOPIC: topics,
        Resource.BROKER: [str(services.brokers.own_number)],
        Resource.GROUP: groups,
    }
    return m.ListConfigResourcesResponse(
        config_resources=[
            m.ListConfigResourcesResponseResource(name, kind) for kind in sorted(wanted) for name in names.get(kind, ())
        ]
    )


# -- alter -------------------------------------------------------------------------------------------------------


async def alter(request: Request, services: Services, _: Conversation, denied: Denied) -> m.AlterConfigsResponse:
    """Set the given settings; all other settings of the topic are reset to their defaults."""
    return m.AlterConfigsResponse(responses=await _alter_each(request, services, denied, pairs=_given, node=None))


def _given(resource: m.AlterConfigsRequestResource, _: Services) -> list[tuple[str, str | None]]:
    return [(each.name, each.value) for each in resource.configs]


async def alter_some(
    request: Request, services: Services, conversation: Conversation, denied: Denied, *, held: Held
) -> m.IncrementalAlterConfigsResponse:
    node = held(services, conversation)
    responses = await _alter_each(request, services, denied, pairs=_pairs, node=node)
    return m.IncrementalAlterConfigsResponse(responses=responses)


async def _alter_each(
    request: Request,
    services: Services,
    denied: Denied,
    *,
    pairs: Callable[[Any, Services], list[tuple[str, str | None]]],
    node: list[Config] | None,
) -> list[m.ConfiguredResource]:
    message: m.AlterConfigsRequest | m.IncrementalAlterConfigsRequest = request.message
    responses = []
    pace = YieldCounter()
    for resource in message.resources:
        await pace.step()
        work = _alter(resource, services, denied, pairs=pairs, node=node, only_check=message.validate_only)
        place = (resource.resource_type, resource.resource_name)
        code, text = await outcome_of(work)
        said = cluster_code_of(request, code) if resource.resource_type == Resource.BROKER else code
        responses.append(m.ConfiguredResource(said, text, *place))
    return responses


def _pairs(resource: Incremental, services: Services) -> list[tuple[str, str | None]]:
    """Return the changes as names and new values, None for the default."""
    names = [each.name for each in resource.configs]
    if len(set(names)) < len(names):
        raise Refusal(E.INVALID_REQUEST, "a setting is changed more than once")
    present = (
        services.configs.describe(resource.resource_name) if services.hosting.exists(resource.resource_name) else {}
    )
    values = {each.row.name: each.value for each in config_table.show(present)} if present else {}
    return [(each.name, _new_value(each, values.get(each.name, ""))) for each in resource.configs]


def _new_value(change: m.IncrementalAlterConfigsRequestConfig, present: str) -> str | None:
    if change.config_operation == Change.DELETE:
        return None
    if change.config_operation == Change.SET and change.value is not None:
        return change.value
    if change.config_operation in (Change.APPEND, Change.SUBTRACT) and config_table.find(change.name).kind is Kind.LIST:
        words, changed = config_table.split(present), config_table.split(change.value or "")
        return ",".join(sorted(words | changed if change.config_operation == Change.APPEND else words - changed))
    raise BrokerError(Reason.INVALID_SETTING, f"{change.name[:60]!r} does not support this operation")


async def _alter(
    resource: Any,  # noqa: ANN401 - each of the two requests has its own type
    services: Services,
    denied: Denied,
    *,
    pairs: Callable[[Any, Services], Iterable[tuple[str, str | None]]],
    node: list[Config] | None,
    only_check: bool,
) -> None:
    """`node`: the settings of this node. None: all other settings of the resource are reset to their defaults."""
    name = resource.resource_name
    denied.check(_needed(resource))
    if resource.resource_type == Resource.TOPIC:
        changes, resets = config_table.parse(pairs(resource, services))
        await services.configs.alter(name, changes, resets, others_to_default=node is None, validate_only=only_check)
    elif resource.resource_type == Resource.GROUP:
        wanted = dict(starmap(_group_setting, pairs(resource, services)))
        await services.group_settings.change(name, wanted, others_to_default=node is None, validate_only=only_check)
    elif resource.resource_type != Resource.BROKER:
        raise _unknown(resource.resource_type, name)
    elif node is None:
        raise Refusal(E.INVALID_REQUEST, NODE_SETTINGS)
    else:
        _throttle(resource, services, node, only_check=only_check)


def _group_setting(name: str, value: str | None) -> tuple[str, int | None]:
    if name not in OF_GROUPS:
        raise BrokerError(
            Reason.INVALID_SETTING, f"unknown group setting {name[:60]!r}; use one of {', '.join(OF_GROUPS)}"
        )
    if value is None:
        return OF_GROUPS[name], None
    if not (value.isascii() and value.isdecimal() and len(value) < DIGITS_MAX):
        raise BrokerError(Reason.INVALID_SETTING, f"{name} must be a number of milliseconds, not {value[:60]!r}")
    return OF_GROUPS[name], int(value)


def _check_kept(changes: Mapping[str, str | None], held: list[Config]) -> None:
    """Accept a change to the current value; reject any other by name."""
    values = {each.name: each.value for each in held}
    for name, value in changes.items():
        if name in values and value in (None, values[name]):
            continue
        if name in OURS:
            use = f"set {OURS[name]} in the file of each node and restart it (`braid config show` lists them)"
        elif name in config_table.ROWS:
            use = "set it on each topic"
        else:
            use = "braidlog has no such setting; omit it"
        raise Refusal(E.INVALID_REQUEST, f"{name[:60]!r} cannot be changed over Kafka's protocol: {use}")


def _throttle(resource: Incremental, services: Services, node: list[Config], *, only_check: bool) -> None:
    """Set the rate at which out-of-sync replicas copy this node's records, until it restarts."""
    changes = dict(_pairs(resource, services))
    if resource.resource_name not in ("", str(services.routing.own_number)):
        raise _unknown(Resource.BROKER, resource.resource_name)
    _check_kept({name: value for name, value in changes.items() if name not in THROTTLES}, node)
    rates = {name: value for name, value in changes.items() if name in THROTTLES}
    if rates and not resource.resource_name:
        raise Refusal(E.INVALID_REQUEST, f"{min(rates)!r} is set per node: name one with --entity-name")
    for name, value in rates.items():
        if value is not None and not (value.isascii() and value.isdecimal() and 1 <= int(value) <= RATE_MAX):
            raise BrokerError(
                Reason.INVALID_SETTING, f"{name} must be 1 to {RATE_MAX} bytes a second, not {value[:60]!r}"
            )
    if RATE in rates and not only_check:
        rate = rates[RATE]
        services.replication_rate.asked = None if rate is None else int(rate)


def _unknown(kind: int, name: str) -> Refusal:
    if kind == Resource.BROKER:
        return Refusal(E.INVALID_REQUEST, f"unknown node {name[:20]!r}; `--describe --entity-type brokers` lists nodes")
    return Refusal(E.INVALID_REQUEST, f"resource type {kind} has no settings")


def _needed(resource: Any) -> Needed:  # noqa: ANN401 - each of the three requests has its own type
    """Return the resource of the permission: a topic, a group, or the node."""
    if resource.resource_type == Resource.GROUP:
        return Permitted.GROUP, resource.resource_name
    return resource.resource_name if resource.resource_type == Resource.TOPIC else None


def _named(kind: Resource, request: Request, _: Services) -> Iterable[str]:
    """Return the topics, or the groups, of the request."""
    return (each.resource_name for each in request.message.resources if each.resource_type == kind)


def _nodes(request: Request, _: Services) -> Iterable[None]:
    """Yield None for node settings: permissions on topics do not apply to them."""
    return (None for each in request.message.resources if each.resource_type not in (Resource.TOPIC, Resource.GROUP))


def _on_resources(handler: Handler, operation: Operation, refusal: Refused) -> Route:
    topics, groups = partial(_named, Resource.TOPIC), partial(_named, Resource.GROUP)
    each = (Need(operation, topics), Need(operation, groups, Permitted.GROUP), Need(Operation.CLUSTER, _nodes))
    return Route(handler, None, each=each, refusal=refusal)


def _code(kind: int, error: BrokerError | StorageFault) -> E:
    code = code_of(error)
    is_node = kind == Resource.BROKER and code is E.TOPIC_AUTHORIZATION_FAILED
    return E.CLUSTER_AUTHORIZATION_FAILED if is_node else code


def routes(creating: AutoCreation, session_timeout_ms_min: int) -> dict[Key, Route]:
    described = refused(m.DescribeConfigsResponse, {"results": "resources"})
    altered = refused(m.AlterConfigsResponse, {"responses": "resources"})
    held: Held = partial(_of_node, creating=creating, session_timeout_ms_min=session_timeout_ms_min)
    some_altered = refused(m.IncrementalAlterConfigsResponse, {"responses": "resources"})
    return {
        Key.DESCRIBE_CONFIGS: _on_resources(partial(describe, held=held), Operation.DESCRIBE, described),
        Key.LIST_CONFIG_RESOURCES: of_cluster(list_resources, whole(m.ListConfigResourcesResponse)),
        Key.ALTER_CONFIGS: _on_resources(alter, Operation.ALTER, altered),
        Key.INCREMENTAL_ALTER_CONFIGS: _on_resources(partial(alter_some, held=held), Operation.ALTER, some_altered),
    }
