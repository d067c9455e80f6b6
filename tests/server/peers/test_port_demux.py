"""One port for gossip and keys, over real sockets: each connection goes where its first bytes say, certificates or not."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.server.peers.station import Addresses, play, until

from braidlog.adapters.contract import Conversation
from braidlog.broker.forwarding import Call
from braidlog.broker.keys.kv_peer_service import KeyPeerService
from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError, NothingDoneError
from braidlog.replication.control import swim
from braidlog.server.event_loop_runtime import EventLoopRuntime
from braidlog.server.net.connection_limits import ConnectionLimits, SessionLimits
from braidlog.server.net.listener import Listener
from braidlog.server.net.memory_budget import Budget
from braidlog.server.peers import gossip_thread, port_demux
from braidlog.server.peers.certificate_authority import make_authority, make_node_certificate
from braidlog.server.peers.certificates import PeerTls, peer_tls
from braidlog.server.peers.gossip_thread import GossipThread
from braidlog.server.peers.kv_peer_client import KeyCalls
from braidlog.storage.group_commit import Flusher
from braidlog.tasks import Tasks
from braidlog.wire.mayfly import messages as mm
from braidlog.wire.mayfly.connection import Request, write_request
from braidlog.wire.peer import messages as m
from braidlog.wire.peer.asking import ServingConnection
from braidlog.wire.peer.connection import Frame, write

GET = write_request(Request(9, mm.Get(b"k")), 1)
FORWARD = m.Forward(1, 2, 2, 1, bytes(28), "ann", b"\x00\x01k")


class Echo:
    """An adapter: what was forwarded comes back as the answer's body."""

    dialect = "peer"
    ordered = False

    def __init__(self) -> None:
        self.principals: list[str] = []

    def open(self) -> ServingConnection:
        return ServingConnection(bytes(16))

    def operation(self, request: Frame) -> str:
        return "any"

    async def handle(self, conversation: Conversation, request: Frame) -> m.Message:
        self.principals.append(conversation.principal)
        message = request.message
        assert isinstance(message, m.Forward)
        return m.Answer(message.request, 1, message.body + request.sender)

    def failure(self, request: Frame, error: Exception) -> m.Message:
        raise error

    def throttled(self, answer: Any, milliseconds: int) -> Any:
        return answer


class Node:
    """Gossip on its thread, keys on this loop, one port."""

    def __init__(self, number: int, addresses: Addresses, tls: tuple[PeerTls, PeerTls] | None = None) -> None:
        self.number, self.addresses = number, addresses
        self._flusher = Flusher(SystemClock())
        self.runtime = EventLoopRuntime(SystemClock(), self._flusher)
        self._tasks = Tasks()
        self.adapter = Echo()
        own, gossips = tls or (None, None)
        self.listener = Listener(
            self.adapter,
            session_limits=SessionLimits(),
            connection_limits=ConnectionLimits(),
            budget=Budget(2**30),
            tls=own.server if own else None,
        )
        self.gossip = GossipThread(
            number, bytes([number]) * 16, SystemClock(), addresses.get, lambda _: None, tls=gossips, keys=self.adopt
        )
        exchange = KeyPeerService(bytes([number]) * 16, self.runtime)
        routing: Any = None
        self.questions = KeyCalls(number, self.runtime, addresses.get, exchange, routing, own.keys if own else None)

    def adopt(self, connected: socket.socket) -> None:
        self._tasks.spawn(self.listener.adopt(connected), "adopt")

    async def start(self) -> None:
        self.gossip.registered_as(10 + self.number)
        await self.gossip.start("127.0.0.1", 0)
        self.addresses[self.number] = "127.0.0.1", self.gossip.port

    async def stop(self) -> None:
        await self.questions.stop()
        await self.gossip.stop()
        await self.listener.stop(0)
        await self._tasks.stop()
        self._flusher.stop()

    def has_heard(self) -> bool:
        gossip = self.gossip._gossip
        return gossip is not None and bool(gossip.swim.peers) and all(peer.has_answered for peer in gossip.swim.peers)


@asynccontextmanager
async def nodes(tls: dict[int, tuple[PeerTls, PeerTls]] | None = None) -> AsyncIterator[tuple[Node, Node]]:
    addresses: Addresses = {}
    one, two = (Node(number, addresses, None if tls is None else tls[number]) for number in (1, 2))
    try:
        await one.start()
        await two.start()
        yield one, two
    finally:
        await one.stop()
        await two.stop()


def certificates(folder: Path) -> dict[int, tuple[PeerTls, PeerTls]]:
    authority = make_authority(folder, SystemClock())
    made = {}
    for number in (1, 2):
        own = make_node_certificate(authority, folder, number, SystemClock())
        files = str(authority.certificate), str(own.certificate), str(own.key)
        made[number] = peer_tls(*files), peer_tls(*files)
    return made


async def both_are_served(one: Node, two: Node) -> None:
    for node in (one, two):
        node.gossip.handle(swim.Members(((1, 11), (2, 12))))
    answer = await two.questions.call(1, Call("mayfly", "ann", GET), 60.0)
    assert answer[:12] == b"\xca\xfe\x01\x01" + b"\x00\x00\x00\x09" + b"\x00\x00\x00\x13"
    assert answer[12:] == b"\x00\x01k" + bytes([2]) * 16
    await until(lambda: one.has_heard() and two.has_heard())
    assert len(one.listener.sessions) == 1, "gossip is not among them"


@play
async def test_gossip_and_keys_share_a_port() -> None:
    async with nodes() as (one, two):
        await both_are_served(one, two)
        assert one.adapter.principals == ["anonymous"]


@play
async def test_with_certificates_the_handshake_says_which_it_is(tmp_path: Path) -> None:
    async with nodes(certificates(tmp_path)) as (one, two):
        await both_are_served(one, two)
        assert one.adapter.principals == ["node-2"]
        # A connection without the name is gossip's, which does not speak of keys; one without a certificate is nobody's.
        two.questions._tls = certificates(tmp_path / "other")[2][0].keys
        two.questions._targets.clear()
        with pytest.raises(BrokerError):
            await two.questions.call(1, Call("mayfly", "ann", GET), 60.0)
        plain = Node(3, one.addresses)
        with pytest.raises(BrokerError):
            await plain.questions.call(1, Call("mayfly", "ann", GET), 60.0)
        await plain.stop()
        assert one.adapter.principals == ["node-2"]


def test_a_handshake_that_comes_byte_by_byte_is_waited_for(tmp_path: Path) -> None:
    tls = certificates(tmp_path)
    for context, wanted in ((tls[2][0].keys, True), (tls[2][0].client, False)):
        hello = ssl.MemoryBIO()
        handshake = context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="node-1")
        with pytest.raises(ssl.SSLWantReadError):
            handshake.do_handshake()
        said = hello.read()
        assert {port_demux._offers_keys(said[:size]) for size in range(1, len(said))} == {None}
        assert port_demux._offers_keys(said) is wanted
    assert port_demux._offers_keys(b"GET / HTTP/1.1") is False
    assert port_demux._offers_keys(b"\x16\x03\x01\xff\xff" + bytes(port_demux.LOOK_BYTES)) is False


@pytest.mark.parametrize("size", [1, 2, 3, 4, 23, 30])
def test_a_first_message_in_pieces_goes_where_it_belongs(size: int) -> None:
    forward, ping = write(bytes(16), FORWARD), write(bytes(16), m.Ping(1))
    assert port_demux._is_keys(forward[:size]) is (None if size < 4 else True)
    assert port_demux._is_keys(ping[:size]) is (None if size < 4 else False)
    assert port_demux._is_keys(b"\xca\xfe\x01\x02"[:size]) is False, "gossip closes upon it"


@play
async def test_a_first_message_is_waited_for_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes() as (one, _):
        reader, writer = await asyncio.open_connection(*one.addresses[1])
        frame = write(bytes(16), FORWARD)
        for at in range(4):
            writer.write(frame[at : at + 1])
            await asyncio.sleep(0.001)
        writer.write(frame[4:])
        assert (await reader.readexactly(24))[3] == 0x12
        writer.close()
        monkeypatch.setattr(port_demux, "FIRST_BYTES_SECONDS_MAX", 0.01)
        for begun in (b"", frame[:3]):
            reader, writer = await asyncio.open_connection(*one.addresses[1])
            writer.write(begun)
            with contextlib.suppress(ConnectionResetError):  # the kernel's word for bytes that nobody read
                assert await reader.read() == b""
            writer.close()


@play
async def test_there_are_so_many_that_have_not_said_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_demux, "UNDECIDED_MAX", 1)
    async with nodes() as (one, _):
        waiting = await asyncio.open_connection(*one.addresses[1])
        gossip = one.gossip._gossip
        assert gossip is not None
        assert gossip._ports is not None
        await until(lambda: gossip._ports._undecided)  # type: ignore[union-attr]
        turned_away = await asyncio.open_connection(*one.addresses[1])
        assert await turned_away[0].read() == b""
        waiting[1].write(write(bytes(16), FORWARD))
        assert (await waiting[0].readexactly(24))[3] == 0x12
        for each in (waiting, turned_away):
            each[1].close()


@play
async def test_a_loop_that_takes_no_connections_over_has_so_many_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip_thread, "HANDED_OVER_MAX", 0)
    async with nodes() as (_, two):
        with pytest.raises(BrokerError) as caught:
            await two.questions.call(1, Call("mayfly", "ann", GET), 60.0)
        assert not isinstance(caught.value, NothingDoneError), "it was sent, and nobody knows"
