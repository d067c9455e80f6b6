"""The principal of the request in progress, and its audit line.

Does not handle: permissions.
Invariants: the audit line is written after the change is durable, or when the request was rejected. Changes that a
node makes without a request have none. One event is one line, whatever names it contains.

    … INFO braidlog.audit: topic orders is deleted: by 'ann' from 127.0.0.1:40112 over kafka
"""

import base64
import binascii
import hmac
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from braidlog.model.errors import BrokerError, Reason, is_elsewhere

log = logging.getLogger("braidlog.audit")
_UNSEEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Actor:
    """A principal, its address, and its listener: a dialect, or the console."""

    __slots__ = ("door", "lines", "peer", "principal")

    def __init__(self, principal: str, peer: str, door: str) -> None:
        self.principal = principal
        self.peer = peer
        self.door = door
        self.lines = 0
        """The number of audit lines written for this request."""

    def write(self, words: str) -> None:
        self.lines += 1
        words = _UNSEEN.sub(lambda found: repr(found[0])[1:-1], words)
        fields = {"principal": self.principal, "peer": self.peer, "door": self.door}
        log.info("%s: by %r from %s over %s", words, self.principal, self.peer, self.door, extra=fields)


ACTOR: Final[ContextVar[Actor | None]] = ContextVar("actor", default=None)
"""Set during an administrative request."""


def audit(words: str) -> None:
    """Write an audit line if a request is in progress."""
    actor = ACTOR.get()
    if actor is not None:
        actor.write(words)


@contextmanager
def audited_as(actor: Actor, request: str, *, is_told: bool) -> Iterator[None]:
    """Attribute audit lines inside the block to this actor. `is_told`: also write one for a rejected request."""
    ACTOR.set(actor)
    try:
        yield
    except BrokerError as error:
        if error.reason is Reason.NOT_AUTHORIZED or (is_told and not is_elsewhere(error)):
            actor.write(f"{request} is refused ({error})")
        raise
    finally:
        ACTOR.set(None)


CONSOLE: Final = "__console"
"""The principal of a node's console at its own listeners and at other nodes. No user can have this name."""


def listener_token(secret: str, principal: str) -> str:
    name = principal.encode()
    return f"{base64.urlsafe_b64encode(name).decode()}.{hmac.digest(secret.encode(), name, 'sha256').hex()}"


def principal_of(secret: str, token: bytes) -> str | None:
    """Return the token's principal, or None if it was not made with this secret."""
    try:
        principal = base64.urlsafe_b64decode(token.partition(b".")[0]).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return principal if hmac.compare_digest(listener_token(secret, principal).encode(), token) else None
