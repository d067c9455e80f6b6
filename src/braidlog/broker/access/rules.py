"""Rules that an administrator adds while the node runs.

Knows: which rules were added. Refuses to know: what they allow (`authorize.py` does), how a dialect spells them.
Invariants: a rule that was acknowledged holds at once and after a crash; rules of the configuration are not touched; where the
configuration has no rules everyone may do everything, and none can be added: the first would lock everyone else out.
"""

from collections.abc import Callable, Sequence

from braidlog.broker.access.authorize import Authorize, Rule
from braidlog.coordinator.journal import Table
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.world import World

RULES_MAX = 10_000


class Rules:
    """The use case. Each rule added here names one operation."""

    def __init__(self, table: Table, authorize: Authorize, world: World) -> None:
        self._table = table
        self._authorize = authorize
        self._world = world
        self._apply()

    def _apply(self) -> None:
        self._authorize.administer(self.added())

    def added(self) -> list[Rule]:
        return [rule for _, rule in self._table.items()]

    def all(self) -> list[Rule]:
        """Those of the configuration too."""
        return [*self._authorize.configured, *self.added()]

    def require_on(self) -> None:
        if self._authorize.is_open:
            raise BrokerError(
                Reason.RULE_NOT_SUPPORTED, "the configuration has no rules (auth.rules): everyone may do everything"
            )

    async def add(self, rules: Sequence[Rule]) -> None:
        """Add rules, all or none; one that is there already is no error."""
        self.require_on()
        wanted = {_key(rule): rule for rule in rules}
        if len(self._table.values) + len(wanted) > RULES_MAX:
            raise BrokerError(Reason.QUOTA_EXCEEDED, f"{RULES_MAX} rules can be added, and no more")
        await self._put([(key, rule) for key, rule in wanted.items() if self._table.get(*key) is None])

    async def drop(self, matches: Callable[[Rule], bool]) -> list[Rule]:
        """Take away the added rules that match; returns them."""
        self.require_on()
        gone = [rule for rule in self.added() if matches(rule)]
        await self._put([(_key(rule), None) for rule in gone])
        return gone

    async def _put(self, entries: Sequence[tuple[tuple[str, ...], Rule | None]]) -> None:
        if entries:
            next_offset = self._table.put_many(entries)
            self._apply()
            await self._table.journal.settled(next_offset)


def _key(rule: Rule) -> tuple[str, ...]:
    return rule.principal, rule.topic, ",".join(rule.operations)
