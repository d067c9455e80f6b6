"""Who may do what: principals, rules, tokens.

Knows: names, operations, topics. Refuses to know: how a name was proved on the wire (an adapter or TLS says so).
Invariants: with rules, what no rule allows is refused; a topic one may not describe looks as if it were not there; tokens are
compared in constant time, and only their hashes are kept.
"""

import hashlib
import hmac
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.names import no_topic

ANONYMOUS = "anonymous"
EVERYONE = "*"


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


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Allows `principal` to do `operations` on topics: a name, a prefix that ends with `*`, or `*`."""

    principal: str
    operations: list[Operation]
    topic: str = "*"

    def allows(self, principal: str, operation: Operation, topic: str | None) -> bool:
        if self.principal not in (EVERYONE, principal):
            return False
        if not self._names(operation):
            return False
        if self.topic == "*":
            return True
        if topic is None:
            # A rule about some topics says nothing about the cluster, nor about topics in general.
            return operation in (Operation.DESCRIBE, Operation.READ, Operation.WRITE)
        return topic.startswith(self.topic[:-1]) if self.topic.endswith("*") else topic == self.topic

    def _names(self, operation: Operation) -> bool:
        if operation in self.operations or Operation.ALL in self.operations:
            return True
        # Whoever may read or write a topic may know that it is there.
        return operation is Operation.DESCRIBE and not {Operation.READ, Operation.WRITE}.isdisjoint(self.operations)


class Authorize:
    """No tokens and no rules: everyone may do everything (loopback). Otherwise nothing is allowed but by a rule."""

    def __init__(self, token_hashes: dict[str, str], rules: Sequence[Rule], *, has_users: bool = False) -> None:
        self._tokens = {name: _parse_hash(name, digest) for name, digest in token_hashes.items()}
        self.configured = list(rules)
        self._rules = self.configured
        self.required = bool(token_hashes) or has_users
        self.is_open = not rules

    def administer(self, rules: Sequence[Rule]) -> None:
        """These hold besides the configured ones, from now on."""
        self._rules = [*self.configured, *rules]

    def authenticate(self, token: bytes) -> str | None:
        """The principal a token belongs to; every token is compared, whichever fits."""
        digest = hash_token(token)
        found = None
        for name, known in self._tokens.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found

    def is_allowed(self, principal: str, operation: Operation, topic: str | None) -> bool:
        if self.required and principal == ANONYMOUS:
            return False
        return self.is_open or any(rule.allows(principal, operation, topic) for rule in self._rules)

    def check(self, principal: str, operation: Operation, topic: str | None) -> None:
        if self.required and principal == ANONYMOUS:
            raise BrokerError(Reason.NOT_AUTHENTICATED, "authentication is required")
        if self.is_allowed(principal, operation, topic):
            return
        hidden = topic is not None and not self.is_allowed(principal, Operation.DESCRIBE, topic)
        if topic is not None and hidden and operation is not Operation.CREATE:
            raise no_topic(topic)
        what = "here" if topic is None else f"topic {topic[:60]!r}"
        raise BrokerError(Reason.NOT_AUTHORIZED, f"{principal!r} may not {operation} {what}")

    def visible(self, principal: str, topics: Sequence[str]) -> list[str]:
        return [topic for topic in topics if self.is_allowed(principal, Operation.DESCRIBE, topic)]


def _parse_hash(name: str, digest: str) -> bytes:
    try:
        parsed = bytes.fromhex(digest)
    except ValueError:
        parsed = b""
    if len(parsed) != hashlib.sha256().digest_size:
        raise BrokerError(
            Reason.INVALID_SETTING, f"the token of {name!r} is given as the SHA-256 of it: 64 hexadecimal digits"
        )
    if name in (ANONYMOUS, EVERYONE):
        raise BrokerError(Reason.INVALID_SETTING, f"{name!r} is no principal that could have a token")
    return parsed


def hash_token(token: bytes) -> bytes:
    """Tokens are long and random, so a plain hash is enough: there is nothing to guess from."""
    return hashlib.sha256(token).digest()
