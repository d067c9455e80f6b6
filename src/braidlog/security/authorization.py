"""Decides whether a principal may do an operation, from tokens and all access rules.

Does not handle: the verification of principals on the wire (done by adapters or TLS).
Invariants: if rules exist, an operation is refused unless a rule allows it and none denies it. A topic without
permission to describe looks as if it did not exist. Tokens are compared in constant time, and stored only as
hashes.
"""

import hashlib
import hmac
from collections.abc import Sequence

from braidlog.model.actor import CONSOLE, principal_of
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.names import no_topic
from braidlog.model.reporting.node_report import Roles
from braidlog.security.access_rule import EVERY, EVERYONE, Kind, Operation, Rule
from braidlog.security.resource_owners import OWNED, AllOwners, Owners

ANONYMOUS = "anonymous"
RESERVED = frozenset({ANONYMOUS, CONSOLE, EVERYONE})
"""Principals that no token, password or certificate can prove."""
AUTHENTICATION_REQUIRED = "authentication is required: name a user and show its token"
__all__ = [
    "ANONYMOUS",
    "AUTHENTICATION_REQUIRED",
    "CONSOLE",
    "EVERYONE",
    "RESERVED",
    "Authorize",
    "Kind",
    "NotAuthorizedError",
    "Operation",
    "Rule",
    "hash_token",
]


class NotAuthorizedError(BrokerError):
    """No rule allows the operation, or one denies it. `name` None: no particular resource."""

    def __init__(self, principal: str, operation: Operation, name: str | None, kind: Kind) -> None:
        what = f"{operation} here" if name is None else f"{operation} {kind.words} {name[:60]!r}"
        if operation is Operation.CLUSTER:
            what = "administer the cluster (operation 'cluster')"
        super().__init__(Reason.NOT_AUTHORIZED, f"{principal!r} may not {what}")
        self.kind = kind
        self.permission = operation.value if kind is Kind.TOPIC else f"{operation} {kind}"
        """The permission that a rule would have to grant, in the syntax of rules."""


class Authorize:
    """Without tokens and rules, everything is allowed (loopback). Otherwise only what a rule allows."""

    door = ""
    """The listener's name in audit lines; empty: the name of its wire protocol."""

    def __init__(self, token_hashes: dict[str, str], rules: Sequence[Rule], *, has_users: bool = False) -> None:
        self._tokens = {name: _parse_hash(name, digest) for name, digest in token_hashes.items()}
        self.configured = list(rules)
        self.required = bool(token_hashes) or has_users
        self.is_open = self.is_free = not rules
        """`is_open`: no rules exist. `is_free`: nothing is refused to a known principal."""
        self._owners: AllOwners | Owners | None = None
        self.administer([])

    def administer(self, rules: Sequence[Rule]) -> None:
        """Replace the rules that were added to the configured ones."""
        every = [*self.configured, *rules]
        self._allowing = [rule for rule in every if not rule.deny]
        self._denying = [rule for rule in every if rule.deny]
        self._allowing_to, self._denying_to = _by_principal(self._allowing), _by_principal(self._denying)

    def own_by_first_use(self, owners: AllOwners | Owners) -> None:
        """Give groups and transactional ids without a rule to their first user, from now on."""
        self._owners = owners
        self.is_free = False

    def authenticate(self, token: bytes) -> str | None:
        """Return the principal of a token. Every known token is compared, to keep the time constant."""
        digest = hash_token(token)
        found = None
        for name, known in self._tokens.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found

    def has_token(self, principal: str) -> bool:
        return principal in self._tokens

    def is_allowed(self, principal: str, operation: Operation, name: str | None, kind: Kind = Kind.TOPIC) -> bool:
        """Return whether an operation is allowed. `name` None: on the node itself, or on some resource of that kind."""
        if self.required and principal == ANONYMOUS:
            return False
        if self._owners is not None and name is not None and self._is_owned(principal, name, kind):
            return self._owners.is_allowed(principal, operation, name, kind)
        return self.is_open or self._is_ruled(principal, operation, name, kind)

    def _is_ruled(self, principal: str, operation: Operation, name: str | None, kind: Kind) -> bool:
        """Return the decision of the rules."""
        for whose in (principal, EVERYONE):
            if any(rule.denies(principal, operation, name, kind) for rule in self._denying_to.get(whose, ())):
                return False
        return any(
            rule.allows(principal, operation, name, kind)
            for whose in (principal, EVERYONE)
            for rule in self._allowing_to.get(whose, ())
        )

    def _is_owned(self, principal: str, name: str, kind: Kind) -> bool:
        """Return whether only its owner may use a resource: not if a rule covers it, nor for an administrator."""
        if kind not in OWNED or any(rule.covers(name, kind) for rule in self._denying):
            return False
        return not any(
            rule.principal in (EVERYONE, principal) if rule.is_about_everything else rule.covers(name, kind)
            for rule in self._allowing
        )

    def check(self, principal: str, operation: Operation, name: str | None, kind: Kind = Kind.TOPIC) -> None:
        self.require_known(principal)
        if self.is_allowed(principal, operation, name, kind):
            if self._owners is not None and name is not None and self._is_owned(principal, name, kind):
                self._owners.note_use(principal, operation, name, kind)
            return
        is_topic = kind is Kind.TOPIC and name is not None and operation is not Operation.CREATE
        if is_topic and name is not None and not self.is_allowed(principal, Operation.DESCRIBE, name):
            raise no_topic(name)
        raise NotAuthorizedError(principal, operation, name, kind)

    def require_known(self, principal: str) -> None:
        if self.required and principal == ANONYMOUS:
            raise BrokerError(Reason.NOT_AUTHENTICATED, AUTHENTICATION_REQUIRED)

    def visible(self, principal: str, names: Sequence[str], kind: Kind = Kind.TOPIC) -> list[str]:
        return [name for name in names if self.is_allowed(principal, Operation.DESCRIBE, name, kind)]


def _by_principal(rules: Sequence[Rule]) -> dict[str, list[Rule]]:
    """Group rules by principal: a request is compared only with the rules of its principal and of `*`."""
    found: dict[str, list[Rule]] = {}
    for rule in rules:
        found.setdefault(rule.principal, []).append(rule)
    return found


def _parse_hash(name: str, digest: str) -> bytes:
    try:
        parsed = bytes.fromhex(digest)
    except ValueError:
        parsed = b""
    if len(parsed) != hashlib.sha256().digest_size:
        raise BrokerError(
            Reason.INVALID_SETTING, f"the token of {name!r} is given as the SHA-256 of it: 64 hexadecimal digits"
        )
    if name in RESERVED:
        raise BrokerError(Reason.INVALID_SETTING, f"{name!r} is no principal that could have a token")
    return parsed


def hash_token(token: bytes) -> bytes:
    """Return the hash of a token. Tokens are long and random, so a plain hash is enough."""
    return hashlib.sha256(token).digest()


def roles_of(authorize: Authorize, rules: list[Rule], principal: str) -> Roles:
    """Return a principal's roles in the console. `rules`: all of them, including the configuration's."""
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


class OnBehalf(Authorize):
    door = "console"

    def __init__(self, node: Authorize, secret: str) -> None:
        super().__init__({}, [])
        self.required = True
        self.is_open = self.is_free = False
        self._node = node
        self._secret = secret

    def authenticate(self, token: bytes) -> str | None:
        return principal_of(self._secret, token)

    def is_allowed(self, principal: str, operation: Operation, name: str | None, kind: Kind = Kind.TOPIC) -> bool:
        return principal == CONSOLE or self._node.is_allowed(principal, operation, name, kind)

    def check(self, principal: str, operation: Operation, name: str | None, kind: Kind = Kind.TOPIC) -> None:
        if principal != CONSOLE:
            self._node.check(principal, operation, name, kind)
