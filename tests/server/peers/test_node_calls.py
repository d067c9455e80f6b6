"""Calls between two nodes over real sockets: in any order, once, and ended at once with their connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.server.peers.station import Addresses, Station, play, question, until

from braidlog.adapters.contract import Conversation
from braidlog.broker.forwarding import Call
from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError, NothingDoneError, Reason
from braidlog.server.event_loop_runtime import EventLoopRuntime
from braidlog.server.net.scheduler import start
from braidlog.server.peers import node_calls
from braidlog.server.peers.certificate_authority import make_authority, make_node_certificate
from braidlog.server.peers.certificates import peer_tls
from braidlog.server.peers.dialing import Dial
from braidlog.server.peers.node_calls import NodeCalls
from braidlog.storage.group_commit import Flusher
from braidlog.wire.contract import Refused
from braidlog.wire.kafka.messages.calls import CallRequest
from braidlog.wire.kafka.replica_fetch import caller_connection

SECONDS = 60.0


class Caller:
    """Node 2, which calls node 1."""

    def __init__(self, addresses: Addresses) -> None:
        self._flusher = Flusher(SystemClock())
        self.calls = NodeCalls(2, EventLoopRuntime(SystemClock(), self._flusher), addresses.get)

    async def call(self, body: bytes, name: str = "echo") -> bytes:
        return await self.calls.call(1, Call(name, "alice", body), SECONDS)

    async def call_when_it_may(self, body: bytes) -> bytes:
        """After a connection was lost, the next is not made at once."""
        while True:
            try:
                return await self.call(body)
            except NothingDoneError:
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        await self.calls.stop()
        self._flusher.stop()


class Served:
    """What node 1 serves: `echo`, at once or, of a body that begins with `slow`, when it is let go."""

    def __init__(self, station: Station) -> None:
        self.bodies: list[bytes] = []
        self.go_on = asyncio.Event()
        station.peers.adapter.calls.rows |= {"echo": self.echo, "poll": self.poll}
        self.polls = 0
        self._runtime = EventLoopRuntime(SystemClock(), station._flusher)

    async def echo(self, _: Conversation, call: CallRequest) -> bytes:
        self.bodies.append(call.body)
        if call.body.startswith(b"slow"):
            await self.go_on.wait()
        if call.body.startswith(b"no"):
            raise BrokerError(Reason.NOT_LEADER, "not here")
        return call.body + call.principal.encode()

    async def poll(self, _: Conversation, call: CallRequest) -> bytes:
        """A long poll, for as long as a test lasts."""
        self.polls += 1
        try:
            await self._runtime.wakeup(patient=True).wait(SECONDS)
        finally:
            self.polls -= 1
        return call.body


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[Caller, Station, Served]]:
    addresses: Addresses = {}
    async with Station(1, addresses) as station:
        caller = Caller(addresses)
        try:
            yield caller, station, Served(station)
        finally:
            await caller.stop()


@play
async def test_calls_are_answered_in_any_order_each_with_its_own() -> None:
    async with two_nodes() as (caller, station, served):
        slow = asyncio.ensure_future(caller.call(b"slow"))
        await until(lambda: served.bodies)
        large = b"x" * 1_000_000
        assert await asyncio.gather(*(caller.call(b"%d" % n) for n in range(50))) == [b"%dalice" % n for n in range(50)]
        answer = await caller.call(large)
        assert (type(answer), answer) == (bytes, large + b"alice")
        served.go_on.set()
        assert await slow == b"slowalice"
        assert station.listener is not None
        assert len(station.listener.sessions) == 1


@play
async def test_a_refusal_says_that_nothing_was_done_and_why() -> None:
    async with two_nodes() as (caller, _, __):
        with pytest.raises(NothingDoneError, match="not here") as caught:
            await caller.call(b"no")
        assert caught.value.reason is Reason.NOT_LEADER
        with pytest.raises(NothingDoneError, match="serves no call 'other'"):
            await caller.call(b"", name="other")


@play
async def test_what_was_not_sent_was_not_done() -> None:
    """Nobody listens; or its address is not known; or it was tried a moment ago."""
    addresses: Addresses = {1: ("127.0.0.1", 1)}
    caller = Caller(addresses)
    for _ in range(2):
        with pytest.raises(NothingDoneError, match="node 1 is unreachable"):
            await caller.call(b"a")
    await caller.stop()


@play
async def test_who_waits_hears_at_once_that_the_connection_has_ended_and_nothing_is_sent_twice() -> None:
    async with two_nodes() as (caller, station, served):
        waiting = [asyncio.ensure_future(caller.call(b"slow %d" % n)) for n in range(3)]
        await until(lambda: len(served.bodies) == 3)
        assert station.listener is not None
        for session in list(station.listener.sessions):
            session.abort()
        for each in waiting:
            with pytest.raises(BrokerError, match="the outcome of the request is unknown") as caught:
                await each
            assert caught.value.reason is Reason.TIMED_OUT
        assert await caller.call_when_it_may(b"next") == b"nextalice"
        assert served.bodies == [b"slow 0", b"slow 1", b"slow 2", b"next"]


@play
async def test_who_waits_for_a_node_that_was_taken_for_dead_hears_so() -> None:
    async with two_nodes() as (caller, _, served):
        waiting = asyncio.ensure_future(caller.call(b"slow"))
        await until(lambda: served.bodies)
        caller.calls.disconnect_all_except({1})
        assert await caller.call(b"lives") == b"livesalice"
        caller.calls.disconnect_all_except({2})
        with pytest.raises(BrokerError, match="the outcome of the request is unknown"):
            await waiting


@play
async def test_what_its_caller_gave_up_before_it_was_sent_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting = asyncio.Event()
    connect = Dial.connect

    async def late(self: Dial, protocol: Any) -> Any:
        await connecting.wait()
        return await connect(self, protocol)

    monkeypatch.setattr(Dial, "connect", late)
    async with two_nodes() as (caller, _, served):
        with pytest.raises(NothingDoneError):
            await caller.calls.call(1, Call("echo", "alice", b"given up"), 0.001)
        kept = asyncio.ensure_future(caller.call(b"kept"))
        await asyncio.sleep(0)
        connecting.set()
        assert await kept == b"keptalice"
        assert served.bodies == [b"kept"]


@play
async def test_a_long_poll_ends_at_the_other_node_when_its_client_closes() -> None:
    """One that may still read has its answer, with what there is. Another's poll goes on."""
    async with two_nodes() as (caller, _, served):
        ended: list[Any] = []
        calls = [
            caller.calls.call(1, Call("poll", "alice", b"%d" % n, SECONDS, changes=False), SECONDS) for n in range(3)
        ]
        half_closed, gone, other = [start(call, lambda answer, _: ended.append(answer)) for call in calls]
        assert half_closed is not None
        assert gone is not None
        assert other is not None
        await until(lambda: served.polls == 3)
        assert half_closed.run_out()
        await until(lambda: ended)
        assert (ended, served.polls) == ([b"0"], 2)
        gone.cancel()
        await until(lambda: served.polls == 1)
        target = caller.calls._targets[1]
        await until(lambda: len(target._asked) == 1)
        other.cancel()
        await until(lambda: not target._asked)
        assert (ended, target._bytes) == ([b"0"], 0)


@play
async def test_long_polls_leave_room_for_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_calls, "CALLS_MAX", 4)
    async with two_nodes() as (caller, _, served):
        poll = Call("poll", "alice", b"", SECONDS, changes=False)
        polls = [start(caller.calls.call(1, poll, SECONDS), lambda *_: None) for _ in range(2)]
        await until(lambda: served.polls == 2)
        with pytest.raises(NothingDoneError, match="too many calls in flight"):
            await caller.calls.call(1, poll, SECONDS)
        assert await caller.call(b"a") == b"aalice"
        for each in polls:
            assert each is not None
            each.cancel()
        await until(lambda: not served.polls)


@play
async def test_what_is_under_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_calls, "CALLS_MAX", 3)
    monkeypatch.setattr(node_calls, "CALLS_BYTES_MAX", 1000)
    monkeypatch.setattr(node_calls, "BODY_BYTES_MAX", 2000)
    async with two_nodes() as (caller, _, served):
        with pytest.raises(NothingDoneError, match="too many calls in flight"):
            await caller.call(bytes(1001))
        with pytest.raises(BrokerError, match="2001 bytes cannot be forwarded") as caught:
            await caller.call(bytes(2001))
        assert caught.value.reason is Reason.RECORD_TOO_LARGE
        waiting = [asyncio.ensure_future(caller.call(b"slow")) for _ in range(3)]
        await until(lambda: len(served.bodies) == 3)
        with pytest.raises(NothingDoneError, match="too many calls in flight"):
            await caller.call(b"a")
        served.go_on.set()
        await asyncio.gather(*waiting)
        assert await caller.call(b"a") == b"aalice"


@play
async def test_a_connection_is_for_calls_or_for_a_follower() -> None:
    addresses: Addresses = {}
    async with Station(1, addresses) as leader, Station(2, addresses) as follower:
        served = Served(leader)
        follower.peers.send(1, (b"0123456789abcdef", 0), question())
        await until(lambda: leader.heard)
        link = follower.peers.fetcher(1)._link
        assert link is not None
        link._connection = caller_connection()
        link.send(CallRequest("echo", "mallory", b"a"))
        await until(lambda: not link.is_open)
        assert served.bodies == []


@play
async def test_only_a_node_may_call_where_certificates_are_asked_for(tmp_path: Path) -> None:
    """Node 1 itself, or a name that is no node's, is closed upon; node 2 is served."""
    authority = make_authority(tmp_path, SystemClock())
    tls = {}
    for number in (1, 2):
        own = make_node_certificate(authority, tmp_path, number, SystemClock())
        tls[number] = peer_tls(str(authority.certificate), str(own.certificate), str(own.key))
    addresses: Addresses = {}
    async with Station(1, addresses, server_tls=tls[1].server, client_tls=tls[1].client) as station:
        served = Served(station)
        flusher = Flusher(SystemClock())
        runtime = EventLoopRuntime(SystemClock(), flusher)
        for number, is_served in ((1, False), (2, True)):
            calls = NodeCalls(number, runtime, addresses.get, tls[number].client)
            asked = calls.call(1, Call("echo", "alice", b"a"), SECONDS)
            if is_served:
                assert await asked == b"aalice"
            else:
                with pytest.raises(BrokerError):
                    await asked
                assert served.bodies == []
            await calls.stop()
        flusher.stop()


def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    connection = caller_connection()
    connection.request(CallRequest("echo", "a", b""))
    connection.receive(b"\x00\x00\x00\x08\x00\x00\x00\x01\x00\x01\x01\x01")
    assert isinstance(connection.next_event(), Refused)
