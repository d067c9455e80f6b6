"""An access rule: allows or denies a principal operations on resources.

Does not handle: combining rules, authentication.
Invariants: a rule has no effect on a kind of resource that it does not name. The topic pattern `*` excludes
internal topics (`__…`), which a rule must name. A denial covers exactly its operations.
"""

from enum import StrEnum

import msgspec

from braidlog.cluster.metadata.local_store import INTERNAL_PREFIX

EVERYONE = "*"
EVERY = "*"


class Operation(StrEnum):
    """The operations that a rule can allow. `CLUSTER` is for nodes and administrators: roles, replicas, in-sync
    sets."""

    DESCRIBE = "describe"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    CLUSTER = "cluster"
    ALL = "*"


class Kind(StrEnum):
    """The kinds of resources. The values are the names of a rule's fields."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional_id"
    KEY = "key"

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")


_GENERAL = (Operation.DESCRIBE, Operation.READ, Operation.WRITE)


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Allows or denies `principal` the `operations` on resources: a name, a prefix that ends with `*`, or `*`.

    A rule without resources covers all topics; with every operation (`*`), it is an administrator's and covers
    everything.
    """

    principal: str
    operations: list[Operation]
    topic: str = ""
    group: str = ""
    transactional_id: str = ""
    key: str = ""
    deny: bool = False

    @property
    def is_about_everything(self) -> bool:
        return Operation.ALL in self.operations and not self._names_something

    @property
    def _names_something(self) -> bool:
        return bool(self.topic or self.group or self.transactional_id or self.key)

    def pattern(self, kind: Kind) -> str:
        """Return the pattern for names of a kind; empty: none."""
        if self._names_something:
            pattern: str = getattr(self, kind)
            return pattern
        return EVERY if kind is Kind.TOPIC or Operation.ALL in self.operations else ""

    def allows(self, principal: str, operation: Operation, name: str | None, kind: Kind = Kind.TOPIC) -> bool:
        """Return whether the rule allows an operation. `name` None: on the node itself, or on some resource of that
        kind."""
        if self.principal not in (EVERYONE, principal) or not self.speaks_of(operation):
            return False
        return self._allows_in_general(operation, kind) if name is None else self.covers(name, kind)

    def speaks_of(self, operation: Operation) -> bool:
        """Return whether the rule includes an operation on the resources that it names."""
        if operation in self.operations or Operation.ALL in self.operations:
            return True
        # Permission to read or write a resource includes the permission to see that it exists.
        return operation is Operation.DESCRIBE and not {Operation.READ, Operation.WRITE}.isdisjoint(self.operations)

    def _allows_in_general(self, operation: Operation, kind: Kind) -> bool:
        """Return whether the rule allows an operation without a named resource. A rule about topics includes
        `cluster` only if it lists it."""
        if operation is Operation.CLUSTER and Operation.CLUSTER not in self.operations:
            return self.is_about_everything
        pattern = self.pattern(kind)
        return pattern == EVERY or (bool(pattern) and operation in _GENERAL)

    def denies(self, principal: str, operation: Operation, name: str | None, kind: Kind = Kind.TOPIC) -> bool:
        if self.principal not in (EVERYONE, principal):
            return False
        if operation not in self.operations and Operation.ALL not in self.operations:
            return False
        return self.pattern(kind) == EVERY if name is None else self.covers(name, kind)

    def covers(self, name: str, kind: Kind) -> bool:
        """Return whether the rule is about a resource, for any operation."""
        pattern = self.pattern(kind)
        if not pattern.endswith("*"):
            return bool(pattern) and name == pattern
        prefix = pattern[:-1]
        if not name.startswith(prefix):
            return False
        is_internal = kind is Kind.TOPIC and name.startswith(INTERNAL_PREFIX)
        return not is_internal or prefix.startswith(INTERNAL_PREFIX) or self.deny or self.is_about_everything
