"""The sending half of a connection: what is ready leaves, what is held is counted, and a slow client is waited for.

Knows: transports, the outbox, the node's memory budget, quotas. Refuses to know: requests, order, dialects.
Invariant: what waits to be sent is bounded, and a client that does not take it is cut off.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from time import thread_time
from typing import Any

from braidlog.adapters.contract import Adapter
from braidlog.broker.access.authorize import ANONYMOUS
from braidlog.broker.quotas import Direction, Quotas
from braidlog.model.errors import StorageFault
from braidlog.server.budget import SMALL_BYTES, Budget
from braidlog.server.connection_limits import SessionLimits
from braidlog.server.output import Led, Outbox, Sent, read_slice, send_from_file
from braidlog.server.request_counters import RequestCounters
from braidlog.server.scheduler import Abandonable
from braidlog.wire.contract import Slice

log = logging.getLogger("braidlog.session")

_OUTPUT_FACTOR = 4
"""Requests under way may all be answered at once; a client whose buffer holds so many times its limit gets no more."""


class SessionOutput(asyncio.Protocol):
    """What a session sends through. Who inherits says what is ready (`_flush`) and when to read on (`_regulate`, `_go_on`).

    In slots, as those who inherit have theirs: objects share the keys of thirty attributes at most, and a request reads dozens.
    """

    __slots__ = (
        "__weakref__", "_adapter", "_blocked_since", "_budget", "_closing", "_counters", "_is_calm", "_is_noted", "_limits",
        "_loop", "_outbox", "_quotas", "_socket", "_socket_number", "_throttle", "_transport", "_unsent_bytes_max",
        "_waiting_bytes", "_writable", "bytes_out", "client_id", "connection", "is_forwarded", "last_words", "peer", "principal",
    )  # fmt: skip

    def __init__(
        self, adapter: Adapter, limits: SessionLimits, budget: Budget, quotas: Quotas | None, counters: RequestCounters
    ) -> None:
        self._adapter = adapter
        self._limits = limits
        self._unsent_bytes_max = _OUTPUT_FACTOR * limits.output_bytes_max
        self._budget = budget
        self._quotas = quotas or Quotas()
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._outbox = Outbox()
        self._is_noted = False
        self._waiting_bytes = 0
        self._closing = False
        self._is_calm = False
        """Nothing is to be looked at before the next request is served. Found out by who has served; whoever changes something
        from outside says so."""
        self._writable: asyncio.Future[None] | None = None
        self._blocked_since: float | None = None
        self._throttle: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._socket: tuple[asyncio.Transport, int] | None = None
        """The transport of a plain socket, and the socket's descriptor."""
        self._socket_number: int | None = None
        """The same descriptor, while what is sent passes nobody else on its way."""
        self.connection: Any = adapter.open()
        self.principal = ANONYMOUS
        self.client_id = ""
        self.last_words: Callable[[], bytes] | None = None
        self.is_forwarded = False
        self.peer = "?"
        self.bytes_out = 0

    @property
    def host(self) -> str:
        return self.peer.rpartition(":")[0] or self.peer

    @property
    def dialect(self) -> str:
        return self._adapter.dialect

    @property
    def is_closing(self) -> bool:
        return self._closing

    def _flush(self) -> bool:
        raise NotImplementedError

    def _regulate(self) -> None:
        raise NotImplementedError

    def _go_on(self) -> None:
        raise NotImplementedError

    def pause_writing(self) -> None:
        self._blocked_since = self._loop.time()
        self._is_calm = False
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

    def held_bytes(self) -> int:
        """What this connection keeps in memory: of a frame, of requests that wait, of answers in line or not taken."""
        return int(self.connection.buffered_bytes) + self._waiting_bytes + self._outbox.bytes_kept(self._transport)

    def hold(self, more_bytes: int) -> None:
        """See `adapters/contract.py`. A little is told to the budget with all else that one read brought, at its end."""
        self._waiting_bytes += more_bytes
        if self._is_noted or more_bytes > SMALL_BYTES:
            self._note_held()

    def _note_held(self) -> None:
        """Tell the budget. Whoever is gone holds nothing, whatever is still being finished for it."""
        if self._transport is not None:
            held = self.held_bytes()
            self._is_noted = held > SMALL_BYTES
            self._budget.note(self, held)

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

    def _send_ready(self, transport: asyncio.Transport) -> None:
        outbox = self._outbox
        try:
            for data in outbox.take():
                if outbox.has_unsent and transport.get_write_buffer_size() > self._unsent_bytes_max:
                    text = "%s %s is cut off: answers not read, more than %d bytes wait"
                    log.info(text, self._adapter.dialect, self.peer, self._unsent_bytes_max)
                    self.abort()
                    return
                if isinstance(data, Led):
                    self._send_led(transport, data)
                else:
                    self._send(transport, data)
        except StorageFault as fault:
            # Its size is announced already: nothing else could be said in its place.
            log.error("%s %s: %s", self._adapter.dialect, self.peer, fault)  # noqa: TRY400 - the fault says where
            self.abort()

    def _send_lone(self, transport: asyncio.Transport, data: tuple[bytes, ...] | list[bytes | Slice]) -> None:
        """What is ready while nothing else is, and nothing waits to be sent."""
        if type(data) is tuple:
            self._send(transport, data)
            return
        self._outbox.hold(data)
        self._outbox.add(data)
        self._send_ready(transport)

    def _send(self, transport: asyncio.Transport, data: Sent) -> None:
        self.bytes_out += self._outbox.send(transport, data)
        if self._outbox.has_unsent or self._is_noted:
            self._is_calm = False
            self._note_held()

    def _send_led(self, transport: asyncio.Transport, led: Led) -> None:
        """Out of the file, as far as the socket takes it now; what is left is read and waits like everything else."""
        head, sent = led.head, 0
        if self._socket_number is not None and not transport.get_write_buffer_size():
            sent = send_from_file(self._socket_number, led)
            self.bytes_out += sent
            if self._is_noted:
                self._note_held()
        if sent < len(head):
            self._send(transport, head[sent:])
            sent = len(head)
        if sent < len(head) + led.slice.size:
            self._send(transport, read_slice(led.slice, sent - len(head)))

    async def push(self, data: bytes) -> None:
        """Send a frame outside the order of answers, after those that are ready, waiting while the client takes none."""
        if self._writable is not None:
            await self._be_writable(len(data))
        self._flush()
        if self._transport is not None and not self._transport.is_closing():
            self._send(self._transport, data)
            if not self._quotas.is_unlimited:
                self._charge(Direction.FETCH, len(data))
        # However fast this client takes what is pushed, the others are served in between.
        breath: Abandonable[None] = Abandonable(loop=self._loop)
        self._loop.call_soon(_breathe, breath)
        await breath

    async def _be_writable(self, size: int) -> None:
        """Wait until the client takes something; so long what is to be sent next counts as held."""
        self.hold(size)
        try:
            while self._writable is not None:
                await self._writable
        finally:
            self.hold(-size)

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._transport

    def speak_through(self, transport: asyncio.Transport) -> None:
        """Write to this transport from now on: who watches puts one of its own before the socket's, and takes it away again."""
        self._transport = transport
        self._socket_number = self._socket[1] if self._socket is not None and self._socket[0] is transport else None

    def abort(self) -> None:
        self._closing = True
        self._is_calm = False
        if self._transport is not None:
            self._transport.abort()

    # -- quotas ----------------------------------------------------------------------------------------------

    def _charge(self, direction: Direction, count: int) -> None:
        """Who moved more than its share is not read from for a while."""
        self._pause(self._quotas.take(self.principal, direction, count, self._loop.time(), self.client_id))

    def _timed(self, work: Callable[[], None]) -> None:
        """Do it, and count the time that it took of the loop's."""
        began = thread_time()
        work()
        took = thread_time() - began
        pause = self._quotas.take_time(self.principal, self.host, took, self._loop.time(), self.client_id)
        self._pause(pause)

    @property
    def throttled_ms(self) -> int:
        """For how long it is not read from, as far as that is known."""
        return 0 if self._throttle is None else max(math.ceil((self._throttle.when() - self._loop.time()) * 1000), 0)

    def _pause(self, seconds: float) -> None:
        if seconds <= 0 or self._transport is None:
            return
        now = self._loop.time()
        if self._throttle is not None:
            if self._throttle.when() >= now + seconds:
                return
            self._throttle.cancel()
        self._is_calm = False
        self._counters.throttled(seconds)
        self._throttle = self._loop.call_later(seconds, self._unthrottle)
        self._regulate()

    def _unthrottle(self) -> None:
        self._throttle = None
        self._go_on()


def _breathe(breath: "asyncio.Future[None]") -> None:
    if not breath.done():
        breath.set_result(None)
