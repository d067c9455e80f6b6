"""One rule: who may, or may not, do what with which resources.

Knows: operations, kinds of resources, patterns. Refuses to know: other rules, who somebody is.
Invariants: a rule says nothing of a kind that it does not name; `*` of topics leaves out those of the node itself (`__…`), which
have to be named; a denial is about exactly the operations in it.
"""

from enum import StrEnum

import msgspec

from braidlog.cluster.metadata.local_store import INTERNAL_PREFIX

EVERYONE = "*"
EVERY = "*"


class Operation(StrEnum):
    """What can be allowed. `CLUSTER` is what only nodes and administrators do: roles, replicas, in-sync sets."""

    DESCRIBE = "describe"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    CLUSTER = "cluster"
    ALL = "*"


class Kind(StrEnum):
    """What a rule can be about. The values are the names of a rule's fields."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional_id"
    KEY = "key"

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")


_GENERAL = (Operation.DESCRIBE, Operation.READ, Operation.WRITE)


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Allows `principal` to do `operations`, or denies them, on what it names: a name, a prefix that ends with `*`, or `*`.

    One that names nothing is about all topics; with every operation (`*`) it is an administrator's, and about everything.
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
        """Which names of a kind it is about; empty: none."""
        if self._names_something:
            pattern: str = getattr(self, kind)
            return pattern
        return EVERY if kind is Kind.TOPIC or Operation.ALL in self.operations else ""

    def allows(self, principal: str, operation: Operation, name: str | None, kind: Kind = Kind.TOPIC) -> bool:
        """`name` None: the node itself, or some resource of that kind."""
        if self.principal not in (EVERYONE, principal) or not self.speaks_of(operation):
            return False
        return self._allows_in_general(operation, kind) if name is None else self.covers(name, kind)

    def speaks_of(self, operation: Operation) -> bool:
        """Whether it allows an operation, on what it names."""
        if operation in self.operations or Operation.ALL in self.operations:
            return True
        # Whoever may read or write something may know that it is there.
        return operation is Operation.DESCRIBE and not {Operation.READ, Operation.WRITE}.isdisjoint(self.operations)

    def _allows_in_general(self, operation: Operation, kind: Kind) -> bool:
        """A rule about topics, even about all of them, gives no power over the node unless it says so."""
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
        """Whether it is about that resource, whoever uses it how."""
        pattern = self.pattern(kind)
        if not pattern.endswith("*"):
            return bool(pattern) and name == pattern
        prefix = pattern[:-1]
        if not name.startswith(prefix):
            return False
        is_internal = kind is Kind.TOPIC and name.startswith(INTERNAL_PREFIX)
        return not is_internal or prefix.startswith(INTERNAL_PREFIX) or self.deny or self.is_about_everything
