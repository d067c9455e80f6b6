"""A listener: accepts the connections of one port, counts them, and closes overdue ones.

Invariants: every connection is counted, and rejected if it exceeds a limit. A connection that exceeds a time limit is
closed by the next sweep. Does not handle: dialects, beyond its adapter.
"""

import asyncio
import contextlib
import logging
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from itertools import count

from braidlog.adapters.contract import Adapter
from braidlog.security.quotas import Quotas
from braidlog.server.net.connection_limits import ConnectionLimits, SessionLimits
from braidlog.server.net.memory_budget import Budget
from braidlog.server.net.ports import BACKLOG, listen
from braidlog.server.net.scheduler import FairScheduler
from braidlog.server.net.session import Session
from braidlog.server.net.session_owner import SessionOwner
from braidlog.server.net.unauthenticated_limits import AccessGate

log = logging.getLogger("braidlog.listener")

_numbers = count(1)

SWEEP_SECONDS = 1.0
HANDSHAKE_SECONDS_MAX = 5.0
FAREWELL_SECONDS_MAX = 1.0
"""Time limit of the TLS shutdown."""


class Listener(SessionOwner):
    """Serves one dialect on one port."""

    def __init__(  # noqa: PLR0913 - each is one thing that a port has
        self,
        adapter: Adapter,
        *,
        session_limits: SessionLimits,
        connection_limits: ConnectionLimits,
        budget: Budget,
        advertised: tuple[str, int] = ("", 0),
        tls: ssl.SSLContext | None = None,
        quotas: Quotas | None = None,
        gatekeeper: AccessGate | None = None,
        session: Callable[..., Session] = Session,
        fair_turns: FairScheduler | None = None,
    ) -> None:
        if fair_turns is not None:
            self.fair_turns = fair_turns
        self.adapter = adapter
        self._session = session
        self._session_limits = session_limits
        self._connection_limits = connection_limits
        self._budget = budget
        self._advertised = advertised
        self.tls = tls
        self._quotas = quotas
        self._gatekeeper = gatekeeper
        self._servers: list[asyncio.Server] = []
        self._sessions: set[Session] = set()
        connection_limits.crowds.append(self._sessions)
        self._drained: asyncio.Event | None = None
        self.host = ""
        self.port = 0
        self.accepted = 0
        self.cut_off = 0
        self.turned_away = 0

    @property
    def sessions(self) -> set[Session]:
        return self._sessions

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.adapter.dialect}{'+tls' if self.tls else ''}://{host}:{self.port}"

    @property
    def is_serving(self) -> bool:
        return bool(self._servers) and all(server.is_serving() for server in self._servers)

    async def start(self, host: str, port: int, bound: Sequence[socket.socket] = ()) -> None:
        """Serve a port; `bound`: its sockets, if it is already bound."""
        loop = asyncio.get_running_loop()
        for each in bound or listen(host, port, f"listener {self.adapter.dialect}"):
            server = await loop.create_server(
                self._make_session,
                sock=each,
                ssl=self.tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX if self.tls else None,
                ssl_shutdown_timeout=FAREWELL_SECONDS_MAX if self.tls else None,
            )
            self._servers.append(server)
        self.host = host
        self.port = self._servers[0].sockets[0].getsockname()[1]

    def _make_session(self) -> Session:
        return self._session(self.adapter, self, self._session_limits, self._budget, self._quotas, self._gatekeeper)

    async def adopt(self, connected: socket.socket) -> None:
        """Serve a connection that was accepted elsewhere, and from which nothing was read."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_session,
                connected,
                ssl=self.tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX if self.tls else None,
                ssl_shutdown_timeout=FAREWELL_SECONDS_MAX if self.tls else None,
            )
        except OSError as error:  # includes ssl's errors
            log.warning("%s: a connection is closed: %s", self.adapter.dialect, error)
            connected.close()

    # -- account ---------------------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        transport = session.outbox.transport
        assert transport is not None
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A stream may be silent for days: only keepalive then detects that its client has disconnected.
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        session.number = next(_numbers)
        self._sessions.add(session)
        self.accepted += 1
        if not self._connection_limits.enter(session.host, asyncio.get_running_loop().time()):
            self.turned_away += 1
            log.warning("%s: too many connections, %s is turned away", self.adapter.dialect, session.peer)
            session.abort()

    def closed(self, session: Session) -> None:
        if session in self._sessions:
            self._sessions.discard(session)
            self.counters.ended(session.bytes_in, session.outbox.bytes_out)
            self._connection_limits.leave(session.host)
            if not self._sessions and self._drained is not None:
                self._drained.set()

    def address_for(self, session: Session) -> tuple[str, int]:
        name = session.outbox.transport.get_extra_info("sockname") if session.outbox.transport is not None else None
        host, port = self._advertised
        return host or (name[0] if name else "127.0.0.1"), port or self.port

    async def sweep(self) -> None:
        """Close overdue connections."""
        self._detect_disconnected_clients()
        now = asyncio.get_running_loop().time()
        for session in list(self._sessions):
            why = session.overdue(now)
            if why is not None:
                self.cut_off += 1
                log.info("closing %s %s: %s", self.adapter.dialect, session.peer, why)
                session.abort()

    def _detect_disconnected_clients(self) -> None:
        """Poll sockets that are not read: the event loop does not report their disconnect."""
        unread = {number: each for each in self._sessions if (number := each.unread_socket) is not None}
        poll = select.poll()
        for number in unread:
            poll.register(number, select.POLLRDHUP)
        for number, event in poll.poll(0) if unread else ():
            unread[number].client_disconnected(is_reset=event != select.POLLRDHUP)

    async def stop(self, drain_seconds: float) -> None:
        """Stop accepting, drain requests for at most `drain_seconds`, then close all connections."""
        for server in self._servers:
            server.close()
        for session in list(self._sessions):
            session.drain()
        if self._sessions:
            self._drained = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), drain_seconds)
        for session in list(self._sessions):
            session.abort()
