"""One connection: bytes in, requests served, answers out.

Knows: order, limits, back-pressure. Refuses to know: any dialect, any service.
Invariants: answers of an ordered dialect leave in the order of their requests; at most `in_flight_max` requests of a connection
are under way, and it is not read from meanwhile; what waits to be sent is bounded, and a client that does not take it is cut
off; all answers of one read leave in one write, as long as they are small; whatever goes wrong here ends this connection only.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import cached_property
from time import monotonic
from typing import Any, cast

import msgspec

from braidlog.adapters.contract import Adapter, Stream
from braidlog.broker.access.authenticate import Proof
from braidlog.broker.access.authorize import ANONYMOUS
from braidlog.broker.quotas import Direction, Quotas
from braidlog.model.errors import BrokerError, ProtocolError, StorageFault
from braidlog.server.budget import SMALL_BYTES, Budget
from braidlog.server.doorkeeper import Doorkeeper
from braidlog.server.eager import Abandonable, Running, start, step
from braidlog.server.entrance import Entrance, certified_name
from braidlog.server.output import Outbox
from braidlog.server.tally import SAMPLED, Tally
from braidlog.wire.contract import NEED_DATA, Output, Refused, forget_trace
from braidlog.wire.preamble import Introduction

log = logging.getLogger("braidlog.session")

_PENDING = object()
_WRITE_BUFFER_BYTES = 1024 * 1024
_FLUSH_BYTES = 256 * 1024
_BURST_REQUESTS = 64
"""Served of one connection before the others have their turn."""
_OUTPUT_FACTOR = 4
"""Requests under way may all be answered at once; a client whose buffer holds so many times its limit gets no more."""


class SessionLimits(msgspec.Struct, frozen=True):
    """What one connection may use."""

    in_flight_max: int = 1024
    output_bytes_max: int = 8 * 1024 * 1024
    output_seconds_max: float = 30.0
    frame_seconds_max: float = 30.0
    frame_bytes_per_second_min: int = 100_000
    idle_seconds_max: float = 600.0


class _Turn:
    """A request and, once it is there, its answer."""

    __slots__ = ("answer", "began", "is_held_back", "request", "running")

    def __init__(self, request: Any = None) -> None:  # noqa: ANN401
        self.request = request
        self.answer: Any = _PENDING
        self.is_held_back = False
        self.running: Running | None = None
        self.began = 0.0
        """When, if its time is taken."""


class Session(asyncio.Protocol):
    """The server's side of one connection, driven by the loop."""

    def __init__(
        self,
        adapter: Adapter,
        owner: "SessionOwner",
        limits: SessionLimits,
        budget: Budget,
        quotas: Quotas | None = None,
        doorkeeper: Doorkeeper | None = None,
    ) -> None:
        self._doorkeeper = doorkeeper
        self._entrance: Entrance | None = None
        self._adapter = adapter
        self._operation = adapter.operation
        self._owner = owner
        self._tally = owner.tally
        self._counts = owner.tally.requests
        self._limits = limits
        self._budget = budget
        self._quotas = None if quotas is None or quotas.is_unlimited else quotas
        self._loop = asyncio.get_running_loop()
        self._turns: deque[_Turn] = deque()
        self._under_way: set[_Turn] = set()
        self._beside: set[_Turn] = set()
        self._outbox = Outbox()
        self._some_held_back = False
        self._is_noted = False
        self._is_ordered = adapter.ordered
        self._has_more = False
        self._busy = False
        self._pump_due = False
        self._closing = False
        self._is_tls = False
        self._reading = True
        self._writable: asyncio.Future[None] | None = None
        self._blocked_since: float | None = None
        self._partial_since: float | None = None
        self._throttle: asyncio.TimerHandle | None = None
        self._last_heard = self.opened_at = self._loop.time()
        self._transport: asyncio.Transport | None = None
        self.connection: Any = adapter.open()
        self.principal = ANONYMOUS
        self.last_words: Callable[[], bytes] | None = None
        self.peer = "?"
        self.number = 0
        """Among all connections of the node, given by its listener."""
        self.requests = 0
        self.bytes_in = 0
        self.bytes_out = 0

    # -- the loop calls --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not of asyncio's class
        self._transport.set_write_buffer_limits(high=min(_WRITE_BUFFER_BYTES, self._limits.output_bytes_max))
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        self.principal = certified_name(transport.get_extra_info("peercert")) or ANONYMOUS
        self._owner.opened(self)
        if self._doorkeeper is not None:
            self._enter(self._doorkeeper)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended changes nothing
        self._closing = True
        self._transport = None
        if self._entrance is not None:
            self._entrance.leave()
        if self._throttle is not None:
            self._throttle.cancel()
        for turn in (*self._under_way, *self._turns, *self._beside):
            if turn.running is not None:
                turn.running.cancel()
                turn.running = None  # each knows the other: together they would keep this connection's buffers alive
        self._turns.clear()
        self._under_way.clear()
        self._beside.clear()
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
        if self._quotas is not None:
            self._charge(Direction.APPEND, len(data))
        if self._entrance is not None and self._entrance.is_open:
            self._meet(self._entrance, data)
            return
        try:
            self.connection.receive(data)
        except Exception as error:  # noqa: BLE001 - we are wrong, and it is logged as such
            self._fail("receive", error)
            return
        self._serve()

    def pause_writing(self) -> None:
        self._blocked_since = self._loop.time()
        self._writable = Abandonable(loop=self._loop)
        self._regulate()

    def resume_writing(self) -> None:
        self._blocked_since = None
        self._release_writers()
        self._go_on()

    def _release_writers(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _go_on(self) -> None:
        """We did not read for a while: a frame that was cut by that gets its time anew."""
        if self._partial_since is not None:
            self._partial_since = self._loop.time()
        self._serve()

    # -- serving ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Take every request that is whole, start each, send what is answered: one write for all of them."""
        if self._busy:
            return
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
        if self._partial_since is not None or self._is_noted or self._outbox.held_bytes:
            self._note_held()

    def held_bytes(self) -> int:
        """What this connection keeps in memory: of a frame, of answers in line, of answers that were not taken."""
        return int(self.connection.buffered_bytes) + self._outbox.bytes_kept(self._transport)

    def _note_held(self) -> None:
        """Tell the budget. Whoever is gone holds nothing, whatever is still being finished for it."""
        if self._transport is not None:
            held = self.held_bytes()
            self._is_noted = held > SMALL_BYTES
            self._budget.note(self, held)

    def _take_requests(self) -> bool:
        """Start what is whole; False if there was no room for all of it."""
        self._has_more = False
        until = self.requests + _BURST_REQUESTS
        while not self._closing:
            if not self._has_room():
                return False
            if self.requests >= until:
                self._has_more = True
                self._pump_soon()
                return True
            event = self.connection.next_event()
            if event is NEED_DATA:
                self._note_partial()
                return True
            self._partial_since = None
            self.requests += 1
            if isinstance(event, Refused):
                self._refuse(event)
            else:
                self._begin(event)
            if self._outbox.held_bytes >= _FLUSH_BYTES:
                self._flush()
        return True

    def _note_partial(self) -> None:
        """The time counts from the frame's first byte: trickling more of it does not buy more time."""
        if self.connection.buffered_bytes == 0:
            self._partial_since = None
        elif self._partial_since is None:
            self._partial_since = self._last_heard

    def _has_room(self) -> bool:
        if self._blocked_since is not None or self._throttle is not None:
            return False
        if self._entrance is not None and self._entrance.is_proving:
            return False
        under_way = self._turns if self._is_ordered else self._under_way
        if under_way or self._beside or self._outbox.held_bytes:
            if len(under_way) + len(self._beside) >= self._limits.in_flight_max:
                return False
            if self._outbox.held_bytes >= self._limits.output_bytes_max:
                return False
        return not self._must_wait()

    def _must_wait(self) -> bool:
        """Whether there is no room in the node's memory for anything new; then the budget says when there is again."""
        if not self._budget.is_full:
            return False
        if self._transport is not None:
            self._budget.wait(self)
        return self._budget.is_full

    def room_again(self) -> None:
        """The budget has room: go on, but not on the stack of whoever made it."""
        self._loop.call_soon(self._go_on)

    def _refuse(self, refused: Refused) -> None:
        turn = _Turn()
        self._turns.append(turn)
        self._keep(turn, None if refused.answer is None else self.connection.respond(refused, refused.answer))
        if refused.close:
            log.info("%s %s: %s; closing", self._adapter.dialect, self.peer, refused.error)
            self.close()

    def _begin(self, request: Any) -> None:  # noqa: ANN401
        """Serve a request. Most end at once, and need no place in line unless others wait before them."""
        name = self._operation(request)
        counts = self._counts
        counts[name] = counts.get(name, 0) + 1  # here and not in a method: this is done for every request
        began = 0.0 if self.requests % SAMPLED else monotonic()  # the loop's time stands still during a turn
        coroutine = self._adapter.handle(self, request)
        ended, value, error = step(coroutine)
        if began and ended:
            self._tally.took(name, monotonic() - began)
        if not ended:
            turn = _Turn(request)
            turn.began = began
            self._wait_for(turn, coroutine, value)
        elif error is None and not self._turns and type(value) is not Stream:
            self._answer_now(request, value)
        else:
            turn = _Turn(request)
            if self._is_ordered:
                self._turns.append(turn)
            self._answered(turn, request, value, error)

    def _wait_for(self, turn: _Turn, coroutine: Coroutine[Any, Any, Any], waiting: Any) -> None:  # noqa: ANN401
        self._under_way.add(turn)
        if self._is_ordered:
            self._turns.append(turn)

        def done(answer: Any, error: BaseException | None) -> None:  # noqa: ANN401
            self._answered(turn, turn.request, answer, error)

        turn.running = Running(coroutine, done, lambda: self._may_go_on(turn), waiting)

    def _answer_now(self, request: Any, answer: Any) -> None:  # noqa: ANN401
        if answer is None or self._transport is None:
            return
        try:
            data = self.connection.respond(request, answer)
        except Exception as fault:  # noqa: BLE001 - we are wrong, and it is logged as such
            self._fail(type(request).__name__, fault)
            return
        self._outbox.add(data)
        if self._outbox.hold(data) > SMALL_BYTES:
            self._note_held()

    def _may_go_on(self, turn: _Turn) -> bool:
        """Whether a request that waited for data may now read it: one that has no room for its answer is held back."""
        turn.is_held_back = not self._is_room_for(turn)
        self._some_held_back |= turn.is_held_back
        return not turn.is_held_back

    def _is_room_for(self, turn: _Turn) -> bool:
        if self._blocked_since is not None:
            return False
        # Whoever is first in line goes, however much lies behind: all of that leaves after it.
        is_first = self._is_ordered and bool(self._turns) and self._turns[0] is turn
        if not is_first and self._outbox.held_bytes >= self._limits.output_bytes_max:
            return False
        return not self._must_wait()

    def _let_held_back_go(self) -> None:
        in_line = self._turns if self._is_ordered else self._under_way
        for turn in (*in_line, *self._beside):
            if turn.is_held_back and turn.running is not None:
                if not self._is_room_for(turn):
                    return
                turn.is_held_back = False
                turn.running.resume()
        self._some_held_back = False

    def _answered(self, turn: _Turn, request: Any, answer: Any, error: BaseException | None) -> None:  # noqa: ANN401
        turn.running = None
        self._under_way.discard(turn)
        if turn.began:
            self._tally.took(self._operation(request), monotonic() - turn.began)
            turn.began = 0.0
        if error is not None and not isinstance(error, BrokerError | StorageFault | ProtocolError):
            self._fail(type(request).__name__, error)
            return
        forget_trace(error)
        if isinstance(error, StorageFault):
            log.error("%s %s: %s", self._adapter.dialect, self.peer, error)
        if self._transport is None:
            return
        try:
            if error is not None:
                answer = self._adapter.failure(request, error)
            data = None if answer is None or isinstance(answer, Stream) else self.connection.respond(request, answer)
        except Exception as fault:  # noqa: BLE001 - we are wrong, and it is logged as such
            self._fail(type(request).__name__, fault)
            return
        if isinstance(answer, Stream):
            turn.answer = answer
            if not self._is_ordered:
                self._open_stream(turn)
        else:
            self._keep(turn, data)
        if not self._busy:
            # Not at once: whatever else this turn of the loop answers (one sync answers many) leaves in the same write.
            self._pump_soon()

    def _keep(self, turn: _Turn, data: Output | None) -> None:
        """Put an answer where it leaves in its turn."""
        turn.answer = data
        if not data:
            return
        if self._outbox.hold(data) > SMALL_BYTES:
            self._note_held()
        if not self._is_ordered and turn not in self._turns:
            self._outbox.add(data)

    def _pump_soon(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        self._serve()

    def _fail(self, doing: str, error: BaseException) -> None:
        """We are wrong, not the client: say so in the log, end this connection, keep the others."""
        log.error("%s %s: %s failed", self._adapter.dialect, self.peer, doing, exc_info=error)
        self.abort()

    # -- streams ---------------------------------------------------------------------------------------------

    def _open_stream(self, turn: _Turn) -> None:
        """Its turn has come. It begins once this turn of the loop has written what was answered before."""
        stream: Stream = turn.answer
        turn.answer = _PENDING
        if not (self._is_ordered and stream.holds_turn):
            self._beside.add(turn)
        self._loop.call_soon(self._run_stream, turn, stream)

    def _run_stream(self, turn: _Turn, stream: Stream) -> None:
        if self._transport is None:
            return

        def done(_: Any, error: BaseException | None) -> None:  # noqa: ANN401
            if turn not in self._beside:
                self._answered(turn, turn.request, None, error)
                return
            self._beside.discard(turn)
            if error is not None:
                self._stream_failed(turn, error)

        turn.running = start(stream.run(), done, lambda: self._may_go_on(turn))

    def _stream_failed(self, turn: _Turn, error: BaseException) -> None:
        """Between answers to other requests nobody could tell whose error it is: it is the last thing said."""
        self.close()
        last = _Turn(turn.request)
        if self._is_ordered:
            self._turns.append(last)
        self._answered(last, last.request, None, error)

    # -- sending ---------------------------------------------------------------------------------------------

    def _flush(self) -> bool:
        """Send what is ready, in order; whether that made room."""
        turns = self._turns
        under_way = len(turns)
        while turns and turns[0].answer is not _PENDING:
            data = turns[0].answer
            if isinstance(data, Stream):
                self._open_stream(turns[0] if data.holds_turn else turns.popleft())
            else:
                turns.popleft()
                if data:
                    self._outbox.add(data)
        transport = self._transport
        if transport is None or transport.is_closing():
            self._outbox.clear()
            return False
        has_sent = bool(self._outbox)
        if has_sent:
            self._send_ready(transport)
        if self._closing and not turns and not self._under_way:
            transport.close()
        return has_sent or len(turns) < under_way

    def _send_ready(self, transport: asyncio.Transport) -> None:
        unsent_bytes_max = _OUTPUT_FACTOR * self._limits.output_bytes_max
        try:
            for data in self._outbox.take():
                if self._outbox.has_unsent and transport.get_write_buffer_size() > unsent_bytes_max:
                    log.info("%s %s is cut off: it does not take its answers", self._adapter.dialect, self.peer)
                    self.abort()
                    return
                self._send(transport, data)
        except StorageFault as fault:
            # Its size is announced already: nothing else could be said in its place.
            log.error("%s %s: %s", self._adapter.dialect, self.peer, fault)  # noqa: TRY400 - the fault says where
            self.abort()

    def _send(self, transport: asyncio.Transport, data: bytes) -> None:
        self.bytes_out += len(data)
        self._outbox.send(transport, data)
        if self._quotas is not None:
            self._charge(Direction.FETCH, len(data))
        if self._outbox.has_unsent or self._is_noted:
            self._note_held()

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

    async def push(self, data: bytes) -> None:
        """Send a frame outside the order of answers, after those that are ready, waiting while the client takes none."""
        while self._writable is not None:
            await self._writable
        self._flush()
        if self._transport is not None and not self._transport.is_closing():
            self._send(self._transport, data)
        # However fast this client takes what is pushed, the others are served in between.
        breath: Abandonable[None] = Abandonable(loop=self._loop)
        self._loop.call_soon(_breathe, breath)
        await breath

    # -- who it is -------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        return self.peer.rpartition(":")[0] or self.peer

    def _enter(self, doorkeeper: Doorkeeper) -> None:
        self._entrance = Entrance(doorkeeper, self.connection, self.host)
        is_stranger = doorkeeper.required and self.principal == ANONYMOUS
        if is_stranger and not self._entrance.enter(self._loop.time()):
            log.warning("%s: too many strangers, %s is turned away", self._adapter.dialect, self.peer)
            self.abort()

    def _meet(self, entrance: Entrance, data: bytes) -> None:
        """The first bytes: an introduction, or the dialect's own."""
        event = entrance.meet(data)
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
        turn = _Turn(introduction)
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
        return self._entrance is not None and self._admit(proved=await self._entrance.prove(principal, token))

    async def judge(self, holds: Proof) -> bool:
        """See `adapters/contract.py`."""
        return self._entrance is not None and self._admit(proved=await self._entrance.judge(holds))

    def _admit(self, *, proved: bool) -> bool:
        if not proved:
            log.warning("%s %s: authentication failed", self._adapter.dialect, self.peer)
            self.close()
        return proved

    # -- quotas ----------------------------------------------------------------------------------------------

    def _charge(self, direction: Direction, count: int) -> None:
        """Who moved more than its share is not read from for a while."""
        assert self._quotas is not None
        now = self._loop.time()
        seconds = self._quotas.take(self.principal, direction, count, now)
        if seconds <= 0 or self._transport is None:
            return
        if self._throttle is not None:
            if self._throttle.when() >= now + seconds:
                return
            self._throttle.cancel()
        self._tally.throttled(seconds)
        self._throttle = self._loop.call_later(seconds, self._unthrottle)
        self._regulate()

    def _unthrottle(self) -> None:
        self._throttle = None
        self._go_on()

    # -- ending ----------------------------------------------------------------------------------------------

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def address(self) -> tuple[str, int]:
        return self._owner.address_for(self)

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._transport

    # -- being looked at -------------------------------------------------------------------------------------

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
        waiting = self._turns or self._under_way or self._beside or self._outbox
        return not (waiting or self.connection.buffered_bytes)

    def speak_through(self, transport: asyncio.Transport) -> None:
        """Write to this transport from now on: who watches puts one of its own before the socket's, and takes it away again."""
        self._transport = transport

    def close(self) -> None:
        """No more requests; the connection ends when what was asked is answered."""
        self._closing = True
        if self._transport is not None and self._reading:
            self._reading = False
            self._transport.pause_reading()
        self._loop.call_soon(self._flush)

    def drain(self) -> None:
        """The server stops: what is under way is answered. Who only waits is let go, with all that was asked after it."""
        kept = 0
        for turn in self._turns:
            if turn in self._under_way and turn.running is not None and turn.running.is_patient:
                break
            kept += 1
        while len(self._turns) > kept:
            self._turns.pop()
        for turn in list(self._under_way):
            if turn.running is not None and turn.running.is_patient:
                turn.running.cancel()
                self._under_way.discard(turn)
        if self.last_words is not None:
            last = self.last_words()
            self._outbox.hold(last)
            self._outbox.add(last)
        self.close()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def overdue(self, now: float) -> str | None:
        """Why this connection should be cut off, if it should: it keeps something waiting for too long."""
        limits = self._limits
        if self._blocked_since is not None and now - self._blocked_since > limits.output_seconds_max:
            return "it does not take its answers"
        allowed = limits.frame_seconds_max + self.connection.buffered_bytes / limits.frame_bytes_per_second_min
        partial_since = self._partial_since if self._reading else None  # what we do not read cannot come to an end
        if partial_since is not None and now - partial_since > allowed:
            return "its frame does not come to an end"
        if self._entrance is not None and self._entrance.is_overdue(now, self.requests):
            return "it does not say who it is"
        quiet = not self._turns and not self._under_way and not self._beside
        if quiet and now - self._last_heard > limits.idle_seconds_max:
            return "it has been silent for too long"
        return None


def _breathe(breath: "asyncio.Future[None]") -> None:
    if not breath.done():
        breath.set_result(None)


class SessionOwner:
    """Who keeps account of sessions: the listener."""

    @cached_property
    def tally(self) -> Tally:
        """What its sessions count together."""
        return Tally()

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session) -> None: ...

    def address_for(self, session: Session) -> tuple[str, int]:
        raise NotImplementedError
