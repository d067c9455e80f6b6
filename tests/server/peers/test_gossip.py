"""Who is alive, over real sockets: nodes on loopback that answer, refuse, fall silent, leave, lie."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.server.peers.station import Addresses, play, until

from braidlog.model.clock import SystemClock
from braidlog.replication.control import swim
from braidlog.server.peers import certificate_authority as making
from braidlog.server.peers import gossip, gossip_connections
from braidlog.server.peers.certificate_authority import Pair, make_authority, make_node_certificate
from braidlog.server.peers.certificates import PeerTls, peer_tls
from braidlog.server.peers.gossip import Gossip, members_hash
from braidlog.testing.clock import ManualClock
from braidlog.wire.peer import messages as m
from braidlog.wire.peer.connection import write

MEMBERS = swim.Members(((1, 11), (2, 12), (3, 13)))


class Party:
    """Nodes of one cluster, all in this process."""

    def __init__(self) -> None:
        self.addresses: Addresses = {}
        self.nodes: dict[int, Gossip] = {}
        self.verdicts: dict[int, list[swim.Verdict]] = {}
        self.tls: dict[int, PeerTls] = {}

    async def start(self, node: int, incarnation: int | None = None, **options: Any) -> Gossip:
        verdicts: list[swim.Verdict] = []
        self.verdicts[node] = verdicts
        options.setdefault("clock", SystemClock())
        made = Gossip(
            node,
            bytes([node]) * 16,
            address_of=self.addresses.get,
            verdict=verdicts.append,
            tls=self.tls.get(node),
            **options,
        )
        made.registered_as(10 + node if incarnation is None else incarnation)
        await made.start("127.0.0.1", 0)
        self.addresses[node] = "127.0.0.1", made.port
        self.nodes[node] = made
        return made

    async def gather(self, members: swim.Members = MEMBERS) -> None:
        """All know the members, and each has heard of each."""
        for node in self.nodes.values():
            node.handle(members)
        await until(lambda: all(has_heard_all(node) for node in self.nodes.values()))

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()


def stop_ticks(node: Gossip) -> None:
    assert node._timer is not None
    node._timer.cancel()


def has_heard_all(node: Gossip) -> bool:
    return bool(node.swim.peers) and all(peer.has_answered for peer in node.swim.peers)


@asynccontextmanager
async def party(*numbers: int) -> AsyncIterator[Party]:
    made = Party()
    try:
        for number in numbers:
            await made.start(number)
        yield made
    finally:
        await made.stop()


@pytest.fixture(autouse=True)
def never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes this process late, which would only make it wait longer for the verdicts asked for here."""
    monkeypatch.setattr(swim, "LATE_MS", 1_000_000)


@play
async def test_all_hear_of_each_other_and_agree() -> None:
    async with party(1, 2, 3) as nodes:
        await nodes.gather()
        await until(lambda: all(not node.unconfirmed_nodes(MEMBERS.nodes) for node in nodes.nodes.values()))
        assert nodes.nodes[1].unconfirmed_nodes(MEMBERS.nodes[:2]) == [2], "it knows of a third"
        assert not any(nodes.verdicts.values())
        assert all(not node.clock_trouble() for node in nodes.nodes.values())


@play
async def test_a_process_that_is_gone_is_refused_and_found_dead_by_both() -> None:
    async with party(1, 2, 3) as nodes:
        await nodes.gather()
        for number in (1, 2):
            stop_ticks(nodes.nodes[number])  # it takes none: a connection that ends is dialled again at once
        await nodes.nodes.pop(3).stop()
        await until(lambda: nodes.verdicts[1] and nodes.verdicts[2])
        for number in (1, 2):
            (verdict,) = nodes.verdicts[number]
            assert (verdict.node, verdict.incarnation) == (3, 13)
            assert "refuses connections" in verdict.cause


@play
async def test_of_two_nodes_the_other_is_dead_when_it_refuses() -> None:
    async with party(1, 2) as nodes:
        await nodes.gather(swim.Members(MEMBERS.nodes[:2]))
        await nodes.nodes.pop(2).stop()
        await until(lambda: nodes.verdicts[1])
        assert nodes.verdicts[1][0].cause == "refuses connections; no third node can confirm"


@play
async def test_a_process_that_answers_nobody_is_found_dead_by_its_silence() -> None:
    asleep = False
    async with party(1, 2) as nodes:
        await nodes.start(3, is_awake=lambda: not asleep)
        await nodes.gather()
        asleep = True
        await until(lambda: nodes.verdicts[1] and nodes.verdicts[2])
        assert "silent, also towards node" in nodes.verdicts[1][0].cause
        assert nodes.verdicts[1][0].node == nodes.verdicts[2][0].node == 3


@play
async def test_a_node_answers_who_asked_before_it_was_registered() -> None:
    """Without another tick: until it has answered, nobody would find out that it died."""
    async with party(1, 2) as nodes:
        late = await nodes.start(3, incarnation=0)
        for number in (1, 2):
            nodes.nodes[number].handle(MEMBERS)
            stop_ticks(nodes.nodes[number])
        await until(lambda: len(late._incoming) == 2)
        late.registered_as(13)
        await until(lambda: has_heard_all(nodes.nodes[1]) and has_heard_all(nodes.nodes[2]))


@play
async def test_a_silence_between_two_only_is_nobodys_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 1 cannot reach node 3; node 2 can, and says so."""
    async with party(1, 2, 3) as nodes:
        await nodes.gather()
        first, lost = nodes.nodes[1], nodes.nodes[3]
        link = first._links[3]
        reports: list[Any] = []
        asked = first.on_request

        def asked_and_noted(message: m.PingRequest | m.Ack | m.Leave) -> None:
            reports.append(message)
            asked(message)

        monkeypatch.setattr(first, "on_request", asked_and_noted)
        monkeypatch.setattr(link, "say", lambda _: None)
        await until(lambda: len(reports) >= 2)
        assert all(each == m.Ack(2, 3, 13, is_alive=True) for each in reports)
        assert not nodes.verdicts[1]
        assert lost.incarnation == 13


@play
async def test_who_says_that_it_leaves_has_left() -> None:
    async with party(1, 2, 3) as nodes:
        await nodes.gather()
        nodes.nodes[3].leave()
        await until(lambda: nodes.verdicts[1] and nodes.verdicts[2])
        assert nodes.verdicts[1] == [swim.Verdict(3, 13, "left")]


@play
async def test_another_incarnation_and_an_unregistered_node_are_not_the_member() -> None:
    async with party(1) as nodes:
        await nodes.start(2, incarnation=99)
        await nodes.start(3, incarnation=0)
        first = nodes.nodes[1]
        first.handle(MEMBERS)
        await until(lambda: 2 in first._told_hashes)
        assert not any(peer.has_answered for peer in first.swim.peers)
        assert nodes.nodes[3].pong() == b""
        first.handle(swim.Members(((1, 11), (2, 99))))
        await until(lambda: has_heard_all(first))
        assert set(first._links) == {2}, "node 3 is no member any more"


@play
async def test_a_clock_that_is_off_is_said_by_its_own_node_alone() -> None:
    now = SystemClock().now_ms()
    async with party() as nodes:
        for node, off in ((1, 0), (2, 30_000), (3, 600_000)):
            await nodes.start(node, clock=ManualClock(now + off))
        await nodes.gather()
        assert not nodes.nodes[1].clock_trouble()
        assert not nodes.nodes[2].clock_trouble()
        assert "node 3 is 570 s ahead of that of the other nodes" in nodes.nodes[3].clock_trouble()


@play
async def test_of_two_clocks_both_are_doubted() -> None:
    async with party() as nodes:
        for node, off in ((1, 1_000_000), (2, 1_600_000)):
            await nodes.start(node, clock=ManualClock(off))
        await nodes.gather(swim.Members(MEMBERS.nodes[:2]))
        assert "behind" in nodes.nodes[1].clock_trouble()
        assert "ahead" in nodes.nodes[2].clock_trouble()


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionResetError):
        return await reader.read()
    return b""


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n", bytes.fromhex("CAFE0104"), write(bytes(16), m.Pong(2, 12, 0, 0))],
    ids=["HTTP", "a client", "an answer to nothing"],
)
@play
async def test_nonsense_is_closed_upon(data: bytes) -> None:
    async with party(1) as nodes:
        reader, writer = await asyncio.open_connection(*nodes.addresses[1])
        writer.write(data)
        assert await read_to_end(reader) == b""
        writer.close()
        assert not nodes.nodes[1]._incoming


class Full:
    """The transport of who does not read."""

    is_aborted = False
    unsent_bytes = gossip_connections.UNSENT_BYTES_MAX + 1
    written = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return self.is_aborted

    def write(self, _: bytes) -> None:
        """Who is gone: the first write finds out."""
        self.written += 1
        self.is_aborted = True

    def get_extra_info(self, _: str) -> None:
        return None

    def abort(self) -> None:
        self.is_aborted = True


@play
async def test_who_does_not_read_is_cut_off() -> None:
    async with party(1) as nodes:
        transport: Any = Full()
        connection = gossip_connections.Incoming(nodes.nodes[1])
        connection.connection_made(transport)
        connection.data_received(write(bytes(16), m.Ping(1)))
        assert not transport.is_aborted, "uvloop's TLS fails if a transport ends while it hands over what it has read"
        await asyncio.sleep(0)
        assert transport.is_aborted
        connection.connection_lost(None)


@play
async def test_of_many_pings_of_who_is_gone_one_is_answered() -> None:
    """A node that was stopped finds those of seconds when it goes on, and asyncio complains of each answer."""
    async with party(1) as nodes:
        transport: Any = Full()
        transport.unsent_bytes = 0
        connection = gossip_connections.Incoming(nodes.nodes[1])
        connection.connection_made(transport)
        connection.data_received(write(bytes(16), m.Ping(1)) * 20)
        assert transport.written == 1
        connection.connection_lost(None)


@play
async def test_there_are_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    async with party(1) as nodes:
        monkeypatch.setattr(gossip, "INCOMING_MAX", 1)
        kept = await asyncio.open_connection(*nodes.addresses[1])
        kept[1].write(write(bytes(16), m.Ping(1)))
        await until(lambda: nodes.nodes[1]._incoming)
        reader, writer = await asyncio.open_connection(*nodes.addresses[1])
        writer.write(write(bytes(16), m.Ping(1)))
        assert await read_to_end(reader) == b""
        assert len(await kept[0].readexactly(52)) == 52
        for each in (writer, kept[1]):
            each.close()


@play
async def test_a_connection_that_answers_nothing_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As to a machine that went away without a word, and came back."""
    asleep = False
    async with party(1) as nodes:
        await nodes.start(2, is_awake=lambda: not asleep)
        await nodes.gather(swim.Members(MEMBERS.nodes[:2]))
        link = nodes.nodes[1]._links[2]
        before = link._conversation
        assert before is not None
        asleep = True
        monkeypatch.setattr(gossip_connections, "SILENCE_SECONDS_MAX", 0.01)
        await until(lambda: link._conversation not in (None, before))


def test_a_hash_is_of_the_members_in_any_order() -> None:
    assert members_hash(MEMBERS.nodes) == members_hash(MEMBERS.nodes[::-1])
    assert len({members_hash(MEMBERS.nodes[:count]) for count in range(4)}) == 4


# ── Certificates ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_authority(tmp_path_factory.mktemp("ca"), SystemClock())


def tls_of(authority: Pair, folder: Path, node: int) -> PeerTls:
    pair = make_node_certificate(authority, folder, node, SystemClock())
    return peer_tls(str(authority.certificate), str(pair.certificate), str(pair.key))


@play
async def test_nodes_with_certificates_hear_of_each_other(authority: Pair, tmp_path: Path) -> None:
    async with party() as nodes:
        for node in (1, 2, 3):
            nodes.tls[node] = tls_of(authority, tmp_path, node)
            await nodes.start(node)
        await nodes.gather()
        nodes.nodes[3].leave()
        await until(lambda: nodes.verdicts[1] and nodes.verdicts[2])


def is_gone(conversation: Any) -> bool:
    return conversation.transport is None


@play
async def test_nobody_speaks_in_the_name_of_another_node(authority: Pair, tmp_path: Path) -> None:
    async with party() as nodes:
        for node in (1, 2):
            nodes.tls[node] = tls_of(authority, tmp_path, node)
            await nodes.start(node)
        await nodes.gather(swim.Members(MEMBERS.nodes[:2]))
        first = nodes.nodes[1]
        for lie in (m.Leave(1, 11), m.Ack(3, 1, 11, is_alive=False), m.PingRequest(3, 1, 11)):
            before = nodes.nodes[2]._links[1]._conversation
            assert before is not None
            before.send(write(bytes(16), lie))
            await until(partial(is_gone, before))
            await until(lambda: nodes.nodes[2]._links[1]._conversation is not None)
        assert not nodes.verdicts[1]
        assert first.incarnation == 11


@play
async def test_another_node_at_the_address_is_not_the_one_that_was_meant(authority: Pair, tmp_path: Path) -> None:
    async with party() as nodes:
        nodes.tls[1] = tls_of(authority, tmp_path, 1)
        nodes.tls[2] = tls_of(authority, tmp_path, 3)  # it has another node's certificate
        await nodes.start(1)
        await nodes.start(2)
        first = nodes.nodes[1]
        first.handle(swim.Members(MEMBERS.nodes[:2]))
        await until(lambda: 2 in first._links and first._links[2]._is_connecting)
        await until(lambda: not first._links[2]._is_connecting)
        assert first._links[2]._conversation is None
        assert not first._told_hashes


@play
async def test_a_name_that_is_no_nodes_is_turned_away(
    authority: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the cluster's own authority has signed it."""
    async with party() as nodes:
        nodes.tls[1] = tls_of(authority, tmp_path, 1)
        await nodes.start(1)
        monkeypatch.setattr(making, "name_of", lambda _: "alice")
        client = tls_of(authority, tmp_path, 2).client
        reader, writer = await asyncio.open_connection(*nodes.addresses[1], ssl=client, server_hostname="node-1")
        writer.write(write(bytes(16), m.Ping(1)))
        assert await read_to_end(reader) == b""
        writer.close()
        assert not nodes.nodes[1]._incoming
