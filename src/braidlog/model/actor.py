"""Who asked for what is being done, and the audit line that says so.

Knows: the request under way, for as long as it is under way. Refuses to know: what is allowed.
Invariants: a line is written after the change is durable, or when it was refused; what a node does by itself has none; whatever
names are in it, it is one line.

    … INFO braidlog.audit: topic orders is deleted: by 'ann' from 127.0.0.1:40112 over kafka
"""

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
    """A principal, where it came from, and the door that it came by: a dialect, or the console."""

    __slots__ = ("door", "lines", "peer", "principal")

    def __init__(self, principal: str, peer: str, door: str) -> None:
        self.principal = principal
        self.peer = peer
        self.door = door
        self.lines = 0
        """How many were written for it."""

    def write(self, words: str) -> None:
        self.lines += 1
        words = _UNSEEN.sub(lambda found: repr(found[0])[1:-1], words)
        fields = {"principal": self.principal, "peer": self.peer, "door": self.door}
        log.info("%s: by %r from %s over %s", words, self.principal, self.peer, self.door, extra=fields)


ACTOR: Final[ContextVar[Actor | None]] = ContextVar("actor", default=None)
"""Set while a request is served that administers something."""


def audit(words: str) -> None:
    """Say who has done this, if somebody has asked for it."""
    actor = ACTOR.get()
    if actor is not None:
        actor.write(words)


@contextmanager
def acting(actor: Actor, request: str, *, is_told: bool) -> Iterator[None]:
    """While in it, what is done is done for this actor. `is_told`: that it was refused, and not only that it may not."""
    ACTOR.set(actor)
    try:
        yield
    except BrokerError as error:
        if error.reason is Reason.NOT_AUTHORIZED or (is_told and not is_elsewhere(error)):
            actor.write(f"{request} is refused ({error})")
        raise
    finally:
        ACTOR.set(None)
