"""The node's rules as Kafka's access control lists.

Translates Kafka's numbers, and decides which ACLs a rule can express.
Invariant: an ACL that a rule cannot express exactly is rejected: rules have no hosts. Kafka has no key-value keys;
ACLs for them have a resource type of braidlog's own, and are listed only for requests of that type.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from braidlog.adapters.contract import Conversation
from braidlog.adapters.errors import text_of
from braidlog.adapters.kafka.errors import Refusal, code_of
from braidlog.adapters.kafka.routes import Route, of_cluster, refused, whole
from braidlog.adapters.kafka.services import Services
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.names import check_topic_name
from braidlog.security.authorization import EVERYONE, Kind, Operation, Rule
from braidlog.wire.kafka.access_lists import (
    ALLOW,
    ANY,
    CLUSTER_NAME,
    DENY,
    EVERY_HOST,
    USER,
    Pattern,
    Resource,
    split_pattern,
)
from braidlog.wire.kafka.access_lists import OPERATIONS as NUMBERS_BY_WORD
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import security as s
from braidlog.wire.kafka.messages.parts import Outcome

NUMBERS: dict[Operation, int] = {operation: NUMBERS_BY_WORD[operation] for operation in Operation}
_O = Operation
OPERATIONS: dict[Resource, set[Operation]] = {
    Resource.TOPIC: set(Operation) - {_O.CLUSTER},
    Resource.GROUP: {_O.ALL, _O.READ, _O.DESCRIBE, _O.DELETE, _O.ALTER},
    Resource.CLUSTER: {_O.CREATE, _O.CLUSTER},
    Resource.TRANSACTIONAL_ID: {_O.ALL, _O.WRITE, _O.DESCRIBE},
    Resource.KEY: {_O.ALL, _O.READ, _O.WRITE, _O.DESCRIBE},
}
KINDS: dict[Resource, Kind] = {
    Resource.TOPIC: Kind.TOPIC,
    Resource.GROUP: Kind.GROUP,
    Resource.TRANSACTIONAL_ID: Kind.TRANSACTIONAL_ID,
    Resource.KEY: Kind.KEY,
}
NAME_CHARS_MAX = 32_767


class Acl(NamedTuple):
    """One ACL in Kafka's terms."""

    resource: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int


def acls_of(rule: Rule) -> Iterator[Acl]:
    """Yield a rule as ACLs: one for each operation on each kind of resource."""
    principal, permission = USER + rule.principal, DENY if rule.deny else ALLOW
    for resource, kind in KINDS.items():
        pattern = rule.pattern(kind)
        place = (resource, *split_pattern(pattern))
        for operation in rule.operations if pattern else ():
            if operation in OPERATIONS[resource]:
                yield Acl(*place, principal, EVERY_HOST, NUMBERS[operation], permission)
    if Operation.CLUSTER in rule.operations or rule.is_about_everything:
        place = (Resource.CLUSTER, CLUSTER_NAME, Pattern.LITERAL)
        yield Acl(*place, principal, EVERY_HOST, NUMBERS[Operation.CLUSTER], permission)


def rule_of(wanted: s.CreateAclsRequestCreation) -> Rule:
    """Return an ACL as a rule; raises if no rule can express it."""
    principal = wanted.principal.removeprefix(USER)
    if principal == wanted.principal or not principal:
        raise Refusal(E.INVALID_REQUEST, f"a principal must be {USER}name, not {wanted.principal[:60]!r}")
    if wanted.host != EVERY_HOST or wanted.permission_type not in (ALLOW, DENY):
        raise Refusal(E.INVALID_REQUEST, "a rule allows or denies for every host; set host to *")
    if wanted.resource_type not in tuple(Resource):
        raise Refusal(E.INVALID_REQUEST, f"rules do not support resource type {wanted.resource_type}")
    resource = Resource(wanted.resource_type)
    operation = next((each for each in OPERATIONS[resource] if NUMBERS[each] == wanted.operation), None)
    if operation is None:
        raise Refusal(E.INVALID_REQUEST, f"rules do not support operation {wanted.operation} on this resource")
    place = {KINDS.get(resource, Kind.TOPIC).value: _pattern(resource, wanted)}
    return Rule(principal, [operation], deny=wanted.permission_type == DENY, **place)


def _pattern(resource: Resource, wanted: s.CreateAclsRequestCreation) -> str:
    name, is_prefix = wanted.resource_name, wanted.resource_pattern_type == Pattern.PREFIXED
    if resource is Resource.CLUSTER:
        if name != CLUSTER_NAME:
            raise Refusal(E.INVALID_REQUEST, f"the cluster is called {CLUSTER_NAME}, not {name[:60]!r}")
        return EVERYONE
    if wanted.resource_pattern_type not in (Pattern.LITERAL, Pattern.PREFIXED):
        raise Refusal(
            E.INVALID_REQUEST, f"a pattern type must be literal or prefixed, not {wanted.resource_pattern_type}"
        )
    if name == EVERYONE and not is_prefix:
        return EVERYONE
    if resource is Resource.TOPIC:
        check_topic_name(name)
    if not 1 <= len(name) <= NAME_CHARS_MAX or name.endswith("*"):
        raise Refusal(E.INVALID_REQUEST, f"a rule needs a name or a prefix that does not end with *, not {name[:60]!r}")
    return name + "*" if is_prefix else name


def matches(acl: Acl, wanted: s.AclFilter) -> bool:
    """Return whether a filter matches an ACL."""
    exact = (
        (wanted.resource_type_filter, acl.resource),
        (wanted.operation, acl.operation),
        (wanted.permission_type, acl.permission),
    )
    texts = ((wanted.principal_filter, acl.principal), (wanted.host_filter, acl.host))
    if acl.resource == Resource.KEY != wanted.resource_type_filter:
        return False
    return (
        all(number in (ANY, found) for number, found in exact)
        and all(text in (None, found) for text, found in texts)
        and _matches_name(acl, wanted.resource_name_filter, wanted.pattern_type_filter)
    )


def _matches_name(acl: Acl, name: str | None, pattern: int) -> bool:
    if pattern == Pattern.MATCH and name is not None:
        if acl.pattern == Pattern.PREFIXED:
            return name.startswith(acl.name)
        return acl.name in (name, EVERYONE)
    return pattern in (ANY, Pattern.MATCH, acl.pattern) and name in (None, acl.name)


# -- handlers ----------------------------------------------------------------------------------------------------


def describe(request: Request, services: Services, _: Conversation) -> s.DescribeAclsResponse:
    message: s.DescribeAclsRequest = request.message
    services.rules.require_on()
    found: dict[tuple[int, str, int], list[s.DescribeAclsResponseAcl]] = {}
    for rule in services.rules.all():
        for acl in acls_of(rule):
            if matches(acl, message):
                shown = s.DescribeAclsResponseAcl(acl.principal, acl.host, acl.operation, acl.permission)
                found.setdefault((acl.resource, acl.name, acl.pattern), []).append(shown)
    return s.DescribeAclsResponse(
        resources=[s.DescribeAclsResponseResource(*place, acls) for place, acls in found.items()]
    )


async def create(request: Request, services: Services, _: Conversation) -> s.CreateAclsResponse:
    message: s.CreateAclsRequest = request.message
    services.rules.require_on()
    results = []
    for wanted in message.creations:
        try:
            await services.rules.add([rule_of(wanted)])
        except (BrokerError, StorageFault) as error:
            results.append(Outcome(code_of(error), text_of(error)))
        else:
            results.append(Outcome())
    return s.CreateAclsResponse(results=results)


async def delete(request: Request, services: Services, _: Conversation) -> s.DeleteAclsResponse:
    message: s.DeleteAclsRequest = request.message
    services.rules.require_on()
    results = []
    for wanted in message.filters:
        gone = await services.rules.drop(partial(_is_meant, wanted))
        shown = [s.DeleteAclsResponseAcl(E.NONE, None, *acl) for rule in gone for acl in acls_of(rule)]
        results.append(s.DeleteAclsResponseResult(matching_acls=shown))
    return s.DeleteAclsResponse(filter_results=results)


def _is_meant(wanted: s.AclFilter, rule: Rule) -> bool:
    return any(matches(acl, wanted) for acl in acls_of(rule))


ROUTES: dict[Key, Route] = {
    Key.DESCRIBE_ACLS: of_cluster(describe, whole(s.DescribeAclsResponse)),
    Key.CREATE_ACLS: of_cluster(create, refused(s.CreateAclsResponse, {"results": "creations"})),
    Key.DELETE_ACLS: of_cluster(delete, refused(s.DeleteAclsResponse, {"filter_results": "filters"})),
}
