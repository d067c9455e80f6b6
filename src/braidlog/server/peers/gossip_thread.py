"""Runs gossip on its own thread, so that a node with a briefly busy event loop is not declared dead.

Invariants: verdicts are delivered on the node's event loop, and the thread touches nothing else of the node. A node
whose event loop is blocked for `AWAKE_SECONDS_MAX`, or longer under load, answers no PING: it does not serve, and
another node should take over.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from braidlog.model.clock import Clock
from braidlog.replication.control import swim
from braidlog.server.peers.certificates import PeerTls
from braidlog.server.peers.dialing import Address, AddressOf
from braidlog.server.peers.gossip import Gossip, Verdicts
from braidlog.server.peers.gossip_connections import Incoming, Owner
from braidlog.server.peers.port_demux import Take
from braidlog.server.process.file_descriptors import Complaints

BEAT_SECONDS: Final = 0.1
AWAKE_SECONDS_MAX: Final = 1.0
HANDED_OVER_MAX: Final = 256


class GossipThread:
    """A `Gossip` for a node's event loop, which creates, calls and stops it."""

    def __init__(  # noqa: PLR0913 - what it works with, and a setting
        self,
        node: int,
        sender: bytes,
        clock: Clock,
        address_of: AddressOf,
        verdict: Verdicts,
        *,
        tls: PeerTls | None = None,
        keys: Take = socket.socket.close,
        incoming: Callable[[Owner], Incoming] = Incoming,
        silence_ms: int = swim.SILENCE_MS_MAX,
    ) -> None:
        """`keys` is called on the node's event loop with connections that are not gossip."""
        self._clock = clock
        self._address_of = address_of
        self._verdict = verdict
        self._tls = tls
        self._keys = keys
        self._make = partial(
            Gossip,
            node,
            sender,
            clock,
            self._address,
            self._accused,
            tls=tls,
            is_awake=self.is_awake,
            keys=self._hand_over,
            incoming=incoming,
            silence_ms=silence_ms,
        )
        """On the thread: its loop is the one that runs there."""
        self._handed_over = 0
        """Number of connections in transfer to the node's event loop."""
        self._home = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._gossip: Gossip | None = None
        self._early: list[Callable[[Gossip], None]] = []
        """Calls made before the start."""
        self._addresses: dict[int, Address | None] = {}
        self._beat = clock.monotonic()
        self._beating: asyncio.TimerHandle | None = None
        self.port = 0

    async def start(self, host: str, port: int, bound: Sequence[socket.socket] = ()) -> None:
        self._beat_on()
        loop = self._loop = asyncio.new_event_loop()
        loop.set_exception_handler(Complaints())
        self._thread = threading.Thread(target=loop.run_forever, name="braidlog-gossip", daemon=True)
        self._thread.start()
        made = asyncio.run_coroutine_threadsafe(self._begin(host, port, bound), loop)
        self._gossip = await asyncio.wrap_future(made)
        self.port = self._gossip.port
        for each in self._early:
            self._do(each)
        self._early.clear()

    async def _begin(self, host: str, port: int, bound: Sequence[socket.socket]) -> Gossip:
        gossip = self._make()
        await gossip.start(host, port, bound)
        return gossip

    def _address(self, node: int) -> Address | None:
        return self._addresses.get(node)

    def _accused(self, verdict: swim.Verdict) -> None:
        self._home.call_soon_threadsafe(self._verdict, verdict)

    def _hand_over(self, connected: socket.socket) -> None:
        if self._handed_over >= HANDED_OVER_MAX:
            connected.close()
            return
        self._handed_over += 1
        self._home.call_soon_threadsafe(self._take_over, connected)

    def _take_over(self, connected: socket.socket) -> None:
        self._handed_over -= 1
        self._keys(connected)

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        if self._gossip is not None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._gossip.stop(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await self._home.run_in_executor(None, self._thread.join)
        loop.close()

    # -- called by the node ----------------------------------------------------------------------------------

    def handle(self, message: swim.SwimMessage) -> None:
        if isinstance(message, swim.Members):
            # Looked up here, because the metadata belongs to the node's event loop.
            self._addresses = {node: self._address_of(node) for node, _ in message.nodes}
        self._do(lambda gossip: gossip.handle(message))

    def registered_as(self, incarnation: int) -> None:
        self._do(lambda gossip: gossip.registered_as(incarnation))

    def leave(self) -> None:
        self._do(lambda gossip: gossip.leave())

    def reload_certificates(self) -> None:
        tls = self._tls
        if tls is not None:
            self._do(lambda _: tls.reload())

    def _do(self, work: Callable[[Gossip], None]) -> None:
        """Run work on the gossip thread, in call order."""
        if self._gossip is None:
            self._early.append(work)
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(work, self._gossip)

    # -- health ----------------------------------------------------------------------------------------------

    def clock_trouble(self) -> str:
        return "" if self._gossip is None else self._gossip.clock_trouble()

    def unconfirmed_nodes(self, members: Sequence[tuple[int, int]]) -> list[int]:
        return [] if self._gossip is None else self._gossip.unconfirmed_nodes(members)

    # -- whether the event loop runs -------------------------------------------------------------------------

    def _beat_on(self) -> None:
        self._beat = self._clock.monotonic()
        self._beating = self._home.call_later(BEAT_SECONDS, self._beat_on)

    def is_awake(self) -> bool:
        """Whether the node's event loop runs; called by the gossip thread. A node short of CPU time is given more
        time.
        """
        patience = AWAKE_SECONDS_MAX if self._gossip is None else self._gossip.scaled_wait(AWAKE_SECONDS_MAX)
        return self._clock.monotonic() - self._beat < patience
