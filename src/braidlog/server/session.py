"""One connection: bytes in, requests served, answers out.

Knows: how requests are read, who the client is, when a connection has to end. Refuses to know: any dialect, any service.
Invariants: at most `in_flight_max` requests of a connection are under way, and it is not read from meanwhile. Answers and their
order are in `session_turns.py`, what is sent in `session_output.py`; they are base classes and not parts, because a small request
passes all three, and a call between them would be paid by each.
"""

import asyncio
import logging
from functools import cached_property
from typing import Any, cast

from braidlog.adapters.contract import Adapter
from braidlog.broker.access.authenticate import Proof
from braidlog.broker.access.authorize import ANONYMOUS
from braidlog.broker.quotas import Direction, Quotas
from braidlog.server.admission import Admission, certified_name
from braidlog.server.budget import Budget
from braidlog.server.coroutines import start
from braidlog.server.fair_turns import SLICE_SECONDS, FairTurns
from braidlog.server.gatekeeper import Gatekeeper
from braidlog.server.output import Outbox
from braidlog.server.request_counters import RequestCounters
from braidlog.server.session_limits import SessionLimits
from braidlog.server.session_turns import FEW_WAITING, SessionTurns, Turn
from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.preamble import Introduction

log = logging.getLogger("braidlog.session")

_WRITE_BUFFER_BYTES = 1024 * 1024
_FLUSH_BYTES = 256 * 1024


class Session(SessionTurns):
    """The server's side of one connection, driven by the loop."""

    def __init__(
        self,
        adapter: Adapter,
        owner: "SessionOwner",
        limits: SessionLimits,
        budget: Budget,
        quotas: Quotas | None = None,
        gatekeeper: Gatekeeper | None = None,
    ) -> None:
        super().__init__(adapter, limits, budget, quotas, owner.counters, owner.fair_turns)
        self._gatekeeper = gatekeeper
        self._admission: Admission | None = None
        self._owner = owner
        self._has_more = False
        self._read_before: Any = None
        self._is_tls = False
        self._served_until = 0
        """So many requests are served although it is over its quota: the one that went over is read to its end, and told."""
        self._reading = True
        self._partial_since: float | None = None
        self._last_heard = self.opened_at = self._loop.time()
        self.number = 0
        """Among all connections of the node, given by its listener."""
        self.bytes_in = 0

    # -- the loop calls --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not of asyncio's class
        self._transport.set_write_buffer_limits(high=min(_WRITE_BUFFER_BYTES, self._limits.output_bytes_max))
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        self.principal = certified_name(transport.get_extra_info("peercert")) or ANONYMOUS
        self._owner.opened(self)
        if self._gatekeeper is not None:
            self._enter(self._gatekeeper)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended changes nothing
        self._closing = True
        self._transport = None
        if self._admission is not None:
            self._admission.leave()
            self._admission = (
                None  # it knows this session: together they would keep what was received until garbage is collected
            )
        if self._throttle is not None:
            self._throttle.cancel()
        self._forget_turns()
        self._outbox = Outbox()
        self._release_writers()
        self._budget.forget(self)
        self._owner.closed(self)

    def eof_received(self) -> bool:
        """The client sends no more, but may still read: what it asked is answered, then the connection ends."""
        self.close()
        return not self._is_tls  # TLS knows no half of a connection

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._last_heard = self._loop.time()
        self.bytes_in += len(data)
        if not self._quotas.is_unlimited:
            if self._throttle is None:
                self._served_until = self.requests + 1
            self._charge(Direction.APPEND, len(data))
        if self._admission is not None and self._admission.is_open:
            self._meet(self._admission, data)
            return
        try:
            self.connection.receive(data)
        except Exception as error:  # noqa: BLE001 - we are wrong, and it is logged as such
            self._fail("receive", error)
            return
        self._serve()

    def _go_on(self) -> None:
        """We did not read for a while: a frame that was cut by that gets its time anew."""
        if self._partial_since is not None:
            self._partial_since = self._loop.time()
        self._serve()

    # -- reading ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Take every request that is whole, start each, send what is answered: one write for all of them."""
        if self._busy:
            return
        if self._quotas.counts_time:
            self._timed(self._serve_now)
        else:
            self._serve_now()

    def _serve_now(self) -> None:
        self._busy = True
        try:
            # Sending makes room: requests that were left for want of it must not wait for the client to send more.
            while not self._take_requests() and self._flush() and self._has_room():
                pass
        except Exception as error:  # noqa: BLE001 - we are wrong, and it is logged as such
            self._fail("serve", error)
            return
        finally:
            self._busy = False
        self._flush()
        if self._some_held_back:
            self._let_held_back_go()
        self._regulate()
        if self._partial_since is not None or self._is_to_be_noted:
            self._note_held()

    def _take_requests(self) -> bool:
        """Start what is whole; False if there was no room for all of it."""
        self._has_more = False
        first = self.requests
        until = self.requests + self._fair_turns.slice_requests
        clock = self._fair_turns.clock
        deadline = clock() + SLICE_SECONDS
        while not self._closing:
            if not self._has_room():
                return False
            if self.requests >= until or (self.requests != first and clock() >= deadline):
                self._has_more = True
                self._wait_for_turn()
                return True
            event, self._read_before = self._read_before, None
            if event is None:
                event = self.connection.next_event()
                if event is NEED_DATA:
                    self._note_partial()
                    return True
                if self._partial_since is not None:
                    self._partial_since = None
                    if clock() >= deadline:  # what came in several pieces may be large
                        self._serve_later(event)
                        return True
            self.requests += 1
            if isinstance(event, Refused):
                self._refuse(event)
            else:
                self._begin(event)
            if self._outbox.held_bytes >= _FLUSH_BYTES:
                self._flush()
        return True

    def _serve_later(self, event: Any) -> None:  # noqa: ANN401
        """To read it took a turn of its own; to serve it may take another. Nothing is read behind it until then."""
        self._read_before = event
        self._has_more = True
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        """There may be more to serve: after the others."""
        if not self._pump_due:
            self._pump_due = True
            self._fair_turns.wait(self, self._pump)

    def _note_partial(self) -> None:
        """The time counts from the frame's first byte: trickling more of it does not buy more time."""
        if self.connection.buffered_bytes == 0:
            self._partial_since = None
        elif self._partial_since is None:
            self._partial_since = self._last_heard

    def _has_room(self) -> bool:
        if self._blocked_since is not None or self._others_wait:
            return False
        if self._throttle is not None and self.requests >= self._served_until:
            return False
        if self._admission is not None and self._admission.is_proving:
            return False
        under_way = self._turns if self._is_ordered else self._under_way
        if under_way or self._beside or self._outbox.held_bytes:
            waiting = len(under_way) + len(self._beside)
            if waiting >= self._limits.in_flight_max or (waiting >= FEW_WAITING and self._budget.is_short):
                return False
            if self._outbox.held_bytes >= self._limits.output_bytes_max:
                return False
        return not (self._budget.is_full and self._must_wait())

    def _regulate(self) -> None:
        """Read only while there is room for what may come."""
        transport = self._transport
        if transport is None or self._closing:
            return
        wanted = not self._has_more and self._has_room()
        if wanted is self._reading:
            return
        self._reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # -- who it is -------------------------------------------------------------------------------------------

    def _enter(self, gatekeeper: Gatekeeper) -> None:
        self._admission = Admission(gatekeeper, self.connection, self.host, self._evict)
        if gatekeeper.required and self.principal == ANONYMOUS:
            self._admission.enter(self._loop.time())

    def _evict(self) -> None:
        log.warning("%s: too many unauthenticated connections, %s is cut off", self._adapter.dialect, self.peer)
        self.abort()

    def _meet(self, admission: Admission, data: bytes) -> None:
        """The first bytes: an introduction, or the dialect's own."""
        event = admission.meet(data)
        if event is NEED_DATA:
            self._partial_since = self._last_heard if self._partial_since is None else self._partial_since
            return
        self._partial_since = None
        if isinstance(event, Refused):
            self.requests += 1
            self._refuse(self.connection.turn_away(str(event.error)))
            return
        if isinstance(event, Introduction):
            self._introduce(event)
        self._serve()

    def _introduce(self, introduction: Introduction) -> None:
        """Nothing is answered to who is right; who is wrong is told so by the dialect's own error."""
        self.requests += 1
        turn = Turn(introduction)
        self._under_way.add(turn)

        def done(proved: Any, error: BaseException | None) -> None:  # noqa: ANN401
            self._under_way.discard(turn)
            turn.running = None
            if error is not None:
                self._fail("introduction", error)
            elif proved:
                self.principal = introduction.principal
            elif self._transport is not None:
                self._refuse(self.connection.turn_away("authentication failed"))
            self._pump_soon()

        turn.running = start(self.prove(introduction.principal, introduction.token), done)

    async def prove(self, principal: str, token: bytes) -> bool:
        """See `adapters/contract.py`."""
        return self._admission is not None and self._admit(proved=await self._admission.prove(principal, token))

    async def judge(self, holds: Proof) -> bool:
        """See `adapters/contract.py`."""
        return self._admission is not None and self._admit(proved=await self._admission.judge(holds))

    def _admit(self, *, proved: bool) -> bool:
        if not proved:
            log.warning("%s %s: authentication failed", self._adapter.dialect, self.peer)
            self.close()
        return proved

    # -- being looked at -------------------------------------------------------------------------------------

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def address(self) -> tuple[str, int]:
        return self._owner.address_for(self)

    @property
    def dialect(self) -> str:
        return self._adapter.dialect

    @property
    def is_tls(self) -> bool:
        return self._is_tls

    @property
    def last_heard(self) -> float:
        return self._last_heard

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way: what comes next is the beginning of a request, and what leaves next its answer."""
        waiting = self._turns or self._under_way or self._beside or self._outbox or self._read_before is not None
        return not (waiting or self.connection.buffered_bytes)

    # -- ending ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """No more requests; the connection ends when what was asked is answered."""
        self._closing = True
        if self._transport is not None and self._reading:
            self._reading = False
            self._transport.pause_reading()
        self._loop.call_soon(self._flush)

    def overdue(self, now: float) -> str | None:
        """Why this connection should be cut off, if it should: it keeps something waiting for too long."""
        late = self._limits.overdue(
            now,
            blocked_since=self._blocked_since,
            partial_since=self._partial_since if self._reading else None,  # what we do not read cannot come to an end
            partial_bytes=self.connection.buffered_bytes,
        )
        if late is not None:
            return late
        if self._admission is not None and self._admission.is_overdue(now, self.requests):
            return "not authenticated in time"
        quiet = not self._turns and not self._under_way and not self._beside
        if quiet and now - self._last_heard > self._limits.idle_seconds_max:
            return f"idle for {self._limits.idle_seconds_max:g} s"
        return None


class SessionOwner:
    """Who keeps account of sessions: the listener."""

    @cached_property
    def counters(self) -> RequestCounters:
        """What its sessions count together."""
        return RequestCounters()

    @cached_property
    def fair_turns(self) -> FairTurns:
        """Where its sessions wait for the others."""
        return FairTurns()

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session) -> None: ...

    def address_for(self, session: Session) -> tuple[str, int]:
        raise NotImplementedError
