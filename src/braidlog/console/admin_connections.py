"""Connections of the admin port, with limits against slow and numerous clients.

At most `CONNECTIONS_MAX` connections are open. A new connection beyond that closes the oldest one without a complete
request, so that an operator's `/healthz` is always answered.
"""

import asyncio
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 320
REQUEST_SECONDS_MAX: Final = 20.0
"""Time for a request from its first byte, or from the connection for the first request."""
PIPELINED_BYTES_MAX: Final = 64 * 1024
"""Limit of requests buffered while one is being answered."""

_UNFINISHED: Final = (h11.IDLE, h11.SEND_BODY)


class AdminConnection(H11Protocol):
    """uvicorn's connection, with timeouts."""

    seconds_max = REQUEST_SECONDS_MAX
    connections_max = CONNECTIONS_MAX
    _deadline: asyncio.TimerHandle | None = None
    opened_at = 0.0

    @property
    def is_waiting(self) -> bool:
        """Return whether the connection waits for a request or the rest of one."""
        return self.conn.their_state in _UNFINISHED

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self.opened_at = self.loop.time()
        self._look()
        there = [each for each in self.connections if isinstance(each, AdminConnection) and not each.is_closing]
        if len(there) > self.connections_max:
            waiting = [each for each in there if each.is_waiting and each is not self]
            min(waiting, key=lambda each: each.opened_at, default=self).give_up()

    @property
    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()
        if self.flow.read_paused and self.conn.their_state is h11.DONE:
            # uvicorn stops reading while it answers a request; then the loop does not report a disconnect.
            if len(self.conn.trailing_data[0]) > PIPELINED_BYTES_MAX:
                self.give_up()
            else:
                self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watch()
        super().connection_lost(exc)

    def _look(self) -> None:
        if not self.is_waiting:
            self._stop_watch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds_max, self.give_up)

    def _stop_watch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def give_up(self) -> None:
        self._stop_watch()
        self.transport.abort()
