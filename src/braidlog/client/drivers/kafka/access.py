"""Access rules as lines of Kafka's access control lists.

Maps each rule to one line. Skips lines that apply to some hosts only: braidlog has no such rules. Does not handle:
authorization.
"""

from contextlib import suppress

from braidlog.client.drivers.contract import AccessRule
from braidlog.client.drivers.kafka.routing import Router, only
from braidlog.client.errors import RefusedError
from braidlog.wire.kafka.access_lists import (
    ALLOW,
    ANY,
    CLUSTER_NAME,
    DENY,
    EVERY_HOST,
    OPERATIONS,
    USER,
    Pattern,
    Resource,
    split_pattern,
)
from braidlog.wire.kafka.messages import security as s

_WORDS = {number: word for word, number in OPERATIONS.items()}


class AccessDriver(Router):
    """Lists and changes rules by requests to brokers."""

    async def list_rules(self) -> list[AccessRule]:
        rules = await self._described(ANY)
        with suppress(RefusedError):  # other brokers have no key resources
            rules += await self._described(Resource.KEY)
        return sorted(rules)

    async def _described(self, resource: int) -> list[AccessRule]:
        answer: s.DescribeAclsResponse = await self.ask_controller(
            s.DescribeAclsRequest(resource, None, ANY, None, None, ANY, ANY)
        )
        self.check_code(answer.error_code, answer.error_message)
        lines = ((entry, acl) for entry in answer.resources for acl in entry.acls)
        rules = (_rule(entry.resource_type, entry.resource_name, entry.pattern_type, acl) for entry, acl in lines)
        return [rule for rule in rules if rule is not None]

    async def add_rule(self, rule: AccessRule) -> None:
        answer: s.CreateAclsResponse = await self.ask_controller(
            s.CreateAclsRequest([s.CreateAclsRequestCreation(*_line(rule))])
        )
        result = only(answer.results, "CreateAcls")
        self.check_code(result.error_code, result.error_message)

    async def delete_rule(self, rule: AccessRule) -> int:
        answer: s.DeleteAclsResponse = await self.ask_controller(s.DeleteAclsRequest([s.AclFilter(*_line(rule))]))
        result = only(answer.filter_results, "DeleteAcls")
        self.check_code(result.error_code, result.error_message)
        return len(result.matching_acls)


def _line(rule: AccessRule) -> tuple[int, str, int, str, str, int, int]:
    resource = Resource[rule.resource.upper()]
    name, pattern = (CLUSTER_NAME, Pattern.LITERAL) if resource is Resource.CLUSTER else split_pattern(rule.name)
    permission = DENY if rule.deny else ALLOW
    return resource, name, pattern, USER + rule.principal, EVERY_HOST, OPERATIONS[rule.operation], permission


def _rule(resource: int, name: str, pattern: int, acl: s.DescribeAclsResponseAcl) -> AccessRule | None:
    if resource not in tuple(Resource) or acl.operation not in _WORDS or acl.host != EVERY_HOST:
        return None
    shown = "*" if resource == Resource.CLUSTER else name + "*" * (pattern == Pattern.PREFIXED)
    principal = acl.principal.removeprefix(USER)
    return AccessRule(
        principal, Resource(resource).name.lower(), shown, _WORDS[acl.operation], acl.permission_type == DENY
    )
