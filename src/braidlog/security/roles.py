"""What somebody may do in general, in three words for people: view, operate, administer.

Knows: which rules make a role. Refuses to know: single names; each request is still judged by its own.

| role | the rules allow |
|---|---|
| view | `describe` of all topics and all groups, and deny none of them |
| operate | `alter` of all topics besides |
| administer | `cluster`: users, rules, quotas, nodes; what a connection says |
"""

from braidlog.model.reporting.node_report import Roles
from braidlog.security.access_rule import EVERY, EVERYONE, Kind, Operation, Rule
from braidlog.security.authorization import Authorize


def roles_of(authorize: Authorize, rules: list[Rule], principal: str) -> Roles:
    """`rules`: all of them, those of the configuration too."""
    if authorize.is_open:
        return Roles(view=True, operate=True, administer=True)
    own = [rule for rule in rules if rule.principal in (EVERYONE, principal)]

    def may_all(operation: Operation, kind: Kind) -> bool:
        if any(rule.deny and rule.pattern(kind) and rule.speaks_of(operation) for rule in own):
            return False
        return any(not rule.deny and rule.pattern(kind) == EVERY and rule.speaks_of(operation) for rule in own)

    view = may_all(Operation.DESCRIBE, Kind.TOPIC) and may_all(Operation.DESCRIBE, Kind.GROUP)
    administer = authorize.is_allowed(principal, Operation.CLUSTER, None)
    return Roles(view=view, operate=view and may_all(Operation.ALTER, Kind.TOPIC), administer=view and administer)
