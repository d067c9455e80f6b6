"""One connection: bytes in, requests served, answers out.

Knows: how requests are read, who the client is, when a connection has to end. Refuses to know: any dialect, any service.
Invariants: at most `in_flight_max` requests of a connection are under way, and it is not read from meanwhile. Answers and their
order are in `session_turns.py`, what is sent in `session_output.py`; they are base classes and not parts, because a small request
passes all three, and a call between them would be paid by each.
"""

import asyncio
import contextlib
import logging
from time import monotonic
from types import CoroutineType, NoneType
from typing import TYPE_CHECKING, Any, cast

from braidlog.adapters.contract import Adapter, Relayed, Stream
from braidlog.broker.access.authenticate import NOT_PROVED, Proof
from braidlog.broker.access.authorize import ANONYMOUS
from braidlog.broker.quotas import Direction, Quotas
from braidlog.server.admission import Admission, certified_principal
from braidlog.server.budget import Budget
from braidlog.server.connection_limits import SessionLimits
from braidlog.server.gatekeeper import Gatekeeper
from braidlog.server.output import TOGETHER_BYTES, Outbox
from braidlog.server.request_counters import SAMPLED
from braidlog.server.scheduler import SLICE_SECONDS, start, step
from braidlog.server.session_turns import CLOSING_SECONDS_MAX, FEW_WAITING, SessionTurns, Turn
from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.preamble import Introduction

if TYPE_CHECKING:
    from braidlog.server.session_owner import SessionOwner

log = logging.getLogger("braidlog.session")

_WRITE_BUFFER_BYTES = 1024 * 1024
_FAREWELL_SECONDS_MAX = 0.3
"""How long a client that sent something just now has to read its answers, and to close, when the server stops."""
_NOT_SIMPLE = (CoroutineType, NoneType, Relayed, Stream)
"""What a handler gives that is no answer which could leave as it is."""


class Session(SessionTurns):
    """The server's side of one connection, driven by the loop."""

    __slots__ = ("_admission", "_gatekeeper", "_is_settled", "_is_tls", "_lone_request", "_met",
        "_owner", "_partial_since", "_read_before", "_served_until", "_together_bytes",
        "bytes_in", "number")  # fmt: skip

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
        self._met: Admission | None = None
        """The same while the first bytes are still to come."""
        self._owner = owner
        self._lone_request = getattr(self.connection, "lone_request", lambda _: None)
        self._is_tls = False
        self._is_settled = False
        """Whether the last read brought only requests that left room and limits as they were."""
        self._read_before: Any = None
        self._together_bytes = min(TOGETHER_BYTES, limits.output_bytes_max)
        self._served_until = 0
        """So many requests are served although it is over its quota: the one that went over is read to its end, and told."""
        self._partial_since: float | None = None
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
        if not self._is_tls and (sock := transport.get_extra_info("socket")) is not None:
            self._socket = self._transport, sock.fileno()
            self._socket_number = sock.fileno()
        principal = certified_principal(transport.get_extra_info("peercert"), self.peer)
        self.principal = principal or ANONYMOUS
        self._owner.opened(self)
        if principal is None:
            self.abort()
        elif self._gatekeeper is not None:
            self._enter(self._gatekeeper)
        self._is_calm = self._rests()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended changes nothing
        self._closing = True
        self._is_calm = False
        self._transport = self._socket = self._socket_number = None
        if self._admission is not None:
            self._admission.leave()
            # It knows this session: together they would keep what was received until garbage is collected.
            self._admission = self._met = None
        for timer in (self._throttle, self._farewell):
            if timer is not None:
                timer.cancel()
        self._forget_turns()
        self._outbox = Outbox()
        self._release_writers()
        self._budget.forget(self)
        self._owner.closed(self)

    def eof_received(self) -> bool:
        """The client sends no more, but may still read: answer its requests, then end the connection."""
        self.close()
        return not self._is_tls and self._farewell is None  # TLS knows no half of a connection

    def data_received(self, data: bytes) -> None:
        budget = self._budget
        if self._is_calm and self._quotas.is_unlimited and budget.bytes_held < budget.bytes_max - budget.bytes_kept:
            try:
                request = self._lone_request(data)
                if request is not None:
                    self._last_heard = self._loop.time()
                    self.bytes_in += len(data)
                    if not self._serve_lone(request):
                        self._busy = False
                        self._serve()
                    return
            except Exception as error:  # noqa: BLE001 - we are wrong, and it is logged as such
                self._fail("serve", error)
                return
            finally:
                self._busy = False
        if not self._closing:
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        self._last_heard = self._loop.time()
        self.bytes_in += len(data)
        if not self._quotas.is_unlimited:
            if self._throttle is None:
                self._served_until = self.requests + 1
            self._charge(Direction.APPEND, len(data))
        if self._met is not None:
            self._meet(self._met, data)
            return
        try:
            self.connection.receive(data)
        except Exception as error:  # noqa: BLE001 - we are wrong, and it is logged as such
            self._fail("receive", error)
            return
        self._serve_in_turn()

    def _go_on(self) -> None:
        """We did not read for a while: a frame that was cut by that gets its time anew."""
        if self._partial_since is not None:
            self._partial_since = self._loop.time()
        self._serve()

    def _serve_lone(self, request: Any) -> bool:  # noqa: ANN401
        """All that is done for a client that waits for each answer: nothing else is to be done for this connection, and the
        answer is there at once, in memory. False: it turned out otherwise, and goes on as everything else does."""
        self.requests = number = self.requests + 1
        name, counts = self._operation(request), self._counts
        counts[name] = counts.get(name, 0) + 1
        began = 0.0 if number % SAMPLED else monotonic()
        self._busy = True
        error: BaseException | None = None
        try:
            served = self._handle(self, request)
        except Exception as raised:  # noqa: BLE001 - handed on
            served, error = None, raised
        if type(served) is CoroutineType:
            serving = served
            ended, served, error = step(serving)
            if not ended:
                self._wait_for(request, began, serving, served)
                return False
        if error is not None or type(served) in _NOT_SIMPLE or not self._is_calm:
            self._begin(request, served, error, began)
            return False
        if began:
            self._counters.took(name, monotonic() - began)
        data = self.connection.respond(request, served)
        transport = self._transport
        if transport is None:
            return False
        if type(data) is not bytes:
            self._send_lone(transport, data)
            return True
        transport.write(data)
        self.bytes_out += len(data)
        if transport.get_write_buffer_size():
            self._outbox.note_unsent(len(data))
            self._is_calm = False
            self._note_held()
        return True

    # -- reading ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Take every request that is whole, start each, send what is answered: one write for all of them."""
        if self._busy:
            return
        if self._quotas.counts_time:
            self._timed(self._serve_now)
        else:
            self._serve_now()

    def _serve_in_turn(self) -> None:
        """Serve what was received, or wait for a turn of the loop that is not used up."""
        if not self._fair_turns.is_used_up:
            self._serve()
            return
        self._is_calm = False
        self._wait_for_turn()
        self._regulate()
        self._note_held()

    def _serve_now(self) -> None:
        self._busy = True
        self._is_calm = False
        began = (clock := self._fair_turns.clock)()
        try:
            # Sending makes room: requests that were left for want of it must not wait for the client to send more.
            while not self._take_requests() and self._flush() and self._has_room():
                pass
        except Exception as error:  # noqa: BLE001 - we are wrong, and it is logged as such
            self._fail("serve", error)
            return
        finally:
            self._busy = False
            self._speed = self._fair_turns.served(clock() - began, self._speed)
        self._flush()
        if self._some_held_back:
            self._let_held_back_go()
        elif self._is_settled and self._reading and self._partial_since is None and not self._is_noted:
            self._is_calm = self._rests()
            return
        self._regulate()
        if self._partial_since is not None or self._is_to_be_noted:
            self._note_held()
        self._is_calm = self._rests()

    def _rests(self) -> bool:
        """Whether the next request finds nothing that would have to be looked at first: nothing held, awaited or under way."""
        if self._turns or self._under_way or self._beside or self._others_wait or self._has_more or not self._reading:
            return False
        if self._outbox.held_bytes or self._outbox.has_unsent or self._is_noted or self._blocked_since is not None:
            return False
        is_between = self._partial_since is None and self._read_before is None and self._met is None
        return is_between and self._throttle is None and not self._closing

    def _take_requests(self) -> bool:
        """Start what is whole; False if there was no room for all of it."""
        self._has_more = self._is_settled = False
        are_simple = True
        first, clock = self.requests, self._fair_turns.clock
        until = first + self._fair_turns.slice_requests
        deadline = clock() + SLICE_SECONDS
        while not self._closing:
            if not self._has_room():
                return False
            if self.requests != first and (self.requests >= until or clock() >= deadline):
                self._wait_for_turn()
                return True
            event = self._serve_simple(until, deadline)
            if event is NEED_DATA:
                self._note_partial()
                self._is_settled = are_simple
                return True
            are_simple = False
            if event is not None and not self._take_other(event, deadline):
                return True
            if self._outbox.held_bytes >= TOGETHER_BYTES:
                self._flush()
        return True

    def _serve_simple(self, until: int, deadline: float) -> Any:  # noqa: ANN401
        """Serve requests that end at once, as most do: from the first byte to the last in this one place, because a call more
        would be paid by each. They leave room and limits as they are.

        What is read and is not served here is returned (NEED_DATA: there is nothing more). None: one was of another kind and is
        begun, or many bytes are ready, or it is the turn of others: room and time have to be looked at.
        """
        next_event, handle, respond = self.connection.next_event, self._handle, self.connection.respond
        operation, counts, clock = self._operation, self._counts, self._fair_turns.clock
        is_simple = self._quotas.is_unlimited and self._throttle is None and not self._turns
        answers: list[bytes] = []
        size = 0
        event, self._read_before = self._read_before, None
        while True:
            if event is None:
                event = next_event()
                if event is NEED_DATA or self._partial_since is not None or isinstance(event, Refused):
                    break
            self.requests = number = self.requests + 1
            name = operation(event)
            counts[name] = counts.get(name, 0) + 1
            began = 0.0 if number % SAMPLED else monotonic()  # the loop's time stands still during a turn
            try:
                served, error = handle(self, event), None
            except Exception as raised:  # noqa: BLE001 - handed on
                served, error = None, raised
            if error is not None or not is_simple or type(served) in _NOT_SIMPLE:
                self._outbox.add_pieces(answers, size)
                self._begin(event, served, error, began)
                return None
            if began:
                self._counters.took(name, monotonic() - began)
            data = respond(event, served)
            if type(data) is bytes:
                answers.append(data)
                size += len(data)
            elif type(data) is tuple:
                answers += data
                size += sum(map(len, data))
            else:
                self._outbox.add_pieces(answers, size)
                self._make_ready(data)
                return None
            event = None
            if number >= until or self._closing or size >= self._together_bytes or clock() >= deadline:
                break
        self._outbox.add_pieces(answers, size)
        return event

    def _take_other(self, event: Any, deadline: float) -> bool:  # noqa: ANN401
        """A refusal, or what came in several pieces, which may be large; False if nothing more is served now."""
        if self._partial_since is not None:
            self._partial_since = None
            if self._fair_turns.clock() >= deadline and not isinstance(event, Refused):
                self._serve_later(event)
                return False
        if isinstance(event, Refused):
            self.requests += 1
            self._refuse(event)
        else:
            self._read_before = event
        return True

    def _serve_later(self, event: Any) -> None:  # noqa: ANN401
        """To read it took a turn of its own; to serve it may take another. Nothing is read behind it until then."""
        self._read_before = event
        self._wait_for_turn()

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
        self._admission = self._met = Admission(gatekeeper, self.connection, self.host, self._evict)
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
        self._partial_since = self._met = None
        if isinstance(event, Refused):
            self.requests += 1
            self._refuse(self.connection.turn_away(str(event.error)))
            return
        if isinstance(event, Introduction):
            self._introduce(event)
        self._serve_in_turn()

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
                self._refuse(self.connection.turn_away(NOT_PROVED))
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
    def address(self) -> tuple[str, int]:
        return self._owner.address_for(self)

    @property
    def is_tls(self) -> bool:
        return self._is_tls

    @property
    def last_heard(self) -> float:
        return self._last_heard

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way: what comes next is the beginning of a request, and what leaves next its answer."""
        waiting = self._turns or self._under_way or self._beside or self._outbox.ready or self._read_before is not None
        return not (waiting or self.connection.buffered_bytes)

    # -- ending ----------------------------------------------------------------------------------------------

    def _end(self, transport: asyncio.Transport) -> None:
        """All is answered. A client that may be sending when the server stops reads its answers first: a socket that is closed
        with bytes unread resets the connection, and who meets that while it sends loses what it has not read."""
        if not self._is_drained or self._is_tls or self._loop.time() - self._last_heard > _FAREWELL_SECONDS_MAX:
            transport.close()
            return
        self._forget_turns()
        with contextlib.suppress(OSError):  # asyncio's own loop raises it where the client has reset the connection
            transport.write_eof()
        transport.resume_reading()
        self._farewell = self._loop.call_later(_FAREWELL_SECONDS_MAX, transport.close)

    def overdue(self, now: float) -> str | None:
        """Why this connection should be cut off, if it should: it keeps something waiting for too long."""
        self.note_activity(now)
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
        if self._has_closed_too_long(now):
            return f"closing, and not all requests are answered within {CLOSING_SECONDS_MAX:g} s"
        quiet = not self._turns and not self._under_way and not self._beside
        if quiet and now - self._last_heard > self._limits.idle_seconds_max:
            return f"idle for {self._limits.idle_seconds_max:g} s"
        return None
