"""A node whose loop is busy answers all the same, for a while."""

import asyncio
import socket
import threading

import pytest
from tests.server.peers.station import Addresses, play, until

from braidlog.model.clock import SystemClock
from braidlog.replication.control import swim
from braidlog.server.peers import gossip_thread
from braidlog.server.peers.gossip_thread import GossipThread
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.peer import messages as m
from braidlog.wire.peer.connection import Frame, PeerConnection, write

MEMBERS = swim.Members(((1, 11), (2, 12)))


class Node:
    def __init__(self, number: int, addresses: Addresses) -> None:
        self.number = number
        self.addresses = addresses
        self.verdicts: list[tuple[swim.Verdict, threading.Thread]] = []
        self.gossip = GossipThread(number, bytes(16), SystemClock(), addresses.get, self.accused)

    def accused(self, verdict: swim.Verdict) -> None:
        self.verdicts.append((verdict, threading.current_thread()))

    async def start(self) -> None:
        self.gossip.registered_as(10 + self.number)
        await self.gossip.start("127.0.0.1", 0)
        self.addresses[self.number] = "127.0.0.1", self.gossip.port

    def has_heard(self) -> bool:
        gossip = self.gossip._gossip
        return gossip is not None and all(peer.has_answered for peer in gossip.swim.peers) and bool(gossip.swim.peers)


def ask(address: tuple[str, int]) -> m.Message:
    """Blocking: whoever calls this does nothing else meanwhile."""
    connection = PeerConnection()
    with socket.create_connection(address, timeout=60) as asked:
        asked.sendall(write(bytes(16), m.Ping(0)))
        while (event := connection.next_event()) is NEED_DATA:
            connection.receive(asked.recv(1000))
    assert isinstance(event, Frame)
    return event.message


@play
async def test_a_ping_is_answered_while_the_loop_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip_thread, "AWAKE_SECONDS_MAX", 1000.0)
    node = Node(1, {})
    await node.start()
    try:
        answer = ask(node.addresses[1])
        assert isinstance(answer, m.Pong)
        assert (answer.node, answer.incarnation) == (1, 11)
    finally:
        await node.gossip.stop()


@play
async def test_a_loop_that_does_not_turn_is_not_covered_for_ever() -> None:
    node = Node(1, {})
    await node.start()
    try:
        gossip = node.gossip._gossip
        assert gossip is not None
        await until(gossip.pong)
        node.gossip._beat -= gossip_thread.AWAKE_SECONDS_MAX
        assert gossip.pong() == b"", "its loop turns, but only after this line"
        await until(node.gossip.is_awake)
    finally:
        await node.gossip.stop()


@play
async def test_verdicts_are_told_on_the_nodes_own_loop() -> None:
    addresses: Addresses = {}
    one, two = Node(1, addresses), Node(2, addresses)
    try:
        await one.start()
        await two.start()
        for node in (one, two):
            node.gossip.handle(MEMBERS)
        await until(lambda: one.has_heard() and two.has_heard())
        assert (one.gossip.clock_trouble(), one.gossip.unconfirmed_nodes([])) == ("", [])
        two.gossip.leave()
        await until(lambda: one.verdicts)
        ((verdict, thread),) = one.verdicts
        assert (verdict.node, verdict.incarnation, thread) == (2, 12, threading.main_thread())
    finally:
        await asyncio.gather(one.gossip.stop(), two.gossip.stop())
    assert not any(each.name == "braidlog-gossip" for each in threading.enumerate())


@play
async def test_one_that_cannot_start_can_be_stopped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        node = Node(1, {})
        with pytest.raises(Exception, match="cannot listen"):
            await node.gossip.start("127.0.0.1", taken.getsockname()[1])
        await node.gossip.stop()
