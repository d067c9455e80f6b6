"""Authentication with SASL PLAIN and SCRAM, and administration of SCRAM users.

Does not handle: permissions, password storage. With `reauthentication_ms`, a connection must authenticate again
within that time (KIP-368), as the same user.
Invariants: a connection has a user only after a complete exchange. A failed one is answered late
(server/net/unauthenticated_limits.py) and closed, without details. A PLAIN password may also be a token of the configuration.
"""

import logging
import secrets
from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from braidlog.adapters.contract import Conversation
from braidlog.adapters.errors import text_of
from braidlog.adapters.kafka.authentication.scram import DoubledNonceError, Scram, ScramError
from braidlog.adapters.kafka.errors import code_of
from braidlog.adapters.kafka.routes import Route, of_cluster, refused, whole
from braidlog.adapters.kafka.services import Services
from braidlog.cluster.metadata.events import Credential
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.security.users import Hash
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request, ServerConnection
from braidlog.wire.kafka.messages import security as s

log = logging.getLogger("braidlog.kafka")

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *Hash)
PASSWORD_BYTES_MAX = 1024
WRONG = "the user or the password is wrong"
Change = s.AlterUserScramCredentialsRequestDeletion | s.AlterUserScramCredentialsRequestUpsertion
NUMBERS: dict[int, Hash] = {1: Hash.SHA_256, 2: Hash.SHA_512}


class _Exchange:
    """The state of a connection's exchange."""

    def __init__(self, mechanism: str) -> None:
        self.mechanism = mechanism
        self.scram: Scram | None = None


class _Known(NamedTuple):
    """The user of a connection, and when it must re-authenticate by this node's clock."""

    name: str
    until: float


def mechanisms(services: Services) -> list[str]:
    """Return the offered mechanisms. Without users there are no SCRAM credentials, and tokens work only with PLAIN."""
    return list(MECHANISMS) if services.users.names() else [PLAIN]


class Sasl:
    """The handlers, the open exchanges, and the expiry of finished ones."""

    def __init__(self, lifetime_ms: int = 0) -> None:
        self.lifetime_ms = lifetime_ms
        self._exchanges: WeakKeyDictionary[ServerConnection, _Exchange] = WeakKeyDictionary()
        self._known: WeakKeyDictionary[ServerConnection, _Known] = WeakKeyDictionary()

    def handshake(self, request: Request, services: Services, conversation: Conversation) -> s.SaslHandshakeResponse:
        message: s.SaslHandshakeRequest = request.message
        offered = mechanisms(services)
        if message.mechanism not in offered:
            return s.SaslHandshakeResponse(E.UNSUPPORTED_SASL_MECHANISM, offered)
        self._exchanges[conversation.connection] = _Exchange(message.mechanism)
        return s.SaslHandshakeResponse(mechanisms=offered)

    def is_expired(self, conversation: Conversation, now: float) -> bool:
        """Return whether this client's re-authentication is overdue."""
        known = self._known.get(conversation.connection) if self.lifetime_ms else None
        return known is not None and now >= known.until

    async def authenticate(
        self, request: Request, services: Services, conversation: Conversation
    ) -> s.SaslAuthenticateResponse:
        token = bytes(request.message.auth_bytes)
        # Removed during the check: if a client sends several tokens together, only one is tried.
        exchange = self._exchanges.pop(conversation.connection, None)
        if exchange is None:
            conversation.close()
            return s.SaslAuthenticateResponse(E.ILLEGAL_SASL_STATE, "send a SaslHandshake first")
        if exchange.mechanism != PLAIN and exchange.scram is None:
            exchange.scram = self._begin(Hash(exchange.mechanism), services)
            try:
                asked = exchange.scram.first(token)
            except ScramError:
                asked = b""  # every later message is invalid
            self._exchanges[conversation.connection] = exchange
            return s.SaslAuthenticateResponse(auth_bytes=asked)
        proof = _Proof(exchange, token, services)
        if not await (conversation.prove(*proof.token) if proof.token else conversation.verify_proof(proof.holds)):
            if proof.fault != WRONG:
                log.warning("authentication failed: %s, %s", conversation.peer, proof.fault)
            return s.SaslAuthenticateResponse(E.SASL_AUTHENTICATION_FAILED, proof.fault)
        before = self._known.get(conversation.connection)
        if before is not None and before.name != proof.name:
            conversation.close()
            return s.SaslAuthenticateResponse(E.SASL_AUTHENTICATION_FAILED, "a connection cannot change its user")
        conversation.principal = proof.name
        conversation.connection.authenticated()
        until = services.runtime.monotonic() + self.lifetime_ms / 1000
        self._known[conversation.connection] = _Known(proof.name, until)
        return s.SaslAuthenticateResponse(auth_bytes=proof.answer, session_lifetime_ms=self.lifetime_ms)

    def _begin(self, kind: Hash, services: Services) -> Scram:
        def find(name: str) -> Credential | None:
            return services.users.credentials(name).get(kind)

        return Scram(kind, find, secrets.token_urlsafe(24), lambda name: services.users.decoy(name, kind))


class _Proof:
    """The last token of an exchange: its user, and the answer, once it `holds`."""

    def __init__(self, exchange: _Exchange, token: bytes, services: Services) -> None:
        self._exchange = exchange
        self._token = token
        self._services = services
        self.name = ""
        self.answer = b""
        self.fault = WRONG
        """The error for an invalid proof."""
        self.token = self._configured_token()
        """Name and password, if they may be a token of the configuration, which is checked without a wait."""

    def _configured_token(self) -> tuple[str, bytes] | None:
        plain = None if self._exchange.scram else self._plain_parts()
        if plain is None or self._services.authorize.authenticate(plain[1]) != plain[0]:
            return None
        self.name = plain[0]
        return plain

    async def holds(self) -> bool:
        scram = self._exchange.scram
        if scram is None:
            return await self._plain()
        try:
            self.answer = scram.final(self._token)
        except DoubledNonceError as error:
            self.fault = str(error)
            return False
        except ScramError:
            return False
        self.name = scram.name
        return True

    def _plain_parts(self) -> tuple[str, bytes] | None:
        """Parse `[authorization id] NUL user NUL password`: user and password, if the user acts for itself."""
        parts = self._token.split(b"\0")
        if len(parts) != 3 or len(self._token) > PASSWORD_BYTES_MAX:
            return None
        authorized, name = parts[0].decode("utf-8", "replace"), parts[1].decode("utf-8", "replace")
        return (name, parts[2]) if authorized in ("", name) else None

    async def _plain(self) -> bool:
        """Return whether the password is that user's."""
        plain = self._plain_parts()
        if plain is None:
            return False
        self.name = plain[0]
        return await self._services.users.check_password(*plain)


def refuse_handshake(_: Request, code: E, __: str) -> s.SaslHandshakeResponse:
    return s.SaslHandshakeResponse(code, list(MECHANISMS))


# -- users -------------------------------------------------------------------------------------------------------


def describe_users(request: Request, services: Services, _: Conversation) -> s.DescribeUserScramCredentialsResponse:
    message: s.DescribeUserScramCredentialsRequest = request.message
    names = [each.name for each in message.users] if message.users else services.users.names()
    return s.DescribeUserScramCredentialsResponse(results=[_described(name, services) for name in names])


def _described(name: str, services: Services) -> s.DescribeUserScramCredentialsResponseResult:
    known = services.users.credentials(name)
    if not known:
        return s.DescribeUserScramCredentialsResponseResult(name, E.RESOURCE_NOT_FOUND, f"unknown user {name[:60]!r}")
    shown = [
        s.DescribeUserScramCredentialsResponseCredentialInfo(number, known[kind].iterations)
        for number, kind in NUMBERS.items()
        if kind in known
    ]
    return s.DescribeUserScramCredentialsResponseResult(name, credential_infos=shown)


async def alter_users(request: Request, services: Services, _: Conversation) -> s.AlterUserScramCredentialsResponse:
    message: s.AlterUserScramCredentialsRequest = request.message
    codes: dict[str, tuple[E, str | None]] = {}
    changes: list[Change] = [*message.deletions, *message.upsertions]
    for each in changes:
        if each.name not in codes or not codes[each.name][0]:
            codes[each.name] = await _alter(each, services)
    return s.AlterUserScramCredentialsResponse(
        results=[s.AlterUserScramCredentialsResponseResult(name, *said) for name, said in codes.items()]
    )


async def _alter(change: Change, services: Services) -> tuple[E, str | None]:
    kind = NUMBERS.get(change.mechanism)
    if kind is None:
        return E.UNSUPPORTED_SASL_MECHANISM, f"unknown SCRAM mechanism {change.mechanism}"
    try:
        if isinstance(change, s.AlterUserScramCredentialsRequestDeletion):
            await services.users.drop(change.name, kind)
        else:
            salt, salted = bytes(change.salt), bytes(change.salted_password)
            await services.users.put(change.name, kind, salt, change.iterations, salted)
    except (BrokerError, StorageFault) as error:
        return code_of(error), text_of(error)
    return E.NONE, None


def _users_altered(message: s.AlterUserScramCredentialsRequest) -> Iterable[str]:
    changes: list[Change] = [*message.deletions, *message.upsertions]
    return dict.fromkeys(each.name for each in changes)


def routes(sasl: Sasl) -> dict[Key, Route]:
    return {
        Key.SASL_HANDSHAKE: Route(sasl.handshake, None, refusal=refuse_handshake, before_authentication=True),
        Key.SASL_AUTHENTICATE: Route(
            sasl.authenticate, None, refusal=whole(s.SaslAuthenticateResponse), before_authentication=True
        ),
        Key.DESCRIBE_USER_SCRAM_CREDENTIALS: of_cluster(describe_users, whole(s.DescribeUserScramCredentialsResponse)),
        Key.ALTER_USER_SCRAM_CREDENTIALS: of_cluster(
            alter_users, refused(s.AlterUserScramCredentialsResponse, {"results": _users_altered})
        ),
    }
