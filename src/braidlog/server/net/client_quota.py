"""Charges one client's bytes and loop time to its quotas, and throttles it: the session stops reading for a while.

Answers report the throttle time. The quotas themselves are in `security/quotas.py`.
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
    """What quotas need of a connection."""

    connection: Any
    """The dialect's protocol state."""
    outbox: SendQueue
    principal: str
    client_id: str

    @property
    def host(self) -> str: ...

    def throttled(self) -> None:
        """Stop reading until `read_on`."""
        ...

    def read_on(self) -> None: ...


class ClientQuota:
    """The quota state of one connection."""

    __slots__ = ("_counters", "_loop", "_quotas", "timer")

    def __init__(self, quotas: Quotas, counters: RequestCounters, loop: asyncio.AbstractEventLoop) -> None:
        self._quotas = quotas
        self._counters = counters
        self._loop = loop
        self.timer: asyncio.TimerHandle | None = None
        """Ends the throttling; None: the client is not throttled."""

    @property
    def throttled_ms(self) -> int:
        """Remaining throttle time, as far as known."""
        return 0 if self.timer is None else max(math.ceil((self.timer.when() - self._loop.time()) * 1000), 0)

    def charge(self, client: ChargedClient, direction: Direction, count: int) -> None:
        """Charge bytes that the client sent or received, and throttle it if needed."""
        pause = self._quotas.charge(client.principal, direction, count, self._loop.time(), client.client_id)
        self._throttle(client, pause)

    def timed(self, client: ChargedClient, work: Callable[[], None]) -> None:
        """Run `work` and charge the processor time that it took."""
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
        """Encode and charge an answer. An answer that exceeds a quota reports the resulting throttle time itself."""
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
