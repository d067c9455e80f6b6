"""Who may do what: principals, tokens, and what the rules say together.

Knows: names, operations, kinds of resources. Refuses to know: how a name was proved on the wire (an adapter or TLS says so).
Invariants: with rules, what no rule allows is refused, and so is what one denies; a topic one may not describe looks as if it
were not there; tokens are compared in constant time, and only their hashes are kept.
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
"""Principals that no token, password or certificate proves."""
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
    """No rule allows it, or one denies it. `name` None: nothing in particular."""

    def __init__(self, principal: str, operation: Operation, name: str | None, kind: Kind) -> None:
        what = f"{operation} here" if name is None else f"{operation} {kind.words} {name[:60]!r}"
        if operation is Operation.CLUSTER:
            what = "administer the cluster (operation 'cluster')"
        super().__init__(Reason.NOT_AUTHORIZED, f"{principal!r} may not {what}")
        self.kind = kind
        self.permission = operation.value if kind is Kind.TOPIC else f"{operation} {kind}"
        """What a rule would have to allow, in its own words."""


class Authorize:
    """No tokens and no rules: everyone may do everything (loopback). Otherwise nothing is allowed but by a rule."""

    door = ""
    """How audit lines call the doors that it guards; empty: each by its dialect."""

    def __init__(self, token_hashes: dict[str, str], rules: Sequence[Rule], *, has_users: bool = False) -> None:
        self._tokens = {name: _parse_hash(name, digest) for name, digest in token_hashes.items()}
        self.configured = list(rules)
        self.required = bool(token_hashes) or has_users
        self.is_open = self.is_free = not rules
        """Whether there are no rules; whether nothing is refused to anybody who is known."""
        self._owners: AllOwners | Owners | None = None
        self.administer([])

    def administer(self, rules: Sequence[Rule]) -> None:
        """These hold besides the configured ones, from now on."""
        every = [*self.configured, *rules]
        self._allowing = [rule for rule in every if not rule.deny]
        self._denying = [rule for rule in every if rule.deny]
        self._allowing_to, self._denying_to = _by_principal(self._allowing), _by_principal(self._denying)

    def own_by_first_use(self, owners: AllOwners | Owners) -> None:
        """Groups and transactional ids that no rule speaks of are theirs who use them first, from now on."""
        self._owners = owners
        self.is_free = False

    def authenticate(self, token: bytes) -> str | None:
        """The principal a token belongs to; every token is compared, whichever fits."""
        digest = hash_token(token)
        found = None
        for name, known in self._tokens.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found

    def has_token(self, principal: str) -> bool:
        return principal in self._tokens

    def is_allowed(self, principal: str, operation: Operation, name: str | None, kind: Kind = Kind.TOPIC) -> bool:
        """`name` None: the node itself, or some resource of that kind."""
        if self.required and principal == ANONYMOUS:
            return False
        if self._owners is not None and name is not None and self._is_owned(principal, name, kind):
            return self._owners.is_allowed(principal, operation, name, kind)
        return self.is_open or self._is_ruled(principal, operation, name, kind)

    def _is_ruled(self, principal: str, operation: Operation, name: str | None, kind: Kind) -> bool:
        """What the rules say."""
        for whose in (principal, EVERYONE):
            if any(rule.denies(principal, operation, name, kind) for rule in self._denying_to.get(whose, ())):
                return False
        return any(
            rule.allows(principal, operation, name, kind)
            for whose in (principal, EVERYONE)
            for rule in self._allowing_to.get(whose, ())
        )

    def _is_owned(self, principal: str, name: str, kind: Kind) -> bool:
        """Whether it is for its owner to use. Not what a rule speaks of, nor what an administrator does."""
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
    """A request is compared with its own principal's rules and with everybody's, however many others there are."""
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
    """Tokens are long and random, so a plain hash is enough: there is nothing to guess from."""
    return hashlib.sha256(token).digest()


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
