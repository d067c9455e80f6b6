"""The quotas of one client: one that moves more than its share is not read from for a while, and its answers say so.

Knows: what is charged, until when nothing is read. Refuses to know: what the shares are (`security/quotas.py`), dialects.
"""

import asyncio
import math
from collections.abc import Callable
from time import thread_time
from typing import Any, Protocol

from braidlog.adapters.contract import Adapter
from braidlog.security.quotas import Direction, Quotas
from braidlog.server.net.send_queue import SendQueue, size_of
from braidlog.server.net.session_owner import RequestCounters
from braidlog.wire.contract import Output


class ChargedClient(Protocol):
    """A connection, as far as its client is charged."""

    connection: Any
    """Of any dialect."""
    outbox: SendQueue
    principal: str
    client_id: str

    @property
    def host(self) -> str: ...

    def throttled(self) -> None:
        """Nothing is read until `read_on`."""
        ...

    def read_on(self) -> None: ...


class ClientQuota:
    """Of one connection."""

    __slots__ = ("_counters", "_loop", "_quotas", "timer")

    def __init__(self, quotas: Quotas, counters: RequestCounters, loop: asyncio.AbstractEventLoop) -> None:
        self._quotas = quotas
        self._counters = counters
        self._loop = loop
        self.timer: asyncio.TimerHandle | None = None
        """Until when its client is not read from; None: it is."""

    @property
    def throttled_ms(self) -> int:
        """For how long its client is not read from, as far as that is known."""
        return 0 if self.timer is None else max(math.ceil((self.timer.when() - self._loop.time()) * 1000), 0)

    def charge(self, client: ChargedClient, direction: Direction, count: int) -> None:
        """Its client moved so many bytes."""
        pause = self._quotas.charge(client.principal, direction, count, self._loop.time(), client.client_id)
        self._throttle(client, pause)

    def timed(self, client: ChargedClient, work: Callable[[], None]) -> None:
        """Do it, and charge the time that it took of the loop's."""
        began = thread_time()
        work()
        took = thread_time() - began
        pause = self._quotas.take_time(client.principal, client.host, took, self._loop.time(), client.client_id)
        self._throttle(client, pause)

    def _throttle(self, client: ChargedClient, seconds: float) -> None:
        if seconds <= 0 or client.outbox.transport is None:
            return
        if self.timer is not None:
            if self.timer.when() >= self._loop.time() + seconds:
                return
            self.timer.cancel()
        self._counters.throttled(seconds)
        self.timer = self._loop.call_later(seconds, self._end, client)
        client.throttled()

    def _end(self, client: ChargedClient) -> None:
        self.timer = None
        client.read_on()

    def spelled(self, client: ChargedClient, adapter: Adapter, request: Any, answer: Any) -> Output:  # noqa: ANN401
        """An answer in bytes. One that goes over a quota says itself for how long nothing more is read."""
        told = answer if self.timer is None else adapter.throttled(answer, self.throttled_ms)
        data: Output = client.connection.respond(request, told)
        if self._quotas.is_unlimited:
            return data
        before = self.timer
        self.charge(client, Direction.FETCH, size_of(data))
        if self.timer is not before:
            told = adapter.throttled(answer, self.throttled_ms)
            if told is not answer:
                data = client.connection.respond(request, told)
        return data
