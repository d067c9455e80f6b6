"""A port: clients that are gone give their places back, whether they are read from or not."""

import asyncio
import contextlib
import fcntl
import socket
import ssl
import struct
import termios
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trustme
import uvloop
from tests.server.toy import ToyAdapter

from braidlog.server.net.connection_limits import ConnectionLimits, SessionLimits
from braidlog.server.net.listener import Listener
from braidlog.server.net.memory_budget import Budget
from braidlog.server.net.scheduler import SLICE_SECONDS

SECONDS_MAX = 60.0
Runner = Callable[..., Any]
RUNNERS = pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
ENDS = pytest.mark.parametrize("is_reset", [False, True])


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def unacknowledged(peer: socket.socket) -> int:
    """Return how many sent bytes the other end's kernel does not have yet."""
    (count,) = struct.unpack("i", fcntl.ioctl(peer, termios.TIOCOUTQ, b"\0" * 4))
    return int(count)


class Port:
    """A listener of the toy dialect, and clients that block nobody."""

    def __init__(
        self, authority: trustme.CA | None, limits: SessionLimits, connection_limits: ConnectionLimits | None
    ) -> None:
        self.adapter = ToyAdapter()
        self.client_tls: ssl.SSLContext | None = None
        self.server_tls: ssl.SSLContext | None = None
        if authority is not None:
            self.server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            authority.issue_cert("localhost").configure_cert(self.server_tls)
            self.client_tls = ssl.create_default_context()
            authority.configure_trust(self.client_tls)
        self.listener = Listener(
            self.adapter,
            session_limits=limits,
            connection_limits=ConnectionLimits() if connection_limits is None else connection_limits,
            budget=Budget(2**30),
            tls=self.server_tls,
        )

    def _connect(self, said: bytes) -> socket.socket:
        peer = socket.create_connection(("127.0.0.1", self.listener.port), SECONDS_MAX)
        if self.client_tls is not None:
            peer = self.client_tls.wrap_socket(peer, server_hostname="localhost")
        peer.sendall(said)
        return peer

    async def connect(self, said: bytes) -> socket.socket:
        return await asyncio.to_thread(self._connect, said)

    async def swept_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while not condition():
                await self.listener.sweep()
                await asyncio.sleep(0.001)


def play(
    runner: Runner,
    scene: Callable[[Port], Any],
    authority: trustme.CA | None = None,
    limits: SessionLimits | None = None,
    connection_limits: ConnectionLimits | None = None,
) -> None:
    async def run() -> None:
        port = Port(authority, limits or SessionLimits(), connection_limits)
        await port.listener.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(2 * SECONDS_MAX):
                await scene(port)
        finally:
            await port.listener.stop(0)

    runner(run())


def leave(peer: socket.socket, *, is_reset: bool) -> None:
    """Without a word of TLS: the program is gone."""
    if is_reset:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def read_all(peer: socket.socket) -> bytes:
    """Until the server closes, or resets."""
    found = b""
    with contextlib.suppress(ConnectionError), peer:
        while data := peer.recv(1024):
            found += data
    return found


async def later(port: Port) -> None:
    """When the loop's clock, which has milliseconds, has moved on."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    await port.swept_until(lambda: loop.time() > now)


@RUNNERS
@ENDS
@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("room", [1, 1024])
def test_a_client_that_is_gone_gives_its_place_back_while_a_long_poll_waits(
    runner: Runner, authority: trustme.CA, *, is_reset: bool, has_tls: bool, room: int
) -> None:
    """With room for one request the connection is not read from meanwhile, and no loop reports that its client is gone."""

    async def scene(port: Port) -> None:
        peer = await port.connect(b"long 1\n")
        await port.swept_until(lambda: "1" in port.adapter.waiting)
        leave(peer, is_reset=is_reset)
        await port.swept_until(lambda: not port.listener.sessions)
        assert port.adapter.ended == ["long 1"]

    play(runner, scene, authority if has_tls else None, SessionLimits(in_flight_max=room))


@RUNNERS
def test_a_client_that_has_closed_one_half_reads_its_answers(runner: Runner) -> None:
    async def scene(port: Port) -> None:
        peer = await port.connect(b"long 1\ntwo\n")
        peer.shutdown(socket.SHUT_WR)
        assert await asyncio.to_thread(read_all, peer) == b"nothing\nok two\n"

    play(runner, scene)


@RUNNERS
def test_a_change_is_finished_for_a_client_that_is_not_read_from_and_has_closed_one_half(runner: Runner) -> None:
    async def scene(port: Port) -> None:
        peer = await port.connect(b"wait 1\ntwo\n")
        peer.shutdown(socket.SHUT_WR)
        await port.swept_until(lambda: "1" in port.adapter.waiting)
        await port.listener.sweep()
        port.adapter.release("1")
        assert await asyncio.to_thread(read_all, peer) == b"ok 1\nok two\n"

    play(runner, scene, limits=SessionLimits(in_flight_max=1))


@RUNNERS
def test_at_the_connection_limit_who_waits_gives_way_to_who_comes(runner: Runner) -> None:
    async def scene(port: Port) -> None:
        waiting: list[socket.socket] = []
        for number in range(3):
            waiting.append(await port.connect(f"long {number}\n".encode()))
            await port.swept_until(lambda: len(port.adapter.waiting) == len(waiting))
            await later(port)
        newcomer = await port.connect(b"hello\n")
        assert await asyncio.to_thread(newcomer.recv, 100) == b"ok hello\n"
        assert await asyncio.to_thread(read_all, waiting[0]) == b"", "it has waited for longest"
        assert len(port.listener.sessions) == 3
        for each in (*waiting, newcomer):
            each.close()

    play(runner, scene, connection_limits=ConnectionLimits(3, idle_seconds_min=0.0001))


@RUNNERS
def test_requests_that_take_long_to_read_wait_for_their_turns_and_other_clients_do_not(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of all connections arrive before the loop looks at its sockets; the client that asks little sends last.

    Time passes by slow requests alone, so that a busy machine makes no other request slow.
    """
    now = [0.0]
    monkeypatch.setattr("braidlog.server.net.scheduler.thread_time", lambda: now[0])

    async def scene(port: Port) -> None:
        turns, served = port.listener.fair_turns, list[str]()
        is_blocked, is_sent = threading.Event(), threading.Event()
        turns.clock = lambda: now[0]

        def answer(request: str) -> str:
            served.append(request)
            if request == "begin":
                is_blocked.set()
                assert is_sent.wait(SECONDS_MAX)
            if request == "slow":
                now[0] += SLICE_SECONDS
            return f"ok {request}"

        port.adapter._answer = answer  # type: ignore[method-assign]
        slow = [await port.connect(b"hi\n") for _ in range(30)]
        quick = await port.connect(b"hello\n")
        assert await asyncio.to_thread(quick.recv, 100) == b"ok hello\n"
        await port.swept_until(lambda: served.count("hi") == len(slow) and not turns.crowd)
        served.clear()

        def send() -> None:
            assert is_blocked.wait(SECONDS_MAX)
            for each in slow[1:]:
                each.sendall(b"slow\nslow\n")
            quick.sendall(b"hello\n")
            while any(map(unacknowledged, (*slow, quick))):  # a busy kernel delivers later, also on loopback
                threading.Event().wait(0.001)
            is_sent.set()

        slow[0].sendall(b"begin\n")
        await asyncio.to_thread(send)
        await port.swept_until(lambda: served.count("slow") == 2 * len(slow[1:]))
        assert served.index("hello") <= 2, f"{served.index('hello')} requests were served before it"
        for each in (*slow, quick):
            each.close()

    play(runner, scene)


def test_the_bytes_of_a_client_that_has_closed_one_half_are_read_in_their_turn() -> None:
    async def scene(port: Port) -> None:
        peer = await port.connect(b"long 1\n")
        await port.swept_until(lambda: "1" in port.adapter.waiting)
        (session,) = port.listener.sessions
        session._wait_for_turn()  # as if the loop had been busy
        session._regulate()
        session.client_disconnected(is_reset=False)
        assert not session.is_closing, "there may be requests in the bytes that are not read yet"
        peer.sendall(b"two\n")
        peer.shutdown(socket.SHUT_WR)
        assert await asyncio.to_thread(read_all, peer) == b"nothing\nok two\n"

    play(uvloop.run, scene)
