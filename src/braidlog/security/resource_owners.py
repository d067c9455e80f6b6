"""Owners of groups and transactional ids: the principal that used a name first owns it.

Does not handle: access rules.
Invariants: an owner is written to the log of the state that it protects, before that state, so that after a crash
every group has its owner. The owner of a deleted group or id is forgotten only after a while: it may use the name
again.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping

import msgspec

from braidlog.coordinator.journal import NOTHING, Table
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.runtime.runtime import Runtime
from braidlog.security.access_rule import Kind, Operation

OWNED: dict[Kind, Operation] = {Kind.GROUP: Operation.READ, Kind.TRANSACTIONAL_ID: Operation.WRITE}
"""Resources that have owners, and the operation that makes a principal the owner."""
NAMES_PER_PRINCIPAL_MAX = 10_000
UNUSED_MS = 10 * 60 * 1000


class Owner(msgspec.Struct, frozen=True):
    principal: str
    since_ms: int


class AllOwners:
    """The owners of all names. `find` returns the owners in the shard of a name; None if another node leads it and
    decides there."""

    def __init__(self, find: Callable[[str], "Owners | None"]) -> None:
        self._find = find

    def is_allowed(self, principal: str, operation: Operation, name: str, kind: Kind) -> bool:
        owners = self._find(name)
        return owners is None or owners.is_allowed(principal, operation, name, kind)

    def note_use(self, principal: str, operation: Operation, name: str, kind: Kind) -> None:
        if (owners := self._find(name)) is not None:
            owners.note_use(principal, operation, name, kind)


class Owners:
    """The owners in one shard. `there`: the names of each kind that have state."""

    def __init__(self, table: Table, there: Mapping[Kind, Callable[[], Collection[str]]], runtime: Runtime) -> None:
        self._table = table
        self._there = there
        self._runtime = runtime
        self._counts = Counter(owner.principal for _, owner in table.items())

    def is_allowed(self, principal: str, operation: Operation, name: str, kind: Kind) -> bool:
        """Return whether a principal may do this. A name without an owner may be used by all, but not deleted or
        altered."""
        owner: Owner | None = self._table.get(kind.value, name)
        return operation not in (Operation.DELETE, Operation.ALTER) if owner is None else owner.principal == principal

    def note_use(self, principal: str, operation: Operation, name: str, kind: Kind) -> None:
        """Record an allowed use: the first principal becomes the owner."""
        if operation is not OWNED[kind] or self._table.get(kind.value, name) is not None:
            return
        if self._counts[principal] >= NAMES_PER_PRINCIPAL_MAX:
            raise BrokerError(
                Reason.QUOTA_EXCEEDED,
                f"{principal!r} owns {NAMES_PER_PRINCIPAL_MAX} groups and transactional ids already; delete some",
            )
        self._table.put(kind.value, name, value=Owner(principal, self._runtime.now_ms()))
        self._counts[principal] += 1

    async def forget_unused(self) -> int:
        """Delete the owners of names that have had no state for a while; return their count."""
        there = {kind.value: set(names()) for kind, names in self._there.items()}
        before_ms = self._runtime.now_ms() - UNUSED_MS
        gone = [
            (key, owner.principal)
            for key, owner in self._table.items()
            if owner.since_ms <= before_ms and key[1] not in there[str(key[0])]
        ]
        mark = self._table.put_many([(key, None) for key, _ in gone]) if gone else NOTHING
        self._counts.subtract(principal for _, principal in gone)
        await self._table.journal.wait_committed(mark)
        return len(gone)
