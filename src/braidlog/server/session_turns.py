"""The requests of a connection that are under way, and their answers: each leaves in its turn.

Knows: order, streams, requests that are held back. Refuses to know: how requests are read, any dialect, any service.
Invariants: answers of an ordered dialect leave in the order of their requests; all answers of one read leave in one write, as
long as they are small; whatever goes wrong here ends this connection only.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from types import CoroutineType
from typing import Any

from braidlog.adapters.contract import Adapter, Relayed, Stream
from braidlog.broker.quotas import Direction, Quotas
from braidlog.model.errors import BrokerError, ProtocolError, StorageFault
from braidlog.server.budget import SMALL_BYTES, Budget
from braidlog.server.connection_limits import SessionLimits
from braidlog.server.output import size_of
from braidlog.server.request_counters import RequestCounters
from braidlog.server.scheduler import UNKNOWN, FairTurns, Running, start, step
from braidlog.server.session_output import SessionOutput
from braidlog.wire.contract import Output, Refused, forget_trace

log = logging.getLogger("braidlog.session")

_PENDING = object()
WAITING_BYTES = 5632
"""What a request takes while it waits, whatever it is: measured with long polls."""
FEW_WAITING = SMALL_BYTES // WAITING_BYTES
"""Nobody counts these; and while memory is short, a connection has no more."""
CLOSING_SECONDS_MAX = 10.0
"""How long a closing connection waits for anything that may be ended: its turn, replicas, another node."""


class Turn:
    """A request and, once it is there, its answer."""

    __slots__ = ("answer", "began", "is_held_back", "request", "running")

    def __init__(self, request: Any = None) -> None:  # noqa: ANN401
        self.request = request
        self.answer: Any = _PENDING
        self.is_held_back = False
        self.running: Running | None = None
        self.began = 0.0
        """When, if its time is taken."""

    @property
    def only_waits(self) -> bool:
        """It has begun, and its client is owed no answer: a long poll, a place in line."""
        return self.running is not None and self.running.may_end and not self.running.is_owed


class SessionTurns(SessionOutput):
    """Requests in, answers out. Whoever inherits reads the requests, and serves what is there (`_serve`)."""

    __slots__ = (
        "_active_at", "_alone", "_beside", "_busy", "_bytes_seen", "_closing_since", "_counts", "_fair_turns", "_farewell",
        "_handle", "_has_more", "_is_drained", "_is_ordered", "_last_heard", "_operation", "_others_wait", "_pump_due",
        "_reading", "_some_held_back", "_speed", "_turns", "_under_way", "opened_at", "requests",
    )  # fmt: skip

    def __init__(
        self,
        adapter: Adapter,
        limits: SessionLimits,
        budget: Budget,
        quotas: Quotas | None,
        counters: RequestCounters,
        fair_turns: FairTurns,
    ) -> None:
        super().__init__(adapter, limits, budget, quotas, counters)
        self._fair_turns = fair_turns
        self._operation = adapter.operation
        self._handle = adapter.handle
        self._counts = counters.requests
        self._turns: deque[Turn] = deque()
        self._under_way: set[Turn] = set()
        self._beside: set[Turn] = set()
        self._some_held_back = False
        self._others_wait = 0
        self._is_ordered = adapter.ordered
        self._busy = False
        self._pump_due = self._has_more = False
        self._speed = UNKNOWN
        self._alone: asyncio.Future[None] | None = None
        self._is_drained = False
        self._farewell: asyncio.TimerHandle | None = None
        """Until when a client may read what it was told last; nothing more is."""
        self._reading = True
        self._last_heard = self._active_at = self.opened_at = self._loop.time()
        self._bytes_seen = 0
        self._closing_since: float | None = None
        self.requests = 0

    def answer_in_any_order(self) -> None:
        """See `adapters/contract.py`."""
        assert not self._turns, "answers that wait for their turn"
        self._is_ordered = False

    def held_bytes(self) -> int:
        """Requests that wait hold something too, all of them: counted here once for all that one read brought."""
        return super().held_bytes() + len(self._under_way) * WAITING_BYTES

    @property
    def _is_to_be_noted(self) -> bool:
        """Whether the budget should hear of this connection: what it has is no trifle, or was none."""
        has_more = self._outbox.held_bytes or self._waiting_bytes or len(self._under_way) > FEW_WAITING
        return bool(self._is_noted or has_more)

    def _serve(self) -> None:
        raise NotImplementedError

    def _end(self, transport: asyncio.Transport) -> None:
        raise NotImplementedError

    def _refuse(self, refused: Refused) -> None:
        turn = Turn()
        self._turns.append(turn)
        self._keep(turn, None if refused.answer is None else self.connection.respond(refused, refused.answer))
        if refused.close:
            log.info("%s %s: %s; closing", self._adapter.dialect, self.peer, refused.error)
            self.close()

    def _begin(self, request: Any, served: Any, error: BaseException | None, began: float) -> None:  # noqa: ANN401
        """Go on with a request that is not as simple as most: it may have to wait, stand behind others, or have failed.

        `served` is its answer, or the coroutine that gives it.
        """
        if type(served) is CoroutineType:
            ended, value, error = step(served)
            if not ended:
                self._wait_for(request, began, served, value)
                return
            served = value
        if began:
            self._counters.took(self._operation(request), monotonic() - began)
        if error is None and not self._turns and type(served) is not Stream:
            self._answer_now(request, served)
        else:
            turn = Turn(request)
            if self._is_ordered:
                self._turns.append(turn)
            self._answered(turn, request, served, error)

    def _wait_for(self, request: Any, began: float, coroutine: Coroutine[Any, Any, Any], waiting: Any) -> None:  # noqa: ANN401
        turn = Turn(request)
        turn.began = began
        self._under_way.add(turn)
        if self._is_ordered:
            self._turns.append(turn)

        def done(answer: Any, error: BaseException | None) -> None:  # noqa: ANN401
            self._answered(turn, turn.request, answer, error)

        turn.running = Running(coroutine, done, lambda: self._may_go_on(turn), waiting, self._go)

    def _go(self, resume: Callable[[], None], is_poll: bool) -> None:  # noqa: FBT001 - as `Go` is called
        work = partial(self._timed, resume) if self._quotas.counts_time else resume
        self._fair_turns.go_on(self, work, is_poll=is_poll)

    def _answer_now(self, request: Any, answer: Any) -> None:  # noqa: ANN401
        if answer is None or self._transport is None:
            return
        try:
            data = self._in_bytes(request, answer)
        except Exception as fault:  # noqa: BLE001 - we are wrong, and it is logged as such
            self._fail(type(request).__name__, fault)
            return
        self._make_ready(data)

    def _make_ready(self, data: Output) -> None:
        """It leaves with this turn of the loop: the budget is told of what is left then."""
        self._outbox.add(data)
        self._outbox.hold(data)

    def _may_go_on(self, turn: Turn) -> bool:
        """Whether a request that waited for data may now read it: one that has no room for its answer is held back."""
        turn.is_held_back = not self._is_room_for(turn)
        self._some_held_back |= turn.is_held_back
        return not turn.is_held_back

    def _is_room_for(self, turn: Turn) -> bool:
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

    def _answered(self, turn: Turn, request: Any, answer: Any, error: BaseException | None) -> None:  # noqa: ANN401
        self._ended(turn, request)
        if error is not None and not isinstance(error, BrokerError | StorageFault | ProtocolError):
            self._fail(type(request).__name__, error)
            return
        forget_trace(error)
        if isinstance(error, StorageFault):
            log.error("%s: %s", error.place or self._adapter.dialect, error)
        if self._transport is None:
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
            if not self._is_ordered:
                self._open_stream(turn)
        else:
            self._keep(turn, data)
        if self._busy:
            return
        if self._under_way or self._quotas.counts_time:
            # Not at once: whatever else this turn of the loop answers (one sync answers many) leaves in the same write.
            self._pump_soon()
        else:
            self._serve()  # nothing else of this client waits: a turn of the loop would bring nothing more

    def _ended(self, turn: Turn, request: Any) -> None:  # noqa: ANN401
        turn.running = None
        self._under_way.discard(turn)
        if self._alone is not None and len(self._under_way) == 1 and not self._alone.done():
            self._alone.set_result(None)
        if turn.began:
            self._counters.took(self._operation(request), monotonic() - turn.began)
            turn.began = 0.0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """See `adapters/contract.py`."""
        self._others_wait += 1
        self._is_calm = False
        try:
            yield
        finally:
            self._others_wait -= 1
            self._pump_soon()

    async def others_answered(self) -> None:
        """See `adapters/contract.py`. Whoever asks is not under way yet: it is when it has to wait."""
        if self._under_way:
            self._alone = self._loop.create_future()
            await self._alone

    def _in_bytes(self, request: Any, answer: Any) -> Output:  # noqa: ANN401
        if not isinstance(answer, Relayed):
            return self._spelled(request, answer)
        self._charge(Direction.FETCH, len(answer.data))
        return answer.data

    def _spelled(self, request: Any, answer: Any) -> Output:  # noqa: ANN401
        """An answer in bytes. One that goes over a quota says itself for how long nothing more is read."""
        data: Output
        if self._throttle is not None:
            data = self.connection.respond(request, self._adapter.throttled(answer, self.throttled_ms))
        else:
            data = self.connection.respond(request, answer)
        if self._quotas.is_unlimited:
            return data
        before = self._throttle
        self._charge(Direction.FETCH, size_of(data))
        if self._throttle is not before:
            told = self._adapter.throttled(answer, self.throttled_ms)
            if told is not answer:
                data = self.connection.respond(request, told)
        return data

    def _keep(self, turn: Turn, data: Output | None) -> None:
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

    def _wait_for_turn(self) -> None:
        """There may be more to serve: after the others."""
        self._has_more = True
        if not self._pump_due:
            self._pump_due = True
            self._fair_turns.wait(self, self._pump, self._speed)

    def _pump(self) -> None:
        self._pump_due = False
        self._serve()

    def _fail(self, doing: str, error: BaseException) -> None:
        """We are wrong, not the client: say so in the log, end this connection, keep the others."""
        log.error("%s %s: %s failed", self._adapter.dialect, self.peer, doing, exc_info=error)
        self.abort()

    # -- streams ---------------------------------------------------------------------------------------------

    def _open_stream(self, turn: Turn) -> None:
        """Its turn has come. It begins once this turn of the loop has written what was answered before."""
        stream: Stream = turn.answer
        turn.answer = _PENDING
        if not (self._is_ordered and stream.holds_turn):
            self._beside.add(turn)
        self._loop.call_soon(self._run_stream, turn, stream)

    def _run_stream(self, turn: Turn, stream: Stream) -> None:
        if self._transport is None:
            return

        def done(_: Any, error: BaseException | None) -> None:  # noqa: ANN401
            if turn not in self._beside:
                self._answered(turn, turn.request, None, error)
                return
            self._beside.discard(turn)
            if error is not None:
                self._stream_failed(turn, error)

        turn.running = start(stream.run(), done, lambda: self._may_go_on(turn), self._go)

    def _stream_failed(self, turn: Turn, error: BaseException) -> None:
        """Between answers to other requests nobody could tell whose error it is: it is the last thing said."""
        self.close()
        last = Turn(turn.request)
        if self._is_ordered:
            self._turns.append(last)
        self._answered(last, last.request, None, error)

    # -- answers leave ---------------------------------------------------------------------------------------

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
        if transport is None or transport.is_closing() or self._farewell is not None:
            self._outbox.clear()
            return False
        has_sent = bool(self._outbox.ready)
        if has_sent:
            self._send_ready(transport)
        if self._closing and not turns and not self._under_way:
            self._end(transport)
        return has_sent or len(turns) < under_way

    def _forget_turns(self) -> None:
        """The client is gone: what may be ended is ended, and nothing is answered any more."""
        for turn in (*self._under_way, *self._turns, *self._beside):
            if turn.running is not None:
                turn.running.cancel()
                turn.running = None  # each knows the other: together they would keep this connection's buffers alive
        self._turns.clear()
        self._under_way.clear()
        self._beside.clear()

    # -- ending ----------------------------------------------------------------------------------------------

    @property
    def _begun(self) -> Iterator[Running]:
        """What runs for this client."""
        turns = (*self._turns, *self._under_way, *self._beside)
        return (turn.running for turn in turns if turn.running is not None)

    def close(self) -> None:
        """Take no more requests, answer long polls with what there is, and end when every request is answered."""
        self._closing = True
        self._is_calm = False
        if self._closing_since is None and not self._is_drained:
            self._closing_since = self._loop.time()
        begun = list(self._begun)
        for running in begun:
            running.run_out()
        if begun and all(running.is_parked for running in begun):
            self._forget_turns()
        if self._transport is not None and self._reading:
            self._reading = False
            self._transport.pause_reading()
        self._loop.call_soon(self._flush)

    def end_waits(self, is_wanted: Callable[[Any], bool]) -> None:
        """See `adapters/contract.py`."""
        for turn in list(self._under_way):
            if turn.running is not None and is_wanted(turn.request):
                turn.running.run_out()

    def _has_closed_too_long(self, now: float) -> bool:
        is_late = self._closing_since is not None and now - self._closing_since > CLOSING_SECONDS_MAX
        return is_late and all(running.may_end for running in self._begun)

    @property
    def unread_socket(self) -> int | None:
        """The descriptor, while nothing is read from it: only the kernel knows then whether the client has gone."""
        if self._reading or self._transport is None or self._farewell is not None:
            return None
        connected = self._transport.get_extra_info("socket")
        return None if connected is None or connected.fileno() < 0 else int(connected.fileno())

    def client_gone(self, *, is_reset: bool) -> None:
        """The kernel reports the client's end on a socket that is not read."""
        if is_reset:
            self.abort()
        elif self.silent_since is not None and (self._under_way or self._beside) and not self._has_more:
            self.close()

    @property
    def silent_since(self) -> float | None:
        """Since when this connection is idle or only waits; None while a request is served, or its client is owed an answer."""
        is_ending = self._transport is None or self._transport.is_closing()
        if is_ending or not all(running.may_end and not running.is_owed for running in self._begun):
            return None
        return 0.0 if self._closing_since is not None else max(self._last_heard, self._active_at)

    def note_activity(self, now: float) -> None:
        """A stream sends and hears nothing for days: it is not idle. Called regularly, so that sending costs nothing more."""
        if self.bytes_out != self._bytes_seen:
            self._bytes_seen, self._active_at = self.bytes_out, now

    def give_way(self) -> None:
        """Make room for a new connection."""
        log.info("closing %s %s: idle, connection limit reached", self._adapter.dialect, self.peer)
        self.abort()

    def drain(self) -> None:
        """The server stops: what is under way is answered, also behind a long poll, whose time is up then. Who only waits is let
        go, with all that was asked after it."""
        self._is_drained = not self._closing
        kept: list[Turn] = []
        for turn in self._turns:
            is_last = turn is self._turns[-1]
            if turn.only_waits and (is_last or turn.running is None or not turn.running.run_out()):
                break
            kept.append(turn)
        self._turns = deque(kept)
        for turn in list(self._under_way):
            if turn.running is not None and turn.only_waits and turn not in kept:
                turn.running.cancel()
                self._under_way.discard(turn)
        if self.last_words is not None:
            last = self.last_words()
            self._outbox.hold(last)
            self._outbox.add(last)
        self.close()
