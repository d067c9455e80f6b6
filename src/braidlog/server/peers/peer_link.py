"""Calling end of a connection between nodes: requests out, responses in. Large responses are received in place.

Does not handle: the content of requests.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from braidlog.wire.contract import NEED_DATA, Refused

log = logging.getLogger("braidlog.peers")

READ_BYTES: Final = 64 * 1024


class CallingConnection(Protocol):
    """Calling end of a protocol between nodes. Events have the `correlation_id` of their request, and a `message`."""

    @property
    def next_id(self) -> int: ...

    def request(self, message: Any) -> bytes: ...  # noqa: ANN401 - each protocol has its own

    def receive_buffer(self) -> memoryview | None: ...

    def filled(self, size: int) -> None: ...

    def receive(self, data: bytes) -> None: ...

    def next_event(self) -> Any: ...  # noqa: ANN401


class PeerLink(asyncio.BufferedProtocol):
    def __init__(
        self, connection: CallingConnection, answered: Callable[[Any], None], lost: Callable[["PeerLink"], None]
    ) -> None:
        self._answered = answered
        self._lost = lost
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._is_large = False
        self._is_aborted = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._is_aborted and not self._transport.is_closing()

    def send(self, message: Any) -> int:  # noqa: ANN401 - of what its connection speaks
        """Send a request; returns the number of its response."""
        number = self._connection.next_id
        if self._transport is not None:
            self._transport.write(self._connection.request(message))
        return number

    def abort(self) -> None:
        """Stop reading. The connection ends in the next turn of the event loop: uvloop's TLS does not expect it while
        it delivers data.
        """
        self._is_aborted = True
        if self._transport is not None:
            asyncio.get_running_loop().call_soon(self._transport.abort)

    # -- called by the event loop ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not subclass asyncio's

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended changes nothing
        self._transport = None
        self._lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        large = self._connection.receive_buffer()
        self._is_large = large is not None
        return self._buffer if large is None else large

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_large:
            self._connection.filled(nbytes)
        else:
            self._connection.receive(bytes(self._buffer[:nbytes]))
        event: Any
        while not self._is_aborted and (event := self._connection.next_event()) is not NEED_DATA:
            if isinstance(event, Refused):
                log.warning("a node sent an invalid response: %s; reconnecting", event.error)
                self.abort()
                return
            self._answered(event)
