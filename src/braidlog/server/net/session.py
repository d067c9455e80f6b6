"""The server's side of one connection: reads requests, serves them, sends their answers.

Its parts (`pending_requests.py`, `send_queue.py`, `client_quota.py`, `connection_activity.py`) hold no reference back
to it, `admission.py` only while connected: a cycle would keep a closed session until garbage collection.
Invariants: at most `in_flight_max` requests are in progress; at the limit nothing is read. Ordered dialects answer in
request order. Small answers of one read leave in one write. Unsent bytes are bounded: a client that does not read is
closed. An error here ends this connection only. Does not handle: dialects, services.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from types import CoroutineType, NoneType
from typing import Any, cast

from braidlog.adapters.contract import Adapter, Relayed, Stream
from braidlog.model.errors import BrokerError, ProtocolError, StorageFault
from braidlog.security.authentication import NOT_PROVED, Proof
from braidlog.security.authorization import ANONYMOUS
from braidlog.security.quotas import Direction, Quotas
from braidlog.server.net.admission import Admission, certified_principal
from braidlog.server.net.client_quota import ClientQuota
from braidlog.server.net.connection_activity import Activity
from braidlog.server.net.connection_limits import SessionLimits
from braidlog.server.net.memory_budget import SMALL_BYTES, Budget
from braidlog.server.net.pending_requests import FEW_WAITING, PENDING, WAITING_BYTES, PendingRequests, Turn
from braidlog.server.net.scheduler import SLICE_SECONDS, UNKNOWN, Running, next_turn, start, step
from braidlog.server.net.send_queue import TOGETHER_BYTES, SendQueue
from braidlog.server.net.session_owner import SAMPLED, SessionOwner
from braidlog.server.net.unauthenticated_limits import AccessGate
from braidlog.wire.contract import NEED_DATA, Output, Refused, drop_traceback
from braidlog.wire.preamble import Introduction

log = logging.getLogger("braidlog.session")

_WRITE_BUFFER_BYTES = 1024 * 1024
_OUTPUT_FACTOR = 4
"""Requests in progress may complete together: a connection ends at this multiple of `output_bytes_max` unsent bytes."""
_FAREWELL_SECONDS_MAX = 0.3
"""How long a recently active client has to read its answers, and to close, when the server stops."""
_NOT_SIMPLE = (CoroutineType, NoneType, Relayed, Stream)
"""Results of a handler that cannot be sent as they are."""


class Session(asyncio.Protocol):
    """Driven by the event loop. It has slots because objects share the keys of at most thirty attributes."""

    __slots__ = (
        "__weakref__",
        "_adapter",
        "_admission",
        "_budget",
        "_busy",
        "_counters",
        "_counts",
        "_fair_turns",
        "_farewell",
        "_gatekeeper",
        "_handle",
        "_has_more",
        "_is_drained",
        "_is_idle",
        "_is_noted",
        "_is_settled",
        "_limits",
        "_lone_request",
        "_loop",
        "_met",
        "_operation",
        "_others_wait",
        "_owner",
        "_partial_since",
        "_pending",
        "_pump_due",
        "_quota",
        "_quotas",
        "_read_before",
        "_reading",
        "_served_until",
        "_speed",
        "_together_bytes",
        "_unsent_bytes_max",
        "_waiting_bytes",
        "activity",
        "bytes_in",
        "client_id",
        "connection",
        "dialect",
        "is_closing",
        "is_forwarded",
        "is_tls",
        "last_words",
        "number",
        "outbox",
        "peer",
        "principal",
        "requests",
    )  # fmt: skip

    def __init__(
        self,
        adapter: Adapter,
        owner: SessionOwner,
        limits: SessionLimits,
        budget: Budget,
        quotas: Quotas | None = None,
        gatekeeper: AccessGate | None = None,
    ) -> None:
        self._adapter = adapter
        self.dialect = adapter.dialect
        self._operation = adapter.operation
        self._handle = adapter.handle
        self._owner = owner
        self._counters = owner.counters
        self._counts = owner.counters.requests
        self._fair_turns = owner.fair_turns
        self._limits = limits
        self._unsent_bytes_max = _OUTPUT_FACTOR * limits.output_bytes_max
        self._together_bytes = min(TOGETHER_BYTES, limits.output_bytes_max)
        self._budget = budget
        self._quotas = quotas or Quotas()
        self._gatekeeper = gatekeeper
        self._loop = asyncio.get_running_loop()
        self.outbox = SendQueue()
        self._pending = PendingRequests(is_ordered=adapter.ordered)
        self._quota = ClientQuota(self._quotas, owner.counters, self._loop)
        self._admission: Admission | None = None
        self._met: Admission | None = None  # the admission, until the first bytes are complete
        self.connection: Any = adapter.open()
        self._lone_request = getattr(self.connection, "single_frame", lambda _: None)
        self._is_idle = False
        """Whether the next request can be served without further checks; methods called from outside reset it."""
        self._busy = self._pump_due = self._has_more = False
        self._is_settled = False
        """Whether the last read brought only requests that left room and limits unchanged."""
        self._is_noted = False
        self._waiting_bytes = 0
        self._others_wait = 0
        self._speed = UNKNOWN
        self._read_before: Any = None
        self._served_until = 0
        """Request count up to which requests are served over quota: the one that exceeded it is read and answered."""
        self._partial_since: float | None = None
        self._reading = True
        self.is_closing = self._is_drained = self.is_tls = False
        self._farewell: asyncio.TimerHandle | None = None
        """Closes the connection after the client's time to read its last answers; set once nothing more is sent."""
        self.activity = Activity(self._loop)
        self.principal = ANONYMOUS
        self.client_id = ""
        self.last_words: Callable[[], bytes] | None = None
        self.is_forwarded = False
        self.peer = "?"
        self.number = 0
        """Unique within the node; assigned by the listener."""
        self.bytes_in = 0
        self.requests = 0

    # -- callbacks of the event loop -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.outbox.connect(  # uvloop's transports are not instances of asyncio's class
            cast("asyncio.Transport", transport), min(_WRITE_BUFFER_BYTES, self._limits.output_bytes_max)
        )
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"
        self.is_tls = transport.get_extra_info("ssl_object") is not None
        principal = certified_principal(transport.get_extra_info("peercert"), self.peer)
        self.principal = principal or ANONYMOUS
        self._owner.opened(self)
        if principal is None:
            self.abort()
        elif self._gatekeeper is not None:
            self._enter(self._gatekeeper)
        self._is_idle = self._is_quiescent()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the cause changes nothing
        self.is_closing = True
        self._is_idle = False
        self.outbox.disconnect()
        if self._admission is not None:
            self._admission.leave()
            self._admission = self._met = None  # it refers to this session: break the cycle
        for timer in (self._quota.timer, self._farewell):
            if timer is not None:
                timer.cancel()
        self._pending.forget()
        self._budget.forget(self)
        self._owner.closed(self)

    def eof_received(self) -> bool:
        """The client sends no more, but may still read: answer its requests, then end the connection."""
        self.close()
        return not self.is_tls and self._farewell is None  # TLS has no half-closed connections

    def pause_writing(self) -> None:
        self.outbox.block(self._loop)
        self._is_idle = False
        self._regulate()

    def resume_writing(self) -> None:
        self.outbox.unblock()
        self.read_on()

    def data_received(self, data: bytes) -> None:
        budget = self._budget
        if self._is_idle and self._quotas.is_unlimited and budget.bytes_held < budget.bytes_max - budget.bytes_kept:
            try:
                request = self._lone_request(data)
                if request is not None:
                    self.activity.last_heard = self._loop.time()
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
        if not self.is_closing:
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        self.activity.last_heard = self._loop.time()
        self.bytes_in += len(data)
        if not self._quotas.is_unlimited:
            if self._quota.timer is None:
                self._served_until = self.requests + 1
            self._quota.charge(self, Direction.APPEND, len(data))
        if self._met is not None:
            self._meet(self._met, data)
            return
        try:
            self.connection.receive(data)
        except Exception as error:  # noqa: BLE001 - we are wrong, and it is logged as such
            self._fail("receive", error)
            return
        self._serve_in_turn()

    def read_on(self) -> None:
        """Resume reading; the time limit of an incomplete frame starts again."""
        if self._partial_since is not None:
            self._partial_since = self._loop.time()
        self._serve()

    def _serve_lone(self, request: Any) -> bool:  # noqa: ANN401
        """Serve the only request of an idle connection; False if it has to wait: then it takes the usual way."""
        self.requests = number = self.requests + 1
        name, counts = self._operation(request), self._counts
        counts[name] = counts.get(name, 0) + 1
        began = 0.0 if number % SAMPLED else monotonic()
        self._busy = True
        error: BaseException | None = None
        try:
            served = self._handle(self, request)
        except Exception as raised:  # noqa: BLE001 - `_begin` handles it
            served, error = None, raised
        if type(served) is CoroutineType:
            serving = served
            ended, served, error = step(serving)
            if not ended:
                self._wait_for(request, began, serving, served)
                return False
        if error is not None or type(served) in _NOT_SIMPLE or not self._is_idle:
            self._begin(request, served, error, began)
            return False
        if began:
            self._counters.took(name, monotonic() - began)
        data = self.connection.respond(request, served)
        outbox = self.outbox
        transport = outbox.transport
        if transport is None:
            return False
        if type(data) is bytes:
            if not outbox.write(transport, data):
                self._note_sent()
        elif type(data) is tuple:
            outbox.send(transport, data)
            self._note_sent()
        else:
            self._make_ready(data)
            self._send_ready(transport)
        return True

    # -- reading -------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Start every complete request, and send the answers in one write."""
        if self._busy:
            return
        if self._quotas.counts_time:
            self._quota.timed(self, self._serve_now)
        else:
            self._serve_now()

    def _serve_in_turn(self) -> None:
        """Serve what was received, or wait for the next turn of the loop if this one is used up."""
        if not self._fair_turns.is_used_up:
            self._serve()
            return
        self._is_idle = False
        self._wait_for_turn()
        self._regulate()
        self._note_held()

    def _serve_now(self) -> None:
        self._busy = True
        self._is_idle = False
        began = (clock := self._fair_turns.clock)()
        try:
            while not self._take_requests() and self._flush() and self._has_room():
                pass  # sending made room: requests left for lack of it must not wait until the client sends more
        except Exception as error:  # noqa: BLE001 - we are wrong, and it is logged as such
            self._fail("serve", error)
            return
        finally:
            self._busy = False
            self._speed = self._fair_turns.served(clock() - began, self._speed)
        self._flush()
        if self._pending.has_held_back:
            self._pending.resume_held_back(self._is_room_for)
        elif self._is_settled and self._reading and self._partial_since is None and not self._is_noted:
            self._is_idle = self._is_quiescent()
            return
        self._regulate()
        if self._partial_since is not None or self._is_to_be_noted:
            self._note_held()
        self._is_idle = self._is_quiescent()

    def _is_quiescent(self) -> bool:
        """Whether nothing is held, awaited or in progress, so that the next request needs no checks."""
        pending, outbox = self._pending, self.outbox
        if (
            pending.line
            or pending.under_way
            or pending.beside
            or self._others_wait
            or self._has_more
            or not self._reading
        ):
            return False
        if outbox.held_bytes or outbox.has_unsent or self._is_noted or outbox.blocked_since is not None:
            return False
        is_between = self._partial_since is None and self._read_before is None and self._met is None
        return is_between and self._quota.timer is None and not self.is_closing

    def _take_requests(self) -> bool:
        """Start complete requests; False if there was no room for all of them."""
        self._has_more = self._is_settled = False
        are_simple = True
        first, clock = self.requests, self._fair_turns.clock
        until = first + self._fair_turns.slice_requests
        deadline = clock() + SLICE_SECONDS
        while not self.is_closing:
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
            if self.outbox.held_bytes >= TOGETHER_BYTES:
                self._flush()
        return True

    def _serve_simple(self, until: int, deadline: float) -> Any:  # noqa: ANN401
        """Serve requests that complete immediately, as most do. Inlined because each request would pay for a call.

        Returns an event that was read but not served, NEED_DATA if none is left, or None: check room and time first."""
        next_event, handle, respond = self.connection.next_event, self._handle, self.connection.respond
        operation, counts, clock = self._operation, self._counts, self._fair_turns.clock
        is_simple = self._quotas.is_unlimited and self._quota.timer is None and not self._pending.line
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
            began = 0.0 if number % SAMPLED else monotonic()  # the loop's time does not advance within a turn
            try:
                served, error = handle(self, event), None
            except Exception as raised:  # noqa: BLE001 - `_begin` handles it
                served, error = None, raised
            if error is not None or not is_simple or type(served) in _NOT_SIMPLE:
                self.outbox.add_pieces(answers, size)
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
                self.outbox.add_pieces(answers, size)
                self._make_ready(data)
                return None
            event = None
            if number >= until or self.is_closing or size >= self._together_bytes or clock() >= deadline:
                break
        self.outbox.add_pieces(answers, size)
        return event

    def _take_other(self, event: Any, deadline: float) -> bool:  # noqa: ANN401
        """Handle a refusal, or a request that came in several pieces; False if nothing more is served now."""
        if self._partial_since is not None:
            self._partial_since = None
            if self._fair_turns.clock() >= deadline and not isinstance(event, Refused):
                # Reading it took a whole turn; serving it may take another. Nothing after it is read until then.
                self._read_before = event
                self._wait_for_turn()
                return False
        if isinstance(event, Refused):
            self.requests += 1
            self._refuse(event)
        else:
            self._read_before = event
        return True

    def _note_partial(self) -> None:
        """Note when the incomplete frame began: more bytes do not restart its time limit."""
        if self.connection.buffered_bytes == 0:
            self._partial_since = None
        elif self._partial_since is None:
            self._partial_since = self.activity.last_heard

    def _has_room(self) -> bool:
        pending, outbox = self._pending, self.outbox
        if outbox.blocked_since is not None or self._others_wait:
            return False
        if self._quota.timer is not None and self.requests >= self._served_until:
            return False
        if self._admission is not None and self._admission.is_proving:
            return False
        if outbox.held_bytes or pending.line or pending.under_way or pending.beside:
            waiting = len(pending)
            if waiting >= self._limits.in_flight_max or (waiting >= FEW_WAITING and self._budget.is_short):
                return False
            if outbox.held_bytes >= self._limits.output_bytes_max:
                return False
        return not (self._budget.is_full and self._must_wait())

    def _regulate(self) -> None:
        transport = self.outbox.transport
        if transport is None or self.is_closing:
            return
        wanted = not self._has_more and self._has_room()
        if wanted is self._reading:
            return
        self._reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _pump_soon(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _wait_for_turn(self) -> None:
        self._has_more = True
        if not self._pump_due:
            self._pump_due = True
            self._fair_turns.wait(self, self._pump, self._speed)

    def _pump(self) -> None:
        self._pump_due = False
        self._serve()

    def _fail(self, doing: str, error: BaseException) -> None:
        log.error("%s %s: %s failed", self.dialect, self.peer, doing, exc_info=error)
        self.abort()

    # -- answering -----------------------------------------------------------------------------------------------

    def _refuse(self, refused: Refused) -> None:
        turn = Turn()
        self._pending.line.append(turn)
        self._keep(turn, None if refused.answer is None else self.connection.respond(refused, refused.answer))
        if refused.close:
            log.info("%s %s: %s; closing", self.dialect, self.peer, refused.error)
            self.close()

    def _begin(self, request: Any, served: Any, error: BaseException | None, began: float) -> None:  # noqa: ANN401
        """Continue a request that waits, failed, or has predecessors. `served`: its answer, or a coroutine for it."""
        if type(served) is CoroutineType:
            ended, value, error = step(served)
            if not ended:
                self._wait_for(request, began, served, value)
                return
            served = value
        if began:
            self._counters.took(self._operation(request), monotonic() - began)
        if error is None and not self._pending.line and type(served) is not Stream:
            self._answer_now(request, served)
        else:
            turn = Turn(request)
            self._pending.queue(turn)
            self._answered(turn, request, served, error)

    def _wait_for(self, request: Any, began: float, coroutine: Coroutine[Any, Any, Any], waiting: Any) -> None:  # noqa: ANN401
        turn = Turn(request, began)
        self._pending.add(turn)

        def done(answer: Any, error: BaseException | None) -> None:  # noqa: ANN401
            self._answered(turn, turn.request, answer, error)

        turn.running = Running(coroutine, done, lambda: self._may_resume(turn), waiting, self._go)

    def _go(self, resume: Callable[[], None], is_poll: bool) -> None:  # noqa: FBT001 - as `Go` is called
        work = partial(self._quota.timed, self, resume) if self._quotas.counts_time else resume
        self._fair_turns.go_on(self, work, is_poll=is_poll)

    def _answer_now(self, request: Any, answer: Any) -> None:  # noqa: ANN401
        if answer is None or self.outbox.transport is None:
            return
        try:
            data = self._in_bytes(request, answer)
        except Exception as fault:  # noqa: BLE001 - we are wrong, and it is logged as such
            self._fail(type(request).__name__, fault)
            return
        self._make_ready(data)

    def _make_ready(self, data: Output) -> None:
        self.outbox.add(data)
        self.outbox.hold(data)

    def _may_resume(self, turn: Turn) -> bool:
        """Whether a request that waited for data may read it now; without room for its answer it is held back."""
        turn.is_held_back = not self._is_room_for(turn)
        self._pending.has_held_back |= turn.is_held_back
        return not turn.is_held_back

    def _is_room_for(self, turn: Turn) -> bool:
        if self.outbox.blocked_since is not None:
            return False
        # The first in line has room regardless of the bytes held: all of them leave after it.
        if not self._pending.is_first(turn) and self.outbox.held_bytes >= self._limits.output_bytes_max:
            return False
        return not self._must_wait()

    def _answered(self, turn: Turn, request: Any, answer: Any, error: BaseException | None) -> None:  # noqa: ANN401
        self._ended(turn, request)
        if error is not None and not isinstance(error, BrokerError | StorageFault | ProtocolError):
            self._fail(type(request).__name__, error)
            return
        drop_traceback(error)
        if isinstance(error, StorageFault):
            log.error("%s: %s", error.place or self.dialect, error)
        if self.outbox.transport is None:
            return
        try:
            if error is not None:
                answer = self._adapter.failure(request, error)
            data = None if answer is None or isinstance(answer, Stream) else self._in_bytes(request, answer)
        except Exception as fault:  # noqa: BLE001 - we are wrong, and it is logged as such
            self._fail(type(request).__name__, fault)
            return
        if isinstance(answer, Stream):
            turn.answer = answer
            if not self._pending.is_ordered:
                self._open_stream(turn)
        else:
            self._keep(turn, data)
        if self._busy:
            return
        if self._pending.under_way or self._quotas.counts_time:
            self._pump_soon()  # deferred: other answers of this turn (one sync completes many) leave in the same write
        else:
            self._serve()  # no other request of this client waits: deferring would gather no more answers

    def _ended(self, turn: Turn, request: Any) -> None:  # noqa: ANN401
        self._pending.ended(turn)
        if turn.began:
            self._counters.took(self._operation(request), monotonic() - turn.began)
            turn.began = 0.0

    def _in_bytes(self, request: Any, answer: Any) -> Output:  # noqa: ANN401
        if isinstance(answer, Relayed):
            self._quota.charge(self, Direction.FETCH, len(answer.data))
            return answer.data
        if self._quotas.is_unlimited and self._quota.timer is None:
            data: Output = self.connection.respond(request, answer)
            return data
        return self._quota.spelled(self, self._adapter, request, answer)

    def _keep(self, turn: Turn, data: Output | None) -> None:
        turn.answer = data
        if not data:
            return
        if self.outbox.hold(data) > SMALL_BYTES:
            self._note_held()
        if not self._pending.is_ordered and turn not in self._pending.line:
            self.outbox.add(data)

    @contextmanager  # this and the next two: see `adapters/contract.py`
    def alone(self) -> Iterator[None]:
        self._others_wait += 1
        self._is_idle = False
        try:
            yield
        finally:
            self._others_wait -= 1
            self._pump_soon()

    async def on_other_responses(self) -> None:
        await self._pending.others_ended()

    def respond_in_any_order(self) -> None:
        assert not self._pending.line, "answers that wait for their turn"
        self._pending.is_ordered = False

    def _open_stream(self, turn: Turn) -> None:
        """Start a stream whose turn has come, after this turn of the loop has written earlier answers."""
        stream: Stream = turn.answer
        turn.answer = PENDING
        if not (self._pending.is_ordered and stream.holds_turn):
            self._pending.beside.add(turn)
        self._loop.call_soon(self._run_stream, turn, stream)

    def _run_stream(self, turn: Turn, stream: Stream) -> None:
        if self.outbox.transport is None:
            return

        def done(_: Any, error: BaseException | None) -> None:  # noqa: ANN401
            if turn not in self._pending.beside:
                self._answered(turn, turn.request, None, error)
                return
            self._pending.beside.discard(turn)
            if error is not None:
                self._stream_failed(turn, error)

        turn.running = start(stream.run(), done, lambda: self._may_resume(turn), self._go)

    def _stream_failed(self, turn: Turn, error: BaseException) -> None:
        """Close, with the error as the last answer: between other answers the client could not attribute it."""
        self.close()
        last = Turn(turn.request)
        self._pending.queue(last)
        self._answered(last, last.request, None, error)

    async def push(self, data: bytes) -> None:
        """Send a frame outside the order of answers, after ready ones; waits while the client does not read."""
        outbox = self.outbox
        if outbox.is_blocked:
            self.hold(len(data))  # counts as held while it waits
            try:
                await outbox.writable()
            finally:
                self.hold(-len(data))
        self._flush()
        if outbox.transport is not None and not outbox.transport.is_closing():
            outbox.send(outbox.transport, data)
            self._note_sent()
            if not self._quotas.is_unlimited:
                self._quota.charge(self, Direction.FETCH, len(data))
        await next_turn(self._loop)  # a client that reads fast must not starve others

    def _flush(self) -> bool:
        """Send ready answers in order; return whether that made room."""
        turns, outbox = self._pending.line, self.outbox
        under_way = len(turns)
        while turns and turns[0].answer is not PENDING:
            data = turns[0].answer
            if isinstance(data, Stream):
                self._open_stream(turns[0] if data.holds_turn else turns.popleft())
            else:
                turns.popleft()
                if data:
                    outbox.add(data)
        transport = outbox.transport
        if transport is None or transport.is_closing() or self._farewell is not None:
            outbox.clear()
            return False
        has_sent = bool(outbox.ready)
        if has_sent:
            self._send_ready(transport)
        if self.is_closing and not turns and not self._pending.under_way:
            self._end(transport)
        return has_sent or len(turns) < under_way

    def _send_ready(self, transport: asyncio.Transport) -> None:
        try:
            if self.outbox.flush(transport, self._unsent_bytes_max):
                self._note_sent()
                return
            text = "closing %s %s: client does not read responses, more than %d bytes pending"
            log.info(text, self.dialect, self.peer, self._unsent_bytes_max)
        except StorageFault as fault:  # the answer's size is already sent: no error can replace its body
            log.error("%s %s: %s", self.dialect, self.peer, fault)  # noqa: TRY400 - the fault names the place
        self.abort()

    def _note_sent(self) -> None:
        if self.outbox.has_unsent or self._is_noted:
            self._is_idle = False
            self._note_held()

    # -- memory and quotas ---------------------------------------------------------------------------------------

    def held_bytes(self) -> int:
        """Return the bytes in memory of an incomplete frame, of waiting requests, and of answers in line or unsent."""
        waiting = self._waiting_bytes + len(self._pending.under_way) * WAITING_BYTES
        return int(self.connection.buffered_bytes) + waiting + self.outbox.bytes_kept()

    def hold(self, more_bytes: int) -> None:
        """See `adapters/contract.py`. Small amounts are reported to the budget together, at the end of a read."""
        self._waiting_bytes += more_bytes
        if self._is_noted or more_bytes > SMALL_BYTES:
            self._note_held()

    def _note_held(self) -> None:
        """Report held bytes to the budget. A closed connection holds none, even while its requests finish."""
        if self.outbox.transport is not None:
            held = self.held_bytes()
            self._is_noted = held > SMALL_BYTES
            self._budget.note(self, held)

    @property
    def _is_to_be_noted(self) -> bool:
        """Whether the budget needs a report: this connection holds more than a little, or did at the last one."""
        has_more = self.outbox.held_bytes or self._waiting_bytes or len(self._pending.under_way) > FEW_WAITING
        return bool(self._is_noted or has_more)

    def _must_wait(self) -> bool:
        """Whether the node's memory budget is full; then the budget calls `room_again` later."""
        if not self._budget.is_full:
            return False
        if self.outbox.transport is not None:
            self._budget.wait(self)
        return self._budget.is_full

    def room_again(self) -> None:
        """The budget has room: resume, but not on the stack of its caller."""
        self._loop.call_soon(self.read_on)

    def throttled(self) -> None:
        self._is_idle = False
        self._regulate()

    # -- authentication ------------------------------------------------------------------------------------------

    def _enter(self, gatekeeper: AccessGate) -> None:
        self._admission = self._met = Admission(gatekeeper, self)
        if gatekeeper.required and self.principal == ANONYMOUS:
            self._admission.enter(self._loop.time())

    def _meet(self, admission: Admission, data: bytes) -> None:
        event = admission.meet(data)
        if event is NEED_DATA:
            self._partial_since = self.activity.last_heard if self._partial_since is None else self._partial_since
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
        """Check an introduction. Success has no answer; a failure is answered with the dialect's own error."""
        self.requests += 1
        turn = Turn(introduction)
        self._pending.under_way.add(turn)

        def done(proved: Any, error: BaseException | None) -> None:  # noqa: ANN401
            self._pending.under_way.discard(turn)
            turn.running = None
            if error is not None:
                self._fail("introduction", error)
            elif proved:
                self.principal = introduction.principal
            elif self.outbox.transport is not None:
                self._refuse(self.connection.turn_away(NOT_PROVED))
            self._pump_soon()

        turn.running = start(self.prove(introduction.principal, introduction.token), done)

    async def prove(self, principal: str, token: bytes) -> bool:  # as `verify_proof`: see `adapters/contract.py`
        return self._admission is not None and await self._admission.prove(principal, token)

    async def verify_proof(self, holds: Proof) -> bool:
        return self._admission is not None and await self._admission.verify_proof(holds)

    @property
    def host(self) -> str:
        return self.peer.rpartition(":")[0] or self.peer

    @property
    def address(self) -> tuple[str, int]:
        return self._owner.address_for(self)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is in progress: the next bytes in begin a request, the next bytes out its answer."""
        waiting = self._pending.are_any or self.outbox.ready or self._read_before is not None
        return not (waiting or self.connection.buffered_bytes)

    @property
    def unread_socket(self) -> int | None:
        """The socket while nothing is read from it: only the kernel then knows whether the client has disconnected."""
        return None if self._reading or self._farewell is not None else self.outbox.descriptor

    @property
    def silent_since(self) -> float | None:
        """Since when this connection is idle or only waits; None while its client is owed an answer."""
        transport = self.outbox.transport
        if transport is None or transport.is_closing():
            return None
        return self.activity.silent_since(self._pending)

    def overdue(self, now: float) -> str | None:
        """Return why this connection should be closed, or None: it exceeds a time limit."""
        self.activity.note_sent(self.outbox.bytes_out, now)
        late = self._limits.overdue(
            now,
            blocked_since=self.outbox.blocked_since,
            partial_since=self._partial_since if self._reading else None,  # an unread frame cannot complete
            partial_bytes=self.connection.buffered_bytes,
        )
        if late is not None:
            return late
        if self._admission is not None and self._admission.is_overdue(now, self.requests):
            return "not authenticated in time"
        return self.activity.overdue(now, self._pending, self._limits.idle_seconds_max)

    # -- ending --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Read no more requests, answer long polls early, and end when every request is answered."""
        self.is_closing = True
        self._is_idle = False
        if not self._is_drained:
            self.activity.note_closing()
        self._pending.run_out_all()
        if self.outbox.transport is not None and self._reading:
            self._reading = False
            self.outbox.transport.pause_reading()
        self._loop.call_soon(self._flush)

    def end_waits(self, is_wanted: Callable[[Any], bool]) -> None:  # see `adapters/contract.py`
        self._pending.run_out(is_wanted)

    def _end(self, transport: asyncio.Transport) -> None:
        """End after the last answer; a client that may still send reads it first: unread bytes cause a reset."""
        if not self._is_drained or self.is_tls or not self.activity.is_recent(_FAREWELL_SECONDS_MAX):
            transport.close()
            return
        self._pending.forget()
        with contextlib.suppress(OSError):  # asyncio's loop raises it if the client has reset the connection
            transport.write_eof()
        transport.resume_reading()
        self._farewell = self._loop.call_later(_FAREWELL_SECONDS_MAX, transport.close)

    def client_disconnected(self, *, is_reset: bool) -> None:
        if is_reset:
            self.abort()
        elif self.silent_since is not None and (self._pending.under_way or self._pending.beside) and not self._has_more:
            self.close()

    def give_way(self) -> None:
        log.info("closing %s %s: idle, connection limit reached", self.dialect, self.peer)
        self.abort()

    def drain(self) -> None:
        """The server stops: answer requests in progress, long polls before them early; drop waits and what follows."""
        self._is_drained = not self.is_closing
        self._pending.forget_waits()
        if self.last_words is not None:
            self._make_ready(self.last_words())
        self.close()

    def abort(self) -> None:
        self.is_closing = True
        self._is_idle = False
        if self.outbox.transport is not None:
            self.outbox.transport.abort()
