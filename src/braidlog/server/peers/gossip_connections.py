"""Gossip connections: outgoing to a peer, and incoming from a peer.

Does not handle: failure detection.
Invariants: a good connection that ends is redialled immediately, so that a dead process is recognized by its refusal.
A peer that does not read is disconnected.
"""

import asyncio
import logging
from collections import deque
from typing import Any, Final, Protocol, cast

from braidlog.adapters.peers.follower_sessions import node_of
from braidlog.server.net.admission import certified_name
from braidlog.server.peers.dialing import Dial
from braidlog.tasks import Tasks
from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.peer import messages as m
from braidlog.wire.peer.connection import Frame, PeerConnection

log = logging.getLogger("braidlog.gossip")

UNSENT_BYTES_MAX: Final = 16 * 1024
WAITING_MAX: Final = 16
"""Maximum number of messages queued while connecting."""
SILENCE_SECONDS_MAX: Final = 2.0
"""A connection without an answer for this time may lead to a dead machine; a new connection shows whether it does."""


class Owner(Protocol):
    """`Gossip` as seen by its connections."""

    def frame(self, message: m.Message) -> bytes: ...

    def ping(self) -> m.Ping: ...

    def pong(self) -> bytes: ...

    def ponged(self, message: m.Pong) -> None: ...

    def refused(self, node: int) -> None: ...

    def on_request(self, message: m.PingRequest | m.Ack | m.Leave) -> None: ...

    def opened(self, connection: "Incoming") -> bool: ...

    def closed(self, connection: "Incoming") -> None: ...

    def scaled_wait(self, seconds: float) -> float: ...


class _Conversation(asyncio.Protocol):
    """Frames in and out of one socket."""

    def __init__(self) -> None:
        self._connection = PeerConnection(m.GOSSIP)
        self.transport: asyncio.Transport | None = None
        self.certified: str | None = None
        self.is_tls = False
        self._is_aborted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transports do not subclass asyncio's
        self.is_tls = transport.get_extra_info("ssl_object") is not None
        self.certified = certified_name(transport.get_extra_info("peercert"))

    def data_received(self, data: bytes) -> None:
        self._connection.receive(data)
        event: Any
        while not self._is_aborted and (event := self._connection.next_event()) is not NEED_DATA:
            if isinstance(event, Refused):
                log.warning("closing a gossip connection: %s", event.error)
                self.abort()
                return
            assert isinstance(event, Frame)
            self.take(event.message)

    def take(self, message: m.Message) -> None:
        raise NotImplementedError

    def send(self, data: bytes) -> None:
        if self.transport is None or self._is_aborted or self.transport.is_closing() or not data:
            return
        if self.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self.abort()
        else:
            self.transport.write(data)

    def abort(self) -> None:
        """Abort in the next turn of the event loop: uvloop's TLS does not expect it while it delivers data."""
        self._is_aborted = True
        if self.transport is not None:
            asyncio.get_running_loop().call_soon(self.transport.abort)


class Incoming(_Conversation):
    """Connection from a peer: its PINGs, and messages in its own name."""

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        is_node = not self.is_tls or node_of(self.certified) is not None
        if not is_node:
            log.warning("certificate name %r is not a node's; closing", self.certified)
        if not is_node or not self._owner.opened(self):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended changes nothing
        self.transport = None
        self._owner.closed(self)

    def take(self, message: m.Message) -> None:
        match message:
            case m.Ping():
                self.send(self._owner.pong())
            case m.PingRequest(by=who) | m.Ack(by=who) | m.Leave(node=who) if self._is(who):
                self._owner.on_request(message)
            case _:
                log.warning("a node sent %s, which it may not send; closing", type(message).__name__)
                self.abort()

    def _is(self, node: int) -> bool:
        return not self.is_tls or node_of(self.certified) == node


class _Outgoing(_Conversation):
    def __init__(self, link: "PeerLink") -> None:
        super().__init__()
        self._link = link

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended changes nothing
        self.transport = None
        self._link.lost(self)

    def take(self, message: m.Message) -> None:
        if isinstance(message, m.Pong) and message.node == self._link.peer:
            self._link.ponged(message)
        else:
            log.warning("node %d answered a PING with %s; closing", self._link.peer, type(message).__name__)
            self.abort()


class PeerLink:
    """Connection to one peer, for as long as it is a member."""

    def __init__(self, owner: Owner, dial: Dial, tasks: Tasks) -> None:
        self.peer = dial.peer
        self._owner = owner
        self._dial = dial
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._conversation: _Outgoing | None = None
        self._is_connecting = False
        self._is_over = False
        self._waiting: deque[m.Message] = deque(maxlen=WAITING_MAX)
        self._answered_at: float | None = None
        """None: no answer on this connection yet."""
        self._opened_at = 0.0

    def say(self, message: m.Message) -> None:
        """Send now, or after connecting. A PING is not queued, as the next one repeats it."""
        if self._conversation is not None and self._is_mute():
            log.info("node %d has not answered for %g s; redialling", self.peer, SILENCE_SECONDS_MAX)
            self._conversation.abort()
            return
        if self._conversation is not None:
            self._conversation.send(self._owner.frame(message))
            return
        if not isinstance(message, m.Ping):
            self._waiting.append(message)
        self._connect_soon()

    def _is_mute(self) -> bool:
        since = self._opened_at if self._answered_at is None else self._answered_at
        return self._loop.time() - since > self._owner.scaled_wait(SILENCE_SECONDS_MAX)

    def _connect_soon(self) -> None:
        if not self._is_connecting and not self._is_over:
            self._is_connecting = True
            self._tasks.spawn(self._connect(), f"gossip with node {self.peer}")

    async def _connect(self) -> None:
        address = self._dial.address()
        try:
            if address is None:
                return
            conversation = await self._dial.open(address, lambda: _Outgoing(self))
        except ConnectionRefusedError:
            self._owner.refused(self.peer)
            return
        except (OSError, TimeoutError):  # failure detection notices the silence
            return
        finally:
            self._is_connecting = False
        if self._is_over or conversation.transport is None:
            conversation.abort()
            return
        self._conversation = conversation
        self._opened_at, self._answered_at = self._loop.time(), None
        for message in (self._owner.ping(), *self._waiting):
            conversation.send(self._owner.frame(message))
        self._waiting.clear()

    def ponged(self, message: m.Pong) -> None:
        self._answered_at = self._loop.time()
        self._owner.ponged(message)

    def lost(self, conversation: _Outgoing) -> None:
        if conversation is not self._conversation:
            return
        self._conversation = None
        if self._answered_at is not None:
            self._connect_soon()

    def abort(self) -> None:
        """Close the link because the peer is no longer a member."""
        self._is_over = True
        if self._conversation is not None:
            self._conversation.abort()
