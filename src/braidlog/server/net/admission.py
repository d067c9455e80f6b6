"""A connection until its client has authenticated: the introduction before the first frame, and its limits.

Invariant: a connection counted as unauthenticated is uncounted exactly once. Does not handle: sockets, answers, the
check of tokens (`AccessGate`).
"""

import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from braidlog.security.authentication import Proof
from braidlog.security.authorization import ANONYMOUS, RESERVED
from braidlog.server.net.unauthenticated_limits import AccessGate
from braidlog.wire.contract import NEED_DATA, NeedData, Refused
from braidlog.wire.preamble import Introduction, Preamble

log = logging.getLogger("braidlog.session")


class AdmittedClient(Protocol):
    """What an admission needs of its connection."""

    connection: Any
    """The dialect's protocol state."""
    peer: str

    @property
    def host(self) -> str: ...

    @property
    def dialect(self) -> str: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class Admission:
    """Created when a connection opens; unused once its client has authenticated and sent its first frame."""

    def __init__(self, gatekeeper: AccessGate, client: AdmittedClient) -> None:
        self._gatekeeper = gatekeeper
        self._client = client
        self._connection = client.connection
        self._host = client.host
        self._preamble: Preamble | None = Preamble()
        self._since: float | None = None
        self._frame_bytes_max = 0
        self.is_proving = False
        self._was_wrong = False

    @property
    def standing(self) -> int:
        """See `UnauthenticatedConnection`."""
        return 0 if self._was_wrong else 2 if self.is_proving else 1

    def enter(self, now: float) -> None:
        """Count the connection as unauthenticated, and limit its frame size and time."""
        self._since = now
        self._frame_bytes_max = self._connection.frame_bytes_max
        self._connection.frame_bytes_max = min(self._frame_bytes_max, self._gatekeeper.limits.frame_bytes_max)
        self._gatekeeper.enter(self._host, self)

    def evict(self) -> None:
        """Close the connection to make room for another unauthenticated one."""
        log.warning("%s: too many unauthenticated connections; closing %s", self._client.dialect, self._client.peer)
        self._client.abort()

    def leave(self) -> None:
        """Uncount the connection: it has closed or authenticated."""
        if self._since is not None:
            self._since = None
            self._connection.frame_bytes_max = self._frame_bytes_max
            self._gatekeeper.leave(self._host, self)

    @property
    def is_open(self) -> bool:
        """Whether the first bytes are still incomplete."""
        return self._preamble is not None

    def meet(self, data: bytes) -> Introduction | Refused | NeedData | None:
        """Read the first bytes: an introduction, or the dialect's own (None), which its connection then receives."""
        assert self._preamble is not None
        self._preamble.receive(data)
        event = self._preamble.next_event()
        if event is NEED_DATA:
            return NEED_DATA
        preamble, self._preamble = self._preamble, None
        if isinstance(event, Refused):
            return event
        self._connection.receive(preamble.take_rest())
        return event if isinstance(event, Introduction) else None

    async def prove(self, principal: str, token: bytes) -> bool:
        self._was_wrong = not self._gatekeeper.holds(principal, token)  # answered after a delay
        return await self._settle(self._gatekeeper.prove(self._host, principal, token))

    async def verify_proof(self, holds: Proof) -> bool:
        return await self._settle(self._gatekeeper.verify_proof(self._host, holds))

    async def _settle(self, proving: Coroutine[Any, Any, bool]) -> bool:
        self.is_proving = True
        try:
            proved = await proving
        finally:
            self.is_proving = False
        if proved:
            self.leave()
        else:
            log.warning("%s %s: authentication failed", self._client.dialect, self._client.peer)
            self._client.close()
        return proved

    def is_overdue(self, now: float, requests: int) -> bool:
        if self._since is None or self.is_proving:
            return False
        limits, waited = self._gatekeeper.limits, now - self._since
        return waited > limits.seconds_max or (not requests and waited > limits.first_frame_seconds_max)


def certified_name(certificate: dict[str, Any] | None) -> str | None:
    """Return the name in a client's verified certificate: its common name, else its first alternative name."""
    if not certificate:
        return None
    common = [str(value) for parts in certificate.get("subject", ()) for field, value in parts if field == "commonName"]
    others = [str(value) for _, value in certificate.get("subjectAltName", ())]
    return next(filter(None, common + others), None)


def certified_principal(certificate: dict[str, Any] | None, peer: str) -> str | None:
    """Return the principal that a client's certificate names; None if the name is reserved."""
    name = certified_name(certificate) or ""
    if name in RESERVED:
        log.warning("closing %s: its certificate names %r, a reserved principal", peer, name)
        return None
    return name or ANONYMOUS
