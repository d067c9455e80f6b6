"""Failure detection over sockets: carries out the steps of `replication/control/swim.py` between this node and the others.

Does not handle: the effect of a verdict, the source of the members.
Invariants: a PING is answered in the event loop turn that reads it, before any other work for it. Each peer has one
connection from this node, which carries this node's messages and the peer's PONGs, and one to this node for the
reverse. All timing uses the monotonic clock; the wall clock is only reported to peers. With certificates, a node is
believed only about itself.
"""

import asyncio
import hashlib
import logging
import random
import socket
import struct
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from braidlog.model.clock import Clock
from braidlog.replication.control import swim
from braidlog.server.net.ports import listen
from braidlog.server.peers.certificates import PeerTls
from braidlog.server.peers.dialing import AddressOf, Dial
from braidlog.server.peers.gossip_connections import Incoming, Owner, PeerLink
from braidlog.server.peers.port_demux import PortDemux, Take
from braidlog.tasks import Tasks
from braidlog.wire.peer import messages as m
from braidlog.wire.peer.connection import write

log = logging.getLogger("braidlog.gossip")

PORT: Final = 8275
SKEW_MS_MAX: Final = 60_000
INCOMING_MAX: Final = 256
HANDSHAKE_SECONDS_MAX: Final = 5.0

Verdicts = Callable[[swim.Verdict], None]


class Gossip:
    """Gossip of one node. Pass the members and the state of the metadata to `handle`; it calls `verdict`."""

    def __init__(  # noqa: PLR0913 - what it works with, and a setting
        self,
        node: int,
        sender: bytes,
        clock: Clock,
        address_of: AddressOf,
        verdict: Verdicts,
        *,
        tls: PeerTls | None = None,
        is_awake: Callable[[], bool] = lambda: True,
        keys: Take = socket.socket.close,
        incoming: Callable[[Owner], Incoming] = Incoming,
        silence_ms: int = swim.SILENCE_MS_MAX,
    ) -> None:
        """`keys` takes connections that are not gossip."""
        self.node = node
        self.sender = sender
        self.incarnation = 0
        """0: not registered yet, so PINGs get no answer."""
        self.swim = swim.Swim(node=node, silence_ms=silence_ms)
        self.port = 0
        self._clock = clock
        self._address_of = address_of
        self._verdict = verdict
        self._tls = tls
        self._is_awake = is_awake
        self._keys = keys
        self._make_incoming = incoming
        self._draw = random.Random()  # noqa: S311 - the choice of peers to ping is no secret
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._ports: PortDemux | None = None
        self._accepted: set[socket.socket] = set()
        """Accepted connections whose task has not started yet, closed at stop."""
        self._incoming: set[Incoming] = set()
        self._links: dict[int, PeerLink] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._members_hash = 0
        self._told_hashes: dict[int, int] = {}
        self._skews_ms: dict[int, int] = {}

    async def start(self, host: str, port: int, bound: Sequence[socket.socket] = ()) -> None:
        listening = bound or listen(host, port, "cluster")
        self._ports = PortDemux(listening, self._take, self._keys, is_tls=self._tls is not None)
        self.port = listening[0].getsockname()[1]
        self._tick()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ports is not None:
            self._ports.close()
        for link in self._links.values():
            link.abort()
        for connection in self._incoming:
            connection.abort()
        self._links.clear()
        await self._tasks.stop()
        for connected in self._accepted:
            connected.close()

    def _take(self, connected: socket.socket) -> None:
        self._accepted.add(connected)
        self._tasks.spawn(self._open(connected), "gossip of a node")

    async def _open(self, connected: socket.socket) -> None:
        self._accepted.discard(connected)
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_incoming(self),
                connected,
                ssl=self._tls.server if self._tls else None,
                ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX if self._tls else None,
            )
        except OSError as error:  # includes ssl's errors
            log.warning("closing a connection to the peer port: %s", error)
            connected.close()

    def registered_as(self, incarnation: int) -> None:
        """Answer with this incarnation from now on, also to earlier PINGs."""
        self.incarnation = incarnation
        for connection in self._incoming:
            connection.send(self.pong())

    def leave(self) -> None:
        """Announce that this node stops, so that peers need not detect it."""
        for link in self._links.values():
            link.say(m.Leave(self.node, self.incarnation))

    # -- the steps -------------------------------------------------------------------------------------------

    def handle(self, message: swim.SwimMessage) -> None:
        if isinstance(message, swim.Members):
            self._take_members(message)
        self.swim, ready = swim.step(self.swim, message, self._now_ms())
        for each in ready.send:
            match each:
                case swim.Ping(node):
                    self._say(node, self.ping())
                case swim.AskWitness(witness, node, incarnation):
                    self._say(witness, to_wire(swim.PingRequest(self.node, node, incarnation)))
                case swim.SendReport(to, report):
                    self._say(to, to_wire(report))
        for verdict in ready.verdicts:
            log.warning("node %d, incarnation %d: %s", verdict.node, verdict.incarnation, verdict.cause)
            self._verdict(verdict)

    def _take_members(self, message: swim.Members) -> None:
        self._members_hash = members_hash(message.nodes)
        others = {node for node, _ in message.nodes} - {self.node}
        for node in set(self._links) - others:
            self._links.pop(node).abort()
            self._skews_ms.pop(node, None)
            self._told_hashes.pop(node, None)

    def scaled_wait(self, seconds: float) -> float:
        """A wait defined for the default `silence_ms`, scaled to this node's setting and current doubt."""
        wanted_ms = int(seconds * 1000 * self.swim.silence_ms / swim.SILENCE_MS_MAX)
        return self.swim.extended_wait(wanted_ms, self._now_ms()) / 1000

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _tick(self) -> None:
        # From now, not from the due time: missed ticks are not repeated.
        self._timer = self._loop.call_later(swim.PING_MS / 1000, self._tick)
        self.handle(swim.Tick(self._draw.getrandbits(16)))

    def _say(self, node: int, message: m.Message) -> None:
        link = self._links.get(node)
        if link is None:
            tls = self._tls.client if self._tls else None
            link = self._links[node] = PeerLink(self, Dial(self.node, node, self._address_of, tls), self._tasks)
        link.say(message)

    # -- callbacks of connections ----------------------------------------------------------------------------

    def frame(self, message: m.Message) -> bytes:
        return write(self.sender, message)

    def ping(self) -> m.Ping:
        return m.Ping(self._members_hash)

    def pong(self) -> bytes:
        """The answer to a PING; empty if this node is not registered, or its event loop is blocked."""
        if not self.incarnation or not self._is_awake():
            return b""
        return self.frame(m.Pong(self.node, self.incarnation, self._clock.now_ms(), self._members_hash))

    def ponged(self, message: m.Pong) -> None:
        self._skews_ms[message.node] = message.wall_ms - self._clock.now_ms()
        self._told_hashes[message.node] = message.members_hash
        self.handle(from_wire(message))

    def refused(self, node: int) -> None:
        if node in self._links:
            self.handle(swim.ConnectionRefused(node))

    def on_request(self, message: m.PingRequest | m.Ack | m.Leave) -> None:
        """Handle a message on another node's own connection."""
        self.handle(from_wire(message))

    def opened(self, connection: Incoming) -> bool:
        """Register a connection; False if the limit is reached."""
        if len(self._incoming) >= INCOMING_MAX:
            return False
        self._incoming.add(connection)
        return True

    def closed(self, connection: Incoming) -> None:
        self._incoming.discard(connection)

    # -- health ----------------------------------------------------------------------------------------------

    def clock_trouble(self) -> str:
        """Description of a wrong wall clock of this node, compared with its peers; empty if it is right."""
        # The own skew of 0 is included: among three clocks, one wrong clock does not change the median.
        skew_ms = median([0, *self._skews_ms.values()])
        if abs(skew_ms) <= SKEW_MS_MAX:
            return ""
        way = "behind" if skew_ms > 0 else "ahead of"
        return (
            f"the clock of node {self.node} is {abs(skew_ms) / 1000:.0f} s {way} that of the other nodes: "
            "set it (NTP); until then retention by age is suspended here"
        )

    def unconfirmed_nodes(self, members: Sequence[tuple[int, int]]) -> list[int]:
        """The nodes of `members` that have not yet confirmed exactly this membership."""
        wanted, reported = members_hash(members), dict(self._told_hashes)
        return [node for node, _ in members if node != self.node and reported.get(node) != wanted]


def to_wire(message: swim.PingRequest | swim.WitnessReport) -> m.PingRequest | m.Ack:
    match message:
        case swim.PingRequest(by, node, incarnation):
            return m.PingRequest(by, node, incarnation)
        case swim.WitnessReport(by, node, incarnation, is_alive, is_refused):
            return m.Ack(by, node, incarnation, is_alive, is_refused)


def from_wire(message: m.Pong | m.PingRequest | m.Ack | m.Leave) -> swim.SwimMessage:
    match message:
        case m.Pong(node, incarnation):
            return swim.Pong(node, incarnation)
        case m.PingRequest(by, node, incarnation):
            return swim.PingRequest(by, node, incarnation)
        case m.Ack(by, node, incarnation, is_alive, is_refused):
            return swim.WitnessReport(by, node, incarnation, is_alive, is_refused)
        case m.Leave(node, incarnation):
            return swim.Leave(node, incarnation)


def members_hash(nodes: Sequence[tuple[int, int]]) -> int:
    data = b"".join(struct.pack(">IQ", node, incarnation) for node, incarnation in sorted(nodes))
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
