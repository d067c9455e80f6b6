"""One connection: bytes in, requests served, answers out.

Knows: order, limits, back-pressure. Refuses to know: any dialect, any service.
Invariants: answers of an ordered dialect leave in the order of their requests; at most `in_flight_max` requests of a connection
are under way, and it is not read from meanwhile; what waits to be sent is bounded, and a client that does not take it is cut
off; all answers of one read leave in one write.
"""

import asyncio
import logging
from collections import deque
from typing import Any, cast

import msgspec

from braidlog.adapters.contract import Adapter, Stream
from braidlog.model.errors import BrokerError, ProtocolError, StorageFault
from braidlog.server.eager import Running, start
from braidlog.wire.contract import NEED_DATA, Refused

log = logging.getLogger("braidlog.session")

_PENDING = object()
ANONYMOUS = "anonymous"


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

    __slots__ = ("answer", "request", "running")

    def __init__(self, request: Any = None) -> None:  # noqa: ANN401
        self.request = request
        self.answer: Any = _PENDING
        self.running: Running | None = None


class Session(asyncio.Protocol):
    """The server's side of one connection, driven by the loop."""

    def __init__(self, adapter: Adapter, owner: "SessionOwner", limits: SessionLimits) -> None:
        self._adapter = adapter
        self._owner = owner
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._turns: deque[_Turn] = deque()
        self._unordered = 0
        self._beside: set[_Turn] = set()
        self._out: list[bytes] = []
        self._busy = False
        self._closing = False
        self._reading = True
        self._writable: asyncio.Future[None] | None = None
        self._blocked_since: float | None = None
        self._partial_since: float | None = None
        self._last_heard = self._loop.time()
        self._transport: asyncio.Transport | None = None
        self.connection: Any = adapter.open()
        self.principal = ANONYMOUS
        self.peer = "?"
        self.requests = 0

    # -- the loop calls --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not of asyncio's class
        self._transport.set_write_buffer_limits(high=1024 * 1024)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended changes nothing
        self._closing = True
        self._transport = None
        for turn in (*self._turns, *self._beside):
            if turn.running is not None:
                turn.running.cancel()
        self._turns.clear()
        self._beside.clear()
        self._release_writers()
        self._owner.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._last_heard = self._loop.time()
        self.connection.receive(data)
        self._serve()

    def pause_writing(self) -> None:
        self._blocked_since = self._loop.time()
        self._writable = self._loop.create_future()
        self._regulate()

    def resume_writing(self) -> None:
        self._blocked_since = None
        self._release_writers()
        self._regulate()
        if not self._closing:
            self._serve()

    def _release_writers(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # -- serving ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Take every request that is whole, start each, send what is answered: one write for all of them."""
        if self._busy:
            return
        self._busy = True
        try:
            while not self._closing and self._has_room():
                event = self.connection.next_event()
                if event is NEED_DATA:
                    # The time counts from the frame's first byte: trickling more of it does not buy more time.
                    if self.connection.buffered_bytes == 0:
                        self._partial_since = None
                    elif self._partial_since is None:
                        self._partial_since = self._last_heard
                    break
                self._partial_since = None
                self.requests += 1
                if isinstance(event, Refused):
                    self._refuse(event)
                else:
                    self._begin(event)
        finally:
            self._busy = False
        self._flush()
        self._regulate()

    def _has_room(self) -> bool:
        under_way = len(self._turns) if self._adapter.ordered else self._unordered
        return under_way + len(self._beside) < self._limits.in_flight_max and self._blocked_since is None

    def _refuse(self, refused: Refused) -> None:
        turn = _Turn()
        turn.answer = None if refused.answer is None else self.connection.respond(refused, refused.answer)
        self._turns.append(turn)
        if refused.close:
            log.info("%s %s: %s; closing", self._adapter.dialect, self.peer, refused.error)
            self.close()

    def _begin(self, request: Any) -> None:  # noqa: ANN401
        turn = _Turn(request)
        if self._adapter.ordered:
            self._turns.append(turn)
        else:
            self._unordered += 1

        def done(answer: Any, error: BaseException | None) -> None:  # noqa: ANN401
            self._answered(turn, request, answer, error)

        turn.running = start(self._adapter.handle(self, request), done)

    def _answered(self, turn: _Turn, request: Any, answer: Any, error: BaseException | None) -> None:  # noqa: ANN401
        turn.running = None
        if error is not None:
            if not isinstance(error, BrokerError | StorageFault | ProtocolError):
                # We are wrong, not the client: say so in the log, end this connection, keep the others.
                log.error("%s %s: %r failed", self._adapter.dialect, self.peer, type(request).__name__, exc_info=error)
                self.abort()
                return
            if isinstance(error, StorageFault):
                log.error("%s %s: %s", self._adapter.dialect, self.peer, error)
            answer = self._adapter.failure(request, error)
        if not self._adapter.ordered:
            self._unordered -= 1
        if isinstance(answer, Stream):
            turn.answer = answer
            if not self._adapter.ordered:
                self._open_stream(turn)
        else:
            data = None if answer is None else self.connection.respond(request, answer)
            if self._adapter.ordered:
                turn.answer = data
            elif data:
                self._out.append(data)
        if not self._busy:
            self._flush()
            self._serve()

    # -- streams ---------------------------------------------------------------------------------------------

    def _open_stream(self, turn: _Turn) -> None:
        """Its turn has come. It begins once this turn of the loop has written what was answered before."""
        stream: Stream = turn.answer
        turn.answer = _PENDING
        if not (self._adapter.ordered and stream.holds_turn):
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

        turn.running = start(stream.run(), done)

    def _stream_failed(self, turn: _Turn, error: BaseException) -> None:
        """Between answers to other requests nobody could tell whose error it is: it is the last thing said."""
        self.close()
        last = _Turn(turn.request)
        if self._adapter.ordered:
            self._turns.append(last)
        else:
            self._unordered += 1
        self._answered(last, last.request, None, error)

    # -- sending ---------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        turns = self._turns
        while turns and turns[0].answer is not _PENDING:
            data = turns[0].answer
            if isinstance(data, Stream):
                self._open_stream(turns[0] if data.holds_turn else turns.popleft())
            else:
                turns.popleft()
                if data:
                    self._out.append(data)
        transport = self._transport
        if transport is None:
            self._out.clear()
            return
        if self._out:
            out, self._out = self._out, []
            transport.write(out[0] if len(out) == 1 else b"".join(out))
            if transport.get_write_buffer_size() > self._limits.output_bytes_max and self._blocked_since is None:
                self._blocked_since = self._loop.time()
        if self._closing and not turns and not self._unordered:
            transport.close()

    def _regulate(self) -> None:
        """Read only while there is room for what may come."""
        transport = self._transport
        if transport is None or self._closing:
            return
        wanted = self._has_room()
        if wanted and not self._reading:
            self._reading = True
            transport.resume_reading()
        elif not wanted and self._reading:
            self._reading = False
            transport.pause_reading()

    async def push(self, data: bytes) -> None:
        """Send a frame outside the order of answers, waiting while the client takes none."""
        if self._writable is not None:
            await self._writable
        if self._transport is not None:
            self._transport.write(data)
        # However fast this client takes what is pushed, the others are served in between.
        breath = self._loop.create_future()
        self._loop.call_soon(breath.set_result, None)
        await breath

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

    def close(self) -> None:
        """No more requests; the connection ends when what was asked is answered."""
        self._closing = True
        if self._transport is not None and self._reading:
            self._reading = False
            self._transport.pause_reading()
        self._loop.call_soon(self._flush)

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
        if self._partial_since is not None and now - self._partial_since > allowed:
            return "its frame does not come to an end"
        quiet = not self._turns and not self._unordered and not self._beside
        if quiet and now - self._last_heard > limits.idle_seconds_max:
            return "it has been silent for too long"
        return None


class SessionOwner:
    """Who keeps account of sessions: the listener."""

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session) -> None: ...

    def address_for(self, session: Session) -> tuple[str, int]:
        raise NotImplementedError
