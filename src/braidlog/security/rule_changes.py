"""Reads and changes access rules at run time.

Does not handle: the effect of rules (`authorization.py`), their form in a wire protocol.
Invariants: an acknowledged rule is effective immediately and survives a crash. Rules of the configuration are
never changed. If the configuration has no rules, everything is allowed and no rule can be added: the first one
would lock all other principals out.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import asdict

from braidlog.cluster.metadata.events import AddRule, DropRule, Event
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.errors import BrokerError, Reason
from braidlog.security.authorization import Authorize, Operation, Rule


class Rules:
    """Adds and drops access rules. Each rule added here names one operation."""

    def __init__(self, metadata: Metadata, authorize: Authorize) -> None:
        self._metadata = metadata
        self._authorize = authorize
        self.apply()

    def apply(self) -> None:
        """Apply the rules of the metadata."""
        self._authorize.administer(self.added())

    def added(self) -> list[Rule]:
        return [_rule(added) for added in self._metadata.image.rules]

    def all(self) -> list[Rule]:
        """Return all rules, including the configuration's."""
        return [*self._authorize.configured, *self.added()]

    def require_on(self) -> None:
        if self._authorize.is_open:
            raise BrokerError(
                Reason.RULE_NOT_SUPPORTED, "access control is off; add `auth.rules` to the node's settings first"
            )

    async def add(self, rules: Sequence[Rule]) -> None:
        """Add rules, all or none. Existing rules are left as they are."""
        self.require_on()

        def decide(image: Image) -> list[Event]:
            wanted = dict.fromkeys(map(_added, rules))
            return [rule for rule in wanted if rule not in image.rules]

        await self._metadata.change(decide)
        self.apply()

    async def drop(self, matches: Callable[[Rule], bool]) -> list[Rule]:
        """Drop the added rules that match; return them."""
        self.require_on()
        gone: list[Rule] = []

        def decide(image: Image) -> list[Event]:
            found = [rule for rule in image.rules if matches(_rule(rule))]
            gone[:] = map(_rule, found)
            return [DropRule(**asdict(rule)) for rule in found]

        await self._metadata.change(decide)
        self.apply()
        return gone


def _added(rule: Rule) -> AddRule:
    return AddRule(**asdict(rule) | {"operations": tuple(map(str, rule.operations))})


def _rule(added: AddRule) -> Rule:
    return Rule(**asdict(added) | {"operations": [Operation(name) for name in added.operations]})
