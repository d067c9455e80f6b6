"""Connections: pipelines requests, and matches answers to callers.

Does not handle: the meaning of requests, retries. Every request ends with its answer, with `ConnectError` if no byte
of it was sent, or with `NoAnswerError`. A missed deadline closes the connection, because in an ordered dialect every
later request waits too.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, cast

import msgspec

from braidlog.client.engine.retry import wait_at_most
from braidlog.client.errors import Address, ClientError, ClosedError, ConnectError, NoAnswerError, RecordError
from braidlog.codec.errors import ProtocolError
from braidlog.model.address import show_address
from braidlog.wire.contract import NEED_DATA, NeedData, Refused

_SMALL_BYTES = 32 * 1024
"""Read size before an answer's length is known: bytes of a large answer in this read are copied twice more."""
_LARGE_BYTES = 64 * 1024
"""Pieces of a request that are at least this long are not copied."""


class ConnectionWire:
    """A dialect's client connection as a wire; answers come in request order, unless `answer` returns their ids."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - any dialect's ClientConnection
        self._connection = connection

    def ask(self, message: Any) -> tuple[bytes | Sequence[bytes], Hashable]:  # noqa: ANN401 - any request of the dialect
        """Return the bytes, or pieces of them, and the id of the answer; None: answers come in order."""
        return self._connection.request(message), None

    def receive(self, data: bytes) -> None:
        self._connection.receive(data)

    def next_answer(self) -> tuple[Hashable, Any] | NeedData:
        """Return the next answer; `ProtocolError` if the peer does not speak the dialect."""
        event = self._connection.next_event()
        if isinstance(event, Refused):
            raise event.error
        return NEED_DATA if event is NEED_DATA else self.answer(event)

    def answer(self, event: Any) -> tuple[Hashable, Any]:  # noqa: ANN401 - any answer of the dialect
        return None, event


class BufferedWire(ConnectionWire):
    """A wire that reads large answers directly into their final buffer."""

    def buffer(self) -> memoryview | None:
        """Return the buffer for the next bytes; None: use any buffer, then call `receive`."""
        buffer: memoryview | None = self._connection.receive_buffer()
        return buffer

    def filled(self, size: int) -> None:
        """Report the number of bytes read into the buffer."""
        self._connection.filled(size)


class Link(asyncio.Protocol):
    """One connection."""

    def __init__(self, wire: ConnectionWire, address: Address) -> None:
        self._wire = wire
        self.address = address
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._in_order: deque[asyncio.Future[Any]] = deque()
        self._by_id: dict[Hashable, asyncio.Future[Any]] = {}
        self._end: str | None = None
        self._last_words = ""
        self._answered = False

    def __repr__(self) -> str:
        state = self._end or f"{self.in_flight} in flight"
        return f"<Link to {show_address(self.address)}: {state}>"

    @property
    def in_flight(self) -> int:
        return len(self._in_order) + len(self._by_id)

    @property
    def is_open(self) -> bool:
        return self._end is None and self._transport is not None

    # -- sending ---------------------------------------------------------------------------------------------

    async def ask(self, message: Any, timeout: float) -> Any:  # noqa: ANN401, ASYNC109 - the dialect's; deadlines end the link
        (answer,) = await self.ask_all((message,), timeout)
        if isinstance(answer, ClientError):
            raise answer
        return answer

    async def ask_all(self, messages: Sequence[Any], timeout: float) -> list[Any]:  # noqa: ASYNC109 - as above
        """Send the messages in order; return an answer or an error for each."""
        futures = await self.post(messages, timeout)
        try:
            _, late = await asyncio.wait(futures, timeout=timeout)
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()  # the caller no longer waits for this answer
            raise
        if late:
            self._abort_late(timeout)
        return [future.exception() or future.result() for future in futures]

    async def post(self, messages: Sequence[Any], timeout: float) -> list[asyncio.Future[Any]]:  # noqa: ASYNC109 - as above
        """Send the messages in order. Await each answer with `answer_to`, or cancel its future."""
        if not self._writable.is_set() and not await wait_at_most(self._writable, timeout):
            self.abort(f"{show_address(self.address)} has accepted no data for {timeout:g} s")
        if not self.is_open:
            raise ConnectError(self._end or f"{show_address(self.address)} is not connected")
        return self._send(messages)

    async def answer_to(self, future: asyncio.Future[Any], timeout: float) -> Any:  # noqa: ANN401, ASYNC109 - as above
        """Return the answer to a posted message, or raise."""
        if not future.done():
            try:
                await asyncio.wait((future,), timeout=timeout)
            except asyncio.CancelledError:
                future.cancel()
                raise
            if not future.done():
                self._abort_late(timeout)
        return future.exception() or future.result()

    def _abort_late(self, timeout: float) -> None:
        self.abort(f"{show_address(self.address)} gave no answer in {timeout:g} s")

    def _send(self, messages: Sequence[Any]) -> list[asyncio.Future[Any]]:
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        asked: list[tuple[bytes | Sequence[bytes], Hashable]] = []
        try:
            for message in messages:
                asked.append(self._wire.ask(message))  # noqa: PERF401 - requests before one that cannot be encoded count
        except ValueError as error:
            if asked:
                self.abort(f"a request could not be written: {error}")  # the caller never gets the futures before it
            raise RecordError(str(error)) from error
        futures = []
        for _, token in asked:
            future = loop.create_future()
            futures.append(future)
            if token is None:
                self._in_order.append(future)
            else:
                self._by_id[token] = future
        self._write([data for data, _ in asked])
        return futures

    def _write(self, requests: Sequence[bytes | Sequence[bytes]]) -> None:
        """Write large pieces without copying; join the small pieces between them."""
        assert self._transport is not None
        together: list[bytes] = []
        for data in requests:
            for piece in (data,) if isinstance(data, bytes) else data:
                if len(piece) < _LARGE_BYTES or not isinstance(piece, bytes):
                    together.append(piece)
                    continue
                if together:
                    self._transport.write(b"".join(together))
                    together = []
                self._transport.write(memoryview(piece))  # (asyncio keeps a slice of a memoryview without copying)
        if together:
            self._transport.write(b"".join(together))

    def introduce(self, line: bytes) -> None:
        """Send the line that precedes the first request; it has no answer."""
        assert self._transport is not None
        self._transport.write(line)

    # -- the transport's side --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are not a subclass of asyncio's
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._wire.receive(data)
        self._answer()

    def _answer(self) -> None:
        try:
            while self._end is None and (answer := self._wire.next_answer()) is not NEED_DATA:
                self._settle(*answer)
        except ProtocolError as error:
            self.abort(f"{show_address(self.address)} does not speak the dialect: {error}{self._doubt()}")

    def _settle(self, token: Hashable, answer: Any) -> None:  # noqa: ANN401 - any answer of the dialect
        future = self._by_id.pop(token, None) if token is not None else None
        if token is None and self._in_order:
            future = self._in_order.popleft()
        if future is None:
            self._last_words = f"; it said: {answer!r}"[:500]  # unsolicited: why the server is about to close
        elif not future.done():
            future.set_result(answer)
            self._answered = True

    def connection_lost(self, exc: Exception | None) -> None:
        why = f"{f': {exc}' if exc else ''}{self._last_words or self._doubt()}"
        self.abort(f"{show_address(self.address)} closed the connection{why}")

    def _doubt(self) -> str:
        """Return a hint if the server has never answered: the URL may have the wrong protocol."""
        waits = bool(self._in_order or self._by_id)
        return "; does this port speak the protocol of the URL, and TLS or not?" if waits and not self._answered else ""

    # -- closing ---------------------------------------------------------------------------------------------

    def abort(self, why: str) -> None:
        """Close the connection; all pending requests fail with `why`."""
        if self._end is not None:
            return
        self._end = why
        self._writable.set()
        for future in (*self._in_order, *self._by_id.values()):
            if not future.done():
                future.set_exception(NoAnswerError(why))
        self._in_order.clear()
        self._by_id.clear()
        if self._transport is not None:
            self._transport.abort()


class BufferedLink(Link, asyncio.BufferedProtocol):
    """A link whose transport reads large answers into the wire's own buffer, so that megabytes of records are copied
    once."""

    def __init__(self, wire: BufferedWire, address: Address) -> None:
        super().__init__(wire, address)
        self._buffered = wire
        self._small = bytearray(_SMALL_BYTES)
        self._in_wire = False

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the wire knows better
        buffer = self._buffered.buffer() if self._end is None else None
        self._in_wire = buffer is not None
        return memoryview(self._small) if buffer is None else buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._in_wire:
            self._buffered.filled(nbytes)
            self._answer()
        else:
            self.data_received(bytes(memoryview(self._small)[:nbytes]))


class Endpoint(msgspec.Struct, frozen=True):
    """How to open a link: dialect, timeouts, TLS, greeting."""

    make_wire: Callable[[], ConnectionWire]
    connect_timeout: float
    tls: ssl.SSLContext | None = None
    greet: Callable[[Link], Awaitable[None]] | None = None

    async def open(self, address: Address) -> Link:
        wire = self.make_wire()
        link = BufferedLink(wire, address) if isinstance(wire, BufferedWire) else Link(wire, address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_timeout):
                await loop.create_connection(lambda: link, *address, ssl=self.tls)
                if self.greet is not None:
                    await self.greet(link)
        except (OSError, TimeoutError) as error:
            link.abort("it could not be reached")
            said = _unsaid(error, self.connect_timeout, tls=self.tls is not None)
            raise ConnectError(f"{show_address(address)} cannot be reached: {said}") from error
        except NoAnswerError as error:
            raise ConnectError(f"{show_address(address)} did not answer the greeting: {error}") from error
        except BaseException:
            link.abort("the greeting failed")
            raise
        return link


def _unsaid(error: Exception, seconds: float, *, tls: bool) -> str:
    """Return an error's meaning, even if it has no text."""
    if isinstance(error, socket.gaierror):
        return f"unknown host ({error.strerror})"
    if str(error):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"no connection in {seconds:g} s"
    return "the connection was closed" + (" during the TLS handshake; does the port use TLS?" if tls else "")


class Links:
    """The open connections, one per address and channel. Requests that may block for long have their own channels."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._links: dict[tuple[Address, str], Link] = {}
        self._dialling: dict[tuple[Address, str], asyncio.Lock] = {}
        self._closed = False

    async def get(self, address: Address, channel: str) -> Link:
        """Return the open link, or open one; makes one attempt."""
        place = address, channel
        link = self._links.get(place)
        if link is not None and link.is_open:
            return link
        async with self._dialling.setdefault(place, asyncio.Lock()):
            link = self._links.get(place)
            if link is not None and link.is_open:
                return link
            self._check_open()
            link = self._links[place] = await self._endpoint.open(address)
            if self._closed:
                link.abort("the client was closed")
            self._check_open()
            return link

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the client is closed")

    def opened(self) -> list[Link]:
        return [link for link in self._links.values() if link.is_open]

    def drop(self, address: Address, why: str) -> None:
        """Close all links to an address."""
        for place in [place for place in self._links if place[0] == address]:
            self._links.pop(place).abort(why)

    def end(self, channel: str, why: str) -> None:
        """Close the links of a channel that is no longer needed."""
        for place in [place for place in self._links if place[1] == channel]:
            self._links.pop(place).abort(why)
        for place in [place for place in self._dialling if place[1] == channel]:
            del self._dialling[place]

    def close(self) -> None:
        self._closed = True
        for link in self._links.values():
            link.abort("the client was closed")
        self._links.clear()
